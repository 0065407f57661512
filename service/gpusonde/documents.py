"""Documents: JSON and TOML files whose keys are the fields of dataclasses.

A document (a problem, a plan, a profile of a job, measurements) is described once, by a dataclass: a key is a field,
its kind is the field's type, its range stands in an annotation, its default is the field's default, and what it means
stands in the docstring under "Attributes". ``parse`` makes the object of plain values and says of whatever cannot be
where it stands; ``describe`` says the same to whoever writes a page; a message that carries the document on the wire
is checked against ``keys_of``. What a range cannot say is checked by the class itself in ``__post_init__``, which
raises ``DocumentError`` with its own key.

    @dataclass(frozen=True)
    class Group:
        offer: Annotated[str, Text(longest=256)]
        machines: Annotated[int, Whole(most=10_000)]

``read_document`` reads files of bounded size and depth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import json
import math
import numbers
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin

from gpusonde.errors import DocumentError, GpusondeError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "LARGEST_DOCUMENT_BYTES",
    "NOT_A_KEY",
    "Default",
    "DocumentKey",
    "ListOf",
    "Number",
    "Text",
    "Whole",
    "check_format",
    "describe",
    "keys_of",
    "parse",
    "parse_json",
    "read_as",
    "read_document",
    "to_plain",
]
LARGEST_DOCUMENT_BYTES = 8 << 20
_DEEPEST = 32
_SHOWN = 60
# Annotation of a field that no document sets.
NOT_A_KEY = "not a key"
ParsedT = TypeVar("ParsedT")


class Check(Protocol):
    """What a value is checked by."""

    def read(self, value: Any, path: str) -> Any:
        """Return the value as the program uses it.

        Raises:
            DocumentError: It cannot be; ``path`` names it.
        """
        ...

    def words(self) -> str:
        """Return what is taken, for a sentence such as "must be ..."."""
        ...


@dataclass(frozen=True)
class Number:
    """A finite number.

    Attributes:
        above: It is larger than this; None where ``least`` holds.
        least: It is at least this; None where ``above`` holds.
        most: It is at most this.
    """

    above: float | None = 0.0
    least: float | None = None
    most: float = math.inf

    def read(self, value: Any, path: str) -> float:
        """Return the number; as for ``Check``."""
        try:
            # A whole number of any length is read from a file, but not every one is a float.
            found = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        except OverflowError:
            found = math.nan
        above = self.least is not None or self.above is None or found > self.above
        least = self.least is None or found >= self.least
        if not (math.isfinite(found) and above and least and found <= self.most):
            # "24h" and a date are what people write for a time.
            is_time = path.endswith("_s") and not isinstance(value, (int, float))
            words = self.words().replace("a number", "a number of seconds") if is_time else self.words()
            raise DocumentError(path, f"must be {words}, not {_shown(value)}")
        return found

    def words(self) -> str:
        """Return what is taken."""
        bounds = [f"above {self.above:g}"] if self.least is None and self.above is not None else []
        bounds += [] if self.least is None else [f"at least {self.least:g}"]
        bounds += [f"at most {self.most:g}"] if math.isfinite(self.most) else []
        return f"a number {' and '.join(bounds)}".rstrip()


@dataclass(frozen=True)
class Whole:
    """A whole number; 8.0 is one.

    Attributes:
        least: The smallest.
        most: The largest.
    """

    least: int = 1
    most: int = 1 << 53

    def read(self, value: Any, path: str) -> int:
        """Return the whole number; as for ``Check``."""
        is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
        if not is_whole or not self.least <= value <= self.most:
            raise DocumentError(path, f"must be {self.words()}, not {_shown(value)}")
        return int(value)

    def words(self) -> str:
        """Return what is taken."""
        return f"a whole number from {self.least} to {self.most:,}"


@dataclass(frozen=True)
class Text:
    """A text without control characters, not empty.

    Attributes:
        longest: Most characters.
    """

    longest: int = 128

    def read(self, value: Any, path: str) -> str:
        """Return the text; as for ``Check``."""
        if not isinstance(value, str) or not value or len(value) > self.longest or not value.isprintable():
            raise DocumentError(path, f"must be {self.words()}, not {_shown(value)}")
        return value

    def words(self) -> str:
        """Return what is taken."""
        return f"a text of 1 to {self.longest:,} characters"


@dataclass(frozen=True)
class Switch:
    """True or false."""

    def read(self, value: Any, path: str) -> bool:
        """Return it; as for ``Check``."""
        if not isinstance(value, bool):
            raise DocumentError(path, f"must be {self.words()}, not {_shown(value)}")
        return value

    def words(self) -> str:
        """Return what is taken."""
        return "true or false"


@dataclass(frozen=True)
class OneOf:
    """One of some texts.

    Attributes:
        values: Text -> what the program uses for it.
    """

    values: Mapping[str, Any]

    def read(self, value: Any, path: str) -> Any:
        """Return what the text stands for; as for ``Check``."""
        if not isinstance(value, str) or value not in self.values:
            raise DocumentError(path, f"must not be {_shown(value)}; use {self.words()}")
        return self.values[value]

    def words(self) -> str:
        """Return what is taken."""
        return " or ".join(self.values)


@dataclass(frozen=True)
class ListOf:
    """A list.

    Attributes:
        most: Most elements.
        least: Fewest elements.
        element: What each is; None where the field's type says it.
    """

    most: int
    least: int = 0
    element: Check | None = None

    def read(self, value: Any, path: str) -> tuple[Any, ...]:
        """Return the elements; as for ``Check``."""
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            raise DocumentError(path, f"must be a list, not {_shown(value)}")
        if not self.least <= len(value) <= self.most:
            bound = f"at least {self.least}" if len(value) < self.least else f"at most {self.most:,}"
            raise DocumentError(path, f"{bound} elements are taken, not {len(value):,}")
        if self.element is None:
            return tuple(value)
        return tuple(self.element.read(each, f"{path}[{place}]") for place, each in enumerate(value))

    def words(self) -> str:
        """Return what is taken."""
        return "a list" if self.element is None else f"a list, each {self.element.words()}"


@dataclass(frozen=True)
class Object:
    """An object with keys.

    Attributes:
        kind: The dataclass whose fields are the keys.
    """

    kind: type[Any]

    def read(self, value: Any, path: str) -> Any:
        """Return the object; as for ``Check``."""
        return parse(self.kind, value, path)

    def words(self) -> str:
        """Return what is taken."""
        return "an object (in TOML a table)"


@dataclass(frozen=True)
class Anything:
    """Whatever a later check makes of it."""

    def read(self, value: Any, path: str) -> Any:
        """Return the value."""
        return value

    def words(self) -> str:
        """Return what is taken."""
        return "a value"


@dataclass(frozen=True)
class Default:
    """What a document means that leaves a key out, where the dataclass itself demands a value.

    Attributes:
        value: The value.
    """

    value: Any


@dataclass(frozen=True)
class DocumentKey:
    """One key of an object.

    Attributes:
        name: The key.
        check: What it may hold.
        default: What holds where it is missing; None where nothing does.
        is_required: Whether it must be there.
    """

    name: str
    check: Check
    default: Any
    is_required: bool

    @property
    def kind(self) -> type[Any] | None:
        """The dataclass of an object, or of a list's objects; None for other values."""
        check = self.check.element if isinstance(self.check, ListOf) else self.check
        return check.kind if isinstance(check, Object) else None


@functools.cache
def keys_of(kind: Any) -> tuple[DocumentKey, ...]:
    """Return the keys of a document that a dataclass describes, in its order.

    Raises:
        TypeError: A field is of a type that no document holds.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    keys = []
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        if not each.init or NOT_A_KEY in getattr(hint, "__metadata__", ()):
            continue
        default = each.default if each.default_factory is MISSING else each.default_factory()
        told = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Default)]
        default = told[0].value if told else default
        is_required = default is MISSING
        keys.append(DocumentKey(each.name, _check_of(hint, each.name), None if is_required else default, is_required))
    return tuple(keys)


def parse(kind: type[ParsedT], values: Any, path: str = "", *, format_name: str = "") -> ParsedT:
    """Return the object that plain values describe; null counts as missing.

    Args:
        kind: The dataclass whose fields are the keys.
        values: What was read.
        path: Where the object lies, for example ``offers[2]``; empty for the document itself.
        format_name: The object is a document of its own, which says so under ``format``, as for ``check_format``.

    Raises:
        DocumentError: A key is missing, unknown or holds something that cannot be; its ``field`` names the key.
    """
    if not isinstance(values, Mapping):
        raise DocumentError(path, f"must be an object (in TOML a table), not {_shown(values)}")
    keys = keys_of(kind)  # type: ignore[arg-type]  # mypy holds a type for unhashable
    names = [key.name for key in keys]
    if format_name:
        check_format(values, format_name, path)
        values = {name: value for name, value in values.items() if name != "format"}
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise DocumentError(_at(path, str(name)[:_SHOWN]), f"there is no such key; {hint}")
    found = {}
    for key in keys:
        value = values.get(key.name)
        if value is not None:
            found[key.name] = key.check.read(value, _at(path, key.name))
        elif not key.is_required:
            found[key.name] = key.default
        else:
            said = {OneOf: "use", Object: "it must be"}.get(type(key.check), "give")
            raise DocumentError(_at(path, key.name), f"is missing; {said} {key.check.words()}")
    try:
        return kind(**found)
    except DocumentError as error:
        raise DocumentError(_at(path, error.field), error.problem) from None
    except GpusondeError as error:
        raise DocumentError(path, str(error)) from None


def describe(kind: type[Any]) -> list[tuple[str, str, str, str]]:
    """Return the keys of a document for a page: name, what it holds, default, and what the docstring says of it."""
    meanings = attributes_of(kind)
    rows = []
    for key in keys_of(kind):  # type: ignore[arg-type]
        default = "required" if key.is_required else _default_words(key.default)
        rows.append((key.name, key.check.words(), default, meanings.get(key.name, "")))
    return rows


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses become objects, what is not finite becomes None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (tuple, list)):
        return [to_plain(element) for element in value]
    return value


def read_document(path: Path, largest_bytes: int = LARGEST_DOCUMENT_BYTES) -> dict[str, Any]:
    """Read a document; files called ``*.toml`` are TOML, all others JSON; what ``-`` names is on stdin, and either.

    Raises:
        DocumentError: It is too large, cannot be parsed or is no object.
        OSError: It cannot be read.
    """
    # Read before it is measured: a pipe has no size.
    is_stdin = str(path) == "-"
    with contextlib.nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as file:
        data = file.read(largest_bytes + 1)
    if path.suffix == ".toml" or (is_stdin and not data.lstrip().startswith(b"{")):
        return _checked(_toml(_decode(data, largest_bytes)))
    return parse_json(data, largest_bytes=largest_bytes)


def parse_json(data: bytes, *, is_line: bool = False, largest_bytes: int = LARGEST_DOCUMENT_BYTES) -> dict[str, Any]:
    """Parse a JSON document.

    Args:
        data: Its bytes.
        is_line: It is a line of a larger file, whose number the caller names.
        largest_bytes: What is longer is refused.

    Raises:
        DocumentError: It is too large, no JSON or no object; NaN and infinities, which are no JSON, are refused.
    """
    text = _decode(data, largest_bytes)
    try:
        return _checked(json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique))
    except json.JSONDecodeError as error:
        place = f"at character {error.colno}" if is_line else f"line {error.lineno}"
        raise DocumentError("", f"{place}: no JSON ({error.msg})") from None
    except RecursionError:
        raise DocumentError("", f"is nested more than {_DEEPEST} deep") from None
    except DocumentError:
        raise
    except ValueError as error:  # whole numbers of thousands of digits
        raise DocumentError("", f"no JSON ({error})") from None


def read_as(kind: type[ParsedT], path: Path, format_name: str, largest_bytes: int = LARGEST_DOCUMENT_BYTES) -> ParsedT:
    """Read a document of its own as an object.

    Raises:
        DocumentError: As ``read_document`` and ``parse``; its ``path`` names the file.
        OSError: It cannot be read.
    """
    try:
        return parse(kind, read_document(path, largest_bytes), format_name=format_name)
    except DocumentError as error:
        raise DocumentError(error.field, error.problem, path) from None


def check_format(document: Mapping[str, Any], kind: str, path: str = "") -> None:
    """Check that a document says what it is.

    Raises:
        DocumentError: It says something else, or is of a version that this program does not know.
    """
    field = _at(path, "format")
    said = document.get("format")
    expected = f"gpusonde.{kind}/1"
    if said == expected:
        return
    if isinstance(said, str) and said.startswith(f"gpusonde.{kind}/"):
        raise DocumentError(field, f"version {said[:60]!r} is not known here, only {expected!r}; upgrade gpusonde")
    problem = "is missing" if said is None else f"is {str(said)[:60]!r}"
    raise DocumentError(field, f"{problem}; a {kind} file begins with format = {expected!r}")


def _check_of(hint: Any, name: str) -> Check:
    """Return what a field of a type is checked by."""
    if get_origin(hint) is typing.Annotated:
        own = [each for each in hint.__metadata__ if isinstance(each, (Number, Whole, Text, ListOf))]
        inner = hint.__origin__
        if not own:
            return _check_of(inner, name)
        check: Check = own[0]
        if isinstance(check, ListOf) and check.element is None:
            return dataclasses.replace(check, element=_check_of(get_args(inner)[0], name))
        return check
    if get_origin(hint) in (typing.Union, types.UnionType):
        return _check_of(next(each for each in get_args(hint) if each is not type(None)), name)
    if get_origin(hint) is Literal:
        return OneOf({value: value for value in get_args(hint)})
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return OneOf({each.value: each for each in hint})
        if dataclasses.is_dataclass(hint):
            return Object(hint)
    plain: dict[Any, Check] = {Any: Anything(), bool: Switch(), int: Whole(), float: Number(), str: Text()}
    if hint not in plain:
        raise TypeError(f"{name}: no document holds {hint!r}")
    return plain[hint]


def attributes_of(kind: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a class, and of those that it extends, say of its fields."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        name = ""
        section = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        for line in section.splitlines():
            start = re.fullmatch(r" {4}(\w+): (.*)", line)
            if start:
                name = start[1]
                found[name] = start[2]
            elif name:
                found[name] += f" {line.strip()}"
    return found


def _default_words(default: Any) -> str:
    if default is None or default in ((), "") or dataclasses.is_dataclass(default):
        return ""
    plain = to_plain(default)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _at(path: str, key: str | None) -> str:
    if not key:
        return path
    return f"{path}.{key}" if path else key


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return "that"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _decode(data: bytes, largest_bytes: int) -> str:
    if len(data) > largest_bytes:
        raise DocumentError("", f"is larger than {largest_bytes >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError("", f"is not UTF-8 text (byte {error.start})") from None


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DocumentError("", f"is nested more than {_DEEPEST} deep") from None
    except ValueError as error:
        raise DocumentError("", f"no TOML ({error})") from None


def _checked(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise DocumentError("", "must be one object")
    _check_depth(document)
    return document


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise DocumentError("", f"is nested more than {_DEEPEST} deep")


def _refuse_constant(name: str) -> Any:
    raise DocumentError("", f"{name} is no JSON; leave out what is not known")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        repeated = next(key for key in found if names.count(key) > 1)
        raise DocumentError(repeated[:60], "appears twice in one object")
    return found

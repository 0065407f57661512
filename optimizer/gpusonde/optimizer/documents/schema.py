"""``Table``: typed access to the keys of a document, whose errors name the key and say what to write.

Reading and writing documents: JSON or TOML by the file's name, of bounded size and depth.
"""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusonde.service.durable_files import write_durably

_SHOWN = 60


class DocumentError(ValueError):
    """A document that cannot be used; the message says where and what to do.

    Attributes:
        field: Path of the key at fault, for example ``offers[2].usd_per_hour``; empty for the document as a whole.
    """

    def __init__(self, field: str, problem: str) -> None:
        """Name the key."""
        self.field = field
        super().__init__(f"{field}: {problem}" if field else problem)


class Table:
    """One object of a document, whose keys must all be known.

    Args:
        values: What was read.
        path: Where the object lies; empty for the document itself.
        known: The keys that it may have.

    Raises:
        DocumentError: It is no object, or has another key.
    """

    def __init__(self, values: Any, path: str, known: Iterable[str]) -> None:
        if not isinstance(values, Mapping):
            raise DocumentError(path, f"must be an object (in TOML a table), not {_shown(values)}")
        self.path = path
        self._values = values
        names = list(known)
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
                raise DocumentError(self.at(str(key)[:_SHOWN]), f"there is no such key; {hint}")

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def value(self, key: str) -> Any:
        """Return whatever a key holds; None without it."""
        return self._values.get(key)

    def number(
        self, key: str, default: float | None = None, *, least: float = 0.0, most: float = math.inf, above: bool = True
    ) -> float:
        """Return a finite number above ``least`` (or of at least that), at most ``most``.

        Raises:
            DocumentError: It is missing without a default, no number, or out of its range.
        """
        value = self._values.get(key)
        if value is None:
            if default is None:
                raise DocumentError(self.at(key), "is missing; give a number")
            return default
        return number(value, self.at(key), least=least, most=most, above=above)

    def optional_number(self, key: str, *, least: float = 0.0, most: float = math.inf) -> float | None:
        """Return a number above ``least``; None where there is none."""
        return self.number(key, least=least, most=most) if key in self else None

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int) -> int:
        """Return a whole number from ``least`` to ``most``.

        Raises:
            DocumentError: As for ``number``.
        """
        value = self._values.get(key)
        if value is None:
            if default is None:
                raise DocumentError(self.at(key), f"is missing; give a whole number from {least} to {most:,}")
            return default
        return whole(value, self.at(key), least=least, most=most)

    def text(self, key: str, default: str | None = None, *, longest: int = 128) -> str:
        """Return a text without control characters.

        Raises:
            DocumentError: It is missing without a default, no text, empty or too long.
        """
        value = self._values.get(key)
        if value is None:
            if default is None:
                raise DocumentError(self.at(key), "is missing; give a text")
            return default
        return text(value, self.at(key), longest=longest)

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return one of some texts.

        Raises:
            DocumentError: It is missing without a default, or another one.
        """
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in choices:
            problem = "is missing" if value is None else f"must not be {_shown(value)}"
            raise DocumentError(self.at(key), f"{problem}; use {' or '.join(choices)}")
        return value

    def switch(self, key: str, default: bool = False) -> bool:
        """Return true or false.

        Raises:
            DocumentError: It is neither.
        """
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise DocumentError(self.at(key), f"must be true or false, not {_shown(value)}")
        return value

    def items(self, key: str, *, most: int, least: int = 0) -> Iterator[tuple[str, Any]]:
        """Yield the elements of a list with their paths; none where there is no list.

        Raises:
            DocumentError: It is no list, or has too few or too many elements.
        """
        value = self._values.get(key)
        found = [] if value is None else value
        if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Sequence):
            raise DocumentError(self.at(key), f"must be a list, not {_shown(value)}")
        if not least <= len(found) <= most:
            bound = f"at least {least}" if len(found) < least else f"at most {most:,}"
            raise DocumentError(self.at(key), f"{bound} elements are taken, not {len(found):,}")
        for place, element in enumerate(found):
            yield f"{self.at(key)}[{place}]", element

    def numbers(self, key: str, *, most: int, least: float = 0.0, above: bool = True) -> list[float]:
        """Return a list of numbers, empty where there is none.

        Raises:
            DocumentError: An element is no number or out of its range.
        """
        return [number(element, path, least=least, above=above) for path, element in self.items(key, most=most)]

    def one_of(self, keys: Sequence[str], problem: str) -> str:
        """Return which one of some keys is there.

        Raises:
            DocumentError: None or several are.
        """
        found = [key for key in keys if key in self]
        if len(found) != 1:
            got = f"got {' and '.join(found)}" if found else "got none"
            raise DocumentError(self.path, f"{problem}: give exactly one of {', '.join(keys)}; {got}")
        return found[0]


def number(value: Any, path: str, *, least: float = 0.0, most: float = math.inf, above: bool = True) -> float:
    """Return a finite number in its range.

    Raises:
        DocumentError: It is none.
    """
    bounds = f"{'above' if above else 'at least'} {least:g}" + ("" if math.isinf(most) else f" and at most {most:g}")
    try:
        # A whole number of any length is read from a file, but not every one is a float.
        found = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:
        found = math.nan
    in_range = (found > least if above else found >= least) and found <= most
    if not (math.isfinite(found) and in_range):
        raise DocumentError(path, f"must be a number {bounds}, not {_shown(value)}")
    return found


def whole(value: Any, path: str, *, least: int = 1, most: int) -> int:
    """Return a whole number in its range; 8.0 is one.

    Raises:
        DocumentError: It is none.
    """
    is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
    if not is_whole or not least <= value <= most:
        raise DocumentError(path, f"must be a whole number from {least} to {most:,}, not {_shown(value)}")
    return int(value)


def text(value: Any, path: str, *, longest: int = 128) -> str:
    """Return a text without control characters.

    Raises:
        DocumentError: It is none, empty or too long.
    """
    if not isinstance(value, str) or not value or len(value) > longest or not value.isprintable():
        raise DocumentError(path, f"must be a text of 1 to {longest} characters, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return "that"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_DOCUMENT_BYTES = 8 << 20
_DEEPEST = 32


def read_document(path: Path) -> dict[str, Any]:
    """Read a document; files called ``*.toml`` are TOML, all others JSON.

    Raises:
        DocumentError: It is too large, cannot be parsed or is no object.
        OSError: It cannot be read.
    """
    # Read before it is measured: a pipe has no size.
    with path.open("rb") as file:
        data = file.read(LARGEST_DOCUMENT_BYTES + 1)
    if path.suffix == ".toml":
        return _checked(_toml(_text(data)))
    return parse_json(data)


def parse_json(data: bytes, *, is_line: bool = False) -> dict[str, Any]:
    """Parse a JSON document.

    Args:
        data: Its bytes.
        is_line: It is a line of a larger file, whose number the caller names.

    Raises:
        DocumentError: It is too large, no JSON or no object; NaN and infinities, which are no JSON, are refused.
    """
    text = _text(data)
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


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document; the file is there as a whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    write_durably(path, text.encode())


def check_format(document: Mapping[str, Any], kind: str, path: str = "") -> None:
    """Check that a document says what it is.

    Raises:
        DocumentError: It says something else, or is of a version that this program does not know.
    """
    field = f"{path}.format" if path else "format"
    said = document.get("format")
    expected = f"gpusonde.{kind}/1"
    if said == expected:
        return
    if isinstance(said, str) and said.startswith(f"gpusonde.{kind}/"):
        raise DocumentError(field, f"version {said[:60]!r} is not known here, only {expected!r}; upgrade gpusonde")
    problem = "is missing" if said is None else f"is {str(said)[:60]!r}"
    raise DocumentError(field, f"{problem}; a {kind} file begins with format = {expected!r}")


def _text(data: bytes) -> str:
    if len(data) > LARGEST_DOCUMENT_BYTES:
        raise DocumentError("", f"is larger than {LARGEST_DOCUMENT_BYTES >> 20} MiB")
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

"""``Table``: typed access to the keys of a document, whose errors name the key and say what to write."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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

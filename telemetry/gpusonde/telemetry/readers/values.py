"""Numbers of trace files: units, blanks, sentinels and impossible values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpusonde.telemetry.errors import shown
from gpusonde.telemetry.metrics import METRIC_BY_NAME, Unit
from gpusonde.telemetry.trace import FloatArray

# What tools write where a GPU gave no value. Empty cells are our own way of writing it.
BLANK_TEXTS = frozenset(
    {
        *("n/a", "[n/a]", "na", "nan", "null", "none", "-", "err!", "[err!]", "unknown error", "[unknown error]"),
        *("not supported", "[not supported]", "[not found]", "[timeout]", "[gpu is lost]", "[gpu requires reset]"),
        *("[insufficient permissions]", "[insufficient_permissions]"),
        "[requested functionality has been deprecated]",
    }
)

# Blank values of DCGM (dcgm_structs.h): the base and, up to three above it, not found, not supported, no permission.
_SENTINELS = np.array(
    [0x7FFFFFF0 + i for i in range(4)] + [(1 << 47) + i for i in range(4)],
    dtype=np.float64,
)
_INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)
_ABSOLUTE_ZERO = -273.15

_NUMBER_AND_UNIT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?", re.ASCII)

# Unit as written -> (multiply by, divide by). Percent is divided: 57 * 0.01 is not 0.57.
_CONVERSIONS: dict[Unit, dict[str, tuple[float, float]]] = {
    Unit.RATIO: {"%": (1.0, 100.0)},
    Unit.WATTS: {"W": (1.0, 1.0), "mW": (1.0, 1000.0)},
    Unit.JOULES: {"J": (1.0, 1.0), "mJ": (1.0, 1000.0)},
    Unit.CELSIUS: {"C": (1.0, 1.0)},
    Unit.MEGAHERTZ: {"MHz": (1.0, 1.0)},
    # Drivers before R340 wrote "MB" and meant MiB.
    Unit.BYTES: {
        "B": (1.0, 1.0), "KiB": (1024.0, 1.0), "MiB": (1024.0**2, 1.0), "MB": (1024.0**2, 1.0), "GiB": (1024.0**3, 1.0)
    },
    Unit.BYTES_PER_SECOND: {"B/s": (1.0, 1.0)},
    Unit.COUNT: {},
}  # fmt: skip


class CellError(ValueError):
    """A cell that is no number of its column.

    Attributes:
        index: Index of the cell in the block.
        header: Name of the column in the file.
    """

    def __init__(self, index: int, header: str, what: str) -> None:
        """Keep the place."""
        self.index = index
        self.header = header
        super().__init__(what)


@dataclass(frozen=True)
class Numbers:
    """Numbers of one block as they stand in the file, shape (n,), with the conversion to the catalogue's unit."""

    raw: FloatArray
    factor: FloatArray | float
    divisor: FloatArray | float
    blanks: int = 0


def conversion(unit: Unit, written: str) -> tuple[float, float] | None:
    """Return (factor, divisor) from a written unit to the catalogue's, or None where it is no unit of this metric."""
    return _CONVERSIONS[unit].get(written)


@dataclass
class Column:
    """One metric column while a file is read.

    Attributes:
        metric: Name in the catalogue.
        header: Name in the file, for messages.
        factor: What a number without a unit of its own is multiplied by.
        divisor: What it is divided by after that.
        decimal_comma: Whether "0,5" is a half.
        blanks: How many cells held a tool's word for "no value".
        impossible: How many values were sentinels or outside of the metric's range.
        first_impossible: Line of the first of them.
        parts: Converted blocks.
    """

    metric: str
    header: str
    factor: float = 1.0
    divisor: float = 1.0
    decimal_comma: bool = False
    blanks: int = 0
    impossible: int = 0
    first_impossible: int = 0
    parts: list[FloatArray] = field(default_factory=list)

    def parse(self, cells: Sequence[str]) -> Numbers:
        """Read the cells of one block; an empty cell is NaN.

        Raises:
            CellError: A cell is neither a number in a known unit nor blank.
        """
        if self.decimal_comma:
            cells = [cell.replace(",", ".") for cell in cells]
        numbers = _plain_numbers(cells)
        if numbers is not None:
            return Numbers(numbers, self.factor, self.divisor)
        # Nearly always, either all cells carry the same unit or none does.
        _, space, written = cells[0].partition(" ")
        known = conversion(METRIC_BY_NAME[self.metric].unit, written)
        suffix = space + written
        if known is not None and all(cell.endswith(suffix) for cell in cells):
            numbers = _plain_numbers([cell[: -len(suffix)] for cell in cells])
            if numbers is not None:
                return Numbers(numbers, *known)
        return self._parse_each(cells)

    def _parse_each(self, cells: Sequence[str]) -> Numbers:
        unit = METRIC_BY_NAME[self.metric].unit
        raw = np.full(len(cells), np.nan)
        factor = np.full(len(cells), self.factor)
        divisor = np.full(len(cells), self.divisor)
        blanks = 0
        for index, cell in enumerate(cells):
            text = cell.strip()
            match = _NUMBER_AND_UNIT.fullmatch(text)
            if match is not None:
                number, written = match.groups()
                known = conversion(unit, written) if written else (self.factor, self.divisor)
                if known is not None:
                    raw[index] = float(number)
                    factor[index], divisor[index] = known
                    continue
            if text and text.lower() not in BLANK_TEXTS:
                what = f"{shown(cell)} is not a number that can be read as {unit.value}; correct it, or leave it empty"
                raise CellError(index, self.header, what)
            blanks += bool(text)
        return Numbers(raw, factor, divisor, blanks)

    def take(self, numbers: Numbers, lines: Sequence[int]) -> None:
        """Convert the numbers of one block, whose lines or rows are given, and keep them."""
        raw = numbers.raw
        with np.errstate(over="ignore", invalid="ignore"):
            values = raw * numbers.factor / numbers.divisor
        entry = METRIC_BY_NAME[self.metric]
        lowest = _ABSOLUTE_ZERO if entry.unit is Unit.CELSIUS else 0.0
        highest = math.inf if entry.maximum is None else entry.maximum
        wrong = (values < lowest) | (values > highest) | np.isinf(values) | (raw >= _INT64_BLANK)
        wrong |= np.isin(raw, _SENTINELS)
        count = int(np.count_nonzero(wrong))
        if count:
            if not self.impossible:
                self.first_impossible = int(lines[int(np.argmax(wrong))])
            self.impossible += count
            values[wrong] = np.nan
        self.blanks += numbers.blanks
        self.parts.append(values)

    def values(self) -> FloatArray:
        """Return all values taken so far, shape (n,)."""
        return np.concatenate(self.parts) if self.parts else np.empty(0)

    def warnings(self, place: str, scope: str) -> list[str]:
        """Say what was read as missing; ``place`` is the word before a line number, ``scope`` follows the counts."""
        said = []
        if self.blanks:
            said.append(f"{self.header}: {self.blanks} values{scope} were given as not available; they are missing")
        if self.impossible:
            said.append(
                f"{self.header}: {self.impossible} values{scope} are sentinels or impossible "
                f"(the first on {place}{self.first_impossible}); they are taken as missing"
            )
        return said


def _plain_numbers(cells: Sequence[str]) -> FloatArray | None:
    """Return the cells as numbers, or None where one of them is more than a number."""
    try:
        numbers = np.array([float(cell) if cell else math.nan for cell in cells])
    except ValueError:
        return None
    # Python reads "1_0" as ten.
    return None if any("_" in cell for cell in cells) else numbers

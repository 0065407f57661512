"""``OtherAccelerator``: figures of accelerators that are not NVIDIA's, for reading: nothing is predicted for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.catalog.loading import NUMBERS, read_source, read_texts, read_value
from gpusonde.catalog.spec import Source
from gpusonde.errors import CatalogError

_VENDORS = tuple(
    (vendor, re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", re.IGNORECASE))
    for vendor, words in (
        ("AMD", r"amd|ati|radeon|instinct|firepro|mi\d{2,3}[a-z]?|rx ?\d{4}(?: ?xtx?)?|gfx\d+[a-z]?"),
        ("Intel", r"intel|gaudi ?\d?|habana|hl-?\d{3}[a-z]?|arc ?[ab]\d{2,3}[a-z]?|data center gpu (?:max|flex)"),
        ("Google", r"tpu(?:[ -]?v\d[a-z]?)?"),
        ("AWS", r"trainium ?\d?|inferentia ?\d?"),
        ("Huawei", r"huawei|ascend(?: ?\d{3}[a-z]?)?"),
        ("Apple", r"apple"),
        ("Qualcomm", r"qualcomm|adreno"),
        ("Graphcore", r"graphcore"),
        ("Cerebras", r"cerebras"),
    )
)
_TEXTS = ("vendor", "architecture", "memory_type", "released", "note")
# Compute units are AMD's multiprocessors; the other keys and their units are those of a [[gpu]].
_RATES = (
    "memory_gib", "memory_bandwidth_gb_per_s", "fp32_tflops", "tensor_fp16_tflops", "tensor_bf16_tflops",
    "tensor_tf32_tflops", "tensor_fp8_tflops", "power_limit_watts",
)  # fmt: skip
_KEYS = ("name", "aliases", "source", "source_of", "compute_units", *_TEXTS, *_RATES)


def find_vendor(name: str) -> str | None:
    """Return whose accelerator a name is ("AMD" for "Instinct MI300X"), or None where no other vendor is named."""
    return next((vendor for vendor, pattern in _VENDORS if pattern.search(name)), None)


@dataclass(frozen=True)
class OtherAccelerator:
    """What a vendor other than NVIDIA publishes about an accelerator.

    Attributes:
        name: Canonical name.
        vendor: ``AMD``, ``Intel`` ...
        aliases: Other spellings.
        architecture: The vendor's name of it.
        memory_type: ``HBM3`` ...
        released: Day, month or year of release, ISO 8601; empty where nobody wrote it down.
        note: What a reader should know before trusting a figure; empty otherwise.
        values: Figure -> value, named and in the units of ``GpuSpec``, and ``compute_units``. Peaks are dense.
        sources: Figure -> source.
    """

    name: str
    vendor: str
    aliases: tuple[str, ...]
    architecture: str
    memory_type: str
    released: str
    note: str
    values: Mapping[str, float] = field(compare=False)
    sources: Mapping[str, Source] = field(repr=False, compare=False)

    def figures(self) -> dict[str, float]:
        """Every known figure by name."""
        return dict(self.values)

    def source_of(self, figure: str) -> Source:
        """Source of one figure's value.

        Raises:
            KeyError: There is no such figure.
        """
        return self.sources[figure]


def parse_other(table: object, sources: Mapping[str, Source], file: Path) -> OtherAccelerator:
    """Read one ``[[other_accelerator]]`` table.

    Raises:
        CatalogError: A key is unknown, missing or of the wrong type, or a source is not defined.
    """
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise CatalogError(f"{file}: every other_accelerator must be an [[other_accelerator]] table with a name")
    where = f"{file}: other_accelerator {table['name']!r}"
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise CatalogError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    texts = {key: table.get(key, "" if key in ("released", "note") else None) for key in _TEXTS}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise CatalogError(f"{where}: {key} must be a string, not {value!r}")
    overrides = table.get("source_of", {})
    if not isinstance(overrides, Mapping):
        raise CatalogError(f"{where}: source_of must be a table of figure = source")
    values: dict[str, float] = {}
    origins: dict[str, Source] = {}
    for key in ("compute_units", *_RATES):
        if key not in table:
            continue
        # Compute units are as many as multiprocessors may be.
        attribute = NUMBERS[key][0] if key in NUMBERS else key
        values[attribute] = float(read_value(key if key in NUMBERS else "sm_count", table[key], where))
        origins[attribute] = read_source(overrides.get(key, table.get("source")), sources, f"{where}: {key}")
    return OtherAccelerator(
        name=table["name"],
        aliases=read_texts(table.get("aliases", []), f"{where}: aliases"),
        values=values,
        sources=origins,
        **texts,
    )

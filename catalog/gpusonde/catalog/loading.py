"""Reads ``gpus.toml`` into ``GpuSpec`` objects and refuses figures that cannot be true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpusonde.catalog.spec import GpuSpec, Source
from gpusonde.errors import CatalogError

_GIBIBYTE = float(1 << 30)
_MEBIBYTE = float(1 << 20)
_KIBIBYTE = float(1 << 10)
_GIGABYTE = 1e9

# Key of the file -> (attribute, factor to the attribute's unit, smallest and largest value that the file may hold).
NUMBERS: dict[str, tuple[str, float, float, float]] = {
    "compute_capability": ("compute_capability", 1, 3.0, 15.0),
    "sm_count": ("sm_count", 1, 1, 1000),
    "cuda_cores": ("cuda_cores", 1, 64, 100_000),
    "tensor_cores": ("tensor_cores", 1, 0, 5000),
    "base_clock_mhz": ("base_clock_mhz", 1, 100, 5000),
    "boost_clock_mhz": ("boost_clock_mhz", 1, 300, 5000),
    "memory_gib": ("memory_bytes", _GIBIBYTE, 1, 2000),
    "memory_bus_bits": ("memory_bus_bits", 1, 32, 32768),
    "memory_bandwidth_gb_per_s": ("memory_bandwidth_bytes_per_second", _GIGABYTE, 10, 100_000),
    "l2_cache_mib": ("l2_cache_bytes", _MEBIBYTE, 0.1, 2000),
    "l1_cache_kib_per_sm": ("l1_cache_bytes_per_sm", _KIBIBYTE, 8, 2048),
    "fp32_tflops": ("fp32_tflops", 1, 0.1, 10_000),
    "fp16_tflops": ("fp16_tflops", 1, 0, 100_000),
    "fp64_tflops": ("fp64_tflops", 1, 0, 10_000),
    "tensor_fp16_tflops": ("tensor_fp16_tflops", 1, 0, 100_000),
    "tensor_tf32_tflops": ("tensor_tf32_tflops", 1, 0, 100_000),
    "tensor_bf16_tflops": ("tensor_bf16_tflops", 1, 0, 100_000),
    "tensor_fp8_tflops": ("tensor_fp8_tflops", 1, 0, 100_000),
    "power_limit_watts": ("power_limit_watts", 1, 5, 5000),
    "pcie_generation": ("pcie_generation", 1, 1, 9),
    "pcie_lanes": ("pcie_lanes", 1, 1, 16),
    "nvlink_gb_per_s": ("nvlink_bytes_per_second", _GIGABYTE, 0, 100_000),
    "max_threads_per_sm": ("max_threads_per_sm", 1, 512, 8192),
    "shared_memory_kib_per_sm": ("shared_memory_bytes_per_sm", _KIBIBYTE, 16, 2048),
}
_INTEGERS = frozenset(
    {
        "sm_count", "cuda_cores", "tensor_cores", "memory_bytes", "memory_bus_bits", "l2_cache_bytes",
        "l1_cache_bytes_per_sm", "pcie_generation", "pcie_lanes", "max_threads_per_sm", "shared_memory_bytes_per_sm",
    }
)  # fmt: skip
_TEXTS = ("architecture", "memory_type", "released", "note")
_OPTIONAL = frozenset(
    {
        "base_clock_mhz", "memory_bus_bits", "l2_cache_mib", "l1_cache_kib_per_sm", "fp16_tflops", "fp64_tflops",
        "tensor_fp16_tflops", "tensor_tf32_tflops", "tensor_bf16_tflops", "tensor_fp8_tflops", "power_limit_watts",
        "pcie_generation", "pcie_lanes", "nvlink_gb_per_s", "released", "note",
    }
)  # fmt: skip
_OTHER_KEYS = frozenset({"name", "aliases", "source", "source_of", "techpowerup_id"})
_PER_CAPABILITY = ("max_threads_per_sm", "shared_memory_kib_per_sm")

# First compute capability whose tensor cores take the type; before it the rate is 0.
_TENSOR_TYPES_SINCE = {"tensor_bf16_tflops": 8.0, "tensor_fp8_tflops": 8.9}
_CUTLASS = Source(
    "NVIDIA CUTLASS, include/cute/arch/mma_sm80.hpp (BF16) and mma_sm89.hpp (FP8): the architectures that guard them",
    "https://github.com/NVIDIA/cutlass/tree/main/include/cute/arch",
    "2026-11-23",
    "BSD-3-Clause.",
)

# Gbit/s per pin of each memory type, with head room for the next speed bin. A bandwidth outside them is a slip of
# unit (GB for Gbit, one die for two) rather than an odd card.
_PIN_GIGABITS_PER_SECOND = {
    "GDDR5": (3.0, 9.0), "GDDR5X": (9.0, 12.5), "GDDR6": (10.0, 20.5), "GDDR6X": (18.0, 24.5), "GDDR7": (24.0, 36.5),
    "HBM2": (1.3, 2.5), "HBM2e": (2.3, 3.7), "HBM3": (4.7, 6.8), "HBM3e": (6.0, 9.9),
}  # fmt: skip
_FP32_TOLERANCE = 0.03


def parse_gpu(table: object, capabilities: Mapping[str, Any], sources: Mapping[str, Source], file: Path) -> GpuSpec:
    """Read one ``[[gpu]]`` table.

    Args:
        table: The parsed table.
        capabilities: Parsed ``[compute_capability]``: figures that all GPUs of one compute capability share.
        sources: Source id -> source.
        file: Named in errors.

    Raises:
        CatalogError: A key is unknown, missing or of the wrong type; a source is not defined; figures contradict
            each other.
    """
    if not isinstance(table, Mapping):
        raise CatalogError(f"{file}: every gpu must be a [[gpu]] table")
    name = table.get("name")
    if not isinstance(name, str) or not name.strip():
        raise CatalogError(f"{file}: a [[gpu]] table has no name")
    where = f"{file}: gpu {name!r}"
    unknown = [key for key in table if key not in NUMBERS and key not in _TEXTS and key not in _OTHER_KEYS]
    if unknown:
        raise CatalogError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join([*NUMBERS, *_TEXTS])}")
    figures, source_ids = _with_shared_figures(table, capabilities, where)
    missing = [key for key in (*NUMBERS, *_TEXTS) if key not in figures and key not in _OPTIONAL]
    if missing:
        raise CatalogError(f"{where}: lacks {', '.join(missing)}")

    values: dict[str, Any] = {"name": name, "aliases": read_texts(table.get("aliases", []), f"{where}: aliases")}
    origins: dict[str, Source] = {}
    for key in (*NUMBERS, *_TEXTS):
        attribute = NUMBERS[key][0] if key in NUMBERS else key
        if key not in figures:
            values[attribute], origin = _by_tensor_type(key, values, origins)
            if origin is not None:
                origins[attribute] = origin
            continue
        values[attribute] = read_value(key, figures[key], where)
        if key != "note":
            origins[attribute] = read_source(source_ids[key], sources, f"{where}: {key}")
    values["cores_per_sm"], rest = divmod(values["cuda_cores"], values["sm_count"])
    if rest:
        raise CatalogError(
            f"{where}: cuda_cores {values['cuda_cores']} is no multiple of sm_count {values['sm_count']}"
        )
    origins["cores_per_sm"] = origins["cuda_cores"]
    spec = GpuSpec(**values, sources=origins)
    _check_consistent(spec, where)
    return spec


def _with_shared_figures(
    table: Mapping[str, Any], capabilities: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add the figures that all GPUs of its compute capability share; return figures, and key -> id of the source."""
    figures = dict(table)
    source_ids = {key: table.get("source") for key in table if key in NUMBERS or key in _TEXTS}
    capability = capabilities.get(_capability_key(table.get("compute_capability")), {})
    for key in _PER_CAPABILITY:
        if key not in figures and key in capability:
            figures[key] = capability[key]
            source_ids[key] = capability.get("source")
    overrides = table.get("source_of", {})
    if not isinstance(overrides, Mapping):
        raise CatalogError(f"{where}: source_of must be a table of figure = source")
    for key, identifier in overrides.items():
        if key not in source_ids:
            raise CatalogError(f"{where}: source_of names {key!r}, which the table does not hold")
        source_ids[key] = identifier
    return figures, source_ids


def _by_tensor_type(
    key: str, values: Mapping[str, Any], origins: Mapping[str, Source]
) -> tuple[float | str | None, Source | None]:
    """Return what a table that is silent about a figure means by it: tensor cores do BF16 at the rate of FP16."""
    if key == "note":
        return "", None
    if values.get("compute_capability", 0.0) < _TENSOR_TYPES_SINCE.get(key, 0.0):
        return 0.0, _CUTLASS
    if key == "tensor_bf16_tflops":
        return values["tensor_fp16_tflops"], origins.get("tensor_fp16_tflops")
    return None, None


def _capability_key(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, (int, float)) else ""


def read_texts(value: object, where: str) -> tuple[str, ...]:
    """Check a list of strings.

    Raises:
        CatalogError: It is none.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CatalogError(f"{where} must be a list of strings")
    return tuple(value)


def read_value(key: str, value: object, where: str) -> Any:
    """Check the value of a key of a ``[[gpu]]`` table; return the text, or the number in the attribute's unit.

    Raises:
        CatalogError: It is of the wrong type or outside the range of the key.
    """
    if key in _TEXTS:
        if not isinstance(value, str):
            raise CatalogError(f"{where}: {key} must be a string, not {value!r}")
        return value
    attribute, factor, low, high = NUMBERS[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CatalogError(f"{where}: {key} must be a number, not {value!r}")
    if not low <= value <= high:  # also catches nan
        raise CatalogError(f"{where}: {key} = {value} is outside {low:g}..{high:g}; is the unit right?")
    return round(value * factor) if attribute in _INTEGERS else value * factor


def read_source(identifier: object, sources: Mapping[str, Source], where: str) -> Source:
    """Return the source of this id.

    Raises:
        CatalogError: None is defined.
    """
    if not isinstance(identifier, str) or identifier not in sources:
        raise CatalogError(f"{where}: source {identifier!r} is not defined; known: {', '.join(sources)}")
    return sources[identifier]


def _check_consistent(spec: GpuSpec, where: str) -> None:
    """Peak rates must follow from cores and clock, bandwidth from the bus; a slip in one figure shows in the other."""
    computed = spec.cuda_cores * 2 * spec.boost_clock_mhz * 1e6 / 1e12
    if abs(spec.fp32_tflops / computed - 1) > _FP32_TOLERANCE:
        raise CatalogError(
            f"{where}: fp32_tflops = {spec.fp32_tflops} but cuda_cores x 2 x boost_clock_mhz gives {computed:.3f}"
        )
    if spec.memory_bus_bits is not None:
        low, high = _PIN_GIGABITS_PER_SECOND.get(spec.memory_type, (0.5, 50.0))
        pin = spec.memory_bandwidth_bytes_per_second * 8 / spec.memory_bus_bits / 1e9
        if not low <= pin <= high:
            raise CatalogError(
                f"{where}: memory_bandwidth_gb_per_s over memory_bus_bits gives {pin:.2f} Gbit/s per pin;"
                f" {spec.memory_type} runs at {low:g} to {high:g}"
            )
    if spec.base_clock_mhz is not None and spec.base_clock_mhz > spec.boost_clock_mhz:
        raise CatalogError(f"{where}: base_clock_mhz {spec.base_clock_mhz} exceeds boost_clock_mhz")
    checks: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("tensor_fp16_tflops needs tensor_cores", lambda: bool(spec.tensor_fp16_tflops) <= bool(spec.tensor_cores)),
        ("tensor_tf32_tflops needs tensor_cores", lambda: bool(spec.tensor_tf32_tflops) <= bool(spec.tensor_cores)),
        ("tensor_bf16_tflops needs tensor_cores", lambda: bool(spec.tensor_bf16_tflops) <= bool(spec.tensor_cores)),
        ("tensor_fp8_tflops needs tensor_cores", lambda: bool(spec.tensor_fp8_tflops) <= bool(spec.tensor_cores)),
        ("fp64_tflops cannot exceed fp32_tflops", lambda: (spec.fp64_tflops or 0) <= spec.fp32_tflops),
    )
    for message, holds in checks:
        if not holds():
            raise CatalogError(f"{where}: {message}")

"""``GpuSpec``: the data sheet of one GPU with the ``Source`` of every figure; ``Precision``: what jobs compute in."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from gpusonde.errors import CatalogError

DATA_DIRECTORY = Path(__file__).parent / "data"


class Precision(str, Enum):
    """What a job's matrix products and convolutions are computed in."""

    FP64 = "fp64"
    FP32 = "fp32"  # products in FP32; PyTorch's default, which lets convolutions use TF32
    TF32 = "tf32"  # products in TF32 where the GPU has it, else FP32: TensorFlow, NVIDIA's containers
    FP16 = "fp16"  # half precision throughout
    BF16 = "bf16"  # the same in BF16
    MIXED = "mixed"  # products in FP16 or BF16, FP32 master weights: autocast
    FP8 = "fp8"  # products in FP8, the rest as in mixed precision


@dataclass(frozen=True)
class Source:
    """Where a figure or a price comes from.

    Attributes:
        title: What was read.
        url: Address of it; empty when there is none (a computed or remembered figure).
        retrieved: Day or month on which it was read, ISO 8601 (``2026-11-20``, ``2025-12``).
        note: Licence and caveats.
        from_memory: True when nobody looked the figure up: it was written down from memory and wants checking.
    """

    title: str
    url: str
    retrieved: str
    note: str = ""
    from_memory: bool = False


def read_toml(path: Path) -> dict[str, Any]:
    """Parse one TOML file.

    Raises:
        CatalogError: The file is missing or is not TOML.
    """
    # tomllib came with Python 3.11; before that the distribution depends on tomli, which is the same code.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}; name an existing file") from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        document: dict[str, Any] = toml.loads(text)
    except ValueError as error:
        raise CatalogError(f"{path}: is not TOML: {error}") from error
    return document


def parse_sources(tables: object, file: Path) -> dict[str, Source]:
    """Read the ``[sources.<id>]`` tables of a data file.

    Raises:
        CatalogError: A source lacks a key, has an unknown one, or one of the wrong type.
    """
    if not isinstance(tables, Mapping):
        raise CatalogError(f"{file}: needs [sources.<id>] tables")
    types: dict[str, type] = {"title": str, "url": str, "retrieved": str, "note": str, "from_memory": bool}
    sources = {}
    for identifier, table in tables.items():
        where = f"{file}: sources.{identifier}"
        if not isinstance(table, Mapping):
            raise CatalogError(f"{where}: must be a table")
        for key, value in table.items():
            if key not in types:
                raise CatalogError(f"{where}: unknown key {key!r}; known: {', '.join(types)}")
            if not isinstance(value, types[key]):
                raise CatalogError(f"{where}: {key} must be a {types[key].__name__}, not {value!r}")
        missing = [key for key in ("title", "url", "retrieved") if key not in table]
        if missing:
            raise CatalogError(f"{where}: lacks {', '.join(missing)}")
        sources[str(identifier)] = Source(**table)
    return sources


_TEXT = frozenset({"name", "aliases", "architecture", "memory_type", "released", "note", "sources"})


@dataclass(frozen=True)
class GpuSpec:
    """The data sheet of one GPU.

    A figure that nobody knows is None. A figure of something that the GPU does not have is 0: ``tensor_cores`` before
    Volta, ``tensor_tf32_tflops`` and ``tensor_bf16_tflops`` before Ampere, ``tensor_fp8_tflops`` before Ada,
    ``nvlink_bytes_per_second`` of a card without NVLink.

    Attributes:
        name: Canonical name; tells variants apart (``V100-SXM2-16GB``, ``V100-PCIe-16GB``).
        aliases: Other spellings: NVML, torch, clouds, papers.
        architecture: Marketing name of the architecture (``Ampere``).
        compute_capability: CUDA compute capability as major + minor / 10.
        sm_count: Streaming multiprocessors enabled.
        cuda_cores: FP32 lanes, ``sm_count * cores_per_sm``.
        tensor_cores: Tensor cores enabled.
        base_clock_mhz: Guaranteed SM clock, MHz.
        boost_clock_mhz: Highest SM clock of the data sheet, MHz; the peak rates below assume it.
        memory_bytes: Nominal device memory; the driver shows up to 8 % less where ECC or firmware takes a share.
        memory_type: ``GDDR6``, ``HBM2e`` ...
        memory_bus_bits: Width of the memory bus.
        memory_bandwidth_bytes_per_second: Peak of the memory bus.
        l2_cache_bytes: Level 2 cache.
        l1_cache_bytes_per_sm: Level 1 data cache; the unified L1 and shared memory array where the two are one.
        fp32_tflops: Peak FP32, ``cuda_cores * 2 * boost_clock_mhz``, 1e12 per second.
        fp16_tflops: Peak FP16 without tensor cores.
        fp64_tflops: Peak FP64 without tensor cores.
        tensor_fp16_tflops: Peak dense FP16 with FP32 accumulation on tensor cores.
        tensor_tf32_tflops: Peak dense TF32 on tensor cores.
        tensor_bf16_tflops: Peak dense BF16 with FP32 accumulation on tensor cores.
        tensor_fp8_tflops: Peak dense FP8 (E4M3, E5M2) with FP32 accumulation on tensor cores.
        power_limit_watts: Default board power limit (half of it for one die of a two-die board).
        pcie_generation: PCI Express generation of the card.
        pcie_lanes: Lanes of the card; a host may wire fewer.
        nvlink_bytes_per_second: NVLink, sum of both directions and of all links.
        max_threads_per_sm: Resident threads per SM.
        shared_memory_bytes_per_sm: Shared memory per SM.
        cores_per_sm: FP32 lanes per SM.
        released: Day of release, ISO 8601; announcement where that is what the source gives.
        note: What a reader should know before trusting a figure; empty otherwise.
        sources: Attribute -> source, for every attribute that is not None.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: float
    sm_count: int
    cuda_cores: int
    tensor_cores: int
    base_clock_mhz: float | None
    boost_clock_mhz: float
    memory_bytes: int
    memory_type: str
    memory_bus_bits: int | None
    memory_bandwidth_bytes_per_second: float
    l2_cache_bytes: int | None
    l1_cache_bytes_per_sm: int | None
    fp32_tflops: float
    fp16_tflops: float | None
    fp64_tflops: float | None
    tensor_fp16_tflops: float | None
    tensor_tf32_tflops: float | None
    tensor_bf16_tflops: float | None
    tensor_fp8_tflops: float | None
    power_limit_watts: float | None
    pcie_generation: int | None
    pcie_lanes: int | None
    nvlink_bytes_per_second: float | None
    max_threads_per_sm: int
    shared_memory_bytes_per_sm: int
    cores_per_sm: int
    released: str | None = None
    note: str = ""
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)

    @property
    def vendor(self) -> str:
        """``NVIDIA``: for the others see ``OtherAccelerator``."""
        return "NVIDIA"

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice of a GPU."""
        return " MIG " in self.name

    def figures(self) -> dict[str, float]:
        """Every known numeric attribute by name, in the order above and in the attribute's own unit."""
        return {
            item.name: float(value)
            for item in fields(self)
            if item.name not in _TEXT and (value := getattr(self, item.name)) is not None
        }

    def matrix_tflops(self, precision: Precision) -> float | None:
        """Return the peak dense rate of matrix products in a precision, 1e12 per second; None where it is not known.

        Where the GPU has no unit for it, that of what takes its place (:meth:`substitute`).
        """
        precision = self.substitute(precision) or precision
        # A chain of comparisons: a table of all seven, made anew for each of 70 targets, is most of a query.
        if precision is Precision.FP32:
            return self.fp32_tflops
        if precision is Precision.TF32:
            return self.tensor_tf32_tflops
        if precision in (Precision.MIXED, Precision.FP16):
            return self.tensor_fp16_tflops or max(self.fp16_tflops or 0.0, self.fp32_tflops)
        if precision is Precision.BF16:
            return self.tensor_bf16_tflops
        return self.tensor_fp8_tflops if precision is Precision.FP8 else self.fp64_tflops

    def substitute(self, precision: Precision) -> Precision | None:
        """Return what products of a precision are computed in where the GPU has no unit for it; None where it has.

        BF16 without a unit is emulated at the rate of FP32; FP8 is refused by its libraries, so the job would run in
        mixed precision.
        """
        if precision is Precision.TF32 and not self.tensor_tf32_tflops:
            return Precision.FP32
        if precision is Precision.BF16 and not self.tensor_bf16_tflops:
            return Precision.FP32
        if precision is Precision.FP8 and not self.tensor_fp8_tflops:
            return Precision.MIXED
        return None

    def source_of(self, attribute: str) -> Source:
        """Source of one attribute's value.

        Raises:
            KeyError: ``attribute`` is no attribute of a GPU, or its value is not known.
        """
        try:
            return self.sources[attribute]
        except KeyError:
            raise KeyError(f"{self.name} has no figure named {attribute!r}; known: {', '.join(self.sources)}") from None

    def from_memory(self) -> tuple[str, ...]:
        """Attributes whose value was written down from memory and wants checking."""
        return tuple(attribute for attribute, source in self.sources.items() if source.from_memory)

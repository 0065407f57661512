"""``MigProfiles``: the slices that Multi-Instance GPU cuts a GPU into, each a ``GpuSpec`` of its share.

A slice has SMs, L2 and memory of its own. Compute rates scale with its SMs, memory bandwidth with its memory. Power
limit and PCI Express belong to the board; peers and NVLink a slice does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpusonde.catalog.spec import GpuSpec, Source
from gpusonde.errors import CatalogError

# As NVML ("NVIDIA A100-SXM4-40GB MIG 3g.20gb"), Kubernetes ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb") and users write it;
# "+me" adds media engines, "2c." takes a part of the slice's SMs only.
_NAME = re.compile(
    r"(?P<gpu>.*?)[\s-]*(?:\bMIG\b)?[\s-]*(?:(?P<part>\d+c)\.)?(?P<profile>\d+g\.\d+gb)(?:\+[\w.]+)?", re.IGNORECASE
)
_PER_SM = (
    "cuda_cores", "tensor_cores", "fp32_tflops", "fp16_tflops", "fp64_tflops", "tensor_fp16_tflops",
    "tensor_tf32_tflops", "tensor_bf16_tflops", "tensor_fp8_tflops",
)  # fmt: skip
_PER_MEMORY = ("memory_bytes", "memory_bus_bits", "memory_bandwidth_bytes_per_second", "l2_cache_bytes")
_KEYS = {"gpus", "source", "memory_slices", "profiles"}


def split_slice(name: str) -> tuple[str, str] | None:
    """Split the name of a slice into the GPU's and the profile's (``3g.20gb``); None where it names no profile.

    Of a compute instance, which has a part of a slice's SMs, the profile is empty.
    """
    found = _NAME.fullmatch(name.strip())
    return None if found is None else (found["gpu"].strip(" -"), "" if found["part"] else found["profile"].lower())


@dataclass(frozen=True)
class MigProfiles:
    """Profiles of GPUs that are cut alike.

    Attributes:
        gpus: Canonical names.
        memory_slices: Parts that the memory is cut into.
        profiles: Profile -> its SMs, and how many parts of the memory it has.
        source: Where they were read.
    """

    gpus: tuple[str, ...]
    memory_slices: int
    profiles: Mapping[str, tuple[int, int]] = field(compare=False)
    source: Source = field(repr=False, compare=False)

    def cut(self, spec: GpuSpec, profile: str) -> GpuSpec:
        """Return a slice of a GPU.

        Raises:
            KeyError: The GPU is not cut so.
        """
        sm_count, memory = self.profiles[profile]
        figures: dict[str, Any] = {"sm_count": sm_count, "nvlink_bytes_per_second": 0.0, "power_limit_watts": None}
        for names, share in ((_PER_SM, sm_count / spec.sm_count), (_PER_MEMORY, memory / self.memory_slices)):
            for name in names:
                whole = getattr(spec, name)
                counted = not name.endswith(("_tflops", "_per_second"))
                figures[name] = None if whole is None else round(whole * share) if counted else whole * share
        sources = {name: self.source if name in figures else source for name, source in spec.sources.items()}
        sources.pop("power_limit_watts", None)
        return replace(
            spec,
            name=f"{spec.name} MIG {profile}",
            aliases=(),
            note=f"{sm_count} of {spec.sm_count} SMs, {memory} of {self.memory_slices} parts of the memory",
            sources=sources,
            **figures,
        )


def parse_mig(table: object, sources: Mapping[str, Source], path: Path) -> MigProfiles:
    """Read one ``[[mig]]`` table of a data file.

    Raises:
        CatalogError: It is none.
    """
    if not isinstance(table, Mapping) or set(table) != _KEYS:
        raise CatalogError(f"{path}: a [[mig]] table has the keys {', '.join(sorted(_KEYS))}")
    gpus, slices, profiles = table["gpus"], table["memory_slices"], table["profiles"]
    where = f"{path}: mig of {gpus!r}"
    if table["source"] not in sources:
        raise CatalogError(f"{where}: source {table['source']!r} is not defined")
    if not isinstance(gpus, list) or not all(isinstance(name, str) for name in gpus):
        raise CatalogError(f"{where}: gpus must be a list of names")
    if not isinstance(slices, int) or not isinstance(profiles, Mapping):
        raise CatalogError(f"{where}: memory_slices must be a whole number, profiles a table")
    for profile, parts in profiles.items():
        whole = isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, int) for part in parts)
        if split_slice(f"x MIG {profile}") != ("x", profile) or not whole or not 0 < parts[1] <= slices or parts[0] < 1:
            raise CatalogError(f'{where}: {profile!r} must be SMs and parts of the memory, as "1g.5gb" = [14, 1]')
    parts_of = {profile: (parts[0], parts[1]) for profile, parts in profiles.items()}
    return MigProfiles(tuple(gpus), slices, parts_of, sources[table["source"]])

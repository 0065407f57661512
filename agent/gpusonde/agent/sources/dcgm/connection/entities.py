"""What a DCGM engine measures: GPUs, and the MIG instances of those that are split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

# dcgm_fields.h: DCGM_FE_GPU, DCGM_FE_GPU_I, DCGM_FE_GPU_CI
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5


class Entity(NamedTuple):
    """One thing that the engine measures.

    Attributes:
        group: Its kind, ``DCGM_FE_*``.
        id: DCGM's number of it.
    """

    group: int
    id: int


@dataclass(frozen=True)
class Part:
    """One MIG compute instance.

    Attributes:
        gpu_id: DCGM's id of the whole GPU.
        entity: The GPU instance, whose values are the compute instance's.
        gpu_instance_id: NVML's number of the GPU instance.
        compute_instance_id: NVML's number of the compute instance inside it.
        slices: Slices of the GPU that the instance has; 0 when unknown.
    """

    gpu_id: int
    entity: Entity
    gpu_instance_id: int
    compute_instance_id: int
    slices: int


def read_hierarchy(hierarchy: Any) -> tuple[Part, ...]:
    """Return the compute instances in a ``c_dcgmMigHierarchy_v2``.

    A GPU instance without compute instances runs nothing and is measured by nobody.
    """
    rows = [hierarchy.entityList[i] for i in range(hierarchy.count)]
    instances = {int(row.entity.entityId): row for row in rows if row.entity.entityGroupId == GPU_INSTANCE}
    parts = []
    for row in rows:
        whole = instances.get(int(row.parent.entityId))
        if row.entity.entityGroupId != COMPUTE_INSTANCE or whole is None:
            continue
        parts.append(
            Part(
                gpu_id=int(whole.parent.entityId),
                entity=Entity(GPU_INSTANCE, int(whole.entity.entityId)),
                gpu_instance_id=int(whole.info.nvmlInstanceId),
                compute_instance_id=int(row.info.nvmlComputeInstanceId),
                slices=int(whole.info.nvmlProfileSlices),
            )
        )
    return tuple(parts)


@dataclass(frozen=True)
class DcgmDevice:
    """A GPU or MIG instance to sample.

    Attributes:
        key: Its UUID in the fleet.
        gpu_id: DCGM's id of the whole GPU.
        entity: Whose values are its.
        part: The MIG instance; None for the whole GPU.
    """

    key: str
    gpu_id: int
    entity: Entity
    part: Part | None = None

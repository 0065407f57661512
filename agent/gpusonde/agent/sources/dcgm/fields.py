"""Which DCGM fields to watch, by their numbers: version 4.6 renamed the constants, the numbers stayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpusonde.telemetry import METRIC_BY_DCGM_FIELD_ID, METRIC_BY_NAME, METRICS, Metric, SamplingClass, Unit

# The number of the last XID; the engine stores one value per event.
XID_FIELD = 230
# The catalogue's field for power is the driver's average over a second on most boards since Ampere; this one is not.
# Engines before 3.2 do not have it.
AVERAGE_POWER_FIELD, INSTANT_POWER_FIELD = 155, 157
MEMORY_TEMPERATURE_FIELD = 140
METRIC_OF_FIELD: Mapping[int, Metric] = {
    **METRIC_BY_DCGM_FIELD_ID,
    INSTANT_POWER_FIELD: METRIC_BY_NAME["power_watts"],
}
# Memory in use and free: what a MIG instance has beside profiling.
USED_MEMORY_FIELD, FREE_MEMORY_FIELD = 252, 251
_FIRST_PROFILING_FIELD = 1001

_WITH_FIELD = tuple(m for m in METRICS if m.dcgm_field_id is not None)
PROFILING_METRICS: tuple[Metric, ...] = tuple(
    m for m in _WITH_FIELD if (m.dcgm_field_id or 0) >= _FIRST_PROFILING_FIELD
)
# An instance has no PCIe and NVLink of its own (NVIDIA/DCGM issue 88).
PART_PROFILING_FIELDS = frozenset(
    m.dcgm_field_id for m in PROFILING_METRICS if m.dcgm_field_id and m.unit is Unit.RATIO
)
EVERY_PROFILING_FIELD = frozenset(m.dcgm_field_id for m in PROFILING_METRICS if m.dcgm_field_id)
FAST_METRICS: tuple[Metric, ...] = tuple(
    m for m in _WITH_FIELD if m not in PROFILING_METRICS and m.sampling_class is SamplingClass.FAST
)
SLOW_METRICS: tuple[Metric, ...] = tuple(
    m for m in _WITH_FIELD if m not in PROFILING_METRICS and m.sampling_class is SamplingClass.SLOW
)


@dataclass(frozen=True)
class MetricGroup:
    """One row of ``dcgmi profile -l``.

    Attributes:
        major: Hardware resource. Groups of different resources are measured together.
        minor: Pass. Groups of the same resource take turns.
        field_ids: The fields that are measured together.
    """

    major: int
    minor: int
    field_ids: frozenset[int]


@dataclass(frozen=True)
class ProfilingChoice:
    """The profiling fields to watch on one GPU model.

    Attributes:
        passes: For each hardware resource the sets of fields that take turns, the largest set first.
    """

    passes: tuple[tuple[frozenset[int], ...], ...]

    @property
    def field_ids(self) -> tuple[int, ...]:
        """All fields, ascending."""
        return tuple(sorted(field for resource in self.passes for fields in resource for field in fields))

    @property
    def multiplexed(self) -> frozenset[int]:
        """Fields that are measured only part of the time."""
        return frozenset(f for resource in self.passes if len(resource) > 1 for fields in resource for f in fields)

    def only(self, field_ids: Collection[int]) -> ProfilingChoice:
        """Return the part of the fields that is among the given ones."""
        wanted = frozenset(field_ids)
        resources = (tuple(kept for fields in resource if (kept := fields & wanted)) for resource in self.passes)
        return ProfilingChoice(tuple(resource for resource in resources if resource))

    def single_pass(self) -> ProfilingChoice:
        """Return the part of the fields that can be measured all the time."""
        return ProfilingChoice(tuple(resource[:1] for resource in self.passes))


def choose_profiling(groups: Iterable[MetricGroup]) -> ProfilingChoice:
    """Choose as few passes as give every wanted field that the GPU has.

    Args:
        groups: The GPU's metric groups, as the engine tells them.
    """
    by_resource: dict[int, list[MetricGroup]] = defaultdict(list)
    for group in groups:
        by_resource[group.major].append(group)
    remaining = {m.dcgm_field_id for m in PROFILING_METRICS}
    passes = []
    for _, candidates in sorted(by_resource.items()):
        chosen = []
        while True:
            best = max(candidates, key=lambda g: (len(g.field_ids & remaining), -g.minor))
            fields = best.field_ids & remaining
            if not fields:
                break
            chosen.append(frozenset(int(f) for f in fields if f is not None))
            remaining -= fields
        if chosen:
            passes.append(tuple(chosen))
    return ProfilingChoice(tuple(passes))

"""What the levels of the tree of cycles are: step, evaluation, checkpoint, epoch, trial; or unknown.

The metrics often cannot tell: an evaluation every thousand steps and one at the end of each epoch look the same. A role
is told where fitted trees are sure enough of it, ``unknown`` elsewhere. What a user tells (:class:`Told`) refutes roles
before one is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusonde.epoch_detect.result import Cycle, Role

_SAME = 0.1  # of the logarithm of a period that a user tells
_TOLD = 0.98  # confidence of a role that follows from what was told
_MORE = 0.02  # share by which a count may exceed what was told, or one
_RATIO = 0.04  # by which the steps of an epoch may differ from what was told
_LEAST_CONFIDENCE = 0.3  # of a level that may stand in for one that was refuted


@dataclass(frozen=True)
class Told:
    """What a user knows of the job.

    Attributes:
        total_epochs: Epochs that the whole job has; None if unknown.
        steps_per_epoch: Optimizer steps in an epoch; None if unknown.
        roles: (seconds, role): what the cycle of about so many seconds is.
    """

    total_epochs: int | None = None
    steps_per_epoch: int | None = None
    roles: tuple[tuple[float, Role], ...] = ()

    def __bool__(self) -> bool:
        return self.total_epochs is not None or self.steps_per_epoch is not None or bool(self.roles)


@dataclass(frozen=True)
class Settled:
    """Levels whose roles were settled by what was told.

    Attributes:
        cycles: The levels; one that follows from what was told may have come in.
        epoch: Index of the level that is the epoch; None if nothing says which.
        refuted: Indices of levels that cannot be the epoch.
        warnings: What was told and fits nothing.
    """

    cycles: tuple[Cycle, ...]
    epoch: int | None
    refuted: frozenset[int]
    warnings: tuple[str, ...]


def settle(cycles: Sequence[Cycle], told: Told, *, ended: bool) -> Settled:
    """Let what a user tells refute and name levels.

    Args:
        cycles: The levels, shortest first.
        told: What is known.
        ended: Whether the run is over; while it is not, it may have fewer epochs than the job.
    """
    levels, warnings = list(cycles), []
    for period_s, role in told.roles:
        off = [abs(np.log(c.period_s / period_s)) for c in levels]
        if off and min(off) <= _SAME:
            at = int(np.argmin(off))
            levels[at] = replace(levels[at], role=role, role_confidence=1.0)
        else:
            warnings.append(f"no cycle of about {period_s:g} s was found, so that none can be the {role}")
    named = {i for i, c in enumerate(levels) if c.role_confidence == 1.0}
    refuted = {i for i in named if levels[i].role != Role.EPOCH}
    epoch = next((i for i in named if levels[i].role == Role.EPOCH), None)
    if told.total_epochs is not None:
        refuted |= {i for i, c in enumerate(levels) if c.count > _at_most(told.total_epochs)} - {epoch}
    if epoch is None and told.steps_per_epoch is not None:
        epoch = _by_steps(levels, told.steps_per_epoch, refuted)
        if epoch is None:
            warnings.append(f"no two cycles are as {told.steps_per_epoch} steps to an epoch")
    if epoch is None and told.total_epochs is not None:
        epoch = _by_count(levels, told.total_epochs, refuted, ended=ended)
    if epoch is None or levels[epoch].role_confidence == 1.0:
        return Settled(tuple(levels), epoch, frozenset(refuted), tuple(warnings))
    levels[epoch] = replace(levels[epoch], role=Role.EPOCH, role_confidence=_TOLD)
    order = sorted(range(len(levels)), key=lambda i: levels[i].period_s)
    place = {old: new for new, old in enumerate(order)}
    return Settled(
        tuple(levels[i] for i in order), place[epoch], frozenset(place[i] for i in refuted), tuple(warnings)
    )


def _at_most(total: int) -> float:
    return total + max(1.0, _MORE * total)


def _by_steps(levels: list[Cycle], steps: int, refuted: set[int]) -> int | None:
    """Index of the level that has so many of a shorter one, which is the step; a new one if there is only the step."""
    pairs = [
        (abs(np.log(b.period_s / a.period_s / steps)), i, j)
        for i, a in enumerate(levels)
        for j, b in enumerate(levels)
        if b.period_s > a.period_s and j not in refuted and a.role in (Role.STEP, Role.UNKNOWN)
    ]
    off, step, epoch = min(pairs, default=(np.inf, 0, 0))
    if off <= _RATIO:
        if levels[step].role_confidence < 1:
            levels[step] = replace(levels[step], role=Role.STEP, role_confidence=_TOLD)
        return epoch
    known = next((c for c in levels if c.role == Role.STEP and c.role_confidence == 1.0), None)
    if known is None or known.starts_s.size <= steps:
        return None
    levels.append(_every(known, steps))
    return len(levels) - 1


def _by_count(levels: list[Cycle], total: int, refuted: set[int], *, ended: bool) -> int | None:
    """Index of the level with as many cycles as the job has epochs, or of a new one that so many of a shorter make."""
    free = [i for i in range(len(levels)) if i not in refuted and levels[i].role in (Role.EPOCH, Role.UNKNOWN)]
    equal = [i for i in free if abs(levels[i].count - total) <= max(1.0, _MORE * total)]
    if equal and ended:
        return max(equal, key=lambda i: levels[i].confidence)
    children = [
        (levels[i].confidence, i, times)
        for i in range(len(levels))
        if levels[i].confidence >= _LEAST_CONFIDENCE and levels[i].role != Role.STEP
        if (times := round(levels[i].count / total)) > 1 and abs(levels[i].count - times * total) <= 1
    ]
    if children and ended and not free and total > 1:
        _, child, times = max(children)
        levels.append(_every(levels[child], times))
        return len(levels) - 1
    return None


def _every(cycle: Cycle, times: int) -> Cycle:
    """Make the level of which each cycle holds so many of another one."""
    starts = cycle.starts_s[::times]
    bounds = {name: times * getattr(cycle, name) for name in ("period_s", "period_low_s", "period_high_s")}
    return replace(
        cycle, **bounds, count=cycle.count // times, starts_s=starts, role=Role.UNKNOWN, role_confidence=0.0
    )

"""Whether what a look at a run that goes on has found may be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpusonde.epoch_detect.reported import alike, has_level
from gpusonde.epoch_detect.result import CycleRole, EpochDetection, RunState, Verdict

_REAL = 0.9  # confidence that the job has a level from which on it is followed, and told once it is confirmed
_SEEN_BEFORE = 5  # cycles that a look has to have seen to be asked whether it has found them
_LEAST_OF_NESTED = 3  # cycles of a level that has held for two cycles of its parent


def is_real(found: EpochDetection) -> bool:
    """Say whether what a look at a run that goes on gives as epochs are cycles of a training, and not its steps.

    Those are told by the tree: thousands of them are no epochs, and what ticks see of short ones may be a beat.
    """
    if found.level is None or found.verdict != Verdict.EPOCHS or found.run_state not in (None, RunState.TRAINING):
        return False
    level = found.cycles[found.level]
    return level.confidence >= _REAL and level.role is not CycleRole.STEP


def is_sure(found: EpochDetection) -> bool:
    """Say whether the epochs of a run that goes on may be told: cycles of the job, and of a level that is confirmed."""
    if not is_real(found) or found.level is None:
        return False
    return found.cycles[found.level].confirmed and found.epoch_starts_s.size >= _LEAST_OF_NESTED


def is_of_steps(found: EpochDetection, told: EpochDetection | None) -> bool:
    """Say whether a look calls the level that is told that of the steps."""
    if told is None or found.level is None or found.verdict != Verdict.EPOCHS:
        return False
    return alike(told.period_s, found.period_s) and found.cycles[found.level].role is CycleRole.STEP


def agrees(latest: EpochDetection, before: EpochDetection | None, before_s: float) -> bool:
    """Say whether the look before one has the level that it tells, too, if it could see enough cycles of that.

    Args:
        latest: What the one has found.
        before: What the look before it had found.
        before_s: How much of the run that was of.
    """
    if before_s < _SEEN_BEFORE * latest.period_s:
        return True
    return before is not None and has_level(before, latest.period_s)


def untold(found: EpochDetection) -> EpochDetection:
    """Return what is told of an analysis whose epochs are not told yet."""
    if found.verdict != Verdict.EPOCHS:
        return found
    return replace(
        found,
        verdict=Verdict.NONE,
        reason=f"{found.reason}; not confirmed yet",
        period_s=np.nan,
        period_low_s=np.nan,
        period_high_s=np.nan,
        confidence=0.0,
        epoch_starts_s=np.empty(0),
        epoch_ends_s=np.empty(0),
        level=None,
    )

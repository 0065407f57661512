"""Finding training epochs in GPU metrics: the published detector and a better one, offline and streaming."""

from gpusonde.epoch_detect.cycles.marks import Marks
from gpusonde.epoch_detect.cycles.roles import Told
from gpusonde.epoch_detect.detect import detect
from gpusonde.epoch_detect.reported import EpochEvent, EpochStatus, EventKind, TrackedEpoch
from gpusonde.epoch_detect.result import (
    Cycle,
    CycleRole,
    Deviation,
    EpochDetection,
    Hypothesis,
    RunState,
    Verdict,
    told_role,
)
from gpusonde.epoch_detect.tracker import EpochTracker

__all__ = [
    "Cycle",
    "CycleRole",
    "Deviation",
    "EpochDetection",
    "EpochEvent",
    "EpochStatus",
    "EpochTracker",
    "EventKind",
    "Hypothesis",
    "Marks",
    "RunState",
    "Told",
    "TrackedEpoch",
    "Verdict",
    "detect",
    "told_role",
]

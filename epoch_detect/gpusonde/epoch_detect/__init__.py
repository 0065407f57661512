"""Finding training epochs in GPU metrics: the published detector and a better one, offline and streaming."""

from gpusonde.epoch_detect.detect import detect
from gpusonde.epoch_detect.result import EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.tracker import EpochEvent, EpochStatus, EpochTracker, EventKind, TrackedEpoch

__all__ = [
    "EpochDetection",
    "EpochEvent",
    "EpochStatus",
    "EpochTracker",
    "EventKind",
    "Hypothesis",
    "TrackedEpoch",
    "Verdict",
    "detect",
]

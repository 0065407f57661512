"""What the epochs of a run tell: their table, the trend of their duration, its end; and what a job does now."""

from gpusonde.epoch_detect.progress.causes import CAUSE_METRICS, slowdown_causes, slowdown_in_words
from gpusonde.epoch_detect.progress.changes import ChangePoint, Trend, duration_trend, long_epochs
from gpusonde.epoch_detect.progress.level_pace import PaceChange
from gpusonde.epoch_detect.progress.pace import PaceWatch
from gpusonde.epoch_detect.progress.remaining import (
    COVERAGE,
    FEWEST_EPOCHS,
    EndEstimate,
    estimate_end,
    estimate_from_others,
)
from gpusonde.epoch_detect.progress.seconds import STATE_METRICS
from gpusonde.epoch_detect.progress.slow_device import DeviceSuspicion, SlowDeviceVerdict, find_slow_device
from gpusonde.epoch_detect.progress.spans import JobState, StateSpan
from gpusonde.epoch_detect.progress.state import StateWatch
from gpusonde.epoch_detect.progress.table import EpochSummary, EpochSums, Shares, epoch_table, time_shares
from gpusonde.errors import TotalEpochsError

__all__ = [
    "CAUSE_METRICS",
    "COVERAGE",
    "FEWEST_EPOCHS",
    "STATE_METRICS",
    "ChangePoint",
    "DeviceSuspicion",
    "EndEstimate",
    "EpochSummary",
    "EpochSums",
    "JobState",
    "PaceChange",
    "PaceWatch",
    "Shares",
    "SlowDeviceVerdict",
    "StateSpan",
    "StateWatch",
    "TotalEpochsError",
    "Trend",
    "duration_trend",
    "epoch_table",
    "estimate_end",
    "estimate_from_others",
    "find_slow_device",
    "long_epochs",
    "slowdown_causes",
    "slowdown_in_words",
    "time_shares",
]

"""What the epochs of a run tell: a table of them, the trend of their duration, and when the job will be done."""

from gpusonde.epoch_detect.progress.estimate import (
    COVERAGE,
    FEWEST_EPOCHS,
    EndEstimate,
    TotalEpochsError,
    estimate_end,
)
from gpusonde.epoch_detect.progress.shares import Shares, time_shares
from gpusonde.epoch_detect.progress.table import EpochSummary, EpochSums, epoch_table
from gpusonde.epoch_detect.progress.trend import ChangePoint, Trend, duration_trend

__all__ = [
    "COVERAGE",
    "FEWEST_EPOCHS",
    "ChangePoint",
    "EndEstimate",
    "EpochSummary",
    "EpochSums",
    "Shares",
    "TotalEpochsError",
    "Trend",
    "duration_trend",
    "epoch_table",
    "estimate_end",
    "time_shares",
]

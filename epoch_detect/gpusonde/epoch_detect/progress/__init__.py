"""What the epochs of a run tell: a table of them, the trend of their duration, and when the job will be done."""

from gpusonde.epoch_detect.progress.changes import ChangePoint, Trend, duration_trend
from gpusonde.epoch_detect.progress.remaining import COVERAGE, FEWEST_EPOCHS, EndEstimate, estimate_end
from gpusonde.epoch_detect.progress.table import EpochSummary, EpochSums, Shares, epoch_table, time_shares
from gpusonde.errors import TotalEpochsError

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

"""What the epochs of a run tell: a table of them, the trend of their duration, and when the job will be done."""

from gpusonde.epoch_detect.progress.table import (
    COVERAGE,
    FEWEST_EPOCHS,
    ChangePoint,
    EndEstimate,
    EpochSummary,
    EpochSums,
    Shares,
    Trend,
    duration_trend,
    epoch_table,
    estimate_end,
    time_shares,
)
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

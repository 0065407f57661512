"""When the job will be done, from the cycles that are over and how many there are to be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from gpusonde.epoch_detect.progress.changes import duration_trend
from gpusonde.errors import TotalEpochsError
from gpusonde.telemetry import FloatArray

COVERAGE = 0.9
_LEAST_SCATTER = 0.02  # of the duration: epochs alike so far need not stay so
FEWEST_EPOCHS = 3


@dataclass(frozen=True)
class EndEstimate:
    """When the last epoch ends.

    Attributes:
        epochs_done: Epochs that are over.
        epochs_left: Epochs still to come, the one under way included.
        end_s: Expected end on the time axis of the epochs.
        end_low_s: Lower end of its 90 % interval.
        end_high_s: Upper end of it.
    """

    epochs_done: int
    epochs_left: int
    end_s: float
    end_low_s: float
    end_high_s: float


def estimate_end(starts_s: FloatArray, ends_s: FloatArray, total_epochs: int, now_s: float) -> EndEstimate:
    """Estimate the end from the epochs since the last change of their duration.

    The interval holds the scatter of single epochs and what is not known of their mean (Student's t); that the job goes
    on as it did is assumed.

    Args:
        starts_s: Shape (epochs,), of the epochs that are over.
        ends_s: Shape (epochs,).
        total_epochs: Epochs that the job is to run for.
        now_s: Time of the newest tick: the job was not done before it unless no epoch is left.

    Raises:
        TotalEpochsError: More epochs are over than there are to be, or fewer than three are.
    """
    done = int(starts_s.size)
    if done < FEWEST_EPOCHS:
        raise TotalEpochsError(
            f"{done} epochs are over; at least {FEWEST_EPOCHS} are needed to say when the job will be done"
        )
    if total_epochs < done:
        raise TotalEpochsError(f"{done} epochs are over, more than the {total_epochs} that the job is said to have")
    left = total_epochs - done
    last = float(ends_s[-1])
    if not left:
        return EndEstimate(done, 0, last, last, last)
    durations = (ends_s - starts_s)[1:]  # the first one compiles, fills caches, allocates
    points = duration_trend(durations).change_points
    recent = durations[points[-1].epoch if points else 0 :]
    mean, n = float(recent.mean()), recent.size
    scatter = max(float(recent.std(ddof=1)), _LEAST_SCATTER * mean)
    half = float(stdtrit(n - 1, 0.5 + COVERAGE / 2)) * scatter * float(np.sqrt(left + left**2 / n))
    expected = max(last + left * mean, now_s)
    return EndEstimate(
        done, left, expected, max(last + left * mean - half, now_s), max(last + left * mean + half, now_s)
    )

"""When a job will be done: from its cycles that are over and how many there are to be, or from how long others took.

Cycles are not alike: every so often one is longer by an evaluation or a checkpoint, some were not seen, the first holds
what came before it. The interval's width was chosen on generated jobs and half of the recorded ones; see
``docs/results/verdicts.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from gpusonde.epoch_detect.progress.changes import duration_trend
from gpusonde.errors import TotalEpochsError
from gpusonde.telemetry import FloatArray

COVERAGE = 0.9
FEWEST_EPOCHS = 3

_LONGER = 1.12  # times the usual duration: a cycle with something more in it
_MOST_LONGER = 0.34  # share of the cycles; if there are more, they are just uneven
_NEARLY_WHOLE = 0.2  # of a cycle: a gap as long as some cycles, to so much, is cycles that were not seen
_LEAST_SCATTER = 0.01  # of the duration: cycles alike so far need not stay so
# Beyond the scatter of cycles: slow drift, of the time left; where boundaries are placed, and cycles that were not
# seen, of a cycle; and the share of time that longer ones took, of the time left: they need be no part of a rhythm.
_DRIFT, _PLACED, _UNSEEN, _UNEVEN = 0.03, 0.5, 1.0, 0.5
_WARM_UP = 0.4  # of a cycle
_LOST_BEFORE = 0.25  # of a cycle: what trained and rested for longer before the first one was a start, not cycles
_LOST = 1.0  # of a cycle, that it has not trained at a time: less, and what it usually does, is part of its cycles
_LEAST_UNLIKE = 0.05  # scatter of the logarithm of how long runs of one job take
_ONE_RUN_UNLIKE = 0.15  # likewise, where only one is known


@dataclass(frozen=True)
class EndEstimate:
    """When the last epoch ends.

    Attributes:
        epochs_done: Epochs that are over.
        epochs_left: Epochs still to come, the one under way included.
        end_s: Expected end on the time axis of the epochs.
        end_low_s: Lower end of its 90 % interval.
        end_high_s: Upper end of it.
        basis: What it rests on, for a human reader.
    """

    epochs_done: int
    epochs_left: int
    end_s: float
    end_low_s: float
    end_high_s: float
    basis: str = ""


def estimate_end(
    starts_s: FloatArray,
    ends_s: FloatArray,
    total_epochs: int,
    now_s: float,
    *,
    training_s: FloatArray | None = None,
    epochs_before: int = 0,
) -> EndEstimate:
    """Estimate the end from the epochs since the last change of their duration.

    What recurs in every few of them (a checkpoint, an evaluation) is counted as often as it is still to come. The
    interval (Student's t) holds their scatter, what is not known of their mean and of what recurs, and drift.

    Args:
        starts_s: Shape (epochs,), of the epochs that are over.
        ends_s: Shape (epochs,).
        total_epochs: Epochs that the job is to run for.
        now_s: Time of the newest tick: the job was not done before it unless no epoch is left.
        training_s: Shape (spans, 2), when the job is known to have trained, in order; None where that is not known.
            A gap between epochs is a pause, or epochs that were not seen, and so is training right before them. A pause
            since the last of them that is twice as long as any before comes on top.
        epochs_before: Epochs before the first one given.

    Raises:
        TotalEpochsError: More epochs are over than there are to be, or fewer than three are.
    """
    done = int(starts_s.size) + epochs_before
    if starts_s.size < FEWEST_EPOCHS:
        raise TotalEpochsError(
            f"{done} epochs are over; at least {FEWEST_EPOCHS} are needed to say when the job will be done"
        )
    if total_epochs < done:
        raise TotalEpochsError(f"{done} epochs are over, more than the {total_epochs} that the job is said to have")
    last = float(ends_s[-1])
    seen = _SeenCycles.measure(starts_s, ends_s, training_s)
    # A total that is reached only by what was not seen is not reached.
    unseen, begun = seen.unseen, 0.0
    if training_s is not None and training_s.size and not epochs_before:
        before = _run_up_s(training_s, float(starts_s[0]), _LOST_BEFORE * seen.mean_s) / seen.mean_s
        unseen += int(before)
        # It warms up, too. More than that: cycles begin with what ends the job, and the last one is that alone.
        begun = before % 1 if before % 1 >= _WARM_UP else 0.0
    unseen = min(unseen, total_epochs - done) if total_epochs > done else 0
    done += unseen
    left = total_epochs - done
    if left <= 0:
        return EndEstimate(total_epochs, 0, last, last, last, "all of its cycles are over")
    longer_s, longer_variance = seen.longer_to_come(left)
    sigma = math.sqrt(
        seen.scatter_s**2 * (left + left**2 / seen.count)
        + longer_variance
        + (_DRIFT * left * seen.mean_s) ** 2
        + (_PLACED * seen.mean_s) ** 2
        + (_UNSEEN * seen.mean_s) ** 2 * unseen
    )
    half = float(stdtrit(max(seen.count - 1, 1), 0.5 + COVERAGE / 2)) * sigma
    end = last + (left - begun) * seen.mean_s + longer_s
    if training_s is not None and training_s.size:
        pauses = _pauses_s(training_s, last, now_s)
        usual_s = max(_pauses_s(training_s, float(starts_s[0]), last), default=0.0)
        end += sum(pause_s - usual_s for pause_s in pauses if pause_s > max(_LOST * seen.mean_s, 2 * usual_s))
    low, high = (max(end + side * half, now_s) for side in (-1, 1))
    return EndEstimate(done, left, max(end, now_s), low, high, seen.words(unseen, longer_s))


def estimate_from_others(durations_s: Sequence[float], start_s: float, now_s: float) -> EndEstimate:
    """Estimate the end of a job from how long earlier runs of it took; logarithms of durations are taken for normal.

    Args:
        durations_s: Of earlier runs that came to their end, at least one, positive.
        start_s: When this one began.
        now_s: Time of the newest tick.

    Raises:
        TotalEpochsError: It runs longer already than any of them took, so they tell nothing of it.
    """
    logs = np.log(np.asarray(durations_s, dtype=float))
    elapsed = now_s - start_s
    if not (logs > math.log(max(elapsed, 1e-9))).any():
        longest = float(np.exp(logs.max()))
        raise TotalEpochsError(
            f"it has run for {elapsed:.0f} s, and no earlier run of it took longer than {longest:.0f} s"
        )
    n = logs.size
    unlike = max(float(logs.std(ddof=1)), _LEAST_UNLIKE) if n > 1 else _ONE_RUN_UNLIKE
    half = float(stdtrit(max(n - 1, 4 if n == 1 else 1), 0.5 + COVERAGE / 2)) * unlike * math.sqrt(1 + 1 / n)
    # Those that were over by now say nothing of one that goes on.
    still = logs[logs > math.log(max(elapsed, 1e-9))]
    middle = float(np.median(still))
    end, low, high = (max(start_s + math.exp(middle + side * half), now_s) for side in (0, -1, 1))
    runs = f"{n} earlier runs of it" if n > 1 else "one earlier run of it"
    return EndEstimate(0, 0, end, low, high, f"how long {runs} took: {math.exp(float(np.median(logs))):.0f} s")


@dataclass(frozen=True)
class _SeenCycles:
    """What cycles so far tell of those to come.

    Attributes:
        mean_s: Mean duration of those that are not longer than usual.
        scatter_s: Standard deviation of them.
        count: How many they are.
        places: Shape (longer,), which ones are longer, counted from the first.
        longer_s: Shape (longer,), by how much.
        last: Place of the last one.
        unseen: Cycles in gaps that were not seen.
    """

    mean_s: float
    scatter_s: float
    count: int
    places: FloatArray
    longer_s: FloatArray
    last: int
    unseen: int

    @classmethod
    def measure(cls, starts_s: FloatArray, ends_s: FloatArray, training_s: FloatArray | None) -> _SeenCycles:
        usual = float(np.median(ends_s - starts_s))
        gaps = np.append(starts_s[1:] - ends_s[:-1], 0.0) / usual
        if training_s is not None and training_s.size:
            trained = np.append(_overlap(ends_s[:-1], starts_s[1:], training_s), 0.0) / usual
            # A gap of which the half was no training is a pause.
            missed = np.where(trained > 0.5 * gaps, np.round(trained), 0.0)
        else:
            whole = np.round(gaps)
            missed = np.where(np.abs(gaps - whole) < _NEARLY_WHOLE * np.sqrt(np.maximum(whole, 1)), whole, 0.0)
        durations = ends_s - starts_s + np.where(missed, 0.0, np.maximum(gaps, 0.0) * usual)
        places = np.arange(durations.size) + np.cumsum(missed) - missed
        if durations.size > FEWEST_EPOCHS:  # the first one compiles, fills caches, allocates
            durations, places = durations[1:], places[1:]
        is_longer = durations > _LONGER * float(np.median(durations))
        if is_longer.mean() > _MOST_LONGER:
            is_longer[:] = False
        alike = durations[~is_longer]
        points = duration_trend(alike).change_points
        if points and alike.size - points[-1].epoch > 1:
            alike = alike[points[-1].epoch :]
        mean = float(alike.mean())
        scatter = max(float(alike.std(ddof=1)) if alike.size > 1 else 0.0, _LEAST_SCATTER * mean)
        return cls(
            mean, scatter, alike.size, places[is_longer], durations[is_longer] - mean, int(places[-1]),
            int(missed.sum()),
        )  # fmt: skip

    def longer_to_come(self, left: int) -> tuple[float, float]:
        """Seconds that longer cycles among those to come take beyond the usual, expected, and their variance."""
        if not self.places.size:
            return 0.0, 0.0
        each, count = float(self.longer_s.mean()), self.places.size
        # As often as in all so far, once it is clear that they recur; some in a row are no rhythm.
        rate = (count + 0.5) / (self.last + 1) if count > 1 else 1 / (self.last + 2)
        if count > 1:
            rate = min(rate, 1 / float(np.diff(self.places).mean()))
        often = left * rate
        uneven = self.longer_s.sum() / (max(self.last, 1) * self.mean_s)
        return often * each, max(often, 0.25) * each**2 + (_UNEVEN * uneven * left * self.mean_s) ** 2

    def words(self, unseen: int, longer_s: float) -> str:
        said = [f"the latest {self.count} cycles, {self.mean_s:.3g} s each"]
        if self.places.size:
            said.append(f"{self.places.size} longer ones, for which {longer_s:.0f} s are still to come")
        if unseen:
            said.append(f"{unseen} that were not seen but must have been")
        return ", ".join(said)


def _pauses_s(spans_s: FloatArray, begin_s: float, end_s: float) -> list[float]:
    """How long each stretch of a time is that lies in no span, seconds."""
    inside = spans_s[(spans_s[:, 1] > begin_s) & (spans_s[:, 0] < end_s)]
    edges = np.concatenate([[begin_s], inside.ravel(), [max(begin_s, end_s)]])
    return [max(float(stop - begin), 0.0) for begin, stop in zip(edges[::2], edges[1::2], strict=True)]


def _run_up_s(spans_s: FloatArray, begin_s: float, most_s: float) -> float:
    """For how long it trained up to a time, with rests of so many seconds at most."""
    begins = spans_s[spans_s[:, 0] < begin_s, 0]
    ends = np.minimum(spans_s[: begins.size, 1], begin_s)
    rests = np.append(begins[1:], begin_s) - ends
    lost = np.flatnonzero(rests > most_s)
    first = int(lost[-1]) + 1 if lost.size else 0
    return float((ends - begins)[first:].sum())


def _overlap(begins_s: FloatArray, ends_s: FloatArray, spans_s: FloatArray) -> FloatArray:
    """Seconds of stretches that lie in spans, shape (stretches,)."""
    before = np.concatenate([[0.0], np.cumsum(spans_s[:, 1] - spans_s[:, 0])])

    def until(time_s: FloatArray) -> FloatArray:
        i = np.searchsorted(spans_s[:, 0], time_s, side="right")
        inside = np.where(i > 0, np.minimum(time_s, spans_s[i - 1, 1]) - spans_s[i - 1, 0], 0.0)
        return np.asarray(before[np.maximum(i - 1, 0)] + np.maximum(inside, 0.0))

    return until(ends_s) - until(begins_s)

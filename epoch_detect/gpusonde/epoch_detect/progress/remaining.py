"""When a job will be done: from its cycles that are over and how many there are to be, or from how long others took.

Cycles are not alike: every so often one is longer by an evaluation or a checkpoint, some were not seen, the first holds
what came before it. The interval's width was chosen on generated and recorded jobs; see
``docs/results/verdicts.md``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from gpusonde import formatting
from gpusonde.epoch_detect.progress.changes import duration_trend
from gpusonde.errors import TotalEpochsError, TotalPassedError
from gpusonde.telemetry import FloatArray

COVERAGE = 0.9
FEWEST_EPOCHS = 3

_LONGER = 0.12  # of the usual duration: a cycle with something more in it
_MOST_LONGER = 0.34  # share of the cycles; if there are more, they are just uneven
_EVEN = 0.6  # of the distances between longer cycles, that are alike where these are a rhythm
_AS_LONG = 0.1  # by which a gap may differ from a longer cycle that was seen, to be one
_NEARLY_WHOLE = 0.2  # of a cycle: a gap as long as some cycles, to so much, is cycles that were not seen
_LEAST_SCATTER = 0.01  # of the duration: cycles alike so far need not stay so
_RESTS = 0.4  # of what a cycle usually trains: less, and it is something else
_HARDLY_TRAINS = 0.2  # of most cycles
_LEAST_TRAINED = 0.3  # of a cycle, that it is taken to train at least
_SEVERAL = 2  # cycles that rest, in a row or before it is known to train: then what is known of that is wrong
_LEAST_KNOWN = 0.2  # of what it has trained, in cycles that were seen
_LOST_BEFORE = 0.25  # of a cycle: what trained and rested for longer before the first one was a start, not cycles
_RESTED = 1.3  # times what it usually rests in a cycle: likewise
_TWICE = 1.3  # cycles that it trained until the first one ended: they may be two
# Standard deviations beyond the scatter of cycles. Of the time left: slow drift; what longer cycles took without a
# rhythm; the square of what was trained outside of known cycles. Of a cycle: where boundaries are placed; one that was
# not seen; whether the first was one. Of cycles that were not seen before the first: their number.
_DRIFT, _UNEVEN, _UNKNOWN, _PLACED, _UNSEEN, _FIRST, _BEFORE = 0.05, 0.3, 0.5, 0.12, 0.5, 0.6, 0.5
_LOST = 1.0  # of a cycle, that it has not trained since the last one: less, and what it usually does, is part of them
# For how long none is seen where cycles go on as before: so many of them, and a share of those so far, as an
# ``EpochTracker`` follows them.
_FOLLOWED, _FOLLOWED_SHARE = 1.5, 0.15
_LOST_UNSEEN = 0.85  # of a longer time in which none was seen: it may have gone by without any
# A rest that marks a cycle: of what it usually rests in one, and of the cycle, at least; cycles that have one, and only
# one; by how much cycles that are told by rests may differ.
_HALF_REST, _SHORT_REST, _MARKED, _SAME_LENGTH = 0.5, 0.05, 0.8, 0.2
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
    interval holds their scatter and what is not known of their mean (Student's t), of what recurs and of how many are
    over, drift, and that their pace may change as it has before. Where none has been seen for long, it reaches
    further: what the job has done since then need not have been epochs.

    Args:
        starts_s: Shape (epochs,), of the epochs that are over.
        ends_s: Shape (epochs,).
        total_epochs: Epochs that the job is to run for.
        now_s: Time of the newest tick: the job was not done before it unless no epoch is left.
        training_s: Shape (spans, 2), when the job is known to have trained, in order; None where that is not known.
            A gap between epochs is a pause, or epochs that were not seen; what was told as an epoch and hardly trained
            is none, nor are several in a row where they recur. What it lost to pauses since the last of them, if more
            than a cycle, comes on top.
            A gap as long as a longer epoch that was seen is one. Where it rests once in each, rests tell of epochs
            that were not seen, before them and since.
        epochs_before: Epochs before the first one given.

    Raises:
        TotalPassedError: More epochs are over than there are to be.
        TotalEpochsError: Fewer than three are over, or those that were seen are less than a fifth of what it has
            trained.
    """
    done = int(starts_s.size) + epochs_before
    if starts_s.size < FEWEST_EPOCHS:
        raise TotalEpochsError(
            f"{done} epochs are over; at least {FEWEST_EPOCHS} are needed to say when the job will be done"
        )
    training, dropped = None, 0
    if training_s is not None and np.diff(training_s).any():
        training = _Training.with_cycles(training_s, starts_s, ends_s)
        trained = np.median(training.between(starts_s, ends_s) / (ends_s - starts_s))
        # Told cycles that hardly train: what is told of its training is wrong, or they are.
        training = training if trained >= _HARDLY_TRAINS else None
    if training is not None:
        are_cycles = training.are_cycles(starts_s, ends_s)
        if are_cycles.sum() >= FEWEST_EPOCHS:
            starts_s, ends_s = starts_s[are_cycles], ends_s[are_cycles]
            dropped = int((~are_cycles).sum())
            done = int(starts_s.size) + epochs_before
    seen = _SeenCycles.measure(starts_s, ends_s, training)
    bounds_s = np.empty(0) if training is None else training.bounds_by_rests(starts_s, ends_s, seen)
    if total_epochs < done:
        raise TotalPassedError(f"{done} epochs are over, more than the {total_epochs} that the job is said to have")
    first_s, last_s = float(starts_s[0]), float(ends_s[-1])
    unseen, before, known = seen.unseen, 0.0, 1.0
    if training is not None and not epochs_before:
        known = training.share(starts_s, ends_s)
        if known < _LEAST_KNOWN and done < total_epochs:
            raise TotalEpochsError(
                f"only {known:.0%} of what it has trained are cycles that are known; how many the rest are, and how"
                " long they take now, cannot be told"
            )
        most_s = max(_LOST_BEFORE * seen.mean_s, _RESTED * seen.rest_s)
        begin_s, trained_s = training.run_up_s(first_s, most_s)
        before = trained_s / seen.trained_s
        in_it = (bounds_s >= begin_s - most_s) & (bounds_s < first_s - 0.5 * seen.mean_s)
        before = max(before, float(in_it.sum()))
        unseen += int(before)
    # A total that is reached only by what was not seen is not reached.
    unseen = min(unseen, total_epochs - done) if total_epochs > done else 0
    done += unseen
    left = total_epochs - done
    if left <= 0:
        return EndEstimate(total_epochs, 0, last_s, last_s, last_s, "all of its cycles are over")
    longer_s, longer_variance = seen.longer_to_come(left)
    left_s = left * seen.mean_s + longer_s
    first_off = max(_FIRST * (before + (ends_s[0] - first_s) / seen.mean_s >= _TWICE), _BEFORE * before)
    late_s = 0.0
    if training is not None:
        since = float(training.until(now_s) - training.until(last_s)) / seen.trained_s
        late_s = now_s - last_s - since * seen.mean_s - seen.longer_to_come(round(since))[0]
        late_s = late_s if late_s > _LOST * seen.mean_s + seen.longest_s else 0.0
    silent_s = now_s - last_s - late_s
    # A change of pace shows in rests before anybody follows the new one.
    since_s = np.append(last_s, bounds_s[bounds_s > last_s + 0.5 * seen.mean_s])
    lengths = np.diff(since_s[1:])
    alike = lengths.size >= FEWEST_EPOCHS - 1 and np.ptp(lengths) < _SAME_LENGTH * np.median(lengths)
    if alike and done + lengths.size + 1 <= total_epochs:
        starts_s, ends_s = np.append(starts_s, since_s[:-1]), np.append(ends_s, since_s[1:])
        told = estimate_end(starts_s, ends_s, total_epochs, now_s, training_s=training_s, epochs_before=epochs_before)
        return replace(told, basis=f"{told.basis}, {since_s.size - 1} of them told by its rests")
    if silent_s < _FOLLOWED * seen.mean_s + seen.longest_s + _FOLLOWED_SHARE * (last_s - first_s):
        silent_s = 0.0
    # What is left drifts the less, the more of the job has been seen.
    of_left = math.hypot(
        _DRIFT * math.sqrt(min(left / done, 1.0)), _UNKNOWN * (1 - known) ** 2, seen.pace_deviation(left)
    )
    of_a_cycle = math.hypot(_PLACED, _UNSEEN * math.sqrt(seen.unseen + dropped), first_off)
    other_s = math.sqrt((of_left * left_s) ** 2 + (of_a_cycle * seen.mean_s) ** 2 + longer_variance)
    scatter_s = seen.scatter_s * math.sqrt(left + left**2 / seen.count)
    upper = 0.5 + COVERAGE / 2
    half = math.hypot(float(stdtrit(max(seen.count - 1, 1), upper)) * scatter_s, float(ndtri(upper)) * other_s)
    end = last_s + left_s + late_s
    # A pause, or a silence where it is not known to have trained, may be the first longer one: more are to come then.
    first = 1.0 if seen.places.size else 1.0 + left / max(seen.count, 1)
    lost = _LOST_UNSEEN if seen.places.size or training is not None else first
    low, high = max(end - half, now_s), max(end + math.hypot(half, first * late_s, lost * silent_s), now_s)
    return EndEstimate(done, left, max(end, now_s), low, high, seen.words(unseen, longer_s, silent_s))


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


class _Training:
    """When a job is known to have trained, shape (spans, 2), in order."""

    def __init__(self, spans_s: FloatArray) -> None:
        self._spans_s = spans_s
        self._before_s = np.concatenate([[0.0], np.cumsum(spans_s[:, 1] - spans_s[:, 0])])

    @classmethod
    def with_cycles(cls, spans_s: FloatArray, starts_s: FloatArray, ends_s: FloatArray) -> _Training:
        """Take it that a job trained from the first of its cycles on, if several were before it was known to."""
        begin_s = float(spans_s[0, 0])
        if (ends_s <= begin_s).sum() >= _SEVERAL:
            spans_s = np.concatenate([[[starts_s[0], begin_s]], spans_s])
        return cls(spans_s)

    def until(self, time_s: FloatArray | float) -> FloatArray:
        """Seconds that it had trained until some times, their shape."""
        i = np.searchsorted(self._spans_s[:, 0], time_s, side="right")
        begin_s, end_s = self._spans_s[np.maximum(i - 1, 0)].T
        inside = np.where(i > 0, np.minimum(time_s, end_s) - begin_s, 0.0)
        return np.asarray(self._before_s[np.maximum(i - 1, 0)] + np.maximum(inside, 0.0))

    def between(self, begins_s: FloatArray, ends_s: FloatArray) -> FloatArray:
        """Seconds that it trained in stretches, shape (stretches,)."""
        return self.until(ends_s) - self.until(begins_s)

    def share(self, starts_s: FloatArray, ends_s: FloatArray) -> float:
        """Share of it that lies in cycles."""
        return min(float(self.between(starts_s, ends_s).sum() / self._before_s[-1]), 1.0)

    def are_cycles(self, starts_s: FloatArray, ends_s: FloatArray) -> npt.NDArray[np.bool_]:
        """Which stretches that were told as cycles are some, shape (cycles,): an evaluation may look like one."""
        trained = self.between(starts_s, ends_s)
        rests = trained < _RESTS * np.median(trained)
        bounds = np.flatnonzero(np.diff(np.concatenate([[False], rests, [False]]).astype(int)))
        in_a_row = np.diff(bounds)[::2]
        lengths, often = np.unique(in_a_row, return_counts=True)
        for begin, length in zip(bounds[::2], in_a_row, strict=True):
            # Where several in a row rest, it is not known that they train, but where as many do so again.
            if length >= _SEVERAL and often[lengths == length] < _SEVERAL:
                rests[begin : begin + length] = False
        return np.asarray(~rests)

    def bounds_by_rests(self, starts_s: FloatArray, ends_s: FloatArray, seen: _SeenCycles) -> FloatArray:
        """Bounds of cycles, those that were not seen, too, where it rests once in each; none where it does not."""
        begins = self._spans_s[1:, 0]
        marks = begins[begins - self._spans_s[:-1, 1] > max(_HALF_REST * seen.rest_s, _SHORT_REST * seen.mean_s)]
        # Where in a cycle they lie, of which the end is the beginning of the next.
        at = np.searchsorted(starts_s, marks, side="right") - 1
        within = (at >= 0) & (marks < ends_s[np.maximum(at, 0)])
        turns = np.exp(2j * np.pi * (marks[within] - starts_s[at[within]]) / seen.mean_s)
        bounds_s = marks - float(np.angle(turns.sum())) / (2 * np.pi) * seen.mean_s
        nearest = np.abs(bounds_s[:, np.newaxis] - starts_s).argmin(axis=1)
        own = nearest[np.abs(bounds_s - starts_s[nearest]) < 0.5 * seen.mean_s]
        if np.unique(own).size < _MARKED * starts_s.size or own.size > starts_s.size / _MARKED:
            return np.empty(0)
        return np.asarray(bounds_s)

    def run_up_s(self, begin_s: float, most_s: float) -> tuple[float, float]:
        """Since when it trained up to a time, with rests of so many seconds at most, and for how long."""
        begins = self._spans_s[self._spans_s[:, 0] < begin_s, 0]
        ends = np.minimum(self._spans_s[: begins.size, 1], begin_s)
        rests = np.append(begins[1:], begin_s) - ends
        lost = np.flatnonzero(rests > most_s)
        first = int(lost[-1]) + 1 if lost.size else 0
        return float(begins[first]) if first < begins.size else begin_s, float((ends - begins)[first:].sum())


@dataclass(frozen=True)
class _SeenCycles:
    """What cycles so far tell of those to come.

    Attributes:
        mean_s: Mean duration of those that are not longer than usual, since their pace last changed.
        scatter_s: Standard deviation of them.
        count: How many they are.
        changes: Shape (changes,), logarithms of the changes of pace.
        measured: How many cycles changes were looked for in.
        places: Shape (longer,), which ones are longer, counted from the first.
        longer_s: Shape (longer,), by how much, at the latest pace.
        last: Place of the last one.
        unseen: Cycles in gaps that were not seen.
        trained_s: Seconds that it usually trains in one.
    """

    mean_s: float
    scatter_s: float
    count: int
    changes: FloatArray
    measured: int
    places: FloatArray
    longer_s: FloatArray
    last: int
    unseen: int
    trained_s: float

    @property
    def rest_s(self) -> float:
        """Seconds that it usually does not train in one."""
        return self.mean_s - self.trained_s

    @property
    def longest_s(self) -> float:
        """By how much the longest one is longer, seconds."""
        return float(self.longer_s.max(initial=0.0))

    @classmethod
    def measure(cls, starts_s: FloatArray, ends_s: FloatArray, training: _Training | None) -> _SeenCycles:
        usual = float(np.median(ends_s - starts_s))
        gaps, trained_s = np.append(starts_s[1:] - ends_s[:-1], 0.0) / usual, usual
        if training is not None:
            # What it trained in a gap are as many cycles as usually train for so long, if they fit into it.
            trained_s = max(float(np.median(training.between(starts_s, ends_s))), _LEAST_TRAINED * usual)
            in_gaps = np.append(training.between(ends_s[:-1], starts_s[1:]), 0.0)
            missed = np.minimum(np.round(in_gaps / trained_s), np.round(gaps))
        else:
            whole = np.round(gaps)
            missed = np.where(np.abs(gaps - whole) < _NEARLY_WHOLE * np.sqrt(np.maximum(whole, 1)), whole, 0.0)
        told = (ends_s - starts_s) / usual
        off = np.abs(told[told > 1 + _LONGER] / np.maximum(gaps, _LONGER)[:, np.newaxis] - 1)
        missed = np.where((off < _AS_LONG).any(axis=1), np.minimum(missed, 1.0), missed)
        durations = ends_s - starts_s + np.maximum(gaps - missed, 0.0) * usual
        places = np.arange(durations.size) + np.cumsum(missed) - missed
        if durations.size > FEWEST_EPOCHS:  # the first one compiles, fills caches, allocates
            durations, places = durations[1:], places[1:]
        bounds = [0, *[point.epoch for point in duration_trend(durations).change_points], durations.size]
        paces = [float(np.median(durations[begin:end])) for begin, end in itertools.pairwise(bounds)]
        more = durations / np.repeat(paces, np.diff(bounds)) - 1
        is_longer = more > _LONGER
        if is_longer.mean() > _MOST_LONGER:
            is_longer[:] = False
        at, by = places[is_longer], more[is_longer]
        # Two in a row, and not more, are one that a boundary cuts.
        apart = np.concatenate([[True], np.diff(at) != 1, [True]])[: at.size + 1]
        first = np.flatnonzero(apart[:-2] & ~apart[1:-1] & apart[2:])
        by[first] += by[first + 1]
        at, by = np.delete(at, first + 1), np.delete(by, first + 1)
        alike = durations[bounds[-2] :][~is_longer[bounds[-2] :]]
        mean = float(alike.mean())
        scatter = max(float(alike.std(ddof=1)) if alike.size > 1 else 0.0, _LEAST_SCATTER * mean)
        return cls(
            mean, scatter, alike.size, np.diff(np.log(paces)), durations.size, at, by * mean, int(places[-1]),
            int(missed.sum()), trained_s,
        )  # fmt: skip

    def pace_deviation(self, left: int) -> float:
        """Relative standard deviation of the mean duration of cycles to come, if pace changes as often as so far.

        Wider where how much it changes is known of few changes only (Student's t).
        """
        if not self.changes.size:
            return 0.0
        expected = self.changes.size / self.measured * left
        upper = 0.5 + COVERAGE / 2
        few = float(stdtrit(self.changes.size, upper) / ndtri(upper))
        return few * float(np.sqrt(np.mean(self.changes**2) * min(expected / 3, 1.0)))

    def longer_to_come(self, left: int) -> tuple[float, float]:
        """Seconds that longer cycles among those to come take beyond the usual, expected, and their variance."""
        if not self.places.size:
            return 0.0, 0.0
        each, count, since = float(self.longer_s.mean()), self.places.size, self.last - float(self.places[-1])
        # One alone may be the first of a rhythm; it is none once another one would have been due.
        apart = np.diff(self.places) if count > 1 else self.places + 1
        period = float(np.median(apart))
        if period > 1 and np.mean(apart == period) >= _EVEN and since <= period:
            often = (since + left) // period
        else:
            # As often as in all so far; some in a row are no rhythm.
            often = left * min((count + 0.5) / (self.last + 1), 1 / float(apart.mean())) if count > 1 else 0.0
        uneven = self.longer_s.sum() / (max(self.last, 1) * self.mean_s)
        # How long they are on average is the less known, the less they are alike.
        unlike = float(self.longer_s.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0
        variance = max(often, 0.25) * each**2 + (_UNEVEN * uneven * left * self.mean_s) ** 2 + (often * unlike) ** 2
        return often * each, variance

    def words(self, unseen: int, longer_s: float, silent_s: float) -> str:
        said = [f"the latest {self.count} cycles, {self.mean_s:.3g} s each"]
        if self.changes.size:
            said.append(f"whose pace has changed {formatting.count(self.changes.size, 'time')}")
        if self.places.size:
            said.append(f"{self.places.size} longer ones, for which {longer_s:.0f} s are still to come")
        if unseen:
            said.append(f"{unseen} that were not seen but must have been")
        if silent_s:
            said.append(f"none seen for the last {silent_s:.0f} s")
        return ", ".join(said)

"""``CycleClock``: when each cycle of a known level begins, from its waveform, as the ticks come.

Between two looks of the tracker nobody says where cycles begin. Their waveform does: what most cycles have in
common is laid over the ticks around where the next one is due, and begins it where the two correlate best. Levels and
amplitudes of a metric do not count, so a job that throttles keeps its waveform. Where the best place is not clearly
the best, the cycle has no beginning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusonde.epoch_detect.progress.tempo import OtherTempo
from gpusonde.epoch_detect.stored import check, read_array, read_as
from gpusonde.telemetry import FloatArray

_FINEST = 48  # parts of a cycle that are told apart at most
_LEARNED = 6  # cycles of which the waveform is learned
_MOST_LEARNED = 12
_ROUNDS = 3  # of aligning them
_EARLIER, _LATER = 0.3, 0.45  # of a period, around where the next cycle is due
_LEAST_MATCH, _MOST_MATCH = 0.6, 0.9  # correlation of a cycle with the waveform that is needed: the more,
_MANY_PLACES, _FEW_PLACES = 0.5, 2.0  # the fewer places it has, where noise is alike often
_LEAST_USUAL = 0.7  # the same, median of those that it was learned of
_LEAST_SWING = 0.25  # of how far metrics move in a cycle: what moves less is the noise of an evaluation
_CLEARLY = 0.06  # by which the second best place must correlate less
_LOBE = 0.12  # of a period, that belongs to one place
_RENEWED, _RENEWED_EVERY = 0.15, 4  # share of a cycle in the waveform, and of which
_MOST_LOST, _MOST_SOUGHT = 4, 16  # cycles, windows without a beginning, after which the waveform is learned anew
_TEMPO = 3  # cycles whose median says when the next one is due
_MOST_ROWS = 40 * _FINEST
_MOST_STEPS = 2  # periods, from a time to the furthest place around it that is looked at
_AFTER = 0.3  # share of the waveform that lies behind the beginning
_SOON = 0.12  # of a period behind where the next cycle is due, after which it is sought for the first time
_AGAIN = 0.05  # of a period, ticks to wait for until it is sought again
_SHORTEST, _LONGEST = 0.8, 1.4  # times a period, of a cycle behind a pause
_NEAR = 12  # parts of a cycle that an edge has on either side
_STILL = 1e-9  # of a metric's values: what moves less does not
_TINY = 1e-30
_ALIKE = 4.0  # times the median square by which cycles differ, that one of many may
_LEAST_UNEVEN, _MOST_UNEVEN = 0.2, 2.0  # of a step; times the most even metric that another may be as uneven
_CLEAR = 10.0  # ticks of a cycle that is sought behind a lost one, and is laid at whole ticks
_SHORTEST_TICK_S, _LONGEST_S = 1e-6, 1e9  # of a stored clock: a damaged one must not ask for more
_NEAR_PERIODS = 10.0  # between its ticks and the latest cycle in them: what lies far behind would be sought for ever
_NOTHING: FloatArray = np.empty((0, 0))


class CycleClock:
    """Finds the beginnings of the cycles of one level.

    Args:
        period_s: Its period.
        tick_s: Usual distance of ticks.

    Attributes:
        other_tempo: Whether they have given way to others that take far longer.
    """

    def __init__(self, period_s: float, tick_s: float) -> None:
        self.period_s = period_s
        self.tick_s = tick_s
        self._merged = max(1, int(period_s / tick_s / _FINEST))
        # One of few ticks that begins in the middle of one is like no other at whole ticks.
        self._parts = 1 if period_s >= _CLEAR * tick_s else 2
        self._step_s = tick_s * self._merged / self._parts
        self.other_tempo = OtherTempo(period_s, self._step_s * self._parts)
        places = max(4, round(period_s / self._step_s))
        self._after = max(1, round(_AFTER * places))
        self._before = places - self._after
        self._steps = self._step_s * np.arange(-_MOST_STEPS * places, _MOST_STEPS * places + 1, dtype=np.float64)
        self._least_match = max(_LEAST_MATCH, min(_MOST_MATCH, _MANY_PLACES + _FEW_PLACES * self._parts / places))
        self._seeks = period_s >= _CLEAR * tick_s
        self._due_s = period_s
        self._time = np.empty(0)
        self._rows: FloatArray = _NOTHING  # shape (metrics, ticks)
        self._used: list[int] = []  # metrics that tell where cycles begin
        self._part: list[tuple[FloatArray, FloatArray]] = []
        self._waveform: FloatArray = _NOTHING  # shape (metrics, places), each metric's weight in its size
        self._template: FloatArray = _NOTHING  # of it
        self._variances: FloatArray = np.empty(0)  # of every metric in the cycles that it was learned of
        self._weights: FloatArray = np.empty(0)  # of the variances of those that are used; a cycle's add up to one
        self._last_s = np.nan
        self._begin_s = -np.inf  # of the latest cycle that was found
        self._again_s = -np.inf  # ticks until then would be searched again for little
        self._lost = 0
        self._age = 0  # cycles since the waveform was learned
        self._durations: list[float] = []

    @property
    def is_running(self) -> bool:
        """Whether the waveform is known."""
        return self._waveform.size > 0

    def update(self, time_s: FloatArray, rows: FloatArray, starts_s: FloatArray | None = None) -> list[float]:
        """Take ticks.

        Args:
            time_s: Shape (n,), increasing, behind those before.
            rows: Shape (metrics, n), without NaN.
            starts_s: Where cycles among them begin, if that is known already.

        Returns:
            Beginnings of cycles, in order; NaN for one that has none, so that what lies around it is no duration.
        """
        self._remember(time_s, rows)
        if not self._rows.size:
            return []
        if not self.is_running and not self._learn(starts_s):
            return []
        found: list[float] = []
        while self.is_running:
            due_s = self._last_s + self._due_s
            known_s = self._time[-1] - due_s - self._after * self._step_s
            later = min(_LATER, known_s / self._due_s)
            if later < _SOON or (later < _LATER and self._time[-1] < self._again_s):
                break
            begins = self._next(due_s, later)
            if not begins:
                self._again_s = float(self._time[-1]) + _AGAIN * self._due_s
                break
            found += begins
        self._forget_old()
        return found

    def _remember(self, time_s: FloatArray, rows: FloatArray) -> None:
        if self._merged > 1:
            self._part.append((time_s, rows))
            times = np.concatenate([part[0] for part in self._part])
            count = times.size // self._merged * self._merged
            if not count:
                return
            columns = np.concatenate([part[1] for part in self._part], axis=1)
            self._part = [(times[count:], columns[:, count:])]
            time_s = times[:count].reshape(-1, self._merged).mean(axis=1)
            rows = columns[:, :count].reshape(len(columns), -1, self._merged).mean(axis=2)
        if time_s.size:
            self.other_tempo.update(time_s, rows)
        if not self._rows.size:
            self._time, self._rows = time_s, rows
        else:
            self._time = np.concatenate([self._time, time_s])
            self._rows = np.concatenate([self._rows, rows], axis=1)
        if not self.is_running and self._time.size > _MOST_ROWS:
            self._time, self._rows = self._time[-_MOST_ROWS // 2 :], self._rows[:, -_MOST_ROWS // 2 :]

    def _forget_old(self) -> None:
        if not self.is_running:
            return
        keep_s = self._last_s - _LONGEST * self.period_s - 2 * self._step_s
        first = int(np.searchsorted(self._time, keep_s)) - 1
        if first > self._time.size // 2:
            self._time, self._rows = self._time[first:], self._rows[:, first:]

    def _around(self, at_s: float, before: int, after: int) -> FloatArray:
        """Values at even distances around a time, shape (metrics, before + after + 1)."""
        middle = self._steps.size // 2
        return self._at(at_s + self._steps[middle - before : middle + after + 1])

    def _at(self, times: FloatArray) -> FloatArray:
        """Values of the metrics that are used, shape (metrics, *that of the times)."""
        used = self._used or range(len(self._rows))
        return np.array([np.interp(times, self._time, self._rows[i]) for i in used])

    def _learn(self, starts_s: FloatArray | None) -> bool:
        """Learn the waveform of the ticks so far; begin with the first of them."""
        edge_s = self._before * self._step_s + _LATER * self.period_s
        first_s, last_s = self._time[0] + edge_s, self._time[-1] - edge_s
        if last_s - first_s < (_LEARNED - 1) * self.period_s or last_s < self._again_s:
            return False
        self._again_s, self._used = last_s + self.period_s, []
        guess = np.arange(first_s, last_s, self.period_s)
        if starts_s is not None:
            known = starts_s[(starts_s >= first_s) & (starts_s <= last_s)]
            guess = known if known.size >= _LEARNED else guess
        guess = guess[-_MOST_LEARNED:]
        reach = round(_LATER * self.period_s / self._step_s)
        pieces = np.array([self._around(at, self._before + reach, self._after + reach) for at in guess])
        waveform, curves = self._aligned(pieces, reach)
        alone = np.moveaxis(_of_each(_template(waveform), pieces)[0], 1, 0)
        at_s = guess + self._step_s * np.array([[_peak(curve) for curve in each] for each in alone.tolist()])
        uneven = np.median(np.abs(np.diff(at_s, 2, axis=1)), axis=1) + _LEAST_UNEVEN * self._step_s
        # What stands still tells no place, and that as evenly as was guessed.
        uneven[np.median(alone.max(axis=2), axis=1) <= 0] = np.inf
        self._used = np.flatnonzero(uneven < _MOST_UNEVEN * uneven.min()).tolist()
        if len(self._used) < len(waveform):
            waveform, curves = self._aligned(pieces[:, self._used], reach)
        places = curves.argmax(axis=1)
        cut = [piece[:, at : at + waveform.shape[1]] for piece, at in zip(pieces, places, strict=True)]
        variances = np.median(np.var(cut, axis=2), axis=0)
        weights = self._weights_of(waveform, self._variances if self._variances.size else variances)
        moves = float(weights @ variances[self._used]) >= _LEAST_SWING**2
        if moves and np.median(curves.max(axis=1)) >= _LEAST_USUAL:
            self._waveform, self._template, self._lost, self._again_s = waveform, _template(waveform), 0, -np.inf
            self._variances, self._weights = variances, self._weights_of(waveform, variances)
            # Where cycles were lost, those that it is learned of prove nothing: a waveform of noise fits that noise.
            first = -1 if np.isfinite(self._begin_s) else 0
            self._last_s = float(guess[first] + (places[first] - reach) * self._step_s) - self._due_s
            return True
        # Nothing that repeats: the older half of it is let go.
        half = self._time.size // 2
        self._time, self._rows = self._time[half:], self._rows[:, half:]
        return False

    def _aligned(self, pieces: FloatArray, reach: int) -> tuple[FloatArray, FloatArray]:
        """The waveform that cycles have in common, and how it correlates with each at each place."""
        size = self._before + self._after + 1
        places = np.full(len(pieces), reach)
        for _ in range(_ROUNDS):
            cut = [piece[:, place : place + size] for piece, place in zip(pieces, places, strict=True)]
            waveform = _weighted(np.array(cut))
            curves = _of_each(_template(waveform), pieces)[0].sum(axis=1)
            places = curves.argmax(axis=1)
        return waveform, curves

    def _next(self, due_s: float, later: float) -> list[float]:
        """Find the cycle that is due, no later than that share of a period; nothing to wait for more ticks."""
        before = max(1, int(_EARLIER * self._due_s / self._step_s))
        after = max(1, int(later * self._due_s / self._step_s))
        piece = self._around(due_s, self._before + before, self._after + after)
        lobe = max(self._parts, round(_LOBE * self._due_s / self._step_s))
        of_each, variances = _of_each(self._template, piece)
        curve = np.add.reduce(of_each).tolist()  # a few numbers, which a list is faster with
        match = max(curve)
        at = curve.index(match)
        beside = max(max(curve[: max(at - lobe, 0)], default=-1.0), max(curve[at + lobe + 1 :], default=-1.0))
        inside = 0 < at < len(curve) - (1 if later >= _LATER else 1 + lobe // 2)
        # A lobe that reaches out of it hides nothing: what falls off on both sides is one place.
        is_clear = inside and match >= self._least_match and match - beside >= _CLEARLY
        # What moves less than metrics do in a cycle is none.
        if not is_clear or float(self._weights @ variances[:, at]) < _LEAST_SWING**2:
            return self._lose(due_s) if later >= _LATER else []
        begin_s = due_s + (_peak(curve) - before) * self._step_s
        begins = [begin_s]
        if self._lost:
            begins = self._behind_pause(begin_s)
        else:
            self._durations = [*self._durations[1 - _TEMPO :], begin_s - self._last_s]
            due_s = sorted(self._durations)[len(self._durations) // 2]
            self._due_s = min(max(due_s, _SHORTEST * self.period_s), _LONGEST * self.period_s)
        self._lost, self._last_s, self._begin_s = 0, begin_s, begin_s
        self._age += 1
        if self._age % _RENEWED_EVERY == 0:
            self._renew(self._around(begin_s, self._before, self._after))
        return begins

    def _renew(self, cycle: FloatArray) -> None:
        """Take a cycle into the waveform, each metric in its size there."""
        cycle = cycle - np.add.reduce(cycle, axis=1, keepdims=True) / cycle.shape[1]
        share = _RENEWED * _size(self._waveform) / np.maximum(_size(cycle), _TINY)
        self._waveform = (1 - _RENEWED) * self._waveform + share[:, None] * cycle
        self._template = _template(self._waveform)

    def _weights_of(self, waveform: FloatArray, variances: FloatArray) -> FloatArray:
        size = _size(waveform)
        return np.asarray(size / max(float(size.sum()), _TINY) / np.maximum(variances[self._used], _TINY))

    def _behind_pause(self, end_s: float) -> list[float]:
        """The beginning of the cycle that ends there, in front of which is none that is like it, and its end.

        What comes before it says nothing: it begins where work does, and goes on as the others do.
        """
        size = self._before + self._after
        edge, whole = max(1, size // _NEAR), np.roll(self._waveform[:, :-1], -self._before, axis=1)
        part = np.concatenate([whole[:, -edge:], whole[:, : size // 2]], axis=1)
        first_s = max(end_s - _LONGEST * self.period_s, self._begin_s + 0.5 * self.period_s, float(self._time[0]))
        cells = int((end_s - _SHORTEST * self.period_s - first_s) / self._step_s)
        if cells < 2 * edge + 2:
            return [end_s]
        piece = self._at(first_s + self._step_s * np.arange(-edge, cells + size // 2, dtype=np.float64))
        curve = np.add.reduce(_of_each(_template(part - part.mean(axis=1, keepdims=True)), piece)[0]).tolist()
        at = curve.index(max(curve))
        # Where all that tells a place lies further back, any fits.
        if not edge <= at < len(curve) - edge or curve[at] < self._least_match:
            return [end_s]
        if curve[at] - max(curve[at - edge], curve[at + edge]) < _CLEARLY:
            return [end_s]
        return [first_s + _peak(curve) * self._step_s, end_s]

    def _lose(self, due_s: float) -> list[float]:
        self._lost += 1
        # The next one may begin anywhere behind what was searched.
        self._last_s = due_s + (_EARLIER + _LATER - _LOBE - 1.0 if self._seeks else 0.0) * self._due_s
        if self._lost >= (_MOST_SOUGHT if self._seeks else _MOST_LOST):
            self._waveform, self._durations, self._due_s, self._used = _NOTHING, [], self.period_s, []
            self._again_s = -np.inf
        return [np.nan]

    def fields(self) -> dict[str, Any]:
        """What another one needs to go on here, for JSON."""
        return {
            "period_s": self.period_s,
            "tick_s": self.tick_s,
            "due_s": self._due_s,
            "last_s": None if np.isnan(self._last_s) else self._last_s,
            "begin_s": self._begin_s if np.isfinite(self._begin_s) else None,
            "again_s": self._again_s if np.isfinite(self._again_s) else None,
            "lost": self._lost,
            "age": self._age,
            "durations": self._durations,
            "used": self._used,
            "waveform": self._waveform.tolist(),
            "variances": self._variances.tolist(),
            "time_s": self._time.tolist(),
            "rows": self._rows.tolist(),
            "other_tempo": self.other_tempo.fields(),
            "part": [[times.tolist(), rows.tolist()] for times, rows in self._part],
        }

    @classmethod
    def of_fields(cls, fields: dict[str, Any], metrics: int | None = None) -> CycleClock:
        """Inverse of :meth:`fields`; of ticks with so many metrics, any where None."""
        period_s, tick_s = read_as(float, fields["period_s"]), read_as(float, fields["tick_s"])
        check(_SHORTEST_TICK_S <= tick_s <= period_s <= _LONGEST_S, "times of a cycle")
        clock = cls(period_s, tick_s)
        clock._due_s, clock._lost, clock._age = (
            read_as(kind, fields[name]) for kind, name in ((float, "due_s"), (int, "lost"), (int, "age"))
        )
        check(0.5 * _SHORTEST * period_s <= clock._due_s <= 2 * _LONGEST * period_s, "time to the next cycle")
        known = (fields.get(name) for name in ("last_s", "begin_s", "again_s"))
        last_s, begin_s, again_s = (read_as(float | None, each) for each in known)
        clock._last_s = np.nan if last_s is None else last_s
        clock._begin_s, clock._again_s = (-np.inf if each is None else each for each in (begin_s, again_s))
        clock._durations = read_array(fields["durations"], (None,)).tolist()
        clock._time = read_array(fields["time_s"], (None,))
        clock._rows = read_array(fields["rows"], (metrics, clock._time.size)) if clock._time.size else _NOTHING
        clock._part = [_part_of(times, rows, metrics) for times, rows in fields["part"]]
        clock._variances = read_array(fields.get("variances", []), (None,))
        check(metrics is None or clock._variances.size in (0, metrics), "variances of metrics")
        # A release before did not know how far metrics move.
        if fields["waveform"] and clock._variances.size:
            clock._take_waveform(fields)
        if "other_tempo" in fields:
            clock.other_tempo.take_fields(fields["other_tempo"])
        return clock

    def _take_waveform(self, fields: dict[str, Any]) -> None:
        """Go on with a waveform that is stored; one of a release that told more parts apart is learned anew."""
        waveform = read_array(fields["waveform"], (None, None))
        if waveform.shape[1] != self._before + self._after + 1:
            return
        metrics = len(self._rows)
        # A release before looked at all metrics.
        used = read_as(list[int], fields.get("used", list(range(metrics))))
        check(len(used) == len(waveform) and all(0 <= each < metrics for each in used), "metrics of a waveform")
        near_s = _NEAR_PERIODS * self.period_s
        known = self._time.size and self._time[0] - near_s <= self._last_s <= self._time[-1] + near_s
        check(bool(known) and self._variances.size == metrics, "time of the latest cycle")
        self._waveform, self._used = waveform, used
        self._weights = self._weights_of(waveform, self._variances)
        self._template = _template(waveform)


def _part_of(times: Any, rows: Any, metrics: int | None) -> tuple[FloatArray, FloatArray]:
    time_s = read_array(times, (None,))
    return time_s, read_array(rows, (metrics, time_s.size))


def _peak(curve: list[float]) -> float:
    """Where a curve is highest, between its places."""
    at = curve.index(max(curve))
    if not 0 < at < len(curve) - 1:
        return float(at)
    left, middle, right = curve[at - 1 : at + 2]
    bend = left - 2 * middle + right
    return at + (0.5 * (left - right) / bend if bend < 0 else 0.0)


def _weighted(cycles: FloatArray) -> FloatArray:
    """Mean of the cycles that are alike, without level, each metric as large as it repeats, shape (metrics, places).

    Args:
        cycles: Shape (cycles, metrics, places).
    """
    # One with a pause in it weighs as much as all others in a mean, and nothing in a median.
    own = cycles - np.median(cycles, axis=2, keepdims=True)
    middle = np.median(own, axis=0)
    far = ((own - middle) ** 2).mean(axis=2)
    alike = (far <= _ALIKE * np.median(far, axis=0) + _TINY).all(axis=1)
    mean = own[alike].mean(axis=0) if alike.sum() > len(own) // 2 else middle
    mean = mean - mean.mean(axis=1, keepdims=True)
    size = _size(mean)
    own = cycles - cycles.mean(axis=2, keepdims=True)
    noise = np.sqrt(np.median(((own - mean) ** 2).mean(axis=2), axis=0))
    weight = size**2 / np.maximum(size**2 + noise**2, _TINY)
    return np.asarray(mean * (weight / np.maximum(size, _TINY))[:, None])


def _size(waveform: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.add.reduce(waveform * waveform, axis=1) / waveform.shape[1]))


def _template(waveform: FloatArray) -> FloatArray:
    """A waveform in the size in which correlations of its metrics add up to their mean, by their weights."""
    return np.asarray(waveform / max(waveform.shape[1] * float(_size(waveform).sum()), _TINY))


def _of_each(template: FloatArray, pieces: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Correlation of a waveform with longer pieces at each place of them, and how far they vary there.

    Args:
        template: Of the waveform, shape (metrics, places).
        pieces: Shape (..., metrics, more places).

    Returns:
        The share of each metric in the correlation, and its variance, both of shape (..., metrics, places).
    """
    width = template.shape[1]
    flat = np.ascontiguousarray(pieces - pieces[..., :1])
    # As sliding_window_view, which takes longer than all that is done with it here.
    shape = (*flat.shape[:-1], flat.shape[-1] - width + 1, width)
    windows: FloatArray = np.ndarray(shape, flat.dtype, flat, 0, (*flat.strides, flat.strides[-1]))
    mean = np.add.reduce(windows, axis=-1) / width
    variances = np.einsum("...w,...w->...", windows, windows) / width - mean * mean
    # What moves less than a metric's rounding does not move.
    least = _STILL * np.maximum.reduce(np.abs(pieces), axis=-1, keepdims=True)
    spread = np.sqrt(np.where(variances > least * least, variances, np.inf))
    return np.einsum("...pw,...w->...p", windows, template) / spread, variances

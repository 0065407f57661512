"""``EpochTracker``: the epochs of a run while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.confirmation import agrees, is_of_steps, is_real, is_sure, untold
from gpusonde.epoch_detect.cycles.analysis import name_anew
from gpusonde.epoch_detect.cycles.candidates import EVERYTHING, Scope
from gpusonde.epoch_detect.cycles.detector import CachedMatch, append_epochs, extend_match, without_doubtful_end
from gpusonde.epoch_detect.cycles.marks import Marks
from gpusonde.epoch_detect.cycles.tree import level_of, with_epochs
from gpusonde.epoch_detect.history import CAPACITY, CELLS_TO_SEE, History
from gpusonde.epoch_detect.look import Look, WholeAnswer, look_at_once, look_in_steps
from gpusonde.epoch_detect.mark_history import MarkHistory
from gpusonde.epoch_detect.progress.table import Shares, time_shares
from gpusonde.epoch_detect.reported import EpochEvent, EpochStatus, ReportedEpochs, Stretch, TrackedEpoch, alike
from gpusonde.epoch_detect.resemblance import keep_alike
from gpusonde.epoch_detect.result import EpochDetection, Verdict, shifted
from gpusonde.epoch_detect.stored import read_as, reading
from gpusonde.epoch_detect.ticks import choose_metrics
from gpusonde.epoch_detect.tracker_state import (
    cached_fields,
    cached_from,
    detection_fields,
    detection_from,
    pack_state,
    unpack_state,
)

# In a run that goes on, of a period that was not among the likely ones when it was shorter.
_MOST_CYCLES = 10
_MOST_CYCLES_AT_FIRST = 14  # the same at the first look, before which nothing was looked for: periods of 2 s and more
_MOST_CYCLES_HELD = 4  # the same while a confident cycle holds
_FIRST_ANALYSIS_S = 27.5
# The next analysis comes when the run is this much longer; a cycle that was found is followed in between.
_GROWTH = 2.4
# The same for one who has fallen behind: half of the looks, and as many epochs found, a little later.
_GROWTH_PATIENT = 4.0
_FOLLOWED = 8  # epochs of the end of the run in which a cycle is followed
_FOLLOW = 0.15  # a cycle is followed after a period, at the earliest when the run is this share longer
_UNSEEN = 2  # periods without cycles that a look has seen which need no other look to say that they do not go on
_SAME_PERIOD = 0.15  # by which the period of a followed cycle may differ from the one before
_SAME_EPOCH = 0.15  # periods by which the start of a followed epoch may differ between two looks
_ALIKE = 0.5  # of the epochs of a followed cycle, at least, that stay where they were
_MEMORY = "framebuffer_used_bytes"


class EpochTracker:
    """Finds epochs in ticks as they arrive.

    Memory is bounded (see :class:`gpusonde.epoch_detect.history.History`): about 590 kB for four metrics, and 360 kB
    for marks where there are any (:meth:`note_marks`), however long the run, and a few times that while an analysis
    goes on. The run is analysed when it has grown to 2.4 times its length, and a cycle that was found is followed from
    epoch to epoch in between; so the work per tick does not grow with the length of the run. An analysis is done in
    parts, while the ticks after it come in.

    Nothing is told too early. What is told is a level that measures progress: the best guess of the epoch, once the
    level is confirmed, as it has held for six of its cycles or two of its parent's, is real with a probability of 0.9
    or more, and is not that of the steps. Whether its cycles are the epochs is another question, which the detection's
    ``role`` and ``confidence`` answer. Until then the detection says ``none`` with the levels found, and the epochs are
    provisional. A level that is told stays until two analyses in a row have another one; its cycles are of status
    ``other_level`` then, or withdrawn where they are no cycles any more. A reported epoch changes by an event, never
    silently. After :meth:`finish` the confirmed epochs are those that :func:`~gpusonde.epoch_detect.detect` finds in
    these ticks, with these marks.

    Args:
        metrics: Names of the metrics, in the order of the rows given to :meth:`update`.
        capacity: Most ticks to remember; averages beyond that.

    Raises:
        gpusonde.telemetry.UnknownMetricError: A metric that does not exist.
    """

    def __init__(self, metrics: Sequence[str], *, capacity: int = CAPACITY) -> None:
        self.metrics = tuple(metrics)
        self._used = choose_metrics(self.metrics)
        self._rows = [self.metrics.index(name) for name in self._used]
        self._memory_row = self.metrics.index(_MEMORY) if _MEMORY in self.metrics else None
        self._history = History(self._used, capacity)
        self._marks = MarkHistory()
        self._origin_s: float | None = None
        self._next_us = round(_FIRST_ANALYSIS_S * 1e6)
        self._analysed_us = 0
        self._named_us = 0
        self._patient = False
        self._follow_us: int | None = None
        self._cached: CachedMatch | None = None
        self._running: Look | None = None
        self._reported = ReportedEpochs()
        self._latest: EpochDetection | None = None
        self._standing: EpochDetection | None = None
        self._rival_s = 0.0
        self._detection: EpochDetection | None = None

    @property
    def epochs(self) -> tuple[TrackedEpoch, ...]:
        """All epochs ever reported, whatever their status, by start; before the first the provisional ones."""
        epochs = [*self._reported.epochs, *self._provisional()]
        return tuple(sorted(epochs, key=lambda e: (e.start_s, e.index)))

    def _provisional(self) -> list[TrackedEpoch]:
        latest = self._latest
        if self._standing is not None or latest is None or latest.verdict != Verdict.EPOCHS:
            return []
        spans = zip(latest.epoch_starts_s.tolist(), latest.epoch_ends_s.tolist(), strict=True)
        first, revision = self._reported.next_index, self._reported.revision
        return [
            TrackedEpoch(first + i, start, end, latest.confidence, EpochStatus.PROVISIONAL, revision)
            for i, (start, end) in enumerate(spans)
        ]

    @property
    def detection(self) -> EpochDetection | None:
        """What is told of the run, or None before the first analysis: the cycles of a confirmed level, or why none."""
        return self._detection

    @property
    def next_analysis_s(self) -> float:
        """Time of the ticks after which the next analysis comes; minus infinity before the first tick."""
        if self._origin_s is None:
            return float("-inf")
        return self._origin_s + self._due_us * 1e-6

    @property
    def _analysis_us(self) -> int:
        if not self._patient:
            return self._next_us
        return max(self._next_us, round(_GROWTH_PATIENT * self._analysed_us))

    @property
    def _due_us(self) -> int:
        if self._running is not None:
            return self._running.due_us
        return self._analysis_us if self._follow_us is None else min(self._analysis_us, self._follow_us)

    @property
    def nbytes(self) -> int:
        """Bytes held for ticks and marks."""
        return self._history.nbytes + self._marks.nbytes

    def update(self, time_s: npt.ArrayLike, values: npt.ArrayLike, *, exhaustive: bool = True) -> list[EpochEvent]:
        """Take new ticks.

        Args:
            time_s: Shape (n,), seconds on any axis, the same for all calls; ticks that do not come after the one
                before them, or that have no finite time, are left out.
            values: Shape (metrics, n), NaN where there is no value.
            exhaustive: Whether to look at the run at each of the moments that these ticks pass. Without, there are
                fewer such moments, and only one look, at the last tick: for one who has fallen behind. The epochs
                after :meth:`finish` are the same.

        Returns:
            What changed; with ``exhaustive`` independent of how the ticks are cut into calls, but for the call in which
            it is reported.

        Raises:
            ValueError: The shapes do not fit.
        """
        times = np.asarray(time_s, dtype=np.float64)
        columns = np.asarray(values, dtype=np.float64)
        if times.ndim != 1 or columns.shape != (len(self.metrics), times.size):
            raise ValueError(
                f"expected values of shape ({len(self.metrics)}, n) for times of shape (n,), got {columns.shape} "
                f"and {times.shape}"
            )
        times_us, columns = self._in_order(times, columns.take(self._rows_in_use(), axis=0))
        if times_us.size:
            self._patient = not exhaustive
        if not exhaustive and times_us.size and times_us[-1] > self._due_us:
            self._running = None
            self._remember(times_us, columns)
            now_us = int(times_us[-1])
            if now_us < self._analysis_us and (events := self._follow(now_us)) is not None:
                return events
            return self._analyse(now_us, ended=False)
        events = []
        done = 0
        while done < times_us.size:
            due = self._due_us
            stop = times_us.size if times_us[-1] <= due else int(times_us.searchsorted(due, side="right"))
            if stop > done:
                events += self._append(times_us[done:stop], columns[:, done:stop])
            done = max(stop, done)
            if done < times_us.size:
                # Moments that passed while nobody looked are one.
                events += self._look(max(due, self._history.last_time_us or 0))
        return events

    def note_marks(self, time_s: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Take what the processes of the run's job did; levels are named by it, those that are known now and then.

        Args:
            time_s: Shape (looks,), on the axis of :meth:`update`; marks may come later than the ticks of their time.
            values: Shape (6, looks), what came since the look before; see :class:`gpusonde.epoch_detect.Marks`.
        """
        self._marks.append(np.asarray(time_s, dtype=np.float64), np.asarray(values, dtype=np.float64))
        now_us = self._history.last_time_us or 0
        if self._latest is not None and now_us >= (1 + _FOLLOW) * max(self._analysed_us, self._named_us):
            self._named_us = now_us
            self._name_anew()

    def finish_look(self) -> list[EpochEvent]:
        """Do all that is left of a look at once: its parts are done while ticks come, and there may be none for long.

        Returns:
            What changed; what is found is the same.
        """
        events: list[EpochEvent] = []
        while self._running is not None:
            events += self._step(self._running, self._running.due_us)
        return events

    def finish(self) -> list[EpochEvent]:
        """Analyse all that was seen once more, as a whole; call it when the run has ended.

        Returns:
            What changed; every epoch is confirmed or withdrawn after it.
        """
        self._running = None
        return self._analyse(self._next_us, ended=True)

    def shares(self) -> Shares:
        """Idle and stalled share of the run so far, from the remembered ticks and the epochs that stand.

        While every tick is remembered as it was, these are the figures of :func:`time_shares` on the run's ticks.
        """
        ticks = self._history.ticks()
        spans = np.array([(e.start_s, e.end_s) for e in self.epochs if e.stands])
        spans = spans.reshape(-1, 2) - (self._origin_s or 0.0)
        values = dict(zip(ticks.names, ticks.values.astype(np.float64), strict=True))
        return time_shares(np.asarray(ticks.time_us * 1e-6, dtype=np.float64), values, *spans.T)

    def state(self) -> bytes:
        """Serialise the tracker; no pickle. At most about as large as its memory."""
        fields = {
            "metrics": self.metrics,
            "origin_s": self._origin_s,
            "next_us": self._next_us,
            "analysed_us": self._analysed_us,
            "follow_us": self._follow_us,
            "running": None if (run := self._running) is None else [run.since_us, run.rows, run.due_us, run.done],
            "hold": None if self._cached is None else cached_fields(self._cached),
            **self._reported.fields(),
            "latest": None if self._latest is None else detection_fields(self._latest),
            "told": None if self._standing is None else detection_fields(self._standing),
            "rival_s": self._rival_s,
        }
        return pack_state(fields, self._history.to_arrays(), self._marks.to_arrays())

    @classmethod
    def restore(cls, data: bytes) -> EpochTracker:
        """Rebuild a tracker from :meth:`state`.

        Raises:
            ValueError: The bytes are no such state, or one of another version.
        """
        with reading("not a tracker state"):
            fields, history, marks = unpack_state(data)
            tracker = cls(read_as(list[str], fields["metrics"]))
            tracker._history = History.from_arrays(tracker._used, history)
            tracker._marks = MarkHistory.from_arrays(marks)
            tracker._origin_s = read_as(float | None, fields["origin_s"])
            tracker._next_us = read_as(int, fields["next_us"])
            tracker._analysed_us = read_as(int, fields.get("analysed_us", 0))
            tracker._follow_us = read_as(int | None, fields["follow_us"])
            tracker._cached = None if fields["hold"] is None else cached_from(fields["hold"])
            tracker._reported = ReportedEpochs.from_fields(fields)
            tracker._latest = None if fields["latest"] is None else detection_from(fields["latest"])
            tracker._standing = None if fields["told"] is None else detection_from(fields["told"])
            tracker._rival_s = read_as(float, fields["rival_s"])
            tracker._detection = tracker._standing or (untold(tracker._latest) if tracker._latest else None)
            if (running := fields.get("running")) is not None:
                tracker._resume(*read_as(tuple[int, int, int, int], running))
        return tracker

    def _in_order(
        self, times: npt.NDArray[np.float64], columns: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Whole microseconds after the first tick of the run, without the ticks that come late."""
        finite = np.isfinite(times)
        if not finite.all():
            times, columns = times[finite], columns[:, finite]
        if self._origin_s is None and times.size:
            self._origin_s = float(times[0])
        times_us = np.rint((times - (self._origin_s or 0.0)) * 1e6).astype(np.int64)
        last = self._history.last_time_us
        last = -1 if last is None else last
        if times_us.size and times_us[0] > last and (times_us[1:] > times_us[:-1]).all():
            return times_us, columns
        newest = np.maximum.accumulate(np.concatenate([[last], times_us]))
        in_order = times_us > newest[:-1]
        return times_us[in_order], columns[:, in_order]

    def _append(self, times_us: npt.NDArray[np.int64], columns: npt.NDArray[np.float64]) -> list[EpochEvent]:
        """Remember ticks; an analysis of those that will not be remembered as they were is done before."""
        events: list[EpochEvent] = []
        while self._running is not None and not self._history.has_room(times_us.size):
            events += self._step(self._running, self._running.due_us)
        self._remember(times_us, columns)
        return events

    def _rows_in_use(self) -> list[int]:
        """Return the rows of the metrics to look at, and where marks come, too, that of the memory behind them."""
        return [*self._rows, self._memory_row] if self._marks and self._memory_row is not None else self._rows

    def _remember(self, times_us: npt.NDArray[np.int64], columns: npt.NDArray[np.float64]) -> None:
        used = len(self._rows)
        self._history.append(times_us, columns[:used])
        if len(columns) > used:
            time_s = (self._origin_s or 0.0) + times_us.astype(np.float64) * 1e-6
            self._marks.append_memory(time_s, columns[used])

    def _known_marks(self) -> Marks | None:
        """Return the marks so far on the axis of the history."""
        marks = self._marks.marks()
        return None if marks is None else marks.shifted(-(self._origin_s or 0.0))

    def _name_anew(self) -> None:
        """Name what the last look has found by the marks that came since, which are read sooner than the run."""
        marks = self._marks.marks()
        if marks is None or self._latest is None:
            return
        self._latest = name_anew(self._latest, marks)
        if self._standing is not None:
            self._standing = name_anew(self._standing, marks)
        self._detection = self._standing or (untold(self._latest) if self._latest else None)

    def _look(self, now_us: int) -> list[EpochEvent]:
        """Do what is due."""
        if self._running is not None:
            return self._step(self._running, now_us)
        if now_us < self._analysis_us:
            if (events := self._follow(now_us)) is not None:
                return events
            self._follow_us = None
        self._running = self._begin(now_us, len(self._history))
        return []

    def _begin(self, since_us: int, rows: int) -> Look:
        ticks, scope = self._history.ticks(rows), self._scope(since_us)
        steps = look_in_steps(ticks, scope, self._known_marks, self._reported, self._origin_s or 0.0)
        return Look(since_us, rows, steps, since_us)

    def _resume(self, since_us: int, rows: int, due_us: int, done: int) -> None:
        """Begin a look anew that was going on, and do what was done of it."""
        self._running = self._begin(since_us, rows)
        self._running.resume(due_us, done)

    def _step(self, running: Look, now_us: int) -> list[EpochEvent]:
        """Do the next part of a look."""
        answer = running.step(now_us)
        if answer is None:
            return []
        self._running = None
        return self._take(answer, running.since_us, ended=False)

    def _analyse(self, now_us: int, *, ended: bool) -> list[EpochEvent]:
        """Do all of a look at once."""
        ticks, scope = self._history.ticks(), EVERYTHING if ended else self._scope(now_us)
        origin_s = self._origin_s or 0.0
        answer = look_at_once(ticks, scope, self._known_marks(), self._reported, origin_s, ended=ended)
        return self._take(answer, now_us, ended=ended)

    def _take(self, answer: WholeAnswer, since_us: int, *, ended: bool) -> list[EpochEvent]:
        """Take what a look at the ticks up to some time has found."""
        found, cached, held = answer.found, answer.cached, answer.held
        before, before_us = self._latest, self._analysed_us
        self._analysed_us = since_us
        self._next_us = max(round(since_us * _GROWTH), since_us + round(_FIRST_ANALYSIS_S * 1e6))
        self._latest = latest = shifted(found if ended else without_doubtful_end(found), self._origin_s or 0.0)
        if ended:
            latest = self._followed_finer(latest) or latest
            self._standing, self._detection, self._follow_us = latest, latest, None
            return self._reported.reconcile(latest, ended=True, held=held)
        agreed = agrees(latest, before, before_us * 1e-6)
        real = agreed and is_real(latest)
        if is_of_steps(latest, self._standing):
            # What is told is a cycle of the run, and does not measure its progress.
            self._standing, self._cached, self._follow_us, self._rival_s = None, None, None, 0.0
            self._detection = latest = untold(latest)
            return self._reported.reconcile(latest, elsewhere=True)
        told, sure, rival_s = self._standing, real and is_sure(latest), self._rival_s
        self._rival_s = latest.period_s if real else 0.0
        same = told is None or (latest.verdict == Verdict.EPOCHS and alike(told.period_s, latest.period_s))
        if told is not None and not same and not (sure and alike(rival_s, latest.period_s)):
            self._follow_us = None if self._cached is None else self._after(since_us, told.period_s)
            return self._tell(self._go_on(told, latest))
        if told is not None and same:
            self._latest = latest = self._keep_alike(told, latest)
            cached = cached or self._cached  # a level that the tree alone has chosen comes without
        self._cached = cached if told is not None or real else None
        self._follow_us = None if self._cached is None else self._after(since_us, latest.period_s)
        if told is None and not sure:
            self._detection = untold(latest)
            return []
        return self._tell(latest, elsewhere=told is None or not same, held=held)

    def _followed_finer(self, latest: EpochDetection) -> EpochDetection | None:
        """Return the cycles that were told, up to the end, if the last look has others and sees too little of those.

        They were found, and followed one by one, in ticks that are merged by now; and cycles of a few rows beat with
        the rows.
        """
        told, ticks = self._standing, self._history.ticks()
        if told is None or self._cached is None or ticks.merged == 1:
            return None
        coarse_s = CELLS_TO_SEE * 1e-6 * float(np.median(np.diff(ticks.time_us)))
        if told.period_s > coarse_s or (latest.verdict == Verdict.EPOCHS and alike(told.period_s, latest.period_s)):
            return None
        found = self._extend(told, self._cached, _FOLLOWED)
        if found is None:
            return told
        return with_epochs(told, self._keep_alike(told, shifted(found, self._origin_s or 0.0)))

    def _tell(
        self, found: EpochDetection, *, elsewhere: bool = False, held: tuple[Stretch, ...] = ()
    ) -> list[EpochEvent]:
        """Report epochs of a level that is confirmed.

        Args:
            found: With the epochs.
            elsewhere: Whether they are of another level than those before.
            held: Where those before are cycles of the run still.
        """
        self._standing = self._detection = found
        return self._reported.reconcile(found, elsewhere=elsewhere, held=held)

    def _scope(self, now_us: int) -> Scope:
        """What is worth looking for: all periods that there was no time for before, and those that were likely."""
        if self._latest is None:
            return Scope(now_us * 1e-6 / _MOST_CYCLES_AT_FIRST)
        known = self._latest.hypotheses
        cycles = _MOST_CYCLES if self._follow_us is None else _MOST_CYCLES_HELD
        return Scope(now_us * 1e-6 / cycles, tuple(hypothesis.period_s for hypothesis in known))

    def _follow(self, now_us: int) -> list[EpochEvent] | None:
        """Take the known cycle through the new ticks; None where it does not hold, and a look is to say what does."""
        last = self._standing or self._latest
        if last is None or self._cached is None:
            return None
        # The last epochs are enough where they fit to those before them, which stay as they are.
        found = self._extend(last, self._cached, _FOLLOWED) or self._extend(last, self._cached, None)
        whole = None if found is None else shifted(without_doubtful_end(found), self._origin_s or 0.0)
        kept = None if whole is None else self._keep_alike(last, whole)
        if whole is None or kept is None or kept.end_s < whole.end_s:
            origin_s = self._origin_s or 0.0
            looked_s, unseen_s = origin_s + self._analysed_us * 1e-6 - last.end_s, origin_s + now_us * 1e-6 - last.end_s
            # What has gone on otherwise is looked at as what has just begun, and at once where it may be other cycles.
            is_rivalled = self._rival_s > 0 and not alike(self._rival_s, last.period_s)
            if is_rivalled or looked_s < max(_UNSEEN * last.period_s, unseen_s / _GROWTH):
                return None
        self._follow_us = self._after(now_us, last.period_s)
        if kept is None:
            return []
        found = with_epochs(last, kept)
        if self._standing is None:
            self._latest = found
            if not is_sure(found):
                self._detection = untold(found)
                return []
        return self._tell(found)

    def _keep_alike(self, known: EpochDetection, found: EpochDetection) -> EpochDetection:
        """Leave out new epochs that do not look like those before; times are those of the run."""
        origin_s = self._origin_s or 0.0
        return shifted(
            keep_alike(self._history.ticks(), shifted(known, -origin_s), shifted(found, -origin_s)), origin_s
        )

    def _go_on(self, told: EpochDetection, latest: EpochDetection) -> EpochDetection:
        """Return what was told in the tree as it is now, with the cycles that the tree has of it."""
        level = level_of(told.period_s, latest.cycles)
        # It is the best guess with what probability the other one leaves.
        at_most = 1.0 - latest.confidence if latest.verdict == Verdict.EPOCHS else 1.0
        kept = replace(told, confidence=min(told.confidence, at_most), cycles=latest.cycles, level=level)
        if level is None:
            return kept
        cycle = latest.cycles[level]
        starts, whole = cycle.starts_s[:-1], cycle.starts_s.size - 1
        seen = replace(
            kept,
            reason=f"{whole} cycles of {cycle.period_s:.4g} s repeat",
            period_s=cycle.period_s,
            period_low_s=cycle.period_low_s,
            period_high_s=cycle.period_high_s,
            epoch_starts_s=starts,
            epoch_ends_s=cycle.starts_s[1:],
        )
        if whole <= told.epoch_starts_s.size or not _begin_alike(told, seen):
            return kept
        return self._keep_alike(told, seen)

    def _extend(self, last: EpochDetection, cached: CachedMatch, epochs: int | None) -> EpochDetection | None:
        """Take a cycle through the ticks of the last so many epochs, or of all; None if it does not hold."""
        ticks, known = self._history.ticks(), shifted(last, -(self._origin_s or 0.0))
        if epochs is None:
            found = extend_match(ticks, cached, last.hypotheses)
            # Where the cycle is the same but begins elsewhere, a fresh look says which is right.
            if found is not None and not _begin_alike(known, found):
                return None
        elif known.epoch_starts_s.size <= epochs:
            return None
        else:
            first = int(np.searchsorted(ticks.time_us, round(known.epoch_starts_s[-epochs] * 1e6)))
            found = extend_match(ticks.slice(first, len(ticks)), cached, last.hypotheses)
            if found is not None:
                found = append_epochs(known, found, float(np.median(np.diff(ticks.time_us[first:]))) * 1e-6)
        if found is None or abs(found.period_s / last.period_s - 1) > _SAME_PERIOD:
            return None
        return found

    @staticmethod
    def _after(now_us: int, period_s: float) -> int:
        return max(now_us + round(period_s * 1e6), round(now_us * (1 + _FOLLOW)))


def _begin_alike(one: EpochDetection, other: EpochDetection) -> bool:
    """Say whether half of the epochs of a detection also begin in another one."""
    distance = np.abs(one.epoch_starts_s[:, None] - other.epoch_starts_s)
    return bool((distance.min(axis=1, initial=np.inf) <= _SAME_EPOCH * one.period_s).mean() >= _ALIKE)

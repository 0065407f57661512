"""``EpochTracker``: the epochs of a run while it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.analysis import analyse_and_cache, analyse_in_steps, complete, name_anew
from gpusonde.epoch_detect.cycles.candidates import EVERYTHING, Scope
from gpusonde.epoch_detect.cycles.detector import CachedMatch, append_epochs, extend_match, without_doubtful_end
from gpusonde.epoch_detect.cycles.marks import Marks
from gpusonde.epoch_detect.cycles.segments import Pattern
from gpusonde.epoch_detect.cycles.tree import level_of, with_epochs
from gpusonde.epoch_detect.history import CAPACITY, CELLS_TO_SEE, History, pack, unpack
from gpusonde.epoch_detect.mark_history import MarkHistory
from gpusonde.epoch_detect.progress.table import Shares, time_shares
from gpusonde.epoch_detect.reported import (
    EpochEvent,
    EpochStatus,
    ReportedEpochs,
    Stretch,
    TrackedEpoch,
    alike,
    has_level,
)
from gpusonde.epoch_detect.resemblance import keep_alike
from gpusonde.epoch_detect.result import (
    Cycle,
    CycleRole,
    Deviation,
    EpochDetection,
    Hypothesis,
    RunState,
    Verdict,
    shifted,
)
from gpusonde.epoch_detect.ticks import Ticks, choose_metrics

# In a run that goes on, of a period that was not among the likely ones when it was shorter.
_MOST_CYCLES = 10
_MOST_CYCLES_AT_FIRST = 14  # the same at the first look, before which nothing was looked for: periods of 2 s and more
_MOST_CYCLES_HELD = 4  # the same while a confident cycle holds
# What passes between two parts of an analysis, so that no update takes long: of the run, and at least.
_STEP = 0.001
_LEAST_STEP_S = 0.1
_FIRST_ANALYSIS_S = 27.5
# The next analysis comes when the run is this much longer; a cycle that was found is followed in between.
_GROWTH = 2.4
# The same for one who has fallen behind: half of the looks, and as many epochs found, a little later.
_GROWTH_PATIENT = 4.0
_MOST_IN_DOUBT = 2  # stretches that are looked at by themselves
_SAME_STRETCH = 0.9  # of the run: what is not found in it is not found in so much of it
_REAL = 0.9  # confidence that the job has a level from which on it is followed, and told once it is confirmed
_SEEN_BEFORE = 5  # cycles that a look has to have seen to be asked whether it has found them
_LEAST_OF_NESTED = 3  # cycles of a level that has held for two cycles of its parent
_FOLLOWED = 8  # epochs of the end of the run in which a cycle is followed
_FOLLOW = 0.15  # a cycle is followed after a period, at the earliest when the run is this share longer
_UNSEEN = 2  # periods without cycles that a look has seen which need no other look to say that they do not go on
_SAME_PERIOD = 0.15  # by which the period of a followed cycle may differ from the one before
_SAME_EPOCH = 0.15  # periods by which the start of a followed epoch may differ between two looks
_ALIKE = 0.5  # of the epochs of a followed cycle, at least, that stay where they were
_MEMORY = "framebuffer_used_bytes"
_STATE_VERSION = 3
_FORMER_STATE_VERSION = 2


@dataclass(frozen=True)
class _WholeAnswer:
    """What a look has found.

    Attributes:
        found: The answer.
        cached: Its match, to follow.
        held: Where cycles of other levels were reported, and are some.
    """

    found: EpochDetection
    cached: CachedMatch | None
    held: tuple[Stretch, ...] = ()


@dataclass
class _Running:
    """An analysis that is not done yet.

    Attributes:
        since_us: Time of the newest tick that it is of.
        rows: How many rows of the history it looks at.
        steps: What is left to do.
        due_us: When the next step is to be done.
        done: How many steps are done.
    """

    since_us: int
    rows: int
    steps: Generator[None, None, _WholeAnswer]
    due_us: int
    done: int = 0


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
        self._running: _Running | None = None
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
        meta = {
            "version": _STATE_VERSION,
            "metrics": self.metrics,
            "origin_s": self._origin_s,
            "next_us": self._next_us,
            "analysed_us": self._analysed_us,
            "follow_us": self._follow_us,
            "running": None if (run := self._running) is None else [run.since_us, run.rows, run.due_us, run.done],
            "hold": None if self._cached is None else _cached_fields(self._cached),
            **self._reported.fields(),
            "latest": None if self._latest is None else _detection_fields(self._latest),
            "told": None if self._standing is None else _detection_fields(self._standing),
            "rival_s": self._rival_s,
        }
        arrays = {f"history_{name}": array for name, array in self._history.to_arrays().items()}
        arrays |= {f"marks_{name}": array for name, array in self._marks.to_arrays().items()}
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        return pack(arrays)

    @classmethod
    def restore(cls, data: bytes) -> EpochTracker:
        """Rebuild a tracker from :meth:`state`.

        Raises:
            ValueError: The bytes are no such state, or one of another version.
        """
        arrays = unpack(data)
        try:
            meta = json.loads(arrays["meta"].tobytes())
            if meta["version"] == _FORMER_STATE_VERSION:
                meta = _from_former(meta)
            if meta["version"] != _STATE_VERSION:
                raise ValueError(f"tracker state of version {meta['version']}; this release reads {_STATE_VERSION}")
            tracker = cls(meta["metrics"])
            history = {k.removeprefix("history_"): v for k, v in arrays.items() if k != "meta"}
            tracker._history = History.from_arrays(tracker._used, history)
            # A release that knew no marks has none in its states.
            marks = {k.removeprefix("marks_"): v for k, v in arrays.items() if k.startswith("marks_")}
            tracker._marks = MarkHistory.from_arrays(marks)
            tracker._origin_s = meta["origin_s"]
            tracker._next_us = int(meta["next_us"])
            tracker._analysed_us = int(meta.get("analysed_us", 0))
            tracker._follow_us = meta["follow_us"]
            tracker._cached = None if meta["hold"] is None else _cached_from(meta["hold"])
            tracker._reported = ReportedEpochs.from_fields(meta)
            tracker._latest = None if meta["latest"] is None else _detection_from(meta["latest"])
            tracker._standing = None if meta["told"] is None else _detection_from(meta["told"])
            tracker._rival_s = float(meta["rival_s"])
            tracker._detection = tracker._standing or (_untold(tracker._latest) if tracker._latest else None)
            if (running := meta.get("running")) is not None:
                tracker._resume(*map(int, running))
        except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"not a tracker state ({error!r:.200}); start the run's tracking anew") from error
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
        self._detection = self._standing or (_untold(self._latest) if self._latest else None)

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

    def _begin(self, since_us: int, rows: int) -> _Running:
        return _Running(since_us, rows, self._analyse_in_steps(self._history.ticks(rows), since_us), since_us)

    def _analyse_in_steps(self, ticks: Ticks, since_us: int) -> Generator[None, None, _WholeAnswer]:
        found, cached = yield from analyse_in_steps(
            ticks, ended=False, marks=self._known_marks, scope=self._scope(since_us)
        )
        held = yield from self._find_held(ticks, found)
        return _WholeAnswer(found, cached, held)

    def _find_held(self, ticks: Ticks, found: EpochDetection) -> Generator[None, None, tuple[Stretch, ...]]:
        """Find where cycles were reported that an answer does not have, and that their own part of the run does have.

        An analysis of all of a run knows one tempo; where that has changed, what was told before is asked of the ticks
        it was told of.
        """
        origin_s, whole_us = self._origin_s or 0.0, int(ticks.time_us[-1]) if len(ticks) else 0
        held = []
        for stretch in self._reported.in_doubt(shifted(found, origin_s))[:_MOST_IN_DOUBT]:
            edges_us = (np.array([stretch.start_s, stretch.end_s]) - origin_s) * 1e6
            if edges_us[1] - edges_us[0] > _SAME_STRETCH * whole_us:
                continue
            first, stop = np.searchsorted(ticks.time_us, edges_us)
            alone, _ = yield from analyse_in_steps(
                ticks.slice(int(first), int(stop)), ended=False, scope=Scope(math.inf, (stretch.period_s,))
            )
            if has_level(alone, stretch.period_s):
                held.append(stretch)
        return tuple(held)

    def _resume(self, since_us: int, rows: int, due_us: int, done: int) -> None:
        """Begin an analysis anew that was going on, and do what was done of it."""
        self._running = running = self._begin(since_us, rows)
        running.due_us = due_us
        for running.done in range(1, done + 1):
            if next(running.steps, running) is running:
                raise ValueError(f"an analysis of fewer than {done} steps; start the run's tracking anew")

    def _step(self, running: _Running, now_us: int) -> list[EpochEvent]:
        """Do the next part of an analysis."""
        try:
            next(running.steps)
        except StopIteration as end:
            self._running = None
            return self._take(end.value, running.since_us, ended=False)
        running.done += 1
        running.due_us = now_us + max(round(_STEP * running.since_us), round(_LEAST_STEP_S * 1e6))
        return []

    def _analyse(self, now_us: int, *, ended: bool) -> list[EpochEvent]:
        """Do all of an analysis at once."""
        found, cached = analyse_and_cache(
            self._history.ticks(),
            ended=ended,
            marks=self._known_marks(),
            scope=EVERYTHING if ended else self._scope(now_us),
        )
        held = complete(self._find_held(self._history.ticks(), found))
        return self._take(_WholeAnswer(found, cached, held), now_us, ended=ended)

    def _take(self, answer: _WholeAnswer, since_us: int, *, ended: bool) -> list[EpochEvent]:
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
        agreed = _agrees(latest, before, before_us * 1e-6)
        real = agreed and _is_real(latest)
        if _is_of_steps(latest, self._standing):
            # What is told is a cycle of the run, and does not measure its progress.
            self._standing, self._cached, self._follow_us, self._rival_s = None, None, None, 0.0
            self._detection = latest = _untold(latest)
            return self._reported.reconcile(latest, elsewhere=True)
        told, sure, rival_s = self._standing, real and _is_sure(latest), self._rival_s
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
            self._detection = _untold(latest)
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
            if not _is_sure(found):
                self._detection = _untold(found)
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


def _is_real(found: EpochDetection) -> bool:
    """Say whether what a look at a run that goes on gives as epochs are cycles of a training, and not its steps.

    Those are told by the tree: thousands of them are no epochs, and what ticks see of short ones may be a beat.
    """
    if found.level is None or found.verdict != Verdict.EPOCHS or found.run_state not in (None, RunState.TRAINING):
        return False
    level = found.cycles[found.level]
    return level.confidence >= _REAL and level.role is not CycleRole.STEP


def _is_of_steps(found: EpochDetection, told: EpochDetection | None) -> bool:
    """Say whether a look calls the level that is told that of the steps."""
    if told is None or found.level is None or found.verdict != Verdict.EPOCHS:
        return False
    return alike(told.period_s, found.period_s) and found.cycles[found.level].role is CycleRole.STEP


def _agrees(latest: EpochDetection, before: EpochDetection | None, before_s: float) -> bool:
    """Say whether the look before one has the level that it tells, too, if it could see enough cycles of that."""
    if before_s < _SEEN_BEFORE * latest.period_s:
        return True
    return before is not None and has_level(before, latest.period_s)


def _is_sure(found: EpochDetection) -> bool:
    """Say whether the epochs of a run that goes on may be told: cycles of the job, and of a level that is confirmed."""
    if not _is_real(found) or found.level is None:
        return False
    return found.cycles[found.level].confirmed and found.epoch_starts_s.size >= _LEAST_OF_NESTED


def _untold(found: EpochDetection) -> EpochDetection:
    """Return what is told of an analysis whose epochs are not told yet."""
    if found.verdict != Verdict.EPOCHS:
        return found
    return replace(
        found,
        verdict=Verdict.NONE,
        reason=f"{found.reason}; not confirmed yet",
        period_s=np.nan,
        period_low_s=np.nan,
        period_high_s=np.nan,
        confidence=0.0,
        epoch_starts_s=np.empty(0),
        epoch_ends_s=np.empty(0),
        level=None,
    )


def _begin_alike(one: EpochDetection, other: EpochDetection) -> bool:
    """Say whether half of the epochs of a detection also begin in another one."""
    distance = np.abs(one.epoch_starts_s[:, None] - other.epoch_starts_s)
    return bool((distance.min(axis=1, initial=np.inf) <= _SAME_EPOCH * one.period_s).mean() >= _ALIKE)


def _from_former(meta: dict[str, Any]) -> dict[str, Any]:
    """Read the state of a release that reported epochs before their level was confirmed, and knew no tree."""
    found = meta["detection"]
    return {
        **meta,
        "version": _STATE_VERSION,
        "running": None,  # its steps were others; the analysis begins anew
        "entries": [[*row[:4], str(EpochStatus.CONFIRMED), row[5], row[7]] for row in meta["entries"]],
        "latest": found,
        "told": found if meta["entries"] and found is not None and found["verdict"] == Verdict.EPOCHS else None,
        "rival_s": 0.0,
    }


def _detection_fields(found: EpochDetection) -> dict[str, object]:
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return {
        **fields,
        "verdict": str(found.verdict),
        "run_state": None if found.run_state is None else str(found.run_state),
        "epoch_starts_s": found.epoch_starts_s.tolist(),
        "epoch_ends_s": found.epoch_ends_s.tolist(),
        "cycles": [{**vars(c), "starts_s": c.starts_s.tolist(), "role": str(c.role)} for c in found.cycles],
        "hypotheses": [[h.period_s, h.cycles, h.score] for h in found.hypotheses],
        "deviations": [[d.gpu, d.kind, d.amount] for d in found.deviations],
    }


# The keys of a stored state stay, whatever the attributes are called.
def _cached_fields(cached: CachedMatch) -> dict[str, Any]:
    pattern, *others = ({**vars(p), "template": p.template.tolist()} for p in (cached.pattern, *cached.others))
    return {
        "cut": cached.gap_removal,
        "rows": cached.rows,
        "pattern": pattern,
        "others": others,
        "agreement": cached.agreement,
        "confidence": cached.confidence,
    }


def _cached_from(fields: dict[str, Any]) -> CachedMatch:
    stored = [fields["pattern"], *fields["others"]]
    pattern, *others = (Pattern(**{**p, "template": np.array(p["template"])}) for p in stored)
    return CachedMatch(
        gap_removal=int(fields["cut"]),
        rows=tuple(fields["rows"]),
        pattern=pattern,
        others=tuple(others),
        agreement=float(fields["agreement"]),
        confidence=float(fields["confidence"]),
    )


def _detection_from(fields: dict[str, Any]) -> EpochDetection:
    arrays = {name: np.array(fields[name], dtype=np.float64) for name in ("epoch_starts_s", "epoch_ends_s")}
    hypotheses = tuple(Hypothesis(*row) for row in fields["hypotheses"])
    deviations = tuple(Deviation(*row) for row in fields.get("deviations", ()))
    texts = {"metrics": tuple(fields["metrics"]), "warnings": tuple(fields["warnings"])}
    cycles = tuple(_cycle_from(each) for each in fields.get("cycles", ()))
    run_state = fields.get("run_state") and RunState(fields["run_state"])
    parts = {"cycles": cycles, "hypotheses": hypotheses, "deviations": deviations, "run_state": run_state}
    return EpochDetection(**{**fields, **arrays, **texts, **parts})


def _cycle_from(fields: dict[str, Any]) -> Cycle:
    starts_s = np.array(fields["starts_s"], dtype=np.float64)
    return Cycle(**{**fields, "starts_s": starts_s, "role": CycleRole(fields["role"])})

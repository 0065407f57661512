"""``StateWatch``: what a job does now, in one line with its reason, from the ticks of its GPUs as they come.

The level of the load (power where it is given, the use of the GPU else) says whether the job works or pauses, within
its own range. What kind of work and of pause it is comes from further witnesses, each with its own word: the tracked
cycles, what the processes of the job write and compute, PCIe, utilisation without power. A pause is measured against
those that the job came back from, and from the last sign that it works on. What none of them tells is ``unknown``, and
silence of the metrics is never taken for idleness.
"""

from __future__ import annotations

import functools
import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpusonde.epoch_detect.progress.load import IDLES, WORKS, LoadRange, TrainingLevel, Work
from gpusonde.epoch_detect.progress.pauses import Pause, PauseMemory
from gpusonde.epoch_detect.progress.processes import Processes
from gpusonde.epoch_detect.progress.seconds import STATE_METRICS, JobSecond, stops_of_seconds
from gpusonde.epoch_detect.progress.spans import JobState, StateSpan, StateSpans, Word
from gpusonde.epoch_detect.progress.tracked_cycles import SURE_RUN, TrackedCycles
from gpusonde.epoch_detect.result import CycleRole, EpochDetection, RunState
from gpusonde.epoch_detect.stored import DamagedStateError, check, read_as, reading
from gpusonde.formatting import percent
from gpusonde.telemetry import FloatArray

_VERSION = 3
_MOST_GPUS = 1 << 20  # of a stored watch
_CELL_S = 1.0  # ticks that lie closer are averaged
_LOOK_AHEAD = 3  # cells between a tick and the last word on it
_AROUND = 2  # cells on either side that a cell is smoothed over
_BEGINS = 3  # cells that a change of work and pause is smoothed over
_FEW_STEPS = 5  # from cell to cell, whose median is the usual one

_SHORT_WORK_S = 8.0  # of which nothing is known yet
_LONGER_THAN_STEPS_S, _PERIODS_OF_DIP = 20.0, 1.5  # of cycles that hold their evaluations: those last no longer
_LEAST_WORK_S = 24.0  # of even work, for a pause to be one of a job that trains
# Of even work, of a run that seems to train, with one pause and with two: most commands of a person take less.
_TRAINED_S = (60.0, 40.0)
_WORK_SHARE = 0.35  # of the time since the job began, likewise
_MOVES = 0.08  # change from cell to cell, relative, that is more than noise of a GPU that waits

_COPIES = 5e7  # bytes per second over PCIe, of a GPU that is not in use otherwise
_MOST_OF_IT = 0.8  # of the looks into a pause, by which processes rest, too
_SETTLED_S = 2.0  # of pause, in which a look still sees the work before it
_CLOSES_S = 60.0  # at most, from the last work to the end
_LOST_S = 5.0  # of pause, after which a lost process is a hang
_RELEASED = 0.15  # of the memory that it held: the job has let go of its GPUs
_DEAD_METER = 0.5  # of the power of an idle GPU
_NO_TICKS_S, _MISSED = 10.0, 2.5  # of silence, or so many times the usual distance of ticks, where that is more
_UNUSED_S = 600.0  # from the first tick, after which a job that has not begun is idle
_SURE_SLOWER = 0.8
_CYCLES_BEFORE = 8  # of the job itself, that others are longer than
_A_QUEUE = 2  # programs of a job, one after the other
_FOLLOWS_S = 60.0  # from the end of a training to the beginning of the next one of the same search, at most
_REBORN = 2.0  # times the lowest load: one who had ended works
# What a job is taken for that rests while it saves, until that is known.
_MAY_SAVE = frozenset({JobState.IDLE, JobState.UNKNOWN})


class StateWatch:
    """Says what a job does, from second to second.

    The last word on a tick is spoken three seconds after it (three ticks, where they come less often): :attr:`spans`.
    :attr:`report` is the newest of them, or an alarm, which does not wait. Memory is bounded, and the work for a tick
    does not depend on how long the job runs.

    Args:
        gpus: GPUs of the job, or nodes where only those are metered.
        idle_watts: Power of one of them that idles, as it is known from before the job. Without it a job that is seen
            from its middle on is not known to work until its load has changed, or its use is given.
    """

    def __init__(self, gpus: int, *, idle_watts: float = math.inf) -> None:
        self.gpus = gpus
        self._idle_watts = idle_watts
        self._last_s = math.nan
        self._cell_s, self._steps_s = _CELL_S, list[float]()
        self._ended = ""
        self._ended_s = self._begun_s = -math.inf  # the latter of another job on its GPUs
        self._programs = 0  # of it that have ended
        self._slower = ""
        self._noted: EpochDetection | None = None
        self._spans = StateSpans()
        self._recent: deque[tuple[JobSecond, float]] = deque(maxlen=_LOOK_AHEAD + _AROUND + 1)  # with their loads
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the job."""
        self._by_power: bool | None = None  # whether power is its load; None before the first value
        self._held_bytes = 0.0
        self._first_s = math.nan
        self._recent.clear()
        self._range = LoadRange(self._idle_watts)
        self._level = TrainingLevel()
        self._work = Work()
        self._pause: Pause | None = None
        self._pauses = PauseMemory()
        self._cycles, self._processes = TrackedCycles(), Processes()

    # What comes in.

    def note_detection(self, detection: EpochDetection) -> None:
        """Take what the tracker says of the job now; the same answer again says nothing new.

        Args:
            detection: On the time axis of the ticks.
        """
        if detection is self._noted:
            return
        self._noted = detection
        self._cycles = self._cycles.then(detection, self._first_s, self._work)

    def note_marks(
        self,
        time_s: float,
        *,
        written_bytes_per_s: float = math.nan,
        processors: float = math.nan,
        processes: int | None = None,
    ) -> None:
        """Take what the job's processes did since the look before; what comes late is told of the time it was seen at.

        Args:
            time_s: When somebody looked, on the time axis of the ticks; it may lie behind them.
            written_bytes_per_s: Bytes that they wrote; NaN where nobody may know.
            processors: Seconds of processor time per second.
            processes: How many are alive that hold its GPUs; None where nobody knows.
        """
        if processes and self._ended and time_s > self._ended_s:
            self._programs += 1
            self._begin_anew(time_s)
        known, pause = self._processes, self._pause
        works = self._range.has_begun and (pause is None or time_s < pause.begin_s)
        are_gone = known.note(time_s, written_bytes_per_s, processors, processes, works=works)
        if are_gone and not self._ended:
            self._end(time_s, "no process of the job is left")
        if pause is not None and time_s >= pause.begin_s + _SETTLED_S:
            pause.looks += 1
            pause.rested += known.rest
            pause.wrote |= known.write
        if known.write and time_s < self._last_s:
            reason = f"{written_bytes_per_s / 1e6:.0f} MB/s are written while its GPUs rest"
            self._spans.rename(_MAY_SAVE, (JobState.CHECKPOINTING, reason, 0.9), time_s - _CELL_S, time_s)

    def note_slower(self, reason: str, since_s: float = math.inf) -> None:
        """Say ``slower`` in the place of ``training`` from now on; with an empty reason, no more.

        Args:
            reason: From what to what.
            since_s: Since when, on the time axis of the ticks: what was called ``training`` since then was not.
        """
        own_s = self._begun_s + _CYCLES_BEFORE * self._cycles.period_s
        if math.isfinite(self._begun_s) and not since_s > own_s:
            reason = ""  # than the job that was on its GPUs before
        if reason and not self._slower:
            word = (JobState.SLOWER, reason, _SURE_SLOWER)
            last = self._spans.last
            begin_s = last.start_s if last and last.state == JobState.EVALUATING else -math.inf
            if not begin_s > since_s + self._cycles.period_s:
                self._level.forget()  # longer cycles draw another power, and beat with the seconds otherwise
                # What has drawn less since about when its cycles take longer does not evaluate.
                if math.isfinite(begin_s):
                    self._spans.rename({JobState.EVALUATING}, word, begin_s, math.inf)
            self._spans.rename({JobState.TRAINING}, word, since_s, math.inf)
        self._slower = reason

    def update(self, time_s: FloatArray, values: Mapping[str, FloatArray], highest: FloatArray | None = None) -> None:
        """Take new ticks of all GPUs, a second's together or as they come.

        Args:
            time_s: Shape (n,), increasing, behind those before.
            values: Metric -> shape (gpus, n), NaN where there is no value. Those that are used are power, the first
                known of SM activity, graphics activity and utilisation, tensor and memory activity, PCIe traffic and
                memory in use.
            highest: Shape (gpus, n), where ticks are means: the highest power in each, or the highest of the metric of
                use where power is not given.

        Raises:
            ValueError: The shapes do not fit.
        """
        for column in values.values():
            if column.shape != (self.gpus, time_s.size):
                raise ValueError(f"expected values of shape {(self.gpus, time_s.size)}, got {column.shape}")
        metrics = [name for name in STATE_METRICS if name in values]
        rows = np.array([values[name] for name in metrics]).reshape(len(metrics), self.gpus, time_s.size)
        times = time_s.tolist()
        stops = stops_of_seconds(times)
        least_watts = _DEAD_METER * self._idle_watts if math.isfinite(self._idle_watts) else 0.0
        for i, second in enumerate(JobSecond.measure(times, stops, metrics, rows, least_watts, highest)):
            if self._pause is not None and stops[i + 1] - stops[i] > 1:
                second.note_swing(metrics, rows[..., stops[i] : stops[i + 1]])
            self._take(second)

    @property
    def _longest_silence_s(self) -> float:
        return max(_NO_TICKS_S, _MISSED * self._cell_s)

    # What goes out.

    @property
    def spans(self) -> tuple[StateSpan, ...]:
        """The newest stretches, at most 64, the last of them going on."""
        return self._spans.all

    @property
    def report(self) -> StateSpan:
        """What the job does now."""
        if (last := self._spans.last) is None:
            return StateSpan(JobState.UNKNOWN, self._last_s, self._last_s, "no metric of its GPUs has come yet", 0.0)
        return last

    def report_at(self, now_s: float) -> StateSpan:
        """What the job does at a time at which no tick need have come: without ticks it is unknown.

        Args:
            now_s: On the time axis of the ticks.
        """
        silent_s = now_s - self._last_s
        if silent_s <= self._longest_silence_s or self._ended:
            return self.report
        reason = f"no metric of its GPUs for {silent_s:.0f} s; before that: {self.report.state}"
        return StateSpan(JobState.UNKNOWN, self._last_s, now_s, reason, 0.0)

    # A second.

    def _take(self, second: JobSecond) -> None:
        time_s = second.time_s
        step_s = time_s - self._last_s
        if math.isnan(self._first_s):
            self._first_s = time_s
        if step_s > 0:
            self._steps_s = [*self._steps_s[1 - _FEW_STEPS :], step_s]
            # The lower one of two: a gap is not what is usual.
            self._cell_s = max(sorted(self._steps_s)[(len(self._steps_s) - 1) // 2], _CELL_S)
        if step_s > self._longest_silence_s:
            self._add((JobState.UNKNOWN, f"no metric of its GPUs for {step_s:.0f} s", 0.0), self._last_s)
            self._recent.clear()
            self._forget_pause(self._last_s)
        self._last_s = time_s
        self._note_memory(second)
        if self._by_power is None and not (math.isnan(second.watts) and math.isnan(second.use)):
            self._by_power = not math.isnan(second.watts)
        load = second.watts if self._by_power else second.use
        if math.isnan(load):
            self._add((JobState.UNKNOWN, "its GPUs give no metric that tells whether they work", 0.0), time_s)
            return
        if self._ended:
            if self._processes.alive == 0 or self._held_bytes or load < _REBORN * max(self._range.high, 1e-3):
                self._spans.extend(time_s)
                return
            self._begin_anew(time_s)
        self._recent.append((second, load))
        loads = [each for _, each in self._recent]
        middle = _median(loads[-2 * _AROUND - 1 :]) if len(loads) >= _BEGINS else math.nan
        cyclic = self._cycles.cyclic
        self._range.add(load, middle, second.use, self._cell_s, cyclic=cyclic, trains=self._cycles.likely_train)
        if self._range.has_begun:
            self._follow_pause(second, load, _median(loads[-_BEGINS:]))
        if len(self._recent) > _LOOK_AHEAD:
            self._decide(loads)
        if self._pause is not None and not self._ended:
            self._alarm(self._pause, second)

    def _note_memory(self, second: JobSecond) -> None:
        held = second.held_bytes
        if math.isnan(held):
            return
        if self._ended:
            if self._held_bytes and held > 2 * _RELEASED * self._held_bytes:
                self._begin_anew(second.time_s)
        elif self._range.has_begun and held < _RELEASED * self._held_bytes:
            self._end(second.time_s, f"its GPUs have let go of {percent(1 - held / self._held_bytes)} of their memory")
            return
        self._held_bytes = max(self._held_bytes, held)

    # Work and pauses.

    def _follow_pause(self, second: JobSecond, load: float, middle: float) -> None:
        time_s, work, pause = second.time_s, self._work, self._pause
        if self._range.share(middle) > WORKS and not self._only_waits():
            if pause is not None:
                quiet_s = max(pause.longest_quiet_s, time_s - pause.sign_s)
                self._pauses.add(pause.begin_s, quiet_s, rested=pause.rested > _MOST_OF_IT * pause.looks)
                self._pauses.note_load(pause, time_s, self._range.width)
                self._pause = None
            if pause is not None or math.isnan(work.since_s):
                work.begin(time_s, load)
            work.add(load, self._range.floor, self._cell_s, computes=second.computes, of_some=second.of_some)
            return
        if pause is None:
            begin_s = time_s - min(1, len(self._recent) - 1) * self._cell_s
            pause = self._pause = Pause(begin_s, begin_s, trained=self._cycles.training_confidence)
        known = self._processes.at(time_s, pause.begin_s + _SETTLED_S)
        pause.copied |= second.bus > _COPIES
        rough = self._range.share(pause.mean) > 2 * IDLES and pause.is_rough and not second.waits
        works_on = rough or self._works_on(second, load, pause, known)
        if works_on:
            self._pauses.note_load(pause, time_s, self._range.width)
            pause.trained = max(pause.trained, self._cycles.training_confidence)
        pause.add(time_s, load, middle, second.swing, works_on=works_on)
        pause.spinning = second.spinning
        pause.longest_s = self._pauses.longest_at(middle, self._range.width)
        if self._pauses.are_long(pause.longest_s):
            pause.usual_s = time_s
        cycles = self._cycles
        # What is shorter than half a cycle may be the evaluation in it, and a hang behind that is to be seen.
        rough &= not (cycles.cyclic and time_s - pause.begin_s < 0.5 * cycles.period_s)
        cycles_on = cycles.last_start_s > pause.begin_s + 0.5 * cycles.period_s and (
            # Cycles that are found in a load that does not move are found in its noise.
            second.is_partly_used or (not second.waits and pause.shows_cycles(cycles.shortest_s / self._cell_s))
        )
        if rough or cycles_on:
            # A lower level, but work: it moves as work does, or the cycles go on in it.
            self._range.lower_to(pause.mean)
            self._level.forget()
            self._forget_pause(time_s)
            work.since_s = math.nan

    def _only_waits(self, behind: int = 0) -> bool:
        """Whether all GPUs have been in kernels that compute nothing for two seconds, in a job that computes.

        They may draw as much as light work does. Who works in kernels too small for these metrics is not asked.

        Args:
            behind: The newest seconds, that are left out.
        """
        recent = self._recent
        if len(recent) < 2 + behind or not recent[-1 - behind][0].waits or not recent[-2 - behind][0].waits:
            return False
        return self._work.mostly_computes

    def _forget_pause(self, time_s: float) -> None:
        """Go on as if there had been no pause; if an alarm was raised, it was none: wait longer next time."""
        if (pause := self._pause) is not None and pause.alarm:
            self._pauses.add(pause.begin_s, max(pause.longest_quiet_s, time_s - pause.sign_s), rested=False)
            self._pauses.note_load(pause, time_s, self._range.width)
        self._pause = None

    def _works_on(self, second: JobSecond, load: float, pause: Pause, known: Processes) -> bool:
        """Whether something says that the job works on, though its load is low."""
        if known.write or second.bus > _COPIES or second.computes or second.is_partly_used:
            return True
        # A load above that of an idle GPU that changes as that of one who waits does not.
        moves = abs(load - pause.last) > _MOVES * pause.last and self._range.share(max(load, pause.last)) > 2 * IDLES
        if pause.cells and (second.spinning != pause.spinning or moves):
            return True
        return known.compute_as_usual and not self._waits(second, pause)

    def _waits(self, second: JobSecond, pause: Pause) -> bool:
        """Whether GPUs are in a kernel, or draw as much: then processors that work may only ask whether it is done."""
        if second.gpus:
            return second.spinning > 0
        # Not by the last one alone: what a node draws scatters by as much as a kernel that waits draws.
        return pause.cells > 0 and self._range.is_above_idle(pause.latest_mean)

    @property
    def _trains(self) -> bool:
        """Whether it is a job that makes progress in cycles, or looks like one while they are not known."""
        pause, work = self._pause, self._work
        # A trial that has hardly begun loads its data, whatever those before it did.
        if pause is None or (work.earlier_s and work.own_s < _SHORT_WORK_S and not self._only_waits()):
            return False
        if self._cycles.cyclic or self._cycles.surely_train(work.seconds):
            return True
        # Of one of many programs, whose GPUs' use is not known, another level is as likely another part of its work.
        is_in_queue = self._programs >= _A_QUEUE and not self._recent[-1][0].gpus
        if is_in_queue and self._range.is_above_idle(pause.latest_mean):
            return False
        kind = self._kind_of_run
        if kind in (RunState.SERVING, RunState.IDLE):
            return False
        if self._only_waits():
            return True
        if kind == RunState.OTHER and not self._pauses.are_alike:
            return False
        if (work.seconds if pause.trained >= SURE_RUN else work.even_s) < _LEAST_WORK_S:
            return False
        return work.seconds > _WORK_SHARE * (pause.begin_s - work.first_s)

    @property
    def _kind_of_run(self) -> str:
        return self._cycles.kind_of_run(self._work.seconds)

    def _alarm(self, pause: Pause, second: JobSecond) -> None:
        now_s = second.time_s
        known = self._processes.at(now_s, pause.begin_s + _SETTLED_S)
        period_s = self._cycles.period_s if self._cycles.cyclic else math.nan
        # One GPU, at rest, whose processes rest as far as they are known: only its pauses and its work before tell a
        # program from a person.
        # What has not paused yet may be somebody's first try.
        has_trained = self._pauses.count > 0 and self._work.even_s > _TRAINED_S[min(self._pauses.count, 2) - 1]
        has_trained &= max(pause.trained, self._cycles.training_confidence) >= SURE_RUN
        has_trained &= self._cycles.are_of_now(self._work.seconds)
        as_programs = pause.trained > 0 and (self._pauses.are_even or (has_trained and not self._pauses.is_uneven))
        as_programs |= self._pauses.are_alike
        may_think = second.gpus == second.unused == self.gpus == 1 and not known.compute and not as_programs
        trains = self._cycles.surely_train(self._work.seconds) or self._only_waits()
        # Nor does anybody think while GPUs of a training are in use, or draw more than idle ones if that is not known.
        rests = 0 < second.gpus == second.unused or not self._range.is_above_idle(pause.latest_mean)
        trains |= pause.trained > 0 and not rests
        patience_s = functools.partial(self._pauses.patience_s, period_s=period_s, may_think=may_think, trains=trains)
        lasts = now_s - pause.sign_s > patience_s() or (known.lost > 0 and now_s - pause.begin_s > _LOST_S)
        if pause.usual_s < now_s and (self._cycles.cyclic or pause.trained > 0):
            # Checkpoints of a training rest at their load, evaluations at theirs: what rests at another is neither.
            lasts |= now_s - max(pause.sign_s, pause.usual_s) > patience_s(longest_s=pause.longest_s)
        if not lasts or not self._trains:
            return
        evidence = pause.signs_of_hang(second, known, waits=self._waits(second, pause))
        state = JobState.HUNG if evidence or pause.alarm == JobState.HUNG else JobState.STALLED
        pause.alarm = state.value
        evidence = evidence or "nothing tells it from a checkpoint: no bytes written, PCIe or processor time known"
        quiet_s = now_s - pause.sign_s
        share = max(self._range.share(pause.mean), 0.0)
        cycles = f", {quiet_s / self._cycles.period_s:.1f} of its cycles" if self._cycles.cyclic else ""
        longest = f"the longest of {self._pauses.count} pauses before took {self._pauses.longest_s:.0f} s"
        before = longest if self._pauses.count else "it had no pause before"
        reason = f"the load is at {percent(share)} of its range for {quiet_s:.0f} s{cycles}; {before}; {evidence}"
        self._spans.replace_from(pause.begin_s, (state, reason, 0.9 if state == JobState.HUNG else 0.6), now_s)

    # The last word on a second.

    def _decide(self, loads: Sequence[float]) -> None:
        """Name the second that lies three behind the newest."""
        at = len(loads) - 1 - _LOOK_AHEAD
        second = self._recent[at][0]
        around = slice(max(0, at - _AROUND), at + _AROUND + 1)
        smooth = _median(loads[around])
        share = self._range.share(smooth)
        # A gap in a step may take a second, but has the highest ticks on either side of it.
        before, peak, after = [self._recent[i][0].crest * loads[i] for i in (max(at - 1, 0), at, at + 1)]
        peak = min(max(before, peak), max(peak, after))
        only_waits = self._only_waits(behind=_LOOK_AHEAD - 1)
        trains = self._cycles.cyclic or self._cycles.likely_train
        if not self._range.has_begun or second.time_s < self._work.first_s - 0.5 * self._cell_s:
            word = self._before(second)
        elif trains and self._kind_of_run in ("", RunState.TRAINING) and self._pauses.are_of_steps(second.time_s):
            word = self._in_steps()
        elif not only_waits and (share > WORKS or (share > IDLES and self._level.is_of_steps(peak))):
            word = self._at_work(second.time_s, loads, at, smooth, peak)
        else:
            # As the load: a second of use, or one between work and rest, does not make an evaluation of a rest.
            rests = _median([0 < each.gpus == each.unused for each, _ in list(self._recent)[around]])
            # The second in which work ends is in use for a part of it.
            spins = all(0 < each.gpus == each.spinning for each, _ in list(self._recent)[at : at + 2])
            # A rest may be too short for the median, and the seconds in which the load falls to one and leaves it
            # belong to it.
            before, own, after = map(self._range.share, (loads[max(at - 1, 0)], *loads[at : at + 2]))
            lowest = min(share, own, after, before if after > WORKS else share)
            share = lowest if lowest < IDLES else share
            word = self._at_rest(second, share, at_rest=bool(rests), spins=spins, only_waits=only_waits)
        self._add(word, second.time_s)

    def _before(self, second: JobSecond) -> Word:
        if second.gpus and second.unused == second.gpus and second.time_s - self._first_s > _UNUSED_S:
            return JobState.IDLE, "its GPUs have done nothing since it got them", 0.8
        return JobState.STARTING, "its GPUs have not begun to work", 0.8

    def _at_work(self, time_s: float, loads: Sequence[float], at: int, smooth: float, peak: float) -> Word:
        cycles, kind = self._cycles, self._kind_of_run
        if kind == RunState.SERVING:
            return JobState.SERVING, "its load comes and goes as requests do", cycles.run_confidence
        if kind == RunState.IDLE:
            return JobState.IDLE, "nothing but short bursts", cycles.run_confidence
        if kind == RunState.OTHER:
            return JobState.UNKNOWN, "it works, but not in the cycles of a training", cycles.run_confidence
        holds_evaluations = cycles.cyclic and cycles.role != CycleRole.STEP and cycles.period_s > _LONGER_THAN_STEPS_S
        longest_s = _PERIODS_OF_DIP * cycles.period_s if holds_evaluations else math.inf
        after, mean = loads[at + 1 : at + 1 + _AROUND], sum(loads) / len(loads)
        depth = self._level.depth(time_s, loads[at], smooth, mean, after, peak, longest_s)
        # A part of the second in which the load falls to a rest is one, too.
        falls = self._range.share(after[0]) < IDLES and self.report.state != JobState.EVALUATING
        if depth and not falls:
            return JobState.EVALUATING, f"the load is {percent(depth)} below that of its training", 0.7
        if self._slower:
            return JobState.SLOWER, self._slower, _SURE_SLOWER
        if cycles.cyclic and math.isfinite(cycles.period_s):
            role = f" ({cycles.role})" if cycles.role else ""
            return JobState.TRAINING, f"works in cycles of {cycles.period_s:.3g} s{role}", 0.95
        return JobState.TRAINING, "works at the level of its training; no cycle is sure yet", 0.75

    def _in_steps(self) -> Word:
        """What is said of a job that pauses in every step: neither its work nor its rest is a state of its own."""
        if self._slower:
            return JobState.SLOWER, self._slower, _SURE_SLOWER
        reason = f"works in steps, and pauses in them: once in {self._pauses.cycle_s:.3g} s"
        return JobState.TRAINING, reason, 0.8

    def _at_rest(self, second: JobSecond, share: float, *, at_rest: bool, spins: bool, only_waits: bool) -> Word:
        since_s = -math.inf if self._pause is None else self._pause.begin_s + _SETTLED_S
        known = self._processes.at(second.time_s, since_s)
        if self._kind_of_run == RunState.SERVING:
            return JobState.SERVING, "waits for requests", self._cycles.run_confidence
        said = f"the load is at {percent(max(share, 0.0))} of its range"
        if known.write:
            return JobState.CHECKPOINTING, f"{said}, and {known.written_per_s / 1e6:.0f} MB/s are written", 0.9
        if only_waits:
            return JobState.UNKNOWN, f"{said}, and kernels that compute nothing are on all its GPUs all the time", 0.3
        if second.spinning and second.unused and not second.is_partly_used:
            reason = f"{said}: {second.unused} of {second.gpus} GPUs do nothing, the others wait for them"
            return JobState.CHECKPOINTING, reason, 0.6
        if at_rest or share < IDLES:
            if at_rest and share >= IDLES:
                # They have let go of their work, and not yet of their clocks.
                said = f"its GPUs are hardly in use; {said}"
            if spins:
                return JobState.UNKNOWN, f"{said}, while a kernel is on all {second.gpus} GPUs all the time", 0.3
            if known.compute_much:
                return JobState.UNKNOWN, f"{said}, while its processes take {known.processors:.1f} processors", 0.3
            return JobState.IDLE, said, 0.7
        if self._work.own_s < _SHORT_WORK_S:
            return JobState.STARTING, f"{said}, and it has not worked for long", 0.6
        return JobState.EVALUATING, said, 0.6

    # Words.

    def _add(self, word: Word, time_s: float) -> None:
        if self._ended or (self._pause is not None and self._pause.alarm and time_s >= self._pause.begin_s):
            self._spans.extend(time_s)
        else:
            self._spans.add(word, time_s)

    def _end(self, time_s: float, reason: str) -> None:
        self._ended, self._ended_s = reason, time_s
        pause = self._pause
        # What it did between its last work and its end, but for closing, was told and stays.
        closes = pause is not None and not pause.alarm and time_s - pause.begin_s < _CLOSES_S
        begin_s = pause.begin_s if pause is not None and closes else time_s
        self._spans.replace_from(begin_s, (JobState.ENDED, reason, 0.95), self._last_s)
        self._spans.extend(time_s)

    def _begin_anew(self, now_s: float) -> None:
        """Know nothing of the job that has ended, as another one has begun on its GPUs.

        Of a training upon which another one follows at once, as the next trial of a search does, it stays known that it
        is one, and how it pauses.
        """
        pauses, work, cycles = self._pauses, self._work, self._cycles
        follows = cycles.likely_train and now_s - self._ended_s < _FOLLOWS_S
        self._ended, self._begun_s = "", self._last_s
        self._forget()
        if follows:
            self._pauses, self._work, self._cycles = pauses, work.of_next(), cycles.of_next()

    # Restart.

    def state(self) -> bytes:
        """Serialise the watch as JSON; about 15 kB at most."""
        return json.dumps(
            {
                "version": _VERSION,
                "gpus": self.gpus,
                "scalars": {name: getattr(self, name) for name in _SCALARS},
                "recent": [[vars(second), load] for second, load in self._recent],
                "range": self._range.fields(),
                "level": self._level.fields(),
                "work": vars(self._work),
                "pause": None if self._pause is None else vars(self._pause),
                "pauses": self._pauses.fields(),
                "cycles": vars(self._cycles),
                "processes": vars(self._processes),
                "spans": self._spans.fields(),
            }
        ).encode()

    @classmethod
    def from_state(cls, data: bytes) -> StateWatch:
        """Rebuild a watch from :meth:`state`.

        Raises:
            ValueError: The bytes are no such state, or one of another version.
        """
        with reading("no state of a job"):
            fields: dict[str, Any] = json.loads(data)
            if fields["version"] != _VERSION:
                raise DamagedStateError(f"state of a job of version {fields['version']}; this release reads {_VERSION}")
            watch = cls(read_as(int, fields["gpus"]))
            check(1 <= watch.gpus <= _MOST_GPUS, "number of GPUs")
            for name, kind in _SCALARS.items():
                setattr(watch, name, read_as(kind, fields["scalars"].get(name, getattr(watch, name))))
            check(not math.isinf(watch._last_s) and 0 < watch._cell_s < math.inf, "times of seconds")
            watch._recent.extend(read_as(list[tuple[JobSecond, float]], fields["recent"]))
            watch._range = LoadRange.of_fields(fields["range"])
            watch._level = TrainingLevel.of_fields(fields["level"])
            watch._work = read_as(Work, fields["work"])
            watch._pause = read_as(Pause | None, fields["pause"])
            watch._pauses = PauseMemory.of_fields(fields["pauses"])
            watch._cycles = read_as(TrackedCycles, fields["cycles"])
            watch._processes = read_as(Processes, fields["processes"])
            watch._spans = StateSpans.of_fields(fields["spans"])
        return watch


_SCALARS: dict[str, Any] = {
    "_idle_watts": float, "_first_s": float, "_last_s": float, "_cell_s": float, "_steps_s": list[float],
    "_ended": str, "_ended_s": float, "_begun_s": float, "_slower": str, "_by_power": bool | None,
    "_held_bytes": float, "_programs": int,
}  # fmt: skip


def _median(values: Sequence[float]) -> float:
    """The upper median."""
    return sorted(values)[len(values) // 2]

"""Days of jobs, healthy and idle ones, before the reaper: runs, jobs and verdicts are those of the product.

A day is 24 hours of one job at a second's resolution, on GPUs that its scheduler gives to it all day: metrics, and
what its processes do where the agent may look. ``RunTracker`` makes runs of it, ``list_jobs`` the job, and ``gpusonde
idle`` is asked every five minutes for the first two hours of a rest, then every half an hour; not where the answer has
to be no (``_Replay.is_worth_asking``), and not before the time that the answer before wants to wait for. Kinds are
drawn in turn: scripts, and recorded and generated jobs one after the other under one allocation, as they are or until
nobody starts the next. Those in ``SET_ASIDE`` were named before anything was run, and no threshold was chosen by them.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.random import Generator

from gpusonde.cli.commands.idle import judge
from gpusonde.collector.client import JobInfo
from gpusonde.collector.client.query import job_info
from gpusonde.collector.config import RunsConfig
from gpusonde.collector.query.jobs import list_jobs
from gpusonde.collector.storage.model import MOST_STATES, CycleTree, JobStateRow, RunRow
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.storage.store import Store
from gpusonde.collector.tracking.runs import RunEnded, RunStarted, RunTracker
from gpusonde.common.v1 import job_pb2
from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.progress.idleness import MOST_BYTES_PER_S, MOST_PROCESSORS
from gpusonde.epoch_detect.progress.state import StateWatch
from gpusonde.query.v1 import query_pb2
from gpusonde.service.wire import Binding, JobActivity
from gpusonde.telemetry import FloatArray, Trace

sys.path.append(str(Path(__file__).resolve().parents[1] / "epochs"))

import recordings
import weeks

DAY_S = 86_400
WANTED_S = 1800.0
_ASK_S, _TICK_S = 300, 60
_LONG_S, _RARELY_S = 7200, 1800
_OLD_S = 120  # looks that are older than that say nothing of now
_WAITS = re.compile(r"idle for (\d+) s of (\d+) s")
_START = 1_700_000_000
_NS = 1_000_000_000
_GB = float(1 << 30)
_AGENT, _JOB = "host-1", "4711"
_STATES = ("training", "unknown", "idle")
_SEED = 57_300  # of no day that a rule was chosen by
_MOST_GPUS = 2
_MOST_GENERATED = 12  # of each kind, of which days are made

# Each with the longest time that its GPUs rest at once, drawn anew for each job.
SET_ASIDE = (
    "environment_on_processors", "waits_for_a_judge", "idle_wobbling_power", "spins_on_a_processor",
    "recorded", "generated", "recorded_then_idle", "generated_then_idle",
)  # fmt: skip
# Of which an operator's ``--for`` speaks: somebody has left, or never came. What else is called healthy goes on by
# itself, and is taken wrongly however long it rests.
LEFT_BY_PEOPLE = ("notebook", "idle_with_spikes")
# Their states are those of the product's watch: whether it has seen them serve decides.
_SERVERS = ("serves", "deserted_server")
_WATCH_TICK_S, _WATCHED_TICKS = 4, 15
_WATCHED_METRICS = ("gpu_utilization", "power_watts")
_USES = ("sm_active", "graphics_active", "gpu_utilization")
_DATA = Path("../shared/data")


@dataclass
class Day:
    """24 hours of a job, second by second, and how it is seen.

    Attributes:
        rng: Draws it.
        now_s: Up to where it is written.
        idle_from_s: From when on it does nothing any more, and never will; infinite for a healthy one.
    """

    rng: Generator
    now_s: int = 0
    idle_from_s: float = np.inf
    hangs: list[tuple[int, int]] = field(default_factory=list)  # longer than ``--for``, by the script of what is played
    stretches: list[tuple[int, float, float, float, float]] = field(default_factory=list)  # until when, and the four
    played: list[tuple[int, FloatArray]] = field(default_factory=list)  # since when, and the four, shape (4, seconds)
    kinds: list[tuple[int, str]] = field(default_factory=list)  # of what is played, and since when

    @property
    def is_full(self) -> bool:
        """Whether the day is over."""
        return self.now_s >= DAY_S

    def between(self, low: float, high: float) -> float:
        """Draw a number whose logarithm is even."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def work(self, seconds: float, use: float = 0.95, processors: float = 1.2) -> None:
        """GPUs at work."""
        self._write(seconds, use, 450.0, processors, 2e5)

    def rest(self, seconds: float, processors: float = 0.02, bytes_per_s: float = 0.0) -> None:
        """GPUs at rest, whatever the processes do; NaN processors are none."""
        self._write(seconds, 0.0, np.nan, processors, bytes_per_s)

    def idle(self, processors: float = 0.01) -> None:
        """Nothing any more, until the end of the day."""
        self.idle_from_s = float(self.now_s)
        self.rest(DAY_S, processors)

    def play(self, job: recordings.JobRecording) -> None:
        """A recorded or generated job, with marks of its processes as its log tells them."""
        self.kinds.append((self.now_s, job.kind))
        begin_s, length_s = self.now_s, min(int(job.time_s[-1] - job.time_s[0]), DAY_S - self.now_s)
        self.work(length_s)
        second = job.time_s[0] + np.arange(length_s)
        at = np.minimum(np.searchsorted(job.time_s, second), job.time_s.size - 1)
        use = np.nan_to_num(np.max([job.values[name].max(axis=0) for name in _USES if name in job.values], axis=0)[at])
        states = [state for _, state in job.log.states] or ["training"]
        said = np.searchsorted([when for when, _ in job.log.states], second, side="right") - 1
        processors = np.array([weeks.PROCESSORS.get(state, weeks.RESTING_PROCESSORS) for state in states])
        written = np.array([2e8 if state == "checkpointing" else 2e3 for state in states])
        for (when, state), (stop, _) in pairwise([*job.log.states, (job.time_s[-1], "")]):
            if state == "stalled" and stop - when > WANTED_S:
                self.hangs.append((begin_s + int(when - job.time_s[0]), begin_s + int(stop - job.time_s[0])))
        at_state = np.clip(said, 0, None)
        rows = np.array([use, job.power.max(axis=0)[at], processors[at_state], written[at_state]])
        self.played.append((begin_s, rows))

    def _write(self, seconds: float, use: float, watts: float, processors: float, bytes_per_s: float) -> None:
        self.now_s = min(self.now_s + max(round(seconds), 1), DAY_S)
        self.stretches.append((self.now_s, use, watts, processors, bytes_per_s))

    def columns(self) -> dict[str, FloatArray]:
        """Return by name, of shape (seconds,): use, 0..1; watts, NaN at rest; processors, NaN without; bytes_per_s."""
        ends = np.array([end for end, *_ in self.stretches])
        levels = np.repeat(np.array([rest for _, *rest in self.stretches]).T, np.diff(ends, prepend=0), axis=1)
        levels = np.pad(levels, ((0, 0), (0, DAY_S - levels.shape[1])), mode="edge")
        noise = self.rng.normal(size=DAY_S)
        flicker = 0.05 * noise
        for begin_s, rows in self.played:
            stop_s = min(begin_s + rows.shape[1], int(min(self.idle_from_s, DAY_S)))
            levels[:, begin_s:stop_s] = rows[:, : max(stop_s - begin_s, 0)]
            flicker[begin_s:stop_s] = 0.0
        use, watts, processors, bytes_per_s = levels
        return {
            "use": np.clip(use * (1 + flicker), 0, 1),
            "watts": watts,
            "processors": processors * np.exp(0.2 * noise),
            "bytes_per_s": bytes_per_s * np.exp(noise[::-1] - 0.5),
        }


# Healthy.


def trains(day: Day) -> None:
    """Epochs with evaluations and short checkpoints."""
    epoch_s, pause_s = day.between(60, 7200), day.between(2, 120)
    while not day.is_full:
        day.work(epoch_s)
        day.work(0.1 * epoch_s, use=0.6)
        day.rest(pause_s, 1.0, 2e8)


def long_checkpoints(day: Day) -> None:
    """Checkpoints onto slow disks, each longer than the one before."""
    every_s, pause_s, grows = day.between(1200, 10_800), day.between(60, 1200), day.rng.uniform(1.0, 1.4)
    while not day.is_full:
        day.work(every_s)
        day.rest(min(pause_s, 5400.0), day.between(0.3, 2), day.between(5e6, 5e8))
        pause_s *= grows


def waits_for_data(day: Day) -> None:
    """Shards are fetched before they are trained on."""
    while not day.is_full:
        day.rest(day.between(120, 5400), day.between(0.1, 4), day.between(5e6, 3e8))
        day.work(day.between(300, 7200))


def prepares(day: Day) -> None:
    """Stages on processors between stages on GPUs."""
    while not day.is_full:
        day.work(day.between(600, 7200))
        day.rest(day.between(600, 10_800), day.between(1, 32), day.between(1e4, 1e8))


def serves(day: Day) -> None:
    """Requests; fewer at night."""
    gap_s = day.between(2, 240)
    while not day.is_full:
        night = 1.0 + 7.0 * (np.cos(2 * np.pi * day.now_s / DAY_S) > 0.7)
        day.work(day.between(0.5, 20), use=day.rng.uniform(0.1, 0.9), processors=0.3)
        day.rest(day.rng.exponential(gap_s * night), 0.03, 1e3)


def notebook(day: Day) -> None:
    """Cells are run and thought about; somebody has lunch, and goes home with the job."""
    lunch_s = day.rng.uniform(0.35, 0.5) * DAY_S
    while not day.is_full:
        day.work(day.between(3, 900), use=day.rng.uniform(0.2, 1.0), processors=1.0)
        if lunch_s < day.now_s:
            day.rest(day.rng.uniform(1200, 4500), 0.01, 2e3)
            lunch_s = np.inf
        day.rest(day.between(20, 1500), 0.02, 2e4)


def by_the_clock(day: Day) -> None:
    """A program that is started again and again under one allocation; none lives in between."""
    every_s = day.between(300, 7200)
    while not day.is_full:
        day.work(every_s * day.rng.uniform(0.1, 0.7))
        day.rest(every_s * day.rng.uniform(0.2, 0.9), np.nan)


def waits_for_a_controller(day: Day) -> None:
    """Trials that a sweep hands out; the worker asks for the next one now and then."""
    while not day.is_full:
        day.work(day.between(300, 5400))
        day.rest(day.between(10, 1500), 0.03, 1e3)


def environment_on_processors(day: Day) -> None:
    """Reinforcement learning: the environment takes the processors, the GPU a moment in between."""
    while not day.is_full:
        day.work(day.between(20, 300))
        day.rest(day.between(600, 5400), day.between(2, 64), 1e5)


def waits_for_a_judge(day: Day) -> None:
    """Each round is judged elsewhere, and the job asks every few seconds whether that is done."""
    judged_s = day.between(300, 4500)
    while not day.is_full:
        day.work(day.between(1200, 7200))
        day.rest(judged_s * day.rng.uniform(0.8, 1.25), 0.02, 2e3)


@cache
def _recorded() -> list[recordings.JobRecording]:
    return [
        each for source in (recordings.h100_checkpoints, recordings.llm_lora) for each in source(_DATA)
        if any(name in each.values for name in _USES)
    ]  # fmt: skip


def recorded(day: Day) -> None:
    """Recorded jobs of GPUs, one after the other; between two of them somebody starts the next."""
    while not day.is_full:
        day.play(_recorded()[int(day.rng.integers(len(_recorded())))])
        day.rest(day.between(5, 900), 0.5, 1e5)


@cache
def _generated(kind: str, number: int) -> recordings.JobRecording:
    return weeks.made(kind, weeks.SEED, number)


def generated(day: Day) -> None:
    """Generated jobs of all kinds likewise: training, notebooks, servers, by the clock."""
    while not day.is_full:
        kind = weeks.ALL_KINDS[int(day.rng.integers(len(weeks.ALL_KINDS)))]
        job = _generated(kind, _SEED + int(day.rng.integers(_MOST_GENERATED)))
        if "power_watts" in job.values and any(name in job.values for name in _USES):
            day.play(job)
            day.rest(day.between(5, 900), 0.5, 1e5)


# Idle from some time on.


def _usual(day: Day, kinds: Sequence[Callable[[Day], None]] = (trains, waits_for_data, notebook)) -> None:
    """Some hours of a healthy job, up to the end of its work."""
    before = Day(day.rng)
    kind = kinds[int(day.rng.integers(len(kinds)))]
    kind(before)
    day.kinds.append((0, kind.__name__))
    wanted = int(day.rng.uniform(0.05, 0.6) * DAY_S)
    while before.stretches and (before.stretches[-1][0] > wanted or not before.stretches[-1][1]):
        before.stretches.pop()
    day.stretches = before.stretches
    day.now_s = before.stretches[-1][0] if before.stretches else 0


def idle_after_a_burst(day: Day) -> None:
    """A short piece of work, and nothing after it."""
    day.rest(day.between(5, 600), 1.0, 1e7)
    day.work(day.between(10, 3600))
    day.idle()


def never_used(day: Day) -> None:
    """GPUs that were asked for and never used."""
    day.idle(day.rng.choice([0.0, 0.01, 0.05]))


def left_notebook(day: Day) -> None:
    """A notebook whose user has gone."""
    _usual(day, (notebook,))
    day.idle()


def trained_and_held(day: Day) -> None:
    """The training is over and the process stays."""
    _usual(day, (trains, waits_for_data, long_checkpoints))
    day.idle(0.005)


def crashed(day: Day) -> None:
    """The processes are gone and the allocation stays."""
    _usual(day)
    day.idle(np.nan)


def deserted_server(day: Day) -> None:
    """A server whom nobody asks any more."""
    _usual(day, (serves,))
    day.idle(0.05)


def idle_wobbling_power(day: Day) -> None:
    """Idle, while power goes from one idle level to another with clocks and temperature."""
    _usual(day)
    day.idle()
    last = day.stretches.pop()
    for until_s in range(int(day.idle_from_s) + 600, DAY_S + 600, 600):
        day.stretches.append((min(until_s, DAY_S), last[1], day.rng.uniform(60, 78), *last[3:]))


def spins_on_a_processor(day: Day) -> None:
    """The loop that should train waits for nothing, at the cost of a processor."""
    _usual(day, (trains, waits_for_data))
    day.idle(1.0)


def _cut(day: Day, kind: Callable[[Day], None]) -> None:
    kind(day)
    day.now_s = int(day.rng.uniform(0.05, 0.6) * DAY_S)
    kept = [stretch for stretch in day.stretches if stretch[0] < day.now_s]
    day.stretches = [*kept, (day.now_s, *day.stretches[len(kept)][1:])]
    day.idle(0.01)


def recorded_then_idle(day: Day) -> None:
    """Recorded jobs, in the middle of which everything stops."""
    _cut(day, recorded)


def generated_then_idle(day: Day) -> None:
    """Generated ones likewise."""
    _cut(day, generated)


HEALTHY: tuple[Callable[[Day], None], ...] = (
    trains, long_checkpoints, waits_for_data, prepares, serves, notebook, by_the_clock, waits_for_a_controller,
    environment_on_processors, waits_for_a_judge, recorded, generated,
)  # fmt: skip
IDLE: tuple[Callable[[Day], None], ...] = (
    idle_after_a_burst, never_used, left_notebook, trained_and_held, crashed, deserted_server, idle_wobbling_power,
    spins_on_a_processor, recorded_then_idle, generated_then_idle,
)  # fmt: skip


# Why an idle job is found late or never: a witness is missing, `--servers` is for it, or it is waited for.
NOT_KNOWN, SPINS = "use of the GPUs or processes not known", "takes a processor"
SERVED, NOT_ASKED = "answered requests", "on its GPUs, and has hardly worked"
YOUNG = "had gone on for a fifth of `--for` to four times it"
RESTED = "rested for more than a third of `--for` before"
WOBBLES = "power not flat"
_LATE_KINDS = {"spins_on_a_processor": SPINS, "deserted_server": SERVED}


@dataclass(frozen=True)
class Verdict:
    """What became of a day.

    Attributes:
        kind: Of the job.
        looks: Whether it was known what its processes do.
        idle_from_s: As of ``Day``.
        reaped_s: When the reaper would have acted; infinite for never.
        rested_s: For how long GPUs and processes had rested by then, and no longer before.
        works_again: Whether the job would have gone on.
        by_itself: Whether nobody has to come back for that.
        late: Why it cannot be found within twice what is asked for; empty where it can, or never becomes idle.
        longest_rest_s: For how long GPUs and processes rested at most, as far as is known, before it went on.
        hangs: Whether everything hangs for longer than ``--for`` in it, and goes on: it is no healthy day.
    """

    kind: str
    looks: bool
    idle_from_s: float
    reaped_s: float
    rested_s: float
    works_again: bool
    by_itself: bool
    late: str
    longest_rest_s: float
    hangs: bool


@dataclass
class _Watched:
    """A run that is watched, up to a tick."""

    tracker: EpochTracker
    watch: StateWatch
    reached: int


class _Replay:
    """A day as the collector's store and its client show it at a time."""

    def __init__(self, day: Day, kind: str) -> None:
        rng = day.rng
        self.now_s = self._seen_s = 0
        columns = day.columns()
        self.use, self.watts, self.processors, self.bytes_per_s = columns.values()
        self.gpus = [f"GPU-{i}" for i in range(int(rng.integers(1, _MOST_GPUS + 1)))]
        self.has_bus, self.has_use = rng.random() < 0.7, rng.random() < 0.95
        self.looks = rng.random() < 0.85
        self.idle_watts = rng.uniform(55, 130)
        self.outage = slice(0, 0)
        if rng.random() < 0.05:
            begin = int(rng.uniform(0, DAY_S))
            self.outage = slice(begin, begin + int(rng.uniform(60, 3600)))
        self.seed = int(rng.integers(1 << 60))
        self.has_cgroup = rng.random() < 0.85
        self.is_server = kind in _SERVERS
        by_tick = (-1, _TICK_S)
        # A run goes on with any tick of the agent's, ten a second, that shows work.
        self._most_use = self.use.reshape(by_tick).max(axis=1)
        self._used = self._most_use > 0.01
        self._processors = np.nan_to_num(self.processors).reshape(by_tick).mean(axis=1)
        self.first_use_s = int(np.flatnonzero(self.use > 0).min(initial=DAY_S))
        self._add_looks()
        self.runs: dict[str, RunRow] = {}
        self._rows: dict[str, tuple[FloatArray, list[JobStateRow]]] = {}
        self._watches: dict[str, _Watched] = {}
        self.bindings = [Binding(gpu, _JOB, job_pb2.SCHEDULER_SLURM, _START * _NS, 0, {}) for gpu in self.gpus]
        metrics = {"has_activity": self.has_use}
        self._trackers = [RunTracker(_AGENT, gpu, RunsConfig(), bindings=[b], **metrics) for gpu, b in
                          zip(self.gpus, self.bindings, strict=True)]  # fmt: skip
        self.facts = self.samples = self.results = self

    def used_since(self, since_s: int) -> bool:
        """Say whether its GPUs have worked since then, up to now."""
        return bool(self._used[max(since_s, 0) // _TICK_S : self.now_s // _TICK_S].any())

    def look(self) -> None:
        """Show the ticks up to now to the trackers."""
        at = np.arange(self._seen_s, self.now_s, _TICK_S)
        self._seen_s = self.now_s
        at = at[(at < self.outage.start) | (at >= self.outage.stop)]
        if not at.size:
            return
        use = self._most_use[at // _TICK_S]
        time = (_START + at + _TICK_S) * _NS
        ones = np.ones(at.size, dtype=np.int64)
        memory = np.full(at.size, (20.0 if self.first_use_s < self.now_s else 0.0) * _GB)
        columns = {"framebuffer_used_bytes": memory} | ({"gpu_utilization": use} if self.has_use else {})
        for tracker in self._trackers:
            for event in tracker.ticks(Samples(time, ones, at // _TICK_S + 1, 0 * ones, columns)):
                if isinstance(event, RunStarted | RunEnded):
                    self.runs[event.run.run_id] = event.run
            if (run := tracker.run) is not None:
                self.runs[run.run_id] = run

    # The store, as far as jobs are asked for.

    def open_bindings(self) -> list[tuple[str, Binding]]:
        return [(_AGENT, binding) for binding in self.bindings]

    def gpus_of(self, _uuids: Collection[str]) -> list[Any]:
        return []

    def next_tick(self, _gpu_uuid: str, start_unix_nano: int) -> int | None:
        newest = self.now_s if not self.outage.start <= self.now_s < self.outage.stop else self.outage.start
        return (_START + newest) * _NS if (_START + newest) * _NS >= start_unix_nano else None

    def latest_use(self, *_: Any) -> Samples:
        time, use = (
            np.array([(_START + self.now_s) * _NS]),
            self.use[[self.now_s]] if self.has_use else np.array([np.nan]),
        )
        return Samples(time, time, time, time, {"gpu_utilization": use.astype(np.float32)})

    def runs_of(self, *, open_only: bool = False, **_: Any) -> list[RunRow]:
        found = [run for run in self.runs.values() if not (open_only and run.ended)]
        return sorted(found, key=lambda run: (run.start_unix_nano, run.run_id), reverse=True)

    def states_of(self, run_ids: Collection[str], limit: int = MOST_STATES) -> dict[str, list[JobStateRow]]:
        """What the watch of a job says of such days: rests, but for those in which its processes work."""
        if self.is_server:
            return {run_id: self._watched(self.runs[run_id]) for run_id in run_ids}
        return {run_id: self._rows_of(self.runs[run_id])[-limit:] for run_id in run_ids}

    def _rows_of(self, run: RunRow) -> list[JobStateRow]:
        begin = (run.start_unix_nano // _NS - _START) // _TICK_S
        if run.run_id not in self._rows:
            busy = self.looks * self._processors[begin:] > 1.0
            said = np.where(self._used[begin:], 0, np.where(busy, 1, 2))
            changes = begin + np.flatnonzero(np.diff(said, prepend=-1))
            starts = ((_START + changes * _TICK_S) * _NS).tolist()
            rows = [
                JobStateRow(start, _STATES[said[at - begin]], "", 0.9)
                for start, at in zip(starts, changes, strict=True)
            ]
            self._rows[run.run_id] = changes, rows
        changes, rows = self._rows[run.run_id]
        return rows[: int(np.searchsorted(changes, self.now_s // _TICK_S))]

    def _watched(self, run: RunRow) -> list[JobStateRow]:
        """What the watch says of a run, from ticks of four seconds, a minute of them at a time."""
        begin = max((run.start_unix_nano // _NS - _START) // _WATCH_TICK_S - 3, 0)
        end = (run.end_unix_nano // _NS - _START) // _WATCH_TICK_S
        if run.run_id not in self._watches:
            tracker = EpochTracker(_WATCHED_METRICS)
            self._watches[run.run_id] = _Watched(tracker, StateWatch(1, idle_watts=self.idle_watts), begin)
        seen = self._watches[run.run_id]
        while seen.reached + _WATCHED_TICKS <= end:
            piece = slice(seen.reached * _WATCH_TICK_S, (seen.reached + _WATCHED_TICKS) * _WATCH_TICK_S)
            watts = self.idle_watts + np.nan_to_num(self.use[piece] * self.watts[piece])
            rows = np.array([self.use[piece], watts]).reshape(2, -1, _WATCH_TICK_S).mean(axis=2)
            time_s = (np.arange(_WATCHED_TICKS) + seen.reached - begin) * float(_WATCH_TICK_S)
            before = seen.tracker.detection
            seen.tracker.update(time_s, rows)
            if seen.tracker.detection is not None and seen.tracker.detection is not before:
                seen.watch.note_detection(seen.tracker.detection)
            seen.watch.update(time_s, dict(zip(_WATCHED_METRICS, rows[:, np.newaxis], strict=True)))
            seen.reached += _WATCHED_TICKS
        origin = (_START + begin * _WATCH_TICK_S) * _NS
        return [JobStateRow(origin + round(span.start_s * _NS), str(span.state), "", 0.9) for span in seen.watch.spans]

    def recent_activity(self, _agent_id: str, _gpu_uuids: Collection[str], since_unix_nano: int) -> list[JobActivity]:
        """Looks at the processes: those on its GPUs and what they fork, or where it has a cgroup all of the job."""
        begin = max(since_unix_nano // _NS - _START, 0)
        inner = self._edges[np.searchsorted(self._edges, begin, "right") : np.searchsorted(self._edges, self.now_s)]
        edges = [begin, *inner.tolist(), self.now_s]
        return [
            JobActivity(tuple(self.gpus), self._look_times[at:end], self._values[:, at:end], b"", int(self._held[at]))
            for at, end in pairwise(edges)
            if at < end and self._seen[at]
        ]

    def _add_looks(self) -> None:
        at = np.arange(DAY_S)
        self._held = np.isfinite(self.processors) & (at >= self.first_use_s)
        heard = (at < self.outage.start) | (at >= self.outage.stop)
        self._seen = self.looks & heard & (self._held | self.has_cgroup)
        self._edges = np.flatnonzero((np.diff(self._seen) != 0) | (np.diff(self._held) != 0)) + 1
        self._look_times = (_START + at + 1) * _NS
        self._values = np.zeros((6, DAY_S))
        self._values[3] = self.bytes_per_s
        self._values[5] = np.nan_to_num(self.processors, nan=0.01)
        self._sums = np.pad(np.cumsum([self._seen, *(self._seen * self._values[[5, 3]])], axis=1), ((0, 0), (1, 0)))

    def is_worth_asking(self) -> bool:
        """Say whether the answer may be yes.

        It is no where nothing is known of the use or of the processes, or where these do more than twice of what is
        called rest: tests of the rule say so, and what is not asked costs nothing.
        """
        if not self.has_use:
            return False
        seen, processors, moved = self._sums[:, self.now_s] - self._sums[:, max(self.now_s - int(WANTED_S), 0)]
        is_heard = self._sums[0, self.now_s] > self._sums[0, max(self.now_s - _OLD_S, 0)]
        return bool(is_heard and processors <= 2 * MOST_PROCESSORS * seen and moved <= 2 * MOST_BYTES_PER_S * seen)

    def store(self) -> Store:
        """What ``list_jobs`` asks."""
        results = SimpleNamespace(
            runs=self.runs_of,
            run=lambda _: None,
            states=self.states_of,
            tree=lambda _: CycleTree(),
            alerts=lambda **_: [],
        )
        facts = SimpleNamespace(
            open_bindings=self.open_bindings,
            job_bindings=lambda *_: [],  # none has ended
            gpus=self.gpus_of,
            recent_activity=self.recent_activity,
            metrics=lambda _: ["gpu_utilization"],
        )
        samples = SimpleNamespace(next_tick=self.next_tick, read=self.latest_use)
        return cast(Store, SimpleNamespace(results=results, facts=facts, samples=samples))

    # The client, as far as the reaper asks.

    def list_jobs(self, *, process_window_s: float | None = None, **_: Any) -> list[JobInfo]:
        request = query_pb2.ListJobsRequest(active_only=True)
        if process_window_s is not None:
            request.job_id = _JOB
            request.process_window.FromNanoseconds(round(process_window_s * 1e9))
        return [job_info(job) for job in list_jobs(self.store(), request, (_START + self.now_s) * _NS).jobs]

    def read_samples(self, gpu_uuid: str, *, start_unix_nano: int, end_unix_nano: int) -> Trace:
        begin = max(start_unix_nano // _NS - _START, 0)
        at = np.arange(begin, min(end_unix_nano // _NS - _START, self.now_s))
        at = at[(at < self.outage.start) | (at >= self.outage.stop)]
        rng = np.random.default_rng([self.seed, self.gpus.index(gpu_uuid), int(begin)])
        watts = np.where(np.isfinite(self.watts[at]), self.watts[at], self.idle_watts)
        columns = {"power_watts": watts * (1 + 0.01 * rng.normal(size=at.size))}
        if self.has_use:
            columns["gpu_utilization"] = self.use[at]
        if self.has_bus:
            columns["pcie_tx_bytes_per_second"] = 1e4 * rng.random(at.size) + 2e9 * self.use[at]
            columns["pcie_rx_bytes_per_second"] = 1e4 * rng.random(at.size) + 1e9 * self.use[at]
        return Trace(at.astype(np.float64), columns, gpu_uuid=gpu_uuid)


def replay(number: int) -> Verdict:
    """Live through the day of a job; every second one is one that becomes idle."""
    kinds = IDLE if number % 2 else HEALTHY
    kind = kinds[number // 2 % len(kinds)]
    day = Day(np.random.default_rng([_SEED, number]))
    kind(day)
    shown = _Replay(day, kind.__name__)
    busy = np.flatnonzero(shown.use > 0)
    reaped_s, asked_s, wanted_s = np.inf, 0, 0.0
    for now_s in range(_ASK_S, DAY_S, _ASK_S):
        shown.now_s = now_s
        # Who has rested for hours is asked about less often, which costs time and tells nothing else.
        if now_s % _RARELY_S and not shown.used_since(now_s - _LONG_S):
            continue
        # Within so short a time nothing can be idle for long enough.
        if now_s < WANTED_S or shown.used_since(now_s - int(WANTED_S) + _TICK_S):
            continue
        if (now_s < wanted_s and not shown.used_since(asked_s)) or not shown.is_worth_asking():
            continue
        asked_s = now_s
        shown.look()
        (job,) = shown.list_jobs() or (None,)
        if job is None or job.state != "idle":
            continue
        verdict = judge(cast(Any, shown), job, WANTED_S).verdict
        if verdict.idle:
            reaped_s = float(now_s)
            break
        # Who was on its GPUs when the window began says something of it, and how long is waited changes when that ends.
        if (found := _WAITS.match(verdict.evidence[0])) and int(found[1]) > WANTED_S + _OLD_S:
            wanted_s = now_s + int(found[2]) - int(found[1]) - 1.0
    works = (shown.use > 0) | (shown.processors > 0.2) | (shown.bytes_per_s > 1e6)
    rested_s = reaped_s - float(np.flatnonzero(works[: int(reaped_s)]).max(initial=0)) if np.isfinite(reaped_s) else 0.0
    again = bool(busy.size) and busy[-1] > reaped_s
    late = _late(shown, kind.__name__, int(day.idle_from_s)) if np.isfinite(day.idle_from_s) else ""
    is_known = shown.looks and shown.has_use
    at = np.flatnonzero(works | ~(np.isfinite(shown.processors) | shown.has_cgroup)) if is_known else np.empty(0)
    longest_s = float(np.diff(at).max(initial=0))
    played = [name for since_s, name in day.kinds if since_s <= reaped_s] or [kind.__name__]
    by_itself = again and played[-1] not in LEFT_BY_PEOPLE
    hangs = any(begin_s < min(day.idle_from_s, DAY_S) for begin_s, _ in day.hangs)
    return Verdict(
        kind.__name__, is_known, day.idle_from_s, reaped_s, rested_s, again, by_itself, late, longest_s, hangs
    )


def _late(shown: _Replay, kind: str, idle_from_s: int) -> str:
    """Say by its script why a job that has become idle is waited for, or never taken."""
    idle = min(idle_from_s + 60, DAY_S - 1)
    is_held = shown.first_use_s < idle and np.isfinite(shown.processors[idle])
    if not shown.has_use or not shown.looks or not (is_held or shown.has_cgroup):
        return NOT_KNOWN
    if kind in _LATE_KINDS:
        return _LATE_KINDS[kind]
    if is_held and float((shown.use[:idle_from_s] > 0).sum()) < _TICK_S:
        return NOT_ASKED
    begin = min(shown.first_use_s, idle_from_s)
    if WANTED_S / 5 < idle_from_s - begin < 4 * WANTED_S:
        return YOUNG
    gone = ~np.isfinite(shown.processors)
    works = (np.nan_to_num(shown.processors) > 0.2) | (shown.bytes_per_s > 1e6) | (shown.use > 0)
    works |= ~gone & (not is_held)
    minutes = works[begin : idle_from_s - (idle_from_s - begin) % _TICK_S].reshape(-1, _TICK_S).any(axis=1)
    edges = np.flatnonzero(np.concatenate(([True], minutes, [True])))
    longest_s = (int(np.diff(edges).max()) - 1) * _TICK_S
    if 6 * longest_s > 2 * WANTED_S:
        return RESTED
    return WOBBLES if kind == "idle_wobbling_power" else ""


def table(days: Sequence[Verdict]) -> list[str]:
    """Lines of two Markdown tables: by kind of job, and of idle ones by what they are waited for."""

    def row(title: str, mine: Sequence[Verdict]) -> str:
        wrong = [day for day in mine if day.works_again and np.isfinite(day.reaped_s)]
        by_themselves = sum(day.by_itself for day in wrong)
        working = sum(day.rested_s < WANTED_S for day in wrong)
        return f"| {title} | {len(mine)} | {len(wrong)} | {by_themselves} | {working} | {found(mine)} |"

    def found(mine: Sequence[Verdict]) -> str:
        idle = [day for day in mine if np.isfinite(day.idle_from_s) and day.idle_from_s + 2 * WANTED_S < DAY_S]
        right = [day for day in idle if not day.works_again and np.isfinite(day.reaped_s)]
        soon = sum(day.reaped_s - day.idle_from_s <= 2 * WANTED_S for day in right)
        return f"{len(right) / len(idle):.1%} | {soon / len(idle):.1%}" if idle else "- | -"

    lines = [
        "| job | days | taken though it went on | of these, by itself | with work within `--for` | found | in time |",
        "|---|---|---|---|---|---|---|",
    ]
    hung = [day for day in days if day.hangs]
    days = [day for day in days if not day.hangs]
    healthy = [day for day in days if not np.isfinite(day.idle_from_s)]
    idle = [day for day in days if np.isfinite(day.idle_from_s)]
    for mine, title in ((healthy, "all healthy ones"), (idle, "all idle ones")):
        for name in dict.fromkeys(day.kind for day in mine if day.works_again and np.isfinite(day.reaped_s)):
            aside = " (set aside)" if name in SET_ASIDE else ""
            lines.append(row(f"{name}{aside}", [day for day in mine if day.kind == name]))
        lines.append(row(f"**{title}**", mine))
    lines.append(row("generated ones in which everything hangs", hung))
    alike = [day for day in healthy if day.longest_rest_s > 2 * WANTED_S]
    kinds_alike = ", ".join(f"{kind} {count}" for kind, count in Counter(day.kind for day in alike).most_common())
    lines += [
        "",
        f"Of {len(healthy)} healthy days {len(alike)} hold a rest of GPUs and processes of more than twice `--for`,",
        f"up to whose end they are what idle ones are: {kinds_alike or 'none'}.",
    ]
    lines += ["", "| idle jobs | days | found | in time |", "|---|---|---|---|"]
    groups = (
        (("", WOBBLES), "both signals, nothing to wait for"),
        (("", WOBBLES, RESTED, YOUNG), "both signals"),
        (("", WOBBLES, RESTED, YOUNG, SERVED, NOT_ASKED), "those for `--servers`, too"),
        ((*{day.late for day in idle},), "all"),
    )
    told: set[str] = set()
    for reasons, title in groups:
        for late in sorted({day.late for day in idle if day.late in reasons} - told):
            mine = [day for day in idle if day.late == late]
            lines.append(f"| {late or 'power flat'} | {len(mine)} | {found(mine)} |")
        told.update(reasons)
        mine = [day for day in idle if day.late in reasons]
        lines.append(f"| **{title}** | {len(mine)} | {found(mine)} |")
    return lines

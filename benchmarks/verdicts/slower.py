"""What got slower: how soon a change of the cycle time is told, what is told of healthy jobs, and which cause is named.

A generated job runs until 0.7 of its time; from there on it goes on with each of the faults. The tracker and the watch
are those of a collector: ticks come four seconds at a time, levels as ``EpochTracker`` told them by then. What is
looked for is the shortest true level that is even, whether the tracker lists it or not.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import weeks
from faults import loader_stalls, other_tenant, slower_cycles
from hangs import WEEK_H, upper_bound
from jobs import FIT, Job, job
from recordings import JobRecording, generated
from simulation import Level

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.progress import PaceChange, PaceWatch, slowdown_causes

# Its tempo changes by design: what is told of it may be right.
KINDS = tuple(kind for kind in FIT if kind != "warm_up")
# In weeks, where others are repeated with another tempo; in data_parallel one GPU is slower now and then.
ONE_TEMPO = (
    "cnn_validation", "checkpoint_every_k", "input_shards", "k_fold", "validation_interval", "gan_evaluation_every_k",
    "llm_fine_tuning", "nest",
)  # fmt: skip
SEED, WEEKS_SEED = 310, 13_031  # of no job that a rule was chosen by
_FAULT = "5 %"
_CAUSES = {
    "throttled 10 %": ("SM clock", "less power"), "loader 10 %": ("wait for data", "pause in"),
    "tenant 10 %": ("another process",),
}  # fmt: skip
_AT = 0.7  # of a job
_LONGEST_S = 1200.0  # of jobs, as planned
_IN_CYCLES = (5, 6, 8)
_TRACKED_TICKS = 15  # of a week's job that go to tracker and watch together
_BATCH_S = 4.0
_FEWEST = 30  # cycles of a job: eight behind the fault
_CLEAR_TICKS, _CLEAR_SCATTER = 10.0, 0.01
_LOOKED_CYCLES, _LOOKED_S = 12, 120.0


@dataclass(frozen=True)
class Trial:
    """One job that gets slower.

    Attributes:
        name: Of the job.
        seed: Of the job.
        hours: Before the fault.
        early: Changes that were told in them.
        cycles: From 5 % slower on until that was told, one with an evaluation in it counts one; infinite where it was
            not, or something had been told already.
        causes: Of each other fault that was told, whether the first cause that is named is its own.
    """

    name: str
    seed: int
    hours: float
    early: int
    cycles: float
    causes: dict[str, bool]


class _Player:
    """A tracker and a watch on the mean of a job's devices."""

    def __init__(self, recording: JobRecording) -> None:
        names = tuple(recording.trace().values)
        self.tracker, self.watch = EpochTracker(names), PaceWatch(names)
        self.done = 0

    def copy(self) -> _Player:
        made = copy.copy(self)
        made.tracker, made.watch = EpochTracker.restore(self.tracker.state()), copy.deepcopy(self.watch)
        return made

    def play(self, recording: JobRecording, until_s: float) -> Iterator[float]:
        trace = recording.trace()
        rows = np.array(list(trace.values.values()))
        size = max(1, round(_BATCH_S / recording.interval_s))
        stop = int(np.searchsorted(trace.time_s, until_s))
        while self.done < stop:
            part = slice(self.done, min(self.done + size, stop))
            self.tracker.update(trace.time_s[part], rows[:, part])
            if self.tracker.detection is not None:
                self.watch.note_detection(self.tracker.detection)
            self.watch.update(trace.time_s[part], rows[:, part])
            self.done = part.stop
            yield float(trace.time_s[part][-1])


def _faulty(recording: JobRecording, fault: str, at_s: float, cycle_s: float) -> JobRecording:
    name, share = fault.split(maxsplit=1)[0], float(fault.split()[-2]) / 100
    if name == "throttled":
        return slower_cycles(recording, share, at_s, power_exponent=2.0)
    if name == "loader":
        ends = np.arange(at_s, recording.time_s[-1], cycle_s)
        waits = replace(recording, log=replace(recording.log, cycle_ends_s=ends))
        return loader_stalls(waits, share * cycle_s, at_s)
    if name == "tenant":
        return other_tenant(recording, 0, share, at_s)
    return slower_cycles(recording, share, at_s)


def _even_level(made: Job, tick_s: float) -> Level | None:
    """The shortest level that the bar speaks of."""
    for level in made.levels:
        if level.period_s >= _CLEAR_TICKS * tick_s and len(level.starts_s) > _FEWEST:
            logs = np.log(np.diff(level.starts_s))
            if 1.4826 * float(np.median(np.abs(logs - np.median(logs)))) <= _CLEAR_SCATTER:
                return level
    return None


def of_generated(task: tuple[str, int, int]) -> Trial | None:
    """A trial of one generated job; None where it has no such level."""
    made = job(*task, longest_s=_LONGEST_S)
    recording = generated(made)
    level = _even_level(made, recording.interval_s)
    if level is None:
        return None
    log, cycle_s = recording.log, level.period_s
    at_s = log.start_s + _AT * (log.stop_s - log.start_s)
    until_s = at_s + max(_LOOKED_S, _LOOKED_CYCLES * cycle_s)
    player = _Player(recording)
    early, before = 0, None
    for _ in player.play(recording, at_s):
        early += before is None and player.watch.change is not None
        before = player.watch.change
    cycles, causes = math.inf, {}
    for fault in (_FAULT, *(_CAUSES if "power_watts" in recording.values else ())):
        faulty, each = _faulty(recording, fault, at_s, cycle_s), player.copy()
        for now_s in each.play(faulty, min(until_s, faulty.log.stop_s)):
            told = each.watch.change
            if told is None or before is not None:
                continue
            if fault == _FAULT:
                cycles = _count_cycles(level, at_s, at_s + (now_s - at_s) / 1.05)
            elif not fault.startswith("tenant") or "framebuffer_used_bytes" in faulty.values:
                causes[fault] = _is_named(faulty, told, fault, now_s)
            break
    return Trial(made.name, task[1], at_s / 3600, early, cycles, causes)


def _count_cycles(level: Level, begin_s: float, end_s: float) -> float:
    """Cycles, and parts of them, between two times of the job as it was planned."""
    starts = np.asarray(level.starts_s)
    begin, end = np.interp([begin_s, end_s], starts, np.arange(starts.size))
    return float(end - begin)


def _is_named(recording: JobRecording, told: PaceChange, fault: str, now_s: float) -> bool:
    stop = int(np.searchsorted(recording.time_s, now_s))
    values = {name: column[:, :stop] for name, column in recording.values.items()}
    said = slowdown_causes(recording.devices, recording.time_s[:stop], values, told.since_s)
    return bool(said) and any(word in said[0] for word in _CAUSES[fault])


def of_weeks(task: tuple[str, int, int]) -> tuple[int, float, list[str]]:
    """Seed, hours and what was told of a healthy job of hours to days."""
    played = weeks.made(*task)
    mean = played.trace().values
    rows = np.array(list(mean.values()))
    tracker, watch = EpochTracker(tuple(mean)), PaceWatch(tuple(mean))
    told: list[str] = []
    was_told = False
    for begin in range(0, played.time_s.size, _TRACKED_TICKS):
        part = slice(begin, begin + _TRACKED_TICKS)
        tracker.update(played.time_s[part], rows[:, part])
        if tracker.detection is not None:
            watch.note_detection(tracker.detection)
        watch.update(played.time_s[part], rows[:, part])
        change = watch.change
        if change is not None and not was_told:
            told.append(f"{task[0]}: {change.reason}")
        was_told = change is not None
    return task[1], float(played.time_s[-1]) / 3600, told


def table(found: Sequence[Trial]) -> list[str]:
    """Lines of Markdown tables: how soon 5 % is told, by seed; which causes are named."""
    lines = [
        "| seed | jobs | " + " | ".join(f"in {count} cycles" for count in _IN_CYCLES) + " | told before the fault |",
        "|---|---|" + "---|" * len(_IN_CYCLES) + "---|",
    ]
    seeds = sorted({trial.seed for trial in found})
    for name, mine in [*((str(seed), [t for t in found if t.seed == seed]) for seed in seeds), ("all", list(found))]:
        shares = [f"{np.mean([trial.cycles <= count for trial in mine]):.2f}" for count in _IN_CYCLES]
        early, hours = sum(trial.early for trial in mine), sum(trial.hours for trial in mine)
        lines.append(f"| {name} | {len(mine)} | {' | '.join(shares)} | {early} in {hours:.1f} h |")
    lines += ["", "| cause | told | of these named |", "|---|---|---|"]
    for fault in _CAUSES:
        named = [trial.causes[fault] for trial in found if fault in trial.causes]
        lines.append(f"| {fault} | {len(named)} | {sum(named)} |")
    return lines


def weeks_table(played: Sequence[tuple[int, float, list[str]]]) -> list[str]:
    """Lines of a Markdown table: changes told of healthy jobs, by seed."""
    lines = ["| seed | jobs | job-weeks | told | per job and week | upper bound (95 %) |", "|---|---|---|---|---|---|"]
    for seed in sorted({seed for seed, _, _ in played}):
        mine = [(hours, told) for each, hours, told in played if each == seed]
        hours, told = sum(each[0] for each in mine), sum(len(each[1]) for each in mine)
        lines.append(
            f"| {seed} | {len(mine)} | {hours / WEEK_H:.1f} | {told} | {told / hours * WEEK_H:.2f} | "
            f"{upper_bound(told, hours):.2f} |"
        )
    counts = Counter(each.partition(":")[0] for _, _, told in played for each in told).most_common()
    return [*lines, "", f"Told in: {', '.join(f'{kind} {count}' for kind, count in counts) or 'none'}."]

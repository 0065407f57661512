"""What got slower: how soon a change of the cycle time is told, what is told of healthy jobs, and which cause is named.

A job runs until 0.7 of its time; from there on it goes on with each of the faults. The tracker and the watch are those
of a collector: ticks come four seconds at a time, levels as ``EpochTracker`` told them by then. What is looked for is
the shortest true level that is even, whether the tracker lists it or not.
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
from jobs import FIT, job
from playing import is_held_back
from recordings import JobRecording, generated

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.progress import PaceChange, PaceWatch, slowdown_causes
from gpusonde.telemetry import FloatArray

# Its tempo changes by design: what is told of it may be right.
KINDS = tuple(kind for kind in FIT if kind != "warm_up")
# In weeks, where others are repeated with another tempo; in data_parallel one GPU is slower now and then.
ONE_TEMPO = (
    "cnn_validation", "checkpoint_every_k", "input_shards", "k_fold", "validation_interval", "gan_evaluation_every_k",
    "llm_fine_tuning", "nest",
)  # fmt: skip
SEEDS, WEEKS_SEED = (305, 306, 310), 13_031
CHANGE, CHANGE_OF_SHORT = 0.05, 0.1  # of a cycle of ten ticks or more, of one of five to ten
_CAUSES = {
    "throttled 10 %": ("SM clock", "less power"), "loader 10 %": ("wait for data", "pause in"),
    "tenant 10 %": ("another process",),
}  # fmt: skip
_AT = 0.7  # of a job
_LONGEST_S = 1200.0  # of jobs, as planned
_IN_CYCLES = (5, 6, 8, 16)
_TRACKED_TICKS = 15  # of a week's job that go to tracker and watch together
_BATCH_S = 4.0
_FEWEST = 30  # cycles of a job: eight behind the fault
_FEWEST_BEFORE, _FEWEST_BEHIND = 8, 5  # the same of a recorded one, which has hardly as many
_SHORTEST_TICKS, _CLEAR_TICKS = 5.0, 10.0
_CLEAR_SCATTER = 0.2  # of the change
_LOOKED_CYCLES, _LOOKED_S = 18, 120.0
_FEWEST_TOLD = 3  # cycles by which a watch tells anything: by two it tells healthy jobs to be slower, too


@dataclass(frozen=True)
class Trial:
    """One job that gets slower.

    Attributes:
        group: Of jobs that it is counted with.
        slower: By which share each of its cycles takes longer.
        hours: Before the fault.
        early: Changes that were told in them.
        cycles: From the fault on until it was told, one with an evaluation in it counts one; infinite where it was
            not, or something had been told already.
        at_best: Likewise, until three whole cycles have come, by which one that knew them exactly would tell it.
        causes: Of each other fault that was told, whether the first cause that is named is its own.
    """

    group: str
    slower: float
    hours: float
    early: int
    cycles: float
    at_best: float
    causes: dict[str, bool]


def _batch(recording: JobRecording) -> int:
    """Ticks that come together."""
    return max(1, round(_BATCH_S / recording.interval_s))


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
        size = _batch(recording)
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
    return other_tenant(recording, 0, share, at_s)


def _change_asked(starts_s: FloatArray, tick_s: float) -> float | None:
    """The change that the bar asks for of such a level; None where it speaks of none."""
    lengths_s = np.diff(starts_s)
    ticks, logs = float(np.median(lengths_s)) / tick_s, np.log(lengths_s)
    change = CHANGE if ticks >= _CLEAR_TICKS else CHANGE_OF_SHORT
    scatter = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return change if ticks >= _SHORTEST_TICKS and scatter <= _CLEAR_SCATTER * change else None


def _shortest(levels: Sequence[FloatArray], tick_s: float) -> list[tuple[FloatArray, float]]:
    """The shortest level that the bar speaks of, with its change, and where its cycles are short the shortest other."""
    asked = [(starts_s, change) for starts_s in levels if (change := _change_asked(starts_s, tick_s)) is not None]
    return [*asked[:1], *[each for each in asked[1:] if each[1] == CHANGE and asked[0][1] != CHANGE][:1]]


class _Begun:
    """A job at the time from which on something is wrong."""

    def __init__(self, recording: JobRecording) -> None:
        log = recording.log
        self.at_s = log.start_s + _AT * (log.stop_s - log.start_s)
        self.early = 0
        self._player = _Player(recording)
        self.size = _batch(recording)
        before = None
        for _ in self._player.play(recording, self.at_s):
            self.early += before is None and self._player.watch.change is not None
            before = self._player.watch.change

    def first_told(self, faulty: JobRecording, cycle_s: float) -> tuple[float, PaceChange] | None:
        """When something is told first, and what; None where nothing is, or something had been told already."""
        if self._player.watch.change is not None:
            return None
        player, until_s = self._player.copy(), self.at_s + max(_LOOKED_S, _LOOKED_CYCLES * cycle_s)
        for now_s in player.play(faulty, min(until_s, faulty.log.stop_s)):
            if player.watch.change is not None:
                return now_s, player.watch.change
        return None

    def trial(self, group: str, slowed: JobRecording, starts_s: FloatArray, change: float) -> Trial:
        """How soon it is told that a level takes longer, whose cycles would have begun at those times without it."""
        told = self.first_told(slowed, float(np.median(np.diff(starts_s))))

        def cycles(until_s: float) -> float:
            planned_s = [self.at_s, self.at_s + (until_s - self.at_s) / (1 + change)]
            begin, end = np.interp(planned_s, starts_s, np.arange(starts_s.size))
            return float(end - begin)

        behind_s = self.at_s + (starts_s[starts_s >= self.at_s] - self.at_s) * (1 + change)
        # A cycle's end is seen with the tick behind it.
        known_s = float(behind_s[_FEWEST_TOLD]) + slowed.interval_s if behind_s.size > _FEWEST_TOLD else math.inf
        comes = np.searchsorted(slowed.time_s, known_s) // self.size * self.size + self.size - 1
        at_best = cycles(float(slowed.time_s[comes])) if comes < slowed.time_s.size else math.inf
        return Trial(
            group, change, self.at_s / 3600, self.early, math.inf if told is None else cycles(told[0]), at_best, {}
        )


def of_generated(task: tuple[str, int, int]) -> list[Trial]:
    """Trials of one generated job; none where the bar does not speak of it."""
    made = job(*task, longest_s=_LONGEST_S)
    recording = generated(made)
    shortest = _shortest(
        [level.starts_s for level in made.levels if len(level.starts_s) > _FEWEST], recording.interval_s
    )
    if not shortest:
        return []
    begun, found = _Begun(recording), []
    for starts_s, change in shortest:
        slowed = generated(job(*task, longest_s=_LONGEST_S, slower=(begun.at_s, change)))
        trial, cycle_s = begun.trial(str(task[1]), slowed, starts_s, change), float(np.median(np.diff(starts_s)))
        for fault in _CAUSES if change == CHANGE and "power_watts" in recording.values else ():
            faulty = _faulty(recording, fault, begun.at_s, cycle_s)
            if fault.startswith("tenant") and "framebuffer_used_bytes" not in faulty.values:
                continue
            told = begun.first_told(faulty, cycle_s)
            if told is not None:
                trial.causes[fault] = _is_named(faulty, told[1], fault, told[0])
        found.append(trial)
    return found


def of_recording(recording: JobRecording) -> list[Trial]:
    """Trials of a recorded job, one of each level of its log that the bar speaks of and that has enough cycles."""
    begun, log = None, recording.log
    levels = {"steps": log.steps_s, "epochs": log.epochs_s, "evaluations": log.evaluations_s}
    found = []
    for name, spans_s in levels.items():
        starts_s = spans_s[:, 0]
        behind = int((starts_s >= log.start_s + _AT * (log.stop_s - log.start_s)).sum())
        if behind < _FEWEST_BEHIND or starts_s.size - behind < _FEWEST_BEFORE:
            continue
        change, cycle_s = _change_asked(starts_s, recording.interval_s), float(np.median(np.diff(starts_s)))
        if change is None:
            continue
        begun = begun or _Begun(recording)
        group = f"{recording.kind}, {name} of {cycle_s:.0f} s, {100 * change:.0f} %"
        if is_held_back(recording.name, recording.kind):
            group += ", held back"
        found.append(begun.trial(group, slower_cycles(recording, change, begun.at_s), starts_s, change))
    return found


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


def table(found: Sequence[Trial], first: str = "seed") -> list[str]:
    """Lines of a Markdown table: how soon it is told, by group."""
    titles = [first, "jobs", *(f"in {count} cycles" for count in _IN_CYCLES), "at best in 5", "told before the fault"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    groups = sorted({trial.group for trial in found})
    for name, mine in [*((group, [t for t in found if t.group == group]) for group in groups), ("all", list(found))]:
        shares = [f"{np.mean([trial.cycles <= count for trial in mine]):.2f}" for count in _IN_CYCLES]
        shares.append(f"{np.mean([trial.at_best <= _IN_CYCLES[0] for trial in mine]):.2f}")
        early, hours = sum(trial.early for trial in mine), sum(trial.hours for trial in mine)
        lines.append(f"| {name} | {len(mine)} | {' | '.join(shares)} | {early} in {hours:.1f} h |")
    return lines


def causes_table(found: Sequence[Trial]) -> list[str]:
    """Lines of a Markdown table: of which faults the cause is named."""
    lines = ["| cause | told | of these named |", "|---|---|---|"]
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

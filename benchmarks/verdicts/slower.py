"""What got slower: how soon a change of the cycle time is told, what is told of healthy jobs, and which cause is named.

A job runs until 0.7 of its time; from there on it goes on healthy and with each of the faults. The tracker
and the watch are those of a collector: ticks come four seconds at a time, levels as ``EpochTracker`` told them by then.
Set aside from every choice: the recorded kinds gpt3/64, ssd/1 and llama2_70b_lora/1, and the blind kinds of
``benchmarks/epochs``.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import weeks
from faults import drifting, loader_stalls, other_tenant, slower_cycles
from hangs import WEEK_H, upper_bound
from jobs import BLIND, job
from kinds import KINDS
from recordings import JobRecording, generated

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.progress import PaceChange, PaceWatch, slowdown_causes

HELD_BACK = frozenset({"gpt3/64", "ssd/1", "llama2_70b_lora/1"})
FAULTS = ("healthy", "5 %", "10 %", "throttled 5 %", "throttled 10 %", "throttled 20 %", "loader", "drift", "tenant")
_GENERATED_FAULTS = ("healthy", "5 %", "10 %", "throttled 10 %", "loader", "tenant")
_CAUSES = {
    "throttled": ("SM clock", "less power"), "loader": ("wait for data", "pause in"), "tenant": ("another process",),
}  # fmt: skip
COLUMNS = ("jobs", "cycles", "trials", *FAULTS, *(f"cause of {fault}" for fault in _CAUSES))
# Whose tempo changes by design: what is told of them may be right. In data_parallel one GPU is slower now and then.
_CHANGING = weeks.REPEATED | {
    "progressive_resizing", "speech_buckets", "warm_up", "growing_checkpoints", "data_parallel",
}  # fmt: skip
_SEED = 5
_TRACKED_TICKS = 15  # of a week's job that go to tracker and watch together
_BATCH_S = 4.0
_IN_CYCLES = 5.0
_CLEAR_TICKS, _CLEAR_SCATTER, _SHORT_SCATTER = 10.0, 0.01, 0.03
_LOOKED_CYCLES, _LEAST_LOOKED_S = 40, 120.0
_FEWEST_BEFORE = 9  # cycles before the fault, of the level that is followed


@dataclass(frozen=True)
class Trial:
    """One fault in one job.

    Attributes:
        kind: Of the job.
        fault: One of :data:`FAULTS`.
        followed: Whether the level is clear (``10 ticks, 1 %``), short (``5 to 10 ticks``) or scatters more.
        cycles: Until it was told; infinite if it was not.
        error: Of the change that was told.
        early: Whether something was told before the fault.
        cause: Whether the first cause that is told is the fault's; None where none was asked for.
    """

    kind: str
    fault: str
    followed: str
    cycles: float
    error: float
    early: bool
    cause: bool | None = None


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


def _faulty(recording: JobRecording, fault: str, at_s: float, cycle_s: float) -> tuple[JobRecording, float]:
    """A recording with a fault, and by how much its cycles take longer."""
    share = float(fault.split()[-2]) / 100 if fault.endswith("%") else 0.1
    if fault == "healthy":
        return slower_cycles(recording, 0.0, at_s), 0.0
    if fault.startswith("throttled"):
        return slower_cycles(recording, share, at_s, power_exponent=2.0), share
    if fault == "loader":
        ends = recording.log.cycle_ends_s
        first = float(ends[ends < at_s][-1]) if (ends < at_s).any() else at_s
        log = replace(recording.log, cycle_ends_s=np.arange(first + cycle_s, recording.time_s[-1], cycle_s))
        return loader_stalls(replace(recording, log=log), share * cycle_s, at_s), share
    if fault == "drift":
        return drifting(recording, 0.005, cycle_s, at_s), 0.2
    if fault == "tenant":
        return other_tenant(recording, 0, share, at_s), share
    return slower_cycles(recording, share, at_s), share


def _followed(watch: PaceWatch, tick_s: float) -> tuple[float, str] | None:
    """The shortest level that the watch has known for long enough, and how clear it is."""
    known = [(pace.period_s, pace.scatter) for pace in watch.paces if pace.cycles >= _FEWEST_BEFORE]
    if not known:
        return None
    clear = [each for each in known if each[0] >= _CLEAR_TICKS * tick_s and each[1] <= _CLEAR_SCATTER]
    period_s, scatter = min(clear or known)
    if period_s >= _CLEAR_TICKS * tick_s:
        return period_s, "10 ticks or more" if scatter <= _CLEAR_SCATTER else "scatters more"
    return period_s, "5 to 10 ticks" if scatter <= _SHORT_SCATTER else "scatters more"


def trials(recording: JobRecording, at_share: float = 0.7, faults: Sequence[str] = FAULTS) -> list[Trial]:
    """Play a job up to a time, and from there on with each fault; empty where nothing is followed by then."""
    log = recording.log
    at_s = log.start_s + at_share * (min(log.stop_s, float(recording.time_s[-1])) - log.start_s)
    player = _Player(recording)
    told_early = False
    for _ in player.play(recording, at_s):
        told_early |= player.watch.change is not None
    followed = _followed(player.watch, recording.interval_s)
    if followed is None:
        return []
    cycle_s, clarity = followed
    found = []
    for fault in faults:
        made, slower = _faulty(recording, fault, at_s, cycle_s)
        each = player.copy()
        until_s = min(
            at_s + max(_LEAST_LOOKED_S, _LOOKED_CYCLES * cycle_s * (3 if fault == "drift" else 1)), made.log.stop_s
        )
        told: PaceChange | None = None
        cycles = math.inf
        before = each.watch.change
        for now_s in each.play(made, until_s):
            change = each.watch.change
            if change is not None and told is None and before is None:
                cycles = (now_s - at_s) / (cycle_s * (1 + slower))
                told = change
            if told is not None and now_s > at_s + 12 * cycle_s:
                break
        last = each.watch.change or told
        error = math.nan if last is None else last.after_s / last.before_s - 1 - slower
        cause = None if told is None else _cause(made, told, fault, now_s)
        found.append(Trial(recording.kind, fault, clarity, cycles, error, before is not None or told_early, cause))
    return found


def _cause(recording: JobRecording, told: PaceChange, fault: str, now_s: float) -> bool | None:
    expected = _CAUSES.get(fault.split(maxsplit=1)[0])
    if expected is None or (fault == "tenant" and "framebuffer_used_bytes" not in recording.values):
        return None
    stop = int(np.searchsorted(recording.time_s, now_s))
    values = {name: column[:, :stop] for name, column in recording.values.items()}
    said = slowdown_causes(recording.devices, recording.time_s[:stop], values, told.since_s)
    return bool(said) and any(word in said[0] for word in expected)


def of_generated(task: tuple[str, int]) -> list[Trial]:
    """Trials of one generated job; empty where its power is not metered, which the faults are made of."""
    kind, number = task
    recording = generated(job(kind, _SEED, number, blind=kind in BLIND, longest_s=2400.0))
    return trials(recording, faults=_GENERATED_FAULTS) if "power_watts" in recording.values else []


def of_weeks(task: tuple[str, int]) -> tuple[str, float, list[str]]:
    """Kind, hours and what was told of a healthy job of hours to days."""
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
            told.append(change.reason)
        was_told = change is not None
    return task[0], float(played.time_s[-1]) / 3600, told


def table(found: Sequence[Trial], name: str) -> Iterator[str]:
    """Lines of a Markdown table: rows of :data:`COLUMNS`."""
    for clarity in ("10 ticks or more", "5 to 10 ticks", "scatters more"):
        mine = [each for each in found if each.followed == clarity and not each.early]
        if not mine:
            continue
        cells = []
        for fault in FAULTS:
            cycles = np.array([each.cycles for each in mine if each.fault == fault])
            told, soon = np.isfinite(cycles), cycles <= _IN_CYCLES
            cell = f"{told.mean():.2f}" if fault == "healthy" else f"{told.mean():.2f}, {soon.mean():.2f}"
            cells.append(cell if cycles.size else "-")
        for fault in _CAUSES:
            causes = [each.cause for each in mine if each.fault.startswith(fault) and each.cause is not None]
            cells.append(f"{np.mean(causes):.2f} of {len(causes)}" if causes else "-")
        trials = sum(each.fault == "healthy" for each in mine)
        yield "| " + " | ".join((name, clarity, str(trials), *cells)) + " |"


def weeks_table(played: Sequence[tuple[str, float, list[str]]]) -> Iterator[str]:
    """Lines of a Markdown table: changes told of healthy jobs."""
    yield "| jobs | job-weeks | told | per job and week | upper bound (95 %) |"
    yield "|---|---|---|---|---|"
    for name, chosen in (
        ("one tempo", [each for each in played if each[0] not in _CHANGING]),
        ("tempo changes by design", [each for each in played if each[0] in _CHANGING]),
    ):
        hours, told = sum(each[1] for each in chosen), sum(len(each[2]) for each in chosen)
        if chosen:
            rate = told / hours * WEEK_H
            yield (
                f"| {name} ({len(chosen)}) | {hours / WEEK_H:.1f} | {told} | {rate:.2f} | "
                f"{upper_bound(told, hours):.2f} |"
            )
    counts = Counter(kind for kind, _, told in played for _ in told).most_common()
    yield ""
    yield f"Told in: {', '.join(f'{kind} {count}' for kind, count in counts) or 'none'}."


def every_generated(per_kind: int) -> list[tuple[str, int]]:
    """Kinds and numbers of generated jobs."""
    return [(kind, number) for kind in KINDS for number in range(per_kind)]

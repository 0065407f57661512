"""Hangs put into healthy recordings, and alarms where nothing hangs."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import faults
import numpy as np
from jobs import job
from playing import Marks, Told, follow_cycles, is_held_back, play
from recordings import JobRecording, generated
from scipy.stats import chi2
from states import LIVES_ON_S

from gpusonde.epoch_detect.progress import JobState, StateWatch

ALARMS = frozenset({JobState.STALLED, JobState.HUNG})
LEVELS = {
    "silent": 0.0,
    "one rank dead, the others spin": None,
    "all spin at 0.17": 0.17,
    "all spin at 0.40": 0.40,
    "all spin at 0.55": 0.55,
}
EARLIEST_S, _LASTS_S = 40.0, 320.0
LEAST_S = 25.0  # that three cycles are given
WEEK_H = 168.0
SEED = 9611  # of generated jobs, by which no rule was chosen
WAYS = ("at any time", "behind an evaluation")


@dataclass(frozen=True)
class Trial:
    """One hang.

    Attributes:
        kind: Of the recording.
        name: Of the recording.
        how: Key of :data:`LEVELS`.
        delay_s: Until it was named; infinity if it was not.
        state: By which name, in the end.
        pauses: How many pauses of the job were known before it.
        cycle_s: Time from pause to pause; infinity while it was not known.
        stays: Whether it was still named five minutes after it began.
    """

    kind: str
    name: str
    how: str
    delay_s: float
    state: str
    pauses: int
    cycle_s: float
    stays: bool = True


def hang_marks(recording: JobRecording, at_s: float, level: float | None) -> Marks:
    """What the processes do: a processor per device while it trains or spins, nothing where they wait, nothing written.

    Of a dead rank the process is still there: a process that is gone would tell at once.
    """
    devices = len(recording.devices)

    def marks(watch: StateWatch, now_s: float) -> None:
        busy = 1.1 * devices
        if now_s >= at_s:
            busy = 0.02 if level == 0 else devices - 1.0 if level is None else 1.0 * devices
        watch.note_marks(now_s, written_bytes_per_s=0.0, processors=busy, processes=devices)

    return marks


def hang(recording: JobRecording, told: Told, how: str, rng: np.random.Generator, *, with_marks: bool) -> Trial | None:
    """Hang a job at some time; None where it is too short for that."""
    first_s, stop_s = working(recording)
    if stop_s - first_s < 60.0:
        return None
    at_s, level = float(rng.uniform(first_s + EARLIEST_S, stop_s)), LEVELS[how]
    hung = faults.hang(recording, at_s, level, _LASTS_S, rng)
    known = [each for each in told if each[0] < at_s]
    named_s, state, pauses, cycle_s = np.inf, "", 0, np.inf
    for now_s, watch in play(hung, known, hang_marks(recording, at_s, level) if with_marks else None):
        if now_s < at_s:
            pauses, cycle_s = watch._pauses.count, watch._pauses.cycle_s
        elif watch.report.state in ALARMS:
            named_s, state = min(named_s, now_s - at_s), str(watch.report.state)
            if now_s - at_s > named_s + 10.0:
                break
    return Trial(recording.kind, recording.name, how, named_s, state, pauses, cycle_s)


def of_generated(task: tuple[str, int, int]) -> list[Trial]:
    """Hangs of a generated job that trains, in which the tracker goes on and may find cycles in noise."""
    kind, seed, number = task
    made = job(kind, seed, number, blind=True, longest_s=1800.0)
    if made.run_state != "training" or "power_watts" not in made.traces[0].values:
        return []
    recording = generated(made)
    rng = np.random.default_rng([seed, number, *kind.encode()])  # else all kinds of a seed hang at one share of the job
    first_s, stop_s = working(recording)
    begins_s = [float(rng.uniform(first_s + EARLIEST_S, max(stop_s, first_s + EARLIEST_S + 1.0)))]
    ends_s = [
        end_s
        for (_, state), (end_s, _) in itertools.pairwise(made.states)
        if state == "evaluating" and first_s + EARLIEST_S < end_s < stop_s
    ]
    begins_s += [float(rng.choice(ends_s))] if ends_s else []
    found = []
    for way, at_s in zip(WAYS, begins_s, strict=False):
        if at_s >= stop_s:
            continue  # it has ended before
        hung = faults.hang(recording, at_s, float(rng.choice([0.0, 0.17, 0.40])), _LASTS_S, rng)
        named_s, state, pauses, cycle_s = np.inf, JobState.UNKNOWN, 0, np.inf
        for now_s, watch in play(hung, follow_cycles(hung)):
            state = watch.report.state
            if now_s < at_s:
                pauses, cycle_s = watch._pauses.count, watch._pauses.cycle_s
            elif state in ALARMS:
                named_s = min(named_s, now_s - at_s)
        found.append(Trial(kind, made.name, way, named_s, str(state), pauses, cycle_s, stays=state in ALARMS))
    return found


def generated_table(trials: Sequence[Trial]) -> list[str]:
    """Lines of a Markdown table: hangs with the tracker, by seed and when they begin."""
    lines = [
        "| seed, hung | trials | in 60 s | 3 pauses | in 60 s | in 3 cycles | fewer | in 60 s | never | after 320 s |",
        "|" + "---|" * 10,
    ]
    seeds = sorted({trial.name.split("-")[-2] for trial in trials})
    for seed, way in itertools.product(seeds, WAYS):
        mine = [trial for trial in trials if trial.how == way and trial.name.split("-")[-2] == seed]
        known = [trial for trial in mine if trial.pauses >= 3]
        fresh = [trial for trial in mine if trial.pauses < 3]
        in_cycles = _share([trial.delay_s <= max(3 * trial.cycle_s, LEAST_S) for trial in known])
        counts = [f"{len(some)} | {_share([trial.delay_s <= 60 for trial in some])}" for some in (mine, known, fresh)]
        never = _share([np.isinf(trial.delay_s) for trial in mine])
        stays = _share([trial.stays for trial in mine])
        lines.append(f"| {seed}, {way} | {counts[0]} | {counts[1]} | {in_cycles} | {counts[2]} | {never} | {stays} |")
    missed = Counter(trial.kind for trial in trials if not trial.stays).most_common()
    return [*lines, "", f"Not named at the end: {', '.join(f'{kind} {count}' for kind, count in missed) or 'none'}."]


def _share(hits: Sequence[bool]) -> str:
    return f"{np.mean(hits):.1%}" if hits else "-"


def working(recording: JobRecording) -> tuple[float, float]:
    """When a job works by its log; by its power where the log does not say when it starts or stops."""
    log, power = recording.log, recording.power.mean(axis=0)
    works = recording.time_s[power > recording.idle_watts + 0.5 * (np.quantile(power, 0.9) - recording.idle_watts)]
    first_s = float(works[0]) if log.start_s <= 0 and len(log.evaluations_s) == 0 else max(log.start_s, 0.0)
    return first_s, min(log.stop_s, float(works[-1]))


def alarms(recording: JobRecording, told: Told, marks: Marks | None = None) -> list[tuple[float, str, str]]:
    """Times at which an alarm begins, its state and its reason."""
    found, before = [], JobState.UNKNOWN
    for now_s, watch in play(recording, told, marks):
        report = watch.report
        if report.state in ALARMS and before not in ALARMS:
            found.append((now_s, str(report.state), report.reason))
        before = report.state
    return found


def ends_with_its_log(recording: JobRecording) -> Marks:
    """Its processes are gone some seconds after its log ends; else nothing is known of them."""

    def marks(watch: StateWatch, now_s: float) -> None:
        watch.note_marks(now_s, processes=int(now_s < recording.log.stop_s + LIVES_ON_S))

    return marks


def upper_bound(events: int, hours: float) -> float:
    """Upper end of the 95 % interval of events a week."""
    return float(chi2.ppf(0.95, 2 * events + 2)) / 2 / hours * WEEK_H


def table(trials: Sequence[Trial], title: str, *, kinds: bool) -> list[str]:
    """Lines of a Markdown table, one kind of hang each where that is wanted, and all together."""
    by: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        by[trial.how].append(trial)
    lines = [
        f"| {title} | trials | in 60 s | held back | median s | p90 s | never | `hung` | 3 pauses | in 3 cycles |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for how, mine in [*(by.items() if kinds else ()), ("all", list(trials))]:
        delay = np.array([t.delay_s for t in mine])
        back = np.array([t.delay_s for t in mine if is_held_back(t.name, t.kind)])
        some = [t for t in mine if t.pauses >= 3]
        within = np.array([t.delay_s <= max(3 * t.cycle_s, LEAST_S) for t in some])
        lines.append(
            f"| {how} | {len(mine)} | {np.mean(delay <= 60):.1%} | {np.mean(back <= 60):.1%} | "
            f"{np.median(delay):.0f} | {np.quantile(delay, 0.9):.0f} | {np.mean(np.isinf(delay)):.1%} | "
            f"{np.mean([t.state == JobState.HUNG for t in mine]):.0%} | {len(some)} | "
            f"{f'{within.mean():.0%}' if some else '-'} |"
        )
    return lines

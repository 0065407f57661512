"""Weeks of generated jobs that are healthy, or at least not hung: training, serving, notebooks, growing checkpoints.

They are the jobs of ``benchmarks/epochs``, thinned in time so that weeks can be computed: hours to days long, a tick
every four seconds, which is a second's mean or what the driver's own windows say then; steps shorter than the budget's
250,000th are made longer. What their processes do is made up from what the script says the job does, not measured.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hangs import ALARMS, WEEK_H, upper_bound
from numpy.random import Generator
from playing import Marks, batches
from recordings import JobLog, JobRecording

from gpusonde.epoch_detect import EpochTracker
from gpusonde.epoch_detect.progress import JobState, StateWatch

sys.path.append(str(Path(__file__).resolve().parents[1] / "epochs"))

import kinds as kinds_module
import script as script_module
from jobs import BLIND
from kinds import KINDS
from script import Script
from simulation import Recording, log_uniform

TICK_S = 4.0
_SHORTEST_S, _LONGEST_S = 4 * 3600.0, 48 * 3600.0
_USUAL_S = (900.0, 14_400.0)  # of a job, from whose number of epochs their length is drawn
_MOST_GPUS = 2
_MOST_PIECES = script_module.MOST_PIECES
# Whose pauses grow with what is planned for them: they are repeated, drawn anew each time, as one job.
REPEATED = frozenset(
    {"llm_pretraining", "lora_accumulation", "narrow_dips", "hyperparameter_trials", "batch_inference", "rl_loop",
     "cron", "hpc_iterations", "visible_steps", "two_stages", "repeated_program"}
)  # fmt: skip
_TRACKED_TICKS = 15  # a minute's go to the tracker together: a third of the work, and what it tells comes as rarely
SEED = 12_611  # of no job that a threshold was chosen by
# Processors, per GPU for the first two, and whether it writes.
PROCESSORS = {"training": 1.2, "other": 1.2, "evaluating": 1.5, "checkpointing": 1.0, "starting": 1.0, "serving": 0.3}
RESTING_PROCESSORS = 0.01
INTERACTIVE = ("notebook", "queue_of_programs", "cron", "idle_with_spikes")
_PROGRAMS = ("queue_of_programs", "cron")
SERVING = ("serving", "token_serving")
_OTHER = ("batch_inference", "rl_loop", "hpc_iterations", "two_stages", "repeated_program")
_BY_USE, _BY_POWER = "all of these", "of all kinds, only the power of the node metered"
_LEAST_STALL_S = 60.0  # of the script, for an alarm to be missed


class _LongScript(Script):
    """A script whose epochs take as long as those of an hour's job, only that there are more of them."""

    def sized(self, fewest: int, most: int, shortest_s: float) -> tuple[int, float]:
        """Draw how long an epoch takes, and how many fill the budget."""
        usual_s = log_uniform(self.rng, *_USUAL_S)
        count = round(log_uniform(self.rng, fewest, max(fewest, min(most, usual_s / shortest_s))))
        return max(fewest, round(self.budget_s / (usual_s / count))), usual_s / count


def growing_checkpoints(s: Script) -> None:
    """Steps without epochs; every checkpoint holds more than the one before by the same amount."""
    s.gpus = int(s.rng.choice([1, 2, 4, 8]))
    each_s = log_uniform(s.rng, 60, 1800)
    step_s, count = s.plan_steps(each_s, 0.5, 8.0)
    step, pause_s = s.step(step_s, wait=0.0), log_uniform(s.rng, 5, 30)
    grows_s = pause_s * log_uniform(s.rng, 0.02, 0.3)
    number = 0
    while s.line.now_s < s.budget_s:
        s.train(step, count)
        s.checkpoint(s.disk_gb_s * (pause_s + grows_s * min(number, 60)), mark=True)
        number += 1


def _thin(share: float) -> None:
    """Let a program that is repeated have its share of a job's pieces."""
    script_module.MOST_PIECES = kinds_module.MOST_PIECES = int(_MOST_PIECES * min(1.0, share))


_KINDS: dict[str, Callable[[Script], None]] = {**KINDS, "growing_checkpoints": growing_checkpoints}
ALL_KINDS = tuple(_KINDS)


@dataclass(frozen=True)
class Alarm:
    """A job was called stalled or hung.

    Attributes:
        kind: Of the job.
        at_s: When.
        truth: What it did then.
        state: What was said.
        reason: Why.
    """

    kind: str
    at_s: float
    truth: str
    state: str
    reason: str


@dataclass(frozen=True)
class Played:
    """A generated job, watched.

    Attributes:
        kind: Of the job.
        hours: That it was watched.
        false: Alarms while it did not hang.
        stalls: Stalls of the script of a minute or longer.
        named: How many of them were named.
        by_power: Whether all that was metered is the power of its node.
        ended: Whether it was ``ended`` at the end of what was seen.
    """

    kind: str
    hours: float
    false: tuple[Alarm, ...]
    stalls: int
    named: int
    by_power: bool
    ended: bool


def made(kind: str, seed: int, number: int) -> JobRecording:
    """Generate a job."""
    rng = _rng(kind, seed, number)
    script = _LongScript(rng, _budget_s(rng))
    recording = replace(Recording.drawn(rng, script.budget_s), interval_s=TICK_S)
    script.tick_s = recording.interval_s
    script.start_up()
    total_s = script.budget_s
    if kind in REPEATED:
        usual_s = log_uniform(rng, *_USUAL_S)
        _thin(usual_s / total_s)
        while script.line.now_s < total_s:
            script.budget_s = min(usual_s, total_s)
            _KINDS[kind](script)
    else:
        _thin(1.0)
        _KINDS[kind](script)
    script.checkpoint(log_uniform(rng, 0.05, 4))
    end_s = script.line.now_s
    script.line.hold_memory(0.0)
    script.line.stay(120.0, np.zeros(8), "ended")
    pieces = script.line.pieces()
    ticks = recording.ticks(rng, 0.0, script.line.now_s)
    watched = 1 if recording.profile == "node" else min(_MOST_GPUS, script.gpus)
    traces = [recording.trace(pieces, rng, ticks, gpu) for gpu in range(watched)]
    shared = [name for name in traces[0].values if all(name in trace.values for trace in traces)]
    values = {name: np.array([trace.values[name] for trace in traces]) for name in shared}
    shift = float(ticks[0])
    states = tuple((max(at - shift, 0.0), state) for at, state in script.line.states())
    idle = float(np.nanmin(values["power_watts"])) if "power_watts" in values else recording.board.cold_watts
    log = JobLog(0.0, end_s - shift, states=states)
    name = f"{kind}-{number}"
    return JobRecording(name, kind, tuple(t.gpu_uuid for t in traces), traces[0].time_s, values, idle, log)


def process_marks(job: JobRecording, *, looks: bool) -> Marks:
    """What the processes are said to do: what they write and compute, or only that they live."""
    at = np.array([when for when, _ in job.log.states])
    names = [state for _, state in job.log.states]
    rng = np.random.default_rng(len(at))

    def marks(watch: StateWatch, now_s: float) -> None:
        state = names[max(int(np.searchsorted(at, now_s, side="right")) - 1, 0)]
        # A program that is started by the clock or from a queue ends, and the next one is another.
        between = state == "idle" and job.kind in _PROGRAMS
        alive = len(job.devices) if now_s < job.log.stop_s and not between else 0
        if not looks:
            watch.note_marks(now_s, processes=alive)
            return
        usual = PROCESSORS.get(state, RESTING_PROCESSORS)
        busy = usual * float(np.exp(0.2 * rng.normal()))
        written = 2e8 if state == "checkpointing" else 0.0
        watch.note_marks(now_s, written_bytes_per_s=written, processors=busy, processes=alive)

    return marks


def watched(kind: str, seed: int, number: int, *, looks: bool) -> Played:
    """Watch a job, with what its processes do or only with their end."""
    job = made(kind, seed, number)
    mean = job.trace().values
    names = tuple(mean)
    rows = np.array([mean[name] for name in names])
    tracker, watch = EpochTracker(names), StateWatch(len(job.devices), idle_watts=job.idle_watts)
    marks = process_marks(job, looks=looks)
    at = np.array([when for when, _ in job.log.states])
    found, before, last, tracked = [], JobState.UNKNOWN, None, 0
    for part in batches(job.time_s):
        now_s = float(job.time_s[part][-1])
        if part.stop - tracked >= _TRACKED_TICKS:
            tracker.update(job.time_s[tracked : part.stop], rows[:, tracked : part.stop])
            tracked = part.stop
        if tracker.detection is not None and tracker.detection is not last:
            last = tracker.detection
            watch.note_detection(last)
        marks(watch, now_s)
        watch.update(job.time_s[part], {name: column[:, part] for name, column in job.values.items()})
        report = watch.report
        if report.state in ALARMS and before not in ALARMS:
            truth = job.log.states[max(int(np.searchsorted(at, now_s, side="right")) - 1, 0)][1]
            found.append(Alarm(kind, now_s, truth, str(report.state), report.reason))
        before = report.state
    ends = [*at[1:], float(job.time_s[-1])]
    spans = zip(job.log.states, ends, strict=True)
    stalls = [(begin, end) for (begin, state), end in spans if state == "stalled" and end - begin >= _LEAST_STALL_S]
    right = [alarm.at_s for alarm in found if alarm.truth == "stalled"]
    return Played(
        kind,
        float(job.time_s[-1]) / 3600,
        tuple(alarm for alarm in found if alarm.truth != "stalled"),
        len(stalls),
        sum(any(begin <= at_s <= end + TICK_S for at_s in right) for begin, end in stalls),
        set(job.values) == {"power_watts"},
        watch.report.state == JobState.ENDED,
    )


def every_job(hours: float, seed: int, kinds: Sequence[str] = ALL_KINDS) -> Iterator[tuple[str, int, int]]:
    """Kinds, seed and numbers of jobs in turn, until they have lasted for so long, as planned."""
    planned_h, number = 0.0, 0
    while planned_h < hours:
        for kind in kinds:
            planned_h += _budget_s(_rng(kind, seed, number)) / 3600
            yield kind, seed, number
            if planned_h >= hours:
                return
        number += 1


def _rng(kind: str, seed: int, number: int) -> Generator:
    return np.random.default_rng([seed, number, list(_KINDS).index(kind)])


def _budget_s(rng: Generator) -> float:
    return log_uniform(rng, _SHORTEST_S, _LONGEST_S)


def table(jobs: Sequence[Played], *, kinds: bool) -> list[str]:
    """Lines of a Markdown table: alarms by kind of job where that is wanted, and of all of them."""
    groups = {
        "training": [k for k in _KINDS if k not in BLIND and k not in (*INTERACTIVE, *SERVING, *_OTHER)],
        "training of kinds set aside": [k for k in BLIND if k not in (*INTERACTIVE, *SERVING, *_OTHER)],
        "serving": SERVING,
        "notebooks, queues, by the clock, idle": INTERACTIVE,
        "other work": _OTHER,
        _BY_USE: tuple(_KINDS),
        _BY_POWER: tuple(_KINDS),
    }
    lines = [
        "| jobs | job-weeks | false alarms | per job and week | upper bound (95 %) | stalls named | ended |",
        "|---|---|---|---|---|---|---|",
    ]
    wanted = [*groups] if kinds else [_BY_USE, _BY_POWER]
    for name in wanted:
        mine = [job for job in jobs if job.kind in groups[name] and (job.by_power or name != _BY_POWER)]
        if name != _BY_POWER:
            mine = [job for job in mine if not job.by_power]
        hours = sum(job.hours for job in mine)
        if not mine:
            continue
        false, stalls, named = (
            sum(each) for each in zip(*((len(j.false), j.stalls, j.named) for j in mine), strict=True)
        )
        lines.append(
            f"| {name} ({len(mine)}) | {hours / WEEK_H:.1f} | {false} | {false / hours * WEEK_H:.2f} | "
            f"{upper_bound(false, hours):.2f} | {named} of {stalls} | "
            f"{sum(job.ended for job in mine)} |"
        )
    alarms: dict[tuple[bool, str, str], list[Alarm]] = defaultdict(list)
    for job in jobs:
        for alarm in job.false:
            alarms[job.by_power, alarm.kind, alarm.truth].append(alarm)
    lines.append("")
    for (by_power, kind, truth), mine in sorted(alarms.items()):
        if not by_power:
            lines.append(f"- {len(mine)} in {kind}, {truth}: {mine[0].state}, {mine[0].reason}")
    counts = Counter(alarm.kind for (by_power, *_), mine in alarms.items() if by_power for alarm in mine)
    lines.append(
        f"- by the power of the node: {', '.join(f'{kind} {n}' for kind, n in counts.most_common()) or 'none'}"
    )
    return lines

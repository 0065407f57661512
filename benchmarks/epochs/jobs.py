"""Training jobs of today, simulated step by step, with every level of their tree of cycles labelled.

:data:`KINDS` names them. Those of :data:`BLIND` are set aside: :func:`fit_jobs` and :func:`job` do not make them unless
told to. They were chosen before anything was fitted to the others, and differ from them in nature:

* detection: an epoch of minutes with an evaluation after each, whose post-processing runs on the CPU;
* diffusion_samples: fine-tuning that draws samples every k epochs;
* speech_buckets: batches by length, so a step's duration varies within the epoch;
* hyperparameter_trials: trainings of different batch size one after the other;
* progressive_resizing: the tempo of step and epoch changes with the image size;
* early_stopping: runs that end after different numbers of epochs;
* recommender: steps of milliseconds, evaluation every fraction of an epoch;
* rl_loop: rollouts and updates, a cycle without epochs; cron: a scheduled program; notebook: somebody tries things out.

``python benchmarks/epochs/jobs.py --pictures DIR`` draws one job of each kind.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kinds import KINDS
from numpy.random import Generator
from script import Script
from simulation import Level, Recording, log_uniform, seen

from gpusonde.epoch_detect import CycleRole
from gpusonde.epoch_detect.evaluation import TrueLevel, Truth
from gpusonde.telemetry import Trace

BLIND = frozenset(
    {"detection", "diffusion_samples", "speech_buckets", "hyperparameter_trials", "progressive_resizing",
     "early_stopping", "recommender", "rl_loop", "cron", "notebook"}
)  # fmt: skip

_BLIND_STREAM = 77_001


@dataclass(frozen=True)
class Job:
    """A job, how it was recorded, and what is true of it.

    Attributes:
        name: Kind, seed and number.
        kind: A key of :data:`KINDS`.
        traces: One per GPU that was watched, on one clock.
        levels: Every level that repeats, shortest first, also those that the recording cannot show.
        states: (second, state) where the state changes: ``starting training evaluating checkpointing idle stalled
            serving other``.
        run_state: What the whole is: ``training``, ``serving``, ``idle`` or ``other``.
        epochs: Epochs of the whole job; None where it has none.
        steps_per_epoch: Likewise; None where they differ.
        end_s: When the job ends, in the traces' time; may lie after the last tick.
    """

    name: str
    kind: str
    traces: tuple[Trace, ...]
    levels: tuple[Level, ...]
    states: tuple[tuple[float, str], ...]
    run_state: str
    epochs: int | None
    steps_per_epoch: int | None
    end_s: float

    @property
    def periods_s(self) -> tuple[float, ...]:
        """Periods that are a right best guess: the epoch's; where none is to be seen, any visible level with a name.

        Empty for what is no training, and for a training that the recording shows nothing of, which says nothing.
        """
        if self.run_state != "training":
            return ()
        shown = [level for level in self.levels if level.visible and level.role is not CycleRole.UNKNOWN]
        chosen = [level for level in shown if level.role is CycleRole.EPOCH] or shown
        return tuple(period for level in chosen for period in (level.period_s, *level.regimes_s))

    @property
    def truth(self) -> Truth | None:
        """What its traces are scored with; None for a training that the recording shows nothing of."""
        if self.run_state == "training" and not self.periods_s:
            return None
        levels = tuple(
            TrueLevel(
                (each.period_s, *each.regimes_s), (each.role, *each.also), each.visible, tuple(each.starts_s.tolist())
            )
            for each in self.levels
        )
        first = self.periods_s[:1]
        starts = next((level.starts_s for level in levels if level.periods_s[:1] == first), ())
        return Truth(self.periods_s, starts, self.kind, levels)

    @property
    def visible(self) -> tuple[Level, ...]:
        """Levels that the recording shows."""
        return tuple(level for level in self.levels if level.visible)


FIT = tuple(kind for kind in KINDS if kind not in BLIND)


def job(
    kind: str,
    seed: int,
    number: int,
    *,
    blind: bool = False,
    longest_s: float = 3600.0,
    slower: tuple[float, float] | None = None,
) -> Job:
    """Simulate a job; the same for the same kind, seed and number.

    Args:
        kind: A key of :data:`KINDS`.
        seed: Of the set.
        number: Of the job in it.
        blind: Whether a kind of :data:`BLIND` may be made; what is fitted or chosen must not look at one.
        longest_s: Seconds that the job is planned for, at most.
        slower: From which second of the traces on all takes longer, and by which share. Up to there, and in how long
            they are, the traces are the same without it.

    Raises:
        ValueError: The kind is set aside, or there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no kind {kind!r}; choose from {', '.join(KINDS)}")
    if kind in BLIND and not blind:
        raise ValueError(
            f"{kind} is set aside: nothing that is fitted may look at it; for a final test, say blind=True"
        )
    stream = _BLIND_STREAM if kind in BLIND else 0
    rng = np.random.default_rng([seed, number, list(KINDS).index(kind), stream])
    script = Script(rng, log_uniform(rng, min(300.0, longest_s / 4), longest_s))
    recording = Recording.drawn(rng, script.budget_s)
    script.tick_s = recording.interval_s
    if recording.interval_s >= 0.5 and rng.random() < 0.5:
        script.budget_s = min(2.5 * script.budget_s, 3 * longest_s)
    script.start_up()
    KINDS[kind](script)
    end_s = script.line.now_s
    script.wind_down()
    first_s, stop_s = 0.0, script.line.now_s
    if rng.random() < 0.25:  # recorded from the middle of the job on, or while it goes on
        first_s = rng.uniform(0, 0.35) * stop_s if rng.random() < 0.4 else 0.0
        stop_s = first_s + rng.uniform(0.4, 1.0) * (stop_s - first_s)
    zero_s = first_s + recording.interval_s
    if slower is not None:
        script.line.slow_down(zero_s + slower[0], slower[1])
        end_s += slower[1] * max(end_s - zero_s - slower[0], 0.0)
    traces = _traces(script, recording, rng, first_s, stop_s)
    levels = [seen(each, traces, recording.interval_s, zero_s) for each in script.line.levels(first_s, stop_s)]
    states = tuple((max(at - zero_s, 0.0), state) for at, state in _within(script.line.states(), first_s, stop_s))
    return Job(
        f"{kind}-{seed}-{number}", kind, traces, tuple(levels), states, script.run_state, script.epochs,
        script.steps_per_epoch, end_s - zero_s,
    )  # fmt: skip


def _traces(script: Script, recording: Recording, rng: Generator, first_s: float, stop_s: float) -> tuple[Trace, ...]:
    pieces, made = script.line.pieces(), []
    watched = 1 if recording.profile == "node" else script.gpus
    straggler = int(rng.integers(watched))
    ticks = recording.ticks(rng, first_s, stop_s)
    for gpu in range(watched):
        its = pieces
        if watched > 1:
            faster = 1 - script.gpu_spread * rng.random() if gpu != straggler else 1.0
            its = pieces.on_faster_gpu(faster, straggler=gpu == straggler)
        made.append(recording.trace(its, rng, ticks, gpu))
    # All ticks start at the recording's own first instant, not at the first tick that was not lost.
    shift = float(ticks[0]) - first_s - recording.interval_s
    return tuple(Trace(t.time_s + shift, t.values, gpu_uuid=t.gpu_uuid, gpu_model=t.gpu_model) for t in made)


def _within(states: Sequence[tuple[float, str]], first_s: float, stop_s: float) -> list[tuple[float, str]]:
    ends = [at for at, _ in states[1:]] + [float("inf")]
    return [state for state, end in zip(states, ends, strict=True) if end > first_s and state[0] < stop_s]


def fit_jobs(seed: int, numbers: Sequence[int], longest_s: float = 3600.0) -> Iterator[Job]:
    """Simulate jobs to fit with, of the kinds that are not set aside, one kind after the other."""
    for number in numbers:
        yield job(FIT[number % len(FIT)], seed, number, longest_s=longest_s)


def blind_jobs(seed: int, per_kind: int, longest_s: float = 3600.0) -> Iterator[Job]:
    """Simulate jobs of the kinds that are set aside, for a final test only."""
    for kind in sorted(BLIND):
        for number in range(per_kind):
            yield job(kind, seed, number, blind=True, longest_s=longest_s)


def main() -> None:
    """Draw one job of each kind, or count what the jobs hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-kind", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--pictures", type=Path, help="draw them into this folder")
    arguments = parser.parse_args()
    for kind in arguments.kind or KINDS:
        for number in range(arguments.per_kind):
            begin = time.process_time()
            made = job(kind, arguments.seed, number, blind=True)
            spent = time.process_time() - begin
            ticks = sum(len(trace) for trace in made.traces)
            levels = "; ".join(
                f"{level.name} {level.period_s:.3g} s x {level.starts_s.size}{'' if level.visible else ' unseen'}"
                f" F {level.contrast:.0f}"
                for level in made.levels
            )
            print(f"{made.name:32} {spent:5.2f} s, {len(made.traces)} GPUs, {ticks} ticks: {levels}", flush=True)
            if arguments.pictures:
                _draw(made, arguments.pictures)


def _draw(made: Job, folder: Path) -> None:
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    trace = made.traces[0]
    figure = Figure(figsize=(18, 1.3 * len(trace.values) + 1))
    axes = figure.subplots(len(trace.values), 2, squeeze=False, width_ratios=(3, 2))
    middle = trace.duration_s / 2
    for (whole, close), (name, values) in zip(axes, trace.values.items(), strict=True):
        whole.plot(trace.time_s, values, linewidth=0.5)
        near = np.abs(trace.time_s - middle) < max(40 * trace.interval_s, min(30, middle))
        close.plot(trace.time_s[near], values[near], linewidth=0.8, marker=".", markersize=3)
        whole.set_ylabel(name[:18], fontsize=7)
    levels = ", ".join(f"{level.name} {level.period_s:.3g} s" for level in made.levels)
    figure.suptitle(f"{made.name} ({trace.gpu_model}): {levels}", fontsize=9)
    figure.savefig(folder / f"{made.name}.png", dpi=60)


if __name__ == "__main__":
    main()

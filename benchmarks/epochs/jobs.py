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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from simulation import COPY, IDLE, TO_HOST, Level, Recording, Step, Timeline, load, log_uniform, seen

from gpusonde.epoch_detect import Role
from gpusonde.epoch_detect.evaluation import TrueLevel, Truth
from gpusonde.telemetry import Trace

BLIND = frozenset(
    {"detection", "diffusion_samples", "speech_buckets", "hyperparameter_trials", "progressive_resizing",
     "early_stopping", "recommender", "rl_loop", "cron", "notebook"}
)  # fmt: skip

_MOST_PIECES = 250_000
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
        shown = [level for level in self.levels if level.visible and level.role is not Role.UNKNOWN]
        chosen = [level for level in shown if level.role is Role.EPOCH] or shown
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


class _Script:
    """What the kinds are written with: a timeline, a budget of seconds, and the habits of training programs."""

    def __init__(self, rng: Generator, budget_s: float) -> None:
        self.rng, self.budget_s = rng, budget_s
        self.line = Timeline(rng)
        self.gpus = 1
        self.gpu_spread = 0.0
        self.straggles = False
        self.run_state = "training"
        self.epochs: int | None = None
        self.steps_per_epoch: int | None = None
        # Forking workers, filling the pipeline: seconds without work at each new loader; none if workers persist.
        self.turn_s = 0.0 if rng.random() < 0.2 else log_uniform(rng, 0.15, 5.0)
        self.disk_gb_s = log_uniform(rng, 0.15, 3.0)
        self.held = rng.uniform(0.35, 0.95)
        self._steps = 0

    def start_up(self) -> None:
        """Idle, imports on the CPU, the model goes to the GPU, kernels are tried out or compiled."""
        rng, line = self.rng, self.line
        if rng.random() < 0.85:
            line.stay(log_uniform(rng, 3, 60), IDLE, "idle")
        line.hold_memory(0.03)
        line.stay(log_uniform(rng, 1, 15), IDLE, "starting")
        line.hold_memory(self.held * 0.5)
        line.stay(log_uniform(rng, 0.2, 8), COPY, "starting")
        for _ in range(int(rng.integers(0, 12))):
            line.stay(
                log_uniform(rng, 0.1, 2), load(sm=0.2, dram=0.1, power=rng.uniform(0.05, 0.5), busy=0.3), "starting"
            )
            line.stay(log_uniform(rng, 0.2, 4), IDLE, "starting")
        line.hold_memory(self.held)

    def wind_down(self) -> None:
        """A last checkpoint, then nothing."""
        self.checkpoint(log_uniform(self.rng, 0.05, 4))
        self.line.hold_memory(0.0)
        if self.rng.random() < 0.85:
            self.line.stay(log_uniform(self.rng, 3, 60), IDLE, "idle")

    def step(self, seconds: float, *, tensor: float | None = None, micro: int = 1, wait: float | None = None,
             comm: float | None = None, scatter: float | None = None) -> Step:  # fmt: skip
        """Draw a training step.

        Args:
            seconds: Its duration.
            tensor: How much the tensor pipes do.
            micro: Micro-batches of which the gradients are accumulated.
            wait: Share of waiting for data.
            comm: Share of the all-reduce.
            scatter: Relative, of each micro-batch.
        """
        rng = self.rng
        tensor = rng.uniform(0.05, 0.7) if tensor is None else tensor
        wait = float(rng.choice([0.0, 0.0, rng.uniform(0.02, 0.3)])) if wait is None else wait
        comm = (rng.uniform(0.03, 0.3) if self.gpus > 1 else 0.0) if comm is None else comm
        update = rng.uniform(0.02, 0.15) / (1 + 0.3 * (micro - 1))
        copy = rng.uniform(0.005, 0.03)
        forward = rng.uniform(0.28, 0.38)
        sm, dram, power = rng.uniform(0.5, 0.97), rng.uniform(0.2, 0.7), rng.uniform(0.5, 1.0)
        ahead = load(sm, tensor, dram, power, 1.0, link=0.02 * (comm > 0))
        back = load(min(1, sm * rng.uniform(0.95, 1.1)), tensor * rng.uniform(0.9, 1.2),
                    min(1, dram * rng.uniform(0.9, 1.3)), power * rng.uniform(0.9, 1.1), 1.0,
                    link=0.1 * (comm > 0))  # fmt: skip
        reduce_ = load(0.15, 0, 0.15, power * rng.uniform(0.2, 0.5), 1.0, link=rng.uniform(0.3, 0.8))
        adam = load(0.8, 0.0, 0.85, power * rng.uniform(0.4, 0.8), 1.0)
        compute = max(0.05, 1 - wait - comm - update - copy)
        pieces: list[tuple[float, np.ndarray, bool, int]] = []
        for m in range(micro):
            pieces += [(wait / micro, IDLE, False, m), (copy / micro, COPY, False, m),
                       (compute * forward / micro, ahead, True, m),
                       (compute * (1 - forward) / micro, back, True, m)]  # fmt: skip
        pieces += [(comm, reduce_, False, micro - 1), (update, adam, True, micro - 1)]
        pieces = [p for p in pieces if p[0] > 0]
        share = np.array([p[0] for p in pieces])
        return Step(
            share / share.sum() * seconds, np.array([p[1] for p in pieces]), np.array([p[2] for p in pieces]),
            np.array([p[3] for p in pieces]), scatter=log_uniform(rng, 0.003, 0.05) if scatter is None else scatter,
            wander=log_uniform(rng, 0.001, 0.02), slow_share=float(rng.choice([0.0, 0.0, 0.003, 0.02])),
            slow_s=log_uniform(rng, 0.1, 2.0),
        )  # fmt: skip

    def evaluation_batch(self, step: Step) -> Step:
        """Draw a batch of evaluation for a training step: forward only, lower power, often waiting for data."""
        rng = self.rng
        best = step.loads[np.argmax(step.loads[:, 3])]
        ahead = best * np.array([rng.uniform(0.6, 1.0), rng.uniform(0.4, 1), rng.uniform(0.5, 1.1),
                                 rng.uniform(0.35, 0.9), 1, 0, 0, 0])  # fmt: skip
        wait, seconds = rng.uniform(0.05, 0.6), step.usual_s * rng.uniform(0.2, 0.7)
        share = np.array([wait, 0.04, 0.96 - wait])
        return Step(share * seconds, np.array([IDLE, COPY, np.clip(ahead, 0, 1)]), np.array([False, False, True]),
                    np.zeros(3, dtype=int), scatter=rng.uniform(0.02, 0.2))  # fmt: skip

    def plan_steps(self, seconds: float, shortest: float, longest: float, pieces: int = 6) -> tuple[float, int]:
        """Draw a step's duration, and how many fill so many seconds."""
        least = max(shortest, self.budget_s * pieces / _MOST_PIECES)
        if longest >= 0.5 and self.rng.random() < 0.35:  # steps that ticks can show
            least, longest = min(max(least, 0.5), seconds / 8), 6 * longest
        step_s = log_uniform(self.rng, least, max(least * 1.2, min(longest, seconds / 8)))
        return step_s, max(4, round(seconds / step_s))

    def train(self, step: Step, count: int, *, tempo: float | np.ndarray = 1.0) -> None:
        """Append training steps and mark them."""
        starts, micro = self.line.work(step, count, "training", tempo=tempo)
        self.line.mark("step", Role.STEP, starts)
        if micro.size > starts.size:
            self.line.mark("micro-batch", Role.UNKNOWN, micro)
        self._steps += count

    def evaluate(self, batch: Step, seconds: float, *, tail_s: float = 0.0, fork: bool = True) -> None:
        """Append an evaluation, with metrics computed on the CPU at its end."""
        if fork:
            self.line.stay(self.turn_s * self.rng.uniform(0.3, 0.9), IDLE, "evaluating")
        self.line.work(batch, max(1, round(seconds / batch.usual_s)), "evaluating")
        self.line.stay(tail_s * self.rng.uniform(0.8, 1.2), IDLE, "evaluating")

    def checkpoint(self, gigabytes: float, *, mark: bool = False, background: bool = False) -> None:
        """Append a checkpoint: to the host, then to disk, the GPU waiting unless it is written in the background."""
        if mark:
            self.line.mark("checkpoint", Role.CHECKPOINT)
        self.line.stay(gigabytes / 10, TO_HOST, "checkpointing")
        if not background:
            self.line.stay(gigabytes / self.disk_gb_s * self.rng.uniform(0.85, 1.3), IDLE, "checkpointing")

    def begin_epoch(self, *also: Role) -> None:
        """Mark an epoch: workers are forked, the first batches take longer."""
        self.line.mark("epoch", Role.EPOCH, also=also)
        if self.turn_s:
            self.line.stay(self.turn_s * float(np.exp(self.rng.normal(0, 0.15))), IDLE, "training")

    def sized(self, fewest: int, most: int, shortest_s: float) -> tuple[int, float]:
        """Draw a number of epochs, and the seconds that each may take."""
        count = round(log_uniform(self.rng, fewest, max(fewest, min(most, self.budget_s / shortest_s))))
        return count, self.budget_s / count

    def maybe_stall(self) -> None:
        """Now and then everything hangs for a while: a file system, a preempted process."""
        if self.rng.random() < 0.02:
            self.line.stay(log_uniform(self.rng, 2, 0.05 * self.budget_s + 4), IDLE, "stalled")


Kind = Callable[[_Script], None]


def _epoch_of(s: _Script, step: Step, count: int, tempo: float = 1.0) -> None:
    s.begin_epoch()
    s.train(step, count, tempo=tempo)
    s.maybe_stall()


def cnn_validation(s: _Script) -> None:
    """A convolutional network with validation after each epoch, often a checkpoint of the best."""
    epochs, each_s = s.sized(4, 90, 8)
    share = s.rng.uniform(0.04, 0.35)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 1.5)
    step, gigabytes = s.step(step_s), log_uniform(s.rng, 0.02, 0.6)
    batch, best = s.evaluation_batch(step), s.rng.random() < 0.6
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        s.begin_epoch(Role.EVALUATION)
        s.train(step, count)
        s.evaluate(batch, each_s * share, tail_s=0.1)
        if best and s.rng.random() < 1 / (1 + i / 4):
            s.checkpoint(gigabytes)
        s.maybe_stall()


def checkpoint_every_k(s: _Script) -> None:
    """Epochs, every k of them a checkpoint that takes long."""
    k = int(s.rng.integers(2, 11))
    epochs, each_s = s.sized(3 * k, 120, 5)
    step_s, count = s.plan_steps(each_s, 0.04, 1.5)
    step, gigabytes = s.step(step_s), s.disk_gb_s * each_s * s.rng.uniform(0.05, 0.6)
    validates, share = s.rng.random() < 0.5, s.rng.uniform(0.04, 0.2)
    batch = s.evaluation_batch(step)
    s.turn_s = max(s.turn_s, 0.15)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        s.begin_epoch(*([Role.EVALUATION] if validates else []))
        s.train(step, count)
        if validates:
            s.evaluate(batch, each_s * share)
        if (i + 1) % k == 0:
            s.checkpoint(gigabytes, mark=True)


def input_shards(s: _Script) -> None:
    """Data come in shards of a few per epoch; each has to be opened and fetched, which starves the GPU."""
    epochs, each_s = s.sized(3, 40, 15)
    shards = int(s.rng.integers(3, 13))
    step_s, count = s.plan_steps(each_s / shards, 0.04, 0.8)
    step = s.step(step_s, wait=s.rng.uniform(0.1, 0.5), scatter=s.rng.uniform(0.03, 0.2))
    stall_s, batch = each_s / shards * s.rng.uniform(0.03, 0.3), s.evaluation_batch(step)
    validates, share = s.rng.random() < 0.7, s.rng.uniform(0.04, 0.25)
    s.epochs, s.steps_per_epoch = epochs, count * shards
    for _ in range(epochs):
        s.begin_epoch(*([Role.EVALUATION] if validates else []))
        for _ in range(shards):
            s.line.mark("shard", Role.UNKNOWN)
            s.train(step, count)
            s.line.stay(stall_s * float(np.exp(s.rng.normal(0, 0.2))), IDLE, "training")
        if validates:
            s.evaluate(batch, each_s * share)


def k_fold(s: _Script) -> None:
    """Folds of some epochs each; after each the test set, a new network, and compiling again."""
    folds = int(s.rng.integers(3, 11))
    of_each, each_s = s.sized(folds * 3, folds * 20, 4)
    of_each = max(3, of_each // folds)
    share = s.rng.uniform(0.04, 0.25)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 0.8)
    step, compile_s = s.step(step_s), each_s * s.rng.uniform(0.1, 1.5)
    batch, test = s.evaluation_batch(step), s.rng.uniform(0.1, 0.6)
    s.epochs, s.steps_per_epoch = folds * of_each, count
    for _ in range(folds):
        s.line.mark("fold", Role.TRIAL)
        s.line.hold_memory(s.held * 0.2)
        s.line.stay(compile_s, load(sm=0.03, power=0.04, busy=0.1), "starting")
        s.line.hold_memory(s.held)
        for _ in range(of_each):
            s.begin_epoch(Role.EVALUATION)
            s.train(step, count)
            s.evaluate(batch, each_s * share)
        s.evaluate(batch, each_s * test, tail_s=1.0)


def validation_interval(s: _Script) -> None:
    """Validation at every half, third, quarter or fifth of an epoch; a new epoch is little more than new workers."""
    parts = int(s.rng.choice([2, 3, 4, 4, 5]))
    epochs, each_s = s.sized(3, 30, 20)
    share = s.rng.uniform(0.05, 0.3)
    step_s, count = s.plan_steps(each_s * (1 - share) / parts, 0.04, 1.0)
    step, gigabytes = s.step(step_s), log_uniform(s.rng, 0.1, 3)
    batch = s.evaluation_batch(step)
    s.turn_s, saves = max(s.turn_s, log_uniform(s.rng, 0.4, 5)), s.rng.random() < 0.5
    s.epochs, s.steps_per_epoch = epochs, count * parts
    for _ in range(epochs):
        s.begin_epoch(*([Role.CHECKPOINT] if saves else []))
        for _ in range(parts):
            s.train(step, count)
            s.line.mark("evaluation", Role.EVALUATION)
            s.evaluate(batch, each_s * share / parts, fork=False)
        if saves:
            s.checkpoint(gigabytes)


def gan_evaluation_every_k(s: _Script) -> None:
    """Generator and discriminator take turns; every k epochs images are made and scored."""
    k = int(s.rng.integers(2, 9))
    epochs, each_s = s.sized(3 * k, 100, 5)
    step_s, count = s.plan_steps(each_s, 0.06, 1.2, pieces=8)
    step, turns = s.step(step_s, micro=2), s.evaluation_batch(s.step(step_s))
    score_s = each_s * s.rng.uniform(0.3, 2.5)
    s.turn_s = max(s.turn_s, 0.2)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        _epoch_of(s, step, count)
        if (i + 1) % k == 0:
            s.line.mark("evaluation", Role.EVALUATION)
            s.line.work(turns, max(1, round(score_s * 0.6 / turns.usual_s)), "evaluating")
            s.line.stay(score_s * 0.4, load(sm=0.05, power=0.08, busy=0.1), "evaluating")


def diffusion_samples(s: _Script) -> None:
    """Fine-tuning a diffusion model; every k epochs it draws samples, at full power and without gradients."""
    k = int(s.rng.integers(2, 7))
    epochs, each_s = s.sized(3 * k, 60, 8)
    step_s, count = s.plan_steps(each_s, 0.15, 2.5)
    step = s.step(step_s, tensor=s.rng.uniform(0.4, 0.8), wait=0.0)
    denoise = s.evaluation_batch(step).scaled(0.4)
    sample_s, gigabytes = each_s * s.rng.uniform(0.2, 1.5), log_uniform(s.rng, 1, 5)
    s.turn_s = max(s.turn_s, 0.2)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        _epoch_of(s, step, count)
        if (i + 1) % k == 0:
            s.line.mark("evaluation", Role.EVALUATION, also=(Role.CHECKPOINT,))
            s.line.work(denoise, max(2, round(sample_s / denoise.usual_s)), "evaluating")
            s.line.stay(s.rng.uniform(0.5, 3), IDLE, "evaluating")
            s.checkpoint(gigabytes)


def llm_pretraining(s: _Script) -> None:
    """Steps without epochs on many GPUs; evaluation every N steps, a checkpoint every few evaluations."""
    s.gpus, s.gpu_spread = int(s.rng.choice([2, 4, 8, 8])), s.rng.uniform(0.005, 0.03)
    step_s = log_uniform(s.rng, max(0.8, s.budget_s * 30 / _MOST_PIECES), 12)
    micro = int(s.rng.choice([1, 1, 2, 4, 8]))
    step = s.step(
        step_s, tensor=s.rng.uniform(0.4, 0.8), micro=micro, wait=0.0, scatter=log_uniform(s.rng, 0.002, 0.02)
    )
    intervals = round(log_uniform(s.rng, 4, max(5, min(40, s.budget_s / step_s / 6))))
    count = max(4, round(s.budget_s / intervals / step_s))
    batch, share, k = s.evaluation_batch(step), s.rng.uniform(0.02, 0.15), int(s.rng.integers(1, 5))
    gigabytes = s.disk_gb_s * log_uniform(s.rng, 2, 40)
    background, asks = s.rng.random() < 0.3, s.rng.random() < 0.85
    for i in range(intervals):
        s.train(step, count)
        if asks:
            s.line.mark("evaluation", Role.EVALUATION, also=(Role.CHECKPOINT,) if k == 1 else ())
            s.evaluate(batch, count * step_s * share, fork=False)
        if (i + 1) % k == 0:
            s.checkpoint(gigabytes, mark=k > 1 or not asks, background=background)
        s.maybe_stall()


def llm_fine_tuning(s: _Script) -> None:
    """A few epochs, evaluation every N steps that does not divide them, adapters or the whole model saved."""
    s.gpus = int(s.rng.choice([1, 1, 2, 4, 8]))
    s.gpu_spread = 0.0 if s.gpus == 1 else s.rng.uniform(0.005, 0.03)
    epochs, each_s = s.sized(3, 8, 60)
    micro = int(s.rng.choice([1, 4, 8, 16]))
    step_s, count = s.plan_steps(each_s, 0.5, 8.0, pieces=3 * micro + 3)
    step = s.step(step_s, tensor=s.rng.uniform(0.3, 0.8), micro=micro, wait=0.0, scatter=s.rng.uniform(0.02, 0.3))
    every = max(3, round(count / s.rng.uniform(1.3, 7.7)))
    batch, share, gigabytes = s.evaluation_batch(step), s.rng.uniform(0.05, 0.3), log_uniform(s.rng, 0.1, 20)
    saves = s.rng.random() < 0.6
    s.turn_s = max(s.turn_s, 0.3)
    s.epochs, s.steps_per_epoch = epochs, count
    done = 0
    for _ in range(epochs):
        s.begin_epoch(*([Role.CHECKPOINT] if saves else []))
        left = count
        while left:
            now = min(left, every - done % every)
            s.train(step, now)
            left, done = left - now, done + now
            if done % every == 0:
                s.line.mark("evaluation", Role.EVALUATION)
                s.evaluate(batch, every * step_s * share, fork=False)
        if saves:
            s.checkpoint(gigabytes)


def lora_accumulation(s: _Script) -> None:
    """Adapters of a language model: steps of many micro-batches, a checkpoint at the end, hardly anything else."""
    s.gpus, s.gpu_spread = int(s.rng.choice([1, 2, 4])), s.rng.uniform(0.0, 0.02)
    steps = int(s.rng.choice([20, 40, 60, 100, 200]))
    micro = int(s.rng.choice([8, 16, 32, 48]))
    budget = min(s.budget_s, steps * 30)
    step = s.step(budget / steps, tensor=s.rng.uniform(0.05, 0.6), micro=micro, wait=s.rng.choice([0.0, 0.1]),
                  comm=s.rng.uniform(0.0, 0.06), scatter=s.rng.uniform(0.05, 0.4))  # fmt: skip
    every, log_s = int(s.rng.choice([steps, steps // 2, 10])), budget / steps * s.rng.choice([0.0, 0.01, 0.04])
    for i in range(steps):
        s.train(step, 1)
        s.line.stay(log_s, IDLE, "training")
        if (i + 1) % every == 0:
            s.checkpoint(log_uniform(s.rng, 0.02, 0.5), mark=True)


def narrow_dips(s: _Script) -> None:
    """A plateau of short steps; evaluation is a dip of one to three ticks at even distance."""
    dips = round(log_uniform(s.rng, 6, min(60, s.budget_s / 15)))
    each_s = s.budget_s / dips
    step_s, count = s.plan_steps(each_s, 0.03, 0.4)
    s.gpus = int(s.rng.choice([1, 4, 8]))
    step = s.step(step_s, wait=0.0, scatter=log_uniform(s.rng, 0.005, 0.05))
    batch = s.evaluation_batch(step)
    dip_s, tail_s = s.rng.uniform(0.1, 2.0), s.rng.uniform(0, 0.5)
    is_epoch = s.rng.random() < 0.5
    s.turn_s = 0.0
    if is_epoch:
        s.epochs, s.steps_per_epoch = dips, count
    for _ in range(dips):
        if is_epoch:
            s.begin_epoch(Role.EVALUATION)
        else:
            s.line.mark("evaluation", Role.EVALUATION)
        s.train(step, count)
        s.evaluate(batch, dip_s, tail_s=tail_s, fork=False)


def detection(s: _Script) -> None:
    """A detector of objects: epochs of minutes, evaluation after each, its boxes matched on the CPU."""
    epochs, each_s = s.sized(4, 16, 60)
    s.gpus, s.gpu_spread = int(s.rng.choice([1, 2, 8])), s.rng.uniform(0.0, 0.03)
    share = s.rng.uniform(0.04, 0.2)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.12, 1.2)
    step = s.step(step_s, scatter=s.rng.uniform(0.05, 0.25))
    batch, tail_s, gigabytes = s.evaluation_batch(step), each_s * s.rng.uniform(0.01, 0.12), log_uniform(s.rng, 0.1, 1)
    s.epochs, s.steps_per_epoch = epochs, count
    for _ in range(epochs):
        s.begin_epoch(Role.EVALUATION, Role.CHECKPOINT)
        s.train(step, count)
        s.evaluate(batch, each_s * share, tail_s=tail_s)
        s.checkpoint(gigabytes)


def speech_buckets(s: _Script) -> None:
    """Batches of equal length: a step takes half to twice the usual time; the first epoch goes from short to long."""
    epochs, each_s = s.sized(4, 30, 20)
    step_s, count = s.plan_steps(each_s * 0.85, 0.08, 1.5)
    step, spread = s.step(step_s), s.rng.uniform(0.15, 0.5)
    batch, share = s.evaluation_batch(step), s.rng.uniform(0.05, 0.3)
    lengths = np.exp(spread * s.rng.normal(0, 1, count))
    lengths *= count / lengths.sum()
    s.epochs, s.steps_per_epoch = epochs, count
    bucketed = s.rng.random() < 0.5
    order = np.sort(lengths)
    for i in range(epochs):
        s.begin_epoch(Role.EVALUATION)
        now = order if i == 0 else s.rng.permutation(lengths)
        if bucketed and i:  # buckets of like length one after the other, in another order each time
            buckets = np.array_split(order, 6)
            now = np.concatenate([buckets[b] for b in s.rng.permutation(6)])
        for length in np.array_split(now, max(1, count // 4)):
            s.train(step.scaled(float(length.mean())), length.size)
        s.evaluate(batch, each_s * share)


def hyperparameter_trials(s: _Script) -> None:
    """Trainings one after the other with other batch sizes and widths; each has some epochs."""
    trials = int(s.rng.integers(3, 9))
    of_each = int(s.rng.integers(4, 13))
    each_s = s.budget_s / trials / of_each
    s.epochs = trials * of_each
    for _ in range(trials):
        s.line.mark("trial", Role.TRIAL)
        s.held = s.rng.uniform(0.2, 0.95)
        s.line.hold_memory(0.02)
        s.line.stay(log_uniform(s.rng, 1, 12), IDLE, "starting")
        s.line.hold_memory(s.held)
        now_s = each_s * log_uniform(s.rng, 0.8, 1.25)
        step_s, count = s.plan_steps(now_s, 0.04, 0.8)
        step = s.step(step_s)
        batch, share = s.evaluation_batch(step), s.rng.uniform(0.05, 0.3)
        for _ in range(of_each):
            s.begin_epoch(Role.EVALUATION)
            s.train(step, count)
            s.evaluate(batch, now_s * share)


def data_parallel(s: _Script) -> None:
    """Several GPUs in step; one of them is slower now and then, and the others wait for it in the all-reduce."""
    s.gpus, s.gpu_spread = int(s.rng.choice([2, 4, 8])), s.rng.uniform(0.01, 0.08)
    s.straggles = True
    epochs, each_s = s.sized(4, 40, 12)
    share = s.rng.uniform(0.04, 0.25)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.1, 1.5)
    step = s.step(step_s, comm=s.rng.uniform(0.08, 0.35))
    batch, slower = s.evaluation_batch(step), s.rng.uniform(1.1, 1.6)
    s.epochs, s.steps_per_epoch = epochs, count
    for _ in range(epochs):
        s.begin_epoch(Role.EVALUATION)
        tempo = np.ones(count)
        if s.rng.random() < 0.25:
            begin = int(s.rng.integers(0, count))
            tempo[begin : begin + max(2, int(count * s.rng.uniform(0.1, 1.0)))] = slower
        s.train(step, count, tempo=tempo)
        s.evaluate(batch, each_s * share)


def progressive_resizing(s: _Script) -> None:
    """The images grow in two to four stages: steps and epochs become longer and the load higher."""
    stages = int(s.rng.integers(2, 5))
    of_each = int(s.rng.integers(4, 12))
    growth = s.rng.uniform(1.25, 2.0)
    first_s = s.budget_s / of_each / sum(growth**i for i in range(stages))
    step_s, count = s.plan_steps(first_s, 0.05, 0.6)
    step, share = s.step(step_s), s.rng.uniform(0.05, 0.25)
    batch = s.evaluation_batch(step)
    s.epochs, s.steps_per_epoch = stages * of_each, count
    for stage in range(stages):
        s.line.hold_memory(s.held * (stage + 1) / stages)
        s.line.stay(log_uniform(s.rng, 0.5, 8), IDLE, "starting")
        for _ in range(of_each):
            s.begin_epoch(Role.EVALUATION)
            s.train(step, count, tempo=growth**stage)
            s.evaluate(batch.scaled(growth**stage), first_s * growth**stage * share)


def early_stopping(s: _Script) -> None:
    """Runs with other seeds, each ended when it gets no better: after different numbers of epochs."""
    runs = int(s.rng.integers(3, 8))
    epochs, each_s = s.sized(runs * 4, runs * 15, 6)
    share = s.rng.uniform(0.05, 0.3)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 1.0)
    step, gigabytes = s.step(step_s), log_uniform(s.rng, 0.02, 0.5)
    batch = s.evaluation_batch(step)
    s.steps_per_epoch, s.epochs, left = count, 0, epochs
    while left >= 3:
        now = min(left, int(s.rng.integers(3, 2 * epochs // runs + 1)))
        s.line.mark("run", Role.TRIAL)
        s.line.hold_memory(s.held * 0.3)
        s.line.stay(log_uniform(s.rng, 1, 10), IDLE, "starting")
        s.line.hold_memory(s.held)
        for i in range(now):
            s.begin_epoch(Role.EVALUATION)
            s.train(step, count)
            s.evaluate(batch, each_s * share)
            if s.rng.random() < 1 / (1 + i / 2):
                s.checkpoint(gigabytes)
        s.epochs, left = s.epochs + now, left - now


def warm_up(s: _Script) -> None:
    """Sequence length or batch grows over the first epochs, with the learning rate; then all epochs are alike."""
    epochs, each_s = s.sized(6, 40, 12)
    share = s.rng.uniform(0.04, 0.2)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.05, 1.0)
    step, grows = s.step(step_s), int(s.rng.integers(1, max(2, epochs // 3)))
    batch, low = s.evaluation_batch(step), s.rng.uniform(0.3, 0.8)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        s.begin_epoch(Role.EVALUATION)
        s.train(step, count, tempo=min(1.0, low + (1 - low) * i / grows))
        s.evaluate(batch, each_s * share)
        s.maybe_stall()


def recommender(s: _Script) -> None:
    """Embeddings and small layers: steps of milliseconds that no tick shows, evaluation every part of an epoch."""
    epochs, each_s = s.sized(3, 10, 30)
    parts, share = int(s.rng.choice([1, 5, 10, 20])), s.rng.uniform(0.05, 0.3)
    step_s, count = s.plan_steps(each_s * (1 - share) / parts, 0.02, 0.06)
    s.gpus = int(s.rng.choice([1, 8]))
    step = s.step(step_s, tensor=s.rng.uniform(0.0, 0.2), scatter=0.05)
    batch = s.evaluation_batch(step)
    s.turn_s = max(s.turn_s, 0.5)
    s.epochs, s.steps_per_epoch = epochs, count * parts
    for _ in range(epochs):
        s.begin_epoch(*([Role.EVALUATION] if parts == 1 else []))
        for _ in range(parts):
            s.train(step, count)
            if parts > 1:
                s.line.mark("evaluation", Role.EVALUATION)
            s.evaluate(batch, each_s * share / parts, fork=False)


def _burst(s: _Script, power: float, state: str, seconds: float) -> None:
    sm = power * s.rng.uniform(0.7, 1.0)
    s.line.stay(seconds, load(sm, sm * 0.4, sm * 0.5, power, min(1.0, 1.3 * power), receive=0.03, send=0.01), state)


def serving(s: _Script) -> None:
    """Requests come by chance, by a rhythm of the day that is squeezed into the recording, and are answered at once."""
    s.run_state = "serving"
    rate, answer_s = log_uniform(s.rng, 0.1, 4), log_uniform(s.rng, 0.05, 2.0)
    swing, rhythm_s = s.rng.uniform(0.1, 0.9), s.budget_s / s.rng.uniform(0.5, 4)
    power = s.rng.uniform(0.2, 0.8)
    while s.line.now_s < s.budget_s:
        now = rate * (1 + swing * np.sin(2 * np.pi * s.line.now_s / rhythm_s))
        s.line.stay(s.rng.exponential(1 / max(now, 0.02)), IDLE, "serving")
        _burst(s, power * s.rng.uniform(0.6, 1.2), "serving", s.rng.gamma(2, answer_s / 2))


def batch_inference(s: _Script) -> None:
    """A data set is scored shard by shard, each loaded, worked through and written."""
    s.run_state = "other"
    shards = round(log_uniform(s.rng, 8, 60))
    each_s = s.budget_s / shards
    step_s, count = s.plan_steps(each_s * 0.85, 0.04, 0.8)
    batch = s.evaluation_batch(s.step(step_s))
    spread = log_uniform(s.rng, 0.02, 0.5)
    for _ in range(shards):
        if spread < 0.15:
            s.line.mark("shard", Role.UNKNOWN)
        s.line.stay(each_s * 0.1, load(receive=0.1), "other")
        s.line.work(batch, max(2, round(count * step_s / batch.usual_s * np.exp(s.rng.normal(0, spread)))), "other")
        s.line.stay(each_s * 0.05, load(send=0.1), "other")


def rl_loop(s: _Script) -> None:
    """Reinforcement learning: rollouts with small batches and much waiting, then an update at full load."""
    s.run_state = "other"
    loops = round(log_uniform(s.rng, 8, 120))
    each_s, share = s.budget_s / loops, s.rng.uniform(0.3, 0.8)
    act = s.evaluation_batch(s.step(max(0.05, s.budget_s * 3 / _MOST_PIECES), wait=0.6))
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 0.5)
    step = s.step(step_s)
    for _ in range(loops):
        s.line.mark("iteration", Role.UNKNOWN)
        long_s = each_s * share * float(np.exp(s.rng.normal(0, 0.08)))
        s.line.work(act, max(2, round(long_s / act.usual_s)), "other")
        starts, _ = s.line.work(step, count, "other")
        s.line.mark("step", Role.STEP, starts)


def cron(s: _Script) -> None:
    """A scheduled program: the same minutes of work at even distance, nothing between them."""
    s.run_state = "other"
    runs = int(s.rng.integers(4, 16))
    every_s = s.budget_s / runs
    work_s, power = every_s * s.rng.uniform(0.05, 0.5), s.rng.uniform(0.3, 0.9)
    for _ in range(runs):
        s.line.mark("scheduled run", Role.UNKNOWN)
        begin = s.line.now_s
        s.line.stay(log_uniform(s.rng, 0.5, 4), load(receive=0.3, power=0.03), "other")
        for _ in range(6):
            _burst(s, power * s.rng.uniform(0.8, 1.1), "other", work_s / 6 * s.rng.uniform(0.7, 1.3))
        s.line.stay(max(0.1, begin + every_s - s.line.now_s + s.rng.normal(0, 0.3)), IDLE, "idle")


def hpc_iterations(s: _Script) -> None:
    """A simulation: iterations of a solver, now and then a snapshot."""
    s.run_state = "other"
    snapshots = round(log_uniform(s.rng, 4, 40))
    step_s, count = s.plan_steps(s.budget_s / snapshots, 0.05, 6.0)
    step = s.step(step_s, tensor=0.0, wait=0.0)
    gigabytes = s.disk_gb_s * log_uniform(s.rng, 0.3, 8)
    even, converges = s.rng.random() < 0.5, s.rng.uniform(0.05, 0.4)
    for _ in range(snapshots):
        now = count if even else max(2, round(count * np.exp(s.rng.normal(0, converges))))
        if even:
            s.line.mark("snapshot", Role.CHECKPOINT)
        starts, _ = s.line.work(step, now, "other")
        s.line.mark("iteration", Role.UNKNOWN, starts)
        s.checkpoint(gigabytes)


def idle_with_spikes(s: _Script) -> None:
    """A GPU that nobody uses: a monitor or a desktop wakes it now and then."""
    s.run_state = "idle"
    every_s = log_uniform(s.rng, 5, 120)
    while s.line.now_s < s.budget_s:
        s.line.stay(s.rng.exponential(every_s), IDLE, "idle")
        _burst(s, s.rng.uniform(0.02, 0.3), "idle", log_uniform(s.rng, 0.05, 2))


def notebook(s: _Script) -> None:
    """Somebody tries things out: cells of seconds to minutes, thinking between them, some short trainings."""
    s.run_state = "other"
    while s.line.now_s < s.budget_s:
        s.line.stay(log_uniform(s.rng, 3, 200), IDLE, "idle")
        if s.rng.random() < 0.3:
            step = s.step(max(log_uniform(s.rng, 0.05, 0.5), s.budget_s * 6 / _MOST_PIECES))
            s.line.work(step, int(s.rng.integers(20, 300)), "other")
        else:
            _burst(s, s.rng.uniform(0.1, 0.9), "other", log_uniform(s.rng, 0.2, 30))


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        cnn_validation, checkpoint_every_k, input_shards, k_fold, validation_interval, gan_evaluation_every_k,
        diffusion_samples, llm_pretraining, llm_fine_tuning, lora_accumulation, narrow_dips, detection, speech_buckets,
        hyperparameter_trials, data_parallel, progressive_resizing, early_stopping, warm_up, recommender,
        serving, batch_inference, rl_loop, cron, hpc_iterations, idle_with_spikes, notebook,
    )
}  # fmt: skip
FIT = tuple(kind for kind in KINDS if kind not in BLIND)


def job(kind: str, seed: int, number: int, *, blind: bool = False, longest_s: float = 3600.0) -> Job:
    """Simulate a job; the same for the same kind, seed and number.

    Args:
        kind: A key of :data:`KINDS`.
        seed: Of the set.
        number: Of the job in it.
        blind: Whether a kind of :data:`BLIND` may be made; what is fitted or chosen must not look at one.
        longest_s: Seconds that the job is planned for, at most.

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
    script = _Script(rng, log_uniform(rng, min(300.0, longest_s / 4), longest_s))
    recording = Recording.drawn(rng, script.budget_s)
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
    traces = _traces(script, recording, rng, first_s, stop_s)
    zero_s = first_s + recording.interval_s
    levels = [seen(each, traces, recording.interval_s, zero_s) for each in script.line.levels(first_s, stop_s)]
    states = tuple((max(at - zero_s, 0.0), state) for at, state in _within(script.line.states(), first_s, stop_s))
    return Job(
        f"{kind}-{seed}-{number}", kind, traces, tuple(levels), states, script.run_state, script.epochs,
        script.steps_per_epoch, end_s - zero_s,
    )  # fmt: skip


def _traces(script: _Script, recording: Recording, rng: Generator, first_s: float, stop_s: float) -> tuple[Trace, ...]:
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

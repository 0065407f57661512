"""What the kinds of jobs are written with: a timeline, a budget of seconds, and the habits of training programs."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from simulation import COPY, IDLE, TO_HOST, Step, Timeline, load, log_uniform

from gpusonde.epoch_detect import CycleRole

MOST_PIECES = 250_000  # of a job: shorter steps are not drawn


class Script:
    """A job in the making."""

    def __init__(self, rng: Generator, budget_s: float) -> None:
        self.rng, self.budget_s = rng, budget_s
        self.line = Timeline(rng)
        self.tick_s = 0.1  # of the recording: where a job is short, its steps are as long as that needs
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
        least = max(shortest, self.budget_s * pieces / MOST_PIECES)
        if longest >= 0.5 and self.rng.random() < 0.35:  # steps that ticks can show
            least, longest = min(max(least, 0.5), seconds / 8), 6 * longest
        step_s = log_uniform(self.rng, least, max(least * 1.2, min(longest, seconds / 8)))
        return step_s, max(4, round(seconds / step_s))

    def train(self, step: Step, count: int, *, tempo: float | np.ndarray = 1.0) -> None:
        """Append training steps and mark them."""
        starts, micro = self.line.work(step, count, "training", tempo=tempo)
        self.line.mark("step", CycleRole.STEP, starts)
        if micro.size > starts.size:
            self.line.mark("micro-batch", CycleRole.UNKNOWN, micro)
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
            self.line.mark("checkpoint", CycleRole.CHECKPOINT)
        self.line.stay(gigabytes / 10, TO_HOST, "checkpointing")
        if not background:
            self.line.stay(gigabytes / self.disk_gb_s * self.rng.uniform(0.85, 1.3), IDLE, "checkpointing")

    def begin_epoch(self, *also: CycleRole) -> None:
        """Mark an epoch: workers are forked, the first batches take longer."""
        self.line.mark("epoch", CycleRole.EPOCH, also=also)
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

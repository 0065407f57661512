"""``TrackedCycles``: what the tracker says of a job's cycles, and what it takes the run as a whole for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpusonde.epoch_detect.progress.load import Work
from gpusonde.epoch_detect.result import Cycle, CycleRole, EpochDetection, RunState

_STILL_SO = 0.4  # share of the work so far that a verdict on the whole run has seen, or it is none any more
SURE_RUN = 0.65  # confidence in what the run as a whole is, of a verdict that counts
_SURE_LEVEL, _SURE_TRAINING = 0.8, 0.92
_SAME_STEPS = 0.1  # by which the period of steps may change from look to look
_LIKELY_SERVING = 0.5  # where no cycle is known: trainings are hardly ever taken for a serving, however unsurely


@dataclass
class TrackedCycles:
    """What was said last.

    Attributes:
        run_state: Of the run as a whole; empty where that was not judged.
        run_confidence: How sure, 0..1.
        period_s: Of the level that is told, else of the longest sure one; NaN without.
        role: Of that level; empty where it is not known.
        last_start_s: Latest beginning of a sure cycle, on the time axis of the ticks.
        shortest_s: Period of the shortest sure level; NaN without.
        cyclic: Whether the job works in cycles.
        work_s: Seconds of work that the job had done by then.
        steps_s: Of what a look has taken for the steps of a training, as long as it goes on; NaN without. Of any cycles
            of one, once GPUs of the job rest while others work: the mean of all of them looks like none.
        trained_s: Likewise, of any sure cycles.
    """

    run_state: str = ""
    run_confidence: float = 0.0
    period_s: float = math.nan
    role: str = ""
    last_start_s: float = -math.inf
    shortest_s: float = math.nan
    cyclic: bool = False
    work_s: float = 0.0
    steps_s: float = math.nan
    trained_s: float = math.nan

    def then(self, detection: EpochDetection, begun_s: float, work: Work) -> TrackedCycles:
        """What is known with a new answer of the tracker.

        Args:
            detection: On the time axis of the ticks.
            begun_s: Of the job: cycles of one that was on its GPUs before are none of its own.
            work: Of the job.
        """
        told = [c for c in detection.cycles if c.confirmed and c.confidence >= _SURE_LEVEL]
        chosen = detection.cycles[detection.level] if detection.level is not None else told[-1] if told else None
        run = detection.run_state
        known = [cycle for cycle in detection.cycles if cycle.confirmed]
        steps = [cycle for cycle in known if cycle.role == CycleRole.STEP]
        trains = run == RunState.TRAINING
        steps_s = float(steps[0].period_s) if trains and steps else _going_on(self.steps_s, known)
        if math.isnan(steps_s) and work.is_of_some:
            steps_s = _going_on(self.trained_s, known)
        last_start_s = max((float(c.starts_s[-1]) for c in told if c.starts_s.size), default=-math.inf)
        return TrackedCycles(
            run_state="" if run is None else run.value,
            run_confidence=detection.run_state_confidence,
            period_s=math.nan if chosen is None else float(chosen.period_s),
            role="" if chosen is None or chosen.role == CycleRole.UNKNOWN else chosen.role.value,
            last_start_s=last_start_s,
            shortest_s=min((float(c.period_s) for c in told), default=math.nan),
            cyclic=bool(told) and run in (RunState.TRAINING, None) and not last_start_s < begun_s,
            work_s=work.seconds,
            steps_s=steps_s,
            trained_s=float(told[-1].period_s) if trains and told else _going_on(self.trained_s, known),
        )

    def of_next(self) -> TrackedCycles:
        """What is known of a job that goes on where this one ended: what it is, and not in which cycles it works."""
        return TrackedCycles(run_state=self.run_state, run_confidence=self.run_confidence, work_s=self.work_s)

    def kind_of_run(self, work_s: float) -> str:
        """What the run as a whole is taken for, where that is sure and the run has not become another since.

        Args:
            work_s: Seconds of work that the job has done by now.
        """
        least = _LIKELY_SERVING if self.run_state == RunState.SERVING else SURE_RUN
        sure = self.run_confidence >= least and self.are_of_now(work_s)
        if self.run_state == RunState.OTHER:
            sure &= math.isnan(self.steps_s)  # it does what it did when it was taken for a training
        return self.run_state if sure and not self.cyclic else ""

    def are_of_now(self, work_s: float) -> bool:
        """Whether what was said is of a good part of the ``work_s`` seconds of work that the job has done by now."""
        return self.work_s >= max(_STILL_SO * work_s, 1.0)

    @property
    def training_confidence(self) -> float:
        """How surely the run is a training; 0 where it is taken for something else."""
        return self.run_confidence if self.run_state == RunState.TRAINING else 0.0

    @property
    def likely_train(self) -> bool:
        """Whether the run was most likely a training."""
        return self.training_confidence >= SURE_RUN

    def surely_train(self, work_s: float) -> bool:
        """Whether the run as a whole is surely a training: somebody at a notebook works in bursts that may look so.

        Args:
            work_s: Seconds of work that the job has done by now.
        """
        return self.kind_of_run(work_s) == RunState.TRAINING and self.run_confidence >= _SURE_TRAINING


def _going_on(period_s: float, known: Sequence[Cycle]) -> float:
    """A period, if there are cycles of it still; else NaN."""
    return period_s if any(abs(cycle.period_s / period_s - 1) < _SAME_STEPS for cycle in known) else math.nan

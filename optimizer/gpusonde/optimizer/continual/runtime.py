"""``Runtime``: carries out what a controller decides, in real or simulated time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from gpusonde.errors import CloudError
from gpusonde.optimizer.continual.controller import Controller, Decision, DecisionKind
from gpusonde.optimizer.continual.fleet import Cloud
from gpusonde.optimizer.problem import Plan


class Clock(Protocol):
    """Counts seconds; its zero is where the job's deadline counts from."""

    def now_s(self) -> float:
        """Return the seconds since the clock's zero."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Return when ``time_s`` has come; at once when it has passed."""
        ...


class Trainer(Protocol):
    """Starts the training on machines and says how far it is."""

    def start(self, plan: Plan, machines: Sequence[str], checkpoint_interval_s: float) -> None:
        """Start on machines; save a checkpoint first if it runs, and go on from the latest one."""
        ...

    def stop(self) -> None:
        """Save a checkpoint if the job runs, and stop it; may be called again, and when it is done."""
        ...

    def completed(self) -> float:
        """Return the iterations completed so far."""
        ...


class Runtime:
    """Runs one job to its end.

    Args:
        controller: Decides.
        cloud: Gives machines.
        clock: Tells the time.
        trainer: Runs the job.
        solve_s: Seconds to let pass after a search for plans, where time is simulated; real time passes by itself.
    """

    def __init__(
        self, controller: Controller, cloud: Cloud, clock: Clock, trainer: Trainer, *, solve_s: float = 0.0
    ) -> None:
        self._controller = controller
        self._cloud = cloud
        self._clock = clock
        self._trainer = trainer
        self._solve_s = solve_s

    def step(self) -> Decision:
        """Take one step and carry it out."""
        now_s = self._clock.now_s()
        self._controller.observe(now_s, self._trainer.completed())
        decision = self._controller.step(now_s)
        if decision.solved and decision.kind is DecisionKind.LAUNCH and now_s > 0:
            # The first plan is made before the job's clock begins.
            self._clock.wait_until(now_s + self._solve_s)
        if decision.kind in (DecisionKind.IDLE, DecisionKind.DONE):
            self._trainer.stop()
        if decision.terminate:
            # What is still there at the next step is ended then.
            with contextlib.suppress(CloudError):
                self._cloud.terminate(decision.terminate)
        for offer, machines in decision.recommendation.launch:
            try:
                ordered = self._cloud.launch(offer, machines)
            except CloudError:
                self._controller.refused(offer, self._clock.now_s())
            else:
                self._controller.ordered(offer, ordered, self._clock.now_s())
        if decision.kind is DecisionKind.RUN and decision.recommendation.plan is not None:
            interval_s = decision.recommendation.checkpoint_interval_s
            self._trainer.start(decision.recommendation.plan, decision.machines, interval_s)
        return decision

    def run(self, until_s: float, poll_s: float = 1.0, heard: Callable[[Decision], None] | None = None) -> Decision:
        """Step until the job is done and no machine is left, or the time has come.

        Args:
            until_s: When to give up, on the job's clock.
            poll_s: Longest time between two looks at the cloud.
            heard: Called with every decision.
        """
        while True:
            decision = self.step()
            if heard is not None:
                heard(decision)
            ended = decision.kind is DecisionKind.DONE and not decision.terminate
            if ended or self._clock.now_s() >= until_s:
                return decision
            self._clock.wait_until(min(until_s, decision.next_step_s, self._clock.now_s() + poll_s))

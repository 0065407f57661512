"""``ContinualOptions``: times, thresholds and rules of continual optimisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpusonde.errors import ProblemError


@dataclass(frozen=True)
class ContinualOptions:
    """How a controller judges; all times in seconds.

    Attributes:
        detect_s: From the loss of a machine until it is noticed.
        release_s: From then until its volume can be attached elsewhere.
        solve_s: To find a plan.
        launch_s: To boot a machine, as expected.
        launch_slowest_s: To boot a machine, as it must be reckoned with where a deadline depends on it.
        launch_timeout_s: After this long a machine that has not booted counts as refused.
        restore_s: From the last machine being ready to the first iteration.
        save_s: How long saving a checkpoint stops the work.
        window_s: Window of the throughput.
        review_s: Longest time between two steps.
        resolve_s: Longest time between two searches for something better while all is well.
        depletion_s: How long an offer is left out after a preemption or a refused order; infinite for ever.
        patience_s: Without a deadline: how long to wait for cheaper capacity before paying for the dearer one.
        improvement: A running plan is left for another one only if that is better by this factor, switch included.
        spread: Standard deviation of the natural logarithm of an estimated iteration against the true one, for plans
            that were not measured yet.
        calibrate: Carry over to other plans that the running one is slower than estimated.
        seek_better: While all is well, look for a better plan now and then.
        guard: Leave spot machines in time for on-demand ones to keep the deadline.
        wait_for_release: Look for another plan only once the volume of a lost machine is free.
        count_preemptions: Reckon with the time and money that preemptions are expected to cost.
    """

    detect_s: float = 1.0
    release_s: float = 5.0
    solve_s: float = 1.0
    launch_s: float = 150.0
    launch_slowest_s: float = 300.0
    launch_timeout_s: float = 900.0
    restore_s: float = 30.0
    save_s: float = 5.0
    window_s: float = 300.0
    review_s: float = 60.0
    resolve_s: float = 900.0
    depletion_s: float = 120.0
    patience_s: float = 3600.0
    improvement: float = 1.15
    spread: float = 0.08
    calibrate: bool = True
    seek_better: bool = True
    guard: bool = True
    wait_for_release: bool = False
    count_preemptions: bool = True

    def __post_init__(self) -> None:
        for name in ("detect_s", "release_s", "solve_s", "launch_s", "restore_s", "save_s", "patience_s", "spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ProblemError(f"{name} must be zero or more, not {getattr(self, name)}")
        for name in ("window_s", "review_s", "resolve_s", "launch_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ProblemError(f"{name} must be above zero, not {getattr(self, name)}")
        if not self.launch_slowest_s >= self.launch_s:
            raise ProblemError("launch_slowest_s must be launch_s or more")
        if not self.depletion_s > 0:
            raise ProblemError(f"depletion_s must be above zero, not {self.depletion_s}")
        if not 1 <= self.improvement < math.inf:
            raise ProblemError(f"improvement is a factor of 1 or more, not {self.improvement}")

    @property
    def restart_s(self) -> float:
        """From the loss of a machine to work again, as expected."""
        return self.detect_s + self.release_s + self.solve_s + self.launch_s + self.restore_s

    @property
    def slow_restart_s(self) -> float:
        """The same with a slow launch."""
        return self.restart_s - self.launch_s + self.launch_slowest_s

    @classmethod
    def paper(cls) -> ContinualOptions:
        """Srifty's rules and figures (sections 4.5 and 5.4): depletion for ever, no guard, estimates as they are."""
        return cls(
            launch_slowest_s=150.0,
            restore_s=0.0,
            save_s=0.0,
            depletion_s=math.inf,
            improvement=1.0,
            spread=0.0,
            calibrate=False,
            seek_better=False,
            guard=False,
            wait_for_release=True,
            count_preemptions=False,
        )

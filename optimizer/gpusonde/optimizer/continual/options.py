"""``ContinualOptions``: times, thresholds and rules of continual optimisation; and what preemptions cost.

With failures that come at a constant rate, a run that saves its state every ``interval`` seconds takes in the mean
``work / interval * (1 / rate + restart) * (exp(rate * (interval + save)) - 1)`` (J. T. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", 2006). ``restart`` is everything between the loss of a machine
and work again: detect, solve, launch, restore. Nothing fails during a restart, because it works on new machines.
``PreemptionRates`` learn the rates from what happened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpusonde.errors import ProblemError

_HOUR_S = 3600.0
# exp() of more than this is taken as "never ends".
_LARGEST_EXPONENT = 50.0


@dataclass(frozen=True)
class ExpectedRun:
    """What a run takes in the mean.

    Attributes:
        seconds: From its start to its end, restarts included; infinite where it never gets done.
        running_s: Of these, seconds in which every machine runs.
        preemptions: How many are expected.
        interval_s: Between two checkpoints; infinite when none are made.
    """

    seconds: float
    running_s: float
    preemptions: float
    interval_s: float


def checkpoint_interval_s(save_s: float, preemptions_per_hour: float) -> float:
    """Return the interval between checkpoints that costs the least time in the mean (Young; Daly's higher order).

    Args:
        save_s: Seconds in which saving a checkpoint stops the work.
        preemptions_per_hour: Of all machines together.

    Returns:
        Seconds of work between two checkpoints; infinite without preemptions, and no shorter than ``save_s``
        (or one second) otherwise.
    """
    _at_least_zero(save_s=save_s, preemptions_per_hour=preemptions_per_hour)
    if preemptions_per_hour == 0:
        return math.inf
    between_s = _HOUR_S / preemptions_per_hour
    if save_s >= 2 * between_s:
        return max(1.0, between_s)
    young_s = math.sqrt(2 * save_s * between_s)
    ratio = save_s / (2 * between_s)
    return max(1.0, save_s, young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s)


def expected_run(
    work_s: float,
    preemptions_per_hour: float,
    restart_s: float,
    save_s: float = 0.0,
    interval_s: float | None = None,
) -> ExpectedRun:
    """Return what a run takes in the mean when machines are preempted.

    Args:
        work_s: Seconds it takes undisturbed.
        preemptions_per_hour: Of all machines together.
        restart_s: From the loss of a machine to work again.
        save_s: Seconds in which saving a checkpoint stops the work.
        interval_s: Seconds of work between two checkpoints; by default the best.

    Raises:
        ValueError: A number below zero or not a number.
    """
    _at_least_zero(work_s=work_s, preemptions_per_hour=preemptions_per_hour, restart_s=restart_s, save_s=save_s)
    if interval_s is None:
        interval_s = checkpoint_interval_s(save_s, preemptions_per_hour)
    elif not interval_s > 0:
        raise ValueError(f"checkpoints are more than zero seconds apart, not {interval_s}")
    if work_s == 0:
        return ExpectedRun(0.0, 0.0, 0.0, interval_s)
    segment_s = min(interval_s, work_s)
    saves_s = save_s if interval_s < work_s else 0.0
    if preemptions_per_hour == 0:
        seconds = work_s + work_s / segment_s * saves_s
        return ExpectedRun(seconds, seconds, 0.0, interval_s)
    rate = preemptions_per_hour / _HOUR_S
    exponent = rate * (segment_s + saves_s)
    if exponent > _LARGEST_EXPONENT:
        return ExpectedRun(math.inf, math.inf, math.inf, interval_s)
    failures = work_s / segment_s * math.expm1(exponent)
    running_s = failures / rate
    return ExpectedRun(running_s + failures * restart_s, running_s, failures, interval_s)


class PreemptionRates:
    """Preemptions per hour of each offer, from what was given and what happened since.

    The given rate counts as ``weight_hours`` of observation, so what nobody knows is soon replaced by what is seen.
    One object may serve many jobs: each learns from those before it.

    Args:
        default_per_hour: For an offer that says nothing of its own rate.
        weight_hours: Hours of observation that the given rate is worth.
    """

    def __init__(self, default_per_hour: float = 0.1, weight_hours: float = 10.0) -> None:
        _at_least_zero(default_per_hour=default_per_hour)
        if not weight_hours > 0:
            raise ValueError(f"a given rate is worth more than zero hours, not {weight_hours}")
        self._default = default_per_hour
        self._weight = weight_hours
        self._hours: dict[str, float] = {}
        self._preemptions: dict[str, float] = {}

    def ran(self, offer: str, machine_hours: float) -> None:
        """Take note that machines of an offer ran."""
        self._hours[offer] = self._hours.get(offer, 0.0) + machine_hours

    def preempted(self, offer: str, times: float = 1.0) -> None:
        """Take note of a preemption; ``times`` below one for machines that went together."""
        self._preemptions[offer] = self._preemptions.get(offer, 0.0) + times

    def per_hour(self, offer: str, given: float | None = None) -> float:
        """Return the preemptions per machine and hour."""
        prior = self._default if given is None or not given > 0 else given
        hours = self._weight + self._hours.get(offer, 0.0)
        return (prior * self._weight + self._preemptions.get(offer, 0.0)) / hours


def _at_least_zero(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} is zero or more, not {value}")


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
        refusal_s: How long an offer is left out after an order was refused: asking costs nothing.
        depletion_s: How long an offer is left out after a preemption.
        depletion_longest_s: Most it grows to when that repeats; with both infinite it lasts for ever.
        patience_s: Without a deadline: how long to wait for cheaper capacity before paying for the dearer one.
        improvement: A running plan is left for another one only if that is better by this factor, switch included.
        spread: Standard deviation of the natural logarithm of an estimated iteration against the true one, for plans
            that were not measured yet.
        confidence: With which deadlines are kept and throughputs bounded.
        calibrate: Carry over to other plans that the running one is slower than estimated.
        seek_better: While all is well, look for a better plan now and then.
        guard: Leave spot machines in time for on-demand ones to keep the deadline.
        wait_for_release: Look for another plan only once the volume of a lost machine is free.
        count_preemptions: Reckon with the time and money that preemptions are expected to cost.
        across_regions: A plan may mix regions.
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
    refusal_s: float = 300.0
    depletion_s: float = 600.0
    depletion_longest_s: float = 3600.0
    patience_s: float = 3600.0
    improvement: float = 1.15
    spread: float = 0.08
    confidence: float = 0.95
    calibrate: bool = True
    seek_better: bool = True
    guard: bool = True
    wait_for_release: bool = False
    count_preemptions: bool = True
    across_regions: bool = False

    def __post_init__(self) -> None:
        for name in ("detect_s", "release_s", "solve_s", "launch_s", "restore_s", "save_s", "patience_s", "spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ProblemError(f"{name} must be zero or more, not {getattr(self, name)}")
        for name in ("window_s", "review_s", "resolve_s", "launch_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ProblemError(f"{name} must be above zero, not {getattr(self, name)}")
        if not self.launch_slowest_s >= self.launch_s:
            raise ProblemError("launch_slowest_s must be launch_s or more")
        if not self.refusal_s > 0:
            raise ProblemError(f"refusal_s must be above zero, not {self.refusal_s}")
        if not 0 <= self.depletion_s <= self.depletion_longest_s:
            raise ProblemError("depletion_longest_s must be depletion_s or more")
        if not 1 <= self.improvement < math.inf:
            raise ProblemError(f"improvement is a factor of 1 or more, not {self.improvement}")
        if not 0.5 <= self.confidence < 1:
            raise ProblemError(f"confidence must be 0.5 or more and below 1, not {self.confidence}")

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
            refusal_s=math.inf,
            depletion_s=math.inf,
            depletion_longest_s=math.inf,
            improvement=1.0,
            spread=0.0,
            calibrate=False,
            seek_better=False,
            guard=False,
            wait_for_release=True,
            count_preemptions=False,
        )

"""What preemptions cost: ``expected_run``, the best interval between checkpoints, and rates learned from what happened.

With failures that come at a constant rate, a run that saves its state every ``interval`` seconds takes in the mean
``work / interval * (1 / rate + restart) * (exp(rate * (interval + save)) - 1)`` (J. T. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", 2006). ``restart`` is everything between the loss of a machine
and work again: detect, solve, launch, restore. Nothing fails during a restart, because it works on new machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import lambertw, nbdtrik

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
        sd_s: Standard deviation of ``seconds`` over the moments at which machines are taken away.
    """

    seconds: float
    running_s: float
    preemptions: float
    interval_s: float
    sd_s: float = 0.0


def checkpoint_interval_s(save_s: float, preemptions_per_hour: float) -> float:
    """Return the interval between checkpoints that costs the least time in the mean (Young's for rare preemptions).

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
    rate = preemptions_per_hour / _HOUR_S
    # Where the derivative of (exp(rate * (interval + save)) - 1) / interval is zero.
    best_s = (1.0 + float(lambertw(-math.exp(-rate * save_s - 1.0)).real)) / rate
    return max(1.0, save_s, best_s)


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
        # Short work is done again rather than saved on the way.
        saved = expected_run(
            work_s, preemptions_per_hour, restart_s, save_s, checkpoint_interval_s(save_s, preemptions_per_hour)
        )
        if math.isinf(saved.interval_s):
            return saved
        unsaved = expected_run(work_s, preemptions_per_hour, restart_s, save_s, math.inf)
        return unsaved if unsaved.seconds <= saved.seconds < math.inf else saved
    if not interval_s > 0:
        raise ValueError(f"checkpoints are more than zero seconds apart, not {interval_s}")
    if work_s == 0:
        return ExpectedRun(0.0, 0.0, 0.0, interval_s)
    segment_s = min(interval_s, work_s)
    segments = work_s / segment_s
    saves_s = save_s if interval_s < work_s else 0.0
    if preemptions_per_hour == 0:
        seconds = work_s + segments * saves_s
        return ExpectedRun(seconds, seconds, 0.0, interval_s)
    rate = preemptions_per_hour / _HOUR_S
    exponent = rate * (segment_s + saves_s)
    if exponent > _LARGEST_EXPONENT:
        return ExpectedRun(math.inf, math.inf, math.inf, interval_s, math.inf)
    # Of one segment: failures are geometric, each costs a restart and an exponential time cut off at the segment's end.
    failures = math.expm1(exponent)
    running_s = failures / rate
    lost_s = (running_s - segment_s - saves_s) / failures
    lost_variance = max(0.0, 1.0 / rate**2 - (segment_s + saves_s) ** 2 * (1.0 + failures) / failures**2)
    variance = failures * lost_variance + failures * (1.0 + failures) * (lost_s + restart_s) ** 2
    return ExpectedRun(
        seconds=segments * (running_s + failures * restart_s),
        running_s=segments * running_s,
        preemptions=segments * failures,
        interval_s=interval_s,
        sd_s=math.sqrt(segments * variance),
    )


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

    def most(self, offer: str, given: float | None, machine_hours: float, share: float) -> float:
        """Return how many preemptions come in so many hours at most, in ``share`` of the cases.

        What was given and seen makes a gamma distribution of the rate, so the number is negative binomial.
        """
        if not machine_hours > 0:
            return 0.0
        hours = self._weight + self._hours.get(offer, 0.0)
        events = self.per_hour(offer, given) * hours
        if (hours / (hours + machine_hours)) ** events >= share:
            return 0.0
        return float(nbdtrik(share, events, hours / (hours + machine_hours)))


def _at_least_zero(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} is zero or more, not {value}")

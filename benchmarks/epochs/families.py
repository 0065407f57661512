"""Families that the scorer is fitted on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from generator import Family, Plan, log_uniform, size, size_of_at_least
from numpy.random import Generator


def epoch_lengths(rng: Generator, period: float, epochs: int) -> Iterator[float]:
    """Durations that scatter a little around the period."""
    scatter = log_uniform(rng, 0.001, 0.06)
    for _ in range(epochs):
        yield float(period * np.clip(rng.normal(1, scatter), 0.6, 1.6))


def warm_up(rng: Generator, plan: Plan, period: float) -> None:
    """Compilation and data loading at the start of the first epoch, half of the time."""
    if rng.random() < 0.5:
        plan.add(min(60.0, period * rng.uniform(0.05, 1.2)), rng.uniform(0.01, 0.15), ripples=False)


def _phases(rng: Generator, shares: list[float], levels: list[float], ripples: list[bool]) -> Plan:
    """Epochs that all consist of the same phases; now and then one is disturbed."""
    plan = Plan()
    period, epochs = size(rng)
    dips = rng.random() < 0.25
    for k, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.begin_epoch()
        if k == 0:
            warm_up(rng, plan, period)
        for share, level, ripple in zip(shares, levels, ripples, strict=True):
            seconds = share * length * rng.normal(1, 0.01)
            if dips and share > 0.4 and rng.random() < 0.15:
                plan.add(seconds * 0.6, level, ripples=ripple)
                plan.add(seconds * rng.uniform(0.03, 0.2), level * rng.uniform(0, 0.5))
                plan.add(seconds * 0.3, level, ripples=ripple)
            else:
                plan.add(seconds, level, ripples=ripple)
    return plan


def validation_low(rng: Generator) -> Plan:
    """Training, validation at a lower level, often a short gap."""
    train, share, gap = rng.uniform(0.3, 0.9), rng.uniform(0.04, 0.4), rng.choice([0.0, 0.02, 0.06])
    return _phases(
        rng, [1 - share - gap, share, gap], [train, train * rng.uniform(0.2, 0.85), 0.02], [True, True, False]
    )


def validation_high(rng: Generator) -> Plan:
    """Training, validation at a higher level, often a short gap before or after it."""
    train, share, gap = rng.uniform(0.2, 0.6), rng.uniform(0.04, 0.4), rng.choice([0.0, 0.02, 0.06])
    high = min(1.0, train * rng.uniform(1.15, 2.0))
    if rng.random() < 0.5:
        return _phases(rng, [1 - share - gap, gap, share], [train, 0.02, high], [True, False, True])
    return _phases(rng, [1 - share - gap, share, gap], [train, high, 0.02], [True, True, False])


def gap_only(rng: Generator) -> Plan:
    """Training with a short gap between the epochs."""
    gap = rng.uniform(0.015, 0.15)
    return _phases(rng, [1 - gap, gap], [rng.uniform(0.2, 0.9), rng.uniform(0, 0.1)], [True, False])


def checkpoint_pause(rng: Generator) -> Plan:
    """A pause after every epoch, now and then two to four times as long."""
    plan = Plan()
    period, epochs = size(rng)
    pause, level, low = rng.uniform(0.05, 0.5), rng.uniform(0.3, 0.95), rng.uniform(0, 0.1)
    often = rng.choice([0.0, 0.05, 0.15])
    for k, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.begin_epoch()
        if k == 0:
            warm_up(rng, plan, period)
        plan.add(length * (1 - pause), level)
        longer = rng.uniform(2, 4) if rng.random() < often else rng.normal(1, 0.04)
        plan.add(length * pause * longer, low, ripples=False)
    return plan


def mosaic(rng: Generator) -> Plan:
    """Any sequence of two to five phases."""
    count = int(rng.integers(2, 6))
    shares = rng.dirichlet(np.ones(count) * 1.5)
    levels = rng.uniform(0, 1, count)
    levels[np.argmax(shares)] = max(0.3, levels[np.argmax(shares)])
    return _phases(rng, shares.tolist(), levels.tolist(), (rng.random(count) < 0.7).tolist())


@dataclass
class Disturbances:
    """What goes on around the epochs of a composed run; 0 or None: it does not happen.

    Attributes:
        pause_every: Epochs between two extra pauses (checkpoints, logs, a longer evaluation).
        pause: Length of such a pause in periods.
        pause_level: Activity in it.
        stall_chance: Share of the epochs in which the input stalls.
        longest_stall: Periods.
        slow_chance: Chance per epoch that a slow stretch begins or ends.
        growth: By how much the last epoch is longer than the first, as a ratio.
        outages: Epochs (indices) in which the job dies, and comes back after a while.
        new_length: From the middle on epochs take this many times as long.
    """

    pause_every: int = 0
    pause: float = 0.0
    pause_level: float = 0.0
    stall_chance: float = 0.0
    longest_stall: float = 1.0
    slow_chance: float = 0.0
    growth: float = 0.0
    outages: tuple[int, ...] = ()
    new_length: float = 1.0


Phase = tuple[float, float, bool]  # share of the epoch, activity, whether the steps' ripple shows


def _run_of(rng: Generator, phases: list[Phase], disturbances: Disturbances, period: float, epochs: int) -> Plan:
    """Epochs of the same phases with disturbances; the truth leaves out the epochs in which the job died."""
    plan, d = Plan(), disturbances
    whole: list[float] = []
    slow, factor = False, rng.uniform(1.08, 1.4)
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.begin_epoch()
        first = len(plan.segments)
        if i == 0:
            warm_up(rng, plan, period)
        slow ^= bool(rng.random() < d.slow_chance)
        stretch = (1 + d.growth * i / epochs) * (factor if slow else 1.0)
        stretch *= d.new_length if 2 * i >= epochs else 1.0
        share_before_death = rng.uniform(0.1, 0.95) if i in d.outages else 1.0
        stalls = rng.random() < d.stall_chance
        stalled_phase = int(np.argmax([share for share, _, _ in phases]))
        elapsed = 0.0
        for j, (share, usual_level, ripples) in enumerate(phases):
            seconds = min(share, share_before_death - elapsed) * length * stretch
            elapsed += share
            if seconds <= 0:
                break
            level = usual_level / (factor if slow else 1.0)
            if stalls and j == stalled_phase:
                at = rng.uniform(0.05, 0.95)
                plan.add(seconds * at, level, ripples=ripples)
                plan.add(period * log_uniform(rng, 0.04, d.longest_stall), rng.uniform(0, 0.1), ripples=False)
                plan.add(seconds * (1 - at), level, ripples=ripples)
            else:
                plan.add(seconds, level, ripples=ripples)
        if d.pause_every and (i + 1) % d.pause_every == 0:
            plan.add(period * d.pause * rng.normal(1, 0.03), d.pause_level, ripples=False)
        if i not in d.outages:
            whole.append(sum(seconds for seconds, _, _ in plan.segments[first:]))
        else:
            plan.add(period * log_uniform(rng, 0.3, 6), rng.uniform(0, 0.03), ripples=False)
            if rng.random() < 0.5:
                plan.add(min(60.0, period * rng.uniform(0.05, 0.6)), rng.uniform(0.02, 0.2), ripples=False)
    if d.new_length != 1.0:
        plan.regimes = (period, period * d.new_length)
    elif d.outages:
        plan.regimes = (float(np.mean(whole[1:])),)
    return plan


def _some_phases(rng: Generator) -> list[Phase]:
    """Phases of one epoch: with validation at some level, with gaps, nested evaluations, or anything."""
    kind = rng.integers(4)
    train = rng.uniform(0.25, 0.95)
    if kind == 0:
        share, gap = rng.uniform(0.04, 0.4), rng.choice([0.0, 0.015, 0.05])
        low = train * rng.choice([rng.uniform(0.2, 0.85), rng.uniform(0.95, 1.05), rng.uniform(1.1, 1.6)])
        return [(1 - share - 2 * gap, train, True), (gap, 0.03, False), (share, min(low, 1), True), (gap, 0.02, False)]
    if kind == 1:
        gap = log_uniform(rng, 0.015, 0.3)
        return [(1 - gap, train, True), (gap, rng.uniform(0, 0.1), False)]
    if kind == 2:
        parts, share, level = int(rng.integers(2, 7)), rng.uniform(0.03, 0.15), train * rng.uniform(0.2, 0.85)
        end = rng.choice([0.0, rng.uniform(0.02, 0.15)])
        # Were the last evaluation like the others, nothing would tell this from epochs with a pause after every few.
        last = rng.uniform(1.5, 4)
        phases: list[Phase] = []
        for part in range(parts):
            phases += [(1.0, train, True), (share * (last if part == parts - 1 else 1), level, True)]
        total = sum(p[0] for p in phases) / (1 - end)
        return [(s / total, lv, ripples) for s, lv, ripples in phases] + ([(end, 0.02, False)] if end else [])
    count = int(rng.integers(2, 6))
    levels = rng.uniform(0, 1, count)
    shares = rng.dirichlet(np.ones(count) * 1.5)
    levels[np.argmax(shares)] = max(0.3, levels[np.argmax(shares)])
    return [(float(s), float(lv), bool(rng.random() < 0.7)) for s, lv in zip(shares, levels, strict=True)]


def nested(rng: Generator) -> Plan:
    """Undisturbed epochs of any phases, evaluations inside them included."""
    return _run_of(rng, _some_phases(rng), Disturbances(), *size(rng))


def extra_pauses(rng: Generator) -> Plan:
    """Something more after every few epochs."""
    every = int(rng.integers(2, 9))
    level = rng.uniform(0, rng.choice([0.08, 0.3]))  # a checkpoint leaves the GPU idle, a longer evaluation does not
    pauses = Disturbances(pause_every=every, pause=log_uniform(rng, 0.02, 1.2), pause_level=level)
    return _run_of(rng, _some_phases(rng), pauses, *size_of_at_least(rng, 2 * every))


def stalled(rng: Generator) -> Plan:
    """The input stalls in some epochs."""
    d = Disturbances(stall_chance=rng.uniform(0.04, 0.35), longest_stall=rng.uniform(0.2, 1.5))
    return _run_of(rng, _some_phases(rng), d, *size_of_at_least(rng, 4))


def died(rng: Generator) -> Plan:
    """The job dies in the middle of one to three epochs and begins them anew after a while."""
    period, epochs = size_of_at_least(rng, 6)
    d = Disturbances(outages=tuple(rng.integers(2, epochs - 1, rng.integers(1, 4)).tolist()))
    return _run_of(rng, _some_phases(rng), d, period, epochs)


def changing(rng: Generator) -> Plan:
    """Epochs that slow down and recover, grow or shrink, or take longer from some point on."""
    period, epochs = size_of_at_least(rng, 6)
    kind = rng.integers(3)
    d = Disturbances(
        slow_chance=0.2 if kind == 0 else 0.0,
        growth=rng.uniform(-0.4, 0.7) if kind == 1 else 0.0,
        new_length=rng.uniform(1.3, 3) if kind == 2 else 1.0,
    )
    return _run_of(rng, _some_phases(rng), d, period, epochs)


def troubled(rng: Generator) -> Plan:
    """Several of these at once."""
    every = int(rng.integers(2, 7)) if rng.random() < 0.4 else 0
    period, epochs = size_of_at_least(rng, max(5, 2 * every))
    d = Disturbances(
        pause_every=every, pause=log_uniform(rng, 0.02, 0.6), pause_level=rng.uniform(0, 0.3),
        stall_chance=rng.choice([0.0, 0.1]), longest_stall=0.8, slow_chance=rng.choice([0.0, 0.1]),
        growth=rng.uniform(-0.15, 0.2), outages=(int(rng.integers(2, epochs - 1)),) if rng.random() < 0.3 else (),
    )  # fmt: skip
    return _run_of(rng, _some_phases(rng), d, period, epochs)


def idle(rng: Generator) -> Plan:
    """Nothing, or a few blips."""
    plan = Plan()
    for _ in range(rng.integers(0, 6)):
        plan.add(rng.exponential(60), 0.0, ripples=False)
        plan.add(rng.uniform(0.1, 3), rng.uniform(0.02, 0.6))
    plan.add(rng.uniform(30, 900), 0.0, ripples=False)
    return plan


def steady(rng: Generator) -> Plan:
    """Pre-training without epochs: one level, with its ripple; perhaps a few pauses at no interval in particular."""
    plan = Plan()
    level = rng.uniform(0.3, 0.95)
    for _ in range(rng.choice([1, 1, 2, 5])):
        plan.add(rng.uniform(40, 1500), level)
        plan.add(rng.uniform(0.2, 10), 0.05, ripples=False)
    return plan


def wandering(rng: Generator) -> Plan:
    """A random walk that is pulled back to its mean slowly or hardly at all."""
    plan = Plan()
    step, pull, spread = rng.choice([0.1, 0.3, 1.0, 3.0]), log_uniform(rng, 0.0003, 0.1), log_uniform(rng, 0.01, 0.15)
    level = mean = rng.uniform(0.3, 0.7)
    for _ in range(int(min(6000, rng.uniform(60, 1800) / step))):
        level = float(np.clip(level + pull * (mean - level) + spread * rng.normal(), 0.02, 1))
        plan.add(step, level, ripples=False)
    return plan


def requests(rng: Generator) -> Plan:
    """Inference: requests arrive at random and keep the GPU busy for a while."""
    plan = Plan()
    rate, service, total = log_uniform(rng, 0.05, 5), log_uniform(rng, 0.05, 4), rng.uniform(60, 1500)
    level, elapsed = rng.uniform(0.3, 0.9), 0.0
    while elapsed < total:
        gap, work = rng.exponential(1 / rate), service * rng.lognormal(0, rng.choice([0.2, 0.7]))
        plan.add(gap, rng.uniform(0, 0.02), ripples=False)
        plan.add(work, level * rng.uniform(0.8, 1.1))
        elapsed += gap + work
    return plan


def bursts(rng: Generator) -> Plan:
    """Inference in busy and quiet stretches of random length."""
    plan = Plan()
    elapsed, total = 0.0, rng.uniform(100, 2000)
    busy_s, quiet_s = log_uniform(rng, 2, 60), log_uniform(rng, 2, 120)
    while elapsed < total:
        on, off = rng.gamma(rng.choice([1.0, 2.0]), busy_s), rng.exponential(quiet_s)
        plan.add(on, rng.uniform(0.2, 0.9))
        plan.add(off, rng.uniform(0, 0.1), ripples=False)
        elapsed += on + off
    return plan


def timer(rng: Generator) -> Plan:
    """A scheduled job: short work at a fixed interval on an otherwise idle GPU."""
    plan = Plan()
    interval, share = log_uniform(rng, 5, 120), rng.uniform(0.02, 0.15)
    for _ in range(int(min(40, 1800 / interval))):
        work = interval * share * rng.lognormal(0, 0.5)
        plan.add(work, rng.uniform(0.2, 0.9))
        plan.add(max(0.1, interval - work), 0.0, ripples=False)
    return plan


POSITIVE: dict[str, Family] = {
    "validation_low": validation_low,
    "validation_high": validation_high,
    "gap_only": gap_only,
    "checkpoint_pause": checkpoint_pause,
    "mosaic": mosaic,
    "nested": nested,
    "extra_pauses": extra_pauses,
    "stalled": stalled,
    "died": died,
    "changing": changing,
    "troubled": troubled,
}
NEGATIVE: dict[str, Family] = {
    "idle": idle,
    "steady": steady,
    "wandering": wandering,
    "requests": requests,
    "bursts": bursts,
    "timer": timer,
}

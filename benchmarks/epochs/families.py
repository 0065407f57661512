"""Families that the scorer is fitted on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from generator import Family, Plan, log_uniform, size
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
}
NEGATIVE: dict[str, Family] = {
    "idle": idle,
    "steady": steady,
    "wandering": wandering,
    "requests": requests,
    "bursts": bursts,
    "timer": timer,
}

"""The second set of families that was set aside: nothing was fitted to them, but their figures have been seen.

That pauses are cut out (``pauses.py``) and epochs of another length looked for (``regimes.py``) owes to what failed
here; so it is no blind test any more. That is ``set_aside.py``.
"""

from __future__ import annotations

import numpy as np
from families import epoch_lengths, warm_up
from generator import Family, Plan, log_uniform, size_of_at_least
from numpy.random import Generator


def _levels(rng: Generator) -> tuple[float, float, float]:
    """Training level, validation level, share of validation."""
    train = rng.uniform(0.35, 0.9)
    return train, float(train * rng.uniform(0.25, 0.8)), rng.uniform(0.05, 0.25)


def progressive_resizing(rng: Generator) -> Plan:
    """The images grow twice during the run; each time the epochs get longer and the GPU busier."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 12)
    train, validation, share = _levels(rng)
    factors = np.cumprod([1.0, rng.uniform(1.3, 1.8), rng.uniform(1.3, 1.8)])
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        stage = min(3 * i // epochs, 2)
        level = min(1.0, train * (0.7 + 0.15 * stage))
        plan.train_and_validate(length * factors[stage], level, validation, share)
    plan.regimes = tuple(float(period * factor) for factor in factors)
    return plan


def alternating_updates(rng: Generator) -> Plan:
    """Two networks are trained in turns, many turns per epoch; images are generated at the end of each."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4, 6.0)
    one, other = rng.uniform(0.5, 0.9), rng.uniform(0.15, 0.45)
    turns, share = int(rng.integers(3, 13)), rng.uniform(0.03, 0.12)
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        for _ in range(turns):
            plan.add(length * (1 - share) / turns * 0.6, one)
            plan.add(length * (1 - share) / turns * 0.4, other)
        plan.add(length * share, rng.uniform(0.03, 0.08), ripples=False)
    return plan


def cache_warms(rng: Generator) -> Plan:
    """Each epoch begins slowly, waiting for data, and gets faster: the level climbs in steps."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4)
    high, low, steps = rng.uniform(0.6, 0.95), rng.uniform(0.1, 0.4), int(rng.integers(4, 20))
    curve = rng.uniform(0.3, 1.5)
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        for step in range(steps):
            plan.add(length / steps, low + (high - low) * (step / (steps - 1)) ** curve)
    return plan


def unfrozen(rng: Generator) -> Plan:
    """First only the head is trained, then everything: longer epochs at another level."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 8)
    train, validation, share = _levels(rng)
    change, factor = round(epochs * rng.uniform(0.2, 0.5)), rng.uniform(0.4, 0.75)
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        if i < change:
            plan.train_and_validate(length * factor, train * 0.6, validation * 0.8, share)
        else:
            plan.train_and_validate(length, train, validation, share)
    plan.regimes = (period * factor, period)
    return plan


def preempted(rng: Generator) -> Plan:
    """A spot instance is taken away between epochs, for long; the job goes on from its checkpoint."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 6)
    train, validation, share = _levels(rng)
    pause = rng.uniform(0.02, 0.1)
    breaks = set(rng.integers(2, epochs - 1, rng.integers(1, 4)).tolist())
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.train_and_validate(length * (1 - pause), train, validation, share)
        plan.add(length * pause, 0.02, ripples=False)
        if i in breaks:
            plan.add(min(900.0, period * log_uniform(rng, 1, 20)), 0.0, ripples=False)
            plan.add(min(40.0, period * rng.uniform(0.1, 0.8)), rng.uniform(0.02, 0.15), ripples=False)
    plan.regimes = (period,)
    return plan


def several_trials(rng: Generator) -> Plan:
    """The same training again and again with other parameters, a few epochs each, with time to set up between them."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 9)
    train, validation, share = _levels(rng)
    of_each, set_up = int(rng.integers(3, 8)), rng.uniform(0.2, 1.2)
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.train_and_validate(length, train, validation, share)
        if (i + 1) % of_each == 0 and i + 1 < epochs:
            plan.add(period * set_up * rng.normal(1, 0.05), 0.02, ripples=False)
    plan.regimes = (period,)
    return plan


def second_job(rng: Generator) -> Plan:
    """A smaller job with epochs of its own shares the GPU all the time."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 5, 2.0)
    train, validation, share = _levels(rng)
    other, swing = period * rng.choice([rng.uniform(0.15, 0.7), rng.uniform(1.3, 2.8)]), rng.uniform(0.05, 0.15)
    clock = 0.0
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        for seconds, level in ((length * (1 - share), train * 0.7), (length * share, validation * 0.5)):
            left = seconds
            while left > 1e-9:
                phase = clock % other
                piece = min(left, (0.75 * other - phase) if phase < 0.75 * other else other - phase)
                piece = max(piece, 0.02)
                plan.add(piece, level + (swing if phase < 0.75 * other else 0.0))
                clock, left = clock + piece, left - piece
    return plan


def few_long_steps(rng: Generator) -> Plan:
    """Gradients are accumulated: a few long steps per epoch, each ending in a dip nearly as deep as the epoch's own."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4, 6.0)
    level, steps = rng.uniform(0.5, 0.95), int(rng.integers(4, 16))
    dip, end = level * rng.uniform(0.3, 0.6), rng.uniform(0.05, 0.15)
    for k, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.begin_epoch()
        if k == 0:
            warm_up(rng, plan, period)
        for _ in range(steps):
            plan.add(length * (1 - end) / steps * 0.9, level)
            plan.add(length * (1 - end) / steps * 0.1, dip)
        plan.add(length * end, level * 0.1, ripples=False)
    return plan


def batch_inference(rng: Generator) -> Plan:
    """Files of very different length, one after the other, with the same short pause between them."""
    plan = Plan()
    typical, pause, level = log_uniform(rng, 3, 90), log_uniform(rng, 0.3, 5), rng.uniform(0.4, 0.95)
    for _ in range(int(rng.integers(10, 60))):
        plan.add(min(600.0, typical * rng.lognormal(0, 0.8)), level * rng.uniform(0.95, 1.05))
        plan.add(pause, 0.03, ripples=False)
    return plan


def notebook_cells(rng: Generator) -> Plan:
    """Somebody runs cells by hand: short work, thinking, now and then something longer."""
    plan = Plan()
    for _ in range(int(rng.integers(15, 70))):
        plan.add(log_uniform(rng, 0.3, 30), rng.uniform(0.1, 0.95))
        plan.add(log_uniform(rng, 0.5, 30), 0.0, ripples=False)
    return plan


POSITIVE: dict[str, Family] = {
    f.__name__: f
    for f in (
        progressive_resizing,
        alternating_updates,
        cache_warms,
        unfrozen,
        preempted,
        several_trials,
        second_job,
        few_long_steps,
    )
}
NEGATIVE: dict[str, Family] = {f.__name__: f for f in (batch_inference, notebook_cells)}

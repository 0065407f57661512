"""Families with disturbances that the scorer's own families have too, in other code and with other figures.

They were set aside for the final test at first; the scorer has been fitted to disturbances since (``families.py``), so
they say how it does on what it knows by kind. What it does not know: ``seen_once.py`` and ``set_aside.py``.
"""

from __future__ import annotations

import numpy as np
from families import epoch_lengths, warm_up
from generator import Family, Plan, log_uniform, size_of_at_least
from numpy.random import Generator


def _levels(rng: Generator) -> tuple[float, float, float]:
    """Training level, validation level, share of validation."""
    train = rng.uniform(0.3, 0.9)
    return train, float(train * rng.uniform(0.3, 0.8)), rng.uniform(0.06, 0.3)


def checkpoint_every_k_epochs(rng: Generator) -> Plan:
    """Validation after every epoch, a checkpoint after every k-th."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 8)
    train, validation, share = _levels(rng)
    k, pause = int(rng.integers(2, 6)), rng.uniform(0.05, 0.4)
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.train_and_validate(length, train, validation, share)
        if (i + 1) % k == 0:
            plan.add(length * pause, 0.03, ripples=False)
    return plan


def evaluation_inside_the_epoch(rng: Generator) -> Plan:
    """Two to four evaluations per epoch, a longer one with a checkpoint at its end."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4)
    period = max(period, 4.0)
    train, validation, share = _levels(rng)
    parts = int(rng.integers(2, 5))
    for length in epoch_lengths(rng, period, min(epochs, int(3600 / period) + 3)):
        plan.begin_epoch()
        for part in range(parts):
            plan.add(length * (1 - share) / parts, train)
            plan.add(length * share / parts * (2.5 if part == parts - 1 else 0.7), validation)
        plan.add(length * 0.05, 0.02, ripples=False)
    return plan


def validation_at_the_training_level(rng: Generator) -> Plan:
    """Validation looks like training; only short gaps before and after it show."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4)
    level, share, gap = rng.uniform(0.3, 0.9), rng.uniform(0.08, 0.3), rng.uniform(0.01, 0.04)
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        plan.add(length * (1 - share - 2 * gap), level)
        plan.add(length * gap, 0.03, ripples=False)
        plan.add(length * share, level * rng.normal(1, 0.01))
        plan.add(length * gap, 0.03, ripples=False)
    return plan


def stalls(rng: Generator) -> Plan:
    """The input pipeline stalls at random, for up to a whole period, in a fifth of the epochs."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 5)
    train, validation, share = _levels(rng)
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        first = rng.uniform(0.1, 0.9)
        plan.add(length * (1 - share) * first, train)
        if rng.random() < 0.2:
            plan.add(period * rng.uniform(0.1, 1.0), rng.uniform(0, 0.08), ripples=False)
        plan.add(length * (1 - share) * (1 - first), train)
        plan.add(length * share, validation)
    return plan


def throttling(rng: Generator) -> Plan:
    """The GPU gets hot: in some stretches epochs take 10-35 % longer at a lower level."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 6)
    train, validation, share = _levels(rng)
    slow = False
    for length in epoch_lengths(rng, period, epochs):
        slow ^= bool(rng.random() < 0.2)
        factor = rng.uniform(1.1, 1.35) if slow else 1.0
        plan.train_and_validate(length * factor, train / factor, validation / factor, share)
    return plan


def curriculum(rng: Generator) -> Plan:
    """Epochs grow (or shrink) steadily by up to two thirds over the run."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 6)
    train, validation, share = _levels(rng)
    growth = rng.uniform(0.15, 0.65) * rng.choice([-0.6, 1.0])
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.train_and_validate(length * (1 + growth * i / epochs), train * (1 + 0.2 * i / epochs), validation, share)
    return plan


def restart(rng: Generator) -> Plan:
    """The job dies in the middle of an epoch, the GPU idles, the job starts again."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 8)
    train, validation, share = _levels(rng)
    breaks = set(rng.integers(3, epochs - 2, rng.integers(1, 3)).tolist())
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        if i in breaks:
            plan.add(length * rng.uniform(0.1, 0.7), train)
            plan.add(rng.uniform(5, 90), 0.0, ripples=False)
            warm_up(rng, plan, period)
        plan.train_and_validate(length, train, validation, share)
    plan.regimes = (period,)
    return plan


def regime_change(rng: Generator) -> Plan:
    """From some epoch on, epochs take 1.4 to 3 times as long (another batch size, a slower disk)."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 10)
    train, validation, share = _levels(rng)
    change, factor = int(epochs * rng.uniform(0.35, 0.65)), rng.uniform(1.4, 3.0)
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.train_and_validate(length * (factor if i >= change else 1), train, validation, share)
    plan.regimes = (period, period * factor)
    return plan


def busy_neighbour(rng: Generator) -> Plan:
    """Another tenant comes and goes all the time and takes as much as the job itself."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 6)
    train, validation, share = _levels(rng)
    train, validation = train * 0.6, validation * 0.6
    extra, left = 0.0, 0.0
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        for seconds, level in ((length * (1 - share), train), (length * share, validation)):
            todo = seconds
            while todo > 0:
                if left <= 0:
                    extra, left = rng.choice([0.0, 0.0, 0.3]), log_uniform(rng, period / 3, period * 6)
                piece = min(todo, left)
                plan.add(piece, level + extra)
                todo, left = todo - piece, left - piece
    return plan


def diurnal_serving(rng: Generator) -> Plan:
    """Inference whose rate rises and falls slowly."""
    plan = Plan()
    elapsed, total, rate = 0.0, rng.uniform(300, 2000), log_uniform(rng, 0.2, 3)
    while elapsed < total:
        now = rate * (1.1 + np.sin(2 * np.pi * 1.3 * elapsed / total))
        gap, work = rng.exponential(1 / now), rng.lognormal(np.log(0.3), 0.5)
        plan.add(gap, 0.01, ripples=False)
        plan.add(work, 0.6)
        elapsed += gap + work
    return plan


def queue_of_jobs(rng: Generator) -> Plan:
    """Unrelated jobs one after the other, each at its own level for its own time."""
    plan = Plan()
    typical = log_uniform(rng, 5, 120)
    for _ in range(rng.integers(4, 40)):
        plan.add(typical * rng.lognormal(0, 0.6), rng.uniform(0.2, 0.95))
        plan.add(rng.exponential(typical / 5), 0.0, ripples=False)
    return plan


POSITIVE: dict[str, Family] = {
    f.__name__: f
    for f in (
        checkpoint_every_k_epochs,
        evaluation_inside_the_epoch,
        validation_at_the_training_level,
        stalls,
        throttling,
        curriculum,
        restart,
        regime_change,
        busy_neighbour,
    )
}
NEGATIVE: dict[str, Family] = {f.__name__: f for f in (diurnal_serving, queue_of_jobs)}

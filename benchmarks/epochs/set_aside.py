"""Families for the final test only: nothing was fitted to them, and no choice was made by looking at them.

They were written after the detector was. The first two such sets are no longer blind: the scorer has been fitted to the
kinds of ``disturbed.py``, and the figures of ``seen_once.py`` were known when the detector learned to leave pauses out.
"""

from __future__ import annotations

from families import epoch_lengths, warm_up
from generator import Family, Plan, log_uniform, size_of_at_least
from numpy.random import Generator


def cross_validation(rng: Generator) -> Plan:
    """Folds of a few epochs each; after each a test run and a new network, which compiles again."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 8)
    train, share = rng.uniform(0.35, 0.9), rng.uniform(0.05, 0.2)
    of_each, test, compile_s = int(rng.integers(2, 6)), rng.uniform(0.1, 0.5), min(30.0, period * rng.uniform(0.1, 0.7))
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.train_and_validate(length, train, train * 0.6, share)
        if (i + 1) % of_each == 0 and i + 1 < epochs:
            plan.add(period * test, train * 0.7)
            plan.add(compile_s, rng.uniform(0.01, 0.08), ripples=False)
    plan.regimes = (period,)
    return plan


def asynchronous_checkpoint(rng: Generator) -> Plan:
    """After each epoch a checkpoint is written in the background, which slows the next one down for a while."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4)
    train, slowed, share = rng.uniform(0.5, 0.95), rng.uniform(0.55, 0.85), rng.uniform(0.1, 0.4)
    for k, length in enumerate(epoch_lengths(rng, period, epochs)):
        plan.begin_epoch()
        if k == 0:
            warm_up(rng, plan, period)
        plan.add(length * share * rng.normal(1, 0.08), train * slowed)
        plan.add(length * (1 - share), train)
    return plan


def shuffled_sources(rng: Generator) -> Plan:
    """Each epoch goes through three datasets at levels of their own, in a new order, and ends with validation."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 5, 3.0)
    levels = rng.uniform(0.5, 0.95, 3)
    shares = rng.dirichlet([4, 4, 4]) * 0.88
    low = rng.uniform(0.05, 0.3)
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        for source in rng.permutation(3):
            plan.add(length * shares[source], levels[source])
        plan.add(length * 0.12, low)
    return plan


def long_generation(rng: Generator) -> Plan:
    """Short training, then a long evaluation that generates text: bursts of different length at a low level."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4, 6.0)
    train, share, low = rng.uniform(0.6, 0.95), rng.uniform(0.35, 0.65), rng.uniform(0.1, 0.3)
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        plan.add(length * share, train)
        left = length * (1 - share)
        while left > 0.02:
            piece = min(left, log_uniform(rng, period / 60, period / 12))
            plan.add(piece, low * rng.uniform(0.6, 1.4))
            left -= piece
    return plan


def elastic(rng: Generator) -> Plan:
    """Workers join and leave: stretches of epochs take one of two durations, back and forth."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 12)
    train, share, factor = rng.uniform(0.4, 0.9), rng.uniform(0.06, 0.25), rng.uniform(1.3, 2.2)
    slow, left = False, int(rng.integers(3, 8))
    for length in epoch_lengths(rng, period, epochs):
        if left == 0:
            slow, left = not slow, int(rng.integers(3, 8))
        plan.train_and_validate(length * (factor if slow else 1), train, train * 0.5, share)
        left -= 1
    plan.regimes = (period, period * factor)
    return plan


def power_cap(rng: Generator) -> Plan:
    """A power limit makes the level rise and fall with a period of its own while the epochs go on."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 5, 2.0)
    train, share, swing = rng.uniform(0.5, 0.8), rng.uniform(0.06, 0.25), rng.uniform(0.08, 0.2)
    saw_s, clock = log_uniform(rng, 5, 90), 0.0
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        for seconds, level in ((length * (1 - share), train), (length * share, train * 0.45)):
            left = seconds
            while left > 1e-9:
                piece = min(left, saw_s / 8)
                plan.add(piece, level * (1 + swing * (1 - 2 * ((clock / saw_s) % 1))))
                clock, left = clock + piece, left - piece
    return plan


def profiled_steps(rng: Generator) -> Plan:
    """Every few seconds somebody's profiler stops the GPU for a moment; the epochs end with a log and a checkpoint."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 4, 8.0)
    train, every, stop = rng.uniform(0.4, 0.9), period / rng.uniform(3.3, 12.7), rng.uniform(0.1, 0.4)
    pause = rng.uniform(0.04, 0.2)
    for length in epoch_lengths(rng, period, epochs):
        plan.begin_epoch()
        left = length * (1 - pause)
        while left > 0.02:
            plan.add(min(left, every * rng.normal(1, 0.15)), train)
            plan.add(stop, 0.05, ripples=False)
            left -= every + stop
        plan.add(length * pause, 0.02, ripples=False)
    return plan


def resumed_elsewhere(rng: Generator) -> Plan:
    """The job moves to another GPU of another speed and back: an outage, then epochs of another length and level."""
    plan = Plan()
    period, epochs = size_of_at_least(rng, 9)
    train, share, factor = rng.uniform(0.4, 0.8), rng.uniform(0.08, 0.25), rng.uniform(0.5, 0.8)
    change = int(epochs * rng.uniform(0.3, 0.7))
    for i, length in enumerate(epoch_lengths(rng, period, epochs)):
        if i == change:
            plan.add(min(300.0, period * log_uniform(rng, 0.5, 5)), 0.0, ripples=False)
        scale = factor if i >= change else 1.0
        plan.train_and_validate(length * scale, train * (1.1 if i >= change else 1.0), train * 0.5, share)
    plan.regimes = (period, period * factor)
    return plan


def parameter_sweep(rng: Generator) -> Plan:
    """Small trainings of different size one after the other, none long enough for an epoch to repeat."""
    plan = Plan()
    for _ in range(int(rng.integers(8, 40))):
        plan.add(log_uniform(rng, 2, 60), rng.uniform(0.3, 0.95))
        plan.add(log_uniform(rng, 0.5, 8), rng.uniform(0.05, 0.4))
        plan.add(log_uniform(rng, 0.5, 10), 0.0, ripples=False)
    return plan


def translation_service(rng: Generator) -> Plan:
    """Documents come in bunches; each bunch is worked off at full speed, then the GPU waits for the next."""
    plan = Plan()
    work_s, wait_s = log_uniform(rng, 3, 40), log_uniform(rng, 2, 60)
    for _ in range(int(rng.integers(12, 50))):
        for _ in range(int(rng.integers(1, 6))):
            plan.add(rng.exponential(work_s / 3), rng.uniform(0.5, 0.9))
            plan.add(rng.exponential(0.5), 0.02, ripples=False)
        plan.add(rng.exponential(wait_s), 0.0, ripples=False)
    return plan


POSITIVE: dict[str, Family] = {
    f.__name__: f
    for f in (
        cross_validation,
        asynchronous_checkpoint,
        shuffled_sources,
        long_generation,
        elastic,
        power_cap,
        profiled_steps,
        resumed_elsewhere,
    )
}
NEGATIVE: dict[str, Family] = {f.__name__: f for f in (parameter_sweep, translation_service)}

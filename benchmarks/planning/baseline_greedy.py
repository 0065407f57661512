"""The two greedy policies that the seed compares with (Srifty, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from gpusonde.optimizer.problem import Group, MachineOffer, Plan, Problem

MAGIC_BATCH = 64


def cheapest_first(problem: Problem) -> Plan | None:
    """Return the plan of CGF: the largest batch on every device, the cheapest device first.

    Returns:
        None when the offers cannot take the global batch this way.
    """
    offers = sorted(problem.offers, key=lambda offer: (offer.usd_per_hour / offer.devices, offer.name))
    return _fill(problem, offers)


def fastest_first(problem: Problem, speed_order: Sequence[str], magic_batch: int = MAGIC_BATCH) -> Plan | None:
    """Return the plan of FGF: a fixed batch on every device, the fastest device first.

    Where the devices do not suffice for that, they are packed with their largest batch.

    Args:
        problem: What is asked for.
        speed_order: Names of the offers, the fastest device first.
        magic_batch: The fixed batch per device.

    Returns:
        None when the offers cannot take the global batch this way.

    Raises:
        ValueError: ``speed_order`` does not hold every offer's name.
    """
    missing = [offer.name for offer in problem.offers if offer.name not in speed_order]
    if missing:
        raise ValueError(f"speed_order lacks {', '.join(missing)}")
    offers = sorted(problem.offers, key=lambda offer: speed_order.index(offer.name))
    return _fill(problem, offers, magic_batch) or _fill(problem, offers)


def _fill(problem: Problem, offers: Sequence[MachineOffer], magic_batch: int | None = None) -> Plan | None:
    """Take machines in the order of the offers until the global batch is placed."""
    left, groups = problem.global_batch, []
    for offer in offers:
        fitting = [batch for batch in problem.candidates(offer) if batch * offer.devices <= left]
        if magic_batch is not None:
            fitting = [batch for batch in fitting if batch == magic_batch]
        if not fitting or offer.quota == 0:
            continue
        samples = fitting[-1] * offer.devices
        machines = min(offer.quota, left // samples)
        groups.append(Group(offer.name, machines, fitting[-1]))
        left -= machines * samples
        if left == 0:
            return Plan(tuple(groups))
    return None

"""``Fleet``: the machines of a job, as the cloud tells and as they are paid for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpusonde.optimizer.continual.cloud import Cloud, Machine, NoticeKind
from gpusonde.optimizer.continual.risk import PreemptionRates
from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.problem import Billing, Offer

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Losses:
    """What became known at a step.

    Attributes:
        preempted: Offers that lost a machine.
        refused: Offers that did not give one.
        lost: The machines that went.
        released: Machines whose volume is free.
    """

    preempted: tuple[str, ...]
    refused: tuple[str, ...]
    lost: tuple[str, ...]
    released: tuple[str, ...]


class Fleet:
    """Follows the machines of one job.

    Machines of offers that the problem does not know, and news of machines that nobody ordered or saw, are left
    alone and counted in ``unknown``.

    Args:
        cloud: Where the machines are.
        offers: The problem's offers.
        rates: Learns from what happens.
    """

    def __init__(self, cloud: Cloud, offers: Sequence[Offer], rates: PreemptionRates) -> None:
        self.spent_usd = 0.0
        self.unknown = 0
        self._cloud = cloud
        self._offers: Mapping[str, Offer] = {offer.name: offer for offer in offers}
        self._rates = rates
        self._machines: dict[str, Machine] = {}
        self._ordered: dict[str, tuple[str, float]] = {}
        self._ending: set[str] = set()
        self._last_s: float | None = None

    @property
    def machines(self) -> Mapping[str, Machine]:
        """The machines, by identifier, that which are to end left out."""
        return self._machines

    def offers_changed(self, offers: Sequence[Offer]) -> None:
        """Reckon with the prices of now from the next step on."""
        self._offers = {offer.name: offer for offer in offers}

    def held(self) -> Counter[str]:
        """Return machines that boot or run, by offer."""
        return Counter(machine.offer for machine in self._machines.values())

    def ready(self) -> Counter[str]:
        """Return machines that run, by offer."""
        return Counter(machine.offer for machine in self._machines.values() if machine.ready)

    def ordered(self, offer: str, identifiers: Sequence[str], now_s: float) -> None:
        """Take note of an order."""
        for identifier in identifiers:
            self._ordered[identifier] = (offer, now_s)
            self._machines[identifier] = Machine(identifier, offer, ready=False)

    def ended(self, identifiers: Collection[str]) -> None:
        """Take note that machines are to end."""
        for identifier in identifiers:
            if self._machines.pop(identifier, None) is not None:
                self._ending.add(identifier)
            self._ordered.pop(identifier, None)

    def still_there(self) -> tuple[str, ...]:
        """Return machines that were to end and that the cloud still lists."""
        return tuple(sorted(self._ending))

    def overdue(self, now_s: float, timeout_s: float) -> tuple[str, ...]:
        """Return machines that have been booting for longer than the time-out."""
        return tuple(
            identifier
            for identifier, (_, since_s) in self._ordered.items()
            if now_s - since_s >= timeout_s and identifier in self._machines and not self._machines[identifier].ready
        )

    def update(self, now_s: float) -> Losses:
        """Ask the cloud what there is and what happened."""
        self._pay(now_s)
        refused: set[str] = set()
        gone: dict[str, str] = {}
        released = []
        for notice in self._cloud.notices():
            identifier = notice.machine
            if identifier in self._machines:
                offer = self._machines[identifier].offer
                if notice.kind is NoticeKind.RELEASED:
                    released.append(identifier)
                elif notice.kind is NoticeKind.REFUSED:
                    refused.add(offer)
                    self._drop(identifier)
                else:
                    gone[identifier] = offer
            elif notice.kind is NoticeKind.RELEASED:
                released.append(identifier)
            elif identifier in self._ending:
                self._ending.discard(identifier)
            else:
                self.unknown += 1
        seen = {}
        for machine in self._cloud.machines():
            if machine.identifier in self._ending or machine.identifier in gone:
                continue
            if machine.offer not in self._offers:
                self.unknown += 1
            else:
                seen[machine.identifier] = machine
        # A machine that the cloud listed and lists no longer is gone, notice or not.
        for identifier, machine in self._machines.items():
            if identifier not in seen and (machine.ready or identifier not in self._ordered):
                gone[identifier] = machine.offer
        waiting = {
            identifier: self._machines[identifier]
            for identifier in self._ordered
            if identifier not in seen and identifier in self._machines and identifier not in gone
        }
        self._ending.intersection_update(machine.identifier for machine in self._cloud.machines())
        for identifier in (*gone, *(i for i, machine in seen.items() if machine.ready)):
            self._ordered.pop(identifier, None)
        self._machines = {**seen, **waiting}
        preempted = tuple(sorted(set(gone.values())))
        for offer in preempted:
            if self._offers[offer].billing is Billing.SPOT:
                self._rates.preempted(offer)
        return Losses(preempted, tuple(sorted(refused)), tuple(gone), tuple(released))

    def pick(self, plan: Plan) -> tuple[str, ...] | None:
        """Return running machines that make up a plan, or None when some are missing."""
        picked: list[str] = []
        for group in plan.groups:
            ready = [m.identifier for m in self._machines.values() if m.offer == group.offer and m.ready]
            if len(ready) < group.machines:
                return None
            picked += ready[: group.machines]
        return tuple(picked)

    def beyond(self, keep: Collection[str], *plans: Plan | None) -> tuple[str, ...]:
        """Return the machines that neither ``keep`` nor a plan needs; running ones are kept before booting ones."""
        needed: Counter[str] = Counter()
        for plan in plans:
            if plan is not None:
                for group in plan.groups:
                    needed[group.offer] = max(needed[group.offer], group.machines)
        beyond = []
        order = sorted(self._machines.values(), key=lambda m: (m.identifier not in keep, not m.ready))
        for machine in order:
            if needed[machine.offer] > 0:
                needed[machine.offer] -= 1
            elif machine.identifier not in keep:
                beyond.append(machine.identifier)
        return tuple(beyond)

    def _drop(self, identifier: str) -> None:
        self._machines.pop(identifier, None)
        self._ordered.pop(identifier, None)

    def _pay(self, now_s: float) -> None:
        """Count what the running machines cost since the last step."""
        if self._last_s is not None and math.isfinite(now_s) and now_s > self._last_s:
            hours = (now_s - self._last_s) / _HOUR_S
            for offer, machines in self.ready().items():
                self.spent_usd += hours * machines * self._offers[offer].usd_per_hour
                if self._offers[offer].billing is Billing.SPOT:
                    self._rates.ran(offer, hours * machines)
        self._last_s = now_s

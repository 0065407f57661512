"""``Fleet``: the machines of a job, as a ``Cloud`` tells and as they are paid for.

A cloud launches and ends machines and takes them away; ``ReportedCloud`` is told of it by its user.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gpusonde.optimizer.preemptions import PreemptionRates
from gpusonde.optimizer.problem import Billing, MachineOffer, Plan


class NoticeKind(str, Enum):
    """What a cloud says about a machine."""

    PREEMPTED = "preempted"  # it is gone
    RELEASED = "released"  # its volume can be attached to another machine
    REFUSED = "refused"  # it will not be launched: no capacity

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Notice:
    """News of one machine.

    Attributes:
        kind: What happened.
        machine: The machine's identifier.
        offer: Name of its offer.
    """

    kind: NoticeKind
    machine: str
    offer: str


@dataclass(frozen=True)
class Machine:
    """A machine that was launched and has not ended.

    Attributes:
        identifier: The cloud's name for it.
        offer: Name of its offer.
        ready: False while it boots; a machine is paid for from when it is ready.
    """

    identifier: str
    offer: str
    ready: bool


class Cloud(Protocol):
    """What continual optimisation needs of a cloud.

    An adapter for a real one gives a ``REFUSED`` notice for lack of capacity, at once or later, and raises
    :class:`CloudError` for what else goes wrong with an order. What ``terminate`` did not end is asked for again.
    """

    def launch(self, offer: str, machines: int) -> Sequence[str]:
        """Order machines of an offer; return their identifiers.

        Raises:
            CloudError: Nothing was ordered.
        """
        ...

    def terminate(self, identifiers: Sequence[str]) -> None:
        """End machines; unknown ones and ones that have ended are passed over.

        Raises:
            CloudError: Some may still run.
        """
        ...

    def machines(self) -> Sequence[Machine]:
        """Return the machines that boot or run."""
        ...

    def notices(self) -> Sequence[Notice]:
        """Return what happened since the last call."""
        ...


class ReportedCloud:
    """A cloud that is told what runs, for a user who launches machines by hand and wants recommendations only.

    ``launch`` and ``terminate`` do nothing to the outside: the user acts and reports.

    Args:
        machines: What runs at first.
    """

    _MOST_NOTICES = 10_000

    def __init__(self, machines: Iterable[Machine] = ()) -> None:
        self._machines = {machine.identifier: machine for machine in machines}
        self._notices: deque[Notice] = deque(maxlen=self._MOST_NOTICES)
        self._numbers = itertools.count(1)

    def report(self, machines: Iterable[Machine], preempted: Iterable[Notice] = ()) -> None:
        """Replace what runs by ``machines``; ``preempted`` are notices to pass on."""
        self._machines = {machine.identifier: machine for machine in machines}
        self._notices.extend(preempted)

    def launch(self, offer: str, machines: int) -> Sequence[str]:
        """Return names for machines that the user is to launch; they count once reported."""
        return [f"{offer}/asked-{next(self._numbers)}" for _ in range(machines)]

    def terminate(self, identifiers: Sequence[str]) -> None:
        """Do nothing: the user ends machines and reports what is left."""

    def machines(self) -> Sequence[Machine]:
        """Return what was reported last."""
        return tuple(self._machines.values())

    def notices(self) -> Sequence[Notice]:
        """Return what was reported since the last call."""
        notices = tuple(self._notices)
        self._notices.clear()
        return notices


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
    alone.

    Args:
        cloud: Where the machines are.
        offers: The problem's offers.
        rates: Learns from what happens.
    """

    def __init__(self, cloud: Cloud, offers: Sequence[MachineOffer], rates: PreemptionRates) -> None:
        self.spent_usd = 0.0
        self._cloud = cloud
        self._offers: Mapping[str, MachineOffer] = {offer.name: offer for offer in offers}
        self._rates = rates
        self._machines: dict[str, Machine] = {}
        self._ordered: dict[str, tuple[str, float]] = {}
        self._ending: set[str] = set()
        self._last_s: float | None = None

    @property
    def machines(self) -> Mapping[str, Machine]:
        """The machines, by identifier, that which are to end left out."""
        return self._machines

    def replace_offers(self, offers: Sequence[MachineOffer]) -> None:
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

    def kept(self, identifiers: Collection[str]) -> None:
        """Take note that machines do not end after all."""
        self._ending.difference_update(identifiers)

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
        refused, gone, released = self._take_notices()
        seen = self._list_machines(gone)
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

    def _take_notices(self) -> tuple[set[str], dict[str, str], list[str]]:
        """Return offers that refused, machines that are gone with their offers, and machines whose volume is free."""
        refused: set[str] = set()
        gone: dict[str, str] = {}
        released = []
        for notice in self._cloud.notices():
            identifier = notice.machine
            machine = self._machines.get(identifier)
            if notice.kind is NoticeKind.RELEASED:
                released.append(identifier)
            elif machine is None:
                self._ending.discard(identifier)
            elif notice.kind is NoticeKind.REFUSED:
                refused.add(machine.offer)
                self._drop(identifier)
            else:
                gone[identifier] = machine.offer
        return refused, gone, released

    def _list_machines(self, gone: Collection[str]) -> dict[str, Machine]:
        """Return the machines that the cloud lists, without those that are gone or to end, or of unknown offers."""
        seen = {}
        for machine in self._cloud.machines():
            if machine.identifier in self._ending or machine.identifier in gone:
                continue
            if machine.offer in self._offers:
                seen[machine.identifier] = machine
        return seen

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

"""``Cloud``: where machines are launched, end, and are taken away."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class CloudError(Exception):
    """A cloud cannot be reached or does not accept an order; the order counts as refused and is tried again later."""


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

"""A cloud and a job in simulated time: what the controller is tested with, and what replays real traces."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from gpusonde.optimizer.continual.fleet import Machine, Notice, NoticeKind
from gpusonde.optimizer.problem import Plan

_HOUR_S = 3600.0


class Capacity(Protocol):
    """How many machines of an offer a cloud gives at a time."""

    def at(self, time_s: float) -> int:
        """Return the most machines that can run at a time."""
        ...

    def next_change_s(self, time_s: float) -> float:
        """Return when the number changes next after ``time_s``; infinite when it never does."""
        ...


class StepCapacity:
    """Capacity that changes at given times.

    Args:
        times_s: When it changes, ascending; before the first it is ``counts[0]``.
        counts: From each of these times on.
    """

    def __init__(self, times_s: Sequence[float], counts: Sequence[int]) -> None:
        if not times_s or len(times_s) != len(counts):
            raise ValueError("a capacity has as many counts as times, and one at least")
        if any(not b > a for a, b in pairwise(times_s)):
            raise ValueError("the times of a capacity ascend")
        # Times at which nothing changes would only be stopped at for nothing.
        kept = [0, *(i for i in range(1, len(counts)) if counts[i] != counts[i - 1])]
        self._times_s = [float(times_s[i]) for i in kept]
        self._counts = [int(counts[i]) for i in kept]

    def at(self, time_s: float) -> int:
        """Return the most machines that can run at a time."""
        return self._counts[max(0, bisect.bisect_right(self._times_s, time_s) - 1)]

    def next_change_s(self, time_s: float) -> float:
        """Return when the number changes next after ``time_s``."""
        after = bisect.bisect_right(self._times_s, time_s)
        return self._times_s[after] if after < len(self._times_s) else math.inf


@dataclass
class _Instance:
    identifier: str
    offer: str
    ready_s: float


class SimulatedCloud:
    """Launches machines after a delay, takes them away when capacity falls, and counts their cost.

    A machine is paid for by the second from when it is ready until it ends. When capacity falls, the newest machines of
    the offer go first. A notice of a preemption comes ``detect_s`` after it, the release of its volume ``release_s``
    after that.

    Args:
        capacity: By offer; an offer that is missing has none.
        usd_per_hour: Price of a machine, by offer.
        launch_s: Returns the seconds that a machine of an offer needs to boot; infinite never boots.
        detect_s: Until a preemption is noticed.
        release_s: From then until the volume can be attached elsewhere.
        refuse_s: Until an order for which there is no capacity is refused.
        start_s: The cloud's first moment.
    """

    def __init__(
        self,
        capacity: Mapping[str, Capacity],
        usd_per_hour: Mapping[str, float],
        launch_s: Callable[[str], float],
        *,
        detect_s: float = 1.0,
        release_s: float = 4.0,
        refuse_s: float = 1.0,
        start_s: float = 0.0,
    ) -> None:
        self.launched = 0
        self.preempted = 0
        self.machine_hours: dict[str, float] = {}
        self._capacity = dict(capacity)
        self._price = dict(usd_per_hour)
        self._launch_s = launch_s
        self._detect_s = detect_s
        self._release_s = release_s
        self._refuse_s = refuse_s
        self._now_s = start_s
        self._instances: dict[str, _Instance] = {}
        self._numbers = itertools.count(1)
        self._notices: list[tuple[float, int, Notice]] = []
        self._unnoticed: dict[str, Machine] = {}
        self._settled_usd = 0.0

    @property
    def spent_usd(self) -> float:
        """Cost of all machines until now."""
        return self._settled_usd + sum(self._usd(instance) for instance in self._instances.values())

    def launch(self, offer: str, machines: int) -> Sequence[str]:
        """Order machines now."""
        identifiers = [f"{offer}/{next(self._numbers)}" for _ in range(machines)]
        held = sum(1 for instance in self._instances.values() if instance.offer == offer)
        capacity = self._capacity[offer].at(self._now_s) if offer in self._capacity else 0
        for identifier in identifiers:
            if held < capacity:
                held += 1
                self.launched += 1
                self._instances[identifier] = _Instance(identifier, offer, self._now_s + self._launch_s(offer))
            else:
                self._notify(self._now_s + self._refuse_s, Notice(NoticeKind.REFUSED, identifier, offer))
        return identifiers

    def terminate(self, identifiers: Sequence[str]) -> None:
        """End machines now."""
        for identifier in identifiers:
            instance = self._instances.pop(identifier, None)
            if instance is not None:
                self._bill(instance)

    def machines(self) -> Sequence[Machine]:
        """Return the machines that boot or run, as far as it was noticed."""
        held = (Machine(i.identifier, i.offer, i.ready_s <= self._now_s) for i in self._instances.values())
        return (*held, *self._unnoticed.values())

    def notices(self) -> Sequence[Notice]:
        """Return what was noticed since the last call."""
        due = []
        while self._notices and self._notices[0][0] <= self._now_s:
            due.append(heapq.heappop(self._notices)[2])
            self._unnoticed.pop(due[-1].machine, None)
        return tuple(due)

    def next_event_s(self) -> float:
        """Return when something happens next by itself: capacity, a machine that is ready, a notice."""
        booting = (i.ready_s for i in self._instances.values() if i.ready_s > self._now_s)
        offers = {i.offer for i in self._instances.values()}
        falls = (self._capacity[offer].next_change_s(self._now_s) for offer in offers)
        # What is due waits to be fetched and does not happen again.
        notices = (time_s for time_s, _, _ in self._notices if time_s > self._now_s)
        return min(itertools.chain(booting, falls, notices), default=math.inf)

    def advance(self, time_s: float) -> tuple[str, ...]:
        """Move to a time no later than the next event; return the machines that were taken away there."""
        self._now_s = max(self._now_s, time_s)
        taken: list[str] = []
        for offer in {i.offer for i in self._instances.values()}:
            held = [i for i in self._instances.values() if i.offer == offer]
            for instance in held[max(0, self._capacity[offer].at(self._now_s)) :]:
                del self._instances[instance.identifier]
                self._bill(instance)
                self.preempted += 1
                seen = Machine(instance.identifier, offer, instance.ready_s <= self._now_s)
                self._unnoticed[instance.identifier] = seen
                taken.append(instance.identifier)
                noticed_s = self._now_s + self._detect_s
                self._notify(noticed_s, Notice(NoticeKind.PREEMPTED, instance.identifier, offer))
                released_s = noticed_s + self._release_s
                self._notify(released_s, Notice(NoticeKind.RELEASED, instance.identifier, offer))
        return tuple(taken)

    def _bill(self, instance: _Instance) -> None:
        hours = max(0.0, self._now_s - instance.ready_s) / _HOUR_S
        self._settled_usd += self._usd(instance)
        self.machine_hours[instance.offer] = self.machine_hours.get(instance.offer, 0.0) + hours

    def _usd(self, instance: _Instance) -> float:
        return max(0.0, self._now_s - instance.ready_s) / _HOUR_S * self._price.get(instance.offer, 0.0)

    def _notify(self, time_s: float, notice: Notice) -> None:
        heapq.heappush(self._notices, (time_s, next(self._numbers), notice))


class SimulatedJob:
    """Training that advances while all machines it was started on run.

    Args:
        iterations: Iterations in total.
        iteration_s: Returns the true seconds of an iteration on a plan.
        save_s: Seconds in which saving a checkpoint stops the work.
        restore_s: Seconds from a start until the first iteration.
        survivors_hold_state: Nothing is lost by a preemption that leaves one machine, as the seed assumes; otherwise
            the work since the last checkpoint is.
    """

    def __init__(
        self,
        iterations: float,
        iteration_s: Callable[[Plan], float],
        *,
        save_s: float = 0.0,
        restore_s: float = 0.0,
        survivors_hold_state: bool = False,
    ) -> None:
        self.completed = 0.0
        self.checkpointed = 0.0
        self.lost = 0.0
        self.starts = 0
        self.finished_s: float | None = None
        self.machines: frozenset[str] = frozenset()
        self._iterations = float(iterations)
        self._iteration_s = iteration_s
        self._save_s = save_s
        self._restore_s = restore_s
        self._survivors_hold_state = survivors_hold_state
        self._step_s = math.inf
        self._interval_s = math.inf
        self._work_from_s = 0.0
        self._now_s = 0.0
        self._base = 0.0

    def start(self, plan: Plan, machines: Sequence[str], time_s: float, checkpoint_interval_s: float) -> None:
        """Start on machines, from a checkpoint made now if it was running and else from the latest one."""
        self.advance(time_s)
        if self.machines:
            self.checkpointed = self.completed
        self._step_s = self._iteration_s(plan)
        # A checkpoint lies between whole stretches of work, so saving slows the work down by a constant factor.
        self._interval_s = checkpoint_interval_s
        if math.isfinite(checkpoint_interval_s):
            self._step_s *= 1 + self._save_s / checkpoint_interval_s
        self._work_from_s = time_s + self._restore_s + (self._save_s if self.machines else 0.0)
        self._base = self.completed
        self.machines = frozenset(machines)
        self.starts += 1

    def stop(self, time_s: float) -> None:
        """Stop after a checkpoint, which is made while the work stands."""
        self.advance(time_s)
        self.checkpointed = self.completed
        self.machines = frozenset()
        self._step_s = math.inf

    def interrupt(self, taken: Sequence[str], time_s: float) -> None:
        """Stop when one of its machines was taken away."""
        self.advance(time_s)
        gone = self.machines.intersection(taken)
        if not gone or self.finished_s is not None:
            return
        if not (self._survivors_hold_state and len(gone) < len(self.machines)):
            self.lost += self.completed - self.checkpointed
            self.completed = self.checkpointed
        else:
            self.checkpointed = self.completed
        self.machines = frozenset()
        self._step_s = math.inf

    def advance(self, time_s: float) -> None:
        """Work until a time."""
        self._now_s = max(self._now_s, time_s)
        if not self.machines or self.finished_s is not None:
            return
        worked_s = self._now_s - self._work_from_s
        if worked_s < 0:
            return
        self.completed = min(self._iterations, self._base + worked_s / self._step_s)
        if math.isfinite(self._interval_s):
            # Saves are made after every interval of work.
            stretch = (self._interval_s + self._save_s) / self._step_s
            saved = self._base + math.floor((self.completed - self._base) / stretch) * stretch
            self.checkpointed = max(self.checkpointed, saved)
        if self._now_s >= self.end_s() - 1e-9:
            self.completed = self._iterations
            self.finished_s = self.end_s()

    def end_s(self) -> float:
        """Return when it will be done if nothing happens; infinite when it stands."""
        if not self.machines:
            return math.inf
        return self._work_from_s + (self._iterations - self._base) * self._step_s


class SimulatedWorld:
    """A cloud and a job on one clock; it is the ``Clock`` and the ``Trainer`` of a runtime as well.

    Args:
        cloud: The cloud.
        job: The job.
        start_s: What the clock shows at first.
    """

    def __init__(self, cloud: SimulatedCloud, job: SimulatedJob, start_s: float = 0.0) -> None:
        self.cloud = cloud
        self.job = job
        self._now_s = start_s

    def now_s(self) -> float:
        """Return the seconds since the clock's zero."""
        return self._now_s

    def next_event_s(self) -> float:
        """Return when something happens next by itself."""
        return min(self.cloud.next_event_s(), self.job.end_s() if self.job.finished_s is None else math.inf)

    def wait_until(self, time_s: float) -> None:
        """Move cloud and job to a time, event by event."""
        if not math.isfinite(time_s):
            raise ValueError(f"a simulated clock cannot wait until {time_s}")
        while (event_s := self.next_event_s()) < time_s:
            self._to(event_s)
        self._to(time_s)

    def wait_for_event(self, latest_s: float) -> None:
        """Move to the next event, or to ``latest_s`` when that comes first."""
        self.wait_until(max(self._now_s, min(latest_s, self.next_event_s())))

    def start(self, plan: Plan, machines: Sequence[str], checkpoint_interval_s: float) -> None:
        """Start the job on machines."""
        self.job.start(plan, machines, self._now_s, checkpoint_interval_s)

    def stop(self) -> None:
        """Save and stop the job."""
        self.job.stop(self._now_s)

    def completed(self) -> float:
        """Return the iterations that are done and would survive a restart by plan."""
        return self.job.completed

    def _to(self, time_s: float) -> None:
        self._now_s = max(self._now_s, time_s)
        self.job.advance(self._now_s)
        taken = self.cloud.advance(self._now_s)
        if taken:
            self.job.interrupt(taken, self._now_s)

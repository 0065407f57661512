"""Uniform Progress ("Can't Be Late", NSDI 2024): the published rules for one job on one machine, and the prophet.

Its rules: a job on a spot machine stays there until that is taken away; where no spot machine is to be had, the job
waits while it is ahead of the line from nothing at the start to everything at the deadline, and goes on demand while it
is behind, until it is two changeovers ahead; it goes back to spot whenever there is one; once the time left only just
suffices on demand, it stays on demand to its end. ``greedy`` has the last rule alone: it waits as long as it can.

Both are told what ours is not: the job's true speed, and at once when a machine is to be had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from simulated_cloud import Capacity, SimulatedCloud, SimulatedJob, SimulatedWorld, StepCapacity
from spot_replay import CapacityTrace, Outcome, Truth

from gpusonde.optimizer import Group, MachineOffer, Plan
from gpusonde.optimizer.continual import Machine
from gpusonde.optimizer.preemptions import checkpoint_interval_s

_HOUR_S = 3600.0
_LOOK_S = 60.0
_PREEMPTIONS_PER_HOUR = 0.1


@dataclass(frozen=True)
class LoneJob:
    """A job on one machine.

    Attributes:
        work_s: True seconds of work.
        deadline_s: From its start.
        spot: Its spot offers, whose machines do the work equally fast.
        sure: Its offer on demand.
        batch: Samples per iteration.
    """

    work_s: float
    deadline_s: float
    spot: Sequence[MachineOffer]
    sure: MachineOffer
    batch: int


def prophet_usd(job: LoneJob, traces: Mapping[str, CapacityTrace], start_s: float) -> float:
    """Return what the job costs at least: the cheapest capacity until its deadline, boots and restarts for nothing."""
    step_s = min(trace.gap_s for trace in traces.values())
    slots = int(job.deadline_s // step_s) + 1
    capacity = {name: trace.from_moment(start_s) for name, trace in traces.items()}
    prices = []
    for slot in range(slots):
        there = [o.usd_per_hour for o in job.spot if capacity[o.name].at(slot * step_s) > 0]
        length_s = min(step_s, job.deadline_s - slot * step_s)
        prices.append((min([*there, job.sure.usd_per_hour]), length_s))
    left_s, usd = job.work_s, 0.0
    for price, length_s in sorted(prices):
        used_s = min(left_s, length_s)
        left_s, usd = left_s - used_s, usd + used_s * price / _HOUR_S
    return usd + left_s * job.sure.usd_per_hour / _HOUR_S


class _Published:
    """One job under the published rules; what runs works on until what was ordered in its place is there."""

    def __init__(
        self, job: LoneJob, capacity: Mapping[str, Capacity], truth: Truth, restore_s: float, save_s: float
    ) -> None:
        random = np.random.default_rng(truth.seed)
        self.job = job
        self.capacity = capacity
        self.cloud = SimulatedCloud(
            {**capacity, job.sure.name: StepCapacity([0.0], [1])},
            {offer.name: offer.usd_per_hour for offer in (*job.spot, job.sure)},
            lambda _: float(random.uniform(*truth.launch_s)),
        )
        self.trainer = SimulatedJob(job.work_s, lambda _: 1.0, save_s=save_s, restore_s=restore_s)
        self.world = SimulatedWorld(self.cloud, self.trainer)
        self.changeover_s = truth.launch_s[1] + restore_s + save_s
        self.interval_s = checkpoint_interval_s(save_s, _PREEMPTIONS_PER_HOUR)
        self.runs: Machine | None = None
        self.boots: Machine | None = None
        self.last = False

    def step(self, uniform: bool) -> None:
        now_s, job = self.world.now_s(), self.job
        self.cloud.notices()
        listed = {machine.identifier: machine for machine in self.cloud.machines()}
        self.runs = listed.get(self.runs.identifier) if self.runs else None
        self.boots = listed.get(self.boots.identifier) if self.boots else None
        if self.boots is not None and self.boots.ready:
            self._start(self.boots)
        held = self.boots or self.runs
        on_demand = held is not None and held.offer == job.sure.name
        lost_s = self.interval_s if self.runs is not None and self.runs.offer != job.sure.name else 0.0
        slack_s = job.deadline_s - now_s - (job.work_s - self.trainer.completed)
        self.last = self.last or slack_s < 2 * self.changeover_s + lost_s
        there = [o.name for o in sorted(job.spot, key=_price) if self.capacity[o.name].at(now_s) > 0]
        pace = job.work_s / job.deadline_s
        if self.last:
            if not on_demand:
                self._order(job.sure.name)
        elif held is not None and not on_demand:
            pass
        elif there:
            self._order(there[0])
        elif held is None and uniform and self.trainer.completed < pace * now_s:
            self._order(job.sure.name)
        elif held is not None and self.trainer.completed >= pace * (now_s + 2 * self.changeover_s):
            self._stop(held)

    def _order(self, offer: str) -> None:
        identifier = self.cloud.launch(offer, 1)[0]
        ordered = next((machine for machine in self.cloud.machines() if machine.identifier == identifier), None)
        if ordered is not None:
            if self.boots is not None:
                self.cloud.terminate([self.boots.identifier])
            self.boots = ordered

    def _start(self, machine: Machine) -> None:
        interval_s = math.inf if machine.offer == self.job.sure.name else self.interval_s
        self.world.start(Plan((Group(machine.offer, 1, self.job.batch),)), [machine.identifier], interval_s)
        if self.runs is not None:
            self.cloud.terminate([self.runs.identifier])
        self.runs, self.boots = machine, None

    def _stop(self, machine: Machine) -> None:
        self.world.stop()
        self.cloud.terminate([machine.identifier])
        self.runs = self.boots = None


def replay_published(
    job: LoneJob, capacity: Mapping[str, Capacity], truth: Truth, *, until_s: float, uniform: bool = True,
    restore_s: float = 30.0, save_s: float = 5.0,
) -> Outcome:  # fmt: skip
    """Run a job under the published rules, in simulated time; with ``uniform`` False under the last one alone."""
    play = _Published(job, capacity, truth, restore_s, save_s)
    steps = 0
    while play.world.now_s() < until_s and play.trainer.finished_s is None:
        play.step(uniform)
        play.world.wait_for_event(min(play.world.now_s() + _LOOK_S, until_s))
        steps += 1
    cloud = play.cloud
    cloud.terminate([machine.identifier for machine in cloud.machines()])
    hours = sum(cloud.machine_hours.values())
    return Outcome(
        end_s=play.trainer.finished_s if play.trainer.finished_s is not None else math.inf,
        usd=cloud.spent_usd,
        preemptions=cloud.preempted,
        starts=play.trainer.starts,
        lost=play.trainer.lost,
        spot_share=1 - cloud.machine_hours.get(job.sure.name, 0.0) / hours if hours > 0 else 0.0,
        steps=steps,
        searches=0,
        promised=True,
    )


def _price(offer: MachineOffer) -> float:
    return offer.usd_per_hour

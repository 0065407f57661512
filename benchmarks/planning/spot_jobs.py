"""Jobs that are replayed against real traces of spot capacity: drawn from one seed before any of them was run.

Fixed before the figures; jobs, prices and world come from one seed. The controller was developed
on jobs of another seed; an early version had been run on these as well; no option was fitted to what came out.

Traces. Every campaign of ``spot_traces/`` with machines of one GPU: how many V100 machines a zone gave at a time,
each counted as one p3.2xlarge.

Offers. A spot offer per zone (quota: what was asked for while it was recorded) at its median price in
``spot_history_aws_2020.csv``, and four on-demand machines per region at 3.06 USD/h. A plan stays within a region.
Every job begins with 0.1 preemptions per hour and learns.

Jobs. Batch 256 on 1 to 4 and, on spot, up to 16 V100s; three networks (47, 100 and 550 MB of gradients, half of the
exchange hidden); 2, 6, 12 or 24 hours on one machine; deadline 0.6 to 2 times that; least cost. All drawn evenly.

What the controller is not told. True iterations are its estimates times exp(N(0, 0.08)) for the job and exp(N(0,
0.03)) for every start; boots take 90 to 210 s; a preemption is noticed after 1 s, restoring takes 30 s, a checkpoint
5 s; an order without capacity is refused after 1 s.

A plan existed where the fastest on-demand plan keeps the deadline at the job's true speed; misses count among these.

Rules. The default; on-demand offers only; always the cheapest spot machines, deadline or not; ``paper``: the seed's
rules (optimistic bound, depletion for ever, no guard). A job is given up on after three times its time.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from spot_replay import CapacityTrace, Truth, read_capacity

from gpusonde.optimizer import Billing, MachineOffer, Objective, Problem, TableSteps

SEED = 20261121
# 10 Gbit/s at most for a p3.2xlarge (Srifty, table 1), of which an allreduce gets 0.9 GB/s here; half of it is hidden.
_LINK_BYTES_PER_SECOND = 0.9e9
_EXPOSED = 0.5
# Bytes of gradients, seconds of an iteration without work, samples per second of a V100.
NETWORKS = {"small": (47e6, 0.010, 1200.0), "medium": (100e6, 0.030, 380.0), "large": (550e6, 0.030, 230.0)}
HOURS = (2.0, 6.0, 12.0, 24.0)
DEADLINES = (0.6, 0.8, 1.1, 1.25, 1.5, 2.0)
GLOBAL_BATCH = 256
BATCHES = (16, 32, 64, 128, 256)
ON_DEMAND_USD = 3.06
ON_DEMAND_QUOTA = 4


@dataclass(frozen=True)
class SpotSet:
    """Traces of one campaign, on one time axis.

    Attributes:
        name: For the table.
        zones: Trace of each zone.
        quota: Machines of a zone that were asked for while it was recorded.
    """

    name: str
    zones: Mapping[str, CapacityTrace]
    quota: int

    @property
    def duration_s(self) -> float:
        """Seconds that all zones cover."""
        return min(trace.duration_s for trace in self.zones.values())


@dataclass(frozen=True)
class SpotJob:
    """A job of the replay.

    Attributes:
        network: Which of ``NETWORKS``.
        hours: Hours on one machine, as estimated.
        deadline: Its deadline by these hours.
        start_s: When it starts, on the traces' time axis.
        problem: What the controller is told.
        steps: What it believes of iterations.
        truth: What it is not told.
    """

    network: str
    hours: float
    deadline: float
    start_s: float
    problem: Problem
    steps: TableSteps
    truth: Truth

    @property
    def deadline_s(self) -> float:
        """Seconds from its start."""
        return self.deadline * self.hours * 3600.0

    def plan_existed(self) -> bool:
        """Whether the fastest on-demand plan, launched at once, would have kept the deadline at its true speed."""
        on_demand = next(offer for offer in self.problem.offers if offer.billing is Billing.ON_DEMAND)
        fastest_s = min(
            step_s(self.network, GLOBAL_BATCH // machines, machines)
            for machines in (1, 2, 4)
            if machines <= on_demand.quota
        )
        launch_s = sum(self.truth.launch_s) / 2 + 30.0
        return launch_s + self.problem.iterations * fastest_s * self.truth.factor <= self.deadline_s


def step_s(network: str, batch: int, machines: int) -> float:
    """Estimated iteration on V100s."""
    gradient_bytes, idle_s, rate = NETWORKS[network]
    exchange_s = 2 * (machines - 1) / machines * gradient_bytes / _LINK_BYTES_PER_SECOND
    return idle_s + batch / rate + _EXPOSED * exchange_s


def read_sets(data: Path) -> list[SpotSet]:
    """The campaigns with machines of one GPU, the longest with many zones first."""
    campaigns = (
        ("7 zones, one machine each", "availability_1-node_aws-02-15-2023_", 1),
        ("1 zone, one machine", "availability_1-node_aws-10-26-2022_", 1),
        ("3 zones, one machine each", "preemption_1-node_aws-04-22-2023_", 1),
        ("3 zones, up to 4 machines each", "preemption_4-node_aws-08-03-2023_", 4),
        ("2 zones, up to 16 machines each", "availability_16-node_aws-08-27-2023_", 16),
    )
    sets = []
    for name, prefix, quota in campaigns:
        files = sorted((data / "spot_traces").glob(f"{prefix}*_v100_1.json"))
        zones = {path.name[len(prefix) :].split("_")[0]: read_capacity(path) for path in files}
        sets.append(SpotSet(name, zones, quota))
    return sets


def spot_prices(path: Path) -> dict[str, float]:
    """Median price of a p3.2xlarge by zone; zones without one get the median of their region, or of all."""
    seen: dict[str, list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["instance"] == "p3.2xlarge":
                for place in (row["az"], row["region"], ""):
                    seen.setdefault(place, []).append(float(row["spot_usd_h"]))
    return {place: statistics.median(prices) for place, prices in seen.items()}


def draw(campaign: SpotSet, prices: Mapping[str, float], jobs: int, seed: int = SEED) -> list[SpotJob]:
    """Draw jobs over the whole of a campaign."""
    random = Random(f"{seed} {campaign.name}")
    return [_job(campaign, prices, random, number) for number in range(jobs)]


def _job(campaign: SpotSet, prices: Mapping[str, float], random: Random, number: int) -> SpotJob:
    network = random.choice(sorted(NETWORKS))
    hours = random.choice(HOURS)
    deadline = random.choice(DEADLINES)
    start_s = random.uniform(0.0, campaign.duration_s - 2 * max(1.0, deadline) * hours * 3600.0)
    offers = []
    for zone in campaign.zones:
        price = prices.get(zone, prices.get(zone[:-1], prices[""]))
        offers.append(_offer(f"spot {zone}", zone, campaign.quota, price, Billing.SPOT))
    for region in sorted({zone[:-1] for zone in campaign.zones}):
        offers.append(_offer(f"on demand {region}", region + "*", ON_DEMAND_QUOTA, ON_DEMAND_USD, Billing.ON_DEMAND))
    latencies = {(offer.name, batch): step_s(network, batch, 1) for offer in offers for batch in BATCHES}
    gradient_bytes = NETWORKS[network][0]

    def with_exchange(latency_s: float, world_sizes: npt.NDArray[np.int64], _network: float) -> npt.NDArray[np.float64]:
        exchange_s = 2 * (world_sizes - 1) / world_sizes * gradient_bytes / _LINK_BYTES_PER_SECOND
        return np.asarray(latency_s + _EXPOSED * exchange_s, dtype=np.float64)

    iterations = math.ceil(hours * 3600.0 / step_s(network, GLOBAL_BATCH, 1))
    problem = Problem(
        GLOBAL_BATCH, iterations, tuple(offers), Objective.COST, deadline_s=deadline * hours * 3600.0,
        batch_sizes=BATCHES,
    )  # fmt: skip
    truth = Truth(math.exp(random.gauss(0.0, 0.08)), 0.03, (90.0, 210.0), number)
    return SpotJob(network, hours, deadline, start_s, problem, TableSteps(offers, latencies, with_exchange), truth)


def _offer(name: str, zone: str, quota: int, price: float, billing: Billing) -> MachineOffer:
    return MachineOffer(name, "V100", 1, quota, price, billing, largest_batch=256, region=zone[:-1], zone=zone)

"""``Problem``: a training job, what may be rented for it, and what its owner wants; and ``Plan``, an answer.

A plan says how many machines of which offers, and which batch each of their GPUs gets. ``MachineOffer`` and ``Plan``
are also the schema of their documents: field names are keys, annotations ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from gpusonde.documents import Default, ListOf, Number, Text, Whole
from gpusonde.errors import ProblemError
from gpusonde.predictor.workload.engine.memory import usable_bytes
from gpusonde.simulator.compute.fitting import LARGEST_BATCH
from gpusonde.simulator.iteration import PLAIN_STEPS, Sharding, StepMode

_MOST_CANDIDATES = 4096
_LARGEST_BATCH = 2**31
# Fabrics of machines whose network to others nobody knows begin so.
LONE_FABRIC = "inside of "
_MOST_MACHINES = 100_000
# What a document may hold.
MOST_OFFERS = 1000
MOST_MACHINES = 10_000
OfferName = Annotated[str, Text(longest=256)]
BatchSize = Annotated[int, Whole(most=LARGEST_BATCH)]
LargestBatch = Annotated[int, Whole(least=0, most=LARGEST_BATCH)]
PreemptionRate = Annotated[float, Number(least=0.0, most=3600.0)]


class Billing(Enum):
    """How a machine is paid for."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"


class Objective(Enum):
    """What is to be as small as possible."""

    TIME = "time"
    COST = "cost"


@dataclass(frozen=True)
class MachineOffer:
    """One kind of machine that can be rented.

    Attributes:
        name: Unique among the offers of a problem.
        device: Model of its GPUs.
        devices: GPUs per machine, 1 or more.
        quota: Most machines that can be had; 0 when it is sold out at present.
        usd_per_hour: Price of a machine, above zero.
        billing: On demand or spot.
        network_bytes_per_second: Rated bandwidth of a machine's network; None when unknown.
        fabric: Name of the network between machines, for the allreduce model.
        smallest_batch: Smallest batch per GPU and iteration that is worth running.
        largest_batch: Largest batch per GPU that fits into its memory; 0 when the model does not fit at all; None when
            memory is no limit.
        preemptions_per_hour: Expected preemptions per machine and hour, 0 for none.
        region: Where it stands, with its cloud where there are several; a plan stays in one unless told.
        zone: Its zone, for people.
        machine_fabric: Name of the network between the GPUs of one machine; empty when it is ``fabric``.
        memory_bytes: Memory of a GPU, for jobs that say what they hold of it; without it the GPU catalogue's.

    Raises:
        ProblemError: No name, price or quota, or figures out of range.
    """

    name: OfferName
    device: str
    devices: Annotated[int, Whole(most=1024), Default(1)]
    quota: Annotated[int, Whole(least=0, most=MOST_MACHINES)]
    usd_per_hour: Annotated[float, Number(most=1e9)]
    billing: Billing = Billing.ON_DEMAND
    network_bytes_per_second: Annotated[float, Number(most=1e15)] | None = None
    fabric: str = ""
    smallest_batch: BatchSize = 1
    largest_batch: LargestBatch | None = None
    preemptions_per_hour: PreemptionRate = 0.0
    region: str = ""
    zone: str = ""
    machine_fabric: str = ""
    memory_bytes: Annotated[float, Number(most=1e15)] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ProblemError("an offer needs a name")
        what = f"offer {self.name}"
        _whole(self.devices, f"{what}: devices", 1, 1024, "the number of GPUs per machine")
        _whole(self.quota, f"{what}: quota", 0, _MOST_MACHINES, "the most machines that can be had, 0 when sold out")
        _amount(self.usd_per_hour, f"{what}: usd_per_hour", "the price of one machine per hour")
        _whole(self.smallest_batch, f"{what}: smallest_batch", 1, _LARGEST_BATCH, "samples per GPU")
        if self.largest_batch is not None:
            _whole(self.largest_batch, f"{what}: largest_batch", 0, _LARGEST_BATCH, "samples per GPU, 0 when none fits")
        if self.network_bytes_per_second is not None:
            _amount(self.network_bytes_per_second, f"{what}: network_bytes_per_second", "or none when unknown")
        if not _is_number(self.preemptions_per_hour) or not 0 <= self.preemptions_per_hour < math.inf:
            raise ProblemError(f"{what}: preemptions_per_hour {self.preemptions_per_hour} must be 0 or more")

    @property
    def is_lone(self) -> bool:
        """Whether nobody knows what it reaches together with other machines."""
        return self.fabric.startswith(LONE_FABRIC)

    @property
    def preemption_rate(self) -> float:
        """How often a machine is taken away per hour; on-demand machines never are."""
        return self.preemptions_per_hour if self.billing is Billing.SPOT else 0.0


@dataclass(frozen=True)
class SharedQuota:
    """The most GPUs that a plan may have of several offers together, as clouds limit them.

    Attributes:
        gpus: How many.
        gpu: Only of this model, in any spelling of the catalogue; of all without.
        region: Only in this region, with or without its cloud; in each for itself without.
        billing: Only on demand, or only spot; both together without.
    """

    gpus: Annotated[int, Whole(least=0, most=MOST_MACHINES * 1024)]
    gpu: str = ""
    region: str = ""
    billing: Billing | None = None

    def limits(self, offer: MachineOffer) -> bool:
        """Whether an offer's machines count."""
        return (
            self.gpu in ("", offer.device)
            and (self.region in ("", offer.region) or offer.region.endswith(f"/{self.region}"))
            and self.billing in (None, offer.billing)
        )

    def __str__(self) -> str:
        billing = "" if self.billing is None else f"{self.billing.value.replace('_', '-')} "
        return f"quota of {self.gpus} {billing}{self.gpu or 'GPUs'} in {self.region or 'a region'}"


_MONTH_HOURS = 730.0


@dataclass(frozen=True)
class DataCosts:
    """What it costs that the data lie in one region and the machines stand in another; nothing where they are together.

    Attributes:
        gigabytes: Data that are copied to every region with machines.
        region: Where they lie, as offers name regions.
        egress_usd_per_gb: To copy them to another cloud.
        transfer_usd_per_gb: To copy them to another region of the same cloud; as to another cloud without.
        storage_usd_per_gb_month: To keep the copy while the job runs.
    """

    gigabytes: Annotated[float, Number(most=1e12)]
    region: OfferName
    egress_usd_per_gb: Annotated[float, Number(least=0.0, most=1e6)]
    transfer_usd_per_gb: Annotated[float, Number(least=0.0, most=1e6)] | None = None
    storage_usd_per_gb_month: Annotated[float, Number(least=0.0, most=1e6)] = 0.0

    def fees(self, regions: Iterable[str]) -> tuple[float, float]:
        """Return USD to copy the data to some regions, and USD per hour to keep them there."""
        once = per_hour = 0.0
        for region in set(regions) - {self.region}:
            is_same_cloud = region.partition("/")[0] == self.region.partition("/")[0]
            per_gb = self.transfer_usd_per_gb if is_same_cloud else None
            once += self.gigabytes * (self.egress_usd_per_gb if per_gb is None else per_gb)
            per_hour += self.gigabytes * self.storage_usd_per_gb_month / _MONTH_HOURS
        return once, per_hour


@dataclass(frozen=True)
class JobMemory:
    """What a job holds in the memory of each GPU.

    Without ``activation_bytes``, what an offer's largest batch leaves beside the rest is taken to be full of them.

    Attributes:
        weights_bytes: Weights, with their copies in another precision.
        gradients_bytes: Gradients.
        optimizer_bytes: The optimizer's state; of AdamW two numbers per weight.
        activation_bytes: Kept of each sample for the backward pass.
        checkpointed_bytes: The same with checkpointed activations.
        unit_bytes: Largest part of the weights that is gathered at a time where they are sharded; without it all.
    """

    weights_bytes: Annotated[float, Number(most=1e15)]
    gradients_bytes: Annotated[float, Number(most=1e15)]
    optimizer_bytes: Annotated[float, Number(least=0.0, most=1e15)]
    activation_bytes: Annotated[float, Number(most=1e15)] | None = None
    checkpointed_bytes: Annotated[float, Number(most=1e15)] | None = None
    unit_bytes: Annotated[float, Number(most=1e15)] | None = None

    def kept(self, mode: StepMode) -> tuple[float, float]:
        """Return the bytes that every GPU holds besides activations, and those that all share out among them."""
        state = self.gradients_bytes + self.optimizer_bytes
        if mode.sharding is Sharding.ZERO3:
            # Two units at a time: one is gathered while the other computes.
            unit = self.weights_bytes if self.unit_bytes is None else min(2.0 * self.unit_bytes, self.weights_bytes)
            return unit, self.weights_bytes + state
        return (self.weights_bytes, state) if mode.sharding is Sharding.ZERO2 else (self.weights_bytes + state, 0.0)

    def sample_bytes(self, offer: MachineOffer, mode: StepMode) -> float | None:
        """Return what a sample takes in a mode; None where nobody knows."""
        if mode.checkpointing:
            return self.checkpointed_bytes
        if self.activation_bytes is not None or not offer.largest_batch or offer.memory_bytes is None:
            return self.activation_bytes
        free = usable_bytes(offer.memory_bytes) - self.kept(PLAIN_STEPS)[0]
        return free / offer.largest_batch if free > 0 else None

    def least_devices(self, offer: MachineOffer, batch_size: int, mode: StepMode) -> int:
        """Return how many GPUs must share the state so that a batch fits into one of an offer; 0 where none are enough.

        A larger batch never needs fewer.
        """
        sample = self.sample_bytes(offer, mode)
        if sample is None or offer.memory_bytes is None:
            return 0
        own, shared = self.kept(mode)
        free = usable_bytes(offer.memory_bytes) - own - sample * batch_size
        if shared == 0:
            return 1 if free >= 0 else 0
        return min(math.ceil(shared / free), _MOST_MACHINES * 1024 + 1) if free > 0 else 0


@dataclass(frozen=True)
class Problem:
    """What is to be decided.

    Attributes:
        global_batch: Samples of an iteration over all GPUs.
        iterations: Iterations still to do.
        offers: What can be rented.
        objective: What is to be as small as possible.
        deadline_s: Seconds from now in which the job must end; None for no deadline.
        budget_usd: Most that it may cost on average; None for no limit.
        confidence: Probability with which the deadline is met, 0.5 or more, below 1.
        overhead_s: Seconds that pass, and are paid for, before the first iteration.
        restart_s: Seconds from the loss of a spot machine until the job works again on another one.
        save_s: Seconds in which saving a checkpoint stops the work.
        across_regions: A plan may take machines of several regions (``MachineOffer.region``).
        batch_sizes: Batches per GPU to choose from, for all offers; None for powers of two and the divisors of
            ``global_batch``. The limits of each offer hold in any case.
        modes: How the job can run its iterations. Batches per GPU are those of a micro-batch.
        spare_modes: Likewise, taken only where there is no plan in ``modes``.
        memory: What the job holds of a GPU's memory; None where ``largest_batch`` of the offers says all.
        quotas: Limits of several offers together.
        data: Where the data lie; None where that costs nothing.

    Raises:
        ProblemError: It makes no sense: a deadline in the past, an offer twice, nothing to do.
    """

    global_batch: int
    iterations: int
    offers: tuple[MachineOffer, ...]
    objective: Objective = Objective.TIME
    deadline_s: float | None = None
    budget_usd: float | None = None
    confidence: float = 0.95
    overhead_s: float = 0.0
    batch_sizes: tuple[int, ...] | None = None
    restart_s: float = 187.0
    save_s: float = 5.0
    across_regions: bool = False
    modes: tuple[StepMode, ...] = (PLAIN_STEPS,)
    spare_modes: tuple[StepMode, ...] = ()
    memory: JobMemory | None = None
    quotas: tuple[SharedQuota, ...] = ()
    data: DataCosts | None = None

    def __post_init__(self) -> None:
        _whole(self.global_batch, "global_batch", 1, _LARGEST_BATCH, "samples of an iteration over all GPUs")
        _whole(self.iterations, "iterations", 1, 2**53, "the iterations still to do")
        object.__setattr__(self, "offers", tuple(self.offers))
        if not self.offers:
            raise ProblemError("there are no offers: give at least one kind of machine that can be rented")
        if len(self.offers) > MOST_OFFERS:
            raise ProblemError(f"{len(self.offers)} offers are too many; {MOST_OFFERS} is the limit")
        names = [offer.name for offer in self.offers]
        for name in names:
            if names.count(name) > 1:
                raise ProblemError(f"there are two offers named {name}: every offer needs a name of its own")
        if not isinstance(self.objective, Objective):
            raise ProblemError(f"objective {self.objective!r} must be Objective.TIME or Objective.COST")
        for name in ("overhead_s", "restart_s", "save_s"):
            if not _is_number(getattr(self, name)) or not 0 <= getattr(self, name) < math.inf:
                raise ProblemError(f"{name} {getattr(self, name)} must be 0 or more")
        if self.deadline_s is not None:
            if not _is_number(self.deadline_s) or not 0 < self.deadline_s < math.inf:
                raise ProblemError(
                    f"deadline_s {self.deadline_s} must be above zero: it counts from now, and one in the past cannot "
                    "be met"
                )
            if self.deadline_s <= self.overhead_s:
                raise ProblemError(
                    f"deadline_s {self.deadline_s:g} leaves no time to train: overhead_s {self.overhead_s:g} passes "
                    "before the first iteration"
                )
        if self.budget_usd is not None:
            _amount(self.budget_usd, "budget_usd", "or none for no limit")
        if not _is_number(self.confidence) or not 0.5 <= self.confidence < 1:
            raise ProblemError(f"confidence {self.confidence} must be 0.5 or more and below 1")
        if self.batch_sizes is not None:
            if not self.batch_sizes:
                raise ProblemError("batch_sizes is empty: give batches per GPU to choose from, or leave it out")
            if len(self.batch_sizes) > _MOST_CANDIDATES:
                raise ProblemError(f"{len(self.batch_sizes)} batch_sizes are too many; {_MOST_CANDIDATES} is the limit")
            for batch in self.batch_sizes:
                _whole(batch, "batch_sizes", 1, _LARGEST_BATCH, "samples per GPU")
            object.__setattr__(self, "batch_sizes", tuple(sorted(set(self.batch_sizes))))

    def offer(self, name: str) -> MachineOffer:
        """Return the offer of that name.

        Raises:
            KeyError: There is none.
        """
        for offer in self.offers:
            if offer.name == name:
                return offer
        raise KeyError(name)

    def parts(self) -> tuple[Problem, ...]:
        """Return a problem for every mode, and every set of offers whose machines may work together."""
        offers = self.offers
        for quota in self.quotas:
            offers = tuple(
                replace(offer, quota=min(offer.quota, quota.gpus // offer.devices)) if quota.limits(offer) else offer
                for offer in offers
            )
        together: dict[tuple[str, str], list[MachineOffer]] = {}
        for offer in offers:
            together.setdefault(self.pool(offer), []).append(offer)
        if len(together) == len(self.modes) == 1:
            return (self if offers == self.offers else replace(self, offers=offers),)
        return tuple(
            replace(self, offers=tuple(pool), modes=(mode,)) for mode in self.modes for pool in together.values()
        )

    def pool(self, offer: MachineOffer) -> tuple[str, str]:
        """Return what offers have in common whose machines may work together."""
        return "" if self.across_regions else offer.region, offer.name if offer.is_lone else ""

    def broken_quota(self, plan: Plan) -> SharedQuota | None:
        """Return a shared quota that a plan exceeds; None where it keeps all."""
        for quota in self.quotas:
            if any(used > quota.gpus for used in self.used(quota, plan).values()):
                return quota
        return None

    def used(self, quota: SharedQuota, plan: Plan) -> dict[str, int]:
        """Return the GPUs of a plan that count, by region."""
        used: dict[str, int] = {}
        for group in plan.groups:
            offer = self.offer(group.offer)
            if quota.limits(offer):
                used[offer.region] = used.get(offer.region, 0) + group.machines * offer.devices
        return used

    @property
    def needs_every_plan(self) -> bool:
        """Whether more than an iteration's time and the machines' price decides on plans of a part."""
        shared = any(sum(map(quota.limits, self.offers)) > 1 for quota in self.quotas)
        moved = self.data is not None and len({offer.region for offer in self.offers}) > 1
        return shared or moved or any(offer.preemption_rate for offer in self.offers)

    @property
    def mode(self) -> StepMode:
        """How a part's iterations are run."""
        return self.modes[0]

    @property
    def samples(self) -> int:
        """Samples that all GPUs take at once: those of a micro-batch. Zero where the steps cannot share the batch."""
        samples, rest = divmod(self.global_batch, self.mode.accumulation_steps)
        return 0 if rest else samples

    def largest_batch(self, offer: MachineOffer) -> int | None:
        """Return the offer's largest batch where it holds in the mode; None where memory is no limit, or counted."""
        is_plain = self.mode == StepMode(self.mode.accumulation_steps)
        return offer.largest_batch if is_plain or self.memory is None else None

    def least_devices(self, offer: MachineOffer, batch_size: int) -> int:
        """Return how many GPUs a plan must have for a batch to fit into one of an offer; 0 where none are enough."""
        if self.memory is None or self.largest_batch(offer) is not None:
            return 1
        return self.memory.least_devices(offer, batch_size, self.mode)

    def preemptions_per_hour(self, plan: Plan) -> float:
        """Return how often any machine of a plan is taken away."""
        rates = {offer.name: offer.preemption_rate for offer in self.offers}
        return sum(group.machines * rates[group.offer] for group in plan.groups)

    def candidates(self, offer: MachineOffer) -> tuple[int, ...]:
        """Return the batches per GPU that an offer may run, ascending; empty when none fits."""
        most = self.samples // offer.devices
        largest = self.largest_batch(offer)
        if largest is not None:
            most = min(most, largest)
        sizes = default_batch_sizes(self.global_batch) if self.batch_sizes is None else self.batch_sizes
        fitting = tuple(size for size in sizes if offer.smallest_batch <= size <= most)
        return fitting if self.memory is None else tuple(s for s in fitting if self.least_devices(offer, s))


def default_batch_sizes(global_batch: int) -> tuple[int, ...]:
    """Return powers of two and the divisors of the global batch, ascending.

    Powers of two suit GPUs; divisors let one kind of machine share out a global batch that is none.
    """
    sizes = {2**power for power in range(global_batch.bit_length())}
    for divisor in range(1, math.isqrt(global_batch) + 1):
        if global_batch % divisor == 0:
            sizes |= {divisor, global_batch // divisor}
    return tuple(sorted(sizes))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _amount(value: object, name: str, meaning: str) -> None:
    if value is None:
        raise ProblemError(f"{name} is missing: give {meaning}")
    if not _is_number(value) or not 0 < value < math.inf:  # type: ignore[operator]
        raise ProblemError(f"{name} {value} must be above zero ({meaning})")


def _whole(value: object, name: str, least: int, most: int, meaning: str) -> None:
    if value is None:
        raise ProblemError(f"{name} is missing: give {meaning}")
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ProblemError(f"{name} {value!r} must be a whole number from {least} to {most} ({meaning})")


@dataclass(frozen=True)
class Group:
    """Machines of one offer.

    Attributes:
        offer: Name of the offer.
        machines: How many, 1 or more.
        batch_size: Samples per GPU and micro-batch (of an iteration, without accumulation), 1 or more.

    Raises:
        ProblemError: Figures out of range.
    """

    offer: OfferName
    machines: Annotated[int, Whole(most=MOST_MACHINES)]
    batch_size: BatchSize

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise ProblemError(f"a group has one machine or more of {self.offer}, not {self.machines}")
        if self.batch_size < 1:
            raise ProblemError(f"the batch per GPU of {self.offer} is 1 or more, not {self.batch_size}")


@dataclass(frozen=True)
class Plan:
    """What to rent. Every offer occurs once at most: its machines share one batch size.

    Attributes:
        groups: The machines, by name of their offer.
        mode: How iterations are run.

    Raises:
        ProblemError: No groups, or an offer twice.
    """

    groups: Annotated[tuple[Group, ...], ListOf(MOST_OFFERS, least=1)]
    mode: StepMode = PLAIN_STEPS

    def __post_init__(self) -> None:
        groups = tuple(sorted(self.groups, key=lambda group: group.offer))
        if not groups:
            raise ProblemError("a plan needs a machine")
        if len({group.offer for group in groups}) < len(groups):
            raise ProblemError("an offer occurs once at most in a plan: its machines share one batch size")
        object.__setattr__(self, "groups", groups)

    @property
    def machines(self) -> int:
        """Machines of all offers."""
        return sum(group.machines for group in self.groups)

    def devices(self, offers: Iterable[MachineOffer]) -> int:
        """Return the number of GPUs: the world size."""
        by_name = {offer.name: offer for offer in offers}
        return sum(group.machines * by_name[group.offer].devices for group in self.groups)

    def global_batch(self, offers: Iterable[MachineOffer]) -> int:
        """Return the samples of an iteration."""
        by_name = {offer.name: offer for offer in offers}
        samples = sum(group.machines * by_name[group.offer].devices * group.batch_size for group in self.groups)
        return samples * self.mode.accumulation_steps

    def usd_per_hour(self, offers: Iterable[MachineOffer]) -> float:
        """Return the price of all machines per hour."""
        by_name = {offer.name: offer for offer in offers}
        return sum(group.machines * by_name[group.offer].usd_per_hour for group in self.groups)

    def __str__(self) -> str:
        groups = " + ".join(f"{group.machines} x {group.offer} @ {group.batch_size}" for group in self.groups)
        return f"{groups} ({self.mode})" if str(self.mode) else groups

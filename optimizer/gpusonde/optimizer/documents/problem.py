"""Problem files: their keys, and the optimizer's ``Problem`` with the job behind its step times.

``ProblemKeys`` is the schema of files and messages alike. What comes out of the optimizer (solutions, frontiers, plans)
is written with the names of its dataclasses.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from gpusonde.catalog import CatalogError, GpuCatalog, OfferCatalog, UnknownGpuError
from gpusonde.documents import ListOf, Number, Whole, parse, to_plain
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.formatting import count, few_names
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.documents.job import Job, JobKeys, device_name, parse_job
from gpusonde.optimizer.offers import BatchLimits, OfferFilter, Quota, Terms, listed_offers, region_of
from gpusonde.optimizer.problem import (
    LONE_FABRIC,
    MOST_MACHINES,
    MOST_OFFERS,
    BatchSize,
    Billing,
    DataCosts,
    JobMemory,
    LargestBatch,
    MachineOffer,
    Objective,
    Plan,
    PreemptionRate,
    Problem,
    SharedQuota,
)
from gpusonde.optimizer.simulated_steps import SimulatedSteps
from gpusonde.optimizer.solution import Solution
from gpusonde.simulator.allreduce import AllreduceModel
from gpusonde.simulator.compute import ComputeCurve
from gpusonde.simulator.compute.fitting import LARGEST_BATCH
from gpusonde.simulator.compute.sources import MOST_SAMPLES
from gpusonde.simulator.iteration import NetworkModel, Sharding
from gpusonde.simulator.links import RatedLink, RatedNetwork, inner_link, outer_link

SOLUTION_FORMAT = "gpusonde.solution/1"
PARETO_FORMAT = "gpusonde.pareto/1"
PROBLEM = "problem"
_MOST_QUERIES = 64
_MOST_BATCH_SIZES = 256
_MOST_QUOTAS = 64
# Offers times batch sizes times machines; what is searched grows with it.
_MOST_COMBINATIONS = 200_000
_MOST_ITERATIONS = 2**53
_MOST_TOKENS = 10**15
_LONGEST_SEQUENCE = 100_000_000
_Texts = Annotated[tuple[str, ...], ListOf(64)]


@dataclass(frozen=True, kw_only=True)
class QueryKeys:
    """What queries to the catalogue and to tables of spot prices have in common; what is left out means all.

    Attributes:
        gpus: GPUs, in any spelling.
        providers: Clouds.
        regions: Regions of theirs.
        instance_types: Machines.
        quota: Machines of each kind that can be had at most; 0 for none of them now.
        fabric: Name of the network between machines that measurements go by.
        machine_fabric: Likewise of the GPUs of one machine.
        smallest_batch: Smallest batch per GPU that is worth running.
        largest_batch: Largest batch per GPU; without it that of the device's curve.
    """

    gpus: _Texts = ()
    providers: _Texts = ()
    regions: _Texts = ()
    instance_types: _Texts = ()
    quota: Annotated[int, Whole(least=0, most=MOST_MACHINES)]
    fabric: str = ""
    machine_fabric: str = ""
    smallest_batch: BatchSize = 1
    largest_batch: LargestBatch | None = None

    @property
    def listed_quota(self) -> Quota:
        """What offers are listed by: those of which none can be had now are offers, too, that are sold out."""
        return Quota(machines=max(1, self.quota))

    def offer_filter(self, billing: Billing | None = None) -> OfferFilter:
        """Return what to choose by."""
        chosen = OfferFilter(
            providers=self.providers, regions=self.regions, gpus=self.gpus, instance_types=self.instance_types
        )
        return chosen if billing is None else replace(chosen, billing=billing.value)


@dataclass(frozen=True, kw_only=True)
class CatalogKeys(QueryKeys):
    """The keys of ``catalog``: offers of the catalogue.

    Attributes:
        billing: On demand or spot.
        preemptions_per_hour: How often a spot machine is taken away; must be said of spot machines.

    Raises:
        DocumentError: Spot machines without a rate.
    """

    billing: Billing = Billing.ON_DEMAND
    preemptions_per_hour: PreemptionRate | None = None

    def __post_init__(self) -> None:
        # Without a rate of their own, spot machines would be planned as if they were never taken away.
        if self.billing is Billing.SPOT and self.preemptions_per_hour is None:
            raise DocumentError("preemptions_per_hour", "is missing; spot machines are taken away, say how often")


@dataclass(frozen=True, kw_only=True)
class ContinualKeys:
    """The keys of ``continual``: what a change of machines takes, and when it is worth it.

    Attributes:
        launch_s: Seconds to boot a machine; without it what ``overhead_s`` leaves beside ``restore_s``, or 150.
        restore_s: Seconds from the last machine being ready to the first iteration.
        save_s: Seconds in which saving a checkpoint stops the work.
        window_s: Seconds over which the throughput is taken.
        improvement: A running plan is left for one that is better by this factor.
    """

    launch_s: Annotated[float, Number(least=0.0, most=86_400.0)] | None = None
    restore_s: Annotated[float, Number(least=0.0, most=86_400.0)] = 30.0
    save_s: Annotated[float, Number(least=0.0, most=86_400.0)] = 5.0
    window_s: Annotated[float, Number(most=86_400.0)] = 300.0
    improvement: Annotated[float, Number(least=1.0, most=100.0)] = 1.15

    def options(self, overhead_s: float) -> ContinualOptions:
        """Return how a controller judges; a slow launch takes twice as long as a usual one."""
        launch_s = self.launch_s
        if launch_s is None:
            launch_s = max(0.0, overhead_s - self.restore_s) if overhead_s else ContinualOptions.launch_s
        return ContinualOptions(
            launch_s=launch_s,
            launch_slowest_s=2.0 * launch_s,
            launch_timeout_s=max(ContinualOptions.launch_timeout_s, 6.0 * launch_s),
            restore_s=self.restore_s,
            save_s=self.save_s,
            window_s=self.window_s,
            improvement=self.improvement,
        )


@dataclass(frozen=True, kw_only=True)
class ProblemKeys:
    """The keys of a problem: a job, the machines to choose from and what counts.

    Attributes:
        name: What the job is called.
        objective: What is to be as small as possible.
        global_batch: Samples per iteration of all GPUs together.
        iterations: Iterations still to do.
        epochs: In place of iterations, with ``samples_per_epoch``.
        samples_per_epoch: Samples of an epoch.
        tokens: In place of iterations, with ``sequence_length``; the last iteration is a whole one.
        sequence_length: Tokens of a sample.
        deadline_s: Seconds from now in which the job must end.
        budget_usd: Most that it may cost on average.
        confidence: Probability with which the deadline is to be met, 0.5 or more.
        overhead_s: Seconds to start machines and to load data.
        batch_sizes: Candidates for the batch per GPU; without them powers of two and divisors of ``global_batch``.
        job: What was measured of the job, and of the network.
        offers: Kinds of machines that can be rented.
        catalog: Offers of the catalogue, besides those.
        continual: What a change of machines takes, and when it is worth it.
        across_regions: A plan may take machines of several regions or clouds, whose network is taken to be that of one.
        quotas: Limits of several offers together, such as a cloud's of a region.
        data: Where the data lie, if it costs something to have them elsewhere.
    """

    name: str = ""
    objective: Objective = Objective.COST
    global_batch: Annotated[int, Whole(most=LARGEST_BATCH)]
    iterations: Annotated[int, Whole(most=_MOST_ITERATIONS)] | None = None
    epochs: Annotated[float, Number(most=1e12)] | None = None
    samples_per_epoch: Annotated[float, Number(most=MOST_SAMPLES)] | None = None
    tokens: Annotated[int, Whole(most=_MOST_TOKENS)] | None = None
    sequence_length: Annotated[int, Whole(most=_LONGEST_SEQUENCE)] | None = None
    # What these mean is checked by the problem, with words about it.
    deadline_s: Annotated[float, Number(above=None)] | None = None
    budget_usd: Annotated[float, Number(above=None)] | None = None
    confidence: Annotated[float, Number(most=1.0)] = 0.95
    overhead_s: Annotated[float, Number(least=0.0)] = 0.0
    batch_sizes: Annotated[tuple[BatchSize, ...], ListOf(_MOST_BATCH_SIZES)] = ()
    job: JobKeys
    offers: Annotated[tuple[MachineOffer, ...], ListOf(MOST_OFFERS)] = ()
    catalog: Annotated[tuple[CatalogKeys, ...], ListOf(_MOST_QUERIES)] = ()
    continual: ContinualKeys = ContinualKeys()
    across_regions: bool = False
    quotas: Annotated[tuple[SharedQuota, ...], ListOf(_MOST_QUOTAS)] = ()
    data: DataCosts | None = None


@dataclass(frozen=True)
class ProblemDocument:
    """A problem file's content.

    Attributes:
        name: What the job is called; empty without a name.
        problem: What is to be decided.
        job: What is known of the job.
        iterations_per_epoch: Iterations of one epoch; None where the file counts no epochs.
        rated_fabrics: Fabrics that nobody measured -> what their rating says.
        beyond: Measured fabrics -> what the rating says of several machines, where only one was measured.
        notes: What was assumed or left out, for a reader.
        options: How a watch of the job judges.
    """

    name: str
    problem: Problem
    job: Job
    iterations_per_epoch: float | None
    rated_fabrics: Mapping[str, RatedNetwork]
    beyond: Mapping[str, RatedNetwork]
    notes: tuple[str, ...]
    options: ContinualOptions

    def step_times(self) -> SimulatedSteps:
        """Return step times: measured fabrics as the allreduce model has them, others as their rating says.

        Raises:
            ProblemError: An offer lacks something, or no model can be made from the measurements.
        """
        job, offers = self.job, self.problem.offers
        return SimulatedSteps(
            offers,
            {offer.name: job.curves[offer.device] for offer in offers},
            self._networks(),
            job.gradients,
            sharing=job.sharing,
            optimizer_s=job.optimizer_s,
            corrections={
                offer.name: job.calibrations[offer.device].correction
                for offer in offers
                if offer.device in job.calibrations
            },
        )

    def _networks(self) -> Mapping[str, NetworkModel]:
        networks: dict[str, NetworkModel] = dict(self.rated_fabrics)
        measured = {measurement.fabric for measurement in self.job.allreduce}
        if measured:
            model = AllreduceModel.fit(self.job.allreduce, kind=self.job.allreduce_model)
            # Where only the inside of a machine was measured, the rating says what several of them reach.
            networks |= {fabric: model.network(fabric, beyond=self.beyond.get(fabric)) for fabric in sorted(measured)}
        return networks


def parse_problem(document: Mapping[str, Any], gpus: GpuCatalog, catalog: OfferCatalog) -> ProblemDocument:
    """Return the problem that a document describes.

    Args:
        document: The document.
        gpus: Knows that "Tesla T4" is a T4; devices that it does not know keep their names.
        catalog: Answers its ``catalog`` queries.

    Raises:
        DocumentError: A key is missing, unknown or holds something that cannot be.
    """
    keys = parse(ProblemKeys, document, format_name=PROBLEM)
    job = parse_job(keys.job, gpus, "job")
    notes = list(job.notes)
    offers = [replace(offer, device=device_name(offer.device, gpus)) for offer in keys.offers]
    for place, query in enumerate(keys.catalog):
        offers += _list_offers(query, f"catalog[{place}]", catalog, job.curves, notes)
    if len(offers) > MOST_OFFERS:
        raise DocumentError("catalog", f"at most {MOST_OFFERS} offers are taken, not {len(offers)}; ask for fewer")
    if not offers:
        raise DocumentError("offers", 'is missing; give what can be rented, or [[catalog]] with gpus = ["NAME"]')
    offers = [_add_memory_limit(offer, job, keys.job.memory, gpus) for offer in offers]
    offers, rated = _add_fabrics(offers, job, gpus, notes)
    beyond = {
        offer.fabric: _rated_network(offer, job, gpus)
        for offer in offers
        if offer.fabric not in rated and offer.network_bytes_per_second is not None
    }
    offers = _without_strangers(offers, notes)
    iterations, per_epoch = _count_iterations(keys)
    options = keys.continual.options(keys.overhead_s)
    preempted = [offer for offer in offers if offer.preemption_rate]
    if preempted and (document.get("continual") or {}).get("save_s") is None:
        spot = count(len(preempted), "spot offer")
        notes.append(
            f"a checkpoint of {spot} is assumed to stop the work for {options.save_s:g} s and a restart to take"
            f" {options.restart_s:g} s; save_s, restore_s and launch_s of [continual] say better"
        )
    endless = [offer.name for offer in offers if offer.billing is Billing.SPOT and not offer.preemption_rate]
    if endless:
        notes.append(f"spot offers are planned as if never taken away ({_listed(endless)}): give preemptions_per_hour")
    modes, spare_modes = keys.job.modes(keys.global_batch)
    if {mode.sharding for mode in modes} - {Sharding.NONE}:
        notes.append("what sharding exchanges is simulated; nobody measured it here, and the margins do not know")
    try:
        problem = Problem(
            global_batch=keys.global_batch,
            iterations=iterations,
            offers=tuple(offers),
            objective=keys.objective,
            deadline_s=keys.deadline_s,
            budget_usd=keys.budget_usd,
            confidence=keys.confidence,
            overhead_s=keys.overhead_s,
            batch_sizes=keys.batch_sizes or None,
            restart_s=options.restart_s,
            save_s=options.save_s,
            across_regions=keys.across_regions,
            modes=modes,
            spare_modes=spare_modes,
            memory=keys.job.memory,
            quotas=_shared_quotas(keys, offers, gpus),
            data=_data_costs(keys, offers),
        )
    except ProblemError as error:
        raise DocumentError("", str(error)) from None
    for part in problem.parts():
        _check_size(part)
    return ProblemDocument(keys.name, problem, job, per_epoch, rated, beyond, tuple(notes), options)


def parse_plan(document: Mapping[str, Any], problem: Problem, path: str = "") -> Plan:
    """Return the plan that a document describes: ``groups`` of ``offer``, ``machines`` and ``batch_size``.

    Args:
        document: The plan; without a path it is a document of its own and names its format.
        problem: The problem, which has the plan's offers.
        path: Where the plan lies in a larger document.

    Raises:
        DocumentError: A key is missing, unknown or holds something that cannot be, or an offer is not the problem's.
    """
    plan = parse(Plan, document, path, format_name="" if path else "plan")
    known = {offer.name for offer in problem.offers}
    for place, group in enumerate(document["groups"]):
        if group["offer"] not in known:
            at = f"{path}.groups[{place}].offer".lstrip(".")
            raise DocumentError(at, f"the problem has no offer {group['offer']!r}")
    return plan


def solution_document(solution: Solution) -> dict[str, Any]:
    """Return a solution as plain values; what is not known is None."""
    return {"format": SOLUTION_FORMAT, **to_plain(solution)}


def _check_size(problem: Problem) -> None:
    combinations = 0
    for offer in problem.offers:
        for batch in problem.candidates(offer):
            combinations += min(offer.quota, problem.samples // (batch * offer.devices))
    if combinations > _MOST_COMBINATIONS:
        raise DocumentError(
            "offers",
            f"there are {combinations:,} ways to choose machines and batch of an offer, {_MOST_COMBINATIONS:,} are"
            " taken; give fewer offers, quotas that are needed, or fewer batch_sizes",
        )


def _add_memory_limit(offer: MachineOffer, job: Job, memory: JobMemory | None, gpus: GpuCatalog) -> MachineOffer:
    """Return an offer with what is known of its device where it says nothing of its memory."""
    curve = job.curves.get(offer.device)
    if curve is None:
        known = ", ".join(job.curves)
        raise DocumentError(
            "job.curves", f"there is no curve of {offer.device!r}, which offer {offer.name} has (only of {known})"
        )
    if offer.largest_batch is None:
        offer = replace(offer, largest_batch=curve.largest_batch)
    if memory is None:
        return offer
    if offer.memory_bytes is None:
        try:
            offer = replace(offer, memory_bytes=gpus.get(offer.device).memory_bytes)
        except UnknownGpuError:
            raise DocumentError("offers", f"{offer.name}: give memory_bytes; the catalogue has no such GPU") from None
    if offer.largest_batch is None and memory.activation_bytes is None:
        words = f"is missing; nothing says how many samples fit into {offer.name} (nor does its largest_batch)"
        raise DocumentError("job.memory.activation_bytes", words)
    return offer


def _without_strangers(offers: list[MachineOffer], notes: list[str]) -> list[MachineOffer]:
    """Return offers of which those whose network nobody knows give one machine, which works alone."""
    alone = [offer for offer in offers if offer.is_lone]
    if not alone:
        return offers
    names = few_names(sorted({offer.name for offer in alone}))
    notes.append(
        f"what is offered without a network rate is used for one machine only ({names});"
        " network_bytes_per_second, or measurements of its fabric, let several work together"
    )
    return [replace(offer, quota=min(1, offer.quota)) if offer.is_lone else offer for offer in offers]


def _inside_link(offer: MachineOffer, gpus: GpuCatalog) -> RatedLink:
    """Return the link between the GPUs of one machine, by their data sheet."""
    spec = None
    with contextlib.suppress(UnknownGpuError):
        spec = gpus.get(offer.device)
    # Offers of the catalogue name a fabric that nobody need have measured; a name of one's own without one is a slip.
    provider, _, machine = offer.fabric.partition("/")
    named = offer.fabric and not (
        offer.name.startswith(f"{provider}/") and offer.name.removesuffix("/spot").endswith(f"/{machine}")
    )
    if offer.network_bytes_per_second is None and (named or spec is None):
        raise DocumentError(
            "job.allreduce",
            f"nothing is known of the network of offer {offer.name}: measure it ('gpusonde probe allreduce') and name"
            " its fabric, or give the offer's network_bytes_per_second",
        )
    return inner_link(spec)


def _rated_network(offer: MachineOffer, job: Job, gpus: GpuCatalog) -> RatedNetwork:
    """Return what machines of an offer reach by their ratings."""
    rating = offer.network_bytes_per_second
    provider = (offer.region or offer.name).partition("/")[0]
    between = None if rating is None else outer_link(rating, provider)
    seen = job.calibrations.get(offer.device)
    factor, spread = (1.0, None) if seen is None else (seen.exchange_factor, seen.factor_spread)
    return RatedNetwork(_inside_link(offer, gpus), offer.devices, between, factor, spread)


def _add_fabrics(
    offers: list[MachineOffer], job: Job, gpus: GpuCatalog, notes: list[str]
) -> tuple[list[MachineOffer], dict[str, RatedNetwork]]:
    """Return offers of which those whose network nobody measured share fabrics by its rating."""
    measured = {measurement.fabric for measurement in job.allreduce}
    rated: dict[str, RatedNetwork] = {}
    found = []
    for offer in offers:
        if offer.machine_fabric and offer.machine_fabric not in measured:
            raise DocumentError(
                "job.allreduce",
                f"there is no measurement of {offer.machine_fabric!r}, the machine_fabric of {offer.name}",
            )
        if offer.fabric in measured:
            found.append(offer)
            continue
        network = _rated_network(offer, job, gpus)
        inside = f"{LONE_FABRIC}{offer.devices} x {offer.device}"
        fabric = inside
        if network.between is not None:
            # The inside of machines with one GPU makes no difference.
            of = f" of {offer.devices} x {offer.device}" if offer.devices > 1 else ""
            fabric = f"{network.between.kind.name} at {network.between.bytes_per_second:.6g} bytes/s{of}"
            fabric += f", {network.factor:.6g} times as slow" if network.factor != 1.0 else ""
        rated[fabric] = network
        found.append(replace(offer, fabric=fabric))
    assumed = sum(offer.fabric in rated and not offer.is_lone for offer in found)
    if assumed:
        notes.append(
            f"the network of {count(assumed, 'offer')} is not measured but assumed from the ratings of NICs and GPUs,"
            " as machines like them reach; 'gpusonde probe allreduce' measures it"
        )
    return found, rated


def _shared_quotas(keys: ProblemKeys, offers: list[MachineOffer], gpus: GpuCatalog) -> tuple[SharedQuota, ...]:
    """Return the quotas with GPUs as offers name them; one that limits no offer is a slip."""
    found = []
    for place, each in enumerate(keys.quotas):
        quota = replace(each, gpu=device_name(each.gpu, gpus) if each.gpu else "")
        if not any(quota.limits(offer) for offer in offers):
            devices, regions = sorted({offer.device for offer in offers}), sorted({offer.region for offer in offers})
            words = f"limits no offer; offers have {_listed(devices)} in {_listed(regions)}"
            raise DocumentError(f"quotas[{place}]", words)
        found.append(quota)
    return tuple(found)


def _data_costs(keys: ProblemKeys, offers: list[MachineOffer]) -> DataCosts | None:
    """Return where the data lie, in the words of the offers."""
    if keys.data is None:
        return None
    unplaced = [offer.name for offer in offers if not offer.region]
    if unplaced:
        raise DocumentError("offers", f"{unplaced[0]}: give its region; data says what it costs to have them elsewhere")
    cloud, _, region = keys.data.region.rpartition("/")
    meant = {offer.region for offer in offers if offer.region.rpartition("/")[2] == region}
    if not cloud and len(meant) == 1:
        return replace(keys.data, region=meant.pop())
    regions = sorted({offer.region for offer in offers})
    near = difflib.get_close_matches(keys.data.region, regions, n=1)
    # Regions of one coast differ in their number: us-east-2 is no slip.
    if near and not cloud and _letters(near[0].rpartition("/")[2]) == _letters(region):
        here = f"{near[0].rpartition('/')[0]}/{region}"
        raise DocumentError("data.region", f"no offer stands in {region!r}; with its cloud it is taken, such as {here}")
    if near and _letters(near[0]) != _letters(keys.data.region):
        raise DocumentError("data.region", f"no offer stands in {keys.data.region!r}; did you mean {near[0]!r}?")
    return keys.data


def _letters(region: str) -> str:
    return re.sub("[0-9]", "", region)


def _listed(names: list[str]) -> str:
    return few_names([name or "no region" for name in names])


def _count_iterations(keys: ProblemKeys) -> tuple[int, float | None]:
    """Return the iterations of the job, and of an epoch where the document counts epochs."""
    samples = keys.samples_per_epoch
    # The last batch of an epoch is dropped or padded; either way a global batch is what an iteration takes.
    per_epoch = None if samples is None else max(1.0, samples / keys.global_batch)
    totals = [name for name in ("iterations", "epochs", "tokens") if getattr(keys, name) is not None]
    if not totals:
        ways = "epochs with samples_per_epoch, or tokens with sequence_length"
        raise DocumentError("iterations", f"is missing; give it, or {ways}")
    if len(totals) > 1:
        raise DocumentError(totals[1], f"{totals[0]} is a total already; leave out one of them")
    if keys.sequence_length is not None and keys.tokens is None:
        raise DocumentError("sequence_length", "says what tokens mean; give tokens, or leave it out")
    if keys.iterations is not None:
        return keys.iterations, per_epoch
    if keys.tokens is not None:
        if keys.sequence_length is None:
            raise DocumentError("sequence_length", "is missing; tokens alone do not say how many iterations there are")
        return -(-keys.tokens // (keys.global_batch * keys.sequence_length)), per_epoch
    assert keys.epochs is not None  # noqa: S101 - it is the total that is left
    if per_epoch is None:
        raise DocumentError("samples_per_epoch", "is missing; epochs alone do not say how many iterations there are")
    return Whole(most=_MOST_ITERATIONS).read(math.ceil(keys.epochs * per_epoch), "epochs"), per_epoch


def _list_offers(
    query: CatalogKeys, path: str, catalog: OfferCatalog, curves: Mapping[str, ComputeCurve], notes: list[str]
) -> list[MachineOffer]:
    """Return the catalogue's offers that a query asks for."""
    zones = {part for offer in catalog.all for part in offer.region.split("/")}
    known = {
        "regions": zones | {region_of(zone) for zone in zones},
        "providers": {offer.provider for offer in catalog.all},
        "instance_types": {offer.instance_type for offer in catalog.all},
    }
    for key, names in known.items():
        for place, name in enumerate(getattr(query, key)):
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                meant = f"; did you mean {near[0]!r}?" if near else "; 'gpusonde offers' lists what there is"
                raise DocumentError(f"{path}.{key}[{place}]", f"the catalogue has no offer of {name!r}{meant}")
    try:
        terms = Terms(
            quotas=[query.listed_quota],
            batches={
                device: BatchLimits(query.smallest_batch, query.largest_batch or curve.largest_batch or LARGEST_BATCH)
                for device, curve in curves.items()
            },
            preemptions_per_hour={"*": query.preemptions_per_hour or 0.0},
        )
        selection = listed_offers(catalog, terms, query.offer_filter(query.billing))
    except UnknownGpuError as error:
        raise DocumentError(f"{path}.gpus", str(error)) from None
    except (CatalogError, ProblemError) as error:
        raise DocumentError(path, str(error)) from None
    left_out = [
        f"{count(number, 'offer')} of the catalogue left out: {why}" for why, number in selection.reasons().items()
    ]
    notes += left_out
    if not selection.offers:
        given = {key: getattr(query, key) for key in ("providers", "regions", "gpus", "instance_types")}
        asked = [f"{key} = {', '.join(names)}" for key, names in given.items() if names]
        why = "; ".join(left_out) or f"none is {query.billing.value} with {' and '.join(asked)}"
        raise DocumentError(path, f"no offer of the catalogue can be used: {why}; 'gpusonde offers' lists them")
    for key in ("providers", "regions", "gpus", "instance_types"):
        wanted = query.offer_filter(query.billing)
        without: list[str] = []
        for one in getattr(query, key):
            changes: dict[str, Any] = {key: (one,)}
            if not replace(wanted, **changes).choose(catalog):
                without.append(one)
        if without:
            said = f"{path}.{key}: the catalogue has nothing of {_listed(without)}"
            notes.append(f"{said} that fits what else is asked for; offers of your own are planned with, too")
    return [
        replace(
            offer,
            quota=min(query.quota, offer.quota),
            fabric=query.fabric or offer.fabric,
            machine_fabric=query.machine_fabric,
            largest_batch=None if offer.largest_batch == LARGEST_BATCH else offer.largest_batch,
        )
        for offer in selection.offers
    ]

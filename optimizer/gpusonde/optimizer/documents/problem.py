"""Problem files: from a document to the optimizer's ``Problem`` with the job behind its step times.

Solutions, estimates and plans as documents.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from gpusonde.catalog import GpuCatalog, OfferCatalog, UnknownGpuError, UnknownProviderError
from gpusonde.optimizer.documents.job import LARGEST_BATCH, Job, device_name, parse_job
from gpusonde.optimizer.documents.schema import DocumentError, Table, check_format, text, whole
from gpusonde.optimizer.offers import BatchLimits, OfferFilter, Quota, Terms, TermsError, listed_offers
from gpusonde.optimizer.problem import Billing, Group, Objective, Offer, Plan, Problem, ProblemError
from gpusonde.optimizer.solution import Solution
from gpusonde.simulator.compute import ComputeCurve

SOLUTION_FORMAT = "gpusonde.solution/1"
PARETO_FORMAT = "gpusonde.pareto/1"
PLAN_FORMAT = "gpusonde.plan/1"


def solution_document(solution: Solution) -> dict[str, Any]:
    """Return a solution as plain values; what is not known is None."""
    return {"format": SOLUTION_FORMAT, **plain_fields(solution)}


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, as ``parse_plan`` reads them."""
    return {"format": PLAN_FORMAT, **plain_fields(plan)}


def plain_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values, by name."""
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (tuple, list)):
        return [_plain(element) for element in value]
    return value


KIND = "problem"
MOST_OFFERS = 256
MOST_MACHINES = 10_000
MOST_BATCH_SIZES = 256
# Offers times batch sizes times machines; what is searched grows with it.
MOST_CHOICES = 200_000
_MOST_ITERATIONS = 2**53
_BILLINGS = [billing.value for billing in Billing]
_KEYS = (
    "format", "name", "objective", "global_batch", "iterations", "epochs", "samples_per_epoch", "deadline_s",
    "budget_usd", "confidence", "overhead_s", "batch_sizes", "job", "offers", "catalog",
)  # fmt: skip
_OFFER_KEYS = (
    "name", "device", "devices", "quota", "usd_per_hour", "billing", "network_bytes_per_second", "fabric",
    "machine_fabric", "smallest_batch", "largest_batch", "preemptions_per_hour", "region", "zone",
)  # fmt: skip
_QUERY_KEYS = (
    "gpus", "providers", "regions", "instance_types", "billing", "quota", "fabric", "machine_fabric",
    "smallest_batch", "largest_batch", "preemptions_per_hour",
)  # fmt: skip


@dataclass(frozen=True)
class ProblemDocument:
    """A problem file's content.

    Attributes:
        name: What the job is called; empty without a name.
        problem: What is to be decided.
        job: What is known of the job.
        iterations_per_epoch: Iterations of one epoch; None where the file counts no epochs.
        rated_fabrics: Fabrics that nobody measured -> rated bandwidth of a machine, bytes per second.
        notes: What was assumed or left out, for a reader.
    """

    name: str
    problem: Problem
    job: Job
    iterations_per_epoch: float | None
    rated_fabrics: Mapping[str, float]
    notes: tuple[str, ...]


def parse_problem(document: Mapping[str, Any], gpus: GpuCatalog, catalog: OfferCatalog) -> ProblemDocument:
    """Return the problem that a document describes.

    Args:
        document: The document.
        gpus: Knows that "Tesla T4" is a T4; devices that it does not know keep their names.
        catalog: Answers its ``catalog`` queries.

    Raises:
        DocumentError: A key is missing, unknown or holds something that cannot be.
    """
    check_format(document, KIND)
    table = Table(document, "", _KEYS)
    job = parse_job(table.value("job"), gpus, "job")
    notes = list(job.notes)
    offers = [_offer(element, at, gpus) for at, element in table.items("offers", most=MOST_OFFERS)]
    for at, element in table.items("catalog", most=64):
        offers += _from_catalog(element, at, catalog, job.curves, notes)
    if len(offers) > MOST_OFFERS:
        raise DocumentError("catalog", f"at most {MOST_OFFERS} offers are taken, not {len(offers)}; ask for fewer")
    if not offers:
        raise DocumentError("offers", 'is missing; give what can be rented, or [[catalog]] with gpus = ["NAME"]')
    offers = [_with_memory_limit(offer, job) for offer in offers]
    offers, rated = _with_fabrics(offers, job, notes)
    global_batch = table.whole("global_batch", most=LARGEST_BATCH)
    iterations, per_epoch = _iterations(table, global_batch)
    try:
        problem = Problem(
            global_batch=global_batch,
            iterations=iterations,
            offers=tuple(offers),
            objective=Objective(table.choice("objective", [each.value for each in Objective], Objective.COST.value)),
            deadline_s=_present(table, "deadline_s"),
            budget_usd=_present(table, "budget_usd"),
            confidence=table.number("confidence", 0.95, most=1.0),
            overhead_s=table.number("overhead_s", 0.0, above=False),
            batch_sizes=_batch_sizes(table),
        )
    except ProblemError as error:
        raise DocumentError("", str(error)) from None
    _check_size(problem)
    return ProblemDocument(table.text("name", ""), problem, job, per_epoch, rated, tuple(notes))


def parse_plan(document: Mapping[str, Any], problem: Problem, path: str = "") -> Plan:
    """Return the plan that a document describes: ``groups`` of ``offer``, ``machines`` and ``batch_size``.

    Raises:
        DocumentError: A key is missing, unknown or holds something that cannot be, or an offer is not the problem's.
    """
    if not path:
        check_format(document, "plan")
    table = Table(document, path, ("groups",) if path else ("format", "groups"))
    groups = []
    known = {offer.name for offer in problem.offers}
    for at, element in table.items("groups", least=1, most=MOST_OFFERS):
        group = Table(element, at, ("offer", "machines", "batch_size"))
        offer = group.text("offer", longest=256)
        if offer not in known:
            raise DocumentError(group.at("offer"), f"the problem has no offer {offer!r}")
        machines = group.whole("machines", most=MOST_MACHINES)
        groups.append(Group(offer, machines, group.whole("batch_size", most=LARGEST_BATCH)))
    try:
        return Plan(tuple(groups))
    except ProblemError as error:
        raise DocumentError(table.at("groups"), str(error)) from None


def _check_size(problem: Problem) -> None:
    choices = 0
    for offer in problem.offers:
        for batch in problem.candidates(offer):
            choices += min(offer.quota, problem.global_batch // (batch * offer.devices))
    if choices > MOST_CHOICES:
        raise DocumentError(
            "offers",
            f"there are {choices:,} ways to choose machines and batch of an offer, {MOST_CHOICES:,} are taken; give"
            " fewer offers, quotas that are needed, or fewer batch_sizes",
        )


def _with_memory_limit(offer: Offer, job: Job) -> Offer:
    """An offer without a largest batch gets what is known of its device."""
    curve = job.curves.get(offer.device)
    if curve is None:
        known = ", ".join(job.curves)
        raise DocumentError(
            "job.curves", f"there is no curve of {offer.device!r}, which offer {offer.name} has (only of {known})"
        )
    return replace(offer, largest_batch=curve.largest_batch) if offer.largest_batch is None else offer


def _with_fabrics(offers: list[Offer], job: Job, notes: list[str]) -> tuple[list[Offer], dict[str, float]]:
    """Have offers whose network nobody measured share fabrics by its rating."""
    measured = {measurement.fabric for measurement in job.allreduce}
    rated: dict[str, float] = {}
    found = []
    for offer in offers:
        if offer.fabric in measured:
            found.append(offer)
            continue
        rating = offer.network_bytes_per_second
        if rating is None:
            raise DocumentError(
                "job.allreduce",
                f"nothing is known of the network of offer {offer.name}: measure it ('gpusonde probe allreduce') and"
                " name its fabric, or give the offer's network_bytes_per_second",
            )
        fabric = f"rated {rating:.6g} bytes/s"
        rated[fabric] = rating
        found.append(replace(offer, fabric=fabric))
    for offer in found:
        if offer.machine_fabric and offer.machine_fabric not in measured:
            raise DocumentError(
                "job.allreduce",
                f"there is no measurement of {offer.machine_fabric!r}, the machine_fabric of {offer.name}",
            )
    if rated:
        notes.append(
            f"the network of {sum(offer.fabric in rated for offer in found)} offers is not measured but assumed from"
            " its rating; 'gpusonde probe allreduce' measures it"
        )
    return found, rated


def _present(table: Table, key: str) -> float | None:
    """A number whose range the problem checks, with words about what it means."""
    return table.number(key, least=-math.inf) if key in table else None


def _iterations(table: Table, global_batch: int) -> tuple[int, float | None]:
    samples = table.optional_number("samples_per_epoch", most=1e15)
    # The last batch of an epoch is dropped or padded; either way a global batch is what an iteration takes.
    per_epoch = None if samples is None else max(1.0, samples / global_batch)
    if "iterations" in table:
        if "epochs" in table:
            raise DocumentError("epochs", "give either iterations, or epochs with samples_per_epoch")
        return table.whole("iterations", most=_MOST_ITERATIONS), per_epoch
    if "epochs" not in table:
        raise DocumentError("iterations", "is missing; give it, or epochs with samples_per_epoch")
    if per_epoch is None:
        raise DocumentError("samples_per_epoch", "is missing; epochs alone do not say how many iterations there are")
    return whole(math.ceil(table.number("epochs", most=1e12) * per_epoch), "epochs", most=_MOST_ITERATIONS), per_epoch


def _batch_sizes(table: Table) -> tuple[int, ...] | None:
    sizes = [whole(value, at, most=LARGEST_BATCH) for at, value in table.items("batch_sizes", most=MOST_BATCH_SIZES)]
    return tuple(sizes) or None


def _offer(values: Any, path: str, gpus: GpuCatalog) -> Offer:
    table = Table(values, path, _OFFER_KEYS)
    try:
        return Offer(
            name=table.text("name", longest=256),
            device=device_name(table.text("device"), gpus),
            devices=table.whole("devices", 1, most=1024),
            quota=table.whole("quota", least=0, most=MOST_MACHINES),
            usd_per_hour=table.number("usd_per_hour", most=1e9),
            region=table.text("region", ""),
            zone=table.text("zone", ""),
            network_bytes_per_second=table.optional_number("network_bytes_per_second", most=1e15),
            **_of_both(table),
        )
    except ProblemError as error:
        raise DocumentError(path, str(error)) from None


def _of_both(table: Table) -> dict[str, Any]:
    """What offers and queries to the catalogue have in common."""
    return {
        "billing": Billing(table.choice("billing", _BILLINGS, Billing.ON_DEMAND.value)),
        "fabric": table.text("fabric", ""),
        "machine_fabric": table.text("machine_fabric", ""),
        "smallest_batch": table.whole("smallest_batch", 1, most=LARGEST_BATCH),
        "largest_batch": table.whole("largest_batch", least=0, most=LARGEST_BATCH)
        if "largest_batch" in table
        else None,
        "preemptions_per_hour": table.number("preemptions_per_hour", 0.0, above=False, most=3600.0),
    }


def _from_catalog(
    values: Any, path: str, catalog: OfferCatalog, curves: Mapping[str, ComputeCurve], notes: list[str]
) -> list[Offer]:
    table = Table(values, path, _QUERY_KEYS)
    both = _of_both(table)
    # Without a rate of their own, spot machines would be planned as if they were never taken away.
    if both["billing"] is Billing.SPOT and "preemptions_per_hour" not in table:
        raise DocumentError(table.at("preemptions_per_hour"), "is missing; spot machines are taken away, say how often")
    smallest, largest, fabric = both["smallest_batch"], both["largest_batch"], both["fabric"]
    try:
        terms = Terms(
            quotas=[Quota(machines=table.whole("quota", most=MOST_MACHINES))],
            batches={
                device: BatchLimits(smallest, largest or curve.largest_batch or LARGEST_BATCH)
                for device, curve in curves.items()
            },
            preemptions_per_hour={"*": both["preemptions_per_hour"]},
        )
        chosen = OfferFilter(
            providers=_texts(table, "providers"),
            regions=_texts(table, "regions"),
            gpus=_texts(table, "gpus"),
            instance_types=_texts(table, "instance_types"),
            billing=both["billing"].value,
        )
        selection = listed_offers(catalog, terms, chosen)
    except (UnknownGpuError, UnknownProviderError) as error:
        raise DocumentError(path, str(error.args[0] if error.args else error)) from None
    except TermsError as error:
        raise DocumentError(path, str(error)) from None
    for reason, count in selection.reasons().items():
        notes.append(f"{count} offers of the catalogue are left out: {reason}")
    if not selection.offers:
        raise DocumentError(path, "no offer of the catalogue can be used; 'gpusonde offers' lists them")
    return [
        replace(offer, fabric=fabric or offer.fabric, machine_fabric=both["machine_fabric"])
        for offer in selection.offers
    ]


def _texts(table: Table, key: str) -> tuple[str, ...]:
    return tuple(text(value, at) for at, value in table.items(key, most=64))

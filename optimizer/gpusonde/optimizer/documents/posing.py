"""``PosedProblem``: what to rent for a job of which one run is known, as a problem file has it.

What nobody told is assumed and said to be: machines that can be had, the batch, the gradients that are exchanged. Each
GPU's curve is the epoch latency that was predicted for one of it, at the run's batch; the optimizer takes what other
batches, and so other numbers of GPUs, would take from most jobs, with a wide interval (docs/planning.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from gpusonde import formatting
from gpusonde.catalog import UnknownGpuError, load_gpus, load_offers
from gpusonde.errors import CommandError, DocumentError
from gpusonde.optimizer.problem import MOST_MACHINES
from gpusonde.simulator.calibration import TimedIteration
from gpusonde.simulator.compute import EpochLatency
from gpusonde.simulator.compute.fitting import LARGEST_BATCH
from gpusonde.simulator.compute.sources import MOST_SAMPLES
from gpusonde.simulator.parallel import Placement, gradients_per_second

if TYPE_CHECKING:
    from gpusonde.catalog import Offer
    from gpusonde.predictor.crossgpu import LatencyPrediction, SourceMeasurement

DEFAULT_QUOTA = 8
# Of a GPU, where nobody says; halved eight times before it is one sample.
_UNTOLD_BATCH = 256
# An optimizer step, where nothing tells how many an epoch has: what exchanges take besides their bytes rests on it.
_UNTOLD_STEP_S = 0.25
# Images, containers, data.
_OVERHEAD_S = 180.0
_SURE_ROLE = 0.7
# An epoch of a run of the same name takes at most so many times what it is predicted to, or so little.
_MOST_UNLIKE = 3.0
_MOST_NAMES = 64
# What is more is a slip; one limit for all who ask, so that none is told another.
_MOST_OF_TERMS = {"epochs": 10_000_000, "batch_size": 1 << 20, "steps_per_epoch": 100_000_000, "quota": MOST_MACHINES}
_LATENCY_KEYS = [each.name for each in fields(EpochLatency) if each.name not in ("batch_size", "samples_per_epoch")]


class RoledCycle(Protocol):
    """A level of a tree of cycles, whoever found it."""

    @property
    def period_s(self) -> float:
        """From start to start."""

    @property
    def role(self) -> str:
        """What it is: ``step``, ``epoch`` and so on."""

    @property
    def role_confidence(self) -> float:
        """Probability of that, 0..1."""


@dataclass(frozen=True)
class JobTerms:
    """What the owner of a job wants, and may rent.

    Attributes:
        epochs: To train.
        deadline_s: From now; None for none.
        budget_usd: None for none.
        objective: ``cost`` or ``time``.
        batch_size: Of the run, per GPU; None if unknown.
        steps_per_epoch: Optimizer steps; None if unknown.
        quota: Machines of each kind.
        providers: Clouds; empty for all.
        gpus: GPUs in any spelling, models of the catalogue from then on; empty for all.

    Raises:
        DocumentError: A number is below 1, or absurd, or a name is nobody's; its field is the attribute.
    """

    epochs: int
    deadline_s: float | None = None
    budget_usd: float | None = None
    objective: str = "cost"
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    quota: int | None = None
    providers: Sequence[str] = ()
    gpus: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, most in _MOST_OF_TERMS.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise DocumentError(name, f"give a whole number from 1 to {most:,}, not {value:,}")
        for name in ("deadline_s", "budget_usd"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise DocumentError(name, f"give a number above zero, not {value:g}")
        for name in ("providers", "gpus"):
            if len(getattr(self, name)) > _MOST_NAMES:
                raise DocumentError(name, f"at most {_MOST_NAMES} names are taken")
        try:
            forms = [form for name in self.gpus for form in load_gpus().resolve_one(name).candidates]
            object.__setattr__(self, "gpus", list(dict.fromkeys(forms)))
        except UnknownGpuError as error:
            raise DocumentError("gpus", str(error)) from None
        known = sorted({offer.provider for offer in _listed()})
        for name in sorted(set(self.providers) - set(known)):
            words = f"no provider of the catalogue is called {name[:40]!r}; it has {', '.join(known)}"
            raise DocumentError("providers", words)

    def offers(self) -> list[Offer]:
        """Return the machines of the catalogue that these terms leave."""
        return [
            offer
            for offer in _listed()
            if (not self.providers or offer.provider in self.providers)
            and (not self.gpus or offer.gpu_model in self.gpus)
        ]


@dataclass(frozen=True)
class OtherRun:
    """Another run of the same job.

    Attributes:
        here: Its GPUs.
        epoch_latency_s: Seconds of an epoch.
        cycles: Levels of its tree of cycles.
    """

    here: Placement
    epoch_latency_s: float
    cycles: Sequence[RoledCycle] = ()


@dataclass(frozen=True)
class PosedProblem:
    """A problem, and what was assumed in it.

    Attributes:
        document: The problem, as a problem file has it.
        measured: What the run was, in words.
        assumed: What nobody told, in words.
        key_notes: Key -> why it is what it is, for the file.
        extrapolated: Offer -> its GPU, on which nobody measured such a run.
    """

    document: dict[str, Any]
    measured: str
    assumed: Sequence[str]
    key_notes: Mapping[str, str]
    extrapolated: Mapping[str, str]

    @classmethod
    def of_run(
        cls,
        name: str,
        predictions: Sequence[LatencyPrediction],
        source: SourceMeasurement,
        here: Placement,
        terms: JobTerms,
        *,
        cycles: Sequence[RoledCycle] = (),
        doubt: str = "",
        others: Sequence[OtherRun] = (),
    ) -> PosedProblem:
        """Pose the problem of a run.

        Args:
            name: What the job is called.
            predictions: Its epoch latency on one GPU of each model, the run's own among them.
            source: The run.
            here: Its GPUs.
            terms: What is wanted.
            cycles: Levels of its tree of cycles, of which a step tells how many an epoch has.
            doubt: Why its epochs may be none; empty where they are told or sure.
            others: Other runs of the job, oldest first; what they took stands in place of what is predicted.

        Raises:
            DocumentError: What is wanted is too much together.
            CommandError: Nothing is predicted on any GPU that can be rented, or the run has more GPUs than there are.
        """
        offered = terms.offers()
        rentable = {offer.gpu_model for offer in offered}
        unrented = [name for name in terms.gpus if name not in rentable]
        if not offered:
            who = f"no provider of {', '.join(terms.providers)}" if terms.providers else "nobody"
            raise CommandError(f"{who} rents out {' or '.join(unrented)}; 'gpusonde offers' lists what can be rented")
        _check_machines(offered, here, terms)
        told_batch = terms.batch_size or here.batch_per_gpu
        batch = int(told_batch or _UNTOLD_BATCH)
        alone_s = next(row.epoch_latency_s for row in predictions if row.target_gpu == here.gpu.name)
        steps, of_steps = _steps_per_epoch(terms, cycles, source.epoch_latency_s)
        samples = steps * batch * here.gpu_count
        _check_products(batch, steps, here.gpu_count)
        rows = [row for row in predictions if row.target_gpu in rentable and math.isfinite(row.epoch_latency_s)]
        own = OtherRun(here, source.epoch_latency_s, cycles)
        timed, says_timed = _timed_iterations(own, others, {row.target_gpu: row for row in rows}, steps, samples)
        curves = [
            _timed_curve(row.target_gpu, timed[row.target_gpu], batch)
            if row.target_gpu in timed
            else _curve(row, batch, samples, is_guess=row.extrapolated and row.target_gpu != here.gpu.name)
            for row in rows
            if row.fits != "no" or row.target_gpu in timed
        ]
        if not curves:
            raise CommandError("no GPU that can be rented is predicted: name other GPUs or providers")
        rate, basis = gradients_per_second(source, here)
        gradients = rate * alone_s / (steps * here.gpu_count)
        quota = terms.quota or DEFAULT_QUOTA
        document = {
            "format": "gpusonde.problem/1",
            "name": "".join(filter(str.isprintable, name))[:128] or "job",
            "objective": terms.objective,
            "global_batch": batch * here.gpu_count,
            "epochs": terms.epochs,
            "samples_per_epoch": samples,
            **({} if terms.deadline_s is None else {"deadline_s": terms.deadline_s}),
            **({} if terms.budget_usd is None else {"budget_usd": terms.budget_usd}),
            "overhead_s": _OVERHEAD_S,
            "job": {"gradients": {"parameter_bytes": float(f"{gradients:.3g}")}, "curves": curves},
            "catalog": [
                {
                    "gpus": [curve["device"] for curve in curves],
                    **({"providers": list(terms.providers)} if terms.providers else {}),
                    "quota": quota,
                }
            ],
        }
        notes = {
            "global_batch": "samples of an iteration; a run's batch is kept, whatever it is split over",
            "samples_per_epoch": f"{steps:,} steps of that batch{'' if terms.steps_per_epoch else ', ' + of_steps}",
            "overhead_s": "assumed: to start machines and load data",
            "gradients": "assumed: as most jobs exchange" if basis == "assumed" else f"as seen, {basis}",
            "quota": "machines of each kind"
            if terms.quota
            else "assumed: machines of each kind; say what you may rent",
        }
        assumed = [f"{quota} machines of each kind" * (terms.quota is None), f"{_OVERHEAD_S:.0f} s to start"]
        if not told_batch:
            notes["global_batch"] = f"assumed: stands for the run's batch, which can be told, {batch} per GPU"
            assumed.append(f"batches told as shares of {batch}, which stands for the run's")
        assumed.append("gradients as of most jobs" * (basis == "assumed"))
        is_open = source.precision is None and any("TF32" in row.reason for row in rows)
        assumed.append("products in TF32 where a GPU has it" * is_open)
        says = [doubt] if doubt else []
        if terms.steps_per_epoch is None:
            assumed.append(f"{steps:,} steps per epoch{' as its metrics show' * ('assumed' not in of_steps)}")
        can_be = f"quota, batch size, steps per epoch{', precision' * is_open} can be told"
        says += [f"assumed: {'; '.join(filter(None, assumed))} ({can_be})"]
        says += says_timed
        if unrented:
            says.append(f"nobody rents out {' or '.join(unrented)}{' there' * bool(terms.providers)}")
        lost = [row.target_gpu for row in rows if row.fits == "no" and row.target_gpu not in timed]
        if lost:
            says.append(f"left out, as what the run holds does not fit into their memory: {', '.join(lost)}")
        measured = f"an epoch takes {formatting.seconds(source.epoch_latency_s)} on {here}"
        guessed = {row.target_gpu for row in rows if row.extrapolated} - {here.gpu.name, *timed}
        offers = {f"{offer.provider}/{offer.region}/{offer.instance_type}": offer.gpu_model for offer in offered}
        return cls(document, measured, says, notes, {name: gpu for name, gpu in offers.items() if gpu in guessed})

    def notes_on(self, plan: Mapping[str, Any] | None) -> list[str]:
        """Return what to say beside an answer: what was assumed, and on which guesses its plan rests."""
        chosen = [group["offer"] for group in (plan or {}).get("groups", ())]
        guesses = sorted({self.extrapolated[offer] for offer in chosen if offer in self.extrapolated})
        if not guesses:
            return list(self.assumed)
        return [
            *self.assumed,
            f"the plan rests on an extrapolated speed: nobody measured such a run on {' or '.join(guesses)}",
        ]

    def toml(self) -> str:
        """Return the problem as a commented TOML file."""
        document, note = self.document, self.key_notes
        lines = [f"# {self.measured}.", *(f"# {text}" for text in self.assumed), ""]
        for key, value in document.items():
            if key not in ("job", "catalog"):
                lines.append(_key(key, value, note.get(key, "")))
        for key, example, meaning in (
            ("deadline_s", "86400", "seconds from now in which the job must end"),
            ("budget_usd", "500", "most that it may cost on average"),
        ):
            if key not in document:
                lines.append(f"# {key} = {example}  # {meaning}")
        lines += ["", "[job]", _key("gradients", document["job"]["gradients"], note["gradients"])]
        for curve in document["job"]["curves"]:
            lines += ["", "[[job.curves]]", *(_key(key, value) for key, value in curve.items())]
        query = document["catalog"][0]
        lines += ["", "[[catalog]]", *(_key(key, value, note.get(key, "")) for key, value in query.items())]
        lines += [] if "providers" in query else ['# providers = ["aws"]  # all without']
        return "\n".join(lines) + "\n"


def doubt_of_run(role: str, period_s: float) -> str:
    """Say that a cycle in a collector is taken for an epoch, where its role does not tell; empty where it does.

    Nothing is advised: a stored run takes no option that says what its cycles are.
    """
    length = formatting.seconds(period_s)
    return "" if role == "epoch" else f"every cycle of {length} is taken for an epoch, which its metrics do not tell"


def _check_machines(offered: Sequence[Offer], here: Placement, terms: JobTerms) -> None:
    """Refuse a run that has far more GPUs than the assumed quota leaves, which a search would find out after long."""
    if terms.quota is not None:
        return
    machines: dict[tuple[str, str], int] = {}
    for offer in offered:
        place = (offer.provider, offer.region)
        machines[place] = machines.get(place, 0) + offer.gpu_count
    most = max(machines.values())
    if here.gpu_count > DEFAULT_QUOTA * most:
        raise CommandError(
            f"the run has {here.gpu_count:,} GPUs; {DEFAULT_QUOTA} machines of each kind, which is assumed, have "
            f"{DEFAULT_QUOTA * most:,} in one region at most: tell the quota, how many you may rent, such as "
            f"{-(-here.gpu_count // most):,}"
        )


def _check_products(batch: int, steps: int, gpus: int) -> None:
    """Refuse what makes sense singly and not together, by the names under which it was told."""
    together = f"{batch:,} on each of {formatting.count(gpus, 'GPU')}"
    if batch * gpus > LARGEST_BATCH:
        raise DocumentError(
            "batch_size", f"{together} are {batch * gpus:,} a step; {LARGEST_BATCH:,} at most are taken"
        )
    if steps * batch * gpus > MOST_SAMPLES:
        words = f"{steps:,} with a batch of {together} are more than {MOST_SAMPLES:,.0f} samples; give fewer"
        raise DocumentError("steps_per_epoch", words)


def _listed() -> list[Offer]:
    return [offer for offer in load_offers().all if offer.billing == "on_demand" and offer.whole_gpu]


def _steps_per_epoch(terms: JobTerms, cycles: Sequence[RoledCycle], epoch_s: float) -> tuple[int, str]:
    """Return optimizer steps of an epoch, and where that is from."""
    if terms.steps_per_epoch is not None:
        return terms.steps_per_epoch, "as told"
    if seen := _seen_steps(cycles, epoch_s):
        return seen, "as its metrics show"
    return max(1, round(epoch_s / _UNTOLD_STEP_S)), f"assumed: one takes about {_UNTOLD_STEP_S:g} s"


def _seen_steps(cycles: Sequence[RoledCycle], epoch_s: float) -> int:
    """Return the optimizer steps of an epoch that its metrics show; 0 where they do not."""
    for cycle in cycles:
        if cycle.role == "step" and cycle.role_confidence >= _SURE_ROLE and cycle.period_s < epoch_s:
            return max(1, round(epoch_s / cycle.period_s))
    return 0


def _timed_iterations(
    own: OtherRun, others: Sequence[OtherRun], rows: Mapping[str, LatencyPrediction], steps: int, samples: int
) -> tuple[dict[str, list[TimedIteration]], list[str]]:
    """Return by GPU what iterations took in runs of the job, the latest of each kind, and what to say of it.

    Where steps are seen in a run and in the other, they tell its batch; else it is the run's on every GPU. GPUs on
    which no other run differs from this one are left to the prediction.
    """
    found: dict[str, dict[tuple[float, int, int], tuple[TimedIteration, OtherRun]]] = {}
    seen = _seen_steps(own.cycles, own.epoch_latency_s)
    unlike, has_assumed = [], False
    for run in (*others, own):
        here, row = run.here, rows.get(run.here.gpu.name)
        if row is None or here.gpu_count % here.host_count:
            continue
        ratio = run.epoch_latency_s * here.gpu_count / row.epoch_latency_s
        if run is not own and not 1.0 / _MOST_UNLIKE <= ratio <= _MOST_UNLIKE:
            unlike.append(str(here))
            continue
        its = _seen_steps(run.cycles, run.epoch_latency_s)
        has_assumed |= not (its and seen)
        its_steps = steps * (its / seen if its and seen else own.here.gpu_count / here.gpu_count)
        batch = float(f"{samples / its_steps / here.gpu_count:.4g}")
        seconds = float(f"{run.epoch_latency_s / its_steps:.6g}")
        network = here.host_network or None
        iteration = TimedIteration(batch, seconds, here.gpu_count, here.host_count, network)
        found.setdefault(here.gpu.name, {})[batch, here.gpu_count, here.host_count] = iteration, run
    timed = {gpu: by_kind for gpu, by_kind in found.items() if gpu != own.here.gpu.name or len(by_kind) > 1}
    told = [str(run.here) for by_kind in timed.values() for _, run in by_kind.values() if run is not own]
    says = []
    if told:
        names = formatting.join_names(list(dict.fromkeys(told)), "kind")
        words = f"other runs of the job tell what its iterations take on {names}"
        says.append(words + ", taken to have had the run's batch per GPU" * has_assumed)
    if unlike:
        names = formatting.join_names(list(dict.fromkeys(unlike)), "kind")
        says.append(f"runs of the same name on {names} are left out: their epochs are more than 3 times off")
    return {gpu: [iteration for iteration, _ in by_kind.values()] for gpu, by_kind in timed.items()}, says


def _timed_curve(gpu: str, timed: Sequence[TimedIteration], batch: int) -> dict[str, Any]:
    rows = [{name: value for name, value in asdict(each).items() if value is not None} for each in timed]
    return {
        "device": gpu,
        "iterations": [{name: value for name, value in row.items() if name != "accumulation_steps"} for row in rows],
        "largest_batch": max(batch, *(int(each.batch_size) for each in timed)),
    }


def _curve(row: LatencyPrediction, batch: int, samples: int, *, is_guess: bool) -> dict[str, Any]:
    told = {name: float(f"{getattr(row, name):.6g}") for name in _LATENCY_KEYS}
    return {
        "device": row.target_gpu,
        "epochs": [{"batch_size": batch, "samples_per_epoch": samples, **told}],
        # Nobody saw a larger one fit.
        "largest_batch": batch,
        **({"note": "extrapolated: nobody measured such a run there"} if is_guess else {}),
    }


def _key(name: str, value: Any, note: str = "") -> str:
    return f"{name} = {_toml(value)}" + (f"  # {note}" if note else "")


def _toml(value: Any) -> str:
    """Return a value as TOML has it, whose texts are written as those of JSON."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)

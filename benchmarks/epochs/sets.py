"""The sets that the benchmark runs on."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import disturbed
import jobs
import numpy as np
import seen_once
import set_aside
from generator import Family, render

from gpusonde.epoch_detect.evaluation import Truth, read_truth
from gpusonde.telemetry import Trace, read_trace, read_traces

Set = Iterable[tuple[str, Trace, Truth]]

_SEED = 31_415  # of the set-aside traces; the scorer is fitted with another


@dataclass(frozen=True)
class NamedSet:
    """A set of the benchmark.

    Attributes:
        what: What is in it, for the reader of the page.
        traces: Reads or generates it.
        knows_all_epochs: Whether the start of every epoch is known, and not only those of a regular stretch.
        is_read: Whether it is read from files, and not generated here.
    """

    what: str
    traces: Callable[[], Set]
    knows_all_epochs: bool = True
    is_read: bool = True


SET_ASIDE = "set-aside families"


def every_set(folder: Path, per_family: int) -> dict[str, NamedSet]:
    """All sets by name.

    Args:
        folder: Traces beside the repository.
        per_family: How many traces of each generated family.
    """
    return {
        "synthetic_paper_regime": NamedSet(
            "Generated elsewhere: ten epochs each, as in the paper.",
            lambda: synthetic(folder, "synthetic_paper_regime"),
        ),
        "synthetic_epochs": NamedSet(
            "Generated elsewhere: short and long epochs, few and many.", lambda: synthetic(folder, "synthetic_epochs")
        ),
        "synthetic_negatives": NamedSet(
            "Generated elsewhere: serving, pre-training, random walks, idle.",
            lambda: synthetic(folder, "synthetic_negatives"),
        ),
        "real GPU": NamedSet(
            "Measured checkpoint cycles on H100 and Titan X, trust high or medium, untrimmed, first GPU, all metrics.",
            lambda: real(folder, "h100_*", "titanx_*"),
            knows_all_epochs=False,
        ),
        "Keras on CPU": NamedSet(
            "Measured epochs on a shared CPU, very irregular.", lambda: real(folder, "cpu_*"), knows_all_epochs=False
        ),
        "disturbed families": NamedSet(
            f"Generated here, {per_family} of each family; the scorer was fitted to other traces so disturbed.",
            lambda: disturbed_traces(per_family),
            is_read=False,
        ),
        "families seen once": NamedSet(
            f"Generated here, {per_family} of each family; nothing was fitted to them, but earlier figures were known.",
            lambda: seen_once_traces(per_family),
            is_read=False,
        ),
        SET_ASIDE: NamedSet(
            f"Generated here, {per_family} of each family; nothing was fitted to them, and they were written last.",
            lambda: set_aside_traces(per_family),
            is_read=False,
        ),
        "jobs of today": NamedSet(
            f"Simulated here step by step, {per_family} of each kind, first GPU; levels were fitted to others of them.",
            lambda: simulated_jobs(jobs.FIT, per_family),
            knows_all_epochs=False,
            is_read=False,
        ),
        "jobs set aside": NamedSet(
            f"Simulated here step by step, {per_family} of each kind, first GPU; nothing was fitted to these kinds.",
            lambda: simulated_jobs(sorted(jobs.BLIND), per_family),
            knows_all_epochs=False,
            is_read=False,
        ),
    }


def synthetic(folder: Path, name: str) -> Set:
    """One of the generated sets beside the repository."""
    truth = read_truth(folder / f"{name}.truth.json").truth
    for trace in read_traces(folder / f"{name}.parquet"):
        trace_id = trace.attributes["trace_id"]
        yield trace_id, trace, truth[trace_id]


def real(folder: Path, *patterns: str) -> Set:
    """Measured traces whose truth is trusted: first GPU, untrimmed, all metrics."""
    for file, truth in read_truth(folder / "manifest.json").truth.items():
        if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns):
            yield file, read_trace(folder / file, gpu=0), truth


def disturbed_traces(per_family: int) -> Set:
    """Traces of families whose kinds of disturbance the scorer knows."""
    return _generated((disturbed.POSITIVE, disturbed.NEGATIVE), per_family, _SEED)


def seen_once_traces(per_family: int) -> Set:
    """Traces of the families that were set aside before, and have been looked at since."""
    return _generated((seen_once.POSITIVE, seen_once.NEGATIVE), per_family, _SEED + 1)


def set_aside_traces(per_family: int) -> Set:
    """Traces of the families that nothing was fitted to."""
    return _generated((set_aside.POSITIVE, set_aside.NEGATIVE), per_family, _SEED + 2)


def simulated_jobs(kinds: Iterable[str], per_kind: int) -> Set:
    """First GPU of jobs simulated step by step; those that show nothing of a training are left out."""
    for kind in kinds:
        for number in range(per_kind):
            made = jobs.job(kind, _SEED + 3, number, blind=True)
            if made.truth is not None:
                yield made.name, made.traces[0], made.truth


def _generated(groups: Iterable[dict[str, Family]], per_family: int, seed: int) -> Set:
    for group in groups:
        for index, (family, plan) in enumerate(group.items()):
            for number in range(per_family):
                rng = np.random.default_rng([seed, index, number, len(group)])
                made = render(f"{family}-{number}", family, plan(rng), rng)
                periods = made.regimes or (() if made.period_s is None else (made.period_s,))
                yield made.name, made.trace, Truth(periods, made.epoch_starts_s, family)

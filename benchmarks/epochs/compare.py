"""All detectors on the same traces."""

from __future__ import annotations

import copyreg
import functools
import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from peers import PEERS

from gpusonde.epoch_detect import EpochDetection, detect
from gpusonde.epoch_detect.evaluation import Summary, TraceScore, Truth, score, summarise
from gpusonde.telemetry import Trace

OWN = "default"

Case = tuple[str, Trace, Truth]
_Detector = Callable[[Trace], EpochDetection]
_Item, _Made = TypeVar("_Item"), TypeVar("_Made")

_MODES: dict[str, _Detector] = {
    OWN: detect,
    "paper": functools.partial(detect, mode="paper"),
    "notebook": functools.partial(detect, mode="notebook"),
}
_DETECTORS = {**_MODES, **PEERS}


@dataclass(frozen=True)
class Result:
    """One detector on one set.

    Attributes:
        summary: Its scores summed up.
        scores: Score of each trace.
        found: Answer for each trace.
        cpu_s_per_trace_hour: CPU seconds for an hour of trace.
    """

    summary: Summary
    scores: list[TraceScore]
    found: list[EpochDetection]
    cpu_s_per_trace_hour: float


def missing_packages() -> list[str]:
    """Packages of peers that are not installed."""
    return [name for name in ("ruptures", "jenkspy") if importlib.util.find_spec(name) is None]


def compare(cases: list[Case], jobs: int) -> dict[str, Result]:
    """Score every detector that is installed, by name.

    Args:
        cases: Trace id, trace and truth.
        jobs: Processes to share the traces among.
    """
    names = [name for name in _DETECTORS if not name.startswith(tuple(missing_packages()))]
    answers = list(mapped(functools.partial(_answers, names), (trace for _, trace, _ in cases), jobs))
    hours = sum(trace.duration_s for _, trace, _ in cases) / 3600
    results = {}
    for name in names:
        found = [by_name[name][0] for by_name in answers]
        scores = [score(trace_id, f, truth) for (trace_id, _, truth), f in zip(cases, found, strict=True)]
        cpu_s = sum(by_name[name][1] for by_name in answers)
        results[name] = Result(summarise(scores), scores, found, cpu_s / hours)
    return results


def mapped(function: Callable[[_Item], _Made], items: Iterable[_Item], jobs: int) -> Iterator[_Made]:
    """Like ``map``, shared among processes where there is more than one job; in the same order."""
    if jobs == 1:
        yield from map(function, items)
        return
    # A trace holds its values in one, which the standard library cannot send to another process.
    copyreg.pickle(MappingProxyType, lambda view: (_read_only, (dict(view),)))
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(function, items)


def _read_only(values: dict[str, np.ndarray]) -> MappingProxyType[str, np.ndarray]:
    return MappingProxyType(values)


def _answers(names: list[str], trace: Trace) -> dict[str, tuple[EpochDetection, float]]:
    """Answer and CPU seconds of each detector."""
    answers = {}
    for name in names:
        begin = time.process_time()
        found = _DETECTORS[name](trace)
        answers[name] = (found, time.process_time() - begin)
    return answers

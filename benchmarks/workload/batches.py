"""Batches of networks that nobody has run: one call against Ernest, which has to run each of them first (Fig. 13).

``n`` unseen networks are submitted at once. Ours: one fit, then all graphs in one call. Ernest:
for each network the runs that its retraining needs (1, 2 and 3 GPUs, at their measured durations), fit and answer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import accuracy
import rows as cut
from ernest_model import PerWorkloadErnest
from page import NotRunError, bar, table

from gpusonde.predictor.workload.engine import WorkloadMeasurement, WorkloadRequest
from gpusonde.predictor.workload.graph import dump_graph, load_graph

_SIZES = (2, 4, 6, 8)
_ITERATIONS = 50  # What the source repeated for each of the rows that Ernest would have to measure.
_TIMES = 5


@dataclass(frozen=True)
class Submitted:
    """A network as it arrives: its graph is text, the rest is known."""

    text: str
    request: WorkloadRequest
    runs: tuple[WorkloadMeasurement, ...]

    def read(self) -> WorkloadRequest:
        """The request with its graph, read anew."""
        return replace(self.request, graph=load_graph(self.text))


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    rows = cut.torchvision(args)
    machine, found = _fastest(cut.machines(rows))
    submitted = _submitted(found)
    names = [each.request.graph.name for each in submitted]
    known = [each for each in rows if each.request.graph.name not in names]
    started = time.process_time()
    model = accuracy.default(known)
    fit = time.process_time() - started
    lines, shares = [], {}
    for size in _SIZES[: 1 if args.quick else None]:
        some = submitted[:size]
        together = _best(lambda some=some: model.predict([each.read() for each in some]))
        arithmetic = _best(lambda some=some: [_ernest(each) for each in some])
        runs = sum(_ITERATIONS * run.seconds for each in some for run in each.runs)
        shares[size] = (runs + arithmetic) / (fit + together)
        lines.append(
            (
                size,
                f"{together:.3f} s",
                f"{runs:.0f} s",
                f"**{shares[size]:.1f}x**",
                f"{(runs + arithmetic) / together:,.0f}x",
            )
        )
    last = max(shares)
    bar(args, "batches against Ernest's retraining, at 8 networks", ">= 10x",
        f"{shares[last]:.1f}x with our fit counted", met=last == _SIZES[-1] and shares[last] >= 10)  # fmt: skip
    setting = (
        f"On the machine `{machine}`, the one on which Ernest's runs are shortest; {len(names)} networks. Our fit on "
        f"{len(known)} rows of all other networks: {fit:.1f} s, once. Seconds are the processor's; reading "
        "graphs counts."
    )
    return [
        "## Batches",
        "",
        setting,
        "",
        *table(
            (
                "networks",
                "ours, one call",
                "Ernest: runs",
                "our fit counted",
                "without our fit",
            ),
            lines,
        ),
        "Seed: 2.6x, 5.1x, 7.7x, 10.3x. What Ernest loses by is its runs: four numbers are fitted in no time.",
        "",
    ]


def _fastest(machines: dict[str, cut.Rows]) -> tuple[str, cut.Rows]:
    if not machines:
        raise NotRunError("needs a machine with rows for 1, 2, 3 and 4 GPUs in fp32, of which --data has none")
    # The machine that makes Ernest's runs cheapest.
    return min(machines.items(), key=lambda item: cut.seconds(item[1]).mean())


def _submitted(rows: cut.Rows) -> list[Submitted]:
    """Eight networks spread over the alphabet, each asked for on four GPUs."""
    names = sorted({each.request.graph.name for each in rows})
    if len(names) < _SIZES[-1] + 4:
        raise NotRunError(f"needs {_SIZES[-1] + 4} networks on one machine, of which --data has {len(names)}")
    chosen = [names[position * len(names) // _SIZES[-1]] for position in range(_SIZES[-1])]
    found = []
    for name in chosen:
        runs = {each.request.cluster.device_count: each for each in rows if each.request.graph.name == name}
        asked = runs.pop(4).request
        found.append(Submitted(dump_graph(asked.graph), asked, tuple(runs.values())))
    return found


def _ernest(submitted: Submitted) -> float:
    return float(PerWorkloadErnest().fit(submitted.runs).predict([submitted.request])[0])


def _best(call: Callable[[], object]) -> float:
    """Processor seconds of the fastest of some calls: the machine has other work."""
    took = []
    for _ in range(_TIMES):
        started = time.process_time()
        call()
        took.append(time.process_time() - started)
    return min(took)

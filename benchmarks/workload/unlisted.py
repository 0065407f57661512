"""Networks that nobody listed: one of every family of timm, read in both ways, and asked for training times."""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphs import same
from page import NotRunError, bar, table

from gpusonde.catalog import Precision
from gpusonde.errors import GraphError
from gpusonde.predictor.workload.engine import Cluster, WorkloadModel, WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.graph import WorkloadGraph, count_graph_cost, dump_graph, load_graph

_WHAT = "networks that nobody listed: one of every family of timm"
_SAID = (
    "Of every module of timm's models, for which nothing here was made, the alphabetically first architecture. "
    "*Answers sound*: on four GPUs, batches 1 to 256, fp32 and fp16, all are finite and inside their intervals, none "
    "falls when the batch grows, and an fp16 answer slower than fp32 says why. *Flagged*: at batch 16 on a T4."
)
_DEVICES = ("T4", "V100-SXM2-16GB", "A100-SXM4-40GB", "H100-SXM5-80GB")
_BATCHES = (1, 4, 16, 64, 256)
_ROUNDING = 1e-12
_QUICK_STEP = 12


@dataclass(frozen=True)
class Found:
    """What was found of one network.

    Attributes:
        name: As timm calls it.
        error: Why it has no graph; empty if it has.
        front_end: That read it.
        operations: Of its graph.
        json_bytes: Of its graph as text.
        parameters_exact: All trainable numbers are in it, or named as never used.
        flops_exact: Its matrix FLOPs are those that torch counts.
        alike: Both front ends make the same graph; None if fx is refused.
        sound: Whether every answer of the engine is.
        flagged: Whether the engine says that the network is unlike what was measured.
        seconds: To build and to read it.
    """

    name: str
    error: str = ""
    front_end: str = ""
    operations: int = 0
    json_bytes: int = 0
    parameters_exact: bool = False
    flops_exact: bool = False
    alike: bool | None = None
    sound: bool = False
    flagged: bool = False
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Nothing is off."""
        return not self.error and self.parameters_exact and self.flops_exact and self.alike is not False and self.sound


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``.

    Raises:
        NotRunError: torch, torchvision or timm is missing.
    """
    try:
        import torch
        from torchvision_networks import torchvision_models

        torchvision_models()  # timm imports torchvision, which wants this first
        import timm
    except ModuleNotFoundError as error:
        raise NotRunError(f"needs {error.name}, which is not installed here") from error
    torch.set_num_threads(1)
    names = [_first(timm.list_models(module=family)) for family in timm.list_modules()]
    names = [name for name in names if name][:: _QUICK_STEP if args.quick else 1]
    engine = WorkloadModel.shipped()
    found = [check(name, engine) for name in names]
    exact = sum(each.exact for each in found)
    bar(args, _WHAT, "read, exact, both front ends agree", f"{exact} of {len(found)}", met=exact == len(found))
    read = [each for each in found if not each.error]
    both = [each.alike for each in read if each.alike is not None]
    sizes = [each.operations for each in read]
    row = (
        f"timm {timm.__version__}",
        f"{len(read)} of {len(found)}",
        f"{min(sizes)} to {max(sizes)}",
        f"{max(each.json_bytes for each in read) / 1000:.0f} KB",
        _share(each.parameters_exact for each in read),
        _share(each.flops_exact for each in read),
        _share(both),
        _share(each.sound for each in read),
        _share(each.flagged for each in read),
        f"{sum(each.seconds for each in read) / len(read):.1f} s, at most {max(each.seconds for each in read):.0f} s",
    )
    about_graphs = ("networks", "read", "operations", "largest JSON", "parameters", "FLOPs", "both alike")
    columns = (*about_graphs, "answers sound", "flagged", "time to read")
    wrong = [f"{each.name} ({_wrong(each)})" for each in found if not each.exact]
    last = [f"Off: {'; '.join(wrong)}.", ""] if wrong else []
    return ["## Networks that nobody listed", "", _SAID, "", *table(columns, [row]), *last]


def check(name: str, engine: WorkloadModel) -> Found:
    """Read one network in every way, compare, and ask the engine for its times."""
    import timm
    import torch

    from gpusonde.predictor.workload.graph.torch import export, from_torch
    from gpusonde.predictor.workload.graph.torch.fx import read_mode

    started = time.perf_counter()
    try:
        module = export.build(lambda: timm.create_model(name, pretrained=False))
        example = torch.empty(1, *module.pretrained_cfg["input_size"], device="meta")
        graph = from_torch(module, example, name=name)
        seconds = time.perf_counter() - started
        text = dump_graph(graph)
        if load_graph(text) != graph:
            return Found(name, error="its JSON is another graph")
        alike = None
        if graph.front_end == "fx":
            with read_mode(module):
                alike = same(graph, export.export(module, (example,), {}, name=name, batch_size=1))
    except GraphError as error:
        return Found(name, error=str(error))
    answers = _answers(graph, engine)
    never_used = sum(int(note.split()[0]) for note in graph.notes if "never used" in note)
    return Found(
        name,
        front_end=graph.front_end,
        operations=len(graph.operations),
        json_bytes=len(text),
        parameters_exact=graph.parameter_count + never_used == sum(each.numel() for each in module.parameters()),
        flops_exact=count_graph_cost(graph).total.matrix_flops == _counted(module, example, graph),
        alike=alike,
        sound=_sound(answers),
        flagged=answers["T4", Precision.FP32][_BATCHES.index(16)].out_of_distribution,
        seconds=seconds,
    )


def _first(names: Sequence[str]) -> str:
    return min((each for each in names if not each.startswith("test_")), default="")


def _counted(module, example, graph: WorkloadGraph) -> int:  # type: ignore[no-untyped-def]
    """Return what torch counts, but for products of constants: positions, say, that neither data nor weights change."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    from gpusonde.predictor.workload.graph.torch.fx import read_mode

    class Constants(TorchDispatchMode):
        flops = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            made = func(*args, **(kwargs or {}))
            count = flop_registry.get(func._overloadpacket)
            if count is not None and not any(isinstance(each, torch.Tensor) and each.requires_grad for each in args):
                self.flops += count(*args, **(kwargs or {}), out_val=made)
            return made

    as_trained = any("as in training" in note for note in graph.notes)
    example = example.detach().requires_grad_()
    # The counter's hooks want gradients.
    with read_mode(module, as_trained=as_trained), torch.enable_grad():
        with FlopCounterMode(display=False) as counter:
            module(example)
        with Constants() as constants:
            module(example)
    return int(counter.get_total_flops()) - constants.flops


def _answers(graph: WorkloadGraph, engine: WorkloadModel) -> dict[tuple[str, Precision], list[WorkloadPrediction]]:
    places = [(device, precision) for device in _DEVICES for precision in (Precision.FP32, Precision.FP16)]
    return {
        (device, precision): engine.predict(
            [WorkloadRequest(graph, batch, Cluster(device, precision=precision)) for batch in _BATCHES]
        )
        for device, precision in places
    }


def _sound(answers: dict[tuple[str, Precision], list[WorkloadPrediction]]) -> bool:
    for (device, precision), found in answers.items():
        if not all(0 < each.low_s <= each.seconds <= each.high_s < math.inf for each in found):
            return False
        if any(later.seconds < (1 - _ROUNDING) * each.seconds for each, later in itertools.pairwise(found)):
            return False
        singles = answers[device, Precision.FP32]
        if precision is Precision.FP16 and any(
            half.seconds > 1.01 * single.seconds and not any("half precision" in reason for reason in half.reasons)
            for half, single in zip(found, singles, strict=True)
        ):
            return False
    return True


def _wrong(found: Found) -> str:
    if found.error:
        return found.error[:120]
    flags = {
        "parameters": found.parameters_exact,
        "FLOPs": found.flops_exact,
        "front ends": found.alike is not False,
        "answers": found.sound,
    }
    return ", ".join(name for name, good in flags.items() if not good)


def _share(which: Iterable[bool]) -> str:
    found = list(which)
    return f"{sum(found)} of {len(found)}"

"""Graphs of torchvision's networks and of transformers: parameters, FLOPs, and whether the front ends agree."""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from page import NotRunError, bar, table

from gpusonde.errors import GraphError
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.graph import WorkloadGraph, count_graph_cost

_WHAT = "parameters and FLOPs of the torchvision networks in the file"
_SAID = (
    "Networks of torchvision, read by torch.fx and by torch.export: how many have exactly the module's *parameters*, "
    "exactly the *FLOPs* that `torch.utils.flop_counter` counts, the same graph by *both*, and the same operations in "
    "the *zoo* that is shipped. Seconds per network."
)


@dataclass(frozen=True)
class Checked:
    """What was found of one network.

    Attributes:
        name: As torchvision calls it.
        operations: Of its graph.
        parameters_exact: All trainable numbers are in it, each once.
        flops_exact: Its matrix FLOPs are those that torch counts.
        alike: Both front ends make the same graph; None if fx is refused.
        shipped: The zoo's graph is this one.
        fx_s: Seconds by fx, or until it was refused.
        export_s: Seconds by export.
    """

    name: str
    operations: int
    parameters_exact: bool
    flops_exact: bool
    alike: bool | None
    shipped: bool
    fx_s: float
    export_s: float

    @property
    def exact(self) -> bool:
        """Nothing is off."""
        return self.parameters_exact and self.flops_exact and self.alike is not False


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``.

    Raises:
        NotRunError: torch or torchvision is missing.
    """
    try:
        import torch
        import torchvision_networks
    except ModuleNotFoundError as error:
        raise NotRunError(f"needs {error.name}: see benchmarks/workload/torchvision_networks.py") from error
    torch.set_num_threads(1)
    names = torchvision_networks.network_names()
    in_file = _names_in_file(args.data, names)
    if args.quick:
        families = zoo.families()
        names = sorted({families[name]: name for name in reversed(names)}.values())
        in_file = [name for name in in_file if name in names]
    checked = {name: check_network(name) for name in names}
    transformer = check_transformer()
    known = [checked[name] for name in in_file]
    exact = [each for each in known if each.exact and each.alike]
    measured = f"{len(exact)} of {len(known)}; transformer {'exact' if transformer.exact else 'off'}"
    met = bool(known) and len(exact) == len(known) and transformer.exact
    bar(args, _WHAT, "exact, both front ends agree; transformer exact", measured, met=met)
    groups = {"networks in the file": known, "all of torchvision": list(checked.values())}
    groups["transformer encoder (BERT-base)"] = [transformer]
    columns = ("networks", "number", "operations", "parameters", "FLOPs", "both alike", "zoo", "fx", "export")
    rows = [_row(title, group) for title, group in groups.items() if group]
    wrong = [each.name for each in [*checked.values(), transformer] if not (each.exact and each.shipped)]
    last = [f"Off in one of these: {', '.join(wrong)}.", ""] if wrong else []
    return ["## Graphs", "", _SAID, "", *table(columns, rows), *last]


def check_network(name: str) -> Checked:
    """Read one of torchvision's networks in every way and compare."""
    from torchvision_networks import build, images

    return _check(name, build(name), images(name))


def check_transformer() -> Checked:
    """The same of the zoo's transformer encoder."""
    from make_zoo import TRANSFORMER, transformer_encoder

    return _check(TRANSFORMER, *transformer_encoder())


def _check(name, module, example) -> Checked:  # type: ignore[no-untyped-def]
    from torchvision_networks import counted_matrix_flops

    from gpusonde.predictor.workload.graph.torch import export, from_torch, fx
    from gpusonde.predictor.workload.graph.torch.fx import read_mode

    taken = from_torch(module, example, name=name)
    as_trained = any("as in training" in note for note in taken.notes)
    with read_mode(module, as_trained=as_trained):
        started = time.perf_counter()
        try:
            traced = fx.trace(module, (example,), {}, name=name, batch_size=1)
        except GraphError:
            traced = None
        traced_at = time.perf_counter()
        exported = export.export(module, (example,), {}, name=name, batch_size=1)
        exported_at = time.perf_counter()
    parameters = sum(each.numel() for each in module.parameters())
    counted = counted_matrix_flops(module, example, as_trained=as_trained)
    graphs = [taken, exported, *([traced] if traced else [])]
    return Checked(
        name,
        len(taken.operations),
        all(each.parameter_count == parameters for each in graphs),
        all(count_graph_cost(each).total.matrix_flops == counted for each in graphs),
        None if traced is None else same(traced, exported),
        same(taken, zoo.load(name), with_names=False),
        traced_at - started,
        exported_at - traced_at,
    )


def same(one: WorkloadGraph, other: WorkloadGraph, *, with_names: bool = True) -> bool:
    """Whether two graphs are one, whatever their operations are called.

    Args:
        one: A graph.
        other: Another.
        with_names: Trainable tensors have the same names too; the zoo's have short ones.
    """

    def described(graph: WorkloadGraph) -> list[tuple[object, ...]]:
        return [
            (
                each.primitive,
                each.output,
                each.inputs,
                each.weight,
                each.groups,
                each.parameters if with_names else [parameter.shape for parameter in each.parameters],
            )
            for each in graph.operations
        ]

    return one.edges == other.edges and described(one) == described(other)


def _names_in_file(path: Path, names: Iterable[str]) -> list[str]:
    if not path.is_file():
        raise NotRunError("needs the table of measured training times (--data), which is not there")
    with path.open(encoding="utf-8", newline="") as file:
        found = {row["model"] for row in csv.DictReader(file)}
    return [name for name in names if name in found]


def _row(title: str, group: Sequence[Checked]) -> tuple[str, ...]:
    sizes = [each.operations for each in group]
    read_by_fx = [each.alike for each in group if each.alike is not None]
    return (
        title,
        str(len(group)),
        str(sizes[0]) if len(group) == 1 else f"{min(sizes)} to {max(sizes)}",
        _share(each.parameters_exact for each in group),
        _share(each.flops_exact for each in group),
        _share(read_by_fx) if read_by_fx else "export only",
        _share(each.shipped for each in group),
        f"{sum(each.fx_s for each in group) / len(group):.1f} s",
        f"{sum(each.export_s for each in group) / len(group):.1f} s",
    )


def _share(which: Iterable[bool]) -> str:
    found = list(which)
    return f"{sum(found)} of {len(found)}"

"""Writes the zoo: the graphs of torchvision's classification networks, of a transformer encoder and of Keras networks.

    python benchmarks/workload/make_zoo.py [NAME ...] [--out predictor/gpusonde/predictor/workload/zoo]
    python benchmarks/workload/make_zoo.py keras

The networks of Keras are put together by ``keras_networks``, by NAME@SIZE, ``keras`` for all; a test compares the
files with it. The others need torch 2.13 and torchvision 0.28 (see ``torchvision_networks``): each graph is checked
against its module, it has every trainable number, and its matrix FLOPs are those of torch's own counter. Nothing is
written that does not pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import keras_networks

from gpusonde.errors import UnsupportedGraphError
from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph, count_graph_cost, dump_graph

if TYPE_CHECKING:
    import torch
    from torch import nn

ZOO = Path(__file__).resolve().parents[2] / "predictor/gpusonde/predictor/workload/zoo"
SMALLER_INCEPTION = "inception_v3_224"
TRANSFORMER = "transformer_encoder"
KERAS = "keras"
# Image size, pixels -> classes: what PROFET measured.
KERAS_CLASSES = {32: 10, 64: 100, 128: 100, 224: 1000, 256: 1000}

# Networks of one design, by how their names begin; the longest beginning counts. ResNeXt and Wide ResNet are ResNets
# with other widths and groups, GoogLeNet is the first Inception: who holds a family out must not leave a twin in.
FAMILIES = {
    "alexnet": "alexnet",
    "convnext": "convnext",
    "densenet": "densenet",
    "efficientnet": "efficientnet",
    "googlenet": "inception",
    "inception": "inception",
    "maxvit": "maxvit",
    "mnasnet": "mnasnet",
    "mobilenet": "mobilenet",
    "regnet": "regnet",
    "resnet": "resnet",
    "resnext": "resnet",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "swin": "swin",
    "transformer": "transformer",
    "vgg": "vgg",
    "vit": "vit",
    "wide_resnet": "resnet",
}


def family_of(name: str) -> str:
    """Family of a network."""
    beginning = max((each for each in FAMILIES if name.startswith(each)), key=len)
    return FAMILIES[beginning]


def checked_graph(name: str) -> WorkloadGraph:
    """A network's graph, which has every trainable number and as many matrix FLOPs as torch counts."""
    from torchvision_networks import build, counted_matrix_flops, images

    from gpusonde.predictor.workload.graph.torch import from_torch

    if name == TRANSFORMER:
        module, example = transformer_encoder()
    elif name == SMALLER_INCEPTION:  # its auxiliary head needs larger images
        module, example = build("inception_v3", aux_logits=False), images("inception_v3", 224)
    else:
        module, example = build(name), images(name)
    graph = from_torch(module, example, name=name)
    parameters = sum(each.numel() for each in module.parameters())
    if graph.parameter_count != parameters:
        raise SystemExit(f"{name}: {graph.parameter_count} of {parameters} trainable numbers")
    as_trained = any("as in training" in note for note in graph.notes)
    flops, counted = (
        count_graph_cost(graph).total.matrix_flops,
        counted_matrix_flops(module, example, as_trained=as_trained),
    )
    if flops != counted:
        raise SystemExit(f"{name}: {flops} matrix FLOPs, torch counts {counted}")
    return graph


def keras_graphs() -> dict[str, WorkloadGraph]:
    """The graphs of Keras networks, by NAME@SIZE; without sizes whose images are too small for the network."""
    found = {}
    for name in keras_networks.names():
        for size, classes in KERAS_CLASSES.items():
            try:
                found[f"{name}@{size}"] = compact(keras_networks.build(name, size, classes))
            except UnsupportedGraphError:
                continue
    return found


def compact(graph: WorkloadGraph) -> WorkloadGraph:
    """The same graph with short names of operations and trainable tensors, which nobody looks for in the zoo."""
    operations = tuple(_renamed(each, number) for number, each in enumerate(graph.operations))
    names = [parameter.name for each in operations for parameter in each.parameters]
    if len(set(names)) < len(names):
        raise SystemExit(f"{graph.name}: two trainable tensors would have one name")
    return replace(graph, operations=operations)


def _renamed(operation: Operation, number: int) -> Operation:
    parameters = tuple(replace(each, name=f"{number}.{each.name.rpartition('.')[2]}") for each in operation.parameters)
    # Which activation it is says what it keeps for the backward pass.
    source = operation.source if operation.primitive is Primitive.ACTIVATION else ""
    return replace(operation, name=str(number), source=source, parameters=parameters)


def transformer_encoder() -> tuple[nn.Module, torch.Tensor]:
    """The encoder of BERT-base without its embeddings, on 128 tokens."""
    import torch
    from torch import nn

    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        return nn.TransformerEncoder(layer, 12), torch.empty(1, 128, 768)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks; all if none is given")
    parser.add_argument("--out", type=Path, default=ZOO, help="where the graphs are written")
    options = parser.parse_args()
    names: Sequence[str] = options.names
    of_keras = keras_graphs()
    for name, graph in of_keras.items():
        if not names or KERAS in names or name in names:
            write(graph, options.out / "keras" / keras_networks.family(name.partition("@")[0]) / f"{name}.json")
    others = [name for name in names if name != KERAS and name not in of_keras]
    if names and not others:
        return
    import torch
    from torchvision_networks import network_names

    torch.set_num_threads(1)
    for name in others or [*network_names(), SMALLER_INCEPTION, TRANSFORMER]:
        write(compact(checked_graph(name)), options.out / "graphs" / family_of(name) / f"{name}.json")


def write(graph: WorkloadGraph, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_graph(graph) + "\n", encoding="utf-8")
    print(
        f"{path.stem}: {len(graph.operations)} operations, {graph.parameter_count} parameters, {graph.front_end}",
        flush=True,
    )


if __name__ == "__main__":
    main()

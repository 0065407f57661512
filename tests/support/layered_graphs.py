"""Small networks for tests of whatever takes graphs."""

from __future__ import annotations

from gpusonde.predictor.workload.graph.graph_json import dump_graph
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, WorkloadGraph


def small_graph(name: str = "small", channels: int = 16, size: int = 32, layers: int = 3) -> WorkloadGraph:
    """A chain of convolutions and activations, then a linear layer."""
    image = (1, channels, size, size)
    operations = [Operation(Primitive.INPUT, "input", (1, 3, size, size))]
    for layer in range(layers):
        given = operations[-1].output
        weight = (channels, given[1], 3, 3)
        operations += [
            Operation(
                Primitive.CONVOLUTION,
                f"conv{layer}",
                image,
                (given,),
                weight,
                (Parameter(f"conv{layer}.weight", weight),),
            ),
            Operation(Primitive.ACTIVATION, f"relu{layer}", image, (image,)),
        ]
    operations += [
        Operation(Primitive.GLOBAL_AVERAGE_POOL, "pool", (1, channels, 1, 1), (image,)),
        Operation(
            Primitive.LINEAR, "fc", (1, 10), ((1, channels),), (10, channels), (Parameter("fc.weight", (10, channels)),)
        ),
        Operation(Primitive.OUTPUT, "output", (1, 10), ((1, 10),)),
    ]
    edges = tuple((at, at + 1) for at in range(len(operations) - 1))
    return WorkloadGraph(name, tuple(operations), edges, batch_size=1, front_end="fx")


def graph_json(name: str = "small", **more: int) -> bytes:
    """The same as the user's side writes it."""
    return dump_graph(small_graph(name, **more)).encode()

"""Small networks as graphs, and a predictor that knows how long each takes."""

from __future__ import annotations

from collections.abc import Sequence

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload.engine import WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, WorkloadGraph


def small_network(channels: int = 8, batch_size: int = 1, name: str = "small") -> WorkloadGraph:
    """A convolution, an activation, a pooling and a linear layer on images of 16 x 16."""
    image, hidden = (batch_size, 3, 16, 16), (batch_size, channels, 16, 16)
    filters, head = (channels, 3, 3, 3), (10, channels)
    return WorkloadGraph(
        name,
        (
            Operation(Primitive.INPUT, "x", image),
            Operation(
                Primitive.CONVOLUTION,
                "conv",
                hidden,
                (image,),
                filters,
                (Parameter("conv.weight", filters),),
                1,
                "conv",
            ),
            Operation(Primitive.ACTIVATION, "relu", hidden, (hidden,)),
            Operation(Primitive.GLOBAL_AVERAGE_POOL, "pool", (batch_size, channels), (hidden,)),
            Operation(
                Primitive.LINEAR,
                "head",
                (batch_size, 10),
                ((batch_size, channels),),
                head,
                (Parameter("head.weight", head), Parameter("head.bias", (10,))),
            ),
            Operation(Primitive.OUTPUT, "output", (batch_size, 10), ((batch_size, 10),)),
        ),
        tuple((position, position + 1) for position in range(5)),
        batch_size,
        "fx",
    )


class StraightLines:
    """A predictor whose steps are a straight line over the batch size, the steeper the slower the device."""

    def __init__(self, unknown: Sequence[str] = (), half_width: float = 1.2) -> None:
        self.unknown, self.half_width = unknown, half_width
        self.asked: list[int] = []

    def predict(self, requests: Sequence[WorkloadRequest]) -> list[WorkloadPrediction]:
        self.asked.append(len(requests))
        return [self._one(request) for request in requests]

    def seconds(self, request: WorkloadRequest) -> float:
        """What it says of a request."""
        spec = load_gpus().get(request.cluster.device)
        return 0.004 + request.batch_size * 0.003 * 4e11 / spec.memory_bandwidth_bytes_per_second

    def _one(self, request: WorkloadRequest) -> WorkloadPrediction:
        seconds, strange = self.seconds(request), request.cluster.device in self.unknown
        return WorkloadPrediction(
            seconds,
            seconds / self.half_width,
            seconds * self.half_width,
            0.9,
            "svr",
            "roofline",
            strange,
            (f"{request.cluster.device} was never measured",) if strange else (),
        )

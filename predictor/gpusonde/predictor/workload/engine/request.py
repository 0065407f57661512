"""What is asked of the engine, what it learns from, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum

from gpusonde.catalog import Precision
from gpusonde.errors import ModelError
from gpusonde.predictor.workload.engine.memory import MemoryFit, Optimizer
from gpusonde.predictor.workload.graph.ir import Primitive, WorkloadGraph


class Parallelism(str, Enum):
    """How several devices share one training job."""

    NONE = "none"
    DATA_PARALLEL = "data_parallel"  # one process that scatters batches and gathers gradients, as nn.DataParallel
    DISTRIBUTED = "distributed"  # one process per device and an allreduce


@dataclass(frozen=True)
class HostResources:
    """What the hosts of a cluster have free, per host.

    Of a host under load these are its totals times the free share, summed over its free cores (the PredictDDL paper,
    Eq. 1 and 2). None is a figure that nobody knows.

    Attributes:
        cores: Free processor cores.
        memory_bytes: Free memory.
        disk_bytes_per_second: Free disk throughput.
        flops: Free floating-point operations per second of the processors.
    """

    cores: float | None = None
    memory_bytes: float | None = None
    disk_bytes_per_second: float | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ModelError(f"host resources: {item.name} is {value}; it must be a number of at least 0")


@dataclass(frozen=True)
class Cluster:
    """What a workload is to run on.

    Attributes:
        device: Canonical name in the GPU catalogue.
        device_count: Devices in all.
        node_count: Hosts that they are spread over.
        precision: Of the matrix products and convolutions.
        parallelism: How the devices share the job; NONE with one device only.
        environment: Framework and host of measurements that the model knows, such as "keras-tf2.5/aws"; None
            is any other.
        host: What the hosts have free, where it is known.
        channels_last: Images lie with their channels innermost (NHWC), as tensor cores read them.
        graph_launch: Kernels are started by an executor of whole graphs (TensorFlow, MXNet, JAX, TorchScript, CUDA
            graphs), not one by one from Python. Of a known ``environment`` as its measurements had it.
        link: ``nvlink`` or ``pcie`` inside of a host; empty: the better one that joins all devices of it.
        network_bytes_per_second: Of one host; 0 where nobody says.

    Raises:
        ModelError: The counts cannot be.
    """

    device: str
    device_count: int = 1
    node_count: int = 1
    precision: Precision = Precision.FP32
    parallelism: Parallelism = Parallelism.NONE
    environment: str | None = None
    host: HostResources | None = None
    channels_last: bool = False
    graph_launch: bool = False
    link: str = ""
    network_bytes_per_second: float = 0.0

    def __post_init__(self) -> None:
        if not self.device:
            raise ModelError("a cluster needs the name of its device")
        if not 1 <= self.node_count <= self.device_count:
            raise ModelError(f"{self.device_count} devices on {self.node_count} hosts: each host has one at least")
        if self.device_count > 1 and self.parallelism is Parallelism.NONE:
            raise ModelError(f"{self.device_count} devices: say how they share the job (parallelism)")
        if self.device_count > 1 and " MIG " in self.device:
            raise ModelError(f"{self.device_count} x {self.device}: a process sees one MIG slice; ask for one")


@dataclass(frozen=True)
class WorkloadRequest:
    """One question: how long does a training iteration of this network take there.

    Attributes:
        graph: The network; the batch that its shapes were taken with does not matter.
        batch_size: Samples per device and iteration.
        cluster: What it is to run on.
        optimizer: What updates the weights; it counts for the memory only.
        forward_only: Ask for the forward pass alone, as inference has it.

    Raises:
        ModelError: The batch size is below 1.
    """

    graph: WorkloadGraph
    batch_size: int
    cluster: Cluster
    optimizer: Optimizer = Optimizer.ADAMW
    forward_only: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ModelError(f"batch size {self.batch_size}: it must be at least 1")

    @property
    def global_batch_size(self) -> int:
        """Samples per iteration on all devices together."""
        return self.batch_size * self.cluster.device_count

    @property
    def tokens(self) -> int | None:
        """Tokens per iteration on all devices together; None where samples are no sequences of indices."""
        operations = self.graph.operations
        read = {writer for writer, reader in self.graph.edges if operations[reader].primitive is Primitive.LOOKUP}
        lengths = [
            math.prod(operations[each].output) // self.graph.batch_size
            for each in read
            if operations[each].primitive is Primitive.INPUT
        ]
        return max(lengths) * self.global_batch_size if lengths else None

    def epoch_iterations(self, samples: int) -> int:
        """Count the iterations of an epoch, the last of which may hold fewer samples.

        Args:
            samples: Samples in the epoch.

        Raises:
            ModelError: There is none.
        """
        if samples < 1:
            raise ModelError(f"{samples} samples in an epoch: there must be at least 1")
        return -(-samples // self.global_batch_size)


@dataclass(frozen=True)
class WorkloadMeasurement:
    """How long a training iteration took somewhere.

    Attributes:
        request: What ran, and on what.
        seconds: Mean duration of an iteration (forward, backward and update).
        architecture: Name of the network: what is held out together in validation.
        family: Networks of one design, such as "resnet".
        source: Who measured it.

    Raises:
        ModelError: The duration is no positive number, or there is no name of an architecture.
    """

    request: WorkloadRequest
    seconds: float
    architecture: str
    family: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ModelError(f"{self.architecture}: {self.seconds} seconds per iteration, not a positive number")
        if not self.architecture:
            raise ModelError("a measurement needs the name of its architecture")


@dataclass(frozen=True)
class WorkloadPrediction:
    """The answer to one request.

    Attributes:
        seconds: Of a training iteration.
        low_s: Lower end of the interval.
        high_s: Upper end of the interval.
        coverage: Share of such intervals that should hold the truth, for architectures that the model has not seen.
        regressor: What computed it: "linear", "polynomial", "svr", "mlp", "boosted_residual" or "calibrated_roofline".
        features: Which features it used, such as "roofline+analytic".
        out_of_distribution: The request is unlike what the model was fitted on: the answer comes from the model of few
            features, and its interval is wide.
        reasons: What is unlike, and what else the reader should know, one sentence each.
        nearest: Names of the fitted architectures most like this one and how alike they are, at most 1, best first.
        memory: What the step holds, and whether it fits into the device's memory.
        communication_ratio: Share of the step in which devices only wait for gradients, where the exchange was
            simulated; None where it was not told apart.
    """

    seconds: float
    low_s: float
    high_s: float
    coverage: float
    regressor: str
    features: str
    out_of_distribution: bool = False
    reasons: tuple[str, ...] = ()
    nearest: tuple[tuple[str, float], ...] = ()
    memory: MemoryFit | None = None
    communication_ratio: float | None = None

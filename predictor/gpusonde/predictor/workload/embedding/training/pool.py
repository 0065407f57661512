"""Random architectures to train on, and others, held out, to test with.

How far a training is: a report per step, shown as a bar on a terminal and as plain lines elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import Any, TextIO

import torch
from torch.func import functional_call

from gpusonde.predictor.workload.embedding.training.architectures import ArchitectureSpace, ArchitectureSpec, sample
from gpusonde.predictor.workload.embedding.training.datasets import ImageDataset
from gpusonde.predictor.workload.embedding.training.hypernetwork import GraphHyperNetwork, PreparedGraph
from gpusonde.predictor.workload.embedding.training.networks import GeneratedNetwork
from gpusonde.predictor.workload.embedding.training.options import TrainingOptions
from gpusonde.predictor.workload.embedding.training.result import CheckpointError
from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.predictor.workload.graph.torch import from_torch


class Phase(str, Enum):
    """What a training does, in this order."""

    ARCHITECTURES = "making architectures"
    TRAINING = "training"
    TESTING = "testing on unseen architectures"


@dataclass(frozen=True)
class ProgressReport:
    """How far a phase is.

    Attributes:
        phase: What is being done.
        done: Architectures or steps that are done.
        total: Of how many.
        loss: Mean loss of the last steps while training, else None.
        seconds_left: Estimate for this phase; None while there is nothing to estimate from.
    """

    phase: Phase
    done: int
    total: int
    loss: float | None = None
    seconds_left: float | None = None


#: Called after every step; what it raises ends the training.
Progress = Callable[[ProgressReport], None]

_SECONDS_BETWEEN_LINES = 10.0


def no_progress(report: ProgressReport) -> None:
    """Show nothing."""


class PlainLines:
    """A line when a phase begins and ends, and every ten seconds in between.

    Args:
        stream: Where to write them.
        clock: Monotonic time in seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._phase: Phase | None = None
        self._next = 0.0

    def __call__(self, report: ProgressReport) -> None:
        """Take a report."""
        now = self._clock()
        if report.phase is self._phase and report.done < report.total and now < self._next:
            return
        self._phase, self._next = report.phase, now + _SECONDS_BETWEEN_LINES
        loss = "" if report.loss is None else f", loss {report.loss:.3f}"
        left = "" if report.seconds_left is None else f", about {_duration(report.seconds_left)} left"
        print(f"{report.phase.value}: {report.done} of {report.total}{loss}{left}", file=self._stream, flush=True)


@contextlib.contextmanager
def shown_on(stream: TextIO) -> Iterator[Progress]:
    """Show progress: a bar where ``stream`` is a terminal and rich is installed, else plain lines."""
    if not stream.isatty() or find_spec("rich") is None:
        yield PlainLines(stream)
        return
    # An extra, and only of use on a terminal.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(file=stream)) as bars:
        tasks = {}

        def show(report: ProgressReport) -> None:
            if report.phase not in tasks:
                tasks[report.phase] = bars.add_task(report.phase.value, total=report.total, more="")
            loss = "" if report.loss is None else f"loss {report.loss:.3f}"
            left = "" if report.seconds_left is None else f"{_duration(report.seconds_left)} left"
            more = ", ".join(filter(None, (loss, left)))
            bars.update(tasks[report.phase], completed=report.done, total=report.total, more=more)

        yield show


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# Numbers of the random streams of a seed.
_TRAINED_STREAM, _HELD_OUT_STREAM = "trained", "held out"
_TRACED_BATCH = 2


@dataclass(frozen=True)
class Architecture:
    """A random network.

    Attributes:
        spec: Its description.
        network: It as a module; its own weights are never used.
        graph: Its graph.
        prepared: The same, as the hypernetwork reads it.
    """

    spec: ArchitectureSpec
    network: Any
    graph: WorkloadGraph
    prepared: PreparedGraph

    def classify(self, parameters: Mapping[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes with given weights."""
        scores: torch.Tensor = functional_call(self.network, dict(parameters), (images,))
        return scores


def content_digest(graph: WorkloadGraph) -> str:
    """Digest of what a graph says of the network, whatever its parts are called."""
    operations = [
        (each.primitive.value, each.weight, each.output, each.groups, each.source) for each in graph.operations
    ]
    return hashlib.sha256(repr((operations, graph.edges)).encode()).hexdigest()


@dataclass(frozen=True)
class Pool:
    """The architectures of a training. No two of them have the same graph.

    Attributes:
        trained: To train on.
        held_out: To test with.
    """

    trained: tuple[Architecture, ...]
    held_out: tuple[Architecture, ...]

    @staticmethod
    def of(
        dataset: ImageDataset,
        options: TrainingOptions,
        hypernetwork: GraphHyperNetwork,
        document: Mapping[str, Any] | None,
        tell: Callable[[int, int], None],
    ) -> Pool:
        """Make architectures that suit a dataset.

        Args:
            dataset: The images.
            options: How many, and the seed.
            hypernetwork: What their graphs are prepared for.
            document: Those of :meth:`as_document`, or None for new ones.
            tell: Told how many are made, of how many.

        Raises:
            CheckpointError: ``document`` holds no architectures, or other ones than its digest says.
        """
        space = ArchitectureSpace.for_images(dataset.side)
        wanted = options.architectures, options.held_out_architectures
        parts = [] if document is None else _read_specs(document, wanted)
        seen: set[str] = set()
        made: list[list[Architecture]] = []
        for number, stream in enumerate((_TRAINED_STREAM, _HELD_OUT_STREAM)):
            generator = random.Random(f"{options.seed} {stream}")  # noqa: S311 - nothing secret
            part: list[Architecture] = []
            made.append(part)
            while len(part) < wanted[number]:
                tell(sum(map(len, made)), sum(wanted))
                spec = parts[number][len(part)] if parts else sample(generator, space)
                network = GeneratedNetwork(spec, dataset.channels, dataset.side, len(dataset.classes))
                graph = _graph(network, dataset)
                content = content_digest(graph)
                if content in seen:
                    if parts:
                        raise CheckpointError("the checkpoint holds an architecture twice; remove it to train anew")
                    continue
                seen.add(content)
                part.append(Architecture(spec, network, graph, hypernetwork.prepare(graph)))
        tell(sum(wanted), sum(wanted))
        return Pool(*map(tuple, made))

    def as_document(self) -> dict[str, Any]:
        """Their descriptions, for JSON."""
        return {
            "trained": [each.spec.to_json() for each in self.trained],
            "held_out": [each.spec.to_json() for each in self.held_out],
        }


def _graph(network: Any, dataset: ImageDataset) -> WorkloadGraph:
    images = torch.zeros(_TRACED_BATCH, dataset.channels, dataset.side, dataset.side)
    return from_torch(network, images)


def _read_specs(document: Mapping[str, Any], wanted: tuple[int, int]) -> list[list[ArchitectureSpec]]:
    try:
        parts = [[ArchitectureSpec.from_json(text) for text in document[name]] for name in ("trained", "held_out")]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's architectures are damaged ({error}); remove it to train anew"
        ) from error
    if tuple(map(len, parts)) != wanted:
        raise CheckpointError("the checkpoint holds other numbers of architectures; remove it to train anew")
    return parts

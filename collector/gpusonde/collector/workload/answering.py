"""``Answers``: what a child process does with questions about workloads; documents and graphs in, documents out.

Graphs come from strangers. They are read here and nowhere else in the collector: by readers that execute nothing,
within limits of size, time and memory, in a process that writes no files and can be ended. ``make_parts`` gives the
readers, the model and the encoders.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from gpusonde.catalog import Precision
from gpusonde.collector.workload.errors import (
    DATA_DEPENDENT_GRAPH,
    GRAPH_TOO_LARGE,
    INTERNAL,
    INVALID_REQUEST,
    MALFORMED_GRAPH,
    NO_EMBEDDING,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    UNSUPPORTED_GRAPH,
    WorkloadError,
)
from gpusonde.errors import (
    DataDependentGraphError,
    EncoderError,
    GraphError,
    GraphLimitError,
    MalformedGraphError,
    MissingEncoderError,
    ModelError,
    ModelFileError,
    UnknownEncoderError,
    UnsupportedGraphError,
)
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import Encoder, Registry, find_nearest
from gpusonde.predictor.workload.engine import (
    Cluster,
    EncoderReference,
    HostResources,
    Optimizer,
    Parallelism,
    WorkloadModel,
    WorkloadPrediction,
    WorkloadRequest,
)
from gpusonde.predictor.workload.graph import GraphLimits, WorkloadGraph, count_graph_cost, read_graph
from gpusonde.service import child
from gpusonde.simulator.steps import DataParallelModel

_KINDS = {
    GraphLimitError: GRAPH_TOO_LARGE,
    DataDependentGraphError: DATA_DEPENDENT_GRAPH,
    UnsupportedGraphError: UNSUPPORTED_GRAPH,
    MalformedGraphError: MALFORMED_GRAPH,
    GraphError: MALFORMED_GRAPH,
    ModelError: INVALID_REQUEST,
    EncoderError: INTERNAL,
    RecursionError: MALFORMED_GRAPH,
    MemoryError: OUT_OF_MEMORY,
}
# Of a cluster, what answers do not repeat.
_UNTOLD = ("environment", "link", "network_bytes_per_second")
_Value = TypeVar("_Value")
_Result = TypeVar("_Result")
_Graph: TypeAlias = "WorkloadGraph | WorkloadError"


class Model(Protocol):
    """Predicts times."""

    def predict(
        self, requests: Sequence[WorkloadRequest], *, regressor: str | None = None
    ) -> Sequence[WorkloadPrediction]:
        """See ``gpusonde.predictor.workload.engine``."""

    @property
    def encoder(self) -> EncoderReference | None:
        """The encoder whose embedding it has columns of; None where it has none."""


@dataclass(frozen=True)
class Parts:
    """What questions are answered with.

    Attributes:
        read: Reads a graph: content, "json", "onnx", "pt2" or nothing, limits.
        model: The model of a file, or the shipped one; and the folder of the encoders, one of which it may need.
        registry: The encoders of a folder.
        nearest: The architectures most like a graph, best first: name, family, similarity.
        family: Of an architecture; empty where nobody knows.
    """

    read: Callable[[bytes, str, GraphLimits], WorkloadGraph]
    model: Callable[[str, str], Model]
    registry: Callable[[str], Registry]
    nearest: Callable[[WorkloadGraph, Encoder, int], Sequence[tuple[str, str, float]]]
    family: Callable[[str], str]


class Answers:
    """Answers questions.

    Args:
        parts: What with.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def answer(self, question: Mapping[str, Any], contents: Sequence[bytes]) -> dict[str, Any]:
        """Answer one question: ``answers`` in the order of its rows, each a document or an error."""
        limits = GraphLimits(operations=question["max_operations"])
        read = functools.partial(self._read, limits, question["graph_time_limit_s"])
        graphs = [
            _caught(functools.partial(read, content, given["format"], given["name"]))
            for content, given in zip(contents, question["graphs"], strict=True)
        ]
        if question["kind"] == "predict":
            return {"answers": self._predict(question, graphs)}
        try:
            registered = self._parts.registry(question["embeddings"]).get(question["dataset_type"])
        except UnknownEncoderError as error:
            refusal = WorkloadError(NO_EMBEDDING, str(error), "dataset_type")
            return {"answers": [{"error": refusal.document()} for _ in question["rows"]], "encoder_sha256": ""}
        found = self._embed(Encoder(registered.weights), graphs, question["nearest_count"])
        return {
            "answers": [found[row["graph"]] for row in question["rows"]],
            "encoder_sha256": registered.sha256,
            "trained_steps": registered.trained_steps,
        }

    def _read(self, limits: GraphLimits, limit_s: float, content: bytes, kind: str, name: str) -> WorkloadGraph:
        with _time_limit(limit_s):
            graph = self._parts.read(content, kind, limits)
        return replace(graph, name=name) if name else graph

    def _embed(self, encoder: Encoder, graphs: Sequence[_Graph], nearest_count: int) -> list[dict[str, Any]]:
        def write(vector: Any, graph: _Graph) -> dict[str, Any]:
            values = [float(value) for value in _value(vector)]
            near = self._parts.nearest(_value(graph), encoder, nearest_count) if nearest_count else ()
            rows = [{"name": name, "family": family, "similarity": float(alike)} for name, family, alike in near]
            return {"embedding": {"values": values, "nearest": rows}}

        vectors = _each(graphs, lambda good: list(encoder.embed(good)))
        return [
            _document(_caught(functools.partial(write, vector, graph)))
            for vector, graph in zip(vectors, graphs, strict=True)
        ]

    def _predict(self, question: Mapping[str, Any], graphs: Sequence[_Graph]) -> list[dict[str, Any]]:
        rows = question["rows"]
        uses = {name: self._use(question["embeddings"], name) for name in {row["dataset_type"] for row in rows} if name}
        summaries = [_caught(functools.partial(_summary, graph)) for graph in graphs]
        requests = [_caught(functools.partial(_request, graphs[row["graph"]], row)) for row in rows]
        found: dict[int, WorkloadPrediction | WorkloadError] = {}
        model = _caught(functools.partial(self._model, question))
        if isinstance(model, WorkloadError):
            return [{"error": model.document()} for _ in rows]
        for regressor in {row["regressor"] for row in rows}:
            positions = [position for position, row in enumerate(rows) if row["regressor"] == regressor]
            predict = functools.partial(model.predict, regressor=regressor or None)
            found.update(zip(positions, _each([requests[position] for position in positions], predict), strict=True))
        return [
            _document(
                _caught(
                    functools.partial(
                        self._prediction,
                        requests[position],
                        found[position],
                        summaries[row["graph"]],
                        row,
                        uses.get(row["dataset_type"]),
                        model.encoder,
                    )
                )
            )
            for position, row in enumerate(rows)
        ]

    def _model(self, question: Mapping[str, Any]) -> Model:
        try:
            return self._parts.model(question["model"], question["embeddings"])
        except MissingEncoderError as error:
            text = "this collector lacks the encoder that its model was fitted with; its log says more"
            raise WorkloadError(NO_EMBEDDING, text, for_log=str(error)) from None
        except ModelFileError as error:
            text = "this collector's model cannot be used; its log says why"
            raise WorkloadError(INTERNAL, text, for_log=str(error)) from None

    def _use(self, folder: str, dataset_type: str) -> dict[str, Any]:
        try:
            registered = self._parts.registry(folder).get(dataset_type)
        except UnknownEncoderError:
            return {"dataset_type": dataset_type, "available": False}
        return {"dataset_type": dataset_type, "available": True, "encoder_sha256": registered.sha256}

    def _prediction(
        self,
        request: WorkloadRequest | WorkloadError,
        answered: WorkloadPrediction | WorkloadError,
        summary: dict[str, Any] | WorkloadError,
        row: Mapping[str, Any],
        use: Mapping[str, Any] | None,
        encoder: EncoderReference | None,
    ) -> dict[str, Any]:
        found = _value(answered)
        ends = found.seconds, found.low_s, found.high_s
        near = [
            {"name": name, "family": self._parts.family(name), "similarity": float(alike)}
            for name, alike in found.nearest
        ]
        epoch = None
        if row["samples_per_epoch"] is not None:
            iterations = _value(request).epoch_iterations(row["samples_per_epoch"])
            epoch = _interval(*(iterations * seconds for seconds in ends))
        return {
            "prediction": {
                "iteration_seconds": _interval(*ends),
                "epoch_seconds": epoch,
                "coverage": found.coverage,
                "regressor": found.regressor,
                "features": found.features,
                "out_of_distribution": found.out_of_distribution,
                "reasons": list(found.reasons),
                "nearest": near,
                "communication_ratio": found.communication_ratio,
                "embedding": None if use is None else _said_of(use, found.features, encoder),
                "graph": _value(summary),
                "cluster": {key: value for key, value in row["cluster"].items() if key not in _UNTOLD},
                **({} if found.memory is None else found.memory.document()),
            }
        }


def _request(graph: _Graph, row: Mapping[str, Any]) -> WorkloadRequest:
    given = row["cluster"]
    cluster = Cluster(
        given["device"],
        given["device_count"],
        given["node_count"],
        Precision(given["precision"]),
        Parallelism(given["parallelism"]),
        given["environment"],
        None if given["host"] is None else HostResources(**given["host"]),
        link=given["link"],
        network_bytes_per_second=given["network_bytes_per_second"],
    )
    return WorkloadRequest(_value(graph), row["batch_size"], cluster, Optimizer(row["optimizer"]))


def _said_of(use: Mapping[str, Any], features: str, encoder: EncoderReference | None) -> dict[str, Any]:
    """What an answer says of the embedding that was asked for: models have columns of one encoder's, or of none."""
    name = use["dataset_type"]
    fitted = encoder if "embedding" in features else None
    if not use["available"]:
        how = "from analytic features alone" if fitted is None else f"with {fitted}, as the model was fitted"
        return {**use, "note": f"there is no embedding for {name}: predicted {how}"}
    if fitted is None:
        return {**use, "note": f"the embedding for {name} is not used: predicted from counts of the graph alone"}
    if fitted == EncoderReference(name, use["encoder_sha256"]):
        return {**use, "note": ""}
    return {**use, "note": f"the embedding for {name} is not used: predicted with {fitted}, as the model was fitted"}


def _interval(value: float, low: float, high: float) -> dict[str, float]:
    if not all(map(math.isfinite, (value, low, high))):
        raise WorkloadError(INTERNAL, "the model's answer is no number")
    return {"value": float(value), "low": float(low), "high": float(high)}


def _summary(given: _Graph) -> dict[str, Any]:
    graph = _value(given)
    return {
        "name": graph.name,
        "front_end": graph.front_end,
        "operations": len(graph.operations),
        "parameters": graph.parameter_count,
        "flops_per_sample": float(count_graph_cost(graph).per_sample.flops),
        "notes": list(graph.notes),
    }


def _value(value: _Value | WorkloadError) -> _Value:
    if isinstance(value, WorkloadError):
        raise value
    return value


def _each(
    values: Sequence[_Value | WorkloadError], work: Callable[[list[_Value]], Sequence[_Result]]
) -> list[_Result | WorkloadError]:
    """Do work on all values at once; where that fails, on one after the other, so that only the bad ones fail."""
    good = [value for value in values if not isinstance(value, WorkloadError)]
    done: list[_Result | WorkloadError] = []
    try:
        done.extend(work(good) if good else ())
    except Exception:  # which of them it was is found out below
        done = [_caught(functools.partial(_first, work, value)) for value in good]
    results = iter(done)
    return [value if isinstance(value, WorkloadError) else next(results) for value in values]


def _first(work: Callable[[list[_Value]], Sequence[_Result]], value: _Value) -> _Result:
    return work([value])[0]


def _document(value: dict[str, Any] | WorkloadError) -> dict[str, Any]:
    return {"error": value.document()} if isinstance(value, WorkloadError) else value


def _caught(work: Callable[[], _Result]) -> _Result | WorkloadError:
    """Return what work returns, or why it does not: one question's fault is not that of the others."""
    try:
        return work()
    except WorkloadError as error:
        return error
    except Exception as error:  # whatever a stranger's graph brings about
        for known, kind in _KINDS.items():
            if isinstance(error, known):
                field = "graph" if isinstance(error, (GraphError, RecursionError)) else ""
                return WorkloadError(kind, str(error) or known.__name__, field)
        return WorkloadError(
            INTERNAL, f"{type(error).__name__}; see the collector's log", for_log=traceback.format_exc()
        )


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what takes more seconds of processor time."""

    def interrupt(*_: object) -> None:
        raise WorkloadError(OUT_OF_TIME, f"reading it took more than {seconds:g} s", "graph")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def make_parts() -> Parts:
    """Return them. A model is read once, and again when its file is another one; so are encoders."""
    models = functools.lru_cache(maxsize=2)(_load)
    families = zoo.families()
    return Parts(
        _read,
        lambda path, folder: models(path, folder, _identity(path)),
        functools.lru_cache(maxsize=4)(Registry),
        find_nearest,
        lambda name: families.get(name, ""),
    )


def load_model(path: str, embeddings: str | Path) -> WorkloadModel:
    """Return the model of a file with the encoder that it names, or the shipped one.

    Args:
        path: The file; empty for the shipped model.
        embeddings: Folder of the encoders.

    Raises:
        MissingEncoderError: Its encoder is not in that folder.
        ModelFileError: It is no model that can be used.
        OSError: It cannot be read.
    """
    return WorkloadModel.load(path, registry=Registry(embeddings)) if path else WorkloadModel.shipped()


def _load(path: str, folder: str, _: tuple[int, ...]) -> Model:
    return DataParallelModel(load_model(path, folder))


def _identity(path: str) -> tuple[int, ...]:
    if not path:
        return ()
    found = Path(path).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(content: bytes, kind: str, limits: GraphLimits) -> WorkloadGraph:
    return read_graph(content, kind or None, limits)


def make_answer(parts: Parts | None = None) -> child.Answer:
    """Return what answers in the child, which writes no files from then on.

    Args:
        parts: What with; the product's own by default.
    """
    answer = Answers(parts or make_parts()).answer
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def answer_bytes(data: bytes, _: float) -> bytes:
        return json.dumps(answer(*child.unpack(data)), allow_nan=False).encode()

    return answer_bytes

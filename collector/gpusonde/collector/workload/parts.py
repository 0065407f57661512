"""``make_parts``: the readers, the model and the encoders that questions are answered with."""

from __future__ import annotations

import functools
from pathlib import Path

from gpusonde.collector.workload.answering import Model, Parts
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding.nearest import nearest
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.predictor.workload.engine.model import WorkloadModel
from gpusonde.predictor.workload.graph.ir import WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.reading import read_graph


def make_parts() -> Parts:
    """Return them. A model is read once, and again when its file is another one; so are encoders."""
    models = functools.lru_cache(maxsize=2)(_load)
    families = zoo.families()
    return Parts(
        _read,
        lambda path, folder: models(path, folder, _identity(path)),
        functools.lru_cache(maxsize=4)(Registry),
        nearest,
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
    return load_model(path, folder)


def _identity(path: str) -> tuple[int, ...]:
    if not path:
        return ()
    found = Path(path).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(content: bytes, kind: str, limits: GraphLimits) -> WorkloadGraph:
    return read_graph(content, kind or None, limits)

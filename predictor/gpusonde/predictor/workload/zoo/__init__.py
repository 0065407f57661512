"""Graphs of well-known networks, taken from torchvision 0.28 (see ``LICENSE`` beside them), batch 1.

Images are 224 x 224, of ``inception_v3`` 299 x 299 (``inception_v3_224``: the same network on the smaller ones, without
its auxiliary head). ``transformer_encoder`` is that of BERT-base on 128 tokens, without its embeddings. Batches of
another size cost in proportion: ``graph.cost`` counts them. Keras networks at any image size are in ``zoo.keras``.
"""

from __future__ import annotations

from importlib import resources

from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.graph.graph_json import load_graph

__all__ = ["families", "family", "load", "names"]

_GRAPHS = "graphs"
_SUFFIX = ".json"


def names() -> tuple[str, ...]:
    """All networks, in alphabetical order."""
    return tuple(sorted(families()))


def families() -> dict[str, str]:
    """Family of every network, by its name.

    A family is one design in several sizes and variants. ResNeXt and Wide ResNet count as ResNets: they are its blocks
    with other groups and widths. GoogLeNet counts as an Inception, MobileNet and EfficientNet are one family each over
    their versions, RegNet X and Y and both Swins too.
    """
    found = {}
    for folder in (resources.files(__package__) / _GRAPHS).iterdir():
        if folder.is_dir():
            for file in folder.iterdir():
                if file.name.endswith(_SUFFIX):
                    found[file.name.removesuffix(_SUFFIX)] = folder.name
    return found


def family(name: str) -> str:
    """Family of a network.

    Args:
        name: One of ``names()``.

    Raises:
        KeyError: There is no such network.
    """
    return families()[name]


def load(name: str) -> WorkloadGraph:
    """Graph of a network.

    Args:
        name: One of ``names()``.

    Raises:
        KeyError: There is no such network.
    """
    path = resources.files(__package__) / _GRAPHS / family(name) / f"{name}{_SUFFIX}"
    return load_graph(path.read_bytes())

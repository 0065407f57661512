"""Graphs of well-known networks, for a batch of one: those of torchvision 0.28, and Keras networks at several sizes.

torchvision's (see ``LICENSE`` beside them) are for images of 224 x 224, ``inception_v3`` for 299 x 299
(``inception_v3_224``: the same network on the smaller ones, without its auxiliary head). ``transformer_encoder`` is
that of BERT-base on 128 tokens, without its embeddings. Keras networks are those that PROFET measured and their
relatives, each at the image sizes that it was measured at, with 10 classes for 32 pixels, 100 up to 128 and 1000
above. They are variants of networks that are there already, and not among ``names()``: who looks for networks like
another finds each design once. ``benchmarks/workload/make_zoo.py`` makes all of them. Batches of another size cost in
proportion: ``graph.cost`` counts them.
"""

from __future__ import annotations

from importlib import resources

from gpusonde.predictor.workload.graph import WorkloadGraph
from gpusonde.predictor.workload.graph.graph_json import load_graph

__all__ = ["families", "family", "keras_family", "keras_sizes", "load", "load_keras", "names"]

_GRAPHS = "graphs"
_KERAS = "keras"
_SUFFIX = ".json"


def names() -> tuple[str, ...]:
    """Return the names of all networks but those of Keras, in alphabetical order."""
    return tuple(sorted(families()))


def families() -> dict[str, str]:
    """Return the family of every network but those of Keras, by its name.

    A family is one design in several sizes and variants. ResNeXt and Wide ResNet count as ResNets: they are its blocks
    with other groups and widths. GoogLeNet counts as an Inception, MobileNet and EfficientNet are one family each over
    their versions, RegNet X and Y and both Swins too.
    """
    return _read_families(_GRAPHS)


def family(name: str) -> str:
    """Return the family of a network.

    Args:
        name: One of ``names()``.

    Raises:
        KeyError: There is no such network.
    """
    return families()[name]


def load(name: str) -> WorkloadGraph:
    """Return the graph of a network.

    Args:
        name: One of ``names()``.

    Raises:
        KeyError: There is no such network.
    """
    return _load(_GRAPHS, family(name), name)


def keras_sizes() -> dict[str, tuple[int, ...]]:
    """Return the image sizes in pixels at which the graph of each Keras network is there, ascending, by its name."""
    sizes: dict[str, list[int]] = {}
    for each in _read_families(_KERAS):
        name, _, size = each.rpartition("@")
        sizes.setdefault(name, []).append(int(size))
    return {name: tuple(sorted(sizes[name])) for name in sorted(sizes)}


def keras_family(name: str) -> str:
    """Return the family of a Keras network.

    Raises:
        KeyError: There is no such network.
    """
    return next(family for each, family in _read_families(_KERAS).items() if each.startswith(f"{name}@"))


def load_keras(name: str, image_size: int) -> WorkloadGraph:
    """Return the graph of a Keras network.

    Args:
        name: One of ``keras_sizes()``.
        image_size: Height and width of its images, pixels: one of its sizes.

    Raises:
        KeyError: There is no such network, or not at this size.
    """
    key = f"{name}@{image_size}"
    return _load(_KERAS, _read_families(_KERAS)[key], key)


def _read_families(collection: str) -> dict[str, str]:
    found = {}
    for folder in (resources.files(__package__) / collection).iterdir():
        if folder.is_dir():
            for file in folder.iterdir():
                if file.name.endswith(_SUFFIX):
                    found[file.name.removesuffix(_SUFFIX)] = folder.name
    return found


def _load(collection: str, family: str, name: str) -> WorkloadGraph:
    return load_graph((resources.files(__package__) / collection / family / f"{name}{_SUFFIX}").read_bytes())

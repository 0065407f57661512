"""``KnownNetworks``: the graphs of networks that a table of measurements only names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.graph import UnsupportedGraphError, WorkloadGraph
from gpusonde.predictor.workload.zoo import keras

_KERAS = "keras/"
_INPUT = re.compile(r"(\d{1,5})x(\d{1,5})x(\d{1,5})\b")
_CLASSES = re.compile(r"\b(\d{1,7}) classes\b")
# What keras/... rows were measured with where their description does not say: classes by the largest image size.
_CLASSES_BY_SIZE = ((32, 10), (128, 100))
_CLASSES_ELSE = 1000


@dataclass(frozen=True)
class Network:
    """A network that was found by its name.

    Attributes:
        graph: Its operations.
        architecture: Its name, the same for both frameworks, as that is what is held out together.
        family: Networks of one design.
    """

    graph: WorkloadGraph
    architecture: str
    family: str


class UnknownNetworkError(LookupError):
    """No graph is known for a network's name, or not at its image size; the message says which."""


class KnownNetworks:
    """Finds graphs by the names in tables of measurements: torchvision's, ``keras/...``, and the user's own.

    Args:
        own: Further networks by name; they go before the others. Their image size is taken to be the table's.
    """

    def __init__(self, own: Mapping[str, Network] | None = None) -> None:
        self._own = dict(own or {})
        self._found: dict[tuple[str, int | None, str], Network | UnknownNetworkError] = {}

    def find(self, name: str, image_size: int | None, description: str = "") -> Network:
        """The network of a row.

        Args:
            name: As in the table: "resnet50", "keras/VGG16".
            image_size: Height and width of its images, pixels, where the table says it.
            description: What the table says of the input, such as "3x64x64, 100 classes".

        Raises:
            UnknownNetworkError: Its graph is not known.
        """
        key = (name, image_size, description)
        if key not in self._found:
            try:
                self._found[key] = self._find(*key)
            except UnknownNetworkError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, UnknownNetworkError):
            raise found
        return found

    def _find(self, name: str, image_size: int | None, description: str) -> Network:
        if name in self._own:
            return self._own[name]
        search: Callable[[str, int | None, str], Network] = _keras if name.startswith(_KERAS) else _torchvision
        return search(name, image_size, description)


def _keras(name: str, image_size: int | None, description: str) -> Network:
    plain = name.removeprefix(_KERAS)
    if plain not in keras.names():
        raise UnknownNetworkError(f"{name}: no graph of this network")
    if image_size is None:
        raise UnknownNetworkError(f"{name}: no graph of this network without an image size")
    shape = _INPUT.search(description)
    classes = _CLASSES.search(description)
    try:
        graph = keras.build(
            plain,
            image_size,
            int(classes.group(1)) if classes else _usual_classes(image_size),
            channels=int(shape.group(1)) if shape else 3,
        )
    except UnsupportedGraphError as error:
        raise UnknownNetworkError(f"{name}: {error}") from error
    return Network(graph, plain.lower(), keras.family(plain))


def _torchvision(name: str, image_size: int | None, _description: str) -> Network:
    # A network that is not the same at two image sizes stands in the zoo under two names.
    known = [each for each in (name, f"{name}_{image_size}") if each in zoo.names()]
    if not known:
        raise UnknownNetworkError(f"{name}: no graph of this network")
    sizes = []
    for each in known:
        graph = zoo.load(each)
        sizes.append(graph.operations[0].output[-1])
        if image_size in (None, sizes[-1]):
            return Network(graph, name.lower(), zoo.family(each))
    raise UnknownNetworkError(f"{name}: its graph is for images of {sizes[0]} pixels, not {image_size}")


def _usual_classes(image_size: int) -> int:
    return next((classes for largest, classes in _CLASSES_BY_SIZE if image_size <= largest), _CLASSES_ELSE)

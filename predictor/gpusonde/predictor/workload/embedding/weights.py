"""The encoder's weights: named arrays with a description, and their file; names of dataset types such as "digits"."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import EncoderError, ModelError
from gpusonde.predictor.model_file import decode, encode
from gpusonde.predictor.workload.embedding.structure import MAXIMUM_REACH, SHAPE_FEATURE_COUNT
from gpusonde.predictor.workload.graph.ir import Primitive
from gpusonde.service.durable_files import write_durably

#: Characters of the longest name.
LONGEST = 64
# They name files: nothing that leads out of a folder, nothing that two file systems take for different names.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def check_dataset_type(name: str) -> str:
    """Return the name, if it is one.

    Raises:
        EncoderError: It is not.
    """
    if not is_dataset_type(name):
        shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
        raise EncoderError(
            f"{shown!r} names no dataset type: use 1 to {LONGEST} small letters, digits, '.', '_' and '-', "
            "the first one a letter or a digit"
        )
    return name


def is_dataset_type(name: str) -> bool:
    """Tell whether a text names a dataset type."""
    return len(name) <= LONGEST and _NAME.fullmatch(name) is not None


FORMAT = "gpusonde.graph_encoder/1"

Array = npt.NDArray[np.float32]

_MAXIMUM_FILE_BYTES = 16 << 20
_MAXIMUM_HIDDEN_SIZE = 512
_MAXIMUM_PRIMITIVES = 256
_MAXIMUM_PASSES = 16


class VirtualEdgeRule(str, Enum):
    """Which pairs of nodes virtual edges connect."""

    PAPER = "paper"
    """Eq. 4 as written: shortest paths of 1 < s <= s_max edges."""
    PUBLISHED_CODE = "published_code"
    """GHN-2's code: 1 <= s <= s_max, so that a neighbour is heard twice."""


@dataclass(frozen=True)
class EncoderDescription:
    """What an encoder is, and what it was trained on.

    Attributes:
        dataset_type: Kind of data that its training networks classified, such as "digits"; "" of an untrained one.
        hidden_size: Length of a node's state, and so of the embedding.
        maximum_steps: s_max of Eq. 4.
        virtual_edges: Which pairs virtual edges connect.
        passes: T of Eq. 3: traversals, each forward and backward.
        primitives: Names of the kinds of operations that it has an embedding for, in the order of its rows.
        training_steps: Steps that it was trained for; 0 of an untrained one.
        seed: What its first weights, and the order of its training, came from.
    """

    dataset_type: str = ""
    hidden_size: int = 32
    maximum_steps: int = 50
    virtual_edges: VirtualEdgeRule = VirtualEdgeRule.PAPER
    passes: int = 1
    primitives: tuple[str, ...] = field(default_factory=lambda: tuple(each.value for each in Primitive))
    training_steps: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        def check(sound: bool, problem: str) -> None:
            if not sound:
                raise EncoderError(f"an encoder's description is not sound: {problem}")

        check(isinstance(self.dataset_type, str) and len(self.dataset_type) <= 100, "its dataset type")
        for name, most in (
            ("hidden_size", _MAXIMUM_HIDDEN_SIZE),
            ("maximum_steps", MAXIMUM_REACH),
            ("passes", _MAXIMUM_PASSES),
        ):
            value = getattr(self, name)
            check(_is_count(value) and 1 <= value <= most, f"{name} must be 1 to {most}, not {_shorten(value)}")
        check(self.hidden_size % 2 == 0, f"hidden_size must be even, not {self.hidden_size}")
        check(_is_count(self.training_steps) and self.training_steps >= 0, "training_steps")
        check(self.seed is None or _is_count(self.seed), "seed")
        check(isinstance(self.virtual_edges, VirtualEdgeRule), "virtual_edges")
        names = self.primitives
        check(
            isinstance(names, tuple)
            and 0 < len(names) <= _MAXIMUM_PRIMITIVES
            and all(isinstance(name, str) and len(name) <= 100 for name in names)
            and len(set(names)) == len(names),
            "primitives",
        )
        check(Primitive.OTHER.value in names, f"primitives lack {Primitive.OTHER.value!r}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the arrays of such an encoder, in the order of the digest."""
        size, half = self.hidden_size, self.hidden_size // 2
        layers = {
            "shape.hidden": (size, SHAPE_FEATURE_COUNT),
            "shape.output": (size, size),
            "message.hidden": (half, size),
            "message.output": (size, half),
            "virtual.hidden": (half, size),
            "virtual.output": (size, half),
            "gru.input": (3 * size, size),
            "gru.state": (3 * size, size),
        }
        shapes: dict[str, tuple[int, ...]] = {"primitive": (len(self.primitives), size)}
        for name, shape in layers.items():
            shapes[f"{name}.weight"] = shape
            shapes[f"{name}.bias"] = shape[:1]
        return shapes | {"norm.weight": (size,), "norm.bias": (size,)}


@dataclass(frozen=True)
class EncoderWeights:
    """The weights of an encoder.

    Attributes:
        description: What they are.
        arrays: They themselves, by name; names and shapes are those of ``description.shapes()``.

    Raises:
        EncoderError: The arrays are not those, or not all numbers are finite.
    """

    description: EncoderDescription
    arrays: Mapping[str, Array]

    def __post_init__(self) -> None:
        shapes = self.description.shapes()
        if set(self.arrays) != set(shapes):
            different = sorted(set(self.arrays) ^ set(shapes))
            raise EncoderError(f"an encoder's arrays are not those of its description: {different[:5]}")
        for name, shape in shapes.items():
            array = self.arrays[name]
            if array.dtype != np.float32 or array.shape != shape:
                raise EncoderError(f"{name}: {array.dtype} {array.shape}; it must be float32 {shape}")
            if not np.isfinite(array).all():
                raise EncoderError(f"{name}: not all numbers are finite")

    @staticmethod
    def random(seed: int, description: EncoderDescription | None = None) -> EncoderWeights:
        """Make an untrained encoder: what training starts from, and the control beside every trained one.

        Args:
            seed: The same seed gives the same weights.
            description: Sizes; the dataset type and training steps of the result are those of an untrained one.
        """
        description = replace(description or EncoderDescription(), dataset_type="", training_steps=0, seed=seed)
        generator = np.random.default_rng(seed)
        arrays: dict[str, Array] = {}
        shapes = description.shapes()
        for name, shape in shapes.items():
            if name == "primitive":
                values = generator.standard_normal(shape)
            elif name.startswith("norm."):
                values = np.full(shape, float(name == "norm.weight"))
            else:
                layer = name.rpartition(".")[0]
                # A layer's inputs; a GRU cell draws by its state's size.
                inputs = description.hidden_size if layer.startswith("gru.") else shapes[f"{layer}.weight"][1]
                bound = 1 / math.sqrt(inputs)
                values = generator.uniform(-bound, bound, shape)
            arrays[name] = values.astype(np.float32)
        return EncoderWeights(description, arrays)

    @cached_property
    def sha256(self) -> str:
        """Digest of the description and of every array, whatever file they are in."""
        digest = hashlib.sha256(_encode(self.description))
        for name in self.description.shapes():
            digest.update(self.arrays[name].astype("<f4").tobytes())
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        """Return the content of a file of these weights."""
        return encode(_make_document(self.description), self.arrays)[0]

    def save(self, path: str | Path) -> None:
        """Write them; whoever reads the file meanwhile finds the old ones or the new.

        Raises:
            OSError: The file cannot be written.
        """
        write_durably(Path(path), self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> EncoderWeights:
        """Read a file of them.

        Raises:
            EncoderError: It is no such file, or is damaged.
            OSError: It cannot be read.
        """
        with Path(path).open("rb") as file:
            return EncoderWeights.from_bytes(file.read(_MAXIMUM_FILE_BYTES + 1))

    @staticmethod
    def from_bytes(content: bytes) -> EncoderWeights:
        """Read the content of a file of them. It may come from anybody: nothing in it is executed.

        Raises:
            EncoderError: It is not that, is damaged, or is larger than any encoder's.
        """
        try:
            file = decode(content, most_bytes=_MAXIMUM_FILE_BYTES)
        except ModelError as error:
            raise EncoderError(f"not a file of an encoder's weights: {error}") from error
        return EncoderWeights(_read_description(file.document), file.arrays)


def _shorten(value: object) -> str:
    """Cut the text of a value that a stranger's file may hold."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _make_document(description: EncoderDescription) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(description)}


def _encode(description: EncoderDescription) -> bytes:
    return json.dumps(_make_document(description), sort_keys=True, separators=(",", ":")).encode()


def _read_description(document: dict[str, Any]) -> EncoderDescription:
    if document.pop("format", None) != FORMAT:
        raise EncoderError(f"not an encoder's weights of format {FORMAT}")
    try:
        primitives, rule = document.pop("primitives"), VirtualEdgeRule(document.pop("virtual_edges"))
        # Anything but a list is refused by the description's own checks.
        names = tuple(primitives) if isinstance(primitives, list) else primitives
        return EncoderDescription(primitives=names, virtual_edges=rule, **document)
    except EncoderError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise EncoderError(f"an encoder's description is damaged: {_shorten(error)}") from error

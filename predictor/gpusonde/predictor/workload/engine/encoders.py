"""The encoder whose embedding a model has columns of: a model's file names it, and a registry has to have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpusonde.errors import EncoderError, MissingEncoderError
from gpusonde.predictor.workload.embedding import Encoder, EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry, name_checkpoint
from gpusonde.predictor.workload.graph import WorkloadGraph


@dataclass(frozen=True)
class EncoderReference:
    """Which encoder.

    Attributes:
        dataset_type: What its training networks classified, such as "digits".
        sha256: Digest of its weights, hexadecimal.
    """

    dataset_type: str
    sha256: str

    def __str__(self) -> str:
        return f"the encoder of {self.dataset_type} with the digest {self.sha256[:12]}"


class EncoderEmbedder:
    """Embeds networks with an encoder that a model's file can refer to.

    Args:
        weights: Of the encoder; their description names the dataset type.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        self.reference = EncoderReference(weights.description.dataset_type, weights.sha256)
        self._encoder = Encoder(weights)

    def __call__(self, graphs: Sequence[WorkloadGraph]) -> npt.NDArray[np.float64]:
        """Embed graphs, shape (n, size).

        Raises:
            GraphLimitError: One is larger than an encoder takes.
        """
        return self._encoder.embed(graphs)


def load_embedder(model: Path, reference: EncoderReference, registry: Registry) -> EncoderEmbedder:
    """Return what embeds for a model.

    Args:
        model: The model's file.
        reference: The encoder that it names.
        registry: Where that is looked for.

    Raises:
        MissingEncoderError: It is not there, or its file is damaged.
        OSError: A file cannot be read.
    """
    try:
        return EncoderEmbedder(registry.exact(reference.dataset_type, reference.sha256))
    except EncoderError as error:
        advice = (
            f"put its file {name_checkpoint(reference.dataset_type, reference.sha256)} into that folder, name the"
            " registry that has it, or fit the model again with an encoder that is there"
        )
        raise MissingEncoderError(
            str(model), f"the model was fitted with {reference}, which cannot be had: {error}; {advice}"
        ) from error

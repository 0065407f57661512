"""Encoders on the command line: by the type of data that they were trained for, in a registry, or as a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpusonde.cli.errors import CommandError
from gpusonde.cli.parsing import UsageError

if TYPE_CHECKING:
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.engine import EncoderEmbedder

_SUFFIX = ".npz"


def add_registry_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare ``--registry``."""
    parser.add_argument(
        "--registry", type=Path, metavar="DIR", help="encoders of 'gpusonde workload train', besides the shipped ones"
    )


def registry_of(args: argparse.Namespace) -> Registry | None:
    """The registry that was named; None where none was.

    Raises:
        UsageError: It is no folder.
    """
    from gpusonde.predictor.workload.embedding.registry import Registry

    if args.registry is None:
        return None
    if not args.registry.is_dir():
        # The shipped encoder would answer, and nothing would say that it is not the user's.
        raise UsageError(f"--registry {args.registry}: no such folder; 'gpusonde workload train --out' makes one")
    return Registry(args.registry)


def named_encoder(name: str, registry: Registry | None) -> EncoderEmbedder:
    """The encoder of a dataset type, or of a checkpoint's file.

    Raises:
        UsageError: A registry is given beside a file.
        CommandError: The file's encoder is an untrained one.
        gpusonde.predictor.workload.embedding.EmbeddingError: There is none of this name, or its file is damaged.
        OSError: The file cannot be read.
    """
    from gpusonde.predictor.workload.embedding import EncoderWeights
    from gpusonde.predictor.workload.embedding.registry import Registry
    from gpusonde.predictor.workload.engine import EncoderEmbedder

    if not name.endswith(_SUFFIX):
        return EncoderEmbedder((registry or Registry()).get(name).weights)
    if registry is not None:
        raise UsageError("--registry belongs to --encoder with the name of a dataset type, not with a file")
    weights = EncoderWeights.load(name)
    if not weights.description.dataset_type:
        raise CommandError(f"{name} holds an encoder that was never trained; 'gpusonde workload train' makes one")
    return EncoderEmbedder(weights)


def where_to_have(embedder: EncoderEmbedder) -> str:
    """What predicting with a model of this encoder needs, in words; nothing where the encoder is shipped."""
    from gpusonde.predictor.workload.embedding.registry import Registry, UnknownEncoderError, checkpoint_name

    reference = embedder.reference
    try:
        Registry().exact(reference.dataset_type, reference.sha256)
    except UnknownEncoderError:
        return (
            f"predictions need its encoder: 'predict --registry DIR' with the registry that has it, or its file"
            f" {checkpoint_name(reference.dataset_type, reference.sha256)} beside the model"
        )
    return ""

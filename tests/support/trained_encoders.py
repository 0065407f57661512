"""Encoders that say that they were trained, without any training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gpusonde.predictor.workload.embedding.registry import RegisteredEncoder, Registry
from gpusonde.predictor.workload.embedding.weights import EncoderWeights
from gpusonde.predictor.workload.training.options import TrainingOptions
from gpusonde.predictor.workload.training.result import Accuracy, TrainingResult


def encoder_weights(dataset_type: str = "tiny") -> EncoderWeights:
    """Random weights, the same each time."""
    untrained = EncoderWeights.random(0)
    description = dataclasses.replace(untrained.description, dataset_type=dataset_type, training_steps=1)
    return EncoderWeights(description, untrained.arrays)


def add_encoder(folder: Path, dataset_type: str = "tiny") -> RegisteredEncoder:
    """Register such an encoder."""
    return Registry(folder).add(encoder_weights(dataset_type))


def training_result(dataset_type: str = "tiny") -> TrainingResult:
    """What a training of one step could have said."""
    return TrainingResult(
        encoder=encoder_weights(dataset_type),
        options=TrainingOptions(steps=1),
        losses=(2.0,),
        skipped_networks=0,
        accuracy=Accuracy((0.5, 0.7)),
        untrained_accuracy=Accuracy((0.1, 0.1)),
        chance=0.1,
        seconds_per_step=0.5,
        dataset_sha256="00",
        versions={"gpusonde": "0"},
    )

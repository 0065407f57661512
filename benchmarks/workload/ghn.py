"""The hypernetwork: what training it on the digits gives, and whether nearest architectures are of the same family.

Loss: the mean cross-entropy of a step's six networks with predicted weights, each counted up to twice that of
guessing. Accuracy of unseen architectures: of 60 random networks with graphs that were not trained on, on 397 unseen
images.

Nearest architecture: of every network, the other one whose embedding has the highest cosine after centring; counted
is the share whose family is its own. No network of the zoo was trained on, and nothing was chosen by this figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from page import NotRunError, bar, percent

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import Encoder, EncoderWeights, Registry
from gpusonde.predictor.workload.embedding.nearest import ArchitectureIndex
from gpusonde.predictor.workload.embedding.structure import Floats

# Trainings are kept, and gone on with, from one call to the next.
_TRAININGS = Path(__file__).resolve().parents[2] / "build" / "workload" / "ghn"
_SEEDS = (0,)
_SHIPPED = "trained, as shipped"
_UNTRAINED_SEEDS = (0, 1, 2)
_READING = (
    "Training is not what makes this work: message passing with random weights keeps kinds of operations, shapes of "
    "weights and their order apart too."
)
_MOST_LOSS_RATIO, _LEAST_ACCURACY, _MOST_UNTRAINED, _LEAST_SAME_FAMILY = 0.6, 0.5, 0.15, 0.8
# What the source of the torchvision rows benchmarks: of seven modules of torchvision all networks of that time.
_FAMILIES = {"densenet", "mnasnet", "resnet", "shufflenet", "squeezenet", "vgg"}
_ALSO, _LATER = {"mobilenet_v2"}, {"resnext101_64x4d"}


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section."""
    lines = ["## The hypernetwork", ""]
    trained = _trained(args)
    shipped = Registry().get("digits")
    lines += _training_lines(args, trained, shipped.sha256)
    encoders = {_SHIPPED: shipped.weights}
    encoders |= {
        f"trained, seed {seed}": weights for seed, (weights, _) in trained.items() if weights.sha256 != shipped.sha256
    }
    encoders |= {f"untrained, seed {seed}": EncoderWeights.random(seed) for seed in _UNTRAINED_SEEDS}
    return lines + _nearest_lines(args, encoders)


def _trained(args: argparse.Namespace) -> dict[int, tuple[EncoderWeights, dict[str, Any]]]:
    """Encoders and what is known of them, by seed; those that were trained before are read."""
    from gpusonde.predictor.workload.training import TrainingOptions, digits, show_on

    options = TrainingOptions()
    if args.quick:
        options = dataclasses.replace(options, steps=4, architectures=8, held_out_architectures=4)
    found = {}
    for seed in _SEEDS:
        folder = _TRAININGS / f"{'quick-' if args.quick else ''}seed-{seed}"
        chosen = dataclasses.replace(options, seed=seed)
        if not (folder / "result.json").is_file():
            try:
                from gpusonde.predictor.workload.training import train
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                return {}
            with show_on(sys.stderr) as progress:
                train(digits(), chosen, folder, progress)
        document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if chosen.differences(document["options"]):
            raise NotRunError(f"{folder} holds a training with other options: remove it")
        found[seed] = EncoderWeights.load(folder / "encoder.safetensors"), document
    return found


def _training_lines(
    args: argparse.Namespace, trained: dict[int, tuple[EncoderWeights, dict[str, Any]]], shipped: str
) -> list[str]:
    if not trained:
        return ["Training: not run, it needs torch, which is not installed here.", ""]
    ratios = {}
    for seed, (_, each) in trained.items():
        curve = each["loss_means_of_50_steps"]
        ratios[seed] = curve[-1] / curve[0]
    weights, first = trained[_SEEDS[0]]
    ratio, accuracy = ratios[_SEEDS[0]], first["accuracy_of_unseen_architectures"]["mean"]
    untrained = first["accuracy_before_training"]["mean"]
    what = f"GHN on digits, {first['options']['steps']} steps, seed {_SEEDS[0]}"
    bar(args, f"{what}: last loss over first", "< 0.6", f"{ratio:.2f}", met=ratio < _MOST_LOSS_RATIO)
    bar(
        args, "predicted weights of unseen architectures", ">= 50 %", percent(accuracy), met=accuracy >= _LEAST_ACCURACY
    )
    bar(args, "the same, untrained", "<= 15 %", percent(untrained), met=untrained <= _MOST_UNTRAINED)
    same = "is" if weights.sha256 == shipped else "is not, bit for bit,"
    said = (
        f"Guessing has a loss of 2.30, and the commonest digit is {percent(first['accuracy_of_chance'])} of all. The "
        f"shipped encoder {same} that of seed {_SEEDS[0]}."
    )
    return [said, ""]


def _nearest_lines(args: argparse.Namespace, encoders: dict[str, EncoderWeights]) -> list[str]:
    families = zoo.families()
    names = zoo.names()
    script = {name for name in names if families[name] in _FAMILIES} - _LATER | _ALSO
    sets = {"source's networks": script, "whole zoo": set(names)}
    graphs = [zoo.load(name) for name in names]
    found: dict[str, dict[str, float]] = {which: {} for which in sets}
    for title, weights in encoders.items():
        embeddings = Encoder(weights).embed(graphs)
        for which, chosen in sets.items():
            right, wrong = _count_same_family(names, embeddings, families, chosen)
            found[which][title] = right / (right + wrong)
    said = {
        which: f"{percent(shares[_SHIPPED])}; untrained "
        + ", ".join(percent(share) for title, share in shares.items() if title.startswith("untrained"))
        for which, shares in found.items()
    }
    met = found["source's networks"][_SHIPPED] >= _LEAST_SAME_FAMILY
    bar(args, "nearest architecture of the same family, 32 networks", ">= 80 %", said["source's networks"], met=met)
    return [f"Nearest of the same family in the whole zoo, {len(names)} networks: {said['whole zoo']}. {_READING}", ""]


def _count_same_family(
    names: tuple[str, ...], embeddings: Floats, families: dict[str, str], chosen: Collection[str]
) -> tuple[int, int]:
    """How many networks have their nearest other one in their family, and how many do not."""
    places = [place for place, name in enumerate(names) if name in chosen]
    members = [families[names[place]] for place in places]
    index = ArchitectureIndex([names[place] for place in places], members, embeddings[places])
    right, wrong = 0, 0
    for place, family in zip(places, members, strict=True):
        if members.count(family) < 2:
            continue
        ((_, nearest_family, _),) = index.nearest(embeddings[place], 1, without={names[place]})
        if nearest_family == family:
            right += 1
        else:
            wrong += 1
    return right, wrong

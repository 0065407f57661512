"""The hypernetwork: what training it on the digits gives, and whether nearest architectures are of the same family."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from page import bar, percent, table

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import Encoder, EncoderWeights
from gpusonde.predictor.workload.embedding.nearest import ArchitectureIndex
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.predictor.workload.embedding.structure import Floats

# Trainings are kept, and gone on with, from one call to the next.
_TRAININGS = Path(__file__).resolve().parents[2] / "build" / "workload" / "ghn"
_SEEDS = (0, 1, 2)
_UNTRAINED_SEEDS = (0, 1, 2)
_MOST_LOSS_RATIO, _LEAST_ACCURACY, _MOST_UNTRAINED, _LEAST_SAME_FAMILY = 0.6, 0.5, 0.15, 0.8
# What the source of the torchvision rows benchmarks: of seven modules of torchvision all networks of that time.
_FAMILIES = {"densenet", "mnasnet", "resnet", "shufflenet", "squeezenet", "vgg"}
_ALSO, _LATER = {"mobilenet_v2"}, {"resnext101_64x4d"}


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section."""
    lines = ["## The hypernetwork", ""]
    results = _trained(args)
    shipped = Registry().get("digits")
    lines += _training_lines(args, results, shipped.sha256)
    encoders = {"trained, as shipped": shipped.weights}
    encoders |= {
        f"trained, seed {seed}": result.encoder
        for seed, result in results.items()
        if result.encoder.sha256 != shipped.sha256
    }
    encoders |= {f"untrained, seed {seed}": EncoderWeights.random(seed) for seed in _UNTRAINED_SEEDS}
    return lines + _nearest_lines(args, encoders)


def _trained(args: argparse.Namespace) -> dict[int, Any]:
    """Results by seed; none without torch."""
    try:
        from gpusonde.predictor.workload.embedding.training.trainer import train
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return {}
    from gpusonde.predictor.workload.embedding.training.datasets import digits
    from gpusonde.predictor.workload.embedding.training.options import TrainingOptions
    from gpusonde.predictor.workload.embedding.training.progress import shown_on

    options, seeds = TrainingOptions(), _SEEDS
    if args.quick:
        options, seeds = dataclasses.replace(options, steps=4, architectures=8, held_out_architectures=4), (0,)
    results = {}
    for seed in seeds:
        folder = _TRAININGS / f"{'quick-' if args.quick else ''}seed-{seed}"
        with shown_on(sys.stderr) as progress:
            results[seed] = train(digits(), dataclasses.replace(options, seed=seed), folder, progress)
    return results


def _training_lines(args: argparse.Namespace, results: dict[int, Any], shipped: str) -> list[str]:
    if not results:
        return ["Training: not run, it needs torch, which is not installed here.", ""]
    rows = []
    for seed, result in results.items():
        ratio = result.last_loss / result.first_loss
        rows.append(
            (
                seed,
                len(result.losses),
                f"{result.first_loss:.3f}",
                f"{result.last_loss:.3f}",
                f"{ratio:.2f}",
                percent(result.accuracy.mean),
                f"{percent(min(result.accuracy.shares))} to {percent(max(result.accuracy.shares))}",
                percent(result.untrained_accuracy.mean),
                result.skipped_networks,
                f"{result.seconds_per_step:.2f}",
            )
        )
    first = results[_SEEDS[0]]
    ratio, untrained = first.last_loss / first.first_loss, first.untrained_accuracy.mean
    met = ratio < _MOST_LOSS_RATIO
    bar(args, "GHN on digits, 600 steps, seed 0: last loss over first", "< 0.6", f"{ratio:.2f}", met=met)
    met = first.accuracy.mean >= _LEAST_ACCURACY
    bar(args, "predicted weights of unseen architectures", ">= 50 %", percent(first.accuracy.mean), met=met)
    bar(args, "the same, untrained", "<= 15 %", percent(untrained), met=untrained <= _MOST_UNTRAINED)
    columns = (
        "seed", "steps", "first 50 losses", "last 50", "ratio", "accuracy, unseen architectures", "worst to best",
        "untrained", "skipped networks", "seconds per step",
    )  # fmt: skip
    same = "is" if first.encoder.sha256 == shipped else "is not"
    return [
        *table(columns, rows),
        f"Guessing the commonest digit is right in {percent(first.chance)}. Seconds are wall time on the busy machine, "
        f"one thread. The shipped encoder {same} that of seed 0, bit for bit"
        + ("." if same == "is" else " (another processor or library rounds otherwise)."),
        "",
    ]


def _nearest_lines(args: argparse.Namespace, encoders: dict[str, EncoderWeights]) -> list[str]:
    families = zoo.families()
    names = zoo.names()
    script = {name for name in names if families[name] in _FAMILIES} - _LATER | _ALSO
    sets = {"source's networks": script, "whole zoo": set(names)}
    if (found := _in_the_file(args.data) & script) and found != script:
        sets = {"in the file": found, **sets}
    graphs = [zoo.load(name) for name in names]
    rows, missed, untrained = [], [], []
    for title, weights in encoders.items():
        embeddings = Encoder(weights).embed(graphs)
        cells = []
        for which, chosen in sets.items():
            right, wrong = _compared(names, embeddings, families, chosen)
            share = right / (right + len(wrong))
            cells.append(f"{right} of {right + len(wrong)} ({percent(share)})")
            if which == "source's networks":
                if title == "trained, as shipped":
                    trained = share
                elif title.startswith("untrained"):
                    untrained.append(share)
            if title == "trained, as shipped":
                missed.append(f"{which}: {'; '.join(wrong) or 'none'}")
        rows.append((title, *cells))
    said = f"{percent(trained)}; untrained {', '.join(map(percent, untrained))}"
    met = trained >= _LEAST_SAME_FAMILY
    bar(args, "nearest architecture of the same family, 32 networks", ">= 80 %", said, met=met)
    counts = ", ".join(f"{which} {len(chosen)} networks" for which, chosen in sets.items())
    return [
        f"Nearest architecture of the same family ({counts}; networks without a relative in it are not asked for):",
        "",
        *table(("encoder", *sets), rows),
        "Misses of the shipped encoder (network > nearest). " + ". ".join(missed).capitalize() + ".",
        "",
    ]


def _in_the_file(path: Path) -> set[str]:
    """Networks of the table; none without one."""
    if not path.is_file():
        return set()
    with path.open(encoding="utf-8", newline="") as file:
        return {row["model"] for row in csv.DictReader(file)}


def _compared(
    names: tuple[str, ...], embeddings: Floats, families: dict[str, str], chosen: Collection[str]
) -> tuple[int, list[str]]:
    """How many networks have their nearest other one in their family, and what was nearest to the rest."""
    places = [place for place, name in enumerate(names) if name in chosen]
    members = [families[names[place]] for place in places]
    index = ArchitectureIndex([names[place] for place in places], members, embeddings[places])
    right, wrong = 0, []
    for place, family in zip(places, members, strict=True):
        if members.count(family) < 2:
            continue
        ((name, nearest_family, _),) = index.nearest(embeddings[place], 1, without={names[place]})
        if nearest_family == family:
            right += 1
        else:
            wrong.append(f"{names[place]} > {name}")
    return right, wrong

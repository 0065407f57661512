"""Measured step times of Sia's and Pollux' artifacts: six networks on placements of five clusters, from ../shared/data.

The rows have no licence: they score, nothing that ships is fitted on them.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).resolve().parents[2].parent / "shared/data/distributed/scaling.csv"
# File of the artifacts -> GPU. "azure" does not name its GPU; "dgx-ext" is extrapolated and left out.
CLUSTERS = {"aws": "T4", "dgx": "A100", "rtx": "RTX 2080 Ti", "quad": "RTX 6000", "azure": "unnamed"}


@dataclass(frozen=True)
class StepTime:
    """One measured configuration: the median over the rows that agree in everything.

    Attributes:
        network: Which network is trained.
        cluster: Key of ``CLUSTERS``.
        nodes: GPUs on each machine, most first; machines are alike, so that their order does not matter.
        batch_size: Samples per GPU and step.
        step_s: Seconds of a step.
    """

    network: str
    cluster: str
    nodes: tuple[int, ...]
    batch_size: int
    step_s: float

    @property
    def world_size(self) -> int:
        """GPUs in all."""
        return sum(self.nodes)


Configuration = tuple[str, str, tuple[int, ...], int]  # network, cluster, nodes, batch size


def read(path: Path = FILE) -> list[StepTime]:
    """Return the configurations of the ``placements`` files; ``scalability`` repeats them.

    Raises:
        FileNotFoundError: The file is absent.
    """
    return [StepTime(*key, statistics.median(each)) for key, each in sorted(measurements(path).items())]


def measurements(path: Path = FILE) -> dict[Configuration, list[float]]:
    """Return the seconds of a step that each configuration was measured at.

    Raises:
        FileNotFoundError: The file is absent.
    """
    seconds: dict[Configuration, list[float]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if not row["source"].startswith("siasosp23/"):
                continue
            kind, _, cluster = row["source"].split()[-1].partition("-")
            if kind != "placements" or cluster not in CLUSTERS or not row["step_time_s"]:
                continue
            nodes = tuple(sorted((int(digit) for digit in row["placement"].partition(".")[0]), reverse=True))
            key = (row["workload"], cluster, nodes, round(float(row["local_bsz"])))
            seconds[key].append(float(row["step_time_s"]))
    return seconds


def halves(placements: Sequence[tuple[int, ...]], half: int | np.random.Generator) -> tuple[list, list]:
    """Known and unseen placements: every second one, from the first (0) or the second on (1), or half of them drawn."""
    chosen = range(len(placements))[half::2] if isinstance(half, int) else half.permutation(len(placements))[::2]
    known = set(map(int, chosen))
    return (
        [each for place, each in enumerate(placements) if place in known],
        [each for place, each in enumerate(placements) if place not in known],
    )


def probe_places(batch_sizes: list[int]) -> list[int]:
    """Return which of increasing batch sizes are probed: those nearest to four that are spread geometrically."""
    least, most = batch_sizes[0], batch_sizes[-1]
    targets = [least * (most / least) ** (step / 3) for step in range(4)]
    near = {min(range(len(batch_sizes)), key=lambda k: max(batch_sizes[k] / t, t / batch_sizes[k])) for t in targets}
    return sorted(near)

"""A small job and what can be rented for it, as documents."""

from __future__ import annotations

from copy import deepcopy
from typing import Any


def probes(seconds_per_sample: float, launch_s: float = 0.004) -> list[dict[str, float]]:
    """Timed steps of a device that computes so fast."""
    return [
        {"batch_size": size, "total_s": launch_s + size * seconds_per_sample, "spread": 0.02}
        for size in (4, 16, 64, 256)
    ]


def measurements(fabric: str, bytes_per_second: float, worlds: tuple[int, ...] = (2, 4, 8)) -> list[dict[str, Any]]:
    """Timed allreduces on a network of that bus bandwidth."""
    return [
        {
            "fabric": fabric,
            "transfer_bytes": float(size),
            "world_size": world,
            "seconds": 1e-4 + 2.0 * size * (world - 1) / (world * bytes_per_second),
        }
        for world in worlds
        for size in (1 << 16, 1 << 20, 1 << 23, 1 << 26)
    ]


_PROBLEM: dict[str, Any] = {
    "format": "gpusonde.problem/1",
    "name": "small",
    "objective": "cost",
    "global_batch": 256,
    "iterations": 20_000,
    "deadline_s": 7200.0,
    "job": {
        "curves": [
            {"device": "T4", "largest_batch": 128, "probes": probes(0.003)},
            {"device": "V100-SXM2-16GB", "largest_batch": 256, "probes": probes(0.001)},
        ],
        "gradients": {"parameter_bytes": 1e7},
        "allreduce": measurements("slow", 1e9) + measurements("fast", 4e9),
    },
    "offers": [
        {"name": "t4", "device": "T4", "quota": 16, "usd_per_hour": 0.5, "fabric": "slow"},
        {"name": "v100", "device": "V100-SXM2-16GB", "quota": 8, "usd_per_hour": 2.5, "fabric": "fast"},
    ],
}


def small_problem(**changes: Any) -> dict[str, Any]:
    """A problem with a plan; keys can be replaced, and removed with None."""
    document = deepcopy(_PROBLEM) | changes
    return {key: value for key, value in document.items() if value is not None}

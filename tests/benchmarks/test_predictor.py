"""The benchmark of predictions across GPUs in a small form, over gRPC too, without hitting a limit of rates."""

from __future__ import annotations

from pathlib import Path

from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.catalog import load_gpus
from gpusonde.predictor.crossgpu import read_runs

BENCHMARKS = ("predictor",)


def test_queries_are_timed_in_process_and_over_grpc(module, tmp_path: Path) -> None:
    runs = read_runs(write_runs(tmp_path / "runs.csv", synthetic_runs()))
    every = len(load_gpus().specs)
    # More than the 100 questions that a collector takes of a caller in a second, on any machine that is not slow.
    found = module("queries").measure_queries(runs, count=120)
    assert [(name.partition(",")[0], targets) for name, targets, *_ in found] == [
        ("in process", 1), ("in process", every), ("gRPC on loopback", 1), ("gRPC on loopback", every),
    ]  # fmt: skip
    for _, _, median, high, worst, mean, count in found:
        assert 0 < median <= high <= worst
        assert 0 < mean <= worst
        assert count == 120

"""The benchmark of predictions across GPUs in a small form, over gRPC too, without hitting a limit of rates."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.catalog import load_gpus
from gpusonde.predictor.crossgpu import read_runs

FOLDER = Path(__file__).parents[2] / "benchmarks" / "predictor"


def test_queries_are_timed_in_process_and_over_grpc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    try:
        queries = importlib.import_module("queries")
        runs = read_runs(write_runs(tmp_path / "runs.csv", synthetic_runs()))
        every = len(load_gpus().specs)
        # More than the 100 questions that a collector takes of a caller in a second, on any machine that is not slow.
        found = queries.measure_queries(runs, count=120)
    finally:
        for name in set(sys.modules) - before:
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
    assert [(name.partition(",")[0], targets) for name, targets, *_ in found] == [
        ("in process", 1), ("in process", every), ("gRPC on loopback", 1), ("gRPC on loopback", every),
    ]  # fmt: skip
    for _, _, median, high, worst, mean, count in found:
        assert 0 < median <= high <= worst
        assert 0 < mean <= worst
        assert count == 120

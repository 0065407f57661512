from __future__ import annotations

from pathlib import Path

import pytest
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.catalog import GpuCatalog, load_gpus
from gpusonde.predictor.crossgpu import LatencyModel, ModelSettings, RunsTable, read_runs
from gpusonde.predictor.crossgpu.regression import ResidualSettings

SMALL = ModelSettings(residual=ResidualSettings(trees=40, learning_rate=0.2, depth=4, threads=1))


@pytest.fixture(scope="session")
def gpus() -> GpuCatalog:
    return load_gpus()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunsTable:
    return read_runs(write_runs(tmp_path_factory.mktemp("runs") / "runs.csv", synthetic_runs()))


@pytest.fixture(scope="session")
def small_settings() -> ModelSettings:
    return SMALL


@pytest.fixture(scope="session")
def model(runs: RunsTable) -> LatencyModel:
    return LatencyModel(SMALL).fit(runs)


@pytest.fixture(scope="session")
def shared_runs_path() -> Path:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "cross_gpu" / "hardware_metrics_runs.csv"
    if not path.exists():
        pytest.skip(f"the measured runs are not here: {path}")
    return path

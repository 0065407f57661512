"""What works on a GPU host with the bare ``gpusonde``, and what says which extra it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.telemetry import Trace, write_trace

CLI = ("scipy", "safetensors", "rich")
ABSENT = (*CLI, "sklearn", "pandas", "catboost", "xgboost", "pyarrow", "matplotlib", "grpc_health", "grpc_reflection")


def bare(*arguments: str, having: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a subcommand in a process that has none of the extras but what is named."""
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({[name for name in ABSENT if name not in having]!r}))\n"
        "from gpusonde.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=200, check=False
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bare") / "trace.csv"
    write_trace(Trace(np.arange(50) * 0.1, {"gpu_utilization": np.ones(50)}, gpu_model="Tesla T4"), path)
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["gpus", "T4"],
        ["offers", "--gpu", "T4"],
        ["metrics"],
        ["token", "new", "--role", "agent"],
        ["agent", "--check-config"],
        ["agent", "--print-config", "--json"],
    ],
)
def test_tables_and_configuration_need_no_extra(arguments: list[str]) -> None:
    answer = bare(*arguments)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout


def test_recording_needs_no_extra(trace: Path, tmp_path: Path) -> None:
    answer = bare("record", str(tmp_path / "copy.csv"), "--replay", str(trace), "--speed", "100", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["ticks"] == 50


def test_recording_parquet_names_the_package(trace: Path, tmp_path: Path) -> None:
    answer = bare("record", str(tmp_path / "copy.parquet"), "--replay", str(trace), "--speed", "100")
    assert answer.returncode == 1
    assert f"{tmp_path / 'copy.parquet'}: Parquet files need pyarrow: pip install pyarrow" in answer.stderr


@pytest.mark.parametrize(
    "arguments", [["runs"], ["epochs", "--latest"], ["jobs"], ["fleet", "list"], ["fleet", "hosts"]]
)
def test_asking_a_collector_needs_no_extra(arguments: list[str]) -> None:
    answer = bare(*arguments, "--collector", "127.0.0.1:1")
    assert answer.returncode == 1
    assert "127.0.0.1:1" in answer.stderr
    assert "pip install" not in answer.stderr


PROBLEM = """
format = "gpusonde.problem/1"
global_batch = 256
epochs = 1
samples_per_epoch = 1281167
[job]
curves = [{ device = "T4", probes = [{ batch_size = 32, total_s = 0.2 }, { batch_size = 64, total_s = 0.4 }] }]
gradients = { parameter_bytes = 102_000_000 }
[[catalog]]
gpus = ["T4"]
regions = ["us-east-1"]
quota = 4
largest_batch = 64
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["detect", "TRACE", "--json"],
        ["predict", "--trace", "TRACE", "--epoch-s", "5", "--targets", "A100", "--json"],
        ["workload", "predict", "zoo:resnet18", "--target-gpus", "T4", "--batch-size", "32", "--json"],
        ["workload", "embed", "zoo:resnet18", "--json"],
        ["plan", "solve", "PROBLEM", "--json"],
    ],
)
def test_the_small_extra_answers_without_a_collector(arguments: list[str], trace: Path, tmp_path: Path) -> None:
    problem = tmp_path / "problem.toml"
    problem.write_text(PROBLEM)
    words = {"TRACE": str(trace), "PROBLEM": str(problem)}
    answer = bare(*(words.get(word, word) for word in arguments), having=CLI)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)


def test_a_picture_names_its_extra(trace: Path, tmp_path: Path) -> None:
    answer = bare("detect", str(trace), "--plot", str(tmp_path / "x.png"), having=CLI)
    assert answer.returncode == 1
    assert "pip install 'gpusonde[plot]'" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["detect", "TRACE"], "cli"),
        (["predict", "--trace", "TRACE", "--epoch-s", "5"], "cli"),
        (["train", "TABLE", "--out", "m"], "collector"),
        (["collector", "--listen", "127.0.0.1:0", "--store", "STORE"], "collector"),
        (["demo"], "collector"),
    ],
)
def test_the_rest_says_which_extra_to_install(arguments: list[str], extra: str, trace: Path, tmp_path: Path) -> None:
    table = write_runs(tmp_path / "runs.csv", synthetic_runs())
    words = {"TRACE": str(trace), "STORE": str(tmp_path / "store"), "TABLE": str(table)}
    answer = bare(*(words.get(word, word) for word in arguments))
    assert answer.returncode == 1
    assert f"pip install 'gpusonde[{extra}]'" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1, answer.stderr

"""``gpusonde predict`` and ``train`` without a collector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.main import main
from gpusonde.telemetry import Trace, write_trace

RUNS = Path(__file__).parents[3] / "shared" / "data" / "cross_gpu" / "hardware_metrics_runs.csv"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def test_a_trace_is_predicted_on_the_targets_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "predict", "--trace", str(bundled_trace()), "--targets", "A10G,V100,Tesla T4")
    assert code == 0
    rows = answer["predictions"]
    assert [row["gpu_model"] for row in rows] == ["A10G", "V100-SXM2-16GB", "T4"]
    assert answer["source_gpu_model"] == "T4"
    assert any("V100: taken for V100-SXM2-16GB" in note for note in answer["notes"])
    for row in rows:
        assert row["epoch_latency_low_s"] < row["epoch_latency_s"] < row["epoch_latency_high_s"]
        assert row["interval_coverage"] == 0.9
    assert rows[0]["epoch_latency_s"] < rows[2]["epoch_latency_s"] == pytest.approx(17.4, rel=0.03)


def test_all_gpus_of_the_catalogue_are_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    from gpusonde.catalog import load_gpus

    _, answer = run_json(capsys, "predict", "--trace", str(bundled_trace()), "--epoch-s", "20")
    assert {row["gpu_model"] for row in answer["predictions"]} == {spec.name for spec in load_gpus().specs}
    assert answer["source_epoch_latency_s"] == 20


def test_idle_around_the_job_does_not_change_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpusonde.telemetry import read_trace

    trimmed = tmp_path / "trimmed.parquet"
    write_trace(read_trace(bundled_trace()).window(10.0, 245.0), trimmed)
    latencies = [
        run_json(capsys, "predict", "--trace", str(path), "--targets", "A10G")[1]["predictions"][0]["epoch_latency_s"]
        for path in (bundled_trace(), trimmed)
    ]
    assert latencies[0] == pytest.approx(latencies[1], rel=1e-3)


def test_an_epoch_latency_alone_is_predicted_from_static_figures(capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*more: str) -> dict[str, Any]:
        question = ("predict", "--gpu-model", "Tesla T4", "--epoch-s", "20", "--targets", "A100-SXM4-40GB,P100", *more)
        code, answer = run_json(capsys, *question)
        assert code == 0
        return answer

    plain, mixed = asked(), asked("--precision", "mixed")
    assert plain["source_epoch_latency_s"] == 20
    a100, p100 = plain["predictions"]
    assert (a100["method"], a100["status"]) == ("prior only, static", "extrapolated")
    assert "gpu_utilization" in a100["reason"]
    assert a100["epoch_latency_s"] < p100["epoch_latency_s"]
    # P100 has no tensor cores to lose to.
    assert mixed["predictions"][1]["epoch_latency_s"] > p100["epoch_latency_s"]
    assert "mixed" in mixed["predictions"][0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of"),
        (["--gpu-model", "T4"], "give one of"),
        (["--gpu-model", "T4", "--epoch-s", "3", "--gpu", "0"], "--gpu belongs to --trace"),
        (["--runs", "a", "--row", "1", "--precision", "fp64"], "--precision belongs to --trace"),
        (["--trace", "a", "--runs", "b"], "give one of"),
        (["--runs", "b"], "--row"),
        (["--run", "x"], "--collector"),
        (["--trace", "a", "--row", "1"], "--row belongs to --runs"),
        (["--runs", "a", "--row", "1", "--gpu-model", "T4"], "--gpu-model belongs to --trace"),
        (["--trace", "a", "--targets", "T4,,A10G"], "empty name"),
        (["--trace", "a", "--epoch-s", "-3"], "not above zero"),
        (["--run", "x", "--collector", "nowhere"], "HOST:PORT"),
        (["--trace", "a", "--model", "m", "--collector", "h:1"], "exclude"),
    ],
)
def test_contradictory_options_are_usage_errors(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_gpu_nobody_knows_gets_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "predict", "--trace", str(bundled_trace()), "--targets", "A10GX")
    assert code == 1
    assert answer["error"]["type"] == "UnknownGpuError"
    assert "A10G" in answer["error"]["message"]


def test_a_trace_that_does_not_name_its_gpu_needs_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "anonymous.csv"
    write_trace(Trace(np.arange(100) * 0.1, {"gpu_utilization": np.ones(100)}), path)
    code, answer = run_json(capsys, "predict", "--trace", str(path), "--targets", "T4", "--epoch-s", "5")
    assert code == 1
    assert "--gpu-model" in answer["error"]["message"]
    assert answer["error"]["file"] == str(path)


def test_a_trace_without_epochs_asks_for_their_duration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flat.csv"
    write_trace(Trace(np.arange(600) * 0.1, {"gpu_utilization": np.ones(600)}), path)
    code, answer = run_json(capsys, "predict", "--trace", str(path), "--gpu-model", "T4", "--targets", "A10G")
    assert code == 1
    assert "--epoch-s" in answer["error"]["message"]
    assert answer["error"]["file"] == str(path)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not a model")
    code, answer = run_json(
        capsys, "predict", "--trace", str(bundled_trace()), "--targets", "A10G", "--model", str(path)
    )
    assert code == 1
    assert answer["error"]["type"] == "ModelFileError"
    assert str(path) in answer["error"]["message"]


def test_a_folder_that_holds_no_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("predict", "--gpu-model", "T4", "--epoch-s", "9", "--targets", "A10G", "--model", str(tmp_path))
    code, answer = run_json(capsys, *question)
    assert code == 1
    assert str(tmp_path) in answer["error"]["message"]


def test_a_file_that_is_no_runs_table_is_refused_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,batchsize\nAlexNet,32\n")
    code, answer = run_json(capsys, "train", str(path), "--out", str(tmp_path / "m"))
    assert code == 1
    assert answer["error"]["file"] == str(path)
    assert answer["error"]["field"]
    assert not (tmp_path / "m").exists()


@pytest.mark.shared_data
@pytest.mark.skipif(not RUNS.is_file(), reason="../shared/data is absent")
def test_a_row_of_the_runs_table_is_predicted_beside_the_measured_latency(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "predict", "--runs", str(RUNS), "--row", "259", "--targets", "A10G,P100")
    assert code == 0
    assert answer["source_gpu_model"] == "T4"
    for row in answer["predictions"]:
        assert row["measured_epoch_latency_s"] > 0
        assert row["relative_error"] == pytest.approx(row["epoch_latency_s"] / row["measured_epoch_latency_s"] - 1)
    assert main(["predict", "--runs", str(RUNS), "--row", "99999"]) == 1

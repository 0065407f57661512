"""``gpusonde predict`` and ``train`` without a collector."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.catalog import Precision
from gpusonde.cli.commands.predict import PRECISIONS
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.exchange_rates import FORMATS, ExchangeRates
from gpusonde.cli.main import main
from gpusonde.cli.measuring import Predictions
from gpusonde.cli.output import Screen
from gpusonde.errors import CommandError
from gpusonde.predictor.crossgpu import LatencyPrediction
from gpusonde.telemetry import Trace, write_trace

RUNS = Path(__file__).parents[3] / "shared" / "data" / "cross_gpu" / "hardware_metrics_runs.csv"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def test_a_trace_is_predicted_on_the_targets_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "predict", "--trace", str(bundled_trace()), "--targets", "A10G,V100,Tesla T4,T4")
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


def test_a_job_on_eight_gpus_is_predicted_on_four_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("predict", "--gpu-model", "8xV100-SXM2-16GB", "--epoch-s", "600", "--targets", "4xT4,T4,2x8xT4@100gbit")
    code, answer = run_json(capsys, *question)
    assert code == 0
    assert (answer["source_gpu_count"], answer["source_host_count"]) == (8, 1)
    four, eight, sixteen = answer["predictions"]
    assert [(row["gpu_count"], row["host_count"]) for row in answer["predictions"]] == [(4, 1), (8, 1), (16, 2)]
    assert four["epoch_latency_s"] > eight["epoch_latency_s"] > sixteen["epoch_latency_s"]
    assert 0 < eight["communication_ratio"] < 1
    assert main([*question]) == 0
    shown = capsys.readouterr().out
    assert "one epoch takes 600 s on 8xV100-SXM2-16GB" in shown
    assert "2x8xT4@pcie@100gbit" in shown
    assert (four["link"], four["network_bytes_per_second"]) == ("pcie", None)
    assert sixteen["network_bytes_per_second"] == 1.25e10
    code, answer = run_json(capsys, "predict", "--gpu-model", "8xT4", "--epoch-s", "9", "--targets", "0xT4")
    assert (code, "1 to 100000 GPUs" in str(answer["error"])) == (1, True)


def test_why_a_target_has_no_answer_is_said_first_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    static = ("--gpu-model", "8xV100", "--epoch-s", "3600")
    assert main(["predict", *static, "--targets", "4xA100,16xH100,T4,8xL4"]) == 0
    remarks = capsys.readouterr().out.partition("16xH100-SXM5-80GB: ")[2].splitlines()
    assert remarks[0].endswith("holds more than 8; spread them over hosts, for example 2x8xH100-SXM5-80GB")
    assert remarks[-3].endswith("more of this kind: ask for fewer GPUs (--targets) or --json")


def test_a_matrix_says_how_many_of_one_gpu_replace_one_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    question = [
        "predict",
        "--gpu-model",
        "2xT4",
        "--epoch-s",
        "20",
        "--targets",
        "2xT4,4xV100-SXM2-16GB,P100",
        "--matrix",
    ]
    code, answer = run_json(capsys, *question)
    assert code == 0
    found = answer["exchange_rates"]
    counts = {(each["gpu_model"], each["by_gpu_model"]): each for each in found["replacements"]}
    names = ("T4", "V100-SXM2-16GB", "P100-PCIe-16GB")
    assert set(counts) == {(a, b) for a in names for b in names if a != b}
    four = next(row for row in answer["predictions"] if row["gpu_count"] == 4)
    assert found["own_gpu_model"] == "T4"
    assert found["rates"]["V100-SXM2-16GB"]["rate"] == pytest.approx(20 * 2 / (four["epoch_latency_s"] * 4), rel=0.01)
    for (a, b), each in counts.items():
        assert each["low"] < each["count"] < each["high"]
        assert each["count"] * counts[b, a]["count"] == pytest.approx(1, rel=0.02)
    # A -> B -> C is A -> C.
    through = counts["T4", "V100-SXM2-16GB"]["count"] * counts["V100-SXM2-16GB", "P100-PCIe-16GB"]["count"]
    assert through == pytest.approx(counts["T4", "P100-PCIe-16GB"]["count"], rel=0.02)
    shown = {}
    for form in ("table", "csv", "kueue", "slurm"):
        assert main([*question, form]) == 0
        shown[form] = capsys.readouterr().out
    assert "V100-SXM2-16GB" in shown["table"]
    assert shown["csv"].splitlines()[0] == "gpu_model,by_gpu_model,count,low,high,extrapolated,left_out"
    assert len(shown["csv"].splitlines()) == 1 + len(counts)
    assert json.loads(shown["kueue"]) == {"exchange_rates": found["rates"]}
    rate = found["rates"]["V100-SXM2-16GB"]["rate"]
    assert f'TRESBillingWeights="GRES/gpu:t4=1,GRES/gpu:v100_sxm2_16gb={rate:g},' in shown["slurm"]


@pytest.mark.parametrize("targets", ["4xA100-SXM4-40GB,8xA100-SXM4-40GB", "8xT4", "2xT4@pcie,2x1xT4", "P100,4xP100"])
def test_a_matrix_takes_one_placement_of_each_gpu(targets: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("predict", "--gpu-model", "2xT4", "--epoch-s", "20", "--targets", targets, "--matrix", "csv")
    code, answer = run_json(capsys, *question)
    assert code == 1
    assert "one placement for each GPU" in str(answer["error"])


def test_a_gpu_that_cannot_hold_the_job_is_worth_nothing_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"A10G": ("yes", 10.0), "P100": ("no", 15.0), "T4": ("yes", 20.0)}
    rows = [
        LatencyPrediction(gpu, seconds, seconds / 2, seconds * 2, 0.9, "ok", False, "prior", "", "model", fits=fits)
        for gpu, (fits, seconds) in answers.items()
    ]
    rates = ExchangeRates.from_predictions("T4", 20.0, 1, [*rows, rows[0]])
    assert list(rates.rates()) == ["A10G"]
    for form in FORMATS:
        rates.render(Screen(sys.stdout), form)
        out, err = capsys.readouterr()
        # Schedulers take the last two as they are.
        assert "P100" in (out if form in ("table", "csv") else err)
        assert "does not hold the job" in (out if form in ("table", "csv") else err)
        assert form in ("table", "csv") or "P100" not in out


@pytest.mark.parametrize("form", FORMATS)
def test_where_no_other_gpu_holds_the_job_the_matrix_is_no_empty_table(form: str) -> None:
    row = LatencyPrediction("P100", 15.0, 9.0, 25.0, 0.9, "ok", False, "prior", "", "model", fits="no")
    with pytest.raises(CommandError, match="T4 for: P100: the memory does not hold the job"):
        ExchangeRates.from_predictions("T4", 20.0, 1, [row]).render(Screen(sys.stdout), form)


def test_a_matrix_says_which_gpus_were_refused_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("predict", "--gpu-model", "8xT4", "--epoch-s", "20", "--matrix")
    targets = ("--targets", "8xV100-SXM2-16GB,16xA10G,2xA100 MIG 1g.5gb")
    code, answer = run_json(capsys, *question, *targets)
    assert code == 0
    found = answer["exchange_rates"]
    assert list(found["rates"]) == ["V100-SXM2-16GB"]
    assert {name: why.partition(":")[0] for name, why in found["left_out"].items()} == {
        "A10G": "16 x A10G in one host",
        "A100-SXM4-40GB MIG 1g.5gb": "a process sees one MIG slice, and slices have no links",
    }
    assert main([*question, "csv", *targets]) == 0
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert [row for row in rows if row[0] == "A10G"] == [["A10G", "T4", "", "", "", "", found["left_out"]["A10G"]]]
    assert main([*question, *targets, "--matrix", "table"]) == 0
    assert f"left out: A10G: {found['left_out']['A10G']}" in " ".join(capsys.readouterr().out.split())
    assert main([*question, *targets, "--matrix", "slurm"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "left out: A10G: 16 x A10G" in err


def test_a_row_of_a_runs_table_is_answered_in_the_precision_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_runs(tmp_path / "runs.csv", synthetic_runs())
    asked = ("predict", "--runs", str(table), "--row", "0", "--targets", "A100-SXM4-40GB")
    seconds = {}
    for precision in ("fp32", "tf32", "mixed"):
        code, answer = run_json(capsys, *asked, "--precision", precision)
        assert code == 0
        seconds[precision] = answer["predictions"][0]["epoch_latency_s"]
    assert seconds["mixed"] < seconds["fp32"]


def test_a_slice_and_the_whole_gpu_are_both_named_where_both_are_new(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("--gpu-model", "A100-SXM4-40GB MIG 3g.20gb", "--epoch-s", "60", "--targets", "T4,A100-SXM4-40GB")
    assert main(["predict", *question]) == 0
    shown = capsys.readouterr()
    assert "the model was not fitted on A100-SXM4-40GB MIG 3g.20gb and A100-SXM4-40GB\n" in shown.out
    assert "4 of 8 parts of the memory of A100-SXM4-40GB\n" in shown.out


def test_what_was_measured_on_another_number_of_gpus_is_no_error_of_these() -> None:
    rows = [
        LatencyPrediction(
            "A10G", 10.0, 5.0, 20.0, 0.9, "ok", False, "prior", "", "m", gpu_count=count, host_count=hosts
        )
        for count, hosts in ((1, 1), (4, 1), (4, 2))
    ]
    payload = Predictions("T4", 20.0, rows, "model", measured_s={"A10G": 8.0}).payload()
    assert [row["relative_error"] for row in payload["predictions"]] == [pytest.approx(0.25), None, None]


def test_unlike_hosts_are_named_with_all_of_their_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    row = LatencyPrediction("A10G", 10.0, 5.0, 20.0, 0.9, "ok", False, "prior", "", "m", gpu_count=7, host_count=2)
    Predictions("T4", 20.0, [row], "m", source_gpu_count=7, source_host_count=2).render(Screen(sys.stdout))
    shown = capsys.readouterr().out
    assert "on 7xT4 on 2 hosts" in shown
    assert "7xA10G on 2 hosts" in shown


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
        (["--trace", "a", "--runs", "b"], "give one of"),
        (["--runs", "b"], "--row"),
        (["--run", "x"], "--collector"),
        (["--trace", "a", "--row", "1"], "--row belongs to --runs"),
        (["--runs", "a", "--row", "1", "--gpu-model", "T4"], "--gpu-model belongs to --trace"),
        (["--trace", "a", "--targets", "T4,,A10G"], "empty name"),
        (["--trace", "a", "--epoch-s", "-3"], "no time above zero"),
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


def test_precisions_to_choose_from_are_those_of_the_catalog():
    assert set(PRECISIONS) == {precision.value for precision in Precision}

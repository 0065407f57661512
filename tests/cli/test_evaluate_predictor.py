"""``gpusonde evaluate predictor``: the scores of the evaluation in Python, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.json_keys import mismatches
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.cli.evaluations.predictor import EvaluateOnePredictorPayload, EvaluatePredictorPayload
from gpusonde.cli.main import main

RUNS = Path(__file__).parents[3] / "shared" / "data" / "cross_gpu" / "hardware_metrics_runs.csv"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs") / "runs.csv", synthetic_runs())


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = main(["evaluate", "predictor", *map(str, arguments), "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    if code == 0:
        one = len(answer["results"]) == 1 or answer["results"][0]["rows"] == "main"
        assert mismatches(answer, EvaluateOnePredictorPayload if one else EvaluatePredictorPayload) == []
    return {"code": code, **answer}


@pytest.mark.usefixtures("few_trees")
def test_the_model_beats_the_prior_and_both_are_scored_by_gpu_and_workload(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluated(capsys, table, "--protocol", "target")
    default, prior = found["results"]
    assert (found["code"], found["runs"], len(found["gpus"])) == (0, 80, 4)
    assert [row["mode"] for row in (default, prior)] == ["default", "prior"]
    assert default["predictions"] == prior["predictions"] == 240
    assert default["mape"] < prior["mape"]
    assert default["extrapolated"] == 1.0
    assert default["coverage"] > 0.8
    assert prior["coverage"] is None
    assert {row["gpu_model"] for row in default["by_target"]} == set(found["gpus"])
    assert sum(row["predictions"] for row in default["by_source"]) == 240
    assert len(default["by_workload"]) == 5
    assert "mape" not in found


def test_one_question_has_its_scores_at_the_top(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, table, "--protocol", "cnn", "--model", "prior")
    assert found["mape"] == found["results"][0]["mape"] > 0.1
    assert found["mape_deviation"] is None


def test_seeds_and_noise_repeat_a_protocol(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--protocol", "cnn", "--mode", "prior", "--noise", "0.1")
    once, thrice = evaluated(capsys, table, *options), evaluated(capsys, table, *options, "--seeds", "3")
    assert thrice["predictions"] == 3 * once["predictions"]
    assert thrice["mape_deviation"] > 0


def test_another_table_can_be_scored_on(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_runs(tmp_path / "other.csv", synthetic_runs(models=1, seed=7))
    found = evaluated(capsys, table, "--test", other, "--protocol", "cnn", "--mode", "prior")
    assert (found["test_file"], found["runs"], found["predictions"]) == (str(other), 16, 48)


def test_progress_goes_to_stderr_line_by_line(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "predictor", str(table), "--protocol", "target", "--mode", "prior"]) == 0
    captured = capsys.readouterr()
    assert "unseen target GPU" in captured.out
    assert captured.err.splitlines()[-1] == "unseen target GPU, prior: 4 of 4"


def test_a_table_too_small_for_one_protocol_says_so_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in synthetic_runs() if row["Instances"] in ("p3", "g5")]
    path = write_runs(tmp_path / "runs.csv", rows)
    config, both = evaluated(capsys, path, "--protocol", "config,both", "--mode", "prior")["results"]
    assert config["mape"] > 0
    assert both["mape"] is None
    assert "several GPUs" in both["reason"]


def test_a_table_without_any_pair_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_runs(tmp_path / "runs.csv", [row for row in synthetic_runs() if row["Instances"] == "p3"])
    found = evaluated(capsys, path, "--mode", "prior")
    assert (found["code"], found["error"]["file"]) == (1, str(path))
    assert "several GPUs" in found["error"]["message"]


def test_another_kind_of_table_is_refused_with_its_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("provider,usd_per_hour\na,1\n")
    found = evaluated(capsys, path)
    assert (found["code"], found["error"]["file"], found["error"]["line"]) == (1, str(path), 1)
    assert found["error"]["field"] == "provider"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--protocol", "gpu"), "use random, config, cnn, target, both"),
        (("--mode", "best"), "use default, prior, paper"),
        (("--mode", "prior,prior"), "twice"),
        (("--noise", "9.6"), "0.096 is 9.6 %"),
        (("--noise", "-1"), "negative"),
        (("--seeds", "1000"), "at most 20"),
    ],
)
def test_impossible_options_are_usage_errors(
    table: Path, options: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "predictor", str(table), *options]) == 2
    assert said in capsys.readouterr().err


def test_timings_score_what_is_said_without_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "timings.csv"
    rows = ["a,one,T4,fp32,2.0,True", "a,one,V100,fp32,1.0,True", "a,one,A10G,fp32,0.9,False"]
    path.write_text("pair_key,dataset,gpu,precision,t_rel,main\n" + "\n".join(rows) + "\n")
    found = evaluated(capsys, path)
    assert [(row["rows"], row["predictions"]) for row in found["results"]] == [("main", 2), ("all", 6)]
    assert {row["protocol"] for row in found["results"]} == {"static"}
    assert found["mape"] == found["results"][0]["mape"]
    assert main(["evaluate", "predictor", str(path), "--protocol", "config"]) == 2
    assert "without metrics" in capsys.readouterr().err


@pytest.mark.shared_data
@pytest.mark.skipif(not RUNS.is_file(), reason="../shared/data is absent")
def test_the_model_card_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, RUNS, "--protocol", "both", "--mode", "default")
    assert found["mape"] == pytest.approx(0.124, abs=0.003)
    assert found["coverage"] == pytest.approx(0.94, abs=0.02)

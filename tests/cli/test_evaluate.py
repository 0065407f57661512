"""``gpusonde evaluate epochs``: scores as documented, and clear refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.epoch_traces import write_scored_traces

from gpusonde.cli.main import main


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main(["evaluate", "epochs", *arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {"code": code, **answer}


def test_right_answers_and_true_silence_are_scored_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, truth = map(str, write_scored_traces(tmp_path))
    found = evaluated(capsys, traces, truth)
    assert (found["code"], found["traces"], found["positives"]) == (0, 3, 2)
    assert found["within_10pct"] == found["declared"] == 1.0
    assert found["mape"] < 0.01
    assert found["false_positive_rate"] == 0.0
    assert found["boundary_recall"] == 1.0
    assert {s["shape"]: s["traces"] for s in found["per_shape"]} == {"plain": 2, "steady": 1}
    assert {t["trace_id"]: t["ape"] is None for t in found["per_trace"]} == {"a": False, "b": False, "flat": True}


def test_a_wrong_truth_costs_what_it_should(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, truth = write_scored_traces(tmp_path)
    wrong = json.loads(truth.read_text())
    wrong["a"]["period_s"] = 6.0  # the answer, 12 s, is off by 100 %
    wrong["flat"] = {"period_s": 3.0}  # silence about a positive is an error of 100 %
    truth.write_text(json.dumps(wrong))
    found = evaluated(capsys, str(traces), str(truth))
    assert found["mape"] == pytest.approx((1.0 + 0.0 + 1.0) / 3, abs=0.01)
    assert found["mape_declared"] == pytest.approx(0.5, abs=0.01)
    assert found["within_10pct"] == pytest.approx(1 / 3)
    assert found["false_positive_rate"] is None


def test_the_published_mode_can_be_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, truth = map(str, write_scored_traces(tmp_path))
    assert evaluated(capsys, traces, truth, "--mode", "paper")["mape"] > 0.1


def test_the_table_names_every_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, truth = map(str, write_scored_traces(tmp_path))
    assert main(["evaluate", "epochs", traces, truth]) == 0
    screen = capsys.readouterr().out
    assert all(word in screen for word in ("plain", "steady", "within 10 %", "CPU seconds per trace-hour"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object of trace ids"),
        ('{"a": {"period": 3}}', "period_s"),
        ('{"a": {"period_s": "long"}}', "period_s"),
        ('{"a": {"period_s": 12}}', "no truth for trace 'b'"),
        ('{"x": {"period_s": 12}}', "belong to different sets"),
    ],
)
def test_a_truth_that_does_not_fit_is_refused(
    content: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, truth = write_scored_traces(tmp_path)
    truth.write_text(content)
    assert main(["evaluate", "epochs", str(traces), str(truth)]) == 1
    assert expected in capsys.readouterr().err


def test_a_missing_subject_or_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate"]) == 2
    traces, _ = write_scored_traces(tmp_path)
    assert main(["evaluate", "epochs", str(traces), str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err

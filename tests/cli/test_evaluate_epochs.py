"""``gpusonde evaluate epochs``: scores as documented, and clear refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.epoch_traces import training_trace, write_scored_traces

from gpusonde.cli.main import main
from gpusonde.telemetry import Trace, write_trace


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = main(["evaluate", "epochs", *map(str, arguments), "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {"code": code, **answer}


def screen_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["evaluate", "epochs", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def write_manifest(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """Two trainings in files of their own, and their manifest; ``changes`` go into the first entry."""
    rows: list[dict[str, Any]] = []
    for file, period_s in (("lab_a.csv", 12.0), ("lab_b.csv", 20.0)):
        trace, starts = training_trace(period_s, 6)
        write_trace(trace, folder / file)
        rows.append({"file": file, "period_s": period_s, "trust": "high", "epoch_or_cycle_starts_s": starts.tolist()})
    rows[0].update(changes)
    (folder / "manifest.json").write_text(json.dumps(rows))
    return folder, folder / "manifest.json"


class TestScores:
    def test_right_answers_and_true_silence_are_scored_as_such(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = evaluated(capsys, *write_scored_traces(tmp_path))
        assert (found["code"], found["traces"], found["positives"], found["negatives"]) == (0, 3, 2, 1)
        assert found["within_10pct"] == found["within_5pct"] == found["declared"] == 1.0
        assert found["mape"] < 0.01
        assert found["false_positive_rate"] == 0.0
        assert found["boundary_recall"] == 1.0
        assert found["boundary_error_median_s"] < 0.1
        assert found["cpu_seconds_per_trace_hour"] == pytest.approx(
            sum(t["cpu_s"] for t in found["per_trace"]) / (found["duration_s"] / 3600)
        )
        assert {s["shape"]: s["traces"] for s in found["per_shape"]} == {"plain": 2, "steady": 1}
        assert {t["trace_id"]: t["ape"] is None for t in found["per_trace"]} == {"a": False, "b": False, "flat": True}

    def test_a_wrong_truth_costs_what_it_should(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        traces, truth = write_scored_traces(tmp_path)
        wrong = json.loads(truth.read_text())
        wrong["a"]["period_s"] = 6.0  # the answer, 12 s, is off by 100 %
        wrong["flat"] = {"period_s": 3.0}  # silence about a positive is an error of 100 %
        truth.write_text(json.dumps(wrong))
        found = evaluated(capsys, traces, truth)
        assert found["mape"] == pytest.approx((1.0 + 0.0 + 1.0) / 3, abs=0.01)
        assert found["mape_declared"] == pytest.approx(0.5, abs=0.01)
        assert found["within_10pct"] == pytest.approx(1 / 3)
        assert found["false_positive_rate"] is None

    def test_any_of_several_regimes_is_right(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        traces, truth = write_scored_traces(tmp_path)
        entries = json.loads(truth.read_text())
        entries["a"] |= {"period_s": 40.0, "regimes_s": [12.0]}
        truth.write_text(json.dumps(entries))
        assert evaluated(capsys, traces, truth)["within_5pct"] == 1.0

    def test_the_published_mode_can_be_scored(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = evaluated(capsys, *write_scored_traces(tmp_path), "--mode", "paper")
        assert found["mape"] > 0.1
        assert found["reliability"] == []  # it states no confidence

    def test_only_some_traces_can_be_scored(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = evaluated(
            capsys, *write_scored_traces(tmp_path), "--only", "a", "--only", "f*", "--metric", "dram_active"
        )
        assert [t["trace_id"] for t in found["per_trace"]] == ["a", "flat"]
        assert (found["only"], found["metrics"]) == (["a", "f*"], ["dram_active"])

    def test_csv_traces_and_a_folder_of_pictures(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        trace, starts = training_trace(12.0, 6)
        pair = [Trace(trace.time_s, dict(trace.values), gpu_uuid=name) for name in ("x/1", "x 1")]
        write_trace(pair, tmp_path / "pair.csv")
        truth = {name: {"period_s": 12.0, "epoch_starts_s": starts.tolist()} for name in ("x/1", "x 1")}
        (tmp_path / "truth.json").write_text(json.dumps(truth))
        found = evaluated(capsys, tmp_path / "pair.csv", tmp_path / "truth.json", "--plot-dir", tmp_path / "pictures")
        plots = [Path(t["plot"]) for t in found["per_trace"]]
        assert [p.read_bytes()[:4] for p in plots] == [b"\x89PNG"] * 2
        assert [p.name for p in plots] == ["x_1.png", "x_1_.png"]


class TestManifest:
    def test_a_folder_is_scored_by_its_manifest(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = evaluated(capsys, *write_manifest(tmp_path))
        assert (found["code"], found["traces"], found["within_5pct"], found["boundary_recall"]) == (0, 2, 1.0, 1.0)
        assert [s["shape"] for s in found["per_shape"]] == ["lab"]

    def test_only_starts_inside_the_regular_window_count(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = evaluated(capsys, *write_manifest(tmp_path, regular_window=[26.0, 52.0]))
        assert len(found["per_trace"][0]["boundary_errors_s"]) == 3

    def test_an_entry_that_is_not_trusted_is_left_out_and_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = write_manifest(tmp_path, trust="low: 2 cycles")
        found = evaluated(capsys, *paths)
        assert found["traces"] == 1
        (left_out,) = found["left_out"]
        assert left_out["trace_id"] == "lab_a.csv"
        assert "low: 2 cycles" in left_out["reason"]
        assert "lab_a.csv is left out" in screen_of(capsys, *paths)

    def test_a_file_that_is_not_there_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = evaluated(capsys, *write_manifest(tmp_path, file="gone.csv"))
        assert found["code"] == 1
        assert "no file 'gone.csv'" in found["error"]["message"]
        assert "--only" in found["error"]["message"]

    def test_a_file_that_is_no_trace_is_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder, manifest = write_manifest(tmp_path)
        (folder / "lab_b.csv").write_text("hello\n")
        found = evaluated(capsys, folder, manifest)
        assert found["code"] == 1
        assert "lab_b.csv" in found["error"]["message"]


class TestScreen:
    def test_the_table_names_every_shape_and_what_it_cost(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        screen = screen_of(capsys, *write_scored_traces(tmp_path))
        for words in (
            "2 traces with epochs, 1 without",
            "plain",
            "steady",
            "within 10 %",
            "CPU seconds per trace-hour",
        ):
            assert words in screen
        assert "flat" not in screen


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "field", "expected"),
        [
            ("{", None, "not JSON"),
            ("3", None, "expected an object of trace ids"),
            ('{"a": 12}', "a", "expected an object with period_s"),
            ('{"a": {"period": 3}}', "a.period_s", "period_s: is missing; give"),
            ('{"a": {"period_s": "long"}}', "a.period_s", "give seconds as a number"),
            ('{"a": {"period_s": 0}}', "a.period_s", "above zero"),
            ('{"a": {"period_s": 12}, "b": {"period_s": 20}}', "flat", "no truth for trace 'flat'"),
            ('{"x": {"period_s": 12}}', None, "belong to different sets"),
            ("{}", "a", "no truth for trace 'a'"),
            ('[{"period_s": 12}]', "0.file", "name its trace file"),
        ],
    )
    def test_a_truth_that_does_not_fit_is_refused_with_its_file_and_key(
        self, content: str, field: str | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        traces, truth = write_scored_traces(tmp_path)
        truth.write_text(content)
        found = evaluated(capsys, traces, truth)
        assert found["code"] == 1
        assert expected in found["error"]["message"]
        assert (found["error"]["file"], found["error"]["field"]) == (str(truth), field)

    def test_a_truth_without_a_trace_is_refused_until_it_is_left_out(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        traces, truth = write_scored_traces(tmp_path)
        truth.write_text(json.dumps({**json.loads(truth.read_text()), "more": {"period_s": 4.0}}))
        found = evaluated(capsys, traces, truth)
        assert (found["code"], found["error"]["field"]) == (1, "more")
        assert "no trace 'more'" in found["error"]["message"]
        assert evaluated(capsys, traces, truth, "--only", "?", "--only", "flat")["code"] == 0

    def test_a_missing_file_is_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        traces, truth = write_scored_traces(tmp_path)
        for pair in ((traces, tmp_path / "none.json"), (tmp_path / "none.json", truth)):
            found = evaluated(capsys, *pair)
            assert found["code"] == 1
            assert "none.json" in found["error"]["message"]

    def test_a_metric_that_the_traces_do_not_have_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = evaluated(capsys, *write_scored_traces(tmp_path), "--metric", "tensor_active")
        assert found["code"] == 1
        assert "tensor_active" in found["error"]["message"]
        folder = tmp_path / "folder"
        folder.mkdir()
        found = evaluated(capsys, *write_manifest(folder), "--metric", "tensor_active")
        assert found["error"]["file"] == str(folder / "lab_a.csv")

    def test_a_folder_for_pictures_that_cannot_be_made_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "taken").write_text("")
        found = evaluated(capsys, *write_scored_traces(tmp_path), "--plot-dir", tmp_path / "taken")
        assert found["code"] == 1
        assert found["error"]["file"] == str(tmp_path / "taken")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["evaluate"],
            ["evaluate", "weather"],
            ["evaluate", "epochs"],
            ["evaluate", "--json", "epochs", "{traces}", "{truth}"],
            ["evaluate", "epochs", "{traces}", "{truth}", "--mode", "best"],
            ["evaluate", "epochs", "{traces}", "{truth}", "--only", "zebra*"],
        ],
    )
    def test_a_wrong_command_line_has_the_exit_code_of_usage(
        self, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        traces, truth = write_scored_traces(tmp_path)
        assert main([a.format(traces=traces, truth=truth) for a in arguments]) == 2
        assert "gpusonde: error:" in capsys.readouterr().err


def test_an_empty_trace_is_an_answer_of_none_and_no_crash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = Trace(np.arange(5) * 0.1, {"dram_active": np.zeros(5)}, gpu_uuid="short")
    write_trace([short], tmp_path / "short.parquet")
    (tmp_path / "truth.json").write_text('{"short": {"period_s": 3.0}}')
    found = evaluated(capsys, tmp_path / "short.parquet", tmp_path / "truth.json")
    assert (found["mape"], found["declared"], found["mape_declared"]) == (1.0, 0.0, None)

"""A trace file gives the same epochs and predictions directly and through agent, gRPC and collector."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.collector_process import (
    CollectorProcess,
    ask,
    replay,
    running_collector,
    wait_for_ended_runs,
    wait_for_summaries,
)
from support.json_keys import mismatches
from support.problem_documents import small_problem

from gpusonde.cli.commands.daemons import AgentPayload
from gpusonde.cli.commands.epochs import EpochsPayload
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.main import main
from gpusonde.cli.runs_view import RunPayload
from gpusonde.collector.client import Client
from gpusonde.epoch_detect.progress import estimate_end
from gpusonde.telemetry import read_trace, write_trace

SHARED = Path(__file__).parents[3] / "shared" / "data"
TITAN_X = SHARED / "traces" / "raw" / "titanx_nvidia_smi_2gpu.csv"
RUNS = SHARED / "cross_gpu" / "hardware_metrics_runs.csv"


def same_epochs(detected: dict[str, Any], answer: dict[str, Any]) -> None:
    """Assert that ``detect`` and ``epochs`` say the same; their clocks differ by a constant."""
    run, epochs = answer["run"], answer["epochs"]
    assert run["verdict"] == detected["verdict"] == "epochs"
    for key in ("period_s", "period_low_s", "period_high_s", "confidence"):
        assert run[key] == pytest.approx(detected[key], rel=1e-6), key
    assert len(epochs) == detected["epochs"] == run["epochs"]
    starts = np.array([epoch["start_s"] for epoch in epochs])
    expected = np.array(detected["epoch_starts_s"])
    assert np.allclose(np.diff(starts), np.diff(expected), atol=5e-6)
    assert epochs[-1]["end_s"] - starts[-1] == pytest.approx(detected["end_s"] - expected[-1], abs=5e-6)


def test_every_tick_of_the_trace_is_stored_once_with_its_values(
    collector: CollectorProcess, run: dict[str, Any]
) -> None:
    trace = read_trace(bundled_trace())
    with Client(collector.address) as client:
        stored = client.read_samples(run["gpu_uuid"])
    assert len(stored) == len(trace)
    assert np.allclose(stored.time_s, trace.time_s - trace.time_s[0], atol=2e-6)
    for name in trace.metrics:
        assert np.array_equal(stored.values[name].astype("f4"), trace.values[name].astype("f4")), name


def test_epochs_of_the_bundled_trace_are_the_same_directly_and_through_the_collector(
    collector: CollectorProcess, run: dict[str, Any]
) -> None:
    detected = ask("detect", str(bundled_trace()))
    same_epochs(detected, ask("epochs", run["run_id"], "--collector", collector.address))
    assert run["replayed"]
    assert run["gpu_model"] == "Tesla T4"


def test_what_the_epochs_tell_is_the_same_directly_and_through_the_collector(
    collector: CollectorProcess, run: dict[str, Any], agent_report: dict[str, Any]
) -> None:
    assert mismatches(run, RunPayload) == []
    assert mismatches(agent_report, AgentPayload) == []
    here = ask("detect", str(bundled_trace()), "--total-epochs", "40")
    wait_for_summaries(collector.address, run["run_id"])
    there = ask("epochs", run["run_id"], "--total-epochs", "40", "--collector", collector.address)
    assert mismatches(there, EpochsPayload) == []
    for mine, theirs in zip(here["epoch_table"], there["epochs"], strict=True):
        # Values cross the wire as float32, and are stored with nine digits.
        assert theirs["seen_share"] == pytest.approx(mine["seen_share"], rel=1e-6)
        assert theirs["energy_joules"] == pytest.approx(mine["energy_joules"], rel=1e-6)
        assert {m["metric"]: m["mean"] for m in theirs["metrics"]} == pytest.approx(
            {m["metric"]: m["mean"] for m in mine["metrics"]}, rel=1e-6
        )
    for key in ("idle_share", "stalled_share"):
        assert there[key] == pytest.approx(here[key], abs=1e-6), key
    # Ends of epochs are rounded to the microsecond.
    assert there["trend"].pop("change_points") == here["trend"].pop("change_points") == []
    assert there["trend"] == pytest.approx(here["trend"], abs=1e-6)
    mine, theirs = here["estimate"], there["estimate"]
    assert (theirs["epochs_done"], theirs["epochs_left"]) == (12, 28)
    last_start = there["epochs"][-1]["start_s"] - here["epoch_starts_s"][-1]
    assert theirs["end_s"] - last_start == pytest.approx(mine["end_s"], abs=1e-4)
    # The collector knows when it trained, too: the long first epoch may be two, which lets the end be later.
    starts, now_s = np.array(here["epoch_starts_s"]), read_trace(bundled_trace()).time_s[-1]
    ends = np.append(starts[1:], here["end_s"])
    end = estimate_end(starts, ends, 40, now_s, training_s=np.array([[starts[0], now_s]]))
    told = [theirs[key] - last_start for key in ("end_low_s", "end_high_s")]
    assert told == pytest.approx([end.end_low_s, end.end_high_s], abs=0.05)
    assert told[0] == pytest.approx(mine["end_low_s"], abs=1e-4)
    assert mine["end_high_s"] < told[1]


def test_the_screen_tells_of_a_run_what_detect_tells_of_its_trace(
    collector: CollectorProcess, run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["epochs", run["run_id"], "--total-epochs", "40", "--collector", collector.address]) == 0
    screen = capsys.readouterr().out
    for said in (
        "energy (kJ)",
        "mean ",
        "no lasting change of the duration",
        "lost in stalls",
        "12 cycles done, 28 left",
        "; every cycle is taken for an epoch, which the metrics do not tell",
    ):
        assert said in screen, said
    assert "the run is over before the job was" in screen


def test_a_total_that_the_run_has_gone_beyond_is_refused(
    collector: CollectorProcess, run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["epochs", run["run_id"], "--collector", collector.address, "--total-epochs"]
    assert main([*arguments, "5"]) == 1
    error = capsys.readouterr().err
    assert "field 'total_epochs': 12 epochs are over, more than the 5" in error
    assert "or leave it out" in error
    assert main([*arguments, "4294967296"]) == 2


def test_a_run_is_predicted_by_the_collector_as_its_trace_is_here(
    collector: CollectorProcess, run: dict[str, Any]
) -> None:
    targets = ["--targets", "A10G,V100,P100,H100,T4"]
    here = ask("predict", "--trace", str(bundled_trace()), *targets)
    there = ask("predict", "--run", run["run_id"], "--collector", collector.address, *targets)
    assert there["model_version"] == here["model_version"]
    assert there["source_gpu_model"] == here["source_gpu_model"] == "T4"
    for mine, theirs in zip(here["predictions"], there["predictions"], strict=True):
        assert theirs["gpu_model"] == mine["gpu_model"]
        assert theirs["status"] == mine["status"]
        for key in ("epoch_latency_s", "epoch_latency_low_s", "epoch_latency_high_s"):
            # Samples cross the wire as float32, durations in nanoseconds.
            assert theirs[key] == pytest.approx(mine[key], rel=1e-5), key


def test_a_run_is_planned_by_the_collector_as_its_trace_is_here(
    collector: CollectorProcess, run: dict[str, Any]
) -> None:
    wanted = ["--epochs", "9000", "--deadline", "24h", "--providers", "aws", "--targets", "T4,A10G", "--quota", "2"]
    here = ask("plan", "solve", "--trace", str(bundled_trace()), *wanted)
    there = ask("plan", "solve", "--run", run["run_id"], "--collector", collector.address, *wanted)
    assert there["plan"] == here["plan"]
    assert there["estimate"]["cost_usd"] == pytest.approx(here["estimate"]["cost_usd"], rel=1e-3)
    taken = "every cycle of 17.5 s is taken for an epoch"
    # Only a trace takes options that say what its cycles are.
    assert here["notes"][0].startswith(f"{taken}. It may be")
    assert "--total-epochs" in here["notes"][0]
    assert there["notes"][0] == f"{taken}, which its metrics do not tell"
    assert there["notes"][1] == here["notes"][1]


def test_a_watched_run_that_ended_early_is_told_with_what_is_left_and_the_watch_ends(
    collector: CollectorProcess, run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The 12 epochs of the bundled trace, of 40 and of 12.
    job = small_problem(iterations=None, epochs=40, samples_per_epoch=256 * 10, deadline_s=1e6)
    path = tmp_path / "job.json"
    watch = ("monitor", str(path), "--run", run["run_id"], "--collector", collector.address)
    path.write_text(json.dumps(job))
    for plan in (["--group", "t4=4@64"], []):
        assert main([*watch, *plan]) == 0
        told = capsys.readouterr().out
        assert told.count("with 12 of 40 epochs seen") == 1
        assert "in all $" in told
        found = ask(*watch, *plan)["recommendations"][-1]
        assert (found["kind"], found["remaining_iterations"]) == ("run" if plan else "launch", 280)
        assert "may have been missed" not in found["why"]
    path.write_text(json.dumps(job | {"epochs": 13}))
    assert "if the job is done, end its machines" in ask(*watch)["recommendations"][-1]["why"]
    path.write_text(json.dumps(job | {"epochs": 12}))
    assert [row["kind"] for row in ask(*watch)["recommendations"]] == ["done"]


def test_a_run_gives_the_same_problem_file_here_and_through_the_collector(
    collector: CollectorProcess, run: dict[str, Any], tmp_path: Path
) -> None:
    wanted = ["--epochs", "9000", "--deadline", "24h", "--budget", "90", "--objective", "time", "--targets", "T4,a10g"]
    at_collector = ["--run", run["run_id"], "--collector", collector.address]
    here = ask("plan", "init", "--trace", str(bundled_trace()), *wanted)
    there = ask("plan", "init", *at_collector, *wanted, "--out", str(tmp_path / "p.toml"))
    same = ("objective", "global_batch", "epochs", "samples_per_epoch", "deadline_s", "budget_usd", "catalog")
    assert {key: there[key] for key in same} == {key: here[key] for key in same}
    text = (tmp_path / "p.toml").read_text()
    assert "# an epoch takes 17.5 s on 1 x T4" in text
    assert "quota = 8  # assumed: machines of each kind; say what you may rent" in text
    found = ask("plan", "solve", str(tmp_path / "p.toml"))
    assert found["plan"] == ask("plan", "solve", *at_collector, *wanted)["plan"]


def test_a_measurement_gets_the_same_numbers_here_and_by_grpc(collector: CollectorProcess) -> None:
    arguments = ["predict", "--trace", str(bundled_trace()), "--epoch-s", "12.5"]
    here = ask(*arguments)["predictions"]
    there = ask(*arguments, "--collector", collector.address)["predictions"]
    assert len(here) == len(there) > 40
    for mine, theirs in zip(here, there, strict=True):
        for key in ("epoch_latency_s", "epoch_latency_low_s", "epoch_latency_high_s"):
            assert theirs[key] == (None if mine[key] is None else pytest.approx(mine[key], abs=1e-9))
        assert {k: theirs[k] for k in ("gpu_model", "status", "extrapolated", "method", "reason")} == {
            k: mine[k] for k in ("gpu_model", "status", "extrapolated", "method", "reason")
        }


def test_the_beginning_of_a_runs_name_and_latest_both_find_it(
    collector: CollectorProcess, run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    address = ["--collector", collector.address]
    by_prefix = ask("epochs", run["run_id"][:-3], *address)
    assert by_prefix["run"]["run_id"] == run["run_id"]
    newest = ask("runs", "--limit", "1", *address)["runs"][0]["run_id"]
    assert ask("epochs", "--latest", *address)["run"]["run_id"] == newest
    assert main(["epochs", run["run_id"], *address]) == 0
    assert "12 cycles of 17." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["epochs", "nonsense"], "no run 'nonsense'"),
        (["predict", "--run", "nonsense", "--targets", "T4"], "no run 'nonsense'"),
        (["predict", "--run", "2", "--targets", "V1000"], "V100"),
    ],
)
def test_what_the_collector_does_not_know_is_said_so(
    arguments: list[str], said: str, collector: CollectorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--collector", collector.address, "--json"]) == 1
    assert said in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("command", [["runs"], ["epochs", "--latest"], ["predict", "--run", "x"]])
def test_a_collector_that_is_not_there_is_one_clear_line(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--collector", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "127.0.0.1:1" in line
    assert "gpusonde collector" in line


@pytest.mark.shared_data
@pytest.mark.skipif(not TITAN_X.is_file(), reason="../shared/data is absent")
def test_epochs_of_recorded_titan_x_gpus_are_the_same_directly_and_through_the_collector(tmp_path: Path) -> None:
    with running_collector(tmp_path) as collector:
        replay(TITAN_X, collector.address, tmp_path, speed=200.0, agent="titanx")
        wait_for_ended_runs(collector.address, count=2)
        detected = ask("detect", str(TITAN_X), "--gpu", "0")
        assert detected["period_s"] == pytest.approx(13.16, rel=0.03)
        runs = ask("runs", "--collector", collector.address)["runs"]
        answers = [ask("epochs", run["run_id"], "--collector", collector.address) for run in runs]
        matching = [a for a in answers if a["run"]["period_s"] == pytest.approx(detected["period_s"], rel=1e-6)]
        assert matching, [answer["run"] for answer in answers]
        same_epochs(detected, matching[0])


@pytest.mark.shared_data
@pytest.mark.skipif(not RUNS.is_file(), reason="../shared/data is absent")
@pytest.mark.parametrize("row", [0, 100, 259, 400])
def test_rows_of_the_runs_table_get_the_same_numbers_here_and_by_grpc(collector: CollectorProcess, row: int) -> None:
    arguments = ["predict", "--runs", str(RUNS), "--row", str(row), "--targets", "A10G,P100,V100,T4"]
    here = ask(*arguments)
    there = ask(*arguments, "--collector", collector.address)
    for mine, theirs in zip(here["predictions"], there["predictions"], strict=True):
        assert theirs["measured_epoch_latency_s"] == mine["measured_epoch_latency_s"]
        for key in ("epoch_latency_s", "epoch_latency_low_s", "epoch_latency_high_s"):
            assert theirs[key] == pytest.approx(mine[key], abs=2e-9), key


def test_gpus_of_one_file_become_runs_and_one_without_a_model_is_not_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = read_trace(bundled_trace()).window(0.0, 120.0)
    path = tmp_path / "two.parquet"
    write_trace(
        [
            dataclasses.replace(trace, gpu_uuid="GPU-named"),
            dataclasses.replace(trace, gpu_uuid="GPU-anonymous", gpu_model=""),
        ],
        path,
    )
    with running_collector(tmp_path) as collector:
        replay(path, collector.address, tmp_path)
        runs = {run["gpu_uuid"]: run for run in wait_for_ended_runs(collector.address, 2)}
        assert set(runs) == {"GPU-named", "GPU-anonymous"}
        assert runs["GPU-named"]["epochs"] == runs["GPU-anonymous"]["epochs"] > 3
        predict = ["predict", "--collector", collector.address, "--targets", "A10G", "--json", "--run"]
        assert main([*predict, runs["GPU-named"]["run_id"]]) == 0
        capsys.readouterr()
        assert main([*predict, runs["GPU-anonymous"]["run_id"]]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["type"] == "CollectorError"
    assert {entry["name"] for entry in collector.report()["counts"]} >= {"records"}

"""``gpusonde detect`` on the bundled trace and on files that are none."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpusonde.cli.commands.detect import headline
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.main import main
from gpusonde.telemetry import Trace, read_trace, write_trace

SHARED_TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1, "exactly one JSON object on stdout"
    answer: dict[str, Any] = json.loads(lines[0], parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    return code, answer


def test_the_epochs_of_the_bundled_trace_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(bundled_trace()))
    truth = json.loads(read_trace(bundled_trace()).attributes["true_epoch_starts_s"])
    assert code == 0
    assert answer["verdict"] == "epochs"
    assert answer["period_s"] == pytest.approx(np.mean(np.diff(truth)[1:]), rel=0.03)
    assert answer["period_low_s"] < answer["period_s"] < answer["period_high_s"]
    # A boundary is seen when the next epoch's first batch runs: half a second after the epoch began.
    assert answer["epochs"] == len(truth) == len(answer["epoch_starts_s"])
    assert np.allclose(answer["epoch_starts_s"][1:], truth[1:], atol=0.8)
    assert "not recorded on a GPU" in answer["generated"]


def test_the_picture_is_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "epochs.png"
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--plot", str(path))
    assert (code, answer["plot"]) == (0, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_people_are_told_that_the_trace_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(bundled_trace())]) == 0
    printed = capsys.readouterr().out
    assert "this trace is generated" in printed
    assert "cycles of 17." in printed or "12 epochs of 17." in printed


@pytest.mark.parametrize(
    ("role", "mode", "said"),
    [
        ("unknown", "default", "3 cycles of 17.5 s"),
        ("evaluation", "default", "3 cycles of 17.5 s"),
        ("epoch", "default", "3 epochs of 17.5 s"),
        ("unknown", "paper", "3 epochs of 17.5 s"),
    ],
)
def test_a_cycle_is_called_an_epoch_only_where_it_is_known_to_be_one(role: str, mode: str, said: str) -> None:
    found = SimpleNamespace(
        role=role, mode=mode, verdict="epochs", period_s=17.5, period_low_s=17.0, period_high_s=18.0,
        epoch_starts_s=np.arange(3.0),
    )  # fmt: skip
    assert headline(found).startswith(said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("utilization", "watts", "said"),
    [
        (np.zeros(600), np.full(600, 70.0), "no value changes in the whole trace (gpu_utilization, power_watts)"),
        (np.zeros(600), 70 + 100 * (np.arange(600) % 100 > 30), "gpu_utilization is 0 throughout although the power"),
    ],
)
def test_metrics_that_never_change_are_named(
    utilization: Any, watts: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "still.csv"
    write_trace(Trace(np.arange(600) * 0.1, {"gpu_utilization": utilization, "power_watts": watts}), path)
    _, answer = run_json(capsys, "detect", str(path))
    assert any(warning.startswith(said) for warning in answer["warnings"])


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (("detect",), ("warnings",)),
        (("advise",), ("detection", "warnings")),
        (("predict", "--targets", "T4", "--trace"), ("notes",)),
        (("plan", "solve", "--epochs", "9", "--targets", "T4", "--providers", "aws", "--trace"), ("notes",)),
    ],
    ids=["detect", "advise", "predict", "plan"],
)
def test_every_command_says_what_it_left_out_of_each_file_and_could_not_use_of_what_was_told(
    command: tuple[str, ...], where: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = np.where(np.arange(1000) % 100 < 85, 0.9, 0.04)
    first, second = tmp_path / "gpu0.csv", tmp_path / "gpu1.csv"
    recorded = Trace(np.arange(1000) * 0.1, {"gpu_utilization": busy}, gpu_model="Tesla T4")
    write_trace(recorded, first)
    second.write_text(first.read_text().replace("0.04", "-4", 1))
    more = ("--trace",) if "--trace" in command else ()
    code, answer = run_json(capsys, *command, str(first), *more, str(second), "--role", "99s=epoch")
    assert code == 0, answer
    told = functools.reduce(operator.getitem, where, answer)
    assert any("1 values are sentinels or impossible" in note for note in told), told
    assert any("no cycle of about 99 s was found" in note for note in told), told


@pytest.mark.parametrize(
    ("recorded", "told", "contradicted"),
    [
        ("Tesla T4", "V100-SXM2-32GB", True),
        ("NVIDIA A100", "A100-PCIe-80GB", False),
        ("Tesla T4", "8xT4", False),
        ("GRID of mine", "T4", False),
    ],
)
def test_a_gpu_that_is_told_in_place_of_the_one_of_the_file_is_said(
    recorded: str, told: str, contradicted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    write_trace(Trace(np.arange(100.0), {"gpu_utilization": np.full(100, 0.5)}, gpu_model=recorded), path)
    _, answer = run_json(
        capsys, "predict", "--trace", str(path), "--gpu-model", told, "--epoch-s", "9", "--targets", "A10"
    )
    said = f"the trace says that it was recorded on {recorded}; {told} is taken, as told"
    assert (said in answer["notes"]) == contradicted, answer["notes"]


@pytest.mark.parametrize("typed", ["gpu*.csv", "gpu0.csv"])
def test_a_pattern_that_no_shell_took_apart_means_its_files(
    typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpu0.csv", "gpu1.csv"):
        write_trace(read_trace(bundled_trace()), tmp_path / name)
    code, answer = run_json(capsys, "detect", str(tmp_path / typed))
    assert (code, answer["trace"]) == (0, str(tmp_path / "gpu0.csv"))


@pytest.mark.parametrize(
    ("durations_s", "said"),
    [
        (20.0 * 1.012 ** np.arange(14), "each takes 1.2"),
        (30.0 * 0.988 ** np.arange(14), "% less than the one before (95 % interval 1."),
        ([20.0] * 6 + [30.0] + [20.0] * 6, "7 alone took 30.0 s, 1.5 times the usual"),
    ],
)
def test_drift_and_single_long_cycles_are_told_and_not_that_nothing_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], durations_s: Any, said: str
) -> None:
    rng = np.random.default_rng(5)
    cycles = [np.where(np.arange(round(10 * each)) < 10 * each - 15, 0.92, 0.05) for each in durations_s]
    active = np.concatenate([np.zeros(100), *cycles, np.zeros(100)])
    values = {"sm_active": np.clip(active + rng.normal(0, 0.02, active.size), 0, 1)}
    write_trace(Trace(0.1 * np.arange(active.size), values), tmp_path / "job.csv")
    assert main(["detect", str(tmp_path / "job.csv")]) == 0
    told = capsys.readouterr().out
    assert said in told
    assert ("no lasting change" in told) == ("alone" in said)


def test_one_metric_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--metric", "dram_active")
    assert (code, answer["metrics"]) == (0, ["dram_active"])


@pytest.mark.parametrize("mode", ["paper", "notebook"])
def test_the_published_modes_answer_too(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--mode", mode)
    assert (code, answer["mode"]) == (0, mode)


def test_an_idle_trace_has_no_epochs_and_nulls_instead_of_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "idle.csv"
    write_trace(Trace(time_s=np.arange(600) * 0.1, values={"gpu_utilization": np.zeros(600)}), path)
    code, answer = run_json(capsys, "detect", str(path))
    assert code == 0
    assert (answer["verdict"], answer["period_s"], answer["epoch_starts_s"]) == ("none", None, [])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("time_s,dram_active\n", "no"),
        ("time_s,dram_active\n0,0.1\n0.1,oops\n", ":3"),
        ("hello\nworld\n", "trace.csv"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_name_and_line(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    code, answer = run_json(capsys, "detect", str(path))
    assert code == 1
    assert answer["error"]["file"] == str(path)
    assert said in answer["error"]["message"]


def test_a_bad_value_is_reported_with_line_and_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,dram_active\n0,0.1\n0.1,oops\n")
    _, answer = run_json(capsys, "detect", str(path))
    assert (answer["error"]["line"], answer["error"]["field"]) == (3, "dram_active")


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(tmp_path / "nowhere.csv"))
    assert code == 1
    assert answer["error"]["file"] == str(tmp_path / "nowhere.csv")


def test_a_metric_that_the_trace_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--metric", "fp64_active")
    assert code == 1
    assert "fp64_active" in answer["error"]["message"]
    assert (answer["error"]["file"], answer["error"]["field"]) == (str(bundled_trace()), "fp64_active")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device /dev/full")
def test_a_picture_for_which_there_is_no_room_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (full := tmp_path / "full.png").symlink_to("/dev/full")
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--plot", str(full))
    assert code == 1
    assert answer["error"]["file"] == str(full)
    assert Path("/dev/full").exists()


def test_a_metric_that_does_not_exist_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--metric", "dram_activ")
    assert code == 1
    assert "did you mean dram_active" in answer["error"]["message"]


def test_a_file_of_several_gpus_asks_for_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.csv"
    time_s = np.arange(50) * 0.1
    write_trace([Trace(time_s, {"gpu_utilization": np.ones(50)}, gpu_uuid=f"GPU-{i}") for i in "ab"], path)
    code, answer = run_json(capsys, "detect", str(path))
    assert code == 1
    assert "--gpu" in answer["error"]["message"]
    assert run_json(capsys, "detect", str(path), "--gpu", "1")[1]["gpu_uuid"] == "GPU-b"
    assert run_json(capsys, "detect", str(path), "--gpu", "7")[0] == 1


def test_an_absurd_number_of_gpus_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(bundled_trace()), "--gpus", "0"]) == 2
    assert main(["detect", str(bundled_trace()), "--gpus", "1000000"]) == 2


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="../shared/data is absent")
def test_the_period_of_the_recorded_titan_x_trace_is_within_3_percent(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(SHARED_TRACES / "raw" / "titanx_nvidia_smi_2gpu.csv"), "--gpu", "0")
    assert code == 0
    assert answer["verdict"] == "epochs"
    assert answer["period_s"] == pytest.approx(13.16, rel=0.03)


def test_the_end_of_the_job_is_told_from_the_number_of_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(bundled_trace()), "--total-epochs", "30", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    estimate = answer["estimate"]
    assert (estimate["epochs_done"], estimate["epochs_left"]) == (answer["epochs"], 30 - answer["epochs"])
    expected = answer["end_s"] + estimate["epochs_left"] * answer["period_s"]
    assert estimate["end_low_s"] < expected < estimate["end_high_s"]
    # As of a job that a collector knows: what may be no epoch is not counted as one without a word.
    assert estimate["basis"].endswith("; every cycle is taken for an epoch, which the metrics do not tell")
    _, told = run_json(
        capsys, "detect", str(bundled_trace()), "--total-epochs", "30", "--role", f"{answer['period_s']}=epoch"
    )
    assert "taken for" not in told["estimate"]["basis"]
    assert [row["start_s"] for row in answer["epoch_table"]] == answer["epoch_starts_s"]
    assert all(row["energy_joules"] > 0 for row in answer["epoch_table"])


def test_cycles_that_are_more_than_the_epochs_told_are_not_the_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--total-epochs", "5")
    assert code == 0
    assert (answer["verdict"], answer["epochs"], answer["level"]) == ("none", 0, None)
    assert "the job is said to have 5 epochs" in answer["reason"]
    assert answer["cycles"]
    assert all(cycle["role"] != "epoch" for cycle in answer["cycles"])
    assert answer["estimate"] is None
    assert answer["estimate_reason"]


def test_a_total_that_did_not_tell_what_a_cycle_is_is_not_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(bundled_trace())]) == 0
    assert "; --total-epochs N or --role 17.5s=epoch says" in capsys.readouterr().out
    job = ("--epochs", "100", "--deadline", "24h", "--providers", "aws")
    for command in (["detect", str(bundled_trace())], ["plan", "solve", "--trace", str(bundled_trace()), *job]):
        assert main([*command, "--total-epochs", "40"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "--total-epochs" not in said
        assert "nor does the total: 40 epochs, and 12 of these were seen; --role 17.5s=epoch says" in said


def test_one_epoch_more_than_told_leaves_the_end_open(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "detect", str(bundled_trace()), "--total-epochs", "11")
    assert code == 0
    assert answer["epochs"] == 12
    assert "more than the 11" in answer["estimate_reason"]


def test_what_a_job_lost_to_a_long_rest_is_no_epoch_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Taken off its GPU for four minutes after twelve epochs, it has done six more since.
    epoch, rest = [500.0] * 150 + [300.0] * 40 + [80.0] * 10, [70.0] * 2400
    power = np.array(rest[:100] + epoch * 12 + rest + epoch * 6 + epoch[:80])
    power *= np.exp(np.random.default_rng(0).normal(0, 0.02, power.size))
    path = tmp_path / "rested.csv"
    write_trace(Trace(0.1 * np.arange(power.size), {"power_watts": power}), path)
    code, answer = run_json(capsys, "detect", str(path), "--running", "--total-epochs", "30")
    assert code == 0
    assert answer["estimate"]["epochs_done"] == pytest.approx(18, abs=1)
    # Another such rest may be to come.
    assert answer["estimate"]["end_low_s"] < 0.1 * (power.size - 80) + 12 * 20 < answer["estimate"]["end_high_s"]

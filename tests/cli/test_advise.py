"""From one run to a plan: ``gpusonde plan`` of a run, ``plan init`` and ``gpusonde advise``."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.epoch_traces import training_trace
from support.json_keys import mismatches

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.cli.commands.advise import AdvisePayload
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.main import main
from gpusonde.documents import read_document
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.telemetry import write_trace

TRACE = str(bundled_trace())
# The bundled trace's own cycle; few offers are searched fast.
JOB = ("--role", "17.5s=epoch", "--epochs", "4000", "--targets", "T4,A10G", "--providers", "aws", "--quota", "2")


def answered(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trace that does not say of which GPU it is."""
    path = tmp_path_factory.mktemp("traces") / "unnamed.csv"
    write_trace(training_trace()[0], path)
    return str(path)


def test_one_run_is_enough_for_a_plan_and_what_was_assumed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "plan", "solve", "--trace", TRACE, *JOB, "--deadline", "24h")
    assert found["status"] == "optimal"
    assert found["estimate"]["time_at_confidence_s"] <= 86_400
    assert not any("is taken for an epoch" in note for note in found["notes"])
    assert "180 s to start; batches told as shares of 256" in found["notes"][0]
    at = "aws/us-east-1/g4dn"
    one = answered(capsys, "plan", "estimate", "--trace", TRACE, *JOB, "--group", f"{at}.xlarge=1@256")
    # One GPU like the run's takes what the run took, and the time to start.
    assert one["estimate"]["time_s"] == pytest.approx(180 + 4000 * 17.46, rel=0.02)
    four = answered(capsys, "plan", "estimate", "--trace", TRACE, *JOB, "--group", f"{at}.12xlarge=1@64")
    spread = [each["estimate"]["time_at_confidence_s"] / each["estimate"]["time_s"] for each in (one, four)]
    assert 0.25 < four["estimate"]["time_s"] / one["estimate"]["time_s"] < 1
    assert 1 < spread[0] < 1.3 < spread[1]


def test_an_epoch_that_is_a_guess_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "plan", "solve", "--trace", TRACE, *JOB[2:])
    assert found["notes"][0].startswith("every cycle of 17.5 s is taken for an epoch. It may be an epoch with its")
    assert "--role 17.5s=epoch" in found["notes"][0]


def test_what_init_writes_is_solved_unchanged_and_gives_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("--trace", TRACE, *JOB, "--deadline", "24h", "--batch-size", "64", "--steps-per-epoch", "500")
    at_once = answered(capsys, "plan", "solve", *run)
    assert main(["plan", "init", *run, "--out", str(tmp_path / "job.toml")]) == 0
    assert "'gpusonde plan solve" in capsys.readouterr().out
    text = (tmp_path / "job.toml").read_text()
    assert "# an epoch takes 17.5 s on 1 x T4" in text
    assert "# budget_usd = 500  # most that it may cost on average" in text
    document = read_document(tmp_path / "job.toml")
    assert (document["global_batch"], document["samples_per_epoch"], document["deadline_s"]) == (64, 32_000, 86_400)
    assert parse_problem(document, load_gpus(), load_offers()).problem.iterations == 4000 * 500
    later = answered(capsys, "plan", "solve", str(tmp_path / "job.toml"))
    assert later["plan"] == at_once["plan"]
    assert later["estimate"]["time_s"] == pytest.approx(at_once["estimate"]["time_s"])
    piped = type("Piped", (), {"buffer": io.BytesIO(text.encode())})()
    monkeypatch.setattr(sys, "stdin", piped)
    assert answered(capsys, "plan", "solve", "-")["plan"] == at_once["plan"]


def test_a_job_on_eight_gpus_keeps_its_batch_on_others(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("--gpu-model", "8xV100@batch32", "--epoch-s", "600", "--epochs", "90", "--targets", "V100,T4")
    problem = answered(capsys, "plan", "init", *run)
    assert problem["global_batch"] == 256
    curves = {curve["device"]: curve["epochs"][0] for curve in problem["job"]["curves"]}
    assert curves["V100-SXM2-16GB"]["batch_size"] == 32
    # One of eight computes the whole epoch alone, without the exchange.
    assert 4 * 600 < curves["V100-SXM2-16GB"]["epoch_latency_s"] < 8 * 600
    assert answered(capsys, "plan", "solve", *run)["status"] == "optimal"


def test_what_the_run_itself_shows_is_not_said_to_be_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    told = ("--gpu-model", "2xT4", "--epochs", "4000", "--targets", "T4", "--providers", "aws")
    group = ("--group", "aws/us-east-1/g4dn.xlarge=2@256")
    guessed = answered(capsys, "plan", "estimate", "--epoch-s", "13", *told, *group)
    assert not any("nobody measured" in note for note in guessed["notes"])
    assert "gradients as of most jobs" in guessed["notes"][0]
    seen = answered(capsys, "plan", "estimate", "--trace", TRACE, "--role", "17.5s=epoch", *told, *group)
    assert not any("gradients as of most jobs" in note for note in seen["notes"])
    assert main(["plan", "init", "--trace", TRACE, *told]) == 0
    assert "as seen, from PCIe rates" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "solve"), "give a PROBLEM file, or --trace TRACE"),
        (("plan", "solve", "--trace", TRACE), "needs --epochs N"),
        (("plan", "init", "job.toml"), "init writes a problem file from a run"),
        (("plan", "solve", "job.toml", "--epochs", "3"), "--epochs belongs to a run"),
        (("plan", "solve", "--epochs", "3"), "give one of --trace"),
        (("plan", "solve", "--run", "3f", "--epochs", "3"), "--run needs --collector"),
        (("advise", TRACE, "--epochs", "0"), "'0' is not above zero"),
        (("advise", TRACE, "--epochs", "999999999999"), "--epochs: give a whole number from 1 to 10,000,000, not"),
        (("advise", TRACE, "--epoch-s", "1e9"), "at most 366 days"),
        (("advise", TRACE, *JOB, "--quota", "99999"), "--quota: give a whole number from 1 to 10,000, not 99,999"),
        (("plan", "init", "--trace", TRACE, *JOB, "--batch-size", "2000000"), "--batch-size: give a whole number from"),
        (("plan", "init", "--trace", TRACE, *JOB, "--steps-per-epoch", "200000000"), "--steps-per-epoch: give a whole"),
        (("advise", TRACE, "--deadline", "24h", "--budget", "3"), "--deadline is for a plan, which needs --epochs N"),
        (("advise", TRACE, "--deadline", "soon"), "'soon' is no time above zero"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_asked_is_refused_with_what_can(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, *arguments)


def test_advice_is_the_job_where_it_would_run_and_what_to_rent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "advice.png"
    asked = ("advise", TRACE, *JOB, "--deadline", "24h", "--plot", str(picture))
    found = answered(capsys, *asked)
    plan = {name: value for name, value in found["plan"].items() if name not in ("format", "notes")}
    assert mismatches(found | {"plan": plan}, AdvisePayload) == []
    assert found["detection"]["role"] == "epoch"
    assert [row["gpu_model"] for row in found["predictions"]["predictions"]] == ["T4", "A10G"]
    assert (found["plan"]["status"], found["missing"]) == ("optimal", None)
    assert picture.stat().st_size > 10_000
    assert main(list(asked)) == 0
    shown = capsys.readouterr().out
    parts = ["12 epochs of 17.5 s", "one epoch takes 17.5 s on T4", "the best plan", "picture: "]
    assert [part for part in parts if part in shown] == parts
    assert shown.index("12 epochs") < shown.index("one epoch takes") < shown.index("the best plan")


def test_without_epochs_advice_ends_where_a_plan_would_begin(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "advise", TRACE)
    assert found["plan"] is None
    assert "--epochs N says how long the job is" in found["missing"]
    assert len(found["predictions"]["predictions"]) > 10


def test_a_trace_that_does_not_name_its_gpu_still_says_what_the_job_is(
    unnamed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "advise", unnamed, *JOB[2:], code=1)
    assert found["detection"]["verdict"] == "epochs"
    assert found["predictions"] is None
    assert "--gpu-model NAME" in found["missing"]
    assert answered(capsys, "advise", unnamed, *JOB[2:], "--gpu-model", "T4")["plan"]["status"] == "optimal"


def test_what_no_plan_can_do_is_answered_with_the_nearest_one_or_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "advise", TRACE, *JOB, "--deadline", "1s", code=1)
    assert "overhead" in found["missing"]
    found = answered(capsys, "advise", TRACE, "--epochs", "9", "--targets", "H20", code=1)
    assert found["detection"]["verdict"] == "epochs"
    assert "nobody rents out H20-96GB" in found["missing"]
    found = answered(capsys, "advise", TRACE, *JOB, "--deadline", "10m", code=1)
    assert found["plan"]["status"] == "infeasible"
    assert found["plan"]["nearest"]["plan"] is not None


def test_what_nobody_rents_out_is_predicted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "advise", TRACE, "--targets", "TITAN X", "--epochs", "9", code=1)
    assert {row["gpu_model"] for row in found["predictions"]["predictions"]} > {"T4"}
    assert "nobody rents out" in found["missing"]
    found = answered(capsys, "advise", TRACE, *JOB[:4], "--targets", "TITAN X,T4", "--providers", "aws")
    assert any(note.startswith("nobody rents out") for note in found["plan"]["notes"])


def test_more_gpus_than_the_assumed_quota_has_are_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("--gpu-model", "1000x8xT4", "--epochs", "9", "--targets", "T4")
    assert "tell the quota, how many you may rent" in answered(capsys, "advise", TRACE, *run, code=1)["missing"]
    told = answered(capsys, "plan", "init", "--epoch-s", "600", *run, "--quota", "10000")
    assert told["catalog"][0]["quota"] == 10_000


def test_rubbish_is_refused_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rubbish.csv").write_bytes(bytes(range(256)) * 40)
    shutil.copy(TRACE, tmp_path / "cut.parquet")
    with (tmp_path / "cut.parquet").open("r+b") as file:
        file.truncate(1000)
    for name in ("rubbish.csv", "cut.parquet", "nowhere.csv"):
        assert name in refused(capsys, "advise", str(tmp_path / name), "--epochs", "9", code=1)

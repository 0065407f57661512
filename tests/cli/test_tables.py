"""What the tables of the most used commands look like on terminals of 80 and 60 columns, kept as text in ``tables/``.

``GPUSONDE_WRITE_TABLES=1 pytest tests/cli/test_tables.py`` writes the files anew; look at what changed.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.problem_documents import small_problem

from gpusonde.cli.main import main
from gpusonde.collector.client import (
    CycleInfo,
    EpochInfo,
    JobInfo,
    JobMember,
    JobSpan,
    RunEndEstimate,
    RunEpochs,
    RunInfo,
)
from gpusonde.service.durable_files import write_json

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).parent / "tables"
START = 1_763_900_000 * 10**9
SECOND = 10**9
HOUR = 3600 * SECOND
RUN = "20251123T121320-e95949f0"


def make_run(number: int, **changes: Any) -> RunInfo:
    known: dict[str, Any] = {
        "run_id": f"{RUN[:-1]}{number}",
        "agent_id": "node-7",
        "gpu_uuid": f"GPU-5b2c5a0a-0b0f-4c1e-9f0a-00000000000{number}",
        "product_name": "NVIDIA H100 80GB HBM3",
        "framebuffer_bytes": 80 << 30,
        "host_name": "gpu-node-17.cluster.example",
        "job_id": "4711",
        "scheduler": "slurm",
        "active": True,
        "start_unix_nano": START,
        "end_unix_nano": START + 3 * HOUR,
        "tick_count": 108_000,
        "missed_ticks": 0,
        "verdict": "epochs",
        "epoch_count": 24,
        "period_s": 412.3,
        "period_low_s": 405.1,
        "period_high_s": 420.9,
        "confidence": 0.93,
        "replayed": False,
    }
    return RunInfo(**known | changes)


def make_cycle(period_s: float, count: int, role: str, parent: int | None) -> CycleInfo:
    return CycleInfo(
        period_s=period_s, period_low_s=0.98 * period_s, period_high_s=1.02 * period_s, count=count, confidence=0.93,
        role=role, role_confidence=0.9, parent=parent, latest_starts_unix_nano=(), provisional=False,
    )  # fmt: skip


def make_job(job_id: str, state: str, reason: str, **changes: Any) -> JobInfo:
    member = JobMember(RUN, "node-7", "gpu-node-17", "GPU-0", "NVIDIA H100 80GB HBM3", True)
    known: dict[str, Any] = {
        "job_id": job_id,
        "scheduler": "slurm",
        "active": True,
        "start_unix_nano": START,
        "end_unix_nano": START + 3 * HOUR,
        "members": (member,),
        "state": state,
        "state_unix_nano": START + HOUR,
        "reason": reason,
        "confidence": 0.91,
        "history": (JobSpan("starting", START, START + SECOND), JobSpan("training", START + SECOND, START + HOUR)),
        "level": make_cycle(412.3, 24, "epoch", None),
        "progress_ratio": 0.24,
        "estimate": RunEndEstimate(24, 76, START + 10 * HOUR, START + 9 * HOUR, START + 11 * HOUR, "23 epochs"),
        "estimate_reason": "",
        "goodput_ratio": 0.97,
        "gpu_s": 10_800.0,
        "deviations": (),
    }
    return JobInfo(**known | changes)


class Collector:
    """A collector that has always seen the same."""

    def list_runs(self, **_asked: Any) -> list[RunInfo]:
        unknown = dict.fromkeys(("period_s", "period_low_s", "period_high_s", "confidence"), math.nan)
        return [make_run(0), make_run(1, active=False, replayed=True), make_run(2, job_id="", verdict="", **unknown)]

    def list_epochs(self, _run_id: str, **_asked: Any) -> RunEpochs:
        def epoch(index: int, status: str) -> EpochInfo:
            start = START + index * 412 * SECOND
            means = {"sm_active": 0.83, "dram_active": 0.41, "power_watts": 643.0, "gpu_utilization": 0.97}
            return EpochInfo(index, start, start + 412 * SECOND, 0.93, status, 1, 1.0, 265_000.0, means)

        statuses = "confirmed", "confirmed", "withdrawn", "confirmed", "provisional"
        return RunEpochs(
            "epochs",
            "24 cycles of 412.3 s repeat",
            tuple(epoch(i, status) for i, status in enumerate(statuses)),
            idle_share=0.021,
            stalled_share=0.013,
            cycles=(make_cycle(2.51, 3900, "step", 1), make_cycle(412.3, 24, "evaluation", None)),
            level=1,
            role="evaluation",
            run_state="training",
            run_state_confidence=0.91,
        )

    def list_jobs(self, **_asked: Any) -> list[JobInfo]:
        return [
            make_job("4711", "training", "24 cycles of 412 s repeat"),
            make_job("training-of-a-large-model-7f9c", "hung", "no progress for 31 minutes", estimate=None),
        ]


COMMANDS = {
    "detect": "detect tests/data/demo_trace.parquet",
    "predict": "predict --gpu-model T4 --epoch-s 60 --targets A100,H100,V100-SXM2-16GB,T4",
    "predict_matrix": "predict --gpu-model T4 --epoch-s 60 --targets A100,V100 --matrix",
    "plan_solve": "plan solve PROBLEM",
    "plan_pareto": "plan pareto PROBLEM",
    "workload_predict": "workload predict zoo:resnet50 --target-gpus A100,T4 --batch-size 32 --samples-per-epoch 50000",
    "runs": "runs",
    "epochs": f"epochs {RUN}",
    "jobs": "jobs",
    "gpus": "gpus",
    "offers": "offers --gpu T4",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A problem file, a collector, and the repository's own clock and folder."""
    for module in ("epochs", "jobs"):
        answering = f"gpusonde.cli.commands.{module}.connect"
        monkeypatch.setattr(answering, lambda _args: contextlib.nullcontext(Collector()))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    write_json(tmp_path / "problem.json", small_problem())
    yield str(tmp_path / "problem.json")
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", COMMANDS)
def test_tables_look_as_they_were_kept(
    name: str, width: int, here: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([here if word == "PROBLEM" else word for word in COMMANDS[name].split()]) == 0
    shown = capsys.readouterr().out
    kept = TABLES / f"{name}_{width}.txt"
    if os.environ.get("GPUSONDE_WRITE_TABLES"):
        kept.write_text(shown, encoding="utf-8")
    assert shown == kept.read_text(encoding="utf-8")
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("name", ["predict", "plan_pareto", "jobs", "detect"])
def test_an_answer_names_its_picture(name: str, here: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    words = [here if word == "PROBLEM" else word for word in COMMANDS[name].split()]
    assert main([*words, "--plot", str(picture)]) == 0
    assert f"picture: {picture}\n" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    for ending, begins in ((".svg", b"<?xml"), (".pdf", b"%PDF")):
        assert main([*words, "--plot", str(picture.with_suffix(ending))]) == 0
        assert picture.with_suffix(ending).read_bytes().startswith(begins)
    capsys.readouterr()
    assert main([*words, "--plot", str(tmp_path / "new" / "picture.png")]) == 1
    assert "make it first" in capsys.readouterr().err
    assert main([*words, "--plot", str(tmp_path / "picture.txt")]) == 2
    assert "end it with .png, .svg, .pdf" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_state_that_a_run_did_not_see_the_end_of_is_not_said_to_have_lasted_for_nothing(
    here: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A run ends with its last activity, which is where a silent hang begins.
    trained = JobSpan("training", START, START + 5 * SECOND)
    found = []
    for lasts_s in (0.0, 0.4, 700.0):
        hung = JobSpan("hung", START + 5 * SECOND, START + 5 * SECOND + round(lasts_s * SECOND))
        job = make_job("4711", "ended", "idle for 300 s", active=False, history=(trained, hung), estimate=None)
        monkeypatch.setattr(Collector, "list_jobs", lambda *_, job=job, **_asked: [job])
        assert main(["jobs", "4711"]) == 0
        found += [line for line in capsys.readouterr().out.splitlines() if " for " in line or " since " in line]
    assert [line.split("  ")[-1] for line in found if "training" in line or "hung" in line] == [
        "training for 5.00 s", "hung since then",
        "training for 5.00 s", "hung since then",
        "training for 5.00 s", "hung for 11.7 min or longer",
    ]  # fmt: skip

"""``gpusonde plan`` and ``monitor`` at a terminal: what a stranger gets right, and what is said about the rest."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support.page_files import write_page_files
from support.problem_documents import small_problem

from gpusonde.cli.main import main
from gpusonde.service.durable_files import write_json

CLI_PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
RUNS = ("--group", "t4=4@64")


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    write_json(tmp_path / "p.json", small_problem())
    return tmp_path / "p.json"


OF_32_GPUS = ["plan", "init", "--gpu-model", "4x8xA100", "--epoch-s", "100", "--epochs", "3"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command; return what it printed on stdout and stderr."""
    assert main(list(arguments)) == code
    return tuple(capsys.readouterr())  # type: ignore[return-value]


def reports(folder: Path, rows: list[dict[str, Any]]) -> str:
    """A file of reports."""
    path = folder / "progress.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ZONE = "aws/us-east-1{}/g4dn.12xlarge/spot"


def hanging_prices(folder: Path, asked: Path, go: Path, then: str = "") -> Path:
    """A problem whose prices a program prints at once, and when it is asked again only once a file is there."""
    table = "provider,region,zone,instance_type,time,usd_per_hour,preemptions_per_hour\n"
    row = "aws,us-east-1,us-east-1{},g4dn.12xlarge,{},{},0.05\n"
    now = datetime.now(timezone.utc).isoformat()
    first = table + row.format("a", now, 1.0) + row.format("b", now, 1.2) + row.format("c", now, 1.4)
    second = table + row.format("a", now, 1.0) + row.format("b", now, 1.2) + row.format("c", now, 0.1)
    (folder / "prices.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        f"asked, go, process = Path({str(asked)!r}), Path({str(go)!r}), Path({str(folder / 'process')!r})\n"
        "is_first = not asked.exists()\n"
        "process.write_text(str(os.getpid()))\n"
        "asked.open('a').write('asked')\n"
        f"if is_first:\n    print({first!r})\nelse:\n    {then}\n"
        f"    while not go.exists(): time.sleep(0.01)\n    print({second!r})\n"
    )
    command = json.dumps([sys.executable, "prices.py"])
    (folder / "job.toml").write_text(
        'format = "gpusonde.problem/1"\nglobal_batch = 256\niterations = 1000\n'
        "[job]\ngradients = { parameter_bytes = 1e8 }\n"
        '[[job.curves]]\ndevice = "Tesla T4"\nlargest_batch = 64\n'
        "probes = [ { batch_size = 16, total_s = 0.1 }, { batch_size = 64, total_s = 0.4 } ]\n"
        f"[[spot]]\ncommand = {command}\nquota = 4\nreread_s = 1\n"
    )
    return folder / "job.toml"


def test_the_examples_of_the_page_work_as_they_stand(tmp_path: Path) -> None:
    write_page_files(CLI_PAGE, tmp_path)
    examples = CLI_PAGE.read_text(encoding="utf-8").splitlines()
    for command in (
        "plan solve job.toml --out solution.json",
        "plan pareto job.toml",
        *(line.strip().removeprefix("gpusonde ") for line in examples if line.startswith("    gpusonde plan ")),
        "monitor job.toml --plan solution.json --progress progress.jsonl",
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gpusonde.cli", *command.split()],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_a_plan_is_shown_with_its_price_and_why(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "plan", "solve", str(problem))
    assert "the best plan" in out
    assert "$2.37" in out
    assert "what binds: deadline_s" in out
    assert "note: when gradients are ready is assumed" in out


def test_a_plan_is_printed_as_a_file_that_is_run_by_hand(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "plan", "solve", str(problem), "--emit", "slurm")
    assert out.startswith("#!/bin/bash\n")
    assert subprocess.run(["bash", "-n"], input=out, text=True, timeout=60, check=False).returncode == 0
    assert "the best plan" in err
    out, _ = said(capsys, "plan", "estimate", str(problem), *RUNS, "--emit", "k8s-job")
    assert "completions: 4" in out
    said(capsys, "plan", "pareto", str(problem), "--emit", "slurm", code=2)
    said(capsys, "--json", "plan", "solve", str(problem), "--emit", "slurm", code=2)


def test_no_file_is_printed_where_there_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "p.json", small_problem(deadline_s=60.0))
    out, err = said(capsys, "plan", "solve", str(tmp_path / "p.json"), "--emit", "slurm", code=1)
    assert out == ""
    assert "no plan keeps every limit" in err
    assert "the nearest plan" in err


def test_the_file_of_a_plan_that_breaks_a_limit_says_so(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = ("plan", "estimate", str(problem), "--group", "t4=2@128", "--emit", "slurm")
    out, err = said(capsys, *broken, code=1)
    assert out.splitlines()[1].startswith("# WARNING: the given plan breaks a limit: with 95 % confidence")
    assert "is missed" in out.splitlines()[1]
    assert "the given plan breaks a limit" in err
    out, _ = said(capsys, "plan", "estimate", str(problem), *RUNS, "--emit", "slurm")
    assert "WARNING" not in out


def test_no_plan_is_said_with_the_nearest_one_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "p.json", small_problem(deadline_s=60.0))
    out, _ = said(capsys, "plan", "solve", str(tmp_path / "p.json"), code=1)
    assert "no plan keeps every limit" in out
    assert "the nearest plan" in out
    out, _ = said(capsys, "plan", "pareto", str(tmp_path / "p.json"), code=1)
    assert "'gpusonde plan solve' says why" in out


def test_the_solution_that_was_written_can_be_estimated_and_watched(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solution = str(problem.with_name("s.json"))
    said(capsys, "plan", "solve", str(problem), "--out", solution)
    out, _ = said(capsys, "plan", "estimate", str(problem), "--plan", solution)
    assert "the deadline of 2.00 h is kept" in out
    progress = reports(problem.parent, [{"elapsed_s": 30.0, "completed_iterations": 130.0}])
    out, _ = said(capsys, "monitor", str(problem), "--plan", solution, "--progress", progress)
    assert "keep 4 x t4 @ 64" in out
    # What stands where nothing is said may be said.
    begins = ("--elapsed-s", "0", "--spent-usd", "0", "--completed-iterations", "0")
    assert said(capsys, "monitor", str(problem), "--plan", solution, "--progress", progress, *begins)[0] == out
    for option in begins[::2]:
        said(capsys, "monitor", str(problem), "--plan", solution, "--progress", progress, option, "-1", code=2)


def test_a_plan_that_breaks_a_limit_is_said_so(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "plan", "estimate", str(problem), "--group", "t4=2@128", code=1)
    assert "breaks a limit" in out
    assert "is missed" in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["plan", "solve", "nope.json"], 1, "nope.json: No such file"),
        (
            [*OF_32_GPUS, "--batch-size", "1048576"],
            2,
            "--batch-size: 1,048,576 on each of 32 GPUs are 33,554,432 a step",
        ),
        (
            [*OF_32_GPUS, "--batch-size", "524288", "--steps-per-epoch", "100000000"],
            2,
            "--steps-per-epoch: 100,000,000 with a batch of 524,288 on each of 32 GPUs are more than",
        ),
        ([*OF_32_GPUS, "--targets", "T44"], 2, "--targets: "),
        ([*OF_32_GPUS, "--providers", "amazon"], 2, "--providers: no provider of the catalogue is called 'amazon'"),
        (["plan", "solve", "p.json", "--quota", "4"], 2, "--quota belongs to a run, not to a problem file"),
        (["plan", "solve", "p.json", "--epoch-s", "4"], 2, "--epoch-s belongs to a run, not to a problem file"),
        (["plan", "estimate", "p.json"], 2, "--plan FILE or --group"),
        (["plan", "estimate", "p.json", "--group", "t4=4"], 2, "OFFER=MACHINES@BATCH"),
        (["plan", "estimate", "p.json", "--group", "k80=4@64"], 1, "p.json: plan.groups[0].offer"),
        (["plan", "estimate", "p.json", "--group", "t4=4@65"], 1, "260 samples per iteration"),
        (["plan", "estimate", "p.json", "--plan", "p.json"], 1, "a plan file begins with format"),
        (["plan", "solve", "p.json", "--group", "t4=4@64"], 2, "belong to estimate"),
        (["plan", "pareto", "p.json", "--method", "paper"], 2, "belongs to solve"),
        (["plan", "solve", "bad.toml"], 1, "bad.toml: no TOML"),
        (["plan", "solve", "typo.json"], 1, "did you mean 'deadline_s'"),
        (["plan", "solve", "p.json", "--collector", "127.0.0.1:1"], 1, "no collector answers"),
        (["plan", "solve", "counted.json"], 1, "device: '2x T4' is several GPUs"),
        (["plan", "solve", "query.json"], 1, "catalog[0].gpus: '8xV100' is several GPUs"),
        (["plan", "init", *OF_32_GPUS[2:], "--targets", "8xV100"], 2, "--targets: '8xV100' is several GPUs"),
        ([*OF_32_GPUS, "--batch-size", "8", "--out", "/dev/full"], 1, "/dev/full: is no regular file"),
        (["monitor", "p.json"], 2, "--progress FILE, or --run ID"),
        (["monitor", "p.json", "--run", "x"], 2, "--run needs --collector"),
        (["monitor", "p.json", "--progress", "p.json"], 1, "p.json:1:"),
        (["monitor", "p.json", "--progress", "bad.jsonl"], 1, "bad.jsonl:2: elapsed_s"),
        (["monitor", "p.json", "--progress", "cut.jsonl"], 1, "cut.jsonl:1: at character 16: no JSON"),
        (["plan", "solve", "p.json", "--out", "absent/s.json"], 1, "absent/s.json: there is no folder absent"),
        (["plan", "solve", "p.json", "--out", "."], 1, "is a folder"),
        (["train", "absent.csv", "--out", "absent/model"], 1, "absent/model: there is no folder absent"),
        (["report", "absent.csv", "--out", "absent/r.html"], 1, "absent/r.html: there is no folder absent"),
        (["profile", "job.py:make"], 2, "--out"),
        (["probe", "allreduce", "--fabric", "x", "--out", "absent/o"], 1, "absent/o: there is no folder absent"),
        (["probe", "allreduce", "--fabric", "x", "--out", "o", "--rank", "0"], 2, "come together"),
        (["probe", "allreduce", "--fabric", "x", "--out", "o", "--sizes", "3"], 2, "multiples of 4"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str],
    code: int,
    says: str,
    problem: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(problem.parent)
    Path("bad.toml").write_text("format = ")
    Path("bad.jsonl").write_text('{"elapsed_s": 1, "completed_iterations": 1}\n{"elapsed_s": "x"}\n')
    Path("cut.jsonl").write_text('{"elapsed_s": 1\n')
    write_json(Path("typo.json"), small_problem(dedline_s=1.0))
    offers = small_problem()["offers"]
    write_json(Path("counted.json"), small_problem(offers=[{**offers[0], "device": "2x T4"}]))
    write_json(Path("query.json"), small_problem(catalog=[{"gpus": ["8xV100"], "quota": 1}]))
    _, err = said(capsys, *arguments, code=code)
    assert says in err
    assert "this is a fault in gpusonde" not in err
    assert [line.startswith("gpusonde: error: ") for line in err.splitlines()].count(True) == 1


def test_the_key_at_fault_is_in_the_error_object(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(problem, small_problem(global_batch=0))
    out, _ = said(capsys, "plan", "solve", str(problem), "--json", code=1)
    error = json.loads(out)["error"]
    assert (error["type"], error["file"], error["field"]) == ("DocumentError", str(problem), "global_batch")


def test_reports_come_through_a_pipe_and_recommendations_are_appended_as_they_come(
    problem: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"elapsed_s": t, "completed_iterations": 4.2 * t} for t in range(0, 600, 30)]
    rows.append({"elapsed_s": 605, "machines": [{"offer": "t4", "machines": 2}],
                 "preempted": [{"offer": "t4", "machines": 2}]})  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(json.dumps, rows)) + "\n\n"))
    written = problem.with_name("out.jsonl")
    out, _ = said(capsys, "monitor", str(problem), *RUNS, "--progress", "-", "--out", str(written))
    kinds = [json.loads(line)["kind"] for line in written.read_text().splitlines()]
    assert kinds == ["keep", "launch"]
    assert "launch: " in out


@pytest.mark.parametrize("as_json", [False, True])
def test_a_watch_that_is_interrupted_tells_what_it_has_seen(
    problem: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    def lines() -> Iterator[str]:
        yield json.dumps({"elapsed_s": 60, "completed_iterations": 250}) + "\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", lines())
    picture = problem.with_name("watch.svg")
    watch = ("monitor", str(problem), *RUNS, "--progress", "-", "--plot", str(picture))
    out, err = said(capsys, *watch, *["--json"] * as_json, code=130)
    assert "% done after" in picture.read_text(encoding="utf-8")
    assert err == "interrupted\n"
    if as_json:
        assert [told["kind"] for told in json.loads(out)["recommendations"]] == ["keep"]
    else:
        assert f"picture: {picture}" in out


def test_a_watch_is_drawn_with_what_was_held_taken_away_and_refused(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"elapsed_s": t, "completed_iterations": 4.2 * t} for t in range(0, 600, 30)]
    picture = problem.with_name("watch.svg")
    watch = ("monitor", str(problem), *RUNS, "--plot", str(picture), "--progress")
    out, _ = said(capsys, *watch, reports(problem.parent, rows))
    assert f"picture: {picture}" in out
    quiet = picture.read_text(encoding="utf-8")
    assert "12 % done after 9.50 min" in quiet
    assert "<!-- deadline -->" in quiet
    assert "taken away" not in quiet
    rows.append({"elapsed_s": 605, "machines": [{"offer": "t4", "machines": 2}],
                 "preempted": [{"offer": "t4", "machines": 2}],
                 "refused": [{"offer": "v100", "machines": 1}]})  # fmt: skip
    said(capsys, *watch, reports(problem.parent, rows))
    eventful = picture.read_text(encoding="utf-8")
    assert "<!-- taken away -->" in eventful
    assert "<!-- refused -->" in eventful
    said(capsys, "monitor", str(problem), "--progress", reports(problem.parent, rows), "--plot", "absent/w.png", code=1)


def test_nothing_is_recommended_before_the_reports_are_there(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "monitor", str(problem), "--progress", str(problem.with_name("absent.jsonl")), code=1)
    assert out == ""
    assert "absent.jsonl: No such file" in err


def test_where_nothing_can_be_taken_away_no_plan_against_that_is_named(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"elapsed_s": 0, "completed_iterations": 0}]
    write_json(problem, small_problem(deadline_s=1e7))
    out, _ = said(capsys, "monitor", str(problem), "--progress", reports(problem.parent, rows))
    assert "launch: " in out
    assert "spot" not in out


def test_a_plan_on_demand_that_comes_too_late_is_not_said_to_keep_the_deadline(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"elapsed_s": 0, "completed_iterations": 0}]
    late = small_problem(deadline_s=900.0)
    late["offers"][0] |= {"billing": "spot", "preemptions_per_hour": 0.1}
    write_json(problem, late)
    out, _ = said(capsys, "monitor", str(problem), "--progress", reports(problem.parent, rows))
    assert "deadline or budget cannot be kept with confidence" in out
    assert "if all spot machines go" not in out


def test_a_recommendation_stands_until_machines_change(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"elapsed_s": float(t), "completed_iterations": 0.0} for t in range(0, 300, 20)]
    out, _ = said(capsys, "monitor", str(problem), "--progress", reports(problem.parent, rows), "--json")
    found = json.loads(out)["recommendations"]
    assert [row["kind"] for row in found] == ["launch"]
    assert found[0]["launch"] == [{"offer": "t4", "machines": 4}]


def test_jobs_of_several_files_share_their_machines(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same file twice is two equal jobs."""
    out, _ = said(capsys, "plan", "solve", str(problem), str(problem), "--out", str(tmp_path / "both.json"))
    assert "the best plans of all jobs" in out
    both = json.loads((tmp_path / "both.json").read_text())
    assert both["format"] == "gpusonde.joint_solution/1"
    assert [job["name"] for job in both["jobs"]] == ["small", "small (2)"]
    out, _ = said(capsys, "plan", "solve", str(problem), str(problem), "--budget", "1", code=1)
    assert "more than the budget of $1.00" in out
    fewer = small_problem()
    fewer["offers"][0]["quota"] = 1
    write_json(tmp_path / "fewer.json", fewer)
    _, err = said(capsys, "plan", "solve", str(problem), str(tmp_path / "fewer.json"), code=1)
    assert "offer t4 is one pool for all jobs, but its quota is 16 in small and 1 in small (2)" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pareto", "{p}", "{p}"), "pareto takes one problem file"),
        (("solve", "{p}", "{p}", "--emit", "slurm"), "--emit belongs to one problem file"),
        (("solve", "{p}", "{p}", "--method", "paper"), "--method belongs to one problem file"),
        (("solve", "{p}", "{p}", "--epochs", "3"), "--epochs belongs to a run"),
        (("solve", "{p}", "{other}"), "--objective: some jobs want least cost and some least time"),
    ],
)
def test_what_several_files_cannot_have_is_said(
    arguments: tuple[str, ...], words: str, problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "time.json", small_problem(objective="time"))
    paths = {"p": problem, "other": tmp_path / "time.json"}
    _, err = said(capsys, "plan", *(word.format(**paths) for word in arguments), code=2)
    assert words in err


@pytest.mark.parametrize("ends", [True, False])
def test_reports_go_on_while_prices_are_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: bool
) -> None:
    """The second time, the program that prints prices waits for a file; what it prints then counts at once."""
    asked, go, told = (tmp_path / name for name in ("asked", "go", "told.jsonl"))
    path = hanging_prices(tmp_path, asked, go)

    def lines() -> Iterator[str]:
        began = time.monotonic()
        yield json.dumps({"elapsed_s": 0, "completed_iterations": 0}) + "\n"
        while time.monotonic() < began + 1.0:  # of reread_s
            time.sleep(0.01)
        yield json.dumps({"elapsed_s": 20, "completed_iterations": 0}) + "\n"
        while asked.read_text() != "asked" * 2:
            time.sleep(0.01)
        yield json.dumps({"elapsed_s": 40, "machines": [], "refused": [{"offer": ZONE.format("a"), "machines": 1}]})
        assert ZONE.format("b") in told.read_text()
        if ends:
            go.touch()
            for elapsed_s in range(60, 60_000, 20):
                yield json.dumps({"elapsed_s": elapsed_s, "completed_iterations": 0}) + "\n"
                if ZONE.format("c") in told.read_text():
                    return
                time.sleep(0.01)

    monkeypatch.setattr(sys, "stdin", lines())
    out, err = said(capsys, "monitor", str(path), "--progress", "-", "--out", str(told), "--json")
    found = json.loads(out)["recommendations"]
    zones = "abc" if ends else "ab"
    assert [row["launch"][0]["offer"] for row in found] == [ZONE.format(zone) for zone in zones]
    assert [row["why"].partition("; prices are ")[2].partition(" old: ")[2] for row in found] == [
        "", "they are being read", *[""] * ends,
    ]  # fmt: skip
    assert "reports go on with the last ones" in err
    if not ends:
        # It was ended with the watch, not after a minute.
        process = int((tmp_path / "process").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_how_old_prices_are_is_said_where_they_can_no_longer_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, told = tmp_path / "asked", tmp_path / "told.jsonl"
    path = hanging_prices(tmp_path, asked, tmp_path / "go", "raise SystemExit(3)")

    def lines() -> Iterator[str]:
        began = time.monotonic()
        for failed in (1, 2):
            while time.monotonic() < began + 2.0 * failed:
                time.sleep(0.01)
            yield json.dumps({"elapsed_s": 20 * failed, "completed_iterations": 0}) + "\n"
        yield json.dumps({"elapsed_s": 60, "machines": [], "refused": [{"offer": ZONE.format("a"), "machines": 1}]})

    monkeypatch.setattr(sys, "stdin", lines())
    # However long a program takes to fail.
    monkeypatch.setattr("gpusonde.cli.commands.monitor._PRICES_WAIT_S", 60.0)
    out, err = said(capsys, "monitor", str(path), "--progress", "-", "--out", str(told), "--json")
    last = json.loads(out)["recommendations"][-1]
    assert last["launch"][0]["offer"] == ZONE.format("b")
    # The last report is one more where a program takes a second.
    failed = err.count("the last prices stay")
    assert failed >= 2
    assert re.search(rf"; prices are [\d.]+ s old: {failed} readings since have failed$", last["why"])

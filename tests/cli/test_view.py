"""``gpusonde view``: the page for files, which leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.wire_agent import wait_until

from gpusonde.cli.commands.view import agent_names

pytest.importorskip("uvicorn", reason="the page needs the extra web")

DEMO = Path(__file__).parents[1] / "data" / "demo_trace.parquet"


def gpusonde(*words, temporary, stdin=subprocess.DEVNULL):
    return subprocess.Popen(
        [sys.executable, "-m", "gpusonde.cli", *map(str, words)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )


def asked(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def test_a_file_is_shown_until_it_is_terminated_and_nothing_stays(tmp_path):
    viewing = gpusonde("view", DEMO, "--json", temporary=tmp_path)
    try:
        printed = json.loads(viewing.stdout.readline())
        assert printed["gpus"] == 1
        runs = []

        def is_analysed():
            runs[:] = asked(f"{printed['url']}v1/runs")["runs"]
            return runs and runs[0]["status"] == "RUN_STATUS_ENDED"

        wait_until(is_analysed, 120, "the end of the replay")
        assert (runs[0]["agent_id"], runs[0]["verdict"]) == ("demo_trace.parquet", "EPOCH_VERDICT_EPOCHS")
        viewing.send_signal(signal.SIGTERM)
        _, errors = viewing.communicate(timeout=120)
        assert (viewing.returncode, errors) == (0, "")
    finally:
        viewing.kill()
        viewing.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_none_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "trace.csv").write_text("nothing\n")
    viewing = gpusonde("view", tmp_path / "trace.csv", temporary=tmp_path)
    _, errors = viewing.communicate(timeout=120)
    assert viewing.returncode == 1
    assert "trace.csv" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def test_a_table_on_stdin_is_shown_with_what_its_columns_are_told_to_be_until_an_interrupt(tmp_path):
    table = tmp_path / "table.csv"
    rows = [f"{gpu},{90 if tick % 40 < 34 else 5}" for gpu in "ab" for tick in range(800)]
    table.write_text("\n".join(["trace_id,util", *rows, ""]))
    words = ("-", "--column", "util=gpu_utilization:percent", "--interval", "1s", "--gpu-model", "T4", "--json")
    (tmp_path / "view").mkdir()
    with table.open() as stdin:
        viewing = gpusonde("view", *words, temporary=tmp_path / "view", stdin=stdin)
    try:
        printed = json.loads(viewing.stdout.readline() or json.dumps({"said": viewing.stderr.read()}))
        assert printed.get("gpus") == 2, printed
        runs = []

        def are_analysed():
            runs[:] = asked(f"{printed['url']}v1/runs")["runs"]
            return len(runs) == 2 and all(run["status"] == "RUN_STATUS_ENDED" for run in runs)

        wait_until(are_analysed, 120, "the end of the replay")
        assert {(run["agent_id"], run["product_name"]) for run in runs} == {("stdin", "T4")}
        viewing.send_signal(signal.SIGINT)
        _, errors = viewing.communicate(timeout=120)
        assert (viewing.returncode, errors) == (0, "")
    finally:
        viewing.kill()
        viewing.wait()
    assert list((tmp_path / "view").iterdir()) == []


def test_one_gpu_of_a_file_is_shown_where_it_is_named(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("time_s,gpu_uuid,gpu_utilization\n" + "".join(f"{t},{g},0.5\n" for g in "ab" for t in range(60)))
    viewing = gpusonde("view", table, "--gpu", "b", "--json", temporary=tmp_path)
    try:
        printed = json.loads(viewing.stdout.readline() or json.dumps({"said": viewing.stderr.read()}))
        assert printed.get("gpus") == 1, printed
    finally:
        viewing.send_signal(signal.SIGINT)
        viewing.communicate(timeout=120)


def test_agents_are_called_as_files_are_and_never_as_a_password_is():
    paths = [Path(name) for name in ("a/run 1.csv", "b/run 1.csv", "-", "prom://me:se@cret@host?query=up")]
    assert agent_names(paths) == ["run-1.csv-1", "run-1.csv-2", "stdin", "host-query-up"]

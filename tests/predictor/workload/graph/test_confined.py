from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from gpusonde.predictor.workload.graph.subprocess import Answer, run_confined


def run(code: str, given: bytes = b"", *, timeout_s: float = 20.0, most_bytes: int = 1 << 20) -> Answer:
    return run_confined([sys.executable, "-I", "-c", code], given, timeout_s=timeout_s, most_bytes=most_bytes)


def test_large_input_and_output_cross_at_once() -> None:
    echo = "import sys\nwhile chunk := sys.stdin.buffer.read(1000): sys.stdout.buffer.write(chunk)"
    given = random.Random(1).randbytes(1 << 20)
    answer = run(echo, given)
    assert answer == Answer(given, "", 0, timed_out=False, overflowed=False)


def test_one_that_does_not_read_or_closes_its_input_stops_nobody() -> None:
    assert run("print('done')", bytes(1 << 20)).output == b"done\n"
    assert run("import os; os.close(0); print('done')", bytes(1 << 20)).output == b"done\n"


def test_one_that_is_silent_is_killed_in_time() -> None:
    started = time.monotonic()
    answer = run("import time; time.sleep(100)", timeout_s=0.5)
    assert answer.timed_out
    assert answer.exit_code == -9
    assert time.monotonic() - started < 10


def test_one_that_talks_too_much_is_killed() -> None:
    answer = run("import sys\nwhile True: sys.stdout.write('x' * 65536)", most_bytes=100_000)
    assert answer.overflowed
    assert len(answer.output) == 100_000


def test_what_it_leaves_behind_is_killed_and_holds_nobody_up(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        f"    while True: open({str(mark)!r}, 'a').write('x'); time.sleep(0.01)\n"
        "time.sleep(0.3); print('done')"
    )
    started = time.monotonic()
    assert run(code).output == b"done\n"
    assert time.monotonic() - started < 10
    size = mark.stat().st_size
    time.sleep(0.1)
    assert mark.stat().st_size == size


def test_it_inherits_neither_environment_nor_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET", "s")
    with (tmp_path / "open").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os; print('SECRET' in os.environ, sorted(os.listdir('/proc/self/fd')), os.getcwd())"
        assert run(code).output == b"False ['0', '1', '2', '3'] /\n"


def test_the_end_of_its_complaint_is_kept() -> None:
    answer = run("import sys; sys.stderr.write('x' * 100000 + 'end'); sys.exit(3)")
    assert answer.complaint.endswith("xend")
    assert len(answer.complaint) == 4000
    assert answer.exit_code == 3

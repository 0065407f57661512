"""Child processes that answer: in order, within limits, with nothing left behind."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.wire_agent import wait_until

from gpusonde.errors import ChildFaultError, ChildLostError, ChildTimeoutError
from gpusonde.service.child import Child, Purpose, pack, unpack

LIMIT_S = 60.0


@pytest.fixture
def start(monkeypatch):
    """Start children that run a function of ``support.child_answers``; they are ended afterwards."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    started = []

    def start(function, memory_bytes=0, **more):
        child = Child.start(Purpose(f"support.child_answers:{function}", "nothing", "tests", **more), memory_bytes)
        started.append(child)
        return child

    yield start
    for child in started:
        child.end()
        child.ended.result(LIMIT_S)
        assert not Path(f"/proc/{child.pid}").exists()


def gone(pid):
    """Ask whether a process has ended; nobody may have waited for it yet."""

    def is_gone():
        try:
            return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return is_gone


def test_large_questions_and_answers_cross_and_come_back_in_order(start):
    child = start("echo")
    questions = [random.Random(number).randbytes(1 << 20) for number in range(30)]
    asked = [child.ask(question, LIMIT_S) for question in questions]
    assert [answer.result(LIMIT_S) for answer in asked] == questions


def test_one_that_is_silent_is_killed_in_time_with_what_waits_behind(start):
    child = start("sleep")
    late, behind = child.ask(b"", 0.5), child.ask(b"", LIMIT_S)
    with pytest.raises(ChildTimeoutError, match=r"within 0\.5 s \(tests\.time_limit\)"):
        late.result(LIMIT_S)
    with pytest.raises(ChildLostError):
        behind.result(LIMIT_S)
    with pytest.raises(ChildLostError):
        child.ask(b"").result(LIMIT_S)
    assert not child.is_alive


def test_one_that_answers_too_much_is_killed(start):
    child = start("echo", max_answer_bytes=1000)
    assert len(child.ask(bytes(1000), LIMIT_S).result(LIMIT_S)) == 1000
    with pytest.raises(ChildLostError):
        child.ask(bytes(1001), LIMIT_S).result(LIMIT_S)


def test_a_fault_costs_its_own_question_only(start):
    child = start("fail_on_request")
    with pytest.raises(ChildFaultError, match="ZeroDivisionError: as told"):
        child.ask(b"fail", LIMIT_S).result(LIMIT_S)
    assert child.ask(b"x", LIMIT_S).result(LIMIT_S) == b"x"


def test_memory_is_bounded_and_its_want_is_told(start):
    child = start("allocate", memory_bytes=1 << 30)
    with pytest.raises(ChildLostError, match=r"more memory than tests\.memory_bytes"):
        child.ask(str(4 << 30).encode(), LIMIT_S).result(LIMIT_S)
    assert child.ask(b"1000", LIMIT_S).result(LIMIT_S) == b"1000"


def test_one_that_dies_is_noticed_before_it_is_asked_again(start):
    child = start("echo")
    assert child.ask(b"x").result(LIMIT_S) == b"x"
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not child.is_alive, LIMIT_S, "its end")
    with pytest.raises(ChildLostError):
        child.ask(b"x").result(LIMIT_S)


def test_one_whose_answers_cannot_be_made_is_lost(start):
    with pytest.raises(ChildLostError):
        start("no_such_function").ask(b"x", LIMIT_S).result(LIMIT_S)


def test_what_it_leaves_behind_is_killed(start):
    child = start("fork")
    left = int(child.ask(b"", LIMIT_S).result(LIMIT_S))
    assert not gone(left)()
    child.end()
    child.ended.result(LIMIT_S)
    wait_until(gone(left), LIMIT_S, "the end of what it started")


def test_an_end_does_not_wait_for_the_answer_under_way(start):
    child = start("sleep")
    asked = child.ask(b"")
    time.sleep(0.1)
    child.end()
    with pytest.raises(ChildLostError):
        asked.result(LIMIT_S)


def test_a_confined_one_inherits_neither_environment_nor_files_nor_folder(start, monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET", "s")
    with (tmp_path / "open").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        seen, _ = unpack(start("look_around", is_confined=True).ask(b"", LIMIT_S).result(LIMIT_S))
    assert "SECRET" not in seen["environment"]
    assert seen["folder"] == "/"
    assert str(tmp_path) not in str(seen["files"])
    assert seen["files"][:3] == ["/dev/null"] * 3


def test_what_a_child_prints_is_no_answer(start):
    assert start("print_loudly").ask(b"x", LIMIT_S).result(LIMIT_S) == b"x"


def test_a_child_ends_with_its_parent(tmp_path):
    code = (
        "from gpusonde.service.child import Child, Purpose\n"
        "child = Child.start(Purpose('support.child_answers:echo', 'nothing'))\n"
        "child.ask(b'').result(200)\n"
        "print(child.pid, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    wait_until(gone(int(found.stdout)), LIMIT_S, "its end")


def test_documents_and_contents_are_joined_and_taken_apart():
    assert unpack(pack({"a": [1, None]}, [b"", b"\0x"])) == ({"a": [1, None]}, [b"", b"\0x"])
    with pytest.raises(ValueError, match="JSON"):
        pack({"a": math.nan})

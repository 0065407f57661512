"""The demo's child processes: none is ever forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpusonde.cli.demo.processes import DemoProcess


def test_an_interrupt_while_a_child_starts_waits_until_it_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        process = popen(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    arguments = ["collector", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store")]
    child = DemoProcess("collector", arguments, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        child.start()
    assert child.exit_code is None
    child.stop()
    assert child.exit_code is not None


def test_starting_a_child_leaves_the_signal_handlers_as_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    child = DemoProcess("agent", ["--version"], tmp_path)
    child.start()
    child.stop()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before

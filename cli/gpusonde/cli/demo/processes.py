"""Child processes that never outlive the demo.

A child gets its own session, so that Ctrl-C reaches the demo alone, which then stops its children in order. Should the
demo be killed outright, the kernel ends the children: ``python -m gpusonde.cli.demo.processes PARENT ARGUMENT ...``
asks it to. That is done after the exec and not in a ``preexec_fn`` of the demo, which would fork a process in which
gRPC's threads run, and gRPC may abort the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from gpusonde.errors import CommandError

_STOP_GRACE_S = 15.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_S = 0.05

_log = logging.getLogger(__name__)


class DemoProcess:
    """One ``gpusonde`` subcommand in a process of its own.

    Args:
        name: For messages: ``collector``, ``agent``.
        arguments: Arguments of ``gpusonde``.
        directory: Folder for ``NAME.log`` (its stderr) and ``NAME.out`` (its stdout).
    """

    def __init__(self, name: str, arguments: Sequence[str], directory: Path) -> None:
        self.name = name
        self._log_path = directory / f"{name}.log"
        self._out_path = directory / f"{name}.out"
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        # A Ctrl-C between the fork and the assignment would leave a process that nobody knows.
        with self._log_path.open("wb") as log, self._out_path.open("wb") as out, _uninterrupted():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpusonde.cli.demo.processes", str(os.getpid()), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
                env=_environment() | {"TMPDIR": str(self._log_path.parent)},
            )
        _log.debug("%s is process %d: gpusonde %s", self.name, self._process.pid, " ".join(self._arguments))

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def stdout(self) -> str:
        """What it has printed."""
        return self._out_path.read_text(encoding="utf-8")

    def check(self) -> None:
        """Raise ``CommandError`` if the process ended with a failure."""
        code = self.exit_code
        if code is not None and code != 0:
            raise CommandError(
                f"the {self.name} that was started here ended with exit code {code}: {self.last_words()}"
            )

    def wait_until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait for a condition that the process brings about.

        Raises:
            CommandError: The process failed, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise CommandError(f"{what} did not happen within {timeout_s:.0f} s: {self.last_words()}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Ask the process to end (SIGTERM), then make it (SIGKILL). Safe to call twice and before ``start``."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            _log.warning("the %s did not stop within %.0f s and was killed", self.name, _STOP_GRACE_S)
        finally:
            # Also when a second Ctrl-C ends the wait: nothing stays behind.
            if process.poll() is None:
                process.kill()
                process.wait()

    def has_logged(self, words: str) -> bool:
        """Whether a line of its log holds these words."""
        return words in self._log_path.read_text(encoding="utf-8", errors="replace")

    def last_words(self) -> str:
        """The last lines that the process logged."""
        try:
            lines = self._log_path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError as error:
            return f"its log cannot be read ({error.strerror})"
        return " / ".join(line.strip() for line in lines[-6:] if line.strip()) or "it logged nothing"


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt inside the block, so that both clean up as Ctrl-C does.

    SIGHUP stays ignored where it is, as under nohup; SIGTERM always ends the demo.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    caught = [signal.SIGTERM, *_unignored(signal.SIGHUP)]
    before = [signal.signal(number, interrupt) for number in caught]
    try:
        yield
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put signals that end the demo off to the end of the block.

    With handlers and not with a signal mask: a child would inherit the mask.
    """
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in (signal.SIGTERM, *_unignored(signal.SIGINT, signal.SIGHUP))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        raise KeyboardInterrupt


def _unignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """The signals that whoever started this process has not told it to ignore, as shells do for background jobs."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _environment() -> dict[str, str]:
    """The environment without settings of this host's real agent and collector: the demo is its own."""
    settings = ("GPUSONDE_AGENT_", "GPUSONDE_COLLECTOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(settings)}


def _end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the demo has already ended")


if __name__ == "__main__":
    _end_with_parent(int(sys.argv[1]))
    from gpusonde.cli.main import main

    sys.exit(main(sys.argv[2:]))

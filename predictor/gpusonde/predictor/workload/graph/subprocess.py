"""Runs a program that is not trusted with what it is given: little time, a capped answer, nothing inherited."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

_CHUNK = 1 << 16
_COMPLAINT_BYTES = 4000
_PATIENCE_S = 0.02


@dataclass(frozen=True)
class Answer:
    """What a program left behind.

    Attributes:
        output: What it wrote to its standard output, at most as much as was allowed.
        complaint: The end of what it wrote to its standard error, for a person to read.
        exit_code: Below 0: the signal that ended it.
        timed_out: It did not end in time, and was killed.
        overflowed: It wrote more than was allowed, and was killed.
    """

    output: bytes
    complaint: str
    exit_code: int
    timed_out: bool
    overflowed: bool


def run_confined(
    command: Sequence[str],
    given: bytes,
    *,
    timeout_s: float,
    most_bytes: int,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a program to its end, or to the end of our patience.

    It has no environment but the one given, no open file but the three standard ones, and a session of its own, all of
    which is killed at the end: what it may use besides (memory, network, files) it has to be denied by ``command``.

    Args:
        command: Program and arguments.
        given: Its standard input.
        timeout_s: Seconds until it is killed.
        most_bytes: Output after which it is killed.
        folder: Working directory; "/" if not given.
        environment: Its environment; empty if not given.

    Raises:
        OSError: It cannot be started.
    """
    process = subprocess.Popen(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=True,
        start_new_session=True, cwd=folder or "/", env=dict(environment or {}),
    )  # fmt: skip
    exchange = _Exchange(process, given, most_bytes)
    try:
        in_time = exchange.run(time.monotonic() + timeout_s)
    finally:
        _kill(process)
        exchange.close()
    return Answer(
        bytes(exchange.output[:most_bytes]),
        exchange.complaint.decode("utf-8", "replace"),
        process.returncode,
        not in_time,
        len(exchange.output) > most_bytes,
    )


class _Exchange:
    """Feeds a process and takes what it says, both at once, so that no full pipe stops either side."""

    def __init__(self, process: subprocess.Popen[bytes], given: bytes, most_bytes: int) -> None:
        self._process = process
        # All three are pipes: it was started so.
        self._input, self._output, self._errors = (
            cast("IO[bytes]", each) for each in (process.stdin, process.stdout, process.stderr)
        )
        self._given = memoryview(given)
        self._most = most_bytes
        self.output = bytearray()
        self.complaint = bytearray()

    def run(self, until: float) -> bool:
        """Exchange until the process ends or has said too much; False if time is up first."""
        with selectors.DefaultSelector() as selector:
            for pipe in (self._input, self._output, self._errors):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_WRITE if pipe is self._input else selectors.EVENT_READ)
            while len(self.output) <= self._most:
                # What it started may hold the pipes open after its end, so that is looked for as well.
                has_ended = self._process.poll() is not None
                ready = [key.fileobj for key, _ in selector.select(0 if has_ended else _PATIENCE_S)]
                for each in ready:
                    if not self._turn(each):
                        selector.unregister(each)
                if has_ended and self._output not in ready:
                    return True
                if time.monotonic() > until:
                    return False
        return True

    def _turn(self, pipe: object) -> bool:
        """Write or read once; False if there is no more to do on this pipe."""
        try:
            if pipe is self._input:
                self._given = self._given[os.write(self._input.fileno(), self._given[:_CHUNK]) :]
                if not self._given:
                    self._input.close()
                return bool(self._given)
            if pipe is self._output:
                chunk = os.read(self._output.fileno(), _CHUNK)
                self.output += chunk
            else:
                chunk = os.read(self._errors.fileno(), _CHUNK)
                self.complaint = (self.complaint + chunk)[-_COMPLAINT_BYTES:]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(chunk)

    def close(self) -> None:
        """Close what is still open."""
        for pipe in (self._input, self._output, self._errors):
            with contextlib.suppress(OSError):
                pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The session that it was started in is its own: nobody else is hit.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()

"""``run_program``: somebody else's program, within a time, of which the last words are kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence

_MOST_SAID = 1000  # bytes
# What it has said is in the pipe when it ends; what it leaves running may hold the pipe for ever.
_LAST_WORDS_S = 1.0


def run_program(
    command: Sequence[str], timeout_s: float, *, environment: Mapping[str, str] | None = None, given: bytes = b""
) -> tuple[int, str]:
    """Run a program without a shell, and return its status and the end of what it printed, in one line.

    It is killed, with what it has started, when its time is up or the caller is interrupted.

    Args:
        command: The program and its arguments.
        timeout_s: How long it may take.
        environment: Its variables; None means those of this process.
        given: What it finds on stdin.

    Raises:
        OSError: It cannot be run.
        subprocess.TimeoutExpired: It takes longer.
    """
    said = bytearray()

    def listen(pipe: int) -> None:
        while chunk := os.read(pipe, 65_536):
            said.extend(chunk)
            del said[:-_MOST_SAID]
        os.close(pipe)

    with tempfile.TemporaryFile() as stdin:
        stdin.write(given)
        stdin.seek(0)
        readable, writable = os.pipe()
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=stdin, stdout=writable, stderr=writable, start_new_session=True
            )
        except BaseException:
            os.close(readable)
            raise
        finally:
            os.close(writable)
    listener = threading.Thread(target=listen, args=(readable,), daemon=True)
    listener.start()
    try:
        process.wait(timeout_s)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    listener.join(_LAST_WORDS_S)
    return process.returncode, " ".join(bytes(said).decode(errors="replace").split())[-200:]

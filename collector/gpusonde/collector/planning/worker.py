"""The process that answers questions about plans: ``python -m gpusonde.collector.planning.worker MEMORY_BYTES``.

It reads questions from standard input and writes answers to standard output, each JSON behind its length, and ends with
its input. A question that takes much longer than it may ends the process, also when nobody is left to do so.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

# Records of agents come first, then tracking.
_NICENESS = 5
# Where memory runs out, a question is lost and not the records.
_OOM_SCORE = "500"
_HEADER = struct.Struct("<Id")
_LENGTH = struct.Struct("<I")


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the questions end."""
    # Imported before readiness is said, so that the time limit is about the question.
    from gpusonde.collector.planning.answering import Answers  # noqa: PLC0415

    answer = Answers().answer
    answers.write(b"+")
    answers.flush()
    while len(header := questions.read(_HEADER.size)) == _HEADER.size:
        length, limit_s = _HEADER.unpack(header)
        data = questions.read(length)
        if len(data) < length:
            return
        # The collector ends us at the limit; this is for when it is gone.
        signal.setitimer(signal.ITIMER_REAL, 2.0 * limit_s + 1.0)
        found = json.dumps(_answer(answer, data), allow_nan=False).encode()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        answers.write(_LENGTH.pack(len(found)) + found)
        answers.flush()


def _answer(answer: Callable[[dict[str, Any]], dict[str, Any]], data: bytes) -> dict[str, Any]:
    try:
        return answer(json.loads(data))
    except MemoryError:
        return {"error": {"kind": "memory", "text": "the question needs more memory than planning.memory_bytes"}}
    except Exception as error:  # the client must get a status whatever happened, and the next question an answer
        return {"error": {"kind": "fault", "text": f"{type(error).__name__}: {error}"[:1000]}}


def main() -> None:
    """Serve standard input and output."""
    # Ctrl-C and systemd's stop reach the whole group; the collector ends us, in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid either
        os.nice(_NICENESS)
        limit = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()

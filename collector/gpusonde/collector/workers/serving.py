"""What a process that answers questions does besides answering them.

It reads questions from standard input and writes answers to standard output, each behind its length, and ends with its
input. A question that takes much longer than it may ends the process, also when nobody is left to do so.
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

# A question and the seconds it may take -> its answer.
Answer = Callable[[bytes, float], bytes]


def run(make_answer: Callable[[], Answer]) -> None:
    """Serve standard input and output until the questions end.

    Args:
        make_answer: Makes what answers; to be imported there, so that limits hold for imports too.
    """
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
    serve(sys.stdin.buffer, answers, make_answer)


def serve(questions: BinaryIO, answers: BinaryIO, make_answer: Callable[[], Answer]) -> None:
    """Answer until the questions end."""
    # Made before readiness is said, so that the time limit is about the question.
    answer = make_answer()
    answers.write(b"+")
    answers.flush()
    while len(header := questions.read(_HEADER.size)) == _HEADER.size:
        length, limit_s = _HEADER.unpack(header)
        data = questions.read(length)
        if len(data) < length:
            return
        # The collector ends us at the limit; this is for when it is gone.
        signal.setitimer(signal.ITIMER_REAL, 2.0 * limit_s + 1.0)
        found = answer(data, limit_s)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        answers.write(_LENGTH.pack(len(found)))
        answers.write(found)
        answers.flush()


def fault(error: BaseException, memory_option: str) -> dict[str, Any]:
    """Return the answer that says that there is none: the client must get a status whatever happened."""
    if isinstance(error, MemoryError):
        return {"error": {"kind": "memory", "text": f"the question needs more memory than {memory_option}"}}
    return {"error": {"kind": "fault", "text": f"{type(error).__name__}: {error}"[:1000]}}


def write_json(answer: dict[str, Any]) -> bytes:
    """Return an answer as it goes over the pipe."""
    return json.dumps(answer, allow_nan=False).encode()

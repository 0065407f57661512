"""The process that answers questions about workloads: ``python -m gpusonde.collector.workload.worker MEMORY_BYTES``.

Graphs come from strangers. They are read here and nowhere else in the collector: by readers that execute nothing,
within limits of size, time and memory, in a process that writes no files and can be ended.
"""

from __future__ import annotations

import contextlib
import resource
import signal

from gpusonde.collector.workers import pool


def make_answer() -> pool.Answer:
    """Return what answers."""
    from gpusonde.collector.workers.pool import unpack  # noqa: PLC0415
    from gpusonde.collector.workload.answering import Answers, make_parts  # noqa: PLC0415 - see pool.run

    answer = Answers(make_parts()).answer
    _write_no_files()

    def answer_bytes(data: bytes, _: float) -> bytes:
        try:
            return pool.write_json(answer(*unpack(data)))
        except Exception as error:  # the next question must get an answer too
            return pool.write_json(pool.fault(error, "workload.memory_bytes"))

    return answer_bytes


def _write_no_files() -> None:
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    pool.run(make_answer)

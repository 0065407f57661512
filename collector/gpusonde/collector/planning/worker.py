"""The process that answers questions about plans: ``python -m gpusonde.collector.planning.worker MEMORY_BYTES``."""

from __future__ import annotations

from gpusonde.collector.workers import pool


def make_answer() -> pool.Answer:
    """Return what answers: questions of ``wire`` in, JSON out."""
    from gpusonde.collector.planning.processes import Answers  # noqa: PLC0415 - see serving.run
    from gpusonde.collector.planning.wire import unpack_question  # noqa: PLC0415

    answer = Answers().answer

    def answer_json(data: bytes, limit_s: float) -> bytes:
        try:
            found = answer({**unpack_question(data), "time_limit_s": limit_s})
            return pool.write_json(found)
        except Exception as error:  # the next question must get an answer too
            return pool.write_json(pool.fault(error, "planning.memory_bytes"))

    return answer_json


if __name__ == "__main__":
    pool.run(make_answer)

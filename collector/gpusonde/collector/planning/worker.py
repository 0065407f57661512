"""The process that answers questions about plans: ``python -m gpusonde.collector.planning.worker MEMORY_BYTES``."""

from __future__ import annotations

from gpusonde.collector.workers import serving


def make_answer() -> serving.Answer:
    """Return what answers: questions of ``wire`` in, JSON out."""
    from gpusonde.collector.planning.answering import Answers  # noqa: PLC0415 - see serving.run
    from gpusonde.collector.planning.wire import unpack_question  # noqa: PLC0415

    answer = Answers().answer

    def answer_json(data: bytes, limit_s: float) -> bytes:
        try:
            found = answer({**unpack_question(data), "time_limit_s": limit_s})
            return serving.write_json(found)
        except Exception as error:  # the next question must get an answer too
            return serving.write_json(serving.fault(error, "planning.memory_bytes"))

    return answer_json


if __name__ == "__main__":
    serving.run(make_answer)

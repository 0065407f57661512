"""The process that answers questions about plans: ``python -m gpusonde.collector.planning.worker MEMORY_BYTES``."""

from __future__ import annotations

import json

from gpusonde.collector.workers import serving


def make_answer() -> serving.Answer:
    """Return what answers, JSON in and out."""
    from gpusonde.collector.planning.answering import Answers  # noqa: PLC0415 - see serving.run

    answer = Answers().answer

    def answer_json(data: bytes, limit_s: float) -> bytes:
        try:
            found = answer({**json.loads(data), "time_limit_s": limit_s})
            return serving.write_json(found)
        except Exception as error:  # the next question must get an answer too
            return serving.write_json(serving.fault(error, "planning.memory_bytes"))

    return answer_json


if __name__ == "__main__":
    serving.run(make_answer)

"""Why a question about plans has no answer, and the status that says so."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gpusonde.collector.query.errors import QueryError
from gpusonde.collector.workers.pool import BusyError, OutOfTimeError, ProcessLostError

_LOG = logging.getLogger(__name__)
_CODES = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "memory": grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class RefusedError(Exception):
    """A question whose answer is an error.

    Attributes:
        code: gRPC status.
    """

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        """Keep the status beside the text."""
        self.code = code
        super().__init__(text)


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that is none of an error.

    Raises:
        RefusedError: It is.
    """
    error = answer.get("error")
    if error is None:
        return answer
    code = _CODES.get(error["kind"])
    if code is None:
        _LOG.error("a question about plans failed: %s", error["text"])
        raise RefusedError(grpc.StatusCode.INTERNAL, "the question failed; see the collector's log")
    raise RefusedError(code, error["text"])


def refusal_reason(error: Exception) -> str:
    """Return the name that a refusal is counted under; empty for what is no refusal."""
    if isinstance(error, BusyError):
        return "planning_busy"
    if isinstance(error, OutOfTimeError):
        return "planning_time"
    return "planning_memory" if isinstance(error, ProcessLostError) else ""


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End a call with the status of an error."""
    text = str(error)
    if isinstance(error, (RefusedError, QueryError)):
        code = error.code
    elif isinstance(error, (BusyError, ProcessLostError)):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    elif isinstance(error, DecodeError):
        code, text = grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be decoded: {text[:200]}"
    elif isinstance(error, OutOfTimeError):
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        _LOG.error("a question about plans failed", exc_info=error)
        code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}; see the collector's log"
    await context.abort(code, text)
    raise AssertionError  # abort raises

"""Questions about plans on their way to the process that answers, and the status of those without an answer.

Messages cross the pipe as they came and become documents there: making documents of them takes long where they are
large, and the event loop has agents to serve.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from gpusonde.collector.messages import to_document
from gpusonde.errors import ChildBusyError, ChildFaultError, ChildLostError, ChildTimeoutError, RequestError
from gpusonde.planning.v1 import planning_pb2
from gpusonde.service.child import pack, unpack

_LOG = logging.getLogger(__name__)


def raise_errors(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that is none of an error.

    Raises:
        RequestError: It is.
    """
    error = answer.get("error")
    if error is None:
        return answer
    raise RequestError("INVALID_ARGUMENT", error["text"])


def refusal_reason(error: Exception) -> str:
    """Return the name that a refusal is counted under; empty for what is no refusal."""
    if isinstance(error, ChildBusyError):
        return "planning_busy"
    if isinstance(error, ChildTimeoutError):
        return "planning_time"
    return "planning_memory" if isinstance(error, ChildLostError) else ""


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End a call with the status of an error."""
    text = str(error)
    if isinstance(error, RequestError):
        code = grpc.StatusCode[error.status]
    elif isinstance(error, (ChildBusyError, ChildLostError)):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    elif isinstance(error, ChildFaultError):
        _LOG.error("a question about plans failed: %s", text)
        code, text = grpc.StatusCode.INTERNAL, "the question failed; see the collector's log"
    elif isinstance(error, DecodeError):
        code, text = grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be decoded: {text[:200]}"
    elif isinstance(error, ChildTimeoutError):
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        _LOG.error("a question about plans failed", exc_info=error)
        code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}; see the collector's log"
    await context.abort(code, text)
    raise AssertionError  # abort raises


def problem_document(problem: Message) -> dict[str, Any]:
    """Return a problem as a problem file holds it."""
    return {"format": "gpusonde.problem/1", **to_document(problem)}


def pack_question(
    question: Mapping[str, Any],
    messages: Mapping[str, Message] | None = None,
    reports: Sequence[planning_pb2.WatchJobRequest] = (),
) -> bytes:
    """Return a question as it goes over the pipe.

    Args:
        question: What of it is no message.
        messages: By key, of ``problem``, ``several``, ``plan`` and ``start``.
        reports: What came of a watched job.
    """
    parts = messages or {}
    head = {**question, "messages": list(parts)}
    return pack(head, [each.SerializeToString() for each in (*parts.values(), *reports)])


def unpack_question(data: bytes) -> dict[str, Any]:
    """Return a question as a document."""
    question, contents = unpack(data)
    names = question.pop("messages")
    for name, content in zip(names, contents, strict=False):
        question.update(_DOCUMENTS[name](content))
    reports = [_report(planning_pb2.WatchJobRequest.FromString(content)) for content in contents[len(names) :]]
    if reports:
        question["reports"] = [*reports, *question.get("reports", ())]
    return question


def _problem(data: bytes) -> dict[str, Any]:
    return {"problem": problem_document(planning_pb2.Problem.FromString(data))}


def _several(data: bytes) -> dict[str, Any]:
    message = planning_pb2.SolveProblemsRequest.FromString(data)
    return {**to_document(message), "problems": [problem_document(each) for each in message.problems]}


def _plan(data: bytes) -> dict[str, Any]:
    return {"plan": to_document(planning_pb2.Plan.FromString(data))}


def _start(data: bytes) -> dict[str, Any]:
    message = planning_pb2.WatchStart.FromString(data)
    start = {key: value for key, value in to_document(message).items() if key not in ("problem", "run_id")}
    return {"problem": problem_document(message.problem), "start": start}


def _report(message: planning_pb2.WatchJobRequest) -> dict[str, Any]:
    if message.WhichOneof("request") == "machines":
        return {"elapsed_s": message.machines.elapsed_s, **to_document(message.machines)}
    progress = message.progress
    return {"elapsed_s": progress.elapsed_s, "completed_iterations": progress.completed_iterations}


_DOCUMENTS = {"problem": _problem, "several": _several, "plan": _plan, "start": _start}

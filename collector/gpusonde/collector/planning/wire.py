"""Problems between messages and documents.

Messages cross the pipe to the process that answers as they came: making documents of them takes long where they are
large, and the event loop has agents to serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from gpusonde.collector.workers.documents import to_document
from gpusonde.collector.workers.framing import pack, unpack
from gpusonde.planning.v1 import planning_pb2


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
        messages: By key, of ``problem``, ``plan`` and ``start``.
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


_DOCUMENTS = {"problem": _problem, "plan": _plan, "start": _start}

"""Problems between messages and documents."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from gpusonde.collector.workers.documents import to_document


def problem_document(problem: Message) -> dict[str, Any]:
    """Return a problem as a problem file holds it."""
    return {"format": "gpusonde.problem/1", **to_document(problem)}

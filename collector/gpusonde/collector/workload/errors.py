"""Why one question of a request has no answer."""

from __future__ import annotations

from typing import Any

# Names of gpusonde.workload.v1.WorkloadErrorKind, lower case.
INVALID_REQUEST = "invalid_request"
MALFORMED_GRAPH = "malformed_graph"
GRAPH_TOO_LARGE = "graph_too_large"
UNSUPPORTED_GRAPH = "unsupported_graph"
DATA_DEPENDENT_GRAPH = "data_dependent_graph"
UNKNOWN_DEVICE = "unknown_device"
UNKNOWN_HOST = "unknown_host"
NO_EMBEDDING = "no_embedding"
OUT_OF_TIME = "out_of_time"
OUT_OF_MEMORY = "out_of_memory"
INTERNAL = "internal"

KINDS = (
    INVALID_REQUEST,
    MALFORMED_GRAPH,
    GRAPH_TOO_LARGE,
    UNSUPPORTED_GRAPH,
    DATA_DEPENDENT_GRAPH,
    UNKNOWN_DEVICE,
    UNKNOWN_HOST,
    NO_EMBEDDING,
    OUT_OF_TIME,
    OUT_OF_MEMORY,
    INTERNAL,
)
_LONGEST_TEXT = 1000


class WorkloadError(Exception):
    """A question without an answer; the others of its request have theirs.

    Attributes:
        kind: One of ``KINDS``.
        field: The field that is wrong, or empty.
        for_log: What the collector's log should hold of it, and strangers should not see; or empty.
    """

    def __init__(self, kind: str, text: str, field: str = "", for_log: str = "") -> None:
        """Keep kind, field and what is for the log beside the text."""
        self.kind = kind
        self.field = field
        self.for_log = for_log
        super().__init__(text)

    def document(self) -> dict[str, Any]:
        """Return it as a ``WorkloadError`` message has it; ``for_log`` is to be taken out before it is sent."""
        message = {"kind": self.kind, "text": str(self)[:_LONGEST_TEXT], "field": self.field}
        return {**message, "for_log": self.for_log} if self.for_log else message

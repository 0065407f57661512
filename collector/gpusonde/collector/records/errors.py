"""Why a record or a greeting is refused."""

from __future__ import annotations


class RecordError(ValueError):
    """A record that must not be stored.

    Attributes:
        field: Path of the offending field, for example ``batch.blocks[2].values``.
        problem: What is wrong with it.
    """

    def __init__(self, field: str, problem: str) -> None:
        """Keep the field and what is wrong with it."""
        self.field = field
        self.problem = problem
        super().__init__(f"field '{field}': {problem}")


class RecordTooLargeError(RecordError):
    """A record above the size that HelloAck announced."""


class MissingInventoryError(RecordError):
    """A record that refers to GPUs before its spool sent an Inventory."""

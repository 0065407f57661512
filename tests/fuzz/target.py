"""A decoder under test: it takes any bytes, and may raise the errors that it promises and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A decoder.

    Attributes:
        decode: Takes any bytes.
        seeds: Returns inputs that it takes.
        promised: Errors that it may raise.
        is_slow: An input takes milliseconds.
    """

    decode: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    promised: tuple[type[Exception], ...] = ()
    is_slow: bool = False

    def run(self, data: bytes) -> None:
        """Decode; promised errors are fine."""
        problem: Exception | None = None
        try:
            self.decode(data)
        except self.promised as error:
            problem = error
        # An error says what is wrong and does not repeat its input.
        assert problem is None or 0 < len(str(problem)) < 4000

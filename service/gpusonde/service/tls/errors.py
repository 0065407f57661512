"""What can be wrong with certificates, keys and tokens on disk."""

from __future__ import annotations


class TlsError(ValueError):
    """A certificate, key, authority or token file that cannot be used; the message names it and never its content.

    Attributes:
        path: The file at fault.
    """

    def __init__(self, path: str, problem: str) -> None:
        """Keep the path beside the problem."""
        self.path = path
        super().__init__(f"{path}: {problem}")

"""Why an embedding cannot be had, beside the graph's own errors (``GraphLimitError`` for one that is too large)."""

from __future__ import annotations


class EmbeddingError(ValueError):
    """No embedding."""


class EncoderWeightsError(EmbeddingError):
    """The weights of an encoder are damaged, or are not what their own description says."""

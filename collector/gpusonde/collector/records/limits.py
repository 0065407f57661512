"""Caps on everything that a client can send."""

from __future__ import annotations

from dataclasses import dataclass

_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Upper bounds on what one agent may send; beyond them a record is refused, never truncated.

    Attributes:
        record_bytes: Serialised size of one record.
        agents: Agents with an open stream at the same time.
        gpus: Entries of an inventory.
        metrics: Columns of an inventory.
        blocks: Blocks of one batch.
        ticks: Ticks of one block.
        items: Bindings, events and other repeated entries of one record.
        text: Characters of one string.
        labels: Labels of one job binding.
    """

    record_bytes: int = 4 * _MEBIBYTE
    agents: int = 2000
    gpus: int = 128
    metrics: int = 128
    blocks: int = 1024
    ticks: int = 36_000
    items: int = 4096
    text: int = 256
    labels: int = 64


# What the store holds has passed the limits of its day; reading it back must not depend on today's.
STORED_LIMITS = Limits(
    record_bytes=1 << 28, gpus=1 << 20, metrics=1 << 16, blocks=1 << 20, ticks=1 << 24, items=1 << 20, text=1 << 16,
    labels=1 << 16,
)  # fmt: skip

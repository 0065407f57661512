"""What an agent said about one GPU, in the order in which it said it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpusonde.collector.records.model import Binding, Position
from gpusonde.collector.storage.samples import Samples, split_by_position


@dataclass(frozen=True)
class TicksArrived:
    """Ticks, in order of arrival."""

    samples: Samples


@dataclass(frozen=True)
class BindingArrived:
    """A job took the GPU or left it."""

    position: Position
    binding: Binding


@dataclass(frozen=True)
class SourceEndArrived:
    """The finite source behind the GPU is exhausted."""

    position: Position


Mark: TypeAlias = BindingArrived | SourceEndArrived
Arrival: TypeAlias = TicksArrived | BindingArrived | SourceEndArrived


def in_order_of_arrival(pieces: Iterable[Samples], marks: Sequence[Mark]) -> Iterator[Arrival]:
    """Merge ticks with the marks between them; both are in order of arrival."""
    waiting = list(marks)
    for piece in pieces:
        if not len(piece):
            continue
        due = [mark for mark in waiting if mark.position <= piece.last_position]
        waiting = waiting[len(due) :]
        for part, mark in zip(split_by_position(piece, [m.position for m in due]), [*due, None], strict=True):
            if len(part):
                yield TicksArrived(part)
            if mark:
                yield mark
    yield from waiting

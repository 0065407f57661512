"""``ReportedEpochs``: the epochs of a run that were reported, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from gpusonde.epoch_detect.result import EpochDetection
from gpusonde.epoch_detect.stored import check, read_as

_SAME_LEVEL = 0.1  # by which the periods of one level may differ between two analyses
_STILL_REAL = 0.3  # confidence in a level that was told: its cycles stay cycles of the run
_SAME_EPOCH = 0.15  # of the shorter period, by which a cycle may differ from that of another level to be the same
_MOVED_EPOCH = 0.5  # periods by which it may differ from what was reported: beyond that it is another epoch
_MOVED = 0.05  # periods by which a reported epoch may differ from the latest analysis before it is revised


class EpochStatus(str, Enum):
    """What the tracker thinks of an epoch; members compare equal to their text."""

    PROVISIONAL = "provisional"  # of a level that is not confirmed, and not reported
    CONFIRMED = "confirmed"
    OTHER_LEVEL = "other_level"  # was reported, and is a cycle of the run still, of another level than the one told now
    WITHDRAWN = "withdrawn"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class TrackedEpoch:
    """An epoch that was found.

    Attributes:
        index: Identifies it within the run; never reused once it has been reported. Order the epochs by ``start_s``,
            not by this.
        start_s: Start on the time axis of the ticks.
        end_s: End.
        confidence: That of the detection which reported or last revised it, 0..1; once the run has ended, of the last.
        status: One of :class:`EpochStatus`. The next look may find others than the ``provisional`` ones; only those
            and the ``confirmed`` ones are epochs, or cycles, of the answer.
        revision: How often the tracker had changed its mind about the run when this last changed.
    """

    index: int
    start_s: float
    end_s: float
    confidence: float
    status: str
    revision: int

    @property
    def stands(self) -> bool:
        """Whether it belongs to the answer: it was not withdrawn, and is of the level that is told."""
        return self.status in (EpochStatus.PROVISIONAL, EpochStatus.CONFIRMED)


class EventKind(str, Enum):
    """What happened to an epoch.

    ``revised`` says that its times or its status are others, ``confirmed`` how sure the last look at a run is of it.
    """

    REPORTED = "reported"
    CONFIRMED = "confirmed"
    REVISED = "revised"
    WITHDRAWN = "withdrawn"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class EpochEvent:
    """A change of the list of epochs; ``epoch`` is as it is after it."""

    kind: str
    epoch: TrackedEpoch


@dataclass
class _Tracked:
    """An epoch that was reported, and not withdrawn.

    Attributes:
        epoch: As it was reported or revised last.
        missed: How many looks in a row have not found it.
        period_s: Of its level.
    """

    epoch: TrackedEpoch
    missed: int = 0
    period_s: float = 0.0


@dataclass(frozen=True)
class Stretch:
    """A part of a run in which cycles of one level were reported.

    Attributes:
        period_s: Of the level.
        start_s: Where the first of them starts.
        end_s: Where the last of them ends.
    """

    period_s: float
    start_s: float
    end_s: float

    def holds(self, epoch: TrackedEpoch, period_s: float) -> bool:
        """Say whether an epoch of a level of some period is one of them."""
        return alike(self.period_s, period_s) and self.start_s <= epoch.start_s and epoch.end_s <= self.end_s


# What is stored of an epoch, and of one that was not withdrawn.
_OF_EPOCH = tuple[int, float, float, float, EpochStatus, int]
_OF_ENTRY = tuple[int, float]
_EPOCH_VALUES = 6


def _epoch_of(row: list[Any]) -> TrackedEpoch:
    index, start_s, end_s, confidence, status, revision = read_as(_OF_EPOCH, row)
    check(bool(np.isfinite([start_s, end_s, confidence]).all()), "times of an epoch")
    return TrackedEpoch(index, start_s, end_s, confidence, str(status), revision)


def _entry_of(row: list[Any]) -> _Tracked:
    epoch, rest = row[:_EPOCH_VALUES], row[_EPOCH_VALUES:]
    # Releases before did not say of which period its level was.
    missed, period_s = read_as(_OF_ENTRY, [*rest, 0.0] if len(rest) == 1 else rest)
    return _Tracked(_epoch_of(epoch), missed, period_s)


class ReportedEpochs:
    """The epochs of a run that were reported.

    Attributes:
        revision: How often the tracker has changed its mind about the run.
        next_index: Of the next epoch that is reported.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.next_index = 0
        self._entries: list[_Tracked] = []
        self._withdrawn: list[TrackedEpoch] = []

    @property
    def epochs(self) -> list[TrackedEpoch]:
        """All of them, whatever their status, in no order."""
        return [*(entry.epoch for entry in self._entries), *self._withdrawn]

    def fields(self) -> dict[str, Any]:
        """Return what :meth:`from_fields` makes the same of, for JSON."""
        return {
            "next_index": self.next_index,
            "revision": self.revision,
            "entries": [[*_row(e.epoch), e.missed, e.period_s] for e in self._entries],
            "withdrawn": [_row(e) for e in self._withdrawn],
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ReportedEpochs:
        """Rebuild it; for ``stored.reading``, which makes one error of whatever else is stored."""
        found = cls()
        found.next_index, found.revision = (read_as(int, fields[name]) for name in ("next_index", "revision"))
        found._entries = [_entry_of(row) for row in fields["entries"]]
        found._withdrawn = [_epoch_of(row) for row in fields["withdrawn"]]
        return found

    def in_doubt(self, found: EpochDetection) -> list[Stretch]:
        """Return where cycles were reported that an answer neither has as its epochs nor knows the level of."""
        matches, _ = _match(self._entries, *_spans(found))
        doubtful: list[Stretch] = []
        for entry, span in zip(self._entries, matches, strict=True):
            epoch = entry.epoch
            if span is not None or _is_cycle_of(found, entry):
                continue
            for i, known in enumerate(doubtful):
                if alike(known.period_s, entry.period_s):
                    first_s, last_s = min(known.start_s, epoch.start_s), max(known.end_s, epoch.end_s)
                    doubtful[i] = Stretch(known.period_s, first_s, last_s)
                    break
            else:
                doubtful.append(Stretch(entry.period_s, epoch.start_s, epoch.end_s))
        return doubtful

    def reconcile(
        self, found: EpochDetection, *, ended: bool = False, elsewhere: bool = False, held: Sequence[Stretch] = ()
    ) -> list[EpochEvent]:
        """Compare what was reported with what was found now.

        Args:
            found: The epochs that stand from now on.
            ended: Whether the run is over.
            elsewhere: Whether they are of another level than those before.
            held: Where cycles that were reported are some, of a level that the run has there only.
        """
        spans, period = _spans(found)
        # Cycles of a level that was told before may be those of this one.
        anew = ended or elsewhere
        same = [e for e in self._entries if anew or e.epoch.stands]
        kept = [e for e in self._entries if not (anew or e.epoch.stands)]
        matches, fresh = _match(same, spans, period)
        events: list[EpochEvent] = []
        for entry, span in zip(same, matches, strict=True):
            if span is None:
                entry.missed += 1
                if not anew and entry.missed < 2:
                    kept.append(entry)
                else:
                    self._set_aside(entry, found, held, kept, events)
                continue
            kept.append(entry)
            entry.missed, entry.period_s, epoch = 0, period, entry.epoch
            moved = max(abs(epoch.start_s - span[0]), abs(epoch.end_s - span[1]))
            if moved > (0.0 if ended else _MOVED * period) or not epoch.stands:
                self._change(
                    entry, events, start_s=span[0], end_s=span[1], confidence=found.confidence,
                    status=EpochStatus.CONFIRMED,
                )  # fmt: skip
            # The last analysis judges all epochs, also those that it did not move.
            if ended and entry.epoch.confidence != found.confidence:
                entry.epoch = replace(entry.epoch, confidence=found.confidence)
                events.append(EpochEvent(EventKind.CONFIRMED, entry.epoch))
        if any(e.kind in (EventKind.REVISED, EventKind.WITHDRAWN) for e in events):
            self.revision += 1
        for start, end in fresh:
            epoch = TrackedEpoch(self.next_index, start, end, found.confidence, EpochStatus.CONFIRMED, self.revision)
            self.next_index += 1
            kept.append(_Tracked(epoch, period_s=period))
            events.append(EpochEvent(EventKind.REPORTED, epoch))
        self._entries = kept
        return events

    def _set_aside(
        self,
        entry: _Tracked,
        found: EpochDetection,
        held: Sequence[Stretch],
        kept: list[_Tracked],
        events: list[EpochEvent],
    ) -> None:
        """Keep what is none of the epochs any more as a cycle of its level, where the run has that still."""
        if _is_cycle_of(found, entry) or any(stretch.holds(entry.epoch, entry.period_s) for stretch in held):
            kept.append(entry)
            self._change(entry, events, status=EpochStatus.OTHER_LEVEL)
        else:
            self._change(entry, events, status=EpochStatus.WITHDRAWN)
            self._withdrawn.append(entry.epoch)

    def _change(self, entry: _Tracked, events: list[EpochEvent], **fields: Any) -> None:
        """Change what was reported of an epoch, and say so where that is news."""
        changed = replace(entry.epoch, **fields)
        if changed != entry.epoch:
            entry.epoch = replace(changed, revision=self.revision + 1)
            kind = EventKind.WITHDRAWN if changed.status == EpochStatus.WITHDRAWN else EventKind.REVISED
            events.append(EpochEvent(kind, entry.epoch))


def alike(one_s: float, other_s: float) -> bool:
    """Say whether two periods may be of one level; none is that of no level."""
    return abs(one_s - other_s) <= _SAME_LEVEL * min(one_s, other_s)


def has_level(found: EpochDetection, period_s: float) -> bool:
    """Say whether a tree has a level of such a period."""
    return any(alike(cycle.period_s, period_s) and cycle.confidence >= _STILL_REAL for cycle in found.cycles)


def _is_cycle_of(found: EpochDetection, entry: _Tracked) -> bool:
    """Say whether what is none of the epochs of an answer is a cycle of another level of it."""
    if alike(entry.period_s, found.period_s):
        return False
    # Pauses between cycles lengthen the period that was told with them, and not each of them.
    length_s = entry.epoch.end_s - entry.epoch.start_s
    of_level = has_level(found, length_s) and not alike(length_s, found.period_s)
    return of_level or has_level(found, entry.period_s) or _leaves_out(found, entry.epoch)


def _leaves_out(found: EpochDetection, epoch: TrackedEpoch) -> bool:
    """Say whether an answer has epochs, and none where another one was: what lies there is of another tempo."""
    inside = (found.epoch_starts_s < epoch.end_s) & (found.epoch_ends_s > epoch.start_s)
    return found.epoch_starts_s.size > 0 and not inside.any()


def _spans(found: EpochDetection) -> tuple[list[tuple[float, float]], float]:
    """Return start and end of each epoch, and the period; 0 where there are none."""
    spans = list(zip(found.epoch_starts_s.tolist(), found.epoch_ends_s.tolist(), strict=True))
    return spans, found.period_s if spans else 0.0


def _row(epoch: TrackedEpoch) -> list[float | int | str]:
    return [epoch.index, epoch.start_s, epoch.end_s, epoch.confidence, str(epoch.status), epoch.revision]


def _match(
    entries: list[_Tracked], spans: list[tuple[float, float]], period_s: float
) -> tuple[list[tuple[float, float] | None], list[tuple[float, float]]]:
    """Pair epochs with spans, of cycles of a period, whose two ends are near; return partners, and spans left over."""
    starts = np.array([s for s, _ in spans])
    taken = np.zeros(len(spans), dtype=bool)
    partners: list[tuple[float, float] | None] = []
    for entry in entries:
        epoch, partner = entry.epoch, None
        if len(spans):
            of_level = entry.period_s == 0.0 or alike(entry.period_s, period_s)
            # What were cycles of another level are of this one only where they are the same.
            near_s = _MOVED_EPOCH * period_s if of_level else _SAME_EPOCH * min(entry.period_s, period_s)
            nearest = int(np.argmin(np.abs(starts - epoch.start_s)))
            span = spans[nearest]
            near = max(abs(span[0] - epoch.start_s), abs(span[1] - epoch.end_s)) < near_s
            if near and not taken[nearest]:
                taken[nearest], partner = True, span
        partners.append(partner)
    return partners, [span for span, used in zip(spans, taken, strict=True) if not used]

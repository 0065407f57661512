"""``StateSpans``: what was said of a job, stretch by stretch; what is known only later is said again of its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from gpusonde.epoch_detect.stored import read_as

_MOST_SPANS = 64


class JobState(str, Enum):
    """What a job does; members compare equal to their text."""

    STARTING = "starting"
    TRAINING = "training"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    STALLED = "stalled"  # a pause longer than any it had; whether it comes back cannot be told
    HUNG = "hung"  # likewise, and no rank saves or loads: its processes, its bus and its disks rest, too
    SERVING = "serving"
    IDLE = "idle"
    SLOWER = "slower"
    ENDED = "ended"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


Word = tuple[JobState, str, float]  # state, reason, confidence


@dataclass(frozen=True)
class StateSpan:
    """A stretch of one state.

    Attributes:
        state: What the job did.
        start_s: Since when, on the time axis of the ticks.
        end_s: Until when it is known.
        reason: Why, in words and figures.
        confidence: How sure, 0..1; a rule's own estimate, not calibrated.
    """

    state: JobState
    start_s: float
    end_s: float
    reason: str
    confidence: float


class StateSpans:
    """The newest stretches, at most 64, the last of them going on; one that has not changed stays the same object."""

    def __init__(self) -> None:
        self._kept: deque[StateSpan] = deque(maxlen=_MOST_SPANS)

    @property
    def all(self) -> tuple[StateSpan, ...]:
        """All that are kept, in order of time."""
        return tuple(self._kept)

    @property
    def last(self) -> StateSpan | None:
        """The newest; None before there is one."""
        return self._kept[-1] if self._kept else None

    def add(self, word: Word, time_s: float) -> None:
        """Say a word of the time up to now, since the last one was said."""
        state, reason, confidence = word
        last = self._kept[-1] if self._kept else None
        if last is not None and last.state == state:
            self._kept[-1] = StateSpan(state, last.start_s, time_s, reason, confidence)
            return
        begin_s = last.end_s if last is not None else time_s
        self._kept.append(StateSpan(state, begin_s, time_s, reason, confidence))

    def extend(self, time_s: float) -> None:
        """Say the last word of the time up to now, too."""
        if self._kept:
            self._kept[-1] = replace(self._kept[-1], end_s=max(time_s, self._kept[-1].end_s))

    def rename(self, states: Collection[JobState], word: Word, begin_s: float, end_s: float) -> None:
        """Say another word of the stretches of these states that reach into a time, from there on."""
        state, reason, confidence = word
        spans: list[StateSpan] = []
        found = False
        for span in self._kept:
            if span.state not in states or span.end_s <= begin_s or span.start_s >= end_s:
                # Who takes what has changed stops at the first one that has not.
                spans.append(replace(span) if found else span)
                continue
            found = True
            if span.start_s < begin_s:
                spans.append(replace(span, end_s=begin_s))
            spans.append(StateSpan(state, max(span.start_s, begin_s), span.end_s, reason, confidence))
        self._kept = deque(spans, maxlen=_MOST_SPANS)

    def replace_from(self, begin_s: float, word: Word, now_s: float) -> None:
        """Say of the time since ``begin_s`` what is known only now."""
        state, reason, confidence = word
        spans = self._kept
        while spans and spans[-1].start_s >= begin_s:
            spans.pop()
        if spans:
            spans[-1] = replace(spans[-1], end_s=begin_s)
        if spans and spans[-1].state == state:
            begin_s = spans.pop().start_s
        spans.append(StateSpan(state, begin_s, max(now_s, begin_s), reason, confidence))

    def fields(self) -> list[dict[str, Any]]:
        """What :meth:`of_fields` makes the same of."""
        return [asdict(span) for span in self._kept]

    @classmethod
    def of_fields(cls, fields: Any) -> StateSpans:
        """Rebuild them from :meth:`fields`."""
        made = cls()
        made._kept.extend(read_as(list[StateSpan], fields))
        return made

"""What a ``RunTracker`` knows of the run that is open, and the form in which that outlives the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gpusonde.collector.records.model import Binding, Position

NOWHERE = Position(0, 0)


class Resume(NamedTuple):
    """Where a new tracker has to begin in order to come to the same state as an old one.

    Attributes:
        position: It gets the records behind this one.
        not_before_unix_nano: Earlier ticks of the first of them belong to what is over already.
    """

    position: Position = NOWHERE
    not_before_unix_nano: int = 0


@dataclass
class OpenRun:
    """The open run.

    Attributes:
        run_id: Its name.
        job: The job that owns it, where one is known.
        start: First activity, Unix nanoseconds.
        first: Its first record.
        resume: Where a tracker begins that is to find it again.
        memory_floor: Bytes of device memory in use before it.
        memory_peak: Most bytes in use since.
        ticks: Ticks so far.
        missed: Ticks that the sampler skipped so far.
        last_active: Latest activity, Unix nanoseconds.
        active_ticks: ``ticks`` as of the latest activity: the run's own, once it is over.
        active_missed: ``missed`` as of then.
        active_position: Record of the latest activity.
    """

    run_id: str
    job: Binding | None
    start: int
    first: Position
    resume: Resume
    memory_floor: float
    memory_peak: float = 0.0
    ticks: int = 0
    missed: int = 0
    last_active: int = 0
    active_ticks: int = 0
    active_missed: int = 0
    active_position: Position = NOWHERE


@dataclass(frozen=True)
class RunState:
    """All that a run tracker knows while a run is open, but for the job bindings, which the store has.

    Attributes:
        run: The open run.
        last_time: Time of the newest tick, Unix nanoseconds.
        last_position: Newest record.
        memory: Bytes of device memory in use by the newest tick that tells; NaN when none did.
        has_activity: Whether the GPU has any activity ratio.
    """

    run: OpenRun
    last_time: int
    last_position: Position
    memory: float
    has_activity: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain values for :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RunState:
        """Rebuild a state.

        Raises:
            ValueError: A value of another kind than its field has.
            KeyError: A field is missing.
            TypeError: Something is no mapping or list.
        """
        run = fields["run"]
        counts = ("start", "ticks", "missed", "last_active", "active_ticks", "active_missed")
        return cls(
            OpenRun(
                run_id=text(run["run_id"]),
                job=None if run["job"] is None else _binding(run["job"]),
                first=position(run["first"]),
                resume=Resume(position(run["resume"][0]), whole(run["resume"][1])),
                memory_floor=number(run["memory_floor"]),
                memory_peak=number(run["memory_peak"]),
                active_position=position(run["active_position"]),
                **{name: whole(run[name]) for name in counts},
            ),
            last_time=whole(fields["last_time"]),
            last_position=position(fields["last_position"]),
            memory=number(fields["memory"]),
            has_activity=bool(fields["has_activity"]),
        )


def text(value: object) -> str:
    """Return a string.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")  # noqa: TRY004 - one exception for a file that does not fit
    return value


def whole(value: object) -> int:
    """Return a whole number that SQLite and NumPy hold.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r:.80} is no whole number")
    return value


def number(value: object) -> float:
    """Return a number.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{value!r:.80} is no number")  # noqa: TRY004
    return float(value)


def position(value: Sequence[object]) -> Position:
    """Return a position.

    Raises:
        ValueError: It is none.
    """
    spool, sequence = value
    return Position(whole(spool), whole(sequence))


def _binding(fields: Mapping[str, Any]) -> Binding:
    labels = {text(key): text(value) for key, value in fields["labels"].items()}
    return Binding(
        text(fields["gpu_uuid"]),
        text(fields["job_id"]),
        whole(fields["scheduler"]),
        whole(fields["start_unix_nano"]),
        whole(fields["end_unix_nano"]),
        labels,
    )

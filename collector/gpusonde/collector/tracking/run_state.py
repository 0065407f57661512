"""``FollowerState``: all that tracking knows of one GPU with an open run, as bytes and back, to outlive the process.

The bytes are the length of a JSON object (u32, little-endian), the object, and the state of the epoch tracker. File and
checksum around them are ``StateFiles``'s.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.store import UnusableStateError
from gpusonde.epoch_detect.progress import Shares
from gpusonde.service.wire import Binding

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
class RunTrackerState:
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
    def from_json(cls, fields: Mapping[str, Any]) -> RunTrackerState:
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


_LENGTH = struct.Struct("<I")
# What reading fields of another kind, number or depth than expected ends in.
_MISFITS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, struct.error)


@dataclass(frozen=True)
class EpochsState:
    """What ``RunEpochTracker`` knows of the run.

    Attributes:
        metrics: Names of the rows that the tracker gets.
        origin_unix_nano: Time 0 of the tracker.
        shares: The latest idle and stalled share.
        tracker: State of the epoch tracker.
        pace: What is known of how long its cycles take; empty where nobody followed that.
    """

    metrics: tuple[str, ...]
    origin_unix_nano: int
    shares: Shares
    tracker: bytes
    pace: str = ""


@dataclass(frozen=True)
class FollowerState:
    """State of a follower while a run is open.

    Attributes:
        agent_id: The agent.
        gpu_uuid: The GPU.
        policy: The rules by which the run was found; with other ones it may be another run.
        reached: Everything up to this record is in the state.
        runs: State of the run tracker.
        epochs: State of the run's epochs; None while another run of its job leads it.
        job_state: What the run's job does, where it leads it; see ``JobStates``.
    """

    agent_id: str
    gpu_uuid: str
    policy: Mapping[str, float]
    reached: Position
    runs: RunTrackerState
    epochs: EpochsState | None
    job_state: str = ""

    @property
    def run_id(self) -> str:
        """The open run."""
        return self.runs.run.run_id

    def encode(self) -> bytes:
        """Return the state as bytes."""
        epochs = self.epochs
        head = json.dumps(
            {
                "agent_id": self.agent_id,
                "gpu_uuid": self.gpu_uuid,
                "policy": dict(self.policy),
                "reached": self.reached,
                "runs": self.runs.to_json(),
                "job_state": self.job_state,
                **(_epochs_fields(epochs) if epochs else {}),
            }
        ).encode()
        return b"".join((_LENGTH.pack(len(head)), head, epochs.tracker if epochs else b""))

    @classmethod
    def decode(cls, data: bytes) -> FollowerState:
        """Rebuild a state.

        Raises:
            UnusableStateError: The bytes are none.
        """
        try:
            (length,) = _LENGTH.unpack_from(data)
            begin = _LENGTH.size + length
            if begin > len(data):
                raise ValueError("it is cut off")
            return cls._from_json(json.loads(data[_LENGTH.size : begin]), data[begin:])
        except _MISFITS as error:
            raise UnusableStateError(f"its content does not fit: {error!r}") from error

    @classmethod
    def _from_json(cls, fields: Mapping[str, Any], tracker: bytes) -> FollowerState:
        return cls(
            text(fields["agent_id"]),
            text(fields["gpu_uuid"]),
            {text(name): number(value) for name, value in fields["policy"].items()},
            position(fields["reached"]),
            RunTrackerState.from_json(fields["runs"]),
            _epochs_state(fields, tracker) if "metrics" in fields else None,
            # Releases before did not write it.
            text(fields.get("job_state", "")),
        )


def _epochs_fields(epochs: EpochsState) -> dict[str, Any]:
    return {
        "metrics": epochs.metrics,
        "origin_unix_nano": epochs.origin_unix_nano,
        "shares": [epochs.shares.idle, epochs.shares.stalled],
        "pace": epochs.pace,
    }


def _epochs_state(fields: Mapping[str, Any], tracker: bytes) -> EpochsState:
    idle, stalled = fields["shares"]
    return EpochsState(
        tuple(text(name) for name in fields["metrics"]),
        whole(fields["origin_unix_nano"]),
        Shares(number(idle), number(stalled)),
        tracker,
        text(fields.get("pace", "")),
    )

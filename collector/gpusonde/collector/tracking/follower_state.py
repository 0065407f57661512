"""``FollowerState``: all that tracking knows of one GPU with an open run, as bytes and back.

The bytes are the length of a JSON object (u32, little-endian), the object, and the state of the epoch tracker. File and
checksum around them are ``StateFiles``'s.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpusonde.collector.records.model import Position
from gpusonde.collector.tracking.run_state import RunState, number, position, text, whole
from gpusonde.epoch_detect.progress import Shares

_LENGTH = struct.Struct("<I")
# What reading fields of another kind, number or depth than expected ends in.
_MISFITS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, struct.error)


class UnusableStateError(Exception):
    """A stored state with which tracking cannot go on; the run is to be read again from its start."""


@dataclass(frozen=True)
class EpochsState:
    """What ``RunEpochs`` knows of the run.

    Attributes:
        metrics: Names of the rows that the tracker gets.
        origin_unix_nano: Time 0 of the tracker.
        shares: The latest idle and stalled share.
        tracker: State of the epoch tracker.
    """

    metrics: tuple[str, ...]
    origin_unix_nano: int
    shares: Shares
    tracker: bytes


@dataclass(frozen=True)
class FollowerState:
    """State of a follower while a run is open.

    Attributes:
        agent_id: The agent.
        gpu_uuid: The GPU.
        policy: The rules by which the run was found; with other ones it may be another run.
        reached: Everything up to this record is in the state.
        runs: State of the run tracker.
        epochs: State of the run's epochs.
    """

    agent_id: str
    gpu_uuid: str
    policy: Mapping[str, float]
    reached: Position
    runs: RunState
    epochs: EpochsState

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
                "metrics": epochs.metrics,
                "origin_unix_nano": epochs.origin_unix_nano,
                "shares": [epochs.shares.idle, epochs.shares.stalled],
            }
        ).encode()
        return b"".join((_LENGTH.pack(len(head)), head, epochs.tracker))

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
        idle, stalled = fields["shares"]
        return cls(
            text(fields["agent_id"]),
            text(fields["gpu_uuid"]),
            {text(name): number(value) for name, value in fields["policy"].items()},
            position(fields["reached"]),
            RunState.from_json(fields["runs"]),
            EpochsState(
                tuple(text(name) for name in fields["metrics"]),
                whole(fields["origin_unix_nano"]),
                Shares(number(idle), number(stalled)),
                tracker,
            ),
        )

"""What goes over the pipe between the collector and a process of trackers. Both ends are ours and of one version."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect import EpochDetection, EpochEvent, TrackedEpoch
from gpusonde.epoch_detect.progress import Shares


@dataclass(frozen=True)
class Make:
    """A new tracker of these metrics."""

    tracker: int
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Restore:
    """A tracker made of a state."""

    tracker: int
    state: bytes


@dataclass(frozen=True)
class Update:
    """Ticks: times, shape (n,), and values, shape (metrics, n); see ``EpochTracker.update``."""

    tracker: int
    time_s: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    every_look: bool


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    tracker: int


@dataclass(frozen=True)
class GiveState:
    """The tracker's state is wanted."""

    tracker: int


@dataclass(frozen=True)
class Drop:
    """Nobody needs the tracker any more; there is no reply."""

    tracker: int


Request = Make | Restore | Update | Finish | GiveState | Drop


@dataclass(frozen=True)
class Standing:
    """How a tracker stands after a request.

    Attributes:
        events: What changed.
        next_look_s: Time of the ticks at which it looks next.
        epochs: All epochs; None where nothing has changed.
        detection: The latest analysis; None where it is still the one before.
        shares: Idle and stalled share; None where nothing has changed.
        state: Its serialised state, where that was asked for.
    """

    events: list[EpochEvent]
    next_look_s: float
    epochs: tuple[TrackedEpoch, ...] | None = None
    detection: EpochDetection | None = None
    shares: Shares | None = None
    state: bytes = b""


@dataclass(frozen=True)
class Failed:
    """A tracker raised."""

    error: str

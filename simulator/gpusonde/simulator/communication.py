"""How the gradients of a step are communicated: transfers that run at the same time share a machine's link.

Srifty (section 4.3) follows one step as an event queue. ``simulate_communications`` does the same for many steps at
once, in arrays, because the optimizer asks for many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class SharingRule(Enum):
    """How the capacity is divided once the transfers want more than there is."""

    # Srifty, section 4.3: everyone gets at most an equal part, as soon as together they want as much as there is. What
    # a transfer does not want of its part stays idle.
    SEED = "seed"
    # Max-min fair: what one does not want goes to the others, so that a wanted capacity is never idle.
    MAXMIN = "maxmin"


@dataclass(frozen=True)
class BandwidthSharing:
    """Rules of one machine's link.

    Attributes:
        share: How the capacity is divided.
        capacity_bytes_per_second: Bus bandwidth of the machine, infinite when it never binds.
        max_in_flight: Transfers at a time, the others wait in the order in which they became ready. NCCL with one
            communicator runs 1, gloo 2.

    Raises:
        ValueError: A capacity or a limit that is not above zero.
    """

    share: SharingRule = SharingRule.MAXMIN
    capacity_bytes_per_second: float = math.inf
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        if not self.capacity_bytes_per_second > 0:
            raise ValueError(f"the capacity of a link is above zero, not {self.capacity_bytes_per_second}")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValueError(f"max_in_flight is 1 or more, not {self.max_in_flight}")


# Finishes closer together than this share of a step are one event; the queue takes them one by one, to the same end.
_SAME_TIME = 1e-13


def simulate_communications(
    ready_s: npt.ArrayLike,
    traffic_bytes: npt.ArrayLike,
    bus_bytes_per_second: npt.ArrayLike,
    *,
    capacity_bytes_per_second: npt.ArrayLike = np.inf,
    max_in_flight: int | None = None,
    share: SharingRule = SharingRule.MAXMIN,
) -> FloatArray:
    """Return when every transfer of every case finished, shape (m, n), seconds after the start of the backward pass.

    Every case goes on by one event per turn, at its own time; the turns end when no case has anything left.

    Args:
        ready_s: Shape (m, n), when each bucket of gradients is ready, seconds after the start of the backward pass.
        traffic_bytes: Shape (m, n), bytes that each moves over the bus: ``2 (world - 1) / world`` of its size in a
            ring.
        bus_bytes_per_second: Shape (m, n), bus bandwidth that each reaches alone.
        capacity_bytes_per_second: A number or shape (m,), bus bandwidth of the machine.
        max_in_flight: Transfers at a time; None for no limit.
        share: How a capacity that does not suffice is divided.

    Raises:
        ValueError: Arrays of different shapes, negative or not finite figures, a bandwidth that is not above zero.
    """
    ready, traffic, wanted = _check_transfers(ready_s, traffic_bytes, bus_bytes_per_second)
    cases, count = ready.shape
    if count == 0:
        return np.zeros((cases, 0))
    capacity = np.broadcast_to(np.asarray(capacity_bytes_per_second, dtype=np.float64), (cases,))
    if not (capacity > 0).all():
        raise ValueError("capacity_bytes_per_second must be above zero")
    limit = count if max_in_flight is None else max_in_flight
    if limit < 1:
        raise ValueError(f"max_in_flight is 1 or more, not {max_in_flight}")

    if np.isinf(capacity).all() and (limit == 1 or limit >= count):
        return _unshared(ready, traffic / wanted, one_at_a_time=limit == 1)

    # Transfers begin in the order in which they become ready: those that have begun are always its first ones.
    order = np.argsort(ready, axis=1, kind="stable")
    ready, left, wanted = (np.take_along_axis(each, order, axis=1) for each in (ready, traffic, wanted))
    place = np.arange(count)
    now = np.zeros(cases)
    begun = np.zeros(cases, dtype=np.int64)
    done = np.zeros((cases, count), dtype=bool)
    finish = np.zeros((cases, count))
    following = np.concatenate([ready, np.full((cases, 1), np.inf)], axis=1)
    rows = np.arange(cases)
    while not done.all():
        arrived = (ready <= now[:, None]).sum(axis=1)
        free = limit - (begun - done.sum(axis=1))
        begun = begun + np.clip(arrived - begun, 0, free)
        running = (place < begun[:, None]) & ~done
        rate = _rates(np.where(running, wanted, 0.0), running, capacity, share)
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = np.where(running, left / rate, np.inf)
        step = np.minimum(rest.min(axis=1), following[rows, arrived] - now)
        # A case that is over stays where it is.
        step = np.where(np.isfinite(step), np.maximum(step, 0.0), 0.0)
        ended = running & (rest <= step[:, None] * (1.0 + _SAME_TIME))
        left = np.where(running, np.maximum(left - rate * step[:, None], 0.0), left)
        now = now + step
        # Exactly the time of the arrival: a sum of steps may fall short of it by a rounding error and never get there.
        at_arrival = following[rows, arrived] - now <= np.abs(now) * _SAME_TIME
        now = np.where(at_arrival & np.isfinite(following[rows, arrived]), following[rows, arrived], now)
        finish = np.where(ended, now[:, None], finish)
        done |= ended
    result = np.empty_like(finish)
    np.put_along_axis(result, order, finish, axis=1)
    return result


def _check_transfers(
    ready_s: npt.ArrayLike, traffic_bytes: npt.ArrayLike, bus_bytes_per_second: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the three arrays, of one shape."""
    ready, traffic, wanted = (
        np.asarray(each, dtype=np.float64) for each in (ready_s, traffic_bytes, bus_bytes_per_second)
    )
    if not ready.shape == traffic.shape == wanted.shape or ready.ndim != 2:
        raise ValueError("ready_s, traffic_bytes and bus_bytes_per_second need one shape with 2 dimensions")
    if not (np.isfinite(ready).all() and (ready >= 0).all()):
        raise ValueError("ready_s must be finite and not negative")
    if not (np.isfinite(traffic).all() and (traffic >= 0).all()):
        raise ValueError("traffic_bytes must be finite and not negative")
    if not ((wanted > 0).all() and (wanted < math.inf).all()):
        raise ValueError("bus_bytes_per_second must be finite and above zero")
    return ready, traffic, wanted


def _unshared(ready: FloatArray, duration: FloatArray, *, one_at_a_time: bool) -> FloatArray:
    """Finishes of transfers that never share the link: all at once on a link that never binds, or one by one."""
    if not one_at_a_time:
        return ready + duration
    order = np.argsort(ready, axis=1, kind="stable")
    ready, duration = (np.take_along_axis(each, order, axis=1) for each in (ready, duration))
    through = np.cumsum(duration, axis=1)
    # A transfer ends when all since the last pause of the link have: the latest of all possible starts of that.
    finish = through + np.maximum.accumulate(ready - (through - duration), axis=1)
    result = np.empty_like(finish)
    np.put_along_axis(result, order, finish, axis=1)
    return result


def _rates(wanted: FloatArray, running: npt.NDArray[np.bool_], capacity: FloatArray, share: SharingRule) -> FloatArray:
    """What every transfer in flight gets, shape (m, n); 0 for the others."""
    asked = wanted.sum(axis=1)
    short = asked >= capacity if share is SharingRule.SEED else asked > capacity
    if not short.any():
        return wanted
    given = wanted.copy()
    if share is SharingRule.SEED:
        equal = capacity / np.maximum(running.sum(axis=1), 1)
        given[short] = np.minimum(wanted, equal[:, None])[short]
        return given
    wishes = np.where(running, wanted, np.inf)[short]
    ascending = np.argsort(wishes, axis=1, kind="stable")
    wishes = np.take_along_axis(wishes, ascending, axis=1)
    left, others = capacity[short].copy(), running[short].sum(axis=1)
    filled = np.zeros_like(wishes)
    for place in range(int(others.max())):
        in_flight = place < others
        part = np.minimum(wishes[:, place], left / np.maximum(others - place, 1))
        filled[:, place] = np.where(in_flight, part, 0.0)
        left = left - filled[:, place]
    unsorted = np.zeros_like(filled)
    np.put_along_axis(unsorted, ascending, filled, axis=1)
    given[short] = unsorted
    return given

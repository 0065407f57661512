"""The communication of one step as an event queue: what the simulation of many steps at once is checked against."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.simulator.communication import BandwidthSharing, FloatArray, SharingRule


@dataclass(frozen=True)
class CommunicationTimeline:
    """When every transfer ran.

    Attributes:
        start_s: Shape (n,), seconds after the start of the backward pass.
        finish_s: Shape (n,), likewise.
    """

    start_s: FloatArray
    finish_s: FloatArray

    @property
    def end_s(self) -> float:
        """When the last transfer finished; 0 without transfers."""
        return float(self.finish_s.max(initial=0.0))


def share_bandwidth(wanted: FloatArray, sharing: BandwidthSharing) -> FloatArray:
    """Return what each of the transfers in flight gets, bytes per second on the bus.

    Args:
        wanted: Shape (c,), bus bandwidth that each would reach alone.
        sharing: The link's rules.
    """
    capacity = sharing.capacity_bytes_per_second
    asked = wanted.sum()
    if sharing.share is SharingRule.SEED:
        return wanted if asked < capacity else np.minimum(wanted, capacity / wanted.size)
    if asked <= capacity:
        return wanted
    ascending = np.argsort(wanted, kind="stable")
    given = np.empty_like(wanted)
    left = capacity
    for place, index in enumerate(ascending):
        given[index] = min(wanted[index], left / (wanted.size - place))
        left -= given[index]
    return given


_READY, _FINISH = 0, 1


def simulate_communication(
    ready_s: npt.ArrayLike,
    traffic_bytes: npt.ArrayLike,
    bus_bytes_per_second: npt.ArrayLike,
    sharing: BandwidthSharing | None = None,
) -> CommunicationTimeline:
    """Run the transfers of one step as an event queue, as the seed does (Srifty, section 4.3).

    Args:
        ready_s: Shape (n,), when each bucket of gradients is ready, seconds after the start of the backward pass.
        traffic_bytes: Shape (n,), bytes that each moves over the bus: ``2 (world - 1) / world`` of its size in a ring.
        bus_bytes_per_second: Shape (n,), bus bandwidth that each reaches alone.
        sharing: The link's rules; by default a link that never binds.
    """
    ready, traffic, wanted = (
        np.asarray(each, dtype=np.float64) for each in (ready_s, traffic_bytes, bus_bytes_per_second)
    )
    sharing = sharing or BandwidthSharing()
    limit = sharing.max_in_flight or ready.size
    queue: list[tuple[float, int, int, int]] = [(time_s, _READY, index, 0) for index, time_s in enumerate(ready)]
    heapq.heapify(queue)
    start, finish = np.zeros(ready.size), np.zeros(ready.size)
    left = traffic.copy()
    waiting: list[int] = []
    running: list[int] = []
    rate = np.zeros(ready.size)
    # A rate that changes makes the finish that is queued for its transfer void; the generation tells them apart.
    generation = 0
    now_s = 0.0
    while queue:
        time_s, kind, index, born = heapq.heappop(queue)
        if kind == _FINISH and born != generation:
            continue
        left[running] -= rate[running] * (time_s - now_s)
        now_s = time_s
        if kind == _READY:
            waiting.append(index)
        else:
            running.remove(index)
            left[index] = 0.0
            finish[index] = now_s
        while waiting and len(running) < limit:
            begun = waiting.pop(0)
            start[begun] = now_s
            running.append(begun)
        if running:
            rate[running] = share_bandwidth(wanted[running], sharing)
            generation += 1
            for each in running:
                due_s = now_s + max(0.0, left[each]) / rate[each]
                heapq.heappush(queue, (due_s, _FINISH, each, generation))
    return CommunicationTimeline(start, finish)

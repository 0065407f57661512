"""The exchange of one step as an event queue: the reference that ``many`` is checked against (Srifty, section 4.3)."""

from __future__ import annotations

import heapq
import math

import numpy as np
import numpy.typing as npt

from gpusonde.simulator.exchange.policy import ExchangeTimeline, LinkPolicy, rates

_READY, _FINISH = 0, 1


def simulate_exchange(
    ready_s: npt.ArrayLike,
    traffic_bytes: npt.ArrayLike,
    bus_bytes_per_second: npt.ArrayLike,
    policy: LinkPolicy | None = None,
) -> ExchangeTimeline:
    """Run the transfers of one step.

    Args:
        ready_s: Shape (n,), when each bucket of gradients is ready, seconds after the start of the backward pass.
        traffic_bytes: Shape (n,), bytes that each moves over the bus: ``2 (world - 1) / world`` of its size in a ring.
        bus_bytes_per_second: Shape (n,), bus bandwidth that each reaches alone.
        policy: The link's rules; by default a link that never binds.

    Raises:
        ValueError: Arrays of different lengths, negative or not finite figures, a bandwidth that is not above zero.
    """
    ready, traffic, wanted = checked(ready_s, traffic_bytes, bus_bytes_per_second, dimensions=1)
    policy = policy or LinkPolicy()
    limit = policy.max_in_flight or ready.size
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
            rate[running] = rates(wanted[running], policy)
            generation += 1
            for each in running:
                due_s = now_s + max(0.0, left[each]) / rate[each]
                heapq.heappush(queue, (due_s, _FINISH, each, generation))
    return ExchangeTimeline(start, finish)


def checked(
    ready_s: npt.ArrayLike, traffic_bytes: npt.ArrayLike, bus_bytes_per_second: npt.ArrayLike, *, dimensions: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the three arrays, of one shape.

    Raises:
        ValueError: They are not what the simulations take.
    """
    ready, traffic, wanted = (
        np.asarray(each, dtype=np.float64) for each in (ready_s, traffic_bytes, bus_bytes_per_second)
    )
    if not ready.shape == traffic.shape == wanted.shape or ready.ndim != dimensions:
        raise ValueError(
            f"ready_s, traffic_bytes and bus_bytes_per_second need one shape with {dimensions} dimension(s)"
        )
    if not (np.isfinite(ready).all() and (ready >= 0).all()):
        raise ValueError("ready_s must be finite and not negative")
    if not (np.isfinite(traffic).all() and (traffic >= 0).all()):
        raise ValueError("traffic_bytes must be finite and not negative")
    if not ((wanted > 0).all() and (wanted < math.inf).all()):
        raise ValueError("bus_bytes_per_second must be finite and above zero")
    return ready, traffic, wanted

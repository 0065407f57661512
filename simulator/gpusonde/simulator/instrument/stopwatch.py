"""Time on the device that computes: CUDA runs behind the host, so that the host's clock says little about it."""

from __future__ import annotations

import time
from typing import Any

import torch


class Stopwatch:
    """Marks instants in the order of the device's work; what lies between two is asked for after ``wait``.

    On CUDA a mark is an event in the stream: the host runs ahead as in a real training loop, and neither its own pauses
    nor a synchronisation per step count. On a CPU it is the monotonic clock.

    Args:
        device: Where the model computes.

    Raises:
        ValueError: A device of which we cannot tell the time.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type not in {"cuda", "cpu"}:
            raise ValueError(f"profiles are measured on cuda or cpu, not on {device.type}")
        self._device = device

    def mark(self) -> Any:
        """Mark this instant of the device's work."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Wait until the device has passed all marks."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @staticmethod
    def seconds_between(earlier: Any, later: Any) -> float:
        """Return the seconds between two marks, after ``wait``."""
        if isinstance(earlier, float):
            return float(later - earlier)
        return float(earlier.elapsed_time(later)) / 1000.0

"""What a measured value cannot be: sentinels, impossible figures, and zeros while the GPU works."""

from __future__ import annotations

import math

from gpusonde.telemetry import BlankReason, metric

# Why a metric is missing for as long as driver, board and rights are what they are.
LASTING_REASONS = (BlankReason.NOT_SUPPORTED, BlankReason.NO_PERMISSION, BlankReason.NOT_FOUND)

# Profiling values that are zero under load: NVIDIA/DCGM issues 16 and 303, GPM on some boards. The driver's utilisation
# lags by up to a second.
_ZEROS_S = 10.0
_BUSY = 0.2
_LONGEST_PATIENCE_S = 300.0


def plausible(name: str, value: float) -> float | BlankReason:
    """Return the value, or why it cannot be one: the vendor's libraries have sentinels of their own."""
    highest = metric(name).maximum
    if math.isnan(value):
        return BlankReason.NO_DATA
    if value < 0 or (highest is not None and value > highest):
        return BlankReason.OUT_OF_RANGE
    return float(value)


class ZeroGuard:
    """Notices profiling values that say zero while the driver says that kernels run.

    Args:
        now_s: The monotonic clock.
    """

    def __init__(self, now_s: float) -> None:
        self._good_s = now_s
        self._renewed_s = float("-inf")
        self._patience_s = _ZEROS_S

    def observe(self, utilization: float, activity: float, now_s: float) -> bool:
        """Take one tick and return whether its profiling values are to be distrusted.

        Args:
            utilization: ``gpu_utilization``, 0..1, or NaN.
            activity: The largest of the tick's profiling ratios, or NaN.
            now_s: The monotonic clock.
        """
        if not (utilization >= _BUSY and activity == 0.0):
            self._good_s, self._patience_s = now_s, _ZEROS_S
        return now_s - self._good_s >= _ZEROS_S

    def due(self, now_s: float) -> bool:
        """Whether to renew the watch now; True once per period of patience."""
        if now_s - self._good_s < _ZEROS_S or now_s - self._renewed_s < self._patience_s:
            return False
        self._renewed_s = now_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
        return True

"""When a watch has to be renewed: profiling fields of DCGM stop, or stay at zero, after hours or after an XID."""

from __future__ import annotations

# NVIDIA/DCGM issues 16 and 303: no new values, or zeros under load. The driver's utilisation lags by up to a second.
_FIRST_PATIENCE_S = 3.0
_FIRST_PATIENCE_INTERVALS = 10.0
_LONGEST_PATIENCE_S = 300.0
_ZEROS_S = 10.0
_BUSY = 0.2


class StuckWatch:
    """Decides when a silent watch is renewed; later and later while that does not help.

    Args:
        interval_s: Seconds between measurements.
        now_s: The monotonic clock.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._first_s = max(_FIRST_PATIENCE_S, _FIRST_PATIENCE_INTERVALS * interval_s)
        self._patience_s = self._first_s
        self._since_s = now_s

    def fresh(self, now_s: float) -> None:
        """There was a new value."""
        self._since_s, self._patience_s = now_s, self._first_s

    def hold(self, now_s: float) -> None:
        """Silence is expected now, so it does not count."""
        self._since_s = now_s

    def due(self, now_s: float) -> bool:
        """Whether to renew the watch now; True once per period of patience."""
        if now_s - self._since_s < self._patience_s:
            return False
        self._since_s = now_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
        return True


class ZeroGuard:
    """Notices profiling fields that say zero while the driver says that kernels run.

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

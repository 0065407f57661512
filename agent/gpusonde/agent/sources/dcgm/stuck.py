"""When a watch has to be renewed: profiling fields of DCGM stop after hours or after an XID."""

from __future__ import annotations

# NVIDIA/DCGM issues 16 and 303: no new values.
_FIRST_PATIENCE_S = 3.0
_FIRST_PATIENCE_INTERVALS = 10.0
_LONGEST_PATIENCE_S = 300.0


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

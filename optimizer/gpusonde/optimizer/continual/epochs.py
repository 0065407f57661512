"""``EpochProgress``: iterations from epochs that were detected from outside, without instrumentation."""

from __future__ import annotations

import math

from gpusonde.optimizer.continual.progress import ProgressWindow


class EpochProgress:
    """Turns the epochs of a run into observations of progress.

    A detector reports epochs as they end, corrects their ends and withdraws some (``EpochEvent`` of the epoch detector:
    pass ``epoch.index``, ``epoch.end_s``). Progress is the number of epochs that stand, times the iterations of
    an epoch; what lies between two ends is not known and counts for nothing.

    Memory is bounded: of epochs older than the latest ``capacity`` only their number is kept.

    Args:
        iterations_per_epoch: Iterations of one epoch.
        offset_s: Added to the detector's times to get the job's clock.
        capacity: How many of the latest epochs can still be corrected.
    """

    def __init__(self, iterations_per_epoch: float, *, offset_s: float = 0.0, capacity: int = 256) -> None:
        if not (math.isfinite(iterations_per_epoch) and iterations_per_epoch > 0):
            raise ValueError(f"an epoch has iterations, not {iterations_per_epoch}")
        if capacity < 4:
            raise ValueError(f"four epochs or more are kept, not {capacity}")
        self.ignored = 0
        self._per_epoch = float(iterations_per_epoch)
        self._offset_s = offset_s
        self._capacity = capacity
        self._ends_s: dict[int, float] = {}
        self._settled = 0
        self._settled_end_s = -math.inf

    @property
    def completed(self) -> float:
        """Iterations in the epochs that stand."""
        return (self._settled + len(self._ends_s)) * self._per_epoch

    def report(self, index: int, end_s: float) -> bool:
        """Take an epoch, new or corrected.

        Args:
            index: Identifies it within the run.
            end_s: Its end, on the detector's time.

        Returns:
            False when it was left out: its end is not finite, or it is older than what can be corrected.
        """
        if not math.isfinite(end_s) or end_s + self._offset_s <= self._settled_end_s:
            self.ignored += 1
            return False
        self._ends_s[index] = end_s + self._offset_s
        if len(self._ends_s) > self._capacity:
            first = min(self._ends_s, key=self._ends_s.__getitem__)
            self._settled_end_s = self._ends_s.pop(first)
            self._settled += 1
        return True

    def withdraw(self, index: int) -> bool:
        """Take back an epoch that turned out to be none.

        Returns:
            False when it is unknown or too old to be corrected.
        """
        if index not in self._ends_s:
            self.ignored += 1
            return False
        del self._ends_s[index]
        return True

    def window(self, window_s: float = 300.0, *, confidence: float = 0.95) -> ProgressWindow:
        """Return the epochs' ends as observations of progress.

        It is built afresh, since an epoch that is withdrawn changes every count after it.
        """
        window = ProgressWindow(window_s, confidence=confidence)
        for number, end_s in enumerate(sorted(self._ends_s.values()), start=self._settled + 1):
            window.observe(end_s, number * self._per_epoch)
        return window

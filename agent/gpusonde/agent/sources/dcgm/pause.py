"""``ProfilingPause`` gives the profiling counters to another profiler for as long as a file exists.

Before Hopper they belong to one profiler per host, and Nsight and CUPTI fail while DCGM reads them.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable

from gpusonde.agent.sources.dcgm.connection import NOT_SUPPORTED, Engine
from gpusonde.errors import CallRefusedError

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.5
_PAUSE_LATER = f"tried again every {_CHECK_INTERVAL_S:g} s"
_NO_PAUSE = (
    "profiling goes on. From Hopper on it is read through GPM, which leaves the counters to profilers, so no pause is "
    "needed; before, install the engine's profiling module"
)


class ProfilingPause:
    """Pauses and resumes the engine's profiling.

    The engine is never resumed by a start or an end of the agent, only when the file goes away: a profiler may be at
    work.

    Args:
        path: The file; empty for never.
        exists: Whether a path exists.
    """

    def __init__(self, path: str, exists: Callable[[str], bool] = os.path.exists) -> None:
        self._path = path
        self._exists = exists
        self._checked_s = float("-inf")
        self._refused = ""
        self.paused = False

    def check(self, engine: Engine, now_s: float) -> None:
        """Look at the file, at most twice a second, and do what it says.

        Raises:
            EngineLostError: The engine is gone.
        """
        if not self._path or now_s - self._checked_s < _CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        wanted = self._exists(self._path)
        if wanted == self.paused:
            self._refused = ""
            return
        try:
            if wanted:
                engine.pause_profiling()
                log.warning("%s exists: profiling metrics are paused, their values are blank", self._path)
            else:
                engine.resume_profiling()
                log.warning("%s is gone: profiling metrics are measured again", self._path)
        except CallRefusedError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("%s: %s", error, _NO_PAUSE if error.code == NOT_SUPPORTED else _PAUSE_LATER)
            return
        self.paused, self._refused = wanted, ""

    @property
    def due_s(self) -> float:
        """When the file is to be looked at again, monotonic clock."""
        return self._checked_s + _CHECK_INTERVAL_S if self._path else math.inf

    def forget(self) -> None:
        """Forget the engine: another one is not paused until the file is looked at again."""
        self.paused, self._refused = False, ""
        self._checked_s = float("-inf")

    def close(self) -> None:
        """Say what is left behind."""
        if self.paused:
            log.warning(
                "the engine's profiling stays paused, because %s exists; 'dcgmi profile --resume' ends that", self._path
            )

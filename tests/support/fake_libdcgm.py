"""The stand-in for libdcgm in C, and its engine in another process; all other calls are the stand-in's in Python."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.fake_dcgm.engine import DOUBLE_FIELDS, XID_FIELD, LiveEngine, WatchState

_SERVE = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).fake_serve(sys.argv[2].encode(), sys.argv[3].encode())"
# By number of the field: start and interval in microseconds, whether it never gives anything, whether it is a double.
_TABLE = (65536, 4)


def serve(library: Path, place: Path) -> subprocess.Popen[bytes]:
    """Start an engine that serves one client, with its socket and its table of fields in a folder."""
    np.memmap(place / "table", np.int64, "w+", shape=_TABLE).flush()
    return subprocess.Popen([sys.executable, "-c", _SERVE, library, place / "engine", place / "table"])


class SharedEngine(LiveEngine):
    """Tells the engine in the other process what is watched, and has it asked for latest values by the library."""

    def connect(self, library: Path, place: Path) -> bool:
        """Connect the library to the engine; False while that does not listen yet."""
        self._client = ctypes.CDLL(str(library))
        self._client.fake_requests.restype = ctypes.c_long
        self._table = np.memmap(place / "table", np.int64, "r+", shape=_TABLE)
        self.functions = {"dcgmEntitiesGetLatestValues": self._client.dcgmEntitiesGetLatestValues}
        return self._client.fake_connect(str(place / "engine").encode()) == 0

    @property
    def all_requests(self) -> int:
        """Those of the library and those of history."""
        return self.requests + int(self._client.fake_requests())

    def record(self, watch: WatchState) -> None:
        """See :class:`FakeEngine`."""
        super().record(watch)
        for field_id in watch.fields:
            recording = self.recordings[watch.entities[0], field_id]
            start_us, interval_us = round(recording.start_s * 1e6), round(recording.interval_s * 1e6)
            self._table[field_id] = start_us, interval_us, field_id == XID_FIELD, field_id in DOUBLE_FIELDS

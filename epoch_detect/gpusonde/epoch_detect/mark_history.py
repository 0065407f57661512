"""``MarkHistory``: what the processes of a job did while it runs, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.marks import COLUMNS, Marks
from gpusonde.epoch_detect.stored import DamagedStateError
from gpusonde.telemetry import FloatArray

_Pool = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
_Arrays = Mapping[str, npt.NDArray[np.generic]]

_CAPACITY = 8192  # looks: 2.3 hours at 1 Hz before two become one; 32 B each, and 12 B of memory: 360 kB
_MOST_POOLED = 1 << 30


def _add_up(groups: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return sums over the last axis of what is known; NaN where nothing is."""
    total = np.nansum(groups, axis=-1, dtype=np.float64).astype(np.float32)
    return np.where(np.isnan(groups).all(axis=-1), np.float32(np.nan), total)


def _least(groups: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the least over the last axis of what is known; NaN where nothing is."""
    return np.asarray(np.fmin.reduce(groups, axis=-1))


class PooledRows:
    """Values in order of time, in at most so many rows; beyond that each row is of 2, 4, 8 ... of them.

    Args:
        count: Values at a time.
        pool: Makes one of those on the last axis.
    """

    def __init__(self, count: int, pool: _Pool) -> None:
        self._pool = pool
        self._pooled = 1
        self._time_s = np.empty(0)
        self._values = np.empty((count, 0), dtype=np.float32)
        # Of the newest row, which is not whole yet: nothing while every value has a row.
        self._waiting_s = np.empty(0)
        self._waiting = np.empty((count, 0), dtype=np.float32)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes held in arrays."""
        return self._time_s.nbytes + self._values.nbytes + self._waiting_s.nbytes + self._waiting.nbytes

    def append(self, time_s: FloatArray, values: FloatArray) -> None:
        """Add values of shape (count, n) at times of shape (n,); how they are cut into calls does not matter."""
        times = np.concatenate([self._waiting_s, time_s])
        columns = np.concatenate([self._waiting, values.astype(np.float32)], axis=1)
        while times.size >= self._pooled:
            taken = min(times.size // self._pooled, _CAPACITY - self._rows) * self._pooled
            self._push(times[:taken], columns[:, :taken])
            times, columns = times[taken:], columns[:, taken:]
        self._waiting_s, self._waiting = times.copy(), columns.copy()

    def rows(self) -> tuple[FloatArray, FloatArray]:
        """Return the time of the last value of each row, shape (n,), and what they hold, shape (count, n)."""
        return self._time_s[: self._rows].copy(), self._values[:, : self._rows].astype(np.float64)

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return everything as plain arrays, for :meth:`take_arrays`."""
        return {
            "time": self._time_s[: self._rows],
            "values": self._values[:, : self._rows],
            "waiting_time": self._waiting_s,
            "waiting": self._waiting,
            "pooled": np.array(self._pooled, dtype=np.int64),
        }

    def take_arrays(self, arrays: _Arrays) -> None:
        """Go on with what :meth:`to_arrays` gave.

        Raises:
            DamagedStateError: The arrays do not fit together.
            KeyError: One of them is missing.
        """
        count, time_s, values = len(self._values), arrays["time"], arrays["values"]
        waiting_s, waiting, pooled = arrays["waiting_time"], arrays["waiting"], int(arrays["pooled"])
        fits = values.shape == (count, *time_s.shape) and waiting.shape == (count, *waiting_s.shape)
        fits &= values.ndim == waiting.ndim == 2
        if not (fits and time_s.size < _CAPACITY and 1 <= pooled <= _MOST_POOLED and waiting_s.size < pooled):
            raise DamagedStateError("the stored marks are inconsistent; start the run's tracking anew")
        self._time_s, self._values = time_s.astype(np.float64), values.astype(np.float32)
        self._waiting_s, self._waiting = waiting_s.astype(np.float64), waiting.astype(np.float32)
        self._pooled, self._rows = pooled, time_s.size

    def _push(self, time_s: FloatArray, values: npt.NDArray[np.float32]) -> None:
        """Add rows, as many as there is room for; make room where there is none left."""
        added = time_s.size // self._pooled
        reached = self._rows + added
        if reached > self._time_s.size:
            size = min(_CAPACITY, max(256, 2 * self._time_s.size, reached))
            self._time_s = np.concatenate([self._time_s[: self._rows], np.empty(size - self._rows)])
            room = np.empty((len(self._values), size - self._rows), dtype=np.float32)
            self._values = np.concatenate([self._values[:, : self._rows], room], axis=1)
        self._time_s[self._rows : reached] = time_s[self._pooled - 1 :: self._pooled]
        self._values[:, self._rows : reached] = self._pool(values.reshape(len(values), added, self._pooled))
        self._rows = reached
        if self._rows == _CAPACITY:
            half = _CAPACITY // 2
            self._time_s[:half] = self._time_s[1::2].copy()
            self._values[:, :half] = self._pool(self._values.reshape(len(self._values), half, 2))
            self._rows, self._pooled = half, 2 * self._pooled


class MarkHistory:
    """The looks at the processes of a run's job so far, and the memory of its GPU since the first of them.

    A look may be of several, their counts added up, and memory is the least of several ticks: what falls and comes back
    is still seen. At most 8192 of each are kept.
    """

    def __init__(self) -> None:
        self._looks = PooledRows(len(COLUMNS), _add_up)
        self._memory = PooledRows(1, _least)

    def __bool__(self) -> bool:
        return len(self._looks) > 0

    @property
    def nbytes(self) -> int:
        """Bytes held in arrays."""
        return self._looks.nbytes + self._memory.nbytes

    def append(self, time_s: FloatArray, values: FloatArray) -> None:
        """Add looks at times of shape (n,); values of shape (6, n) in the order of ``marks.COLUMNS``."""
        self._looks.append(time_s, values)

    def append_memory(self, time_s: FloatArray, memory_bytes: FloatArray) -> None:
        """Add how much of the framebuffer is in use; both of shape (n,)."""
        self._memory.append(time_s, memory_bytes[None])

    def marks(self) -> Marks | None:
        """Return what is known; None where nobody has looked."""
        if not self:
            return None
        memory_time_s, memory = self._memory.rows()
        return Marks(*self._looks.rows(), memory_time_s, memory[0])

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return everything as plain arrays, for :meth:`from_arrays`; none where nobody has looked."""
        if not self:
            return {}
        parts = {"looks": self._looks.to_arrays(), "memory": self._memory.to_arrays()}
        return {f"{part}_{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: _Arrays) -> MarkHistory:
        """Rebuild a history from :meth:`to_arrays`.

        Raises:
            DamagedStateError: The arrays do not fit together.
            KeyError: One of them is missing.
        """
        history = cls()
        if arrays:
            history._looks.take_arrays({name.removeprefix("looks_"): each for name, each in arrays.items()})
            history._memory.take_arrays({name.removeprefix("memory_"): each for name, each in arrays.items()})
        return history

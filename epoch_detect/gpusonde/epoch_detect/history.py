"""Bounded memory of a run: all of its ticks at first, then averages of 2, 4, 8 ... of them.

An epoch is a fraction of its run, so the longer the run, the coarser the ticks may be at which it is seen. Offline and
streaming detection both analyse this memory and nothing else; therefore they agree. What is too short for it by the end
was followed while it was not, which a file is, too.
"""

from __future__ import annotations

import io
import tokenize
import warnings
import zipfile
import zlib

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.stored import DamagedStateError
from gpusonde.epoch_detect.ticks import Float32Array, IntArray, Ticks, active_range

CAPACITY = 24_576  # 41 minutes at 10 Hz before the first halving; 24 B each with four metrics: 590 kB
CELLS_TO_SEE = 20  # rows of a cycle, fewer of which may hide it where they are means of ticks
_LARGEST_CAPACITY = 1 << 20  # of a stored history: a damaged one must not ask for more
_MOST_MERGED = 1 << 20  # ticks per row; 82 years at 10 Hz
_LARGEST_STATE_BYTES = 1 << 26
# What zipfile and NumPy raise; the latter hands a header that is no Python to the tokenizer.
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, OverflowError, RuntimeError, SyntaxError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


class History:
    """Ticks of one run in at most ``capacity`` rows.

    Memory: ``capacity * (8 + 4 * metrics)`` bytes at most; it grows by doubling up to there.

    Args:
        names: The metrics, in the order of the values given to :meth:`append`.
        capacity: Most rows to keep; even.
    """

    def __init__(self, names: tuple[str, ...], capacity: int = CAPACITY) -> None:
        self.names = names
        self._capacity = capacity
        self._merged = 1  # ticks per row
        self._time = np.empty(0, dtype=np.int64)
        self._values = np.empty((len(names), 0), dtype=np.float32)
        self._count = 0
        self._pending_time: list[int] = []
        self._pending_values: list[Float32Array] = []

    def __len__(self) -> int:
        return self._count

    @property
    def last_time_us(self) -> int | None:
        """Time of the newest tick, or None."""
        if self._pending_time:
            return self._pending_time[-1]
        return int(self._time[self._count - 1]) if self._count else None

    @property
    def nbytes(self) -> int:
        """Bytes held in arrays."""
        return self._time.nbytes + self._values.nbytes

    def has_room(self, count: int) -> bool:
        """Say whether so many more ticks leave those that are remembered as they are."""
        return self._count + count < self._capacity

    def append(self, time_us: IntArray, values: npt.NDArray[np.floating]) -> None:
        """Add ticks; the outcome does not depend on how they are cut into calls.

        Args:
            time_us: Shape (n,), increasing, all after the ticks already held.
            values: Shape (metrics, n).
        """
        rows = values.astype(np.float32)
        done = 0
        while done < time_us.size:
            if self._merged == 1:
                take = min(time_us.size - done, self._capacity - self._count)
                self._push(time_us[done : done + take], rows[:, done : done + take])
            elif not self._pending_time and time_us.size - done >= self._merged:
                take = min((time_us.size - done) // self._merged, self._capacity - self._count) * self._merged
                self._push_means(time_us[done : done + take], rows[:, done : done + take].T)
            else:
                take = min(time_us.size - done, self._merged - len(self._pending_time))
                self._pending_time.extend(time_us[done : done + take].tolist())
                self._pending_values.extend(rows[:, done : done + take].T)
                if len(self._pending_time) == self._merged:
                    self._flush()
            done += take
            if self._count == self._capacity:
                self._compact()

    def ticks(self, count: int | None = None) -> Ticks:
        """Return what is remembered, or the first ``count`` rows of it, times as they were given."""
        rows = slice(self._count if count is None else count)
        time_us, values = self._time[: self._count][rows].copy(), self._values[:, : self._count][:, rows].copy()
        return Ticks(time_us, values, self.names, self._merged)

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the state as plain arrays, for :meth:`from_arrays`."""
        pending = np.array(self._pending_values, dtype=np.float32).reshape(len(self._pending_time), len(self.names))
        return {
            "time": self._time[: self._count],
            "values": self._values[:, : self._count],
            "pending_time": np.array(self._pending_time, dtype=np.int64),
            "pending_values": pending,
            "sizes": np.array([self._capacity, self._merged], dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, names: tuple[str, ...], arrays: dict[str, npt.NDArray[np.generic]]) -> History:
        """Rebuild a history from :meth:`to_arrays`.

        Raises:
            DamagedStateError: The arrays do not fit together.
        """
        time, values = arrays["time"].astype(np.int64), arrays["values"].astype(np.float32)
        capacity, merged = (int(x) for x in arrays["sizes"])
        pending = arrays["pending_values"].astype(np.float32)
        pending_time = [int(t) for t in arrays["pending_time"]]
        fits = values.shape == (len(names), time.size) and pending.shape == (len(pending_time), len(names))
        bounded = time.size <= capacity <= _LARGEST_CAPACITY and capacity % 2 == 0 and 1 <= merged <= _MOST_MERGED
        in_order = (np.diff(np.concatenate([time, np.array(pending_time, dtype=np.int64)])) > 0).all()
        if not (fits and bounded and in_order) or len(pending_time) >= max(merged, 2):
            raise DamagedStateError("the stored history is inconsistent; start the run's tracking anew")
        history = cls(names, capacity)
        history._time, history._values, history._count, history._merged = time, values, time.size, merged
        history._pending_time, history._pending_values = pending_time, list(pending)
        return history

    def _push(self, time_us: IntArray, rows: Float32Array) -> None:
        need = self._count + time_us.size
        if need > self._time.size:
            size = min(self._capacity, max(1024, 2 * self._time.size, need))
            time, values = np.empty(size, dtype=np.int64), np.empty((len(self.names), size), dtype=np.float32)
            time[: self._count] = self._time[: self._count]
            values[:, : self._count] = self._values[:, : self._count]
            self._time, self._values = time, values
        self._time[self._count : need] = time_us
        self._values[:, self._count : need] = rows
        self._count = need

    def _push_means(self, time_us: IntArray, rows: Float32Array) -> None:
        """Add the means of as many ticks as make a row each; values of shape (ticks, metrics)."""
        times = time_us.reshape(-1, self._merged).sum(axis=1) // self._merged
        self._push(times, _mean(rows.reshape(times.size, self._merged, -1).transpose(2, 0, 1)))

    def _flush(self) -> None:
        self._push_means(np.array(self._pending_time, dtype=np.int64), np.array(self._pending_values))
        self._pending_time, self._pending_values = [], []

    def _compact(self) -> None:
        """Make room: drop idle before the first activity; if that is not enough, average pairs of rows."""
        first, _ = active_range(self.ticks())
        keep = self._capacity // 2
        if first >= keep:
            self._time[: self._count - first] = self._time[first : self._count].copy()
            self._values[:, : self._count - first] = self._values[:, first : self._count].copy()
            self._count -= first
            return
        self._time[:keep] = self._time.reshape(keep, 2).sum(axis=1) // 2
        self._values[:, :keep] = _mean(self._values.reshape(len(self.names), keep, 2))
        self._count = keep
        self._merged *= 2


def _mean(groups: Float32Array) -> Float32Array:
    """Mean over the last axis of the values that there are."""
    with np.errstate(invalid="ignore"):
        means = groups.mean(axis=-1, dtype=np.float64)
    if not np.isnan(means).any():
        return np.asarray(means, dtype=np.float32)  # nanmean takes more than twice as long
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a group without any value stays NaN, as it should
        return np.asarray(np.nanmean(groups, axis=-1, dtype=np.float64), dtype=np.float32)


def pack(arrays: dict[str, npt.NDArray[np.generic]]) -> bytes:
    """Serialise arrays without pickle, and uncompressed: samples are noise, which takes 40 times as long to shrink."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """Inverse of :func:`pack`; object arrays, and archives that unpack to more than 64 MiB, are refused.

    Raises:
        DamagedStateError: The data is no such archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            unpacked_bytes = sum(member.file_size for member in members.infolist())
            packings = {member.compress_type for member in members.infolist()}
        if not packings <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError("it is packed in another way")
        if unpacked_bytes <= _LARGEST_STATE_BYTES:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        words = f"not a stored tracker state ({error!s:.200}); start the run's tracking anew"
        raise DamagedStateError(words) from error
    raise DamagedStateError(f"a tracker state of {unpacked_bytes} bytes is too large; start the run's tracking anew")

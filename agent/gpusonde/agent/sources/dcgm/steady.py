"""``Steady``: ticks of GPUs of which all is well, without a look at single values. ``LookPhase``: when to look best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.agent.sources.base import ZeroGuard
from gpusonde.agent.sources.dcgm.gpu import PLAIN, PROFILING, DcgmGpu
from gpusonde.agent.sources.dcgm.raw_ticks import HeldValues, SteadyRows, SteadyTicks
from gpusonde.agent.sources.dcgm.tick_grid import FOLLOW, TOGETHER, IndexArray
from gpusonde.agent.sources.dcgm.watch import LatestValues

# A value that comes farther from its time than this share of an interval may belong to another tick.
_CERTAIN = 0.4
# The look is moved when it is farther than this from the middle between two measurements, in intervals.
_MIDDLE = 0.125
# So many times the engine gave nothing new, or two at once, although the look was in the middle: it delivers late.
_MISSES = 3
_NEXT_PLACE = 0.25


class Steady:
    """Takes answers of which each value is a number and was measured one interval after the one before.

    Those are ticks as they are: when each value came is compared with when it was to come, and the numbers are left to
    whoever wants them. Everything else is for the :class:`TickGrid` of each GPU, which goes on behind the ticks here.
    What a single reading cannot tell (slow values, zeros of a GPU that works) is to be looked at now and then.

    Args:
        latest: The reader of all GPUs; what it read last has just become a tick of each of them.
        gpus: The GPUs of its rows.
        slots: For each of them where its values belong.
        columns: Number of columns.
        power: Column of the power; None for none.
        interval_s: Seconds between ticks.
        taken_s: When that was, monotonic clock.

    Attributes:
        latest: The reader.
        taken_s: When the newest tick was taken.
        slow_due_s: When the slow values are to be looked at, whether there are new ones or not; monotonic clock.
    """

    def __init__(
        self,
        latest: LatestValues,
        gpus: Sequence[DcgmGpu],
        slots: Sequence[IndexArray],
        columns: int,
        power: int | None,
        interval_s: float,
        taken_s: float,
    ) -> None:
        self.taken_s = taken_s
        self.slow_due_s = taken_s
        self.latest = latest
        self._gpus = tuple(gpus)
        self._fast = latest.fast.stop
        self._parts = {PLAIN: latest.plain, PROFILING: latest.profiling}
        self._rows = SteadyRows(
            [gpu.index for gpu in gpus],
            latest.layout,
            latest.numbers_of,
            latest.reason_of,
            np.array([one[: self._fast] for one in slots], dtype=np.intp),
            columns,
            power,
        )
        offsets = {name: member[1] for name, member in (latest.layout.fields or {}).items()}
        self._time_at, self._status_at = offsets["time_us"] // 8, offsets["status"] // 4
        self._word_at = offsets["integer"] // 8
        self._kinds = latest.raw[:, : self._fast, : self._status_at // 2].tobytes()
        self._low, self._high = latest.word_limits()
        self._interval_us = interval_s * 1e6
        self._certain_us, self._together_us = _CERTAIN * self._interval_us, TOGETHER * self._interval_us
        self._uncounted = None if latest.counts.all() else ~latest.counts
        if self._uncounted is not None:
            self._low[self._uncounted], self._high[self._uncounted] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        self._usual = latest.statuses[:, : self._fast]
        self._seen_us = latest.times_us[:, : self._fast]
        # When each value is to come, by when its watch is to measure first.
        self._expected_us = np.full(self._seen_us.shape, np.inf)
        self._all_rows = np.arange(len(gpus))
        self._first = np.zeros(len(gpus), dtype=np.intp)
        for row, gpu in enumerate(gpus):
            base, next_us = gpu.next_us
            for watch, part in self._parts.items():
                places = np.flatnonzero(latest.counts[row, part]) + part.start
                if places.size:
                    times_us = self._seen_us[row, places]
                    self._expected_us[row, places] = next_us[watch] + (times_us - times_us.min())
                    if watch == base:
                        self._first[row] = places[times_us.argmin()]
        self._ticks = 0
        self.keep_up()

    def keep_up(self) -> None:
        """Take the slow values as the GPUs hold them now."""
        held = [gpu.held for gpu in self._gpus]
        self._held = HeldValues(np.array([values for values, _ in held]), [blanks for _, blanks in held])

    def fits(self, answers: Sequence[npt.NDArray[np.int64]]) -> int:
        """Return how many of the first answers are the ticks that follow of every GPU, one after the other.

        Args:
            answers: What :attr:`LatestValues.raw` was after each; slow fields do not count.
        """
        raw = self._raw = np.array([answer[:, : self._fast] for answer in answers])
        count = len(raw)
        # From when a value would come if those before it had come in time.
        number = np.arange(count)[:, np.newaxis]
        self._early_us = raw[..., self._time_at] - (self._expected_us + self._interval_us * number[..., np.newaxis])
        if self._uncounted is not None:
            self._early_us[:, self._uncounted] = 0.0
        by_tick = self._early_us.reshape(count, -1)
        if count > 1:
            # From when it was to come after them: the pace follows a share of each deviation.
            left = (1.0 - FOLLOW) ** number
            followed = np.cumsum(by_tick / left, axis=0)[:-1] * (FOLLOW * left[:-1])
            by_tick = np.concatenate([by_tick[:1], by_tick[1:] - followed])
        self._deviation_us = by_tick.reshape(self._early_us.shape)
        earliest, latest = np.minimum.reduce(by_tick, axis=1), np.maximum.reduce(by_tick, axis=1)
        fitting = (
            (latest < self._certain_us)
            & (earliest > -self._certain_us)
            & (latest - earliest < self._together_us)
            & (raw.view(np.int32)[..., self._status_at] == self._usual).reshape(count, -1).all(axis=1)
        )
        return count if fitting.all() else int(fitting.argmin())

    def is_as_before(self) -> bool:
        """Whether in what was just read, and fits, fast values are numbers, all GPUs work and no slow value is new."""
        raw, fast = self.latest.raw, self._fast
        words = raw[:, :fast, self._word_at]
        slow_us = raw[:, fast:, self._time_at]
        ratios = self.latest.ratio_places
        return bool(
            ((words >= self._low) & (words <= self._high)).all()
            and ((slow_us == self.latest.seen_us[:, fast:]) | (slow_us == 0)).all()
            and raw[:, :fast, : self._status_at // 2].tobytes() == self._kinds
            and (not ratios.size or words[:, ratios].any(axis=1).all())
        )

    @property
    def read_us(self) -> npt.NDArray[np.int64]:
        """When the last of what was asked about last was measured, by GPU and fast field; 0 for never."""
        return self._raw[-1, ..., self._time_at]

    def take(self, count: int, now_s: float) -> SteadyTicks:
        """Return the first of what was asked about last, and fits, as ticks of all GPUs."""
        self.taken_s = now_s
        late_us = self._early_us[:count] - (1.0 - FOLLOW) * self._deviation_us[:count]
        times_us = self._expected_us[self._all_rows, self._first] + late_us[:, self._all_rows, self._first]
        if count > 1:
            times_us += self._interval_us * np.arange(count)[:, np.newaxis]
        self._expected_us += late_us[-1] + count * self._interval_us
        raw = self._raw[:count]
        self._seen_us = raw[-1, ..., self._time_at]
        self._ticks += count
        return SteadyTicks(self._rows, raw, times_us, self._held)

    def tell(self) -> None:
        """Tell the reader what was seen; to be called before it decodes."""
        self.latest.seen_us[:, : self._fast] = self._seen_us

    def leave(self) -> None:
        """Let reader and GPUs go on behind the ticks that were taken."""
        self.tell()
        for row, gpu in enumerate(self._gpus):
            next_us = {watch: self._expected_us[row, part].min(initial=np.inf) for watch, part in self._parts.items()}
            known_us = {watch: float(at_us) for watch, at_us in next_us.items() if np.isfinite(at_us)}
            gpu.go_on(self._ticks, known_us, self.taken_s)


def is_in_order(whole: Sequence[bool], activity: Sequence[tuple[float, float]]) -> bool:
    """Whether a reading gave every GPU a whole tick, and none says zero although kernels run."""
    return all(whole) and not any(busiest == 0.0 and use >= ZeroGuard.BUSY for use, busiest in activity)


class LookPhase:
    """Finds the middle between two measurements of the engine.

    There a look may come early or late, and the engine measure so, without that one look finds nothing new and the next
    one two values, of which the first must be fetched. The engine's stamps tell when it measures. Where it delivers
    later by a part of an interval, the look there finds too little and too much again, and other places are tried.

    Args:
        interval_s: Seconds between measurements.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_us = interval_s * 1e6
        self._delay = 0.0
        self._misses = 0
        self._is_there = False

    def note_miss(self) -> None:
        """Note a look, a whole interval after the one before, that found nothing new or something missed."""
        self._misses += self._is_there

    def shift_s(self, times_us: npt.NDArray[np.int64], now_us: int) -> float:
        """Return by how much later looks are to come.

        Args:
            times_us: When what is newest was measured, 0 for never.
            now_us: When it was looked, by the same clock.
        """
        times_us = times_us[times_us > 0]
        if not times_us.size:
            return 0.0
        if self._misses >= _MISSES:
            self._delay = (self._delay + _NEXT_PLACE) % 1.0
            self._misses = 0
        phases = np.sort((now_us - times_us) % self._interval_us)
        gaps = np.diff(phases, append=phases[0] + self._interval_us)
        widest = int(gaps.argmax())
        # How long ago a look would have been best; looks before and after are an interval away.
        early_us = phases[widest] + gaps[widest] / 2 - self._delay * self._interval_us
        wrong_us = (early_us + self._interval_us / 2) % self._interval_us - self._interval_us / 2
        self._is_there = bool(abs(wrong_us) <= _MIDDLE * self._interval_us)
        return 0.0 if self._is_there else float(-wrong_us / 1e6)

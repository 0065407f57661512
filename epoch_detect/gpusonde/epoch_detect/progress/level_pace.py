"""``LevelPace``: how long the cycles of one level take, and whether the latest take longer than those before.

The mean of the latest is compared with the usual duration before them; earlier means of as many cycles say how much it
may differ. A change that comes little by little is sought in medians of many cycles over all that is known.
"""

from __future__ import annotations

import bisect
import math
import operator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpusonde.epoch_detect.progress.changes import duration_trend
from gpusonde.epoch_detect.progress.cycle_clock import CycleClock
from gpusonde.epoch_detect.progress.tempo import OtherTempo
from gpusonde.epoch_detect.result import Cycle
from gpusonde.epoch_detect.stored import check, read_as
from gpusonde.formatting import percent
from gpusonde.telemetry import FloatArray

_LEAST_SLOWER = 0.04  # of the usual duration: less is real, perhaps, but of no use to anybody
_SAME_LEVEL = 0.1
_LEAST_OF_SHORT, _CLEAR_TICKS = 0.07, 10.0  # the same of a cycle of fewer ticks
_LARGE, _WHOLE = 0.14, 1.1  # a rise that may be another work where so much is missing
_LATEST = (3, 4, 5, 6, 8, 12, 16, 24, 32)  # cycles whose mean is looked at
_FEWEST_BEFORE = 8
_MOST_BEFORE = 256
_USUAL = 48  # of those before, whose median is the usual duration
_DEVIATIONS, _UNKNOWN = 4.0, 15.0  # standard deviations that are needed, and so many more for few cycles before
_HIGHEST = 1.25  # times the highest mean of as many cycles before
_LEAST_SCATTER = 0.0015  # of a cycle
_NEWEST, _PAUSE = 3, 2.0  # cycles whose median may be a change; times that change that one with a pause in it differs
_CLEAR = 0.016  # between the quartiles of cycles that scatter by little more than 1 %
_CLEAR_OF_SHORT = 0.03  # the same of cycles of fewer ticks, of which the least change is larger as well
_UNCLEAR = 0.04  # the same, of which no drift is told
_OUTLIER, _LONG = 2.5, 1.5  # standard deviations, or times the least change, that a single cycle counts
_UNLIKE, _LEAST_UNLIKE = 2.5, 0.5  # standard deviations, and shares of the change, that most of the latest may differ
_WANDERS = 1.75  # standard deviations of a cycle that a change must be: the mean of many wanders as far
_BACK_CYCLES, _BACK = 5, 0.5  # cycles, the fewest, that are back at less than this share of the change
_SURELY_BACK = 3.0  # standard deviations of their mean, which that share is
_OTHER_S, _OTHER, _FEWEST_OF_OTHER = 300.0, 2.0, 12  # that another tempo lasts, times the longest before, cycles before
# So long with cycles in hardly any of the time, what was told of the last ones holds no longer.
_LOST_CYCLES, _LOST_S, _HARDLY_ANY = 64, 600.0, 0.1
_LARGEST_LOG = 100.0  # of a stored duration
_BLOCK, _MOST_BLOCKS, _FEWEST_BLOCKS = 8, 32, 6


@dataclass(frozen=True)
class PaceChange:
    """The cycles of a job take longer.

    Attributes:
        since_s: Beginning of the first cycle that does; of a drift, of the first that does by as much as is told.
        before_s: Usual duration before; of a drift, where that begins.
        after_s: Usual duration now.
        drift_per_cycle: Ratio by which each cycle takes longer than the one before, where they drift; 0 for a change
            from one to the next.
    """

    since_s: float
    before_s: float
    after_s: float
    drift_per_cycle: float = 0.0

    @property
    def reason(self) -> str:
        """In words."""
        longer = f"{percent(self.after_s / self.before_s - 1)} longer than the {self.before_s:.3g} s before"
        drift = f", {percent(self.drift_per_cycle, 2)} more with each" if self.drift_per_cycle else ""
        return f"its cycles take {self.after_s:.3g} s, {longer}{drift}"


class LevelPace:
    """Follows the cycles of one level; memory is bounded.

    Args:
        clock: Finds their beginnings.
        is_sure: Whether the level is likely.

    Attributes:
        is_sure: The same, by what the tracker has said since; of another only even cycles count.
        change: By how much they take longer than before; None if they do not.
    """

    def __init__(self, clock: CycleClock, *, is_sure: bool = True) -> None:
        self.is_sure = is_sure
        self.change: PaceChange | None = None
        self._clock = clock
        self._begin_s = math.nan  # of the latest cycle
        self._begins: list[float] = []
        self._logs: list[float] = []
        self._blocks: list[tuple[float, float]] = []  # beginning, median of the logarithms
        self._block: list[float] = []
        self._block_size = _BLOCK
        self._back_s = -math.inf  # when cycles that took longer were last found to be back
        is_short = clock.period_s < _CLEAR_TICKS * clock.tick_s
        self._least = math.log1p(_LEAST_OF_SHORT if is_short else _LEAST_SLOWER)
        self._even = _CLEAR_OF_SHORT if is_short else _CLEAR

    @property
    def period_s(self) -> float:
        """Of the level, as it was confirmed."""
        return self._clock.period_s

    @property
    def is_running(self) -> bool:
        """Whether its cycles are followed."""
        return self._clock.is_running

    @property
    def cycles(self) -> int:
        """Cycles of which the duration is known, the latest some hundred."""
        return len(self._logs)

    @property
    def scatter(self) -> float:
        """Standard deviation of a duration as a ratio, of what is known."""
        logs = np.array(self._logs)
        return 1.4826 * float(np.median(np.abs(logs - np.median(logs)))) if logs.size else math.nan

    def is_of(self, cycle: Cycle) -> bool:
        """Whether a level that is told is this one."""
        known_s = [self._clock.period_s]
        # Where they get slower, the tracker's mean, with pauses in it, is nearer to the latest.
        if self._logs:
            known_s.append(math.exp(_median(np.array(self._logs[-_BLOCK:]))))
        # Of a level that is none, what the ticks repeat after instead is the job's own.
        if self._is_known:
            known_s.append(self._clock.other_tempo.period_s)
        return any(abs(cycle.period_s / period_s - 1) < _SAME_LEVEL for period_s in known_s)

    @property
    def _is_known(self) -> bool:
        """Whether its cycles are known well enough for another tempo to be a change of them."""
        return self.is_sure and len(self._logs) >= _FEWEST_OF_OTHER and self.scatter < _UNCLEAR

    def update(self, time_s: FloatArray, rows: FloatArray, starts_s: FloatArray | None = None) -> None:
        """Take ticks, as :meth:`CycleClock.update` does."""
        begins_s, other = self._clock.update(time_s, rows, starts_s), self._clock.other_tempo
        if math.isfinite(other.period_s):
            self._note_other_tempo(other)
            return
        for begin_s in begins_s:
            # A waveform that is learned anew finds the cycles of its ticks again.
            again = bool(self._begins) and begin_s < self._begins[-1] + 0.5 * math.exp(self._logs[-1])
            if not again and begin_s > self._begin_s:  # neither is NaN
                self._add(self._begin_s, math.log(begin_s - self._begin_s))
            self._begin_s = math.nan if again else begin_s
        if self.change is not None and time_s.size:
            lost_s, now_s = max(_LOST_CYCLES * self.change.after_s, _LOST_S), float(time_s[-1])
            latest = bisect.bisect_left(self._begins, now_s - lost_s)
            found_s = sum(math.exp(log) for log in self._logs[latest:])
            if now_s - self.change.since_s > lost_s and found_s < _HARDLY_ANY * lost_s:
                self.change = None

    def _note_other_tempo(self, tempo: OtherTempo) -> None:
        """Say that cycles take longer that have lasted for longer than any other work of the job did.

        What the clock finds meanwhile is none of its cycles.
        """
        self._begin_s = math.nan
        if self._is_known and tempo.lasts_s > max(_OTHER_S, _OTHER * tempo.longest_s):
            # The last cycle that was found, or the first that was told to take longer, is nearer to where it began.
            told = self.change
            near_s = told.since_s if told is not None else self._begins[-1] + math.exp(self._logs[-1])
            since_s = near_s if tempo.earliest_s < near_s < tempo.since_s else tempo.since_s
            self.change = PaceChange(since_s, math.exp(_median(np.array(self._logs[-_USUAL:]))), tempo.period_s)

    def _add(self, begin_s: float, log: float) -> None:
        self._begins.append(begin_s)
        self._logs.append(log)
        if self.change is None:
            self._look()
        else:
            self._follow_change(self.change)
        if len(self._logs) > _MOST_BEFORE + _LATEST[-1]:
            del self._begins[:-_MOST_BEFORE], self._logs[:-_MOST_BEFORE]
        self._block.append(log)
        if len(self._block) == self._block_size:
            first_s = self._begins[-min(self._block_size, len(self._begins))]
            self._blocks.append((first_s, sorted(self._block)[self._block_size // 2]))
            self._block = []
            if len(self._blocks) == _MOST_BLOCKS:
                pairs = zip(self._blocks[::2], self._blocks[1::2], strict=True)
                self._blocks = [(one[0], (one[1] + other[1]) / 2) for one, other in pairs]
                self._block_size *= 2
            self._look_for_drift()

    def _look(self) -> None:
        logs = self._logs
        if len(logs) < _FEWEST_BEFORE + _NEWEST:
            return
        usual = sorted(logs[-_USUAL - _NEWEST : -_NEWEST])
        # Most cycles are as long as ever; the rest is for those that are not.
        middle, half = _most_alike(usual)
        clear = half <= _CLEAR
        if not (half <= self._even or self.is_sure):
            return
        newest = logs[-_NEWEST:]
        rise = (sorted(newest)[_NEWEST // 2] if clear else sum(newest) / _NEWEST) - middle
        if rise < 0.5 * max(math.log1p(_LEAST_SLOWER), half):
            return
        values = np.array(logs)
        # Where they are even, one that takes far longer holds an evaluation, and says nothing of the pace.
        plain = np.flatnonzero(np.abs(values - middle) <= (_PAUSE * rise if clear else math.inf))
        values = values[plain]
        best: tuple[float, int, float] | None = None
        for count in _LATEST:
            before, latest = values[:-count], values[-count:]
            if before.size < max(_FEWEST_BEFORE, 1.5 * count):
                break
            middle = _median(before[-_USUAL:])
            single = max(1.4826 * _median(np.abs(before - middle)), _LEAST_SCATTER)
            # A few that are much longer are pauses; they count as no more than a little longer.
            most = middle + max(_OUTLIER * single, _LONG * self._least)
            rise = float(np.minimum(latest, most).mean()) - middle
            if rise < max(self._least, _WANDERS * single):
                continue
            is_few, risen = count <= _LATEST[2], _median(latest) - middle
            # Behind lost cycles, or where a few are not alike, it may be another work.
            are_unlike = is_few and float(np.ptp(latest)) > _LEAST_UNLIKE * risen
            if risen > _LARGE and (are_unlike or self._was_lost(int(plain[-count]))):
                continue
            unlike = float(np.quantile(np.abs(np.minimum(latest, most) - middle - rise), 0.9))
            # Of a few, one that is no longer says that the others hold pauses.
            few_rise = float(latest.min()) - middle if is_few else rise
            if unlike > _UNLIKE * single + _LEAST_UNLIKE * rise or few_rise < _LEAST_UNLIKE * rise:
                continue
            means = np.convolve(np.minimum(before, most), np.full(count, 1 / count), "valid") - middle
            scatter = _scatter_of_means(before, means, count)
            needed = (_DEVIATIONS + _UNKNOWN / before.size) * scatter
            if rise < max(needed, _HIGHEST * float(means.max())):
                continue
            weight = count * rise**2
            if best is None or weight > best[0]:
                best = (weight, count, middle)
        if best is not None:
            _, count, middle = best
            self.change = PaceChange(self._begins[plain[-count]], math.exp(middle), math.exp(_median(values[-count:])))

    def _was_lost(self, first: int) -> bool:
        """Whether cycles are missing since the one before: what follows may be batches of an evaluation."""
        known_s = sum(math.exp(log) for log in self._logs[first - 1 :])
        return self._begins[-1] + math.exp(self._logs[-1]) - self._begins[first - 1] > _WHOLE * known_s

    def _look_for_drift(self) -> None:
        third = max(2, len(self._blocks) // 6)
        medians = [log for _, log in self._blocks]
        rise = sum(medians[-third:]) / third - sum(medians[:third]) / third
        if len(medians) < _FEWEST_BLOCKS or rise < math.log1p(_LEAST_SLOWER):
            return
        unclear = _UNCLEAR if self.is_sure else _CLEAR
        if max(_most_alike(sorted(self._logs))[1], self.scatter) > unclear:
            return
        found = duration_trend(np.exp(medians))
        last = found.change_points[-1] if found.change_points else None
        begin = last.epoch if last is not None else 0
        drifts = found.change_per_epoch_low > 0
        risen = math.expm1(math.log1p(found.change_per_epoch) * (len(medians) - 1 - begin)) if drifts else 0.0
        if risen >= _LEAST_SLOWER:
            first = float(np.exp(medians[begin]))
            per_cycle = math.expm1(math.log1p(found.change_per_epoch) / self._block_size)
            short = [i for i, log in enumerate(medians[:-1]) if log - medians[begin] < math.log1p(_LEAST_SLOWER)]
            change = PaceChange(self._blocks[short[-1] + 1][0], first, first * (1 + risen), per_cycle)
        elif self.change is None and last is not None and last.change >= _LEAST_SLOWER:
            change = PaceChange(self._blocks[begin][0], last.before_s, last.after_s)
        else:
            return
        # What has been over is not told again.
        if change.since_s > self._back_s:
            self.change = change

    def _follow_change(self, change: PaceChange) -> None:
        first = next((i for i, at in enumerate(self._begins) if at >= change.since_s), 0)
        latest = self._logs[max(first, len(self._logs) - _LATEST[-1]) :]
        if change.drift_per_cycle:
            latest = latest[-_LATEST[2] :]
        rise = math.log(change.after_s / change.before_s)
        after_s = math.exp(sorted(latest)[len(latest) // 2])
        count = _BACK_CYCLES
        if len(latest) > count and rise > 0 and not change.drift_per_cycle:
            # The mean of a few cycles that scatter comes near to those before by chance.
            single = 1.4826 / math.sqrt(2) * _median(np.abs(np.diff(latest)))
            needed = (_SURELY_BACK * single / (_BACK * rise)) ** 2
            count = min(max(count, math.ceil(needed)), _LATEST[-1])
        back = sum(latest[-count:]) / min(len(latest), count)
        is_back = back - math.log(change.before_s) < _BACK * rise
        is_back |= math.log(after_s / change.before_s) < _BACK * self._least
        if len(latest) >= count and is_back:
            self.change, self._back_s = None, self._begins[-1]
            return
        self.change = PaceChange(change.since_s, change.before_s, after_s, change.drift_per_cycle)

    def fields(self) -> dict[str, Any]:
        """What another one needs to go on here, for JSON."""
        return {
            "clock": self._clock.fields(),
            "sure": self.is_sure,
            "change": None if self.change is None else asdict(self.change),
            "begin_s": finite_or_none(self._begin_s),
            "begins": self._begins,
            "logs": self._logs,
            "blocks": self._blocks,
            "block": self._block,
            "block_size": self._block_size,
            "back_s": finite_or_none(self._back_s),
        }

    @classmethod
    def of_fields(cls, fields: dict[str, Any], metrics: int | None = None) -> LevelPace:
        """Inverse of :meth:`fields`; of ticks with so many metrics, any where None."""
        pace = cls(CycleClock.of_fields(fields["clock"], metrics), is_sure=read_as(bool, fields.get("sure", True)))
        begin_s, back_s = (read_as(float | None, fields.get(name)) for name in ("begin_s", "back_s"))
        pace._begin_s = math.nan if begin_s is None else begin_s
        pace._back_s = -math.inf if back_s is None else back_s
        pace.change = read_as(PaceChange | None, fields["change"])
        pace._begins, pace._logs, pace._block = (
            read_as(list[float], fields[name]) for name in ("begins", "logs", "block")
        )
        pace._blocks = read_as(list[tuple[float, float]], fields["blocks"])
        pace._block_size = read_as(int, fields["block_size"])
        logs = [*pace._logs, *pace._block, *(log for _, log in pace._blocks)]
        check(all(abs(log) <= _LARGEST_LOG for log in logs), "durations of cycles")
        check(len(pace._begins) == len(pace._logs) and pace._block_size >= 1, "numbers of cycles")
        if (change := pace.change) is not None:
            check(0 < change.before_s < math.inf and 0 < change.after_s < math.inf, "a change of pace")
        return pace


def _median(values: FloatArray) -> float:
    # A sixth of the time of numpy's own, of which a look needs dozens.
    return float(np.partition(values, values.size // 2)[values.size // 2])


def _most_alike(lengths: list[float]) -> tuple[float, float]:
    """Median and range of the half of sorted lengths that are most alike: those with a pause in them are all longer."""
    size = len(lengths) // 2
    widths = list(map(operator.sub, lengths[size:], lengths))
    width = min(widths)
    return lengths[widths.index(width) + size // 2], width


def _scatter_of_means(before: FloatArray, means: FloatArray, count: int) -> float:
    """Standard deviation of the mean of so many cycles: that of such means, and what single cycles make likely."""
    steps = np.diff(before)
    # Neighbours differ by their own scatter and by that of the place between them, which their mean does not have.
    own = before - _median(before)
    together = max(-float(np.mean(np.clip(own[1:] * own[:-1], -1, 1))), 0.0) if before.size > 1 else 0.0
    single = (1.4826 * _median(np.abs(steps))) ** 2 / 2
    place = min(together, single / 3)
    likely = max(single - 2 * place, 0.0) / count + 2 * place / count**2
    seen = 1.4826 * _median(np.abs(means - _median(means))) if means.size >= 2 * count else 0.0
    return max(_LEAST_SCATTER / math.sqrt(count), math.sqrt(likely), seen)


def finite_or_none(value: float) -> float | None:
    """Return a number as JSON may hold it."""
    return value if math.isfinite(value) else None

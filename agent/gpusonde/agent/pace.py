"""How often the GPUs are read: at full rate while they work, less often while they idle or reading costs too much.

A slower pace is a choice, so its longer steps are not missed ticks; every tick still carries the time at which it was
taken. What is decided follows from the readings alone:

* **Idle.** No GPU worked for ``idle_after_s``: one reading every ``idle_interval_s``. The first sign of work, or device
  memory that is taken or given back (which comes seconds before the first kernel), brings the full rate back with the
  next tick.
* **Budget.** Reading takes more than its share of a core, or most of the time between two ticks: the next slower of
  the steps x1, x2, x5, x10. It is left once the faster one would cost clearly less for a while.
* **Rhythm**, with ``source.rate = "adaptive"``. What the GPUs do is known, or nothing varies: as rarely as the one that
  needs it most allows (see ``rhythm``), at full rate again with a change.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.rhythm import Rhythm
from gpusonde.agent.sources.base import GpuTicks, RawTicks, Reading
from gpusonde.telemetry import FloatArray, Metric, Unit

log = logging.getLogger(__name__)

# Multiples of the configured interval.
_STEPS = (1, 2, 5, 10)
# Below what a run's activity is (0.05): a tick of a second in which a job began late must be noticed too.
_WORKING = 0.01
# While a GPU works it is looked at this often only: by then a share of the time after which it counts as idle is over.
_LOOK_AGAIN = 0.05
_MEMORY_CHANGE_BYTES = 16.0 * (1 << 20)
# Readings that take longer than this share of the interval make the next one late, whatever the processor did.
_LONGEST_READING = 0.8
# What reacts to a job first, best first.
_FASTEST_FIRST = ("sm_active", "graphics_active", "dram_active", "tensor_active", "gpu_utilization")
# A GPU without a value for so long has no say in the rate.
_LOST_S = 10.0
# The cost is judged over so many seconds, so that one stalled reading decides nothing.
_JUDGED_S = 5.0
# The faster step must be affordable by this margin for so long, or the pace would swing.
_MARGIN = 0.7
_RECOVERY_S = 30.0


class Pace(Protocol):
    """Says how long to wait between ticks."""

    @property
    def look_due_s(self) -> float:
        """When the pace wants to see a reading again, monotonic clock; until then only those with an inventory."""
        ...

    @property
    def interval_s(self) -> float:
        """Seconds from the last tick to the next."""
        ...

    def see(self, reading: Reading, now_s: float) -> None:
        """Take a reading and when it was (monotonic clock)."""
        ...

    def spend(self, now_s: float, processor_s: float, elapsed_s: float, deadlines: int) -> None:
        """Take what all readings of one deadline cost, in processor time and in time, on average over some."""
        ...


@dataclass(frozen=True)
class FixedPace:
    """The same interval always.

    Attributes:
        interval_s: Seconds between ticks.
    """

    interval_s: float
    look_due_s: ClassVar[float] = math.inf

    def see(self, reading: Reading, now_s: float) -> None:
        """See :class:`Pace`."""

    def spend(self, now_s: float, processor_s: float, elapsed_s: float, deadlines: int) -> None:
        """See :class:`Pace`."""


class AdaptivePace:
    """Slows down as described above. Used by the sampler's thread alone.

    Args:
        config: Interval, idle interval and budget.
        metrics: Columns of the readings.
        gpus: Number of GPUs.
        counters: Filled with the interval in force and the number of slow-downs by reason.
    """

    def __init__(self, config: SourceConfig, metrics: Sequence[Metric], gpus: int, counters: SelfCounters) -> None:
        self._config = config
        self._work = WorkWatch(metrics, gpus)
        self._budget = ReadBudget(config.interval_s, config.read_budget)
        self._counters = counters
        self._last_work_s = -math.inf
        self._idle = False
        self._rhythms = Rhythms(config.interval_s, metrics)
        self.look_due_s = -math.inf
        self.interval_s = config.interval_s
        counters.sampling_interval_s = config.interval_s

    def configure(self, config: SourceConfig) -> None:
        """Keep to another section from the next reading on; callable from any thread."""
        self._config = config
        self._budget.share = config.read_budget
        self._budget.interval_s = config.interval_s
        self.look_due_s = -math.inf
        self._choose()

    def _choose(self) -> None:
        """Take the interval that now holds."""
        interval_s = self._config.interval_s * self._budget.multiple
        if self._idle:
            interval_s = max(interval_s, self._config.idle_interval_s)
        elif self._config.rate == "adaptive":
            interval_s = max(interval_s, self._rhythms.interval_s)
        self.interval_s = self._counters.sampling_interval_s = interval_s

    def see(self, reading: Reading, now_s: float) -> None:
        """See :class:`Pace`."""
        config = self._config
        if reading.inventory is not None:
            self._work = WorkWatch(reading.inventory.metrics, len(reading.inventory.gpus))
            self._rhythms = Rhythms(self._config.interval_s, reading.inventory.metrics)
        if self._config.rate == "adaptive":
            self._rhythms.see(reading, now_s, self._config.interval_s)
        at_work = not self._idle and now_s - self._last_work_s < _LOOK_AGAIN * self._config.idle_after_s
        if at_work:
            self._choose()
            return
        if self._last_work_s == -math.inf or self._work.sees_work(reading):
            self._last_work_s = now_s
        idle = self._config.idle_interval_s > self._config.interval_s and (
            now_s - self._last_work_s >= self._config.idle_after_s
        )
        if idle and not self._idle:
            self._count("idle")
            self._rhythms.forget()
            log.info(
                "no GPU has worked for %.0f s: sampling every %g s until one does",
                now_s - self._last_work_s,
                self._config.idle_interval_s,
            )
        elif self._idle and not idle:
            log.info("a GPU works: sampling every %g s again", self._config.interval_s * self._budget.multiple)
        self._idle = idle
        if not idle and self._last_work_s == now_s and config.rate != "adaptive" and config is self._config:
            self.look_due_s = now_s + _LOOK_AGAIN * config.idle_after_s
        else:
            self.look_due_s = -math.inf
        self._choose()

    def spend(self, now_s: float, processor_s: float, elapsed_s: float, deadlines: int) -> None:
        """See :class:`Pace`."""
        before = self._budget.multiple
        self._budget.note(now_s, deadlines * self.interval_s, processor_s, elapsed_s)
        after = self._budget.multiple
        if after == before:
            return
        if after > before:
            self._count("read_budget")
        log.log(
            logging.WARNING if after > before else logging.INFO,
            "a reading takes %.0f ms, %.0f ms of them on a core (source.read_budget %g): sampling every %g s",
            self._budget.elapsed_s * 1e3,
            self._budget.processor_s * 1e3,
            self._config.read_budget,
            self._config.interval_s * after,
        )
        self._choose()

    def _count(self, reason: str) -> None:
        self._counters.slowdowns[reason] = self._counters.slowdowns.get(reason, 0) + 1


class WorkWatch:
    """Tells whether a GPU works, of readings alone.

    Args:
        metrics: Columns of the readings.
        gpus: Number of GPUs.
    """

    def __init__(self, metrics: Sequence[Metric], gpus: int) -> None:
        video = ("encoder_utilization", "decoder_utilization")
        self._ratios = [i for i, m in enumerate(metrics) if m.unit is Unit.RATIO and m.name not in video]
        self._memory = next((i for i, m in enumerate(metrics) if m.name == "framebuffer_used_bytes"), None)
        self._memory_bytes = [math.nan] * gpus

    def sees_work(self, reading: Reading) -> bool:
        """Whether any GPU of the reading works or may work; a GPU that tells nothing of it may.

        A reading without ticks (all GPUs lost, an engine that is late) and one that only repeats idle is no work.
        """
        # Every GPU is looked at: the memory of each is to be compared with the next reading.
        seen = reading.ticks.peek() if isinstance(reading.ticks, RawTicks) else reading.ticks
        works = [self._works(ticks) for ticks in seen]
        return any(works)

    def _works(self, ticks: GpuTicks) -> bool:
        if not ticks.values.shape[1]:
            return False
        moved = self._memory_moved(ticks)
        ratios: FloatArray = ticks.values[self._ratios]
        known = np.isfinite(ratios)
        return moved or not bool(known.any()) or bool((ratios[known] > _WORKING).any())

    def _memory_moved(self, ticks: GpuTicks) -> bool:
        if self._memory is None:
            return False
        row = ticks.values[self._memory]
        row = row[np.isfinite(row)]
        if not row.size:
            return False
        before, self._memory_bytes[ticks.gpu] = self._memory_bytes[ticks.gpu], float(row[-1])
        return bool(np.abs(row - before).max() >= _MEMORY_CHANGE_BYTES)


class Rhythms:
    """Follows every GPU: the one that needs readings most often decides for all.

    Args:
        interval_s: Seconds between ticks at full rate.
        metrics: Columns of the readings.
    """

    def __init__(self, interval_s: float, metrics: Sequence[Metric]) -> None:
        self._full_s = interval_s
        self._columns = followed_columns(metrics)
        self._of: dict[int, Rhythm] = {}
        self._seen_s: dict[int, float] = {}
        self.interval_s = interval_s

    def forget(self) -> None:
        """Forget the jobs so far: what comes is another one."""
        self._of, self._seen_s = {}, {}

    def see(self, reading: Reading, now_s: float, full_s: float) -> None:
        """Take a reading, when it was, and the interval at full rate, which may have been changed."""
        if full_s != self._full_s:
            self._full_s = full_s
            self.forget()
        for ticks in reading.ticks.peek() if isinstance(reading.ticks, RawTicks) else reading.ticks:
            if not ticks.values.shape[1] or not self._columns:
                continue
            rhythm = self._of.setdefault(ticks.gpu, Rhythm(full_s, len(self._columns)))
            row = ticks.values[self._columns, -1]
            if np.isfinite(row).all():
                rhythm.see(now_s, row)
                self._seen_s[ticks.gpu] = now_s
        # A lost GPU has no say; where none has, nothing is known, and the rate is the full one.
        there = [self._of[gpu].interval_s for gpu, seen_s in self._seen_s.items() if now_s - seen_s < _LOST_S]
        self.interval_s = min(there, default=full_s)


def followed_columns(metrics: Sequence[Metric]) -> list[int]:
    """Return the places of the metrics that tell a GPU's rhythm: the fastest ratio there is, and power."""
    names = [m.name for m in metrics]
    fast = next((names.index(name) for name in _FASTEST_FIRST if name in names), None)
    power = names.index("power_watts") if "power_watts" in names else None
    return [place for place in (fast, power) if place is not None]


class ReadBudget:
    """Chooses among the steps by what reading costs.

    Args:
        interval_s: Seconds between ticks at full rate.
        share: Share of one core that reading may take.
    """

    def __init__(self, interval_s: float, share: float) -> None:
        self.interval_s = interval_s
        self.share = share
        self._step = 0
        self._seen_s = 0.0
        self._here_s = 0.0
        self._cheap_since_s: float | None = None
        self.processor_s = 0.0
        self.elapsed_s = 0.0

    @property
    def multiple(self) -> int:
        """By what the interval at full rate is to be multiplied."""
        return _STEPS[self._step]

    def note(self, now_s: float, interval_s: float, processor_s: float, elapsed_s: float) -> None:
        """Take the cost of one reading, or the mean of some.

        Args:
            now_s: When, monotonic clock.
            interval_s: Seconds that they stand for.
            processor_s: Seconds of processor time.
            elapsed_s: Seconds.
        """
        self._seen_s += interval_s
        self._here_s += interval_s
        # A mean over all at first, so that the slow first reading does not outweigh the rest.
        weight = interval_s / min(self._seen_s, max(_JUDGED_S, interval_s))
        self.processor_s += weight * (processor_s - self.processor_s)
        self.elapsed_s += weight * (elapsed_s - self.elapsed_s)
        if self._here_s < _JUDGED_S:
            return
        if self._load(self._step) > 1.0:
            self._cheap_since_s = None
            if self._step + 1 < len(_STEPS):
                self._move(self._step + 1)
        elif self._step and self._load(self._step - 1) < _MARGIN:
            if self._cheap_since_s is None:
                self._cheap_since_s = now_s
            elif now_s - self._cheap_since_s >= _RECOVERY_S:
                self._move(self._step - 1)
        else:
            self._cheap_since_s = None

    def _move(self, step: int) -> None:
        self._step = step
        self._here_s = 0.0
        self._cheap_since_s = None

    def _load(self, step: int) -> float:
        """Return what reading would cost at a step, as a multiple of what is allowed."""
        interval_s = self.interval_s * _STEPS[step]
        return max(self.processor_s / (self.share * interval_s), self.elapsed_s / (_LONGEST_READING * interval_s))

"""``Look``: a look at all of a run that goes on, done in parts while ticks come."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from gpusonde.epoch_detect.cycles.analysis import analyse_and_cache, analyse_in_steps, complete
from gpusonde.epoch_detect.cycles.candidates import Scope
from gpusonde.epoch_detect.cycles.detector import CachedMatch
from gpusonde.epoch_detect.cycles.marks import Marks
from gpusonde.epoch_detect.reported import ReportedEpochs, Stretch, has_level
from gpusonde.epoch_detect.result import EpochDetection, shifted
from gpusonde.epoch_detect.ticks import Ticks

# What passes between two parts of an analysis, so that no update takes long: of the run, and at least.
_STEP = 0.001
_LEAST_STEP_S = 0.1
_MOST_IN_DOUBT = 2  # stretches that are looked at by themselves
_SAME_STRETCH = 0.9  # of the run: what is not found in it is not found in so much of it


@dataclass(frozen=True)
class WholeAnswer:
    """What a look has found.

    Attributes:
        found: The answer.
        cached: Its match, to follow.
        held: Where cycles of other levels were reported, and are some.
    """

    found: EpochDetection
    cached: CachedMatch | None
    held: tuple[Stretch, ...] = ()


@dataclass
class Look:
    """A look that is not done yet.

    Attributes:
        since_us: Time of the newest tick that it is of.
        rows: How many rows of the history it looks at.
        steps: What is left to do.
        due_us: When the next step is to be done.
        done: How many steps are done.
    """

    since_us: int
    rows: int
    steps: Generator[None, None, WholeAnswer]
    due_us: int
    done: int = 0

    def step(self, now_us: int) -> WholeAnswer | None:
        """Do the next part; return what the look has found where that was the last one."""
        try:
            next(self.steps)
        except StopIteration as end:
            answer: WholeAnswer = end.value
            return answer
        self.done += 1
        self.due_us = now_us + max(round(_STEP * self.since_us), round(_LEAST_STEP_S * 1e6))
        return None

    def resume(self, due_us: int, done: int) -> None:
        """Do anew what was done of it.

        Raises:
            ValueError: It has fewer steps.
        """
        self.due_us = due_us
        for self.done in range(1, done + 1):
            if next(self.steps, self) is self:
                raise ValueError(f"an analysis of fewer than {done} steps; start the run's tracking anew")


def look_in_steps(
    ticks: Ticks, scope: Scope, marks: Callable[[], Marks | None], reported: ReportedEpochs, origin_s: float
) -> Generator[None, None, WholeAnswer]:
    """Look at a run that goes on, with a pause after each small part of the work.

    Args:
        ticks: Of the run.
        scope: What is worth looking for.
        marks: Returns what the job's processes did meanwhile, on the ticks' own axis; asked when levels are named.
        reported: What was told of the run.
        origin_s: Where the ticks' own axis begins on that of what was told, in seconds.
    """
    found, cached = yield from analyse_in_steps(ticks, ended=False, marks=marks, scope=scope)
    held = yield from _find_held(ticks, found, reported, origin_s)
    return WholeAnswer(found, cached, held)


def look_at_once(
    ticks: Ticks, scope: Scope, marks: Marks | None, reported: ReportedEpochs, origin_s: float, *, ended: bool
) -> WholeAnswer:
    """Look at a run, which may be over, as :func:`look_in_steps` does, without a pause."""
    found, cached = analyse_and_cache(ticks, ended=ended, marks=marks, scope=scope)
    return WholeAnswer(found, cached, complete(_find_held(ticks, found, reported, origin_s)))


def _find_held(
    ticks: Ticks, found: EpochDetection, reported: ReportedEpochs, origin_s: float
) -> Generator[None, None, tuple[Stretch, ...]]:
    """Find where cycles were reported that an answer does not have, and that their own part of the run does have.

    An analysis of all of a run knows one tempo; where that has changed, what was told before is asked of the ticks it
    was told of.
    """
    whole_us = int(ticks.time_us[-1]) if len(ticks) else 0
    held = []
    for stretch in reported.in_doubt(shifted(found, origin_s))[:_MOST_IN_DOUBT]:
        edges_us = (np.array([stretch.start_s, stretch.end_s]) - origin_s) * 1e6
        if edges_us[1] - edges_us[0] > _SAME_STRETCH * whole_us:
            continue
        first, stop = np.searchsorted(ticks.time_us, edges_us)
        alone, _ = yield from analyse_in_steps(
            ticks.slice(int(first), int(stop)), ended=False, scope=Scope(math.inf, (stretch.period_s,))
        )
        if has_level(alone, stretch.period_s):
            held.append(stretch)
    return tuple(held)

"""Benchmarks of verdicts: what they are asked of can be made."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

BENCHMARKS = ("epochs", "verdicts")


def test_a_day_of_the_reaper_is_filled_with_generated_jobs(module: Callable[[str], ModuleType]) -> None:
    reaper = module("reaper")
    day = reaper.Day(np.random.default_rng(1))
    reaper.generated(day)
    assert day.is_full

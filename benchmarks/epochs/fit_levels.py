"""Fit what judges the levels of the tree of cycles: ``python benchmarks/epochs/fit_levels.py``.

Jobs of ``jobs.py`` whose kinds are not set aside take part, and traces of ``families.py``, of which only the epoch is
known. Three kinds of scorer come out: how likely a level is real, how likely it has each role, and how likely it is the
best guess of the epoch. The latter two see the confidences that a fit without their job gives.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jobs
import numpy as np
from fit_scorer import calibration, example, tree_arrays, truths
from sklearn.ensemble import HistGradientBoostingClassifier

import gpusonde.epoch_detect.cycles.scorer as scorer_module
from gpusonde.epoch_detect import Role
from gpusonde.epoch_detect.cycles.detector import find_readings
from gpusonde.epoch_detect.cycles.events import Load
from gpusonde.epoch_detect.cycles.roles import JUDGED_ROLES, ROLE_FEATURES, describe_roles
from gpusonde.epoch_detect.cycles.tree import LEVEL_FEATURES, JudgedLevel, Level, keep_likeliest
from gpusonde.epoch_detect.detect import gather_ticks
from gpusonde.telemetry import Trace

RIGHT = 0.06  # a level within this ratio of a true one is real
RIGHT_GUESS = 0.10
_FOLDS = 5
_FAMILIES = 0.25  # share of the traces that are of families
# The more of it, the likelier the level is real, all else being equal: what is known is not left to the data.
SPEAKS_FOR = {
    "clock", "comb", "line", "template", "template_score", "chosen", "cover", "clock_share", "comb_share", "line_share",
    "template_share", "sources", "strength", "agreement", "steadiness", "explained",
}  # fmt: skip
SPEAKS_AGAINST = {"spread", "rank"}
assert set(LEVEL_FEATURES) >= SPEAKS_FOR | SPEAKS_AGAINST


@dataclass(frozen=True)
class Sample:
    """The levels that were read from one job, and what is true of it.

    Attributes:
        number: Of the job.
        load: What it does.
        levels: All that some reading speaks for.
        real: (period in seconds, roles) of each true level.
        shown_s: Periods of the true levels that the recording shows.
        guesses: Periods that are a right best guess.
        all_known: Whether all true levels are known.
    """

    number: int
    load: Load
    levels: tuple[Level, ...]
    real: tuple[tuple[float, frozenset[Role]], ...]
    shown_s: tuple[float, ...]
    guesses: tuple[float, ...]
    all_known: bool


def sample(number: int, seed: int) -> Sample | None:
    """Simulate a job and read its levels; None where there is nothing to read."""
    if np.random.default_rng([seed, number]).random() < _FAMILIES:
        made = example(seed, number)
        periods = truths(made)
        return _read(
            number, [made.trace], tuple((p, frozenset({Role.EPOCH})) for p in periods), periods, periods, False
        )
    (job,) = jobs.fit_jobs(seed, [number])
    traces = job.traces if number % 3 == 0 else job.traces[:1]
    real = tuple(
        (period, frozenset({level.role, *level.also}))
        for level in job.levels
        for period in (level.period_s, *level.regimes_s)
    )
    shown = tuple(p for level in job.visible for p in (level.period_s, *level.regimes_s))
    return _read(number, traces, real, shown, job.periods_s, True)


def _read(
    number: int,
    traces: Sequence[Trace],
    real: tuple[tuple[float, frozenset[Role]], ...],
    shown_s: tuple[float, ...],
    guesses: tuple[float, ...],
    all_known: bool,
) -> Sample | None:
    found = find_readings(*gather_ticks(traces), ended=number % 3 > 0)
    if found is None:
        return None
    load, levels = found
    small = replace(load, values=load.values.astype(np.float32), traffic=load.traffic.astype(np.float32))
    return Sample(number, small, tuple(levels), real, shown_s, guesses, all_known)


def fit(
    table: np.ndarray, right: np.ndarray, features: Sequence[str], iterations: int
) -> HistGradientBoostingClassifier:
    """Fit boosted trees."""
    sign = (
        [(name in SPEAKS_FOR) - (name in SPEAKS_AGAINST) for name in features] if features is LEVEL_FEATURES else None
    )
    return HistGradientBoostingClassifier(
        max_iter=iterations, max_leaf_nodes=12, learning_rate=0.05, min_samples_leaf=30, l2_regularization=5,
        random_state=0, monotonic_cst=sign,
    ).fit(table, right)  # fmt: skip


def fit_all(
    table: np.ndarray,
    right: np.ndarray,
    group: np.ndarray,
    features: Sequence[str],
    out: Path,
    iterations: int,
    *,
    best_only: bool = False,
) -> np.ndarray:
    """Fit and write a scorer; return the probability of each row from a fit without its job, calibrated.

    With ``best_only`` it is calibrated on the likeliest row of each job: that is the one whose probability is told.
    """
    raw = np.full(right.size, right.mean())
    for fold in range(_FOLDS):
        aside = group % _FOLDS == fold
        if right[~aside].any() and aside.any():
            raw[aside] = fit(table[~aside], right[~aside], features, iterations).predict_proba(table[aside])[:, 1]
    told = np.ones(right.size, dtype=bool)
    if best_only:
        order = np.lexsort((-raw, group))
        told[order[1:][np.diff(group[order]) == 0]] = False
    knots, calibrated = calibration(raw[told], right[told])
    trees = tree_arrays(fit(table, right, features, iterations))
    np.savez_compressed(out, features=np.array(features), raw=knots, calibrated=calibrated, **trees)  # type: ignore[arg-type]
    return np.interp(raw, knots, calibrated)


def fit_levels(samples: Sequence[Sample], folder: Path) -> list[list[JudgedLevel]]:
    """Fit what says how likely a level is real; return the levels that each job would be told to have."""
    rows, right, group, weight = [], [], [], []
    for each in samples:
        for level in each.levels:
            known = _is_near(level.period_s, (p for p, _ in each.real), RIGHT)
            rows.append([getattr(level.features, name) for name in LEVEL_FEATURES])
            right.append(known)
            group.append(each.number)
            # Of a family only the epochs are known: what else is found there may be real or not.
            weight.append(each.all_known or known or not each.real)
    table, labels, groups = np.array(rows), np.array(right), np.array(group)
    use = np.array(weight)
    confidence = np.zeros(labels.size)
    confidence[use] = fit_all(table[use], labels[use], groups[use], LEVEL_FEATURES, folder / "levels.npz", 150)
    if (~use).any():
        with (folder / "levels.npz").open("rb") as file:
            confidence[~use] = scorer_module.Scorer.load(file, LEVEL_FEATURES).probability(table[~use])
    told, at = [], 0
    for each in samples:
        told.append(keep_likeliest(each.levels, confidence[at : at + len(each.levels)]))
        at += len(each.levels)
    return told


def fit_roles(samples: Sequence[Sample], told: Sequence[list[JudgedLevel]], folder: Path) -> np.ndarray:
    """Fit what says which role a level has, and which level is the best guess; return the probability of the latter."""
    rows, group, roles, guess, known = [], [], [], [], []
    for each, judged in zip(samples, told, strict=True):
        ordered = sorted(judged, key=lambda j: j.level.period_s)
        rows.append(describe_roles(each.load, ordered))
        for j in ordered:
            near = [r for p, r in each.real if abs(j.level.period_s / p - 1) < RIGHT_GUESS]
            roles.append(frozenset().union(*near))
            guess.append(_is_near(j.level.period_s, each.guesses, RIGHT_GUESS))
            known.append(each.all_known)
            group.append(each.number)
    table, groups, sure = np.concatenate(rows), np.array(group), np.array(known)
    for role in JUDGED_ROLES:
        has = np.array([role in r for r in roles])
        fit_all(table[sure], has[sure], groups[sure], ROLE_FEATURES, folder / f"role_{role}.npz", 80)
    return fit_all(table, np.array(guess), groups, ROLE_FEATURES, folder / "guess.npz", 80, best_only=True)


def _is_near(period_s: float, others: Iterable[float], ratio: float) -> bool:
    return any(abs(period_s / other - 1) < ratio for other in others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=900)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="keep the levels here, to fit again without simulating")
    parser.add_argument("--out", type=Path, default=Path(scorer_module.__file__).parent)
    arguments = parser.parse_args()
    if arguments.cache and arguments.cache.exists():
        samples = pickle.loads(arguments.cache.read_bytes())
    else:
        with multiprocessing.Pool(arguments.processes) as pool:
            read = functools.partial(sample, seed=arguments.seed)
            samples = [s for s in pool.imap(read, range(arguments.jobs), chunksize=8) if s]
        if arguments.cache:
            arguments.cache.write_bytes(pickle.dumps(samples))
    told = fit_levels(samples, arguments.out)
    fit_roles(samples, told, arguments.out)
    print(f"{len(samples)} jobs, {sum(len(t) for t in told)} levels told -> {arguments.out}")


if __name__ == "__main__":
    main()

"""Fit what judges the levels of the tree of cycles: ``python benchmarks/epochs/fit_levels.py``.

Jobs of ``jobs.py`` whose kinds are not set aside take part, and traces of ``families.py``, of which only the epoch is
known. What comes out says how likely a level is real, what the run is as a whole, how likely a level has each role, and
how likely it is the best guess of the epoch, by itself and beside the others. Each sees the confidences that fits
without its job, or without any job of its kind, give to what comes before.
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
from gpusonde.epoch_detect import CycleRole, RunState
from gpusonde.epoch_detect.cycles.analysis import find_readings
from gpusonde.epoch_detect.cycles.events import Load
from gpusonde.epoch_detect.cycles.roles import (
    GUESS_FEATURES,
    JUDGED_ROLES,
    ROLE_FEATURES,
    describe_guesses,
    describe_roles,
)
from gpusonde.epoch_detect.cycles.run_state import RUN_FEATURES, RUN_STATES, Use, describe_run, judge_run
from gpusonde.epoch_detect.cycles.tree import LEVEL_FEATURES, JudgedLevel, Level, judge_levels, keep_likeliest
from gpusonde.epoch_detect.detect import gather_ticks
from gpusonde.telemetry import Trace

RIGHT = 0.06  # a level within this ratio of a true one is real
RIGHT_GUESS = 0.10
_PARTS_OF_JOBS, _PARTS_OF_KINDS = 3, 7
_FAMILIES = 0.2  # share of the traces that are of families
_BEGINNINGS = 0.3  # share of the traces that stop on the way, as a tracker sees them
# Streams of their own: what decides on a family must not decide which one.
_OF_FAMILIES, _OF_BEGINNINGS = 1, 2
_FAMILY = "family "
# Of those without epochs; the others do some other work.
_OF_FAMILY = {
    "idle": RunState.IDLE, "requests": RunState.SERVING, "bursts": RunState.SERVING, "steady": RunState.TRAINING,
}  # fmt: skip
# What an epoch of a family has not, and what nothing of a family without epochs has.
_NO_ROLES_OF_EPOCHS = frozenset({CycleRole.STEP, CycleRole.TRIAL})
_NO_ROLES_WITHOUT = frozenset({CycleRole.EPOCH, CycleRole.TRIAL})
_LONGEST_RIPPLE_S = 3.3  # of a family: up to there what repeats may be its steps
_REPEATS = "timer"  # a family that has a cycle, and no epochs
# The more of it, the likelier the level is real, all else being equal: what is known is not left to the data.
SPEAKS_FOR = {
    "clock", "comb", "line", "template", "template_score", "chosen", "cover", "clock_share", "comb_share", "line_share",
    "template_share", "sources", "strength", "agreement", "steadiness", "explained", "ahead_rise", "folded",
    "folded_own",
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
        guesses: Periods that are a right best guess.
        all_known: Whether all true levels are known.
        kind: Of the job; of a family its name.
        run_state: What the whole is.
        use: How much its GPU is used.
    """

    number: int
    load: Load
    levels: tuple[Level, ...]
    real: tuple[tuple[float, frozenset[CycleRole]], ...]
    guesses: tuple[float, ...]
    all_known: bool
    kind: str
    run_state: RunState
    use: Use


def sample(number: int, seed: int) -> Sample | None:
    """Simulate a job and read its levels; None where there is nothing to read."""
    until = _seen(number, seed)
    if np.random.default_rng([seed, number, _OF_FAMILIES]).random() < _FAMILIES:
        made = example(seed, number)
        periods = truths(made)
        state = RunState.TRAINING if periods else _OF_FAMILY.get(made.family, RunState.OTHER)
        real = tuple((p, frozenset({CycleRole.EPOCH})) for p in periods)
        return _read(number, [made.trace], until, real, periods, _FAMILY + made.family, state)
    (job,) = jobs.fit_jobs(seed, [number])
    traces = job.traces if number % 3 == 0 else job.traces[:1]
    real = tuple(
        (period, frozenset({level.role, *level.also}))
        for level in job.levels
        for period in (level.period_s, *level.regimes_s)
    )
    return _read(number, traces, until, real, job.periods_s, job.kind, RunState(job.run_state))


def _seen(number: int, seed: int) -> float:
    """Which share of a trace is looked at: 1 or, of a beginning, less."""
    rng = np.random.default_rng([seed, number, _OF_BEGINNINGS])
    return float(rng.uniform(0.05, 0.95)) if rng.random() < _BEGINNINGS else 1.0


def _read(
    number: int,
    traces: Sequence[Trace],
    until: float,
    real: tuple[tuple[float, frozenset[CycleRole]], ...],
    guesses: tuple[float, ...],
    kind: str,
    run_state: RunState,
) -> Sample | None:
    stop_s = traces[0].time_s[0] + until * traces[0].duration_s
    whole = until == 1
    ticks, devices = gather_ticks(traces if whole else [trace.window(trace.time_s[0], stop_s) for trace in traces])
    found = find_readings(ticks, devices, ended=whole and number % 3 > 0)
    if found is None:
        return None
    load, levels = found
    small = replace(load, values=load.values.astype(np.float32), traffic=load.traffic.astype(np.float32))
    known = not kind.startswith(_FAMILY)
    return Sample(number, small, tuple(levels), real, guesses, known, kind, run_state, Use.measure(ticks))


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
    parts: np.ndarray,
    features: Sequence[str],
    out: Path,
    iterations: int,
    *,
    told: np.ndarray | None = None,
) -> np.ndarray:
    """Fit and write a scorer; return the probability of each row from fits without its parts, shape (2, rows).

    Half of what the scorer will be asked about is like the kinds of the fit, half is of kinds of its own: it is
    calibrated on predictions for jobs that were set aside, and on others for whole kinds that were.

    Args:
        table: Shape (rows, features).
        right: Shape (rows,).
        parts: Shape (rows, 3), what :func:`part_jobs` gives for its job.
        features: Names of the columns.
        out: Where to write it.
        iterations: Number of trees.
        told: Shape (rows,), whether a row takes part in the calibration; None for all.
    """
    both = [_predict(table, right, parts[:, column], features, iterations) for column in (0, 1)]
    use = np.ones(right.size, dtype=bool) if told is None else told
    knots, calibrated = calibration(np.concatenate([raw[use] for raw in both]), np.tile(right[use], 2))
    trees = tree_arrays(fit(table, right, features, iterations))
    np.savez_compressed(out, features=np.array(features), raw=knots, calibrated=calibrated, **trees)  # type: ignore[arg-type]
    return np.interp(both, knots, calibrated)


def _mixed(both: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Of half of the jobs the probability from a fit without them, of the others from one without their kind."""
    return np.where(parts[:, 2] > 0, both[1], both[0])


def _predict(
    table: np.ndarray, right: np.ndarray, part: np.ndarray, features: Sequence[str], iterations: int
) -> np.ndarray:
    """Return the probability of each row from a fit without its part."""
    raw = np.full(right.size, right.mean())
    for each in np.unique(part):
        aside = part == each
        if right[~aside].any():
            raw[aside] = fit(table[~aside], right[~aside], features, iterations).predict_proba(table[aside])[:, 1]
    return raw


def part_jobs(samples: Sequence[Sample]) -> np.ndarray:
    """Part of each job among the jobs, among the kinds, and whether the latter is looked at; shape (jobs, 3)."""
    kinds = sorted({each.kind for each in samples})
    return np.array(
        [(n % _PARTS_OF_JOBS, kinds.index(s.kind) % _PARTS_OF_KINDS, n // 2 % 2) for n, s in enumerate(samples)]
    )


def fit_levels(samples: Sequence[Sample], folder: Path) -> list[list[JudgedLevel]]:
    """Fit what says how likely a level is real; return the levels that each job would be told to have."""
    rows, right, part, weight = [], [], [], []
    for each, number in zip(samples, part_jobs(samples), strict=True):
        for level in each.levels:
            known = _is_near(level.period_s, (p for p, _ in each.real), RIGHT)
            rows.append([getattr(level.features, name) for name in LEVEL_FEATURES])
            right.append(known)
            part.append(number)
            # Of a family only the epochs are known: what else is found there may be real or not. One without epochs
            # has nothing that repeats but its steps.
            nothing = not each.real and level.period_s > _LONGEST_RIPPLE_S and each.kind != _FAMILY + _REPEATS
            weight.append(each.all_known or known or nothing)
    table, labels, parts = np.array(rows), np.array(right), np.array(part)
    use = np.array(weight)
    confidence = np.zeros(labels.size)
    both = fit_all(table[use], labels[use], parts[use], LEVEL_FEATURES, folder / "levels.npz", 150)
    confidence[use] = _mixed(both, parts[use])
    if (~use).any():
        with (folder / "levels.npz").open("rb") as file:
            confidence[~use] = scorer_module.Scorer.load(file, LEVEL_FEATURES).probability(table[~use])
    told, at = [], 0
    for each in samples:
        told.append(keep_likeliest(each.levels, confidence[at : at + len(each.levels)]))
        at += len(each.levels)
    return told


def fit_run_states(samples: Sequence[Sample], told: Sequence[list[JudgedLevel]], folder: Path) -> np.ndarray:
    """Fit what says whether a job is training; return the probability of each state, shape (jobs, states)."""
    table = np.array([describe_run(s.load, s.use, t) for s, t in zip(samples, told, strict=True)])
    state, parts = np.array([s.run_state for s in samples]), part_jobs(samples)
    each = [fit_all(table, state == r, parts, RUN_FEATURES, folder / f"run_{r}.npz", 80) for r in RUN_STATES]
    likely = np.maximum(np.array([_mixed(both, parts) for both in each]).T, 1e-3)
    return np.asarray(likely / likely.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class ToldLevels:
    """The levels that the jobs would be told to have, one after the other.

    Attributes:
        table: Shape (levels, features) for the scorers of roles.
        parts: Shape (levels, 3), of their jobs (:func:`part_jobs`).
        job: Shape (levels,), which job each is of.
        roles: What each is.
        known: The roles of which it is known whether the level has them.
        guess: Shape (levels,), whether each is a right best guess.
    """

    table: np.ndarray
    parts: np.ndarray
    job: np.ndarray
    roles: Sequence[frozenset[CycleRole]]
    known: Sequence[frozenset[CycleRole]]
    guess: np.ndarray


def describe_told(
    samples: Sequence[Sample], told: Sequence[list[JudgedLevel]], training: Sequence[float]
) -> ToldLevels:
    """Say of each level that is told what the scorers of roles see, and what it is."""
    rows, part, job, roles, guess, known = [], [], [], [], [], []
    for number, (each, judged, kind, trains) in enumerate(
        zip(samples, told, part_jobs(samples), training, strict=True)
    ):
        ordered = sorted(judged, key=lambda j: j.level.period_s)
        rows.append(describe_roles(each.load, ordered, trains))
        for j in ordered:
            near = [r for p, r in each.real if abs(j.level.period_s / p - 1) < RIGHT_GUESS]
            roles.append(frozenset().union(*near))
            guess.append(_is_near(j.level.period_s, each.guesses, RIGHT_GUESS))
            # An epoch of a family is neither a step nor a trial, and one without epochs has none. That the others are
            # epochs is true and would teach too much: what looks like one is, elsewhere, an evaluation in a stream.
            of_family = _NO_ROLES_OF_EPOCHS if near else frozenset() if each.real else _NO_ROLES_WITHOUT
            known.append(frozenset(JUDGED_ROLES) if each.all_known else of_family)
            part.append(kind)
            job.append(number)
    return ToldLevels(np.concatenate(rows), np.array(part), np.array(job), roles, known, np.array(guess))


def fit_roles(levels: ToldLevels, folder: Path) -> None:
    """Fit what says which role a level has."""
    for role in JUDGED_ROLES:
        has, sure = np.array([role in r for r in levels.roles]), np.array([role in r for r in levels.known])
        fit_all(levels.table[sure], has[sure], levels.parts[sure], ROLE_FEATURES, folder / f"role_{role}.npz", 100)


def fit_guess(levels: ToldLevels, folder: Path) -> None:
    """Fit what says which level is the best guess, by itself and beside the others."""
    alone = fit_all(levels.table, levels.guess, levels.parts, ROLE_FEATURES, folder / "guess.npz", 100)
    fit_sure(levels.table, alone, levels.guess, levels.parts, levels.job, folder)


def fit_sure(
    table: np.ndarray, guess: np.ndarray, right: np.ndarray, parts: np.ndarray, job: np.ndarray, folder: Path
) -> None:
    """Fit how sure the best guess is beside the other levels of its job.

    Args:
        table: Shape (levels, features).
        guess: Shape (2, levels), from fits without the job, and without its kind.
        right: Shape (levels,).
        parts: Shape (levels, 3).
        job: Shape (levels,), which job each is of.
        folder: Where to write it.
    """
    numbers = np.unique(job)
    found = np.concatenate([describe_guesses(table[job == n], each[job == n]) for each in guess for n in numbers])
    best = np.concatenate([_best_of(each, job) for each in guess])
    twice = np.tile(parts, (2, 1))
    twice[:, 1] = twice[:, 0]  # of a kind that was set aside it says how often such a guess is right
    fit_all(found, np.tile(right, 2), twice, GUESS_FEATURES, folder / "sure.npz", 80, told=best)


def _best_of(guess: np.ndarray, job: np.ndarray) -> np.ndarray:
    order = np.lexsort((-guess, job))
    best = np.ones(guess.size, dtype=bool)
    best[order[1:][np.diff(job[order]) == 0]] = False
    return best


def _is_near(period_s: float, others: Iterable[float], ratio: float) -> bool:
    return any(abs(period_s / other - 1) < ratio for other in others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=901)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="keep the levels here, to fit again without simulating")
    parser.add_argument("--roles", action="store_true", help="only these, to what the shipped scorers say of the rest")
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
    out = arguments.out
    if arguments.roles:
        told = [judge_levels(each.levels) for each in samples]
        states = np.array([judge_run(describe_run(s.load, s.use, t)) for s, t in zip(samples, told, strict=True)])
    else:
        told = fit_levels(samples, out)
        states = fit_run_states(samples, told, out)
    levels = describe_told(samples, told, states[:, RUN_STATES.index(RunState.TRAINING)])
    fit_roles(levels, out)
    if not arguments.roles:
        fit_guess(levels, out)
    print(f"{len(samples)} jobs, {levels.job.size} levels told -> {out}")


if __name__ == "__main__":
    main()

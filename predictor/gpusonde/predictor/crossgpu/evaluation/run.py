"""``evaluate``: fit, predict and score by a protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpusonde.predictor.crossgpu.evaluation.predictors import Predictor, Task
from gpusonde.predictor.crossgpu.evaluation.protocols import Protocol, splits
from gpusonde.predictor.crossgpu.evaluation.scores import Evaluation
from gpusonde.predictor.crossgpu.runs.table import RunsTable


class UnsuitableTableError(ValueError):
    """A runs table that holds too little for a protocol."""


def evaluate(
    runs: RunsTable,
    predictor: Predictor,
    protocol: Protocol,
    *,
    seeds: Sequence[int] = (0,),
    noise: float = 0.0,
    noise_in_training: bool = True,
    test: RunsTable | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a predictor by a protocol.

    Args:
        runs: Runs to fit on, and to test on unless ``test`` is given.
        predictor: :func:`default_predictor`, :func:`paper_predictor` or :func:`prior_predictor`.
        protocol: What is held out.
        seeds: Random splits (``RANDOM``, ``CONFIG``) are drawn once per seed; other protocols are run once per seed
            only when there is noise.
        noise: Mean absolute relative error to give the sources' epoch latency; one draw per run, shared by its pairs.
        noise_in_training: Fit on the noisy latencies too, as the paper does; otherwise only queries are noisy, and they
            say so (``epoch_latency_relative_error``), as a detector does.
        test: Test on these runs only; pairs fitted on are those of ``runs`` that the protocol allows.
        progress: Called after each split with the number of splits done and of all.

    Raises:
        UnsuitableTableError: The table holds too little for the protocol.
    """
    if noise == 0 and protocol not in (Protocol.RANDOM, Protocol.CONFIG):
        seeds = seeds[:1]
    own = len(runs)
    table = runs if test is None else RunsTable(runs.runs + test.runs)
    source, target = table.pairs()
    usable = [
        split
        for seed in seeds
        for split in splits(table, source, target, protocol, seed, None if test is None else own)
        if split.training.any() and split.test.any()
    ]
    if not usable:
        held_out = "the test table" if test is not None else "the table"
        raise UnsuitableTableError(
            f"{held_out} has no pairs to hold out by protocol {protocol.value!r}: it needs runs of one configuration "
            "on several GPUs, and enough others to fit on"
        )
    parts = []
    for done, split in enumerate(usable, start=1):
        noisy = with_noise(table, noise, split.seed, declared=not noise_in_training)
        asked = without_metrics(noisy) if protocol is Protocol.STATIC else noisy
        fit_on = source[split.training], target[split.training]
        predict = source[split.test], target[split.test]
        training = noisy if noise_in_training else table
        parts.append((split.seed, predictor(Task(training, fit_on, asked, predict, split.seed))))
        if progress is not None:
            progress(done, len(usable))
    return Evaluation.of(parts)


def without_metrics(runs: RunsTable) -> RunsTable:
    """The runs as if nobody had sampled a metric while they ran."""
    return RunsTable(tuple(replace(run, metrics={}) for run in runs.runs))


def with_noise(runs: RunsTable, noise: float, seed: int, *, declared: bool = False) -> RunsTable:
    """Give every run a detected epoch latency that is off by ``noise`` on average (log-normal), one draw per run.

    Args:
        runs: The runs.
        noise: Mean absolute relative error.
        seed: Random seed.
        declared: Let the runs state their standard error.
    """
    if noise == 0:
        return runs
    # The mean absolute value of a normal variable is sqrt(2 / pi) of its standard deviation.
    deviation = noise * math.sqrt(math.pi / 2)
    factors = np.exp(np.random.default_rng(10_000 + seed).normal(0.0, deviation, len(runs))).tolist()
    return RunsTable(
        tuple(
            replace(
                run,
                detected_epoch_latency_s=run.epoch_latency_s * factor,
                epoch_latency_relative_error=deviation if declared else 0.0,
            )
            for run, factor in zip(runs.runs, factors, strict=True)
        )
    )

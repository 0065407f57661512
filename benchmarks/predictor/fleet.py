"""Learning from a fleet, played with measured runs: a GPU that the model has never seen comes in, job by job."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from text import percent, table

from gpusonde.predictor.crossgpu import LatencyModel, ModelSettings, RunsTable
from gpusonde.predictor.crossgpu.learning import learn

_JOBS = (8, 32)


def fleet_section(runs: RunsTable) -> str:
    """Errors of model and candidate on held-out jobs, by number of jobs."""
    rows = []
    by_configuration = {
        run.configuration: [r for r in runs.runs if r.configuration == run.configuration] for run in runs.runs
    }
    whole = [group for group in by_configuration.values() if len({run.gpu.name for run in group}) == 4]
    for gpu in runs.gpu_names:
        order = np.random.default_rng(0).permutation(len(whole))
        for jobs in _JOBS:
            fleet = [run for index in order[:jobs] for run in whole[index]]
            known = {run.configuration for run in fleet}
            rest = RunsTable(tuple(r for r in runs.runs if r.gpu.name != gpu and r.configuration not in known))
            # Intervals have no part in the comparison.
            current = LatencyModel(ModelSettings(regimes=())).fit(rest)
            now = time.time()
            stayed = RunsTable(tuple(replace(run, end_unix_s=now) for run in fleet))
            lesson = learn(current, stayed, now_unix_s=now, half_life_s=180 * 86_400.0)
            found = lesson.comparison
            rows.append(
                (gpu, jobs, found.pairs, percent(found.current_mape), percent(found.candidate_mape),
                 "yes" if lesson.candidate else "no")
            )  # fmt: skip
            print(*rows[-1], flush=True)
    return (
        "## Learning from a fleet\n\nA model fitted without one of the four GPUs meets jobs that ran on all four. "
        "Errors are of the jobs' pairs, each job held out from the candidate; they decide on the replacement.\n\n"
        + table(("GPU that is new", "jobs", "pairs", "model in service", "candidate", "replaced"), rows)
    )

"""A collector's data directory in which jobs ran on several GPUs: the law of ``synthetic_runs`` as stored samples."""

from __future__ import annotations

import time

import numpy as np
from support.synthetic_runs import synthetic_runs
from support.trace_records import incoming, trace_records

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.collector.storage.model import RunRow, RunUpdate
from gpusonde.telemetry import Trace

DAY_S = 86_400.0
_TICKS = 40
_NS = 10**9
_PRODUCTS = {"p100": "Tesla P100-PCIE-16GB", "p3": "Tesla V100-SXM2-16GB", "g4dn": "Tesla T4", "g5": "NVIDIA A10G"}


def write_fleet(
    directory, jobs=5, gpus=("p100", "g4dn", "g5"), *, age_days=1.0, seed=3, first_job=0, batches=2, tree=None
):
    """Store runs of ``jobs * batches`` jobs, each on the given instances one after the other; returns the run ids."""
    store = LocalStore(directory, StoreConfig(reserve_bytes=0))
    store.open()
    results = store.results
    found = []
    rows = [row for row in synthetic_runs(models=jobs, batches=batches, seed=seed) if row["Instances"] in gpus]
    for number, row in enumerate(rows):
        job = f"job-{first_job + int(str(row['model'])[3:]) * batches + int(np.log2(row['batchsize'])) - 4}"
        end_ns = int((time.time() - age_days * DAY_S) * _NS) - (len(rows) - number) * 600 * _NS
        run_id = f"run-{seed}-{first_job}-{number}"
        store_run(
            store, results, run_id, job, _trace(row), end_ns - _TICKS * _NS, float(row["one_epoch_average_second"]),
            tree=tree,
        )  # fmt: skip
        found.append(run_id)
    store.flush()
    store.close()
    return found


def store_run(store, results, run_id, job_id, trace, start_ns, period_s, *, host=None, tree=None, **changed):
    """Append the records of a trace as a run that is over and whose epochs are known."""
    agent, spool_id = f"agent-{host or run_id}", f"spool-{run_id}"
    records = incoming(trace_records(trace, start_ns, gpu_uuid=f"GPU-{run_id}"), agent, spool_id)
    store.samples.append(records)
    spool = store.facts.spools()[agent, spool_id].spool
    run = RunRow(
        run_id=run_id, agent_id=agent, gpu_uuid=f"GPU-{run_id}", job_id=job_id, scheduler=1, ended=True,
        end_reason="idle", start_unix_nano=start_ns, end_unix_nano=start_ns + (len(trace) - 1) * _NS,
        first_spool=spool, first_sequence=1, last_spool=spool, last_sequence=len(records), tick_count=len(trace),
        missed_ticks=0, verdict="epochs", period_s=period_s, period_low_s=0.99 * period_s,
        period_high_s=1.01 * period_s, confidence=1.0, epoch_count=10,
    )  # fmt: skip
    run = RunRow(**{**vars(run), **changed})
    results.save([RunUpdate(run, None, tree)], {})


def _trace(row):
    # The quartiles of a synthetic row are 0.95, 1 and 1.05 of its centre.
    shape = np.linspace(0.9, 1.05, _TICKS)
    values = {
        "gpu_utilization": np.minimum(1.0, row["utilization_gpu_50"] / 100 * shape),
        "memory_utilization": np.minimum(1.0, row["utilization_memory_50"] / 100 * shape),
        "power_watts": row["power_drawW_50"] * shape,
        "sm_clock_mhz": row["clocks_current_smMHz_50"] * shape,
    }
    return Trace(np.arange(_TICKS, dtype=float), values, "", _PRODUCTS[row["Instances"]])

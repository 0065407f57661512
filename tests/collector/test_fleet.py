"""Runs of jobs out of a store, beside its collector or without one."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.fleet_store import store_run, write_fleet

from gpusonde.catalog import load_gpus
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.fleet import fleet_runs
from gpusonde.collector.storage.local.export import StoreSnapshot
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.common.v1 import job_pb2
from gpusonde.errors import StoreCorruptError, StoreError
from gpusonde.telemetry import Trace

START_NS = 1_700_000_000_000_000_000
HOUR_NS = 3600 * 10**9


def trace(model="Tesla T4", busy=0.8, metrics=("gpu_utilization", "memory_utilization", "power_watts", "sm_clock_mhz")):
    values = {"gpu_utilization": busy, "memory_utilization": 0.4, "power_watts": 60.0, "sm_clock_mhz": 1200.0}
    return Trace(np.arange(20.0), {name: np.full(20, values[name]) for name in metrics}, "", model)


class Written:
    """A store that a test puts runs into."""

    def __init__(self, directory):
        self.store = LocalStore(directory, StoreConfig(reserve_bytes=0))
        self.store.open()
        self.results = self.store.results

    def run(self, name, job, hour, model="Tesla T4", period_s=2.0, flush=True, **more):
        own = {key: more.pop(key) for key in ("busy", "metrics") if key in more}
        at = START_NS + int(hour * HOUR_NS)
        store_run(self.store, self.results, name, job, trace(model, **own), at, period_s, **more)
        if flush:
            self.store.flush()


@pytest.fixture
def written(tmp_path):
    found = Written(tmp_path / "data")
    yield found
    found.store.close()


def collected(written):
    # The collector holds the directory's lock all the while.
    with StoreSnapshot(written.store.layout.directory) as snapshot:
        return fleet_runs(snapshot, load_gpus())


def test_a_job_that_ran_on_two_gpu_models_gives_a_pair_beside_a_running_collector(written):
    written.run("a", "job-1", 0, "Tesla T4", period_s=4.0)
    written.run("b", "job-1", 2, "Tesla V100-SXM2-16GB", period_s=2.0)
    written.run("c", "job-2", 4, "Tesla T4")
    found = collected(written)
    source, target = found.table.pairs()
    runs = found.table.runs
    assert {(runs[i].gpu.name, runs[j].gpu.name) for i, j in zip(source, target, strict=True)} == {
        ("T4", "V100-SXM2-16GB"),
        ("V100-SXM2-16GB", "T4"),
    }
    (t4,) = (run for run in runs if run.gpu.name == "T4")
    assert t4.epoch_latency_s == 4.0
    assert t4.metrics["gpu_utilization"].mean == pytest.approx(0.8)
    assert t4.epoch_latency_relative_error == pytest.approx(0.02 / 2 / 1.96)
    assert t4.end_unix_s == pytest.approx(START_NS / 1e9 + 19)
    assert (found.jobs, found.replayed, found.left_out) == (1, 2, {})


def test_stays_on_other_numbers_of_gpus_are_not_compared(written):
    for name, gpu in (("a", 0), ("b", 0.001)):
        written.run(name, "job-1", gpu, "Tesla T4")
    written.run("c", "job-1", 2, "Tesla V100-SXM2-16GB")
    assert len(collected(written).table) == 0
    written.run("d", "job-1", 4, "Tesla V100-SXM2-16GB", period_s=1.9)
    written.run("e", "job-1", 4.001, "Tesla V100-SXM2-16GB", period_s=2.1)
    found = collected(written)
    assert {run.configuration.batch_size for run in found.table.runs} == {"2 GPUs, 2 hosts"}
    assert len(found.table.pairs()[0]) == 2
    # Within one host gradients take another way.
    for name, at in (("f", 6), ("g", 6.001)):
        written.run(name, "job-2", at, "Tesla T4")
    for name, at in (("h", 8), ("i", 8.001)):
        written.run(name, "job-2", at, "Tesla V100-SXM2-16GB", host="one")
    assert "job-2" not in {run.configuration.model.partition(":")[2] for run in collected(written).table.runs}


def test_what_cannot_be_used_is_counted_by_its_reason(written):
    ran = {
        "going on": {"ended": False},
        "without epochs": {"verdict": "none"},
        "two epochs": {"epoch_count": 2},
        "vague": {"period_low_s": 1.4, "period_high_s": 2.6},
        "unknown": {"model": "Matrox G200"},
        "without power": {"metrics": ("gpu_utilization", "memory_utilization", "sm_clock_mhz")},
    }
    for hour, (name, changed) in enumerate(ran.items()):
        written.run(name, "job-1", hour, **changed)
    written.run("good", "job-1", 20)
    written.run("other", "job-1", 22, "Tesla V100-SXM2-16GB")
    written.run("fresh", "job-1", 24, flush=False)
    found = collected(written)
    assert {run.instance for run in found.table.runs} >= {"good", "other"}
    assert found.left_out == {
        "still running": 1,
        "fewer than 3 epochs found": 2,
        "with an epoch latency that is not known to 40 % (width of its interval)": 1,
        "on a GPU that the catalogue does not hold": 1,
        "without gpu_utilization, memory_utilization, power_watts, sm_clock_mhz": 1,
        "not in segments yet": 1,
    }


def test_two_gpu_models_at_the_same_time_say_nothing_about_either(written):
    written.run("a", "job-1", 0, "Tesla T4")
    written.run("b", "job-1", 0.001, "Tesla V100-SXM2-16GB")
    found = collected(written)
    assert (len(found.table), found.left_out) == (0, {"on several GPU models at the same time": 2})


def test_a_job_that_ran_often_counts_by_its_latest_stays(written):
    for hour in range(6):
        written.run(f"t4-{hour}", "job-1", hour, "Tesla T4", period_s=2.0 + hour / 10)
    written.run("v100", "job-1", 10, "Tesla V100-SXM2-16GB")
    kept = {run.instance for run in collected(written).table.runs}
    assert kept == {"t4-3", "t4-4", "t4-5", "v100"}


def test_a_store_without_its_collector_reads_the_same(tmp_path):
    names = write_fleet(tmp_path / "data", jobs=1, batches=1)
    with StoreSnapshot(tmp_path / "data") as snapshot:
        found = fleet_runs(snapshot, load_gpus())
    assert {run.instance for run in found.table.runs} == set(names)
    assert max(run.end_unix_s for run in found.table.runs) < time.time()


def test_nothing_is_written_into_a_directory_that_is_no_store(tmp_path):
    with pytest.raises(StoreError, match="no data directory"), StoreSnapshot(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database, but long enough to look like one" * 40)
    with pytest.raises(StoreCorruptError), StoreSnapshot(tmp_path):
        pass


def test_a_store_of_another_version_is_named(tmp_path):
    import sqlite3

    write_fleet(tmp_path / "data", jobs=1, batches=1)
    with sqlite3.connect(tmp_path / "data" / "catalog.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="schema version 99"), StoreSnapshot(tmp_path / "data"):
        pass


@pytest.mark.parametrize(
    ("scheduler", "jobs"),
    [
        (job_pb2.SCHEDULER_SLURM, 1),
        (job_pb2.SCHEDULER_KUBERNETES, 1),
        (job_pb2.SCHEDULER_SYSTEMD, 0),
        (job_pb2.SCHEDULER_USER, 0),
    ],
)
def test_units_and_users_are_no_jobs_to_learn_from(written, scheduler, jobs):
    written.run("a", "one", 0, "Tesla T4", period_s=4.0, scheduler=scheduler)
    written.run("b", "one", 2, "Tesla V100-SXM2-16GB", period_s=2.0, scheduler=scheduler)
    assert collected(written).jobs == jobs

"""Collectors on ClickHouse, as processes: killed at any moment, or left by their agent, they lose and repeat nothing.

``GPUSONDE_FAULT_RECORDS=12000 GPUSONDE_FAULT_KILLS=20`` makes the chaos test as long as a release wants it.
"""

import json
import os
import random
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest
from support.clickhouse_http import ClickHouseHttp
from support.running_collector import ProcessCollector
from support.spooling_agent import ResumingAgent, Spool, kill_by_turns
from support.store_engines import quick_directory
from support.trace_records import trace_records
from support.wire_agent import START_NS, TICK_NS, hello, wait_until

from gpusonde.collector.client import Client
from gpusonde.epoch_detect import detect
from gpusonde.telemetry import read_trace

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
SUPPORT = Path(__file__).parents[1] / "support"
CHAOS_RECORDS = int(os.environ.get("GPUSONDE_FAULT_RECORDS", "300"))
CHAOS_KILLS = int(os.environ.get("GPUSONDE_FAULT_KILLS", "2"))


@pytest.fixture
def chdb():
    with quick_directory() as directory:
        yield directory


def on_clickhouse(directory):
    """chdb is ClickHouse's engine inside of the collector's process."""
    return {
        "store__engine": "clickhouse",
        "store__lossless": "true",
        "clickhouse__url": f"chdb://{directory}",
        "clickhouse__insert_interval": "20ms",
        "runs__state_interval": "1s",
        "ingest__max_unacked_records": "1000",
    }


def test_a_collector_on_clickhouse_killed_in_the_middle_finds_the_epochs_and_predicts(tmp_path, chdb):
    trace = read_trace(DEMO_TRACE)
    records = trace_records(trace, ticks_per_record=5)
    with ProcessCollector(tmp_path / "data", **on_clickhouse(chdb)) as collector:
        sent = []
        agent = ResumingAgent(collector.target, hello, sent, len(records))
        thread = threading.Thread(target=agent.run)
        thread.start()
        for i, record in enumerate(records):
            sent.append(record.SerializeToString())
            if i in (len(records) // 3, 2 * len(records) // 3):
                wait_until(lambda: agent.acked > i - len(records) // 6, what="acknowledgements")  # noqa: B023
                collector.kill()
                collector.start()
        thread.join(240)
        assert agent.acked == len(records)
        with Client(collector.target) as client:
            stored = client.read_samples(trace.gpu_uuid)
            wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, 120, "end of the run")
            (run,) = client.list_runs()
            wait_until(lambda: not client.list_epochs(run.run_id).pending_summaries, 120, "mean metrics and energy")
            epochs = client.list_epochs(run.run_id)
            predictions = client.predict_run(run.run_id, ["V100", "H100"]).predictions
        assert collector.terminate() == 0
        log = collector.log_path.read_text()
    assert stored.time_s == pytest.approx(trace.time_s - trace.time_s[0], abs=1e-6)
    for name in trace.metrics:
        assert np.array_equal(stored.values[name], trace.values[name].astype(np.float32)), name
    offline = detect(trace)
    starts = [(epoch.start_unix_nano - START_NS) / 1e9 for epoch in epochs.epochs]
    assert starts == pytest.approx(offline.epoch_starts_s.tolist(), abs=1e-6)
    assert run.period_s == pytest.approx(offline.period_s, abs=1e-8)
    assert all(0 < prediction.epoch_latency_s < np.inf for prediction in predictions)
    assert "Traceback" not in log
    # Nothing is kept beside the database.
    assert list((tmp_path / "data").iterdir()) == []


def test_collector_and_agent_killed_at_random_moments_lose_and_repeat_nothing(tmp_path, chdb):
    spool = tmp_path / "spool"
    with ProcessCollector(tmp_path / "data", **on_clickhouse(chdb)) as collector:
        kill_by_turns(collector, spool, CHAOS_RECORDS, "0.01", CHAOS_KILLS, random.Random(11))
        assert collector.terminate() == 0
    taken = len(Spool(spool).records)
    assert taken >= CHAOS_RECORDS
    dump = [sys.executable, str(SUPPORT / "clickhouse_dump.py"), str(chdb), "gpusonde", "agent-1", "GPU-a"]
    found = json.loads(subprocess.run(dump, check=True, capture_output=True, text=True).stdout)
    ticks = range(10 * (taken - 1))
    assert found["times"] == found["read"] == [START_NS + tick * TICK_NS for tick in ticks]
    assert found["sequences"] == [tick // 10 + 2 for tick in ticks]
    assert found["losses"] == found["rejections"] == 0


def test_an_agent_whose_collector_dies_goes_on_at_another_one_with_the_same_run(tmp_path, chdb_directory):
    trace = read_trace(DEMO_TRACE)
    records = trace_records(trace, ticks_per_record=5)
    password = tmp_path / "password"
    password.write_text("s3cret")
    database = f"gpusonde_test_{uuid.uuid4().hex}"

    def collector(name):
        settings = on_clickhouse("") | {
            "server__id": name,
            "clickhouse__url": server.url,
            "clickhouse__database": database,
            "clickhouse__user": "gpusonde",
            "clickhouse__password_file": str(password),
        }
        return ProcessCollector(tmp_path / name, **settings)

    with ClickHouseHttp(chdb_directory) as server, collector("one") as one, collector("two") as two:
        sent = [record.SerializeToString() for record in records[: len(records) // 2]]
        agent = ResumingAgent(one.target, hello, sent, len(records))
        thread = threading.Thread(target=agent.run)
        thread.start()
        with Client(two.target) as there:
            wait_until(lambda: agent.acked > len(sent) - 100 and there.list_runs(), 90, "a run that both know")
            agent.target = two.target
            one.kill()
            sent += [record.SerializeToString() for record in records[len(sent) :]]
            thread.join(240)
            assert agent.acked == len(records)
            wait_until(lambda: there.list_runs() and not there.list_runs()[0].active, 120, "end of the run")
            (run,) = there.list_runs()
            assert len(there.read_samples(run.gpu_uuid)) == len(trace)
            epochs = there.list_epochs(run.run_id).epochs
        one.start()
        with Client(one.target) as here:
            assert here.list_runs() == [run]
            assert len(here.list_epochs(run.run_id).epochs) == len(epochs)
        assert one.terminate() == two.terminate() == 0
    starts = [(epoch.start_unix_nano - START_NS) / 1e9 for epoch in epochs]
    assert starts == pytest.approx(detect(trace).epoch_starts_s.tolist(), abs=1e-6)

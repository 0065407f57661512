"""A collector on ClickHouse, as a process: killed in the middle, it goes on with the same samples, run and epochs."""

import threading
from pathlib import Path

import numpy as np
import pytest
from support.running_collector import ProcessCollector
from support.spooling_agent import ResumingAgent
from support.trace_records import trace_records
from support.wire_agent import START_NS, hello, wait_until

from gpusonde.collector.client import Client
from gpusonde.epoch_detect import detect
from gpusonde.telemetry import read_trace

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"


def on_clickhouse(directory):
    """chdb is ClickHouse's engine inside of the collector's process."""
    return {
        "store__engine": "clickhouse",
        "clickhouse__url": f"chdb://{directory}",
        "clickhouse__insert_interval": "20ms",
        "runs__state_interval": "1s",
    }


def test_a_collector_on_clickhouse_killed_in_the_middle_finds_the_epochs_and_predicts(tmp_path):
    trace = read_trace(DEMO_TRACE)
    records = trace_records(trace, ticks_per_record=5)
    with ProcessCollector(tmp_path / "data", **on_clickhouse(tmp_path / "chdb")) as collector:
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
        thread.join(90)
        assert agent.acked == len(records)
        with Client(collector.target) as client:
            stored = client.read_samples(trace.gpu_uuid)
            wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, 60, "end of the run")
            (run,) = client.list_runs()
            wait_until(lambda: not client.list_epochs(run.run_id).pending_summaries, 60, "mean metrics and energy")
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

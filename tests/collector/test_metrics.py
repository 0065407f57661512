"""The collector's self metrics: their exact text, and those of a collector that runs."""

import re
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.running_collector import ThreadCollector
from support.trace_records import trace_records
from support.wire_agent import WireStream, hello, inventory, wait_until

from gpusonde.collector.alerts import AlertCounters
from gpusonde.collector.client import Client
from gpusonde.collector.metrics import CollectorCounters, CollectorMetrics, JobMetrics, StoreFigures, loss_reason
from gpusonde.collector.storage.model import StoreUsage
from gpusonde.collector.storage.store import StoreCounters
from gpusonde.collector.workload.training import TrainingCounters
from gpusonde.query.v1 import query_pb2
from gpusonde.service.durable_files import OsFiles
from gpusonde.service.metrics import Distribution
from gpusonde.service.reload import ReloadCounters
from gpusonde.telemetry import read_trace

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
SAMPLES = """\
gpusonde_collector_build_info{engine="local",version="1.2.3"} 1.0
gpusonde_collector_streams 3.0
gpusonde_collector_agents_known 4.0
gpusonde_collector_gpus_known 32.0
gpusonde_collector_records_received_total 100.0
gpusonde_collector_records_duplicate_total 5.0
gpusonde_collector_records_rejected_total 6.0
gpusonde_collector_records_quarantined_total 2.0
gpusonde_collector_sequence_gaps_total 1.0
gpusonde_collector_lost_ticks_reported_total{reason="disk_full"} 0.0
gpusonde_collector_lost_ticks_reported_total{reason="spool_corrupt"} 0.0
gpusonde_collector_lost_ticks_reported_total{reason="spool_full"} 50.0
gpusonde_collector_lost_ticks_reported_total{reason="unspecified"} 0.0
gpusonde_collector_throttles_total 8.0
gpusonde_collector_ingest_lag_seconds 1.5
gpusonde_collector_taking_records 1.0
gpusonde_collector_ack_latency_seconds_bucket{le="0.1"} 1.0
gpusonde_collector_ack_latency_seconds_bucket{le="+Inf"} 1.0
gpusonde_collector_ack_latency_seconds_count 1.0
gpusonde_collector_ack_latency_seconds_sum 0.0625
gpusonde_collector_log_sync_seconds_bucket{le="0.1"} 0.0
gpusonde_collector_log_sync_seconds_bucket{le="+Inf"} 0.0
gpusonde_collector_log_sync_seconds_count 0.0
gpusonde_collector_log_sync_seconds_sum 0.0
gpusonde_collector_segment_write_seconds_bucket{le="0.1"} 0.0
gpusonde_collector_segment_write_seconds_bucket{le="+Inf"} 1.0
gpusonde_collector_segment_write_seconds_count 1.0
gpusonde_collector_segment_write_seconds_sum 0.5
gpusonde_collector_compaction_seconds_bucket{le="0.1"} 0.0
gpusonde_collector_compaction_seconds_bucket{le="+Inf"} 0.0
gpusonde_collector_compaction_seconds_count 0.0
gpusonde_collector_compaction_seconds_sum 0.0
gpusonde_collector_compaction_failures_total 1.0
gpusonde_collector_retention_deleted_bytes_total{tier="raw"} 4096.0
gpusonde_collector_retention_deleted_bytes_total{tier="second"} 0.0
gpusonde_collector_store_bytes{tier="log"} 10.0
gpusonde_collector_store_bytes{tier="raw"} 1000.0
gpusonde_collector_store_free_bytes 5000.0
gpusonde_collector_tracking_backlog_gpus 7.0
gpusonde_collector_tracking_round_seconds 0.25
gpusonde_collector_epochs_detected_total 12.0
gpusonde_collector_tracking_states_refused_total 3.0
gpusonde_collector_predictions_total{status="extrapolated"} 0.0
gpusonde_collector_predictions_total{status="insufficient_epochs"} 0.0
gpusonde_collector_predictions_total{status="ok"} 2.0
gpusonde_collector_predictions_total{status="unsupported_gpu"} 1.0
gpusonde_collector_prediction_seconds_bucket{le="0.1"} 1.0
gpusonde_collector_prediction_seconds_bucket{le="+Inf"} 1.0
gpusonde_collector_prediction_seconds_count 1.0
gpusonde_collector_prediction_seconds_sum 0.03125
gpusonde_collector_workload_answers_total{status="data_dependent_graph"} 0.0
gpusonde_collector_workload_answers_total{status="graph_too_large"} 0.0
gpusonde_collector_workload_answers_total{status="internal"} 0.0
gpusonde_collector_workload_answers_total{status="invalid_request"} 0.0
gpusonde_collector_workload_answers_total{status="malformed_graph"} 4.0
gpusonde_collector_workload_answers_total{status="no_embedding"} 0.0
gpusonde_collector_workload_answers_total{status="ok"} 3.0
gpusonde_collector_workload_answers_total{status="out_of_distribution"} 0.0
gpusonde_collector_workload_answers_total{status="out_of_memory"} 0.0
gpusonde_collector_workload_answers_total{status="out_of_time"} 0.0
gpusonde_collector_workload_answers_total{status="unknown_device"} 0.0
gpusonde_collector_workload_answers_total{status="unknown_host"} 0.0
gpusonde_collector_workload_answers_total{status="unsupported_graph"} 0.0
gpusonde_collector_workload_seconds_bucket{le="0.1"} 1.0
gpusonde_collector_workload_seconds_bucket{le="+Inf"} 1.0
gpusonde_collector_workload_seconds_count 1.0
gpusonde_collector_workload_seconds_sum 0.03125
gpusonde_collector_workload_waiting 2.0
gpusonde_collector_workload_trainings{state="done"} 0.0
gpusonde_collector_workload_trainings{state="failed"} 0.0
gpusonde_collector_workload_trainings{state="queued"} 1.0
gpusonde_collector_workload_trainings{state="running"} 0.0
gpusonde_collector_workload_training_failures_total 5.0
gpusonde_collector_workload_training_start_failures_total 2.0
gpusonde_collector_requests_refused_total{reason="concurrency"} 0.0
gpusonde_collector_requests_refused_total{reason="identity"} 0.0
gpusonde_collector_requests_refused_total{reason="no_hello"} 0.0
gpusonde_collector_requests_refused_total{reason="not_permitted"} 0.0
gpusonde_collector_requests_refused_total{reason="not_taking"} 0.0
gpusonde_collector_requests_refused_total{reason="planning_busy"} 0.0
gpusonde_collector_requests_refused_total{reason="planning_memory"} 0.0
gpusonde_collector_requests_refused_total{reason="planning_size"} 0.0
gpusonde_collector_requests_refused_total{reason="planning_time"} 0.0
gpusonde_collector_requests_refused_total{reason="rate"} 3.0
gpusonde_collector_requests_refused_total{reason="revoked"} 0.0
gpusonde_collector_requests_refused_total{reason="second_agent"} 0.0
gpusonde_collector_requests_refused_total{reason="sequence_gap"} 4.0
gpusonde_collector_requests_refused_total{reason="streams"} 0.0
gpusonde_collector_requests_refused_total{reason="throttle_ignored"} 0.0
gpusonde_collector_requests_refused_total{reason="too_many_agents"} 0.0
gpusonde_collector_requests_refused_total{reason="unauthenticated"} 0.0
gpusonde_collector_requests_refused_total{reason="undecodable"} 0.0
gpusonde_collector_requests_refused_total{reason="workload_busy"} 0.0
gpusonde_collector_requests_refused_total{reason="workload_queue"} 0.0
gpusonde_collector_requests_refused_total{reason="workload_size"} 0.0
gpusonde_collector_certificate_expiry_timestamp_seconds 2e+09
gpusonde_collector_otlp_points_total{result="lost"} 0.0
gpusonde_collector_otlp_points_total{result="sent"} 0.0
gpusonde_collector_remote_write_points_total{result="lost"} 4.0
gpusonde_collector_remote_write_points_total{result="sent"} 0.0
gpusonde_collector_config_reloads_total{result="failure"} 0.0
gpusonde_collector_config_reloads_total{result="success"} 0.0
gpusonde_collector_config_last_reload_successful 1.0
"""


def test_every_counter_is_shown_under_its_agreed_name():
    small = lambda: Distribution((0.1,))  # noqa: E731
    counters = CollectorCounters(
        ingest=Counter(records=100, repetitions=5, refusals=6, quarantined=2, declared_gaps=1, gaps=4, throttles=8),
        refused=Counter(rate=3),
        lost_ticks=Counter(spool_full=50),
        ack_latency=small(),
        log_sync=small(),
        segment_write=small(),
        compaction=small(),
        prediction=small(),
        tracking_round_s=0.25,
        epochs=12,
        states_refused=3,
        workload_answers=Counter(ok=3, malformed_graph=4),
        workload=small(),
        trainings=TrainingCounters({"queued": 1}, failures=5, failed_starts=2),
        workload_waiting=lambda: 2,
        remote_write=Counter(lost=4),
    )
    counters.workload.observe(2**-5)
    counters.ack_latency.observe(2**-4)
    counters.segment_write.observe(0.5)
    counters.count_predictions(["ok", "unsupported_gpu", "ok"], 2**-5)
    store = StoreCounters()
    store.compaction_failed()
    store.deleted("raw", 4096)
    registry = CollectorRegistry()
    registry.register(
        CollectorMetrics(
            counters=counters,
            store=store,
            held=StoreFigures(StoreUsage({"raw": 1000, "log": 10}, 5000), agents=4, gpus=32),
            reloads=ReloadCounters(),
            version="1.2.3",
            engine="local",
            streams=lambda: 3,
            ingest_lag_s=lambda: 1.5,
            taking_records=lambda: True,
            tracking_backlog=lambda: 7,
            certificate_expiry_unix_s=lambda: 2e9,
        )
    )
    text = generate_latest(registry).decode()
    assert re.sub("^#.*\n", "", text, flags=re.MULTILINE) == SAMPLES
    assert all(line.endswith(".") for line in text.splitlines() if line.startswith("# HELP"))


def test_jobs_have_series_while_they_go_on_in_bounded_number(monkeypatch):
    job = query_pb2.Job(job_id="4711", scheduler=1, state=query_pb2.JOB_STATE_TRAINING, goodput_ratio=0.75)
    job.state_time.FromSeconds(1_700_000_000)
    job.members.add(agent_id="host-1", gpu_uuid="GPU-1")
    job.members.add(agent_id="host-1", gpu_uuid="GPU-2")
    job.level.count, job.level.role = 12, query_pb2.CYCLE_ROLE_EPOCH
    job.level.period.FromMilliseconds(10_500)
    unknown = query_pb2.Job(job_id="run-7", state=query_pb2.JOB_STATE_UNKNOWN)
    alerts = SimpleNamespace(jobs=[job, unknown, query_pb2.Job(job_id="one too many")], counters=AlertCounters(sent=3))
    monkeypatch.setattr("gpusonde.collector.metrics.MOST_JOBS", 2)
    registry = CollectorRegistry()
    registry.register(JobMetrics(alerts))
    text = re.sub("^#.*\n", "", generate_latest(registry).decode(), flags=re.MULTILINE)
    assert (
        text
        == """\
gpusonde_job_state{job_id="4711",scheduler="slurm",state="training"} 1.0
gpusonde_job_state{job_id="run-7",scheduler="unspecified",state="unknown"} 1.0
gpusonde_job_state_start_timestamp_seconds{job_id="4711",scheduler="slurm"} 1.7e+09
gpusonde_job_state_start_timestamp_seconds{job_id="run-7",scheduler="unspecified"} 0.0
gpusonde_job_gpus{job_id="4711",scheduler="slurm"} 2.0
gpusonde_job_gpus{job_id="run-7",scheduler="unspecified"} 0.0
gpusonde_job_goodput_ratio{job_id="4711",scheduler="slurm"} 0.75
gpusonde_job_cycle_seconds{job_id="4711",level="epoch",scheduler="slurm"} 10.5
gpusonde_job_cycles{job_id="4711",level="epoch",scheduler="slurm"} 12.0
gpusonde_collector_jobs_left_out 1.0
gpusonde_collector_job_alerts_total{rule="hung"} 0.0
gpusonde_collector_job_alerts_total{rule="idle"} 0.0
gpusonde_collector_job_alerts_total{rule="slower"} 0.0
gpusonde_collector_job_alerts_total{rule="stalled"} 0.0
gpusonde_collector_job_alert_notifications_total{result="dropped"} 0.0
gpusonde_collector_job_alert_notifications_total{result="failed"} 0.0
gpusonde_collector_job_alert_notifications_total{result="sent"} 3.0
"""
    )
    # With what is known of its end, and its GPUs where they are wanted.
    job.progress_ratio = 0.25
    job.estimate.end_time.FromSeconds(int(time.time()) + 3600)
    job.members[0].active = True
    registry = CollectorRegistry()
    registry.register(JobMetrics(alerts, with_gpus=True))
    lines = generate_latest(registry).decode().splitlines()
    assert 'gpusonde_job_progress_ratio{job_id="4711",scheduler="slurm"} 0.25' in lines
    (left,) = [line for line in lines if line.startswith("gpusonde_job_eta_seconds{")]
    assert 3500 < float(left.split()[1]) <= 3600
    (gpu,) = [line for line in lines if line.startswith("gpusonde_job_gpu{")]
    assert gpu == 'gpusonde_job_gpu{gpu_uuid="GPU-1",host_name="",job_id="4711",scheduler="slurm"} 1.0'
    alerts.jobs = []
    assert "gpusonde_job_state{" not in generate_latest(registry).decode()


def test_reasons_of_losses_have_names_those_of_newer_agents_too():
    assert [loss_reason(reason) for reason in (0, 1, 2, 3, 99)] == [
        "unspecified", "spool_full", "spool_corrupt", "disk_full", "unknown",
    ]  # fmt: skip


def read(address, path="/metrics"):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=200) as answer:
        return answer.read().decode()


def test_a_running_collector_tells_what_it_does(tmp_path):
    trace = read_trace(DEMO_TRACE).window(0, 110)
    records = trace_records(trace)
    with (
        ThreadCollector(tmp_path / "data", metrics__listen="127.0.0.1:0", store__segment_interval="200ms") as collector,
        WireStream(collector.target, hello()) as stream,
        Client(collector.target) as client,
    ):
        file = tmp_path / "data" / "metrics_address"
        address = wait_until(lambda: file.exists() and file.read_text().strip())

        def samples():
            families = text_string_to_metric_families(read(address))
            return {(s.name.removeprefix("gpusonde_collector_"), *s.labels.values()): s.value
                    for family in families for s in family.samples}  # fmt: skip

        stream.greet()
        stream.send(*records).wait_acked(records[-1].sequence)
        wait_until(lambda: any(not run.active for run in client.list_runs()), what="end of the run")
        (run,) = client.list_runs()
        client.predict_run(run.run_id, ["V100-SXM2-16GB", "A100-SXM4-40GB"])
        wait_until(lambda: samples()["segment_write_seconds_count",] >= 1)
        now = samples()
        assert read(address, "/-/healthy") == read(address, "/-/ready") == "ok\n"
    assert now["records_received_total",] == len(records)
    assert now["streams",] == 1
    assert now["ack_latency_seconds_count",] == len(records)
    assert 0 < now["log_sync_seconds_count",] <= len(records)
    assert now["epochs_detected_total",] == run.epoch_count > 0
    assert sum(value for (name, *_), value in now.items() if name == "predictions_total") == 2
    assert now["prediction_seconds_count",] == 1
    assert now["store_free_bytes",] > 0
    assert sorted(labels[0] for name, *labels in now if name == "store_bytes") == [
        "catalog",
        "log",
        "lost_found",
        "raw",
        "second",
    ]
    assert now["ingest_lag_seconds",] > 0
    assert not file.exists()


class SmallDisk(OsFiles):
    """Files on a disk that a test fills."""

    free = 1 << 30

    def free_bytes(self, path):
        return self.free


def test_a_disk_that_is_full_makes_the_collector_unready_and_not_unhealthy(tmp_path):
    disk = SmallDisk()
    with (
        ThreadCollector(tmp_path / "data", files=disk, metrics__listen="127.0.0.1:0") as collector,
        WireStream(collector.target, hello()) as stream,
    ):
        file = tmp_path / "data" / "metrics_address"
        address = wait_until(lambda: file.exists() and file.read_text().strip())
        assert read(address, "/-/ready") == "ok\n"
        stream.greet()
        disk.free = 0
        stream.send(inventory())
        unready = wait_until(lambda: refused(address))
        assert "are kept in reserve" in unready
        assert "gpusonde_collector_taking_records 0.0" in read(address)
        assert read(address, "/-/healthy") == "ok\n"
        disk.free = 1 << 30
        wait_until(lambda: refused(address) is None)


def refused(address):
    """Why the collector is not ready; None when it is."""
    try:
        read(address, "/-/ready")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return None

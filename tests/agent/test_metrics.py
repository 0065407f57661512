"""The agent's self metrics: their exact text, and those of an agent that runs."""

import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.dcgm_agent_host import BINDINGS, forget_bindings, no_nvml
from support.fake_dcgm.engine import LiveEngine, install
from support.scripted_collector import ScriptedCollector
from support.wire_agent import wait_until

from gpusonde.agent import AgentConfig, ReplaySource, run_agent
from gpusonde.agent.config import SourceConfig
from gpusonde.agent.metrics import AgentMetrics, RecordAges, SelfCounters
from gpusonde.agent.sources.base import SourceStatistics
from gpusonde.agent.sources.dcgm.source import DcgmSource, HostProbes
from gpusonde.service.metrics import Distribution
from gpusonde.service.reload import ReloadCounters
from gpusonde.telemetry import MissingReason, Trace

TEXT = """\
# HELP gpusonde_agent_build_info What runs.
# TYPE gpusonde_agent_build_info gauge
gpusonde_agent_build_info{source="nvml",version="1.2.3"} 1.0
# HELP gpusonde_agent_gpus GPUs and MIG instances that are sampled.
# TYPE gpusonde_agent_gpus gauge
gpusonde_agent_gpus 8.0
# HELP gpusonde_agent_ticks_total Ticks of one GPU each.
# TYPE gpusonde_agent_ticks_total counter
gpusonde_agent_ticks_total 800.0
# HELP gpusonde_agent_ticks_missed_total Deadlines that passed without a reading of any GPU.
# TYPE gpusonde_agent_ticks_missed_total counter
gpusonde_agent_ticks_missed_total 2.0
# HELP gpusonde_agent_tick_lateness_seconds Time between a deadline and its reading.
# TYPE gpusonde_agent_tick_lateness_seconds histogram
gpusonde_agent_tick_lateness_seconds_bucket{le="0.01"} 1.0
gpusonde_agent_tick_lateness_seconds_bucket{le="+Inf"} 2.0
gpusonde_agent_tick_lateness_seconds_count 2.0
gpusonde_agent_tick_lateness_seconds_sum 0.0625
# HELP gpusonde_agent_sample_read_seconds Time that one reading of all GPUs takes.
# TYPE gpusonde_agent_sample_read_seconds histogram
gpusonde_agent_sample_read_seconds_bucket{le="0.01"} 2.0
gpusonde_agent_sample_read_seconds_bucket{le="+Inf"} 2.0
gpusonde_agent_sample_read_seconds_count 2.0
gpusonde_agent_sample_read_seconds_sum 0.00390625
# HELP gpusonde_agent_sampling_interval_seconds Time between two ticks.
# TYPE gpusonde_agent_sampling_interval_seconds gauge
gpusonde_agent_sampling_interval_seconds 0.1
# HELP gpusonde_agent_slowdowns_total How often sampling became slower than configured, by reason.
# TYPE gpusonde_agent_slowdowns_total counter
gpusonde_agent_slowdowns_total{reason="idle"} 3.0
gpusonde_agent_slowdowns_total{reason="read_budget"} 0.0
"""
TEXT_END = """\
# HELP gpusonde_agent_spool_bytes Size of the spool on disk.
# TYPE gpusonde_agent_spool_bytes gauge
gpusonde_agent_spool_bytes 4096.0
# HELP gpusonde_agent_spool_max_bytes Size at which the oldest records are dropped.
# TYPE gpusonde_agent_spool_max_bytes gauge
gpusonde_agent_spool_max_bytes 1.048576e+06
# HELP gpusonde_agent_spool_oldest_record_age_seconds For how long the oldest record has waited for its \
acknowledgement; 0 when none waits.
# TYPE gpusonde_agent_spool_oldest_record_age_seconds gauge
gpusonde_agent_spool_oldest_record_age_seconds 30.0
# HELP gpusonde_agent_records_total Records appended to the spool.
# TYPE gpusonde_agent_records_total counter
gpusonde_agent_records_total 9.0
# HELP gpusonde_agent_dropped_records_total Records given up before they were acknowledged, by reason.
# TYPE gpusonde_agent_dropped_records_total counter
gpusonde_agent_dropped_records_total{reason="disk_full"} 0.0
gpusonde_agent_dropped_records_total{reason="spool_corrupt"} 0.0
gpusonde_agent_dropped_records_total{reason="spool_full"} 5.0
gpusonde_agent_dropped_records_total{reason="too_large"} 0.0
# HELP gpusonde_agent_lost_ticks_total Ticks inside of dropped records or never on disk.
# TYPE gpusonde_agent_lost_ticks_total counter
gpusonde_agent_lost_ticks_total 50.0
# HELP gpusonde_agent_unacked_records Records that the collector has not made durable.
# TYPE gpusonde_agent_unacked_records gauge
gpusonde_agent_unacked_records 4.0
# HELP gpusonde_agent_acked_sequence Highest sequence that the collector made durable.
# TYPE gpusonde_agent_acked_sequence gauge
gpusonde_agent_acked_sequence 5.0
# HELP gpusonde_agent_reconnects_total Sessions with a collector after the first.
# TYPE gpusonde_agent_reconnects_total counter
gpusonde_agent_reconnects_total 1.0
# HELP gpusonde_agent_connection_failures_total Attempts and sessions that ended with an error, by gRPC status.
# TYPE gpusonde_agent_connection_failures_total counter
gpusonde_agent_connection_failures_total{code="UNAVAILABLE"} 7.0
# HELP gpusonde_agent_throttled Whether the collector asks for fewer or smaller records now.
# TYPE gpusonde_agent_throttled gauge
gpusonde_agent_throttled 1.0
# HELP gpusonde_agent_certificate_expiry_timestamp_seconds When the agent's certificate expires, as Unix time; absent \
without one.
# TYPE gpusonde_agent_certificate_expiry_timestamp_seconds gauge
gpusonde_agent_certificate_expiry_timestamp_seconds 2e+09
# HELP gpusonde_agent_config_reloads_total Configurations read anew at SIGHUP.
# TYPE gpusonde_agent_config_reloads_total counter
gpusonde_agent_config_reloads_total{result="failure"} 1.0
gpusonde_agent_config_reloads_total{result="success"} 2.0
# HELP gpusonde_agent_config_last_reload_successful Whether the latest configuration could be used; the one before \
stays in force if not.
# TYPE gpusonde_agent_config_last_reload_successful gauge
gpusonde_agent_config_last_reload_successful 0.0
"""


def test_every_counter_is_shown_under_its_agreed_name():
    counters = SelfCounters(
        gpus=8,
        ticks=800,
        missed_ticks=2,
        sampling_interval_s=0.1,
        slowdowns={"idle": 3},
        blanks={MissingReason.NO_DATA: 6},
        spool_bytes=4096,
        records=9,
        dropped_records={"spool_full": 5},
        lost_ticks=50,
        last_sequence=9,
        acked_sequence=5,
        sessions=2,
        connection_failures={"UNAVAILABLE": 7},
        throttled=True,
        certificate_expiry_unix_s=2e9,
        tick_lateness=Distribution((0.01,)),
        read_time=Distribution((0.01,)),
    )
    counters.count_reading(0.0, 2**-9)
    counters.count_reading(2**-4, 2**-9)
    counters.count_events(["xid", "lost", "xid"])
    now = [1000.0]
    ages = RecordAges(wall_s=lambda: now[0])
    ages.note(6)
    now[0] += 30
    registry = CollectorRegistry()
    registry.register(
        AgentMetrics(
            counters=counters,
            source=SourceStatistics(lag_s=0.25, hung_calls=1),
            ages=ages,
            reloads=ReloadCounters(succeeded=2, failed=1, last_successful=False),
            version="1.2.3",
            source_name="nvml",
            spool_max_bytes=lambda: 1 << 20,
        )
    )
    text = generate_latest(registry).decode()
    assert text.startswith(TEXT)
    assert text.endswith(TEXT_END)
    value = registry.get_sample_value
    assert value("gpusonde_agent_blank_values_total", {"reason": "no_data"}) == 6
    assert [value("gpusonde_agent_gpu_events_total", {"kind": k}) for k in ("xid", "lost", "clock_step")] == [2, 1, 0]
    assert value("gpusonde_agent_source_lag_seconds") == 0.25
    assert value("gpusonde_agent_source_hung_calls_total") == 1


def test_without_a_certificate_there_is_no_expiry_to_alert_on():
    registry = CollectorRegistry()
    registry.register(
        AgentMetrics(SelfCounters(), SourceStatistics(), RecordAges(), ReloadCounters(), "1", "nvml", lambda: 0)
    )
    assert registry.get_sample_value("gpusonde_agent_certificate_expiry_timestamp_seconds") is None
    assert registry.get_sample_value("gpusonde_agent_spool_oldest_record_age_seconds") == 0


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_oldest_record_is_as_old_as_it_waits():
    clock = Clock()
    ages = RecordAges(wall_s=clock)
    for second in range(100):
        clock.now = float(second)
        ages.note(second + 1)
    assert ages.oldest_s(acked=0, last=100) == 99.0
    assert ages.oldest_s(acked=40, last=100) == 59.0
    assert ages.oldest_s(acked=99, last=100) == 0.0
    clock.now += 7
    assert ages.oldest_s(acked=99, last=100) == 7.0
    assert ages.oldest_s(acked=100, last=100) == 0.0


def test_what_an_earlier_process_left_has_its_age_from_its_files():
    clock = Clock()
    clock.now = 1000.0
    ages = RecordAges(wall_s=clock)
    ages.restore([(1, 100.0), (50, 400.0)])
    assert ages.oldest_s(acked=0, last=60) == 900.0
    assert ages.oldest_s(acked=49, last=60) == 600.0


def test_a_day_without_a_collector_costs_bounded_memory_and_keeps_the_age():
    clock = Clock()
    ages = RecordAges(wall_s=clock)
    for second in range(86_400):
        clock.now = float(second)
        ages.note(second + 1)
    assert len(ages._notes) <= 1024
    assert ages.oldest_s(acked=0, last=86_400) == 86_399.0
    assert ages.oldest_s(acked=43_200, last=86_400) == pytest.approx(43_200, abs=300)


def read(address, path="/metrics"):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=200) as answer:
        return answer.read().decode()


def test_a_running_agent_tells_what_it_does(tmp_path):
    time_s = np.arange(5000) * 0.1
    trace = Trace(time_s, {"sm_active": np.full(5000, 0.5)})
    stop = threading.Event()
    with ScriptedCollector() as collector:
        config = AgentConfig.load(
            overrides={
                "spool.directory": str(tmp_path),
                "uplink.collector": collector.target,
                "uplink.batch_interval": "100ms",
                "metrics.listen": "127.0.0.1:0",
            }
        )
        reports = []
        agent = threading.Thread(
            target=lambda: reports.append(run_agent(config, source=ReplaySource([trace]), stop=stop))
        )
        agent.start()
        try:
            file = tmp_path / "metrics_address"
            address = wait_until(lambda: file.exists() and file.read_text().strip())

            def samples():
                families = text_string_to_metric_families(read(address))
                return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

            # A busy machine reads several ticks of a replay at one deadline.
            wait_until(
                lambda: (
                    min(
                        samples()["gpusonde_agent_acked_sequence",],
                        samples()["gpusonde_agent_tick_lateness_seconds_count",],
                    )
                    >= 3
                )
            )
            assert read(address, "/-/healthy") == read(address, "/-/ready") == "ok\n"
            now = samples()
        finally:
            stop.set()
            agent.join(240)
    assert now["gpusonde_agent_gpus",] == 1
    assert now["gpusonde_agent_ticks_total",] >= 3
    assert now["gpusonde_agent_records_total",] >= 3
    assert now["gpusonde_agent_tick_lateness_seconds_count",] >= 3
    assert now["gpusonde_agent_sampling_interval_seconds",] == pytest.approx(0.1)
    assert 0 < now["gpusonde_agent_spool_bytes",] < now["gpusonde_agent_spool_max_bytes",]
    assert now["gpusonde_agent_ticks_total",] <= reports[0].counters.ticks
    assert not file.exists()


def test_an_agent_is_ready_only_while_a_gpu_gives_values(tmp_path, monkeypatch):
    monkeypatch.setattr("gpusonde.agent.daemon._SILENCE_S", 1.0)
    engine = LiveEngine()
    install(engine)
    source = DcgmSource(
        SourceConfig(dcgm_bindings=str(BINDINGS)), probes=HostProbes(load_nvml=no_nvml, cuda_attributes=dict)
    )
    stop = threading.Event()
    with ScriptedCollector() as collector:
        config = AgentConfig.load(
            overrides={
                "spool.directory": str(tmp_path),
                "uplink.collector": collector.target,
                "metrics.listen": "127.0.0.1:0",
            }
        )
        agent = threading.Thread(target=lambda: run_agent(config, source=source, stop=stop))
        agent.start()
        try:
            file = tmp_path / "metrics_address"
            address = wait_until(lambda: file.exists() and file.read_text().strip())

            def unready():
                try:
                    return read(address, "/-/ready") and ""
                except urllib.error.HTTPError as error:
                    return error.read().decode()

            wait_until(lambda: unready() == "")
            engine.kill()
            wait_until(lambda: "none of 2 GPUs gave a value for" in unready())
            assert read(address, "/-/healthy") == "ok\n"
            engine.remote = True
            wait_until(lambda: unready() == "")
        finally:
            stop.set()
            agent.join(240)
            forget_bindings()

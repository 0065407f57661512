"""A replayed trace through sampler, spool and uplink into a real gRPC server in this process."""

import math
import threading

import numpy as np
import pytest
from support.decoded_blocks import decode
from support.scripted_collector import Script, ScriptedCollector

from gpusonde.agent import AgentConfig, ReplaySource, run_agent
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import Trace, metric

TICKS = 2000


@pytest.fixture
def trace():
    time_s = 12.5 + np.arange(TICKS) * 0.1
    return Trace(
        time_s,
        {
            "sm_active": 0.5 + 0.4 * np.sin(time_s),
            "power_watts": np.where(np.arange(TICKS) % 50 == 0, np.nan, 200 + time_s),
            "energy_joules": 9e9 + 300 * time_s,
        },
        gpu_model="Tesla V100-SXM2-16GB",
        attributes={"sm_count": "80", "memory_bytes": "17179869184", "note": "a test"},
    )


def config(tmp_path, collector, **overrides):
    settings = {"spool.directory": str(tmp_path / "spool"), "uplink.collector": collector.target}
    return AgentConfig.load(overrides={**settings, **{k.replace("__", "."): v for k, v in overrides.items()}})


def test_every_tick_of_a_fast_replay_arrives_once_with_its_own_spacing(tmp_path, trace):
    with ScriptedCollector() as collector:
        report = run_agent(
            config(tmp_path, collector), source=ReplaySource([trace], speed=math.inf), exit_when_acked=True
        )
        records = collector.records()

    assert report.drained
    assert report.source_ended
    assert report.counters.ticks == TICKS
    assert report.counters.unacked_records == 0
    assert collector.duplicates == 0
    assert collector.gaps == []
    assert [r.WhichOneof("payload") for r in records] == ["inventory", *["batch"] * (len(records) - 2), "source_ended"]
    assert list(records[-1].source_ended.gpus) == [0]

    inventory = records[0].inventory
    gpu = inventory.gpus[0]
    assert (gpu.product_name, gpu.replayed, gpu.framebuffer_bytes) == ("Tesla V100-SXM2-16GB", True, 17179869184)
    assert {a.name: a.value for a in gpu.static_attributes} == {"sm_count": 80.0, "memory_bytes": 17179869184.0}
    metrics = [metric(m.name) for m in inventory.metrics]
    blocks = [block for r in records[1:-1] for block in decode(r.batch, metrics)]
    times = np.concatenate([b.time_unix_nano for b in blocks])
    values = np.concatenate([b.values for b in blocks], axis=1)
    np.testing.assert_array_equal(times - times[0], np.rint((trace.time_s - trace.time_s[0]) * 1e6) * 1000)
    for row, column in zip(values, metrics, strict=True):
        np.testing.assert_allclose(row, trace.values[column.name], rtol=1e-6)
    # A counter keeps what float32 alone would round away.
    energy = values[[m.name for m in metrics].index("energy_joules")]
    np.testing.assert_allclose(energy, trace.values["energy_joules"], rtol=0, atol=0.01)
    blanks = sum(n for b in blocks for (_, why), n in b.blank_counts.items() if why == gpu_pb2.BLANK_REASON_NO_DATA)
    assert blanks == TICKS // 50


def test_an_agent_says_at_its_start_that_every_user_can_read_its_token(tmp_path, trace, caplog):
    token = tmp_path / "token"
    token.write_text("gpusonde_abc")
    token.chmod(0o644)
    with ScriptedCollector() as collector:
        settings = config(tmp_path, collector, uplink__token_file=str(token))
        run_agent(settings, source=ReplaySource([trace], speed=math.inf), exit_when_acked=True)
    assert f"{token} is open to every user of this host (mode 0644)" in caplog.text


def test_a_collector_that_is_not_there_costs_nothing_but_time(tmp_path, trace, caplog):
    with ScriptedCollector() as collector:
        settings = config(tmp_path, collector, uplink__drain_timeout="100ms")
        collector.stop()
        first = run_agent(settings, source=ReplaySource([trace], speed=math.inf), exit_when_acked=True, ack_timeout_s=1)
        assert not first.drained
        assert first.counters.unacked_records == first.counters.last_sequence > 0
        away = [r for r in caplog.records if "is not there" in r.message]
        assert len(away) == 1
        assert str(tmp_path / "spool") in away[0].message

        collector.start()
        second = run_agent(settings, source=ReplaySource([trace], speed=math.inf), exit_when_acked=True)
        assert second.drained
        assert second.agent_id == first.agent_id
        assert second.spool_id == first.spool_id
        ended = collector.payloads("source_ended")
        assert len(ended) == 2
        assert [r.sequence for r in collector.records()] == list(range(1, second.counters.last_sequence + 1))
        assert sum(b.tick_count for r in collector.payloads("batch") for b in r.batch.blocks) == 2 * TICKS


def test_a_stopped_agent_says_what_it_leaves_behind(tmp_path, trace):
    stop = threading.Event()
    with ScriptedCollector() as collector:
        settings = config(tmp_path, collector, uplink__drain_timeout="100ms")
        collector.stop()
        report = run_agent(
            settings,
            source=ReplaySource([trace], speed=1.0),
            stop=stop,
            on_progress=lambda counters: stop.set() if counters.ticks >= 3 else None,
        )
    assert not report.source_ended
    assert not report.drained
    assert report.counters.batches == 1


def test_a_collector_that_takes_plain_floats_only_gets_them(tmp_path, trace):
    with ScriptedCollector(scripts=[Script(encoding=ingest_pb2.ENCODING_FLOAT32_LE)]) as collector:
        run_agent(config(tmp_path, collector), source=ReplaySource([trace], speed=math.inf), exit_when_acked=True)
        batches = [r.batch for r in collector.payloads("batch")]
    assert {b.encoding for b in batches} == {ingest_pb2.ENCODING_FLOAT32_LE}
    assert sum(len(block.values) for b in batches for block in b.blocks) == TICKS * 3 * 4

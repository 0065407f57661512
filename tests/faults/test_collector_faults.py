"""Real processes, killed and starved: every sample the agent took is in the store once.

``GPUSONDE_FAULT_RECORDS=12000 GPUSONDE_FAULT_KILLS=20`` makes the chaos test as long as a release wants it.
"""

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.faulty_files import FaultyFiles, flip_byte
from support.running_collector import ProcessCollector, ThreadCollector
from support.spooling_agent import ResumingAgent, Spool, kill_by_turns
from support.store_records import EVER
from support.trace_records import trace_records
from support.uplink_rig import SteadyRig, assert_every_record_once
from support.wire_agent import START_NS, TICK_NS, WireStream, batch, hello, inventory, wait_until

from gpusonde.collector import LocalStore
from gpusonde.collector.client import Client, CollectorError
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.epoch_detect import detect
from gpusonde.telemetry import read_trace

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
SUPPORT = Path(__file__).parents[1] / "support"
CHAOS_RECORDS = int(os.environ.get("GPUSONDE_FAULT_RECORDS", "1500"))
CHAOS_KILLS = int(os.environ.get("GPUSONDE_FAULT_KILLS", "3"))


def sequences_and_ticks(directory, agent_id="agent-1", gpu_uuid="GPU-a"):
    """Open the store of a stopped collector: the record and the number of every tick, in order of arrival."""
    store = LocalStore(directory, StoreConfig(reserve_bytes=0))
    store.open()
    try:
        pieces = [
            arrival.samples
            for arrival in store.samples.read_feed(agent_id, gpu_uuid, Position(0, 0))
            if isinstance(arrival, TicksEntry)
        ]
        assert len(store.samples.read(gpu_uuid, *EVER)) == sum(map(len, pieces))
        assert store.facts.losses() == []
        assert store.facts.rejections() == []
    finally:
        store.close()
    sequences = np.concatenate([piece.sequence for piece in pieces])
    ticks = np.concatenate([(piece.time_unix_nano - START_NS) // TICK_NS for piece in pieces])
    return sequences, ticks


def assert_every_record_once_and_in_order(directory, records):
    sequences, ticks = sequences_and_ticks(directory)
    assert ticks.tolist() == list(range(10 * (records - 1)))
    assert sequences.tolist() == [tick // 10 + 2 for tick in range(10 * (records - 1))]


def test_a_collector_killed_in_the_middle_of_a_demo_sized_stream_has_every_sample_once(tmp_path):
    trace = read_trace(DEMO_TRACE)
    records = trace_records(trace, ticks_per_record=5)
    with ProcessCollector(tmp_path / "data", store__segment_interval="500ms") as collector:
        sent = []
        agent = ResumingAgent(collector.target, hello, sent, len(records))
        thread = threading.Thread(target=agent.run)
        thread.start()
        for i, record in enumerate(records):
            sent.append(record.SerializeToString())
            if i in (len(records) // 3, 2 * len(records) // 3):
                # More than what the stream before the last kill could have brought.
                wait_until(lambda: agent.acked > i - len(records) // 6, what="acknowledgements")  # noqa: B023
                collector.kill()
                collector.start()
        thread.join(240)
        assert agent.acked == len(records)
        assert agent.streams >= 3
        with Client(collector.target) as client:
            stored = client.read_samples(trace.gpu_uuid)
            wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, what="end of the run")
            (run,) = client.list_runs()
            epochs = client.list_epochs(run.run_id)
    assert stored.time_s == pytest.approx(trace.time_s - trace.time_s[0], abs=1e-6)
    for name in trace.metrics:
        assert np.array_equal(stored.values[name], trace.values[name].astype(np.float32)), name
    offline = detect(trace)
    starts = [(epoch.start_unix_nano - START_NS) / 1e9 for epoch in epochs.epochs]
    assert starts == pytest.approx(offline.epoch_starts_s.tolist(), abs=1e-6)
    assert run.period_s == pytest.approx(offline.period_s, abs=1e-8)


def test_a_killed_collector_goes_on_tracking_where_it_stood_and_ends_with_the_same_epochs(tmp_path):
    trace = read_trace(DEMO_TRACE)
    records = trace_records(trace, ticks_per_record=5)
    with ProcessCollector(tmp_path / "data", runs__state_interval="1s", store__segment_interval="1s") as collector:
        sent = []
        agent = ResumingAgent(collector.target, hello, sent, len(records))
        thread = threading.Thread(target=agent.run)
        thread.start()
        for share in (0.4, 0.7, 0.9):
            sent += [record.SerializeToString() for record in records[len(sent) : round(share * len(records))]]
            wait_until(lambda: agent.acked == len(agent.records), what="acknowledgements")
            states = tmp_path / "data" / "tracking"
            before = {path: path.stat().st_mtime_ns for path in states.glob("*.state")} if states.is_dir() else {}
            wait_until(
                lambda: any(before.get(p) != p.stat().st_mtime_ns for p in states.glob("*.state")),  # noqa: B023
                30,
                "a stored state",
            )
            collector.kill()
            collector.start()
        sent += [record.SerializeToString() for record in records[len(sent) :]]
        thread.join(240)
        assert agent.acked == len(records)
        with Client(collector.target) as client:
            wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, what="end of the run")
            (run,) = client.list_runs()
            wait_until(lambda: not client.list_epochs(run.run_id).pending_summaries, what="mean metrics and energy")
            epochs = client.list_epochs(run.run_id)
        log = collector.log_path.read_text()
    assert "again from its start" not in log
    assert "Traceback" not in log
    offline = detect(trace)
    starts = [(epoch.start_unix_nano - START_NS) / 1e9 for epoch in epochs.epochs]
    assert starts == pytest.approx(offline.epoch_starts_s.tolist(), abs=1e-6)
    assert run.period_s == pytest.approx(offline.period_s, abs=1e-8)
    assert all(epoch.energy_joules > 0 for epoch in epochs.epochs)
    assert list((tmp_path / "data" / "tracking").iterdir()) == []


def test_collector_and_agent_killed_at_random_moments_lose_and_repeat_nothing(tmp_path):
    spool = tmp_path / "spool"
    with ProcessCollector(tmp_path / "data", store__segment_interval="700ms") as collector:
        kill_by_turns(collector, spool, CHAOS_RECORDS, "0.002", CHAOS_KILLS, random.Random(7))
        assert collector.terminate() == 0
    taken = len(Spool(spool).records)
    assert taken >= CHAOS_RECORDS
    assert_every_record_once_and_in_order(tmp_path / "data", taken)


def test_a_collector_killed_among_records_that_came_together_has_every_one_once(tmp_path):
    rig = SteadyRig(tmp_path / "spool")
    for _ in range(1000):
        rig.grow()
    kills = [100, 400, 700]
    with ProcessCollector(tmp_path / "data") as collector:

        def kill_now_and_then():
            if kills and rig.counters.acked_sequence > kills[0]:
                del kills[0]
                collector.kill()
                collector.start()

        rig.run(collector.target, during=kill_now_and_then)
        assert kills == []
        assert rig.counters.sessions >= 4
        assert collector.terminate() == 0
    rig.spool.close()
    assert_every_record_once(tmp_path / "data", 1000)


def real_agent(collector, directory, trace_path, speed):
    """The product's own agent replaying a trace, as a process."""
    code = (
        "import sys, json\n"
        "from gpusonde.agent import AgentConfig, run_agent\n"
        "config = AgentConfig.load(overrides=dict(a.split('=', 1) for a in sys.argv[1:]))\n"
        "print(json.dumps(run_agent(config, exit_when_acked=True).as_json()))\n"
    )
    settings = {
        "source.kind": "replay",
        "source.trace": str(trace_path),
        "source.speed": str(speed),
        "spool.directory": str(directory),
        "uplink.collector": collector.target,
        "uplink.batch_interval": "100ms",
        "agent.id": "real-agent",
    }
    arguments = [f"{key}={value}" for key, value in settings.items()]
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def test_the_real_agent_rides_out_a_killed_collector(tmp_path):
    trace = read_trace(DEMO_TRACE)
    with ProcessCollector(tmp_path / "data") as collector:
        agent = real_agent(collector, tmp_path / "spool", DEMO_TRACE, 40)
        with Client(collector.target) as client:
            for share in (0.2, 0.6):
                wanted = share * len(trace)
                wait_until(lambda: stored_so_far(client, trace.gpu_uuid) > wanted, 120, "samples")  # noqa: B023
                collector.kill()
                collector.start()
        output, _ = agent.communicate(timeout=200)
        report = json.loads(output)
        assert report["drained"]
        with Client(collector.target) as client:
            stored = client.read_samples(trace.gpu_uuid)
            wait_until(lambda: client.list_runs() and not client.list_runs()[0].active, what="end of the run")
            assert client.list_runs()[0].period_s == pytest.approx(detect(trace).period_s, rel=1e-6)
    assert len(stored) == len(trace) == report["ticks"]
    assert stored.time_s == pytest.approx(trace.time_s - trace.time_s[0], abs=2e-6)
    for name in trace.metrics:
        assert np.array_equal(stored.values[name], trace.values[name].astype(np.float32)), name


def stored_so_far(client, gpu_uuid):
    try:
        return len(client.read_samples(gpu_uuid, metrics=["power_watts"]))
    except CollectorError:
        return 0


def test_a_terminated_collector_drains_and_leaves_no_log(tmp_path):
    with ProcessCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(inventory(), *(batch(k) for k in range(2, 40)))
            stream.wait_acked(20)
            assert collector.terminate() == 0
            assert stream.end()[0] in ("OK", "UNAVAILABLE")
            acked = stream.acked
        assert not (tmp_path / "data" / "address").exists()
    assert list((tmp_path / "data" / "log").iterdir()) == []
    sequences, _ = sequences_and_ticks(tmp_path / "data")
    assert sequences[-1] >= acked


def inside_last_column(segment):
    """An offset among the values of a metric: metrics are the last columns, and a read takes those it needs only."""
    row_group = pq.ParquetFile(segment).metadata.row_group(0)
    column = row_group.column(row_group.num_columns - 1)
    return column.data_page_offset + column.total_compressed_size // 2


def test_damaged_files_do_not_stop_a_collector_and_are_named(tmp_path):
    with ProcessCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(inventory(), *(batch(k) for k in range(2, 40))).wait_acked(39)
        assert collector.terminate() == 0
        collector.start()
        with WireStream(collector.target, hello()) as stream:
            stream.greet()
            stream.send(*(batch(k) for k in range(40, 50))).wait_acked(49)
        collector.kill()
        (segment,) = (tmp_path / "data" / "segments").iterdir()
        flip_byte(segment, inside_last_column(segment))
        (part,) = (tmp_path / "data" / "log").iterdir()
        with part.open("ab") as log:
            log.write(b"torn tail")
        collector.start()
        with WireStream(collector.target, hello()) as stream:
            assert stream.greet().durable_sequence == 49
            stream.send(batch(50)).wait_acked(50)
        with Client(collector.target) as client:
            with pytest.raises(CollectorError, match=segment.name) as caught:
                client.read_samples("GPU-a")
            assert caught.value.code == "DATA_LOSS"
            after = START_NS + 380 * TICK_NS
            assert len(client.read_samples("GPU-a", start_unix_nano=after)) == 110
        assert "the last 9 bytes are not whole entries" in collector.log_path.read_text()


def health(target, service="gpusonde.ingest.v1.IngestService"):
    with grpc.insecure_channel(target) as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service)).status


def test_a_full_disk_is_said_nothing_is_acknowledged_and_all_is_taken_when_there_is_room(tmp_path):
    files = FaultyFiles()
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    total = 60
    records = [(inventory() if k == 1 else batch(k)).SerializeToString() for k in range(1, total + 1)]
    with ThreadCollector(tmp_path / "data", files=files, store__reserve_bytes="0B") as collector:
        agent = ResumingAgent(collector.target, hello, records[:20], total)
        thread = threading.Thread(target=agent.run)
        thread.start()
        wait_until(lambda: agent.acked == 20, what="the first acknowledgements")
        files.room = 2000
        agent.records += records[20:]
        wait_until(lambda: health(collector.target) == not_serving, what="not serving")
        assert health(collector.target, "") == not_serving
        assert health(collector.target, "gpusonde.query.v1.QueryService") == serving
        wait_until(lambda: len(agent.statuses) >= 2, what="a second refusal")
        assert {code for code, _ in agent.statuses} == {"RESOURCE_EXHAUSTED"}
        assert "no space left" in agent.statuses[0][1]
        assert agent.acked < total
        with Client(collector.target) as client:
            assert len(client.read_samples("GPU-a")) == 10 * (agent.acked - 1)
        files.room = None
        thread.join(240)
        assert agent.acked == total
        wait_until(lambda: health(collector.target) == serving, what="serving again")
    assert_every_record_once_and_in_order(tmp_path / "data", total)


def test_of_two_agents_with_one_id_the_second_is_told_and_the_first_goes_on(tmp_path):
    with ProcessCollector(tmp_path / "data") as collector:
        records = [(inventory() if k == 1 else batch(k)).SerializeToString() for k in range(1, 101)]
        first = ResumingAgent(collector.target, hello, records[:50], 100)
        thread = threading.Thread(target=first.run)
        thread.start()
        wait_until(lambda: first.acked == 50, what="the first agent's acknowledgements")
        second = ResumingAgent(
            collector.target, lambda: hello(spool_id="spool-2", start=5_000, instance="instance-2"), records, 100
        )
        assert not second.run()
        ((code, text),) = second.statuses
        assert code == "ALREADY_EXISTS"
        assert "a second agent with the same id: 'agent-1'" in text
        first.records += records[50:]
        thread.join(240)
        assert first.acked == 100
        assert first.streams == 1
        assert collector.terminate() == 0
    assert_every_record_once_and_in_order(tmp_path / "data", 100)

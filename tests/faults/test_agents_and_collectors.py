"""Agents and collectors as processes of their own: one that is away, clocks that jump, agents that share a name."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from support.counting_agent import CYCLE
from support.epoch_traces import training_trace
from support.fake_nvidia import FakeNvml, compile_library
from support.running_collector import ProcessCollector
from support.trace_records import trace_records
from support.victim_agent import VictimAgent, stored, stored_of
from support.wire_agent import START_NS, WireStream, hello, wait_until

from gpusonde.agent import AgentConfig, run_agent
from gpusonde.agent.batch import Batcher, inventory_record
from gpusonde.agent.sources.base import GpuDescription, GpuTicks, SourceInventory
from gpusonde.agent.spool import Spool
from gpusonde.agent.spool.inspection import inspect_spool
from gpusonde.collector.client import Client
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import METRICS, MetricKind

HOUR_S = 3600


def backlog(directory: Path, seconds: int, gpus: int = 8, metrics: int = 25) -> tuple[float, str]:
    """What an agent keeps of so many seconds at 10 Hz, as its writer writes it; returns megabytes and first metric."""
    columns = tuple(m for m in METRICS if m.kind is MetricKind.GAUGE)[:metrics]
    names = tuple(GpuDescription(f"GPU-away-{i}", i, "Tesla T4") for i in range(gpus))
    spool = Spool(directory, max_bytes=1 << 30, agent_id="victim")
    spool.open()
    spool.append(inventory_record(SourceInventory("counting", names, columns, 0.1)))
    batcher = Batcher(columns)
    noise = np.random.default_rng(5).random((len(columns), 10))
    begin_ns = (time.time_ns() // 10**9 - seconds - 60) * 10**9
    for second in range(seconds):
        stamps = begin_ns + second * 10**9 + np.arange(10) * 100_000_000
        values = noise + (second % 50) * 0.001
        values[0] = np.arange(second * 10, second * 10 + 10) / (10.0 * seconds)
        for gpu in range(gpus):
            batcher.add(GpuTicks(gpu, stamps, values.clip(0, 1)))
        spool.append(ingest_pb2.Record(batch=batcher.flush()))
    size_bytes = spool.size_bytes
    spool.close()
    return size_bytes / 1e6, columns[0].name


@pytest.mark.parametrize(("away_s", "records_per_second"), [(HOUR_S, 1000), (HOUR_S // 6, 40)])
def test_what_a_collector_missed_waits_in_the_spool_and_arrives_in_order_and_throttled(
    tmp_path, away_s, records_per_second
):
    megabytes, first_metric = backlog(tmp_path / "agent" / "spool", away_s)
    limit = {"ingest__max_records_per_second": str(records_per_second), "runs__track": "false"}
    with ProcessCollector(tmp_path / "data", **limit) as collector:
        collector.kill()
        with VictimAgent(tmp_path / "agent", collector.target, ticks=30) as agent:
            # The collector is still away while the agent goes on.
            wait_until(lambda: "is not there" in agent.log(), 120, "a collector that is missed")
            collector.start()
            began = time.monotonic()
            report = agent.wait()
            seconds = time.monotonic() - began
        assert collector.terminate() == 0
    assert report["drained"]
    assert report["dropped_records"] == {}
    # Throttled, not refused.
    assert report["connection_failures"].keys() <= {"UNAVAILABLE"}
    if records_per_second == 40:
        assert "asks for at most 8 records in flight" in agent.log()
        assert seconds > (away_s - 10 * records_per_second) / records_per_second
    for gpu in (0, 7):
        found = stored(tmp_path / "data", f"GPU-away-{gpu}", metric=first_metric)
        assert found.losses == []
        assert found.sequences.tolist() == [2 + i // 10 for i in range(10 * away_s)]
        np.testing.assert_allclose(found.values, np.arange(10 * away_s) / (10.0 * away_s), rtol=1e-6)
    meanwhile = stored(tmp_path / "data")
    assert meanwhile.values.tolist() == list(range(30))
    assert meanwhile.sequences.min() > away_s + 1
    print(
        f"{away_s} s of 8 GPUs x 25 metrics at 10 Hz: {away_s + 1} records, {megabytes:.1f} MB; caught up in "
        f"{seconds:.1f} s ({away_s / seconds:.0f} records/s, throttled beyond {records_per_second}), in order, "
        "0 missing, 0 twice"
    )


def test_a_host_clock_that_jumps_by_an_hour_loses_and_reorders_nothing_and_is_on_record(tmp_path):
    offset = tmp_path / "offset"
    offset.write_text("0")
    with ProcessCollector(tmp_path / "data") as collector:
        with VictimAgent(
            tmp_path / "agent", collector.target, interval_s=0.02, batch_interval_s=0.1, clock_offset=str(offset)
        ) as agent:
            for seconds in (0, HOUR_S, 0, -HOUR_S, 0):
                offset.write_text(str(seconds))
                before = agent.took()
                wait_until(lambda before=before: agent.took() > before + 75, 120, "ticks at this time")
            report = agent.finish()
        wait_until(lambda: runs_of(collector), 120, "runs")
        runs = runs_of(collector)
        assert collector.terminate() == 0
    assert report["drained"]
    found = stored(tmp_path / "data")
    assert found.losses == []
    assert found.rejections == []
    assert (np.diff(found.sequences) >= 0).all()
    assert found.values.tolist() == [i % CYCLE for i in range(report["ticks"])]
    jumps_s = np.diff(found.times) / 1e9
    jumps_s = jumps_s[np.abs(jumps_s) > 60]
    assert np.round(jumps_s / HOUR_S).tolist() == [1, -1, -1, 1]
    steps = [event.value / 1e6 for event in found.events if event.kind == ingest_pb2.GPU_EVENT_KIND_CLOCK_STEP]
    # Events come in order of time, and the times are those of the clock that jumped.
    assert sorted(np.round(np.array(steps) / HOUR_S).tolist()) == [-1, -1, 1, 1]
    assert all(run.end_unix_nano >= run.start_unix_nano for run in runs)
    assert all(run.end_unix_nano - run.start_unix_nano < 60 * 10**9 for run in runs)
    print(
        f"4 clock steps of an hour: {report['ticks']} ticks in order, 0 missing; 4 events; {len(runs)} runs, none "
        "longer than its ticks"
    )


def runs_of(collector):
    with Client(collector.target) as client:
        return list(client.list_runs())


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_no_epoch_reaches_over_a_clock_step_of_an_hour_and_those_on_both_sides_are_found(tmp_path, step_s):
    trace, starts = training_trace(20.0, 16)
    cut = int(np.searchsorted(trace.time_s, starts[8] + 7.0))
    records = trace_records(trace, ticks_per_record=5)
    for record in records:
        for block in record.batch.blocks:
            if block.start_time_unix_nano >= START_NS + round(trace.time_s[cut] * 1e9):
                block.start_time_unix_nano += step_s * 10**9
    with ProcessCollector(tmp_path / "data") as collector:
        with WireStream(collector.target, hello(), timeout_s=60.0) as stream:
            stream.greet()
            stream.send(*records).wait_acked(len(records))
        with Client(collector.target) as client:
            wait_until(
                lambda: (runs := client.list_runs()) and len(runs) == 2 and not any(r.active for r in runs),
                60,
                "two runs that are over",
            )
            runs = client.list_runs()
            epochs = [epoch for run in runs for epoch in client.list_epochs(run.run_id).epochs]
    lengths_s = np.array([e.end_unix_nano - e.start_unix_nano for e in epochs]) / 1e9
    assert (lengths_s > 0).all()
    assert lengths_s.max() < 30.0
    assert len(epochs) >= 14
    assert [run.period_s for run in runs] == pytest.approx([20.0, 20.0], rel=0.03)
    print(f"a step of {step_s} s in the middle of 16 epochs: {len(epochs)} found, the longest {lengths_s.max():.1f} s")


def test_a_lost_gpu_leaves_the_others_without_a_hole_and_comes_back(tmp_path):
    fake = FakeNvml(compile_library("fake_nvml", "libnvidia-ml.so.1", tmp_path))
    fake.reset(3)
    fake.set_time(float(time.time_ns() // 10**9 - 1000))
    source = fake.source(slow_interval_s=1.0)
    read, ticks = source.read, itertools.count()

    def one_more(deadline_s):
        fake.advance(0.1)
        number = next(ticks)
        if number == 30:
            fake.fail("*", 15, gpu=1)
        if number == 60:
            fake.heal()
        return read(fake.time_s)

    source.read = one_more
    with ProcessCollector(tmp_path / "data") as collector:
        config = AgentConfig.load(
            overrides={
                "agent.id": "victim",
                "spool.directory": str(tmp_path / "spool"),
                "uplink.collector": collector.target,
                "source.read_budget": "1",
            }
        )
        stop = _Stop(lambda: next_number(ticks) > 90)
        report = run_agent(config, source=source, stop=stop)
        assert collector.terminate() == 0
    assert report.drained
    gpus = [stored(tmp_path / "data", fake.uuid(index)) for index in range(3)]
    for gpu in (gpus[0], gpus[2]):
        assert np.diff(gpu.times) / 1e9 == pytest.approx(0.1, abs=1e-3)
    steps_s = np.diff(gpus[1].times) / 1e9
    hole_s = steps_s[steps_s > 0.15]
    assert len(hole_s) == 1
    assert 3.0 <= hole_s[0] <= 5.0
    assert [event.kind for event in gpus[1].events] == [
        ingest_pb2.GPU_EVENT_KIND_LOST,
        ingest_pb2.GPU_EVENT_KIND_RECOVERED,
    ]
    assert [gpu.events for gpu in (gpus[0], gpus[2])] == [[], []]
    print(
        f"one of three GPUs lost for 3 s: its hole is {hole_s[0]:.1f} s long with LOST and RECOVERED on record, the "
        f"others have {len(gpus[0].times)} ticks without a hole"
    )


def next_number(counter):
    """How far a counter is."""
    return counter.__reduce__()[1][0]


class _Stop:
    """An event that is set when a condition holds."""

    def __init__(self, condition):
        self.is_set = condition


def test_of_two_real_agents_with_one_id_one_is_kept_the_other_is_told_and_their_data_do_not_mix(tmp_path):
    with ProcessCollector(tmp_path / "data") as collector:
        quick = {"interval_s": 0.02, "batch_interval_s": 0.1}
        with VictimAgent(tmp_path / "one", collector.target, **quick) as first:
            wait_until(lambda: "connected to collector" in first.log(), 120, "the first agent's connection")
            with VictimAgent(tmp_path / "two", collector.target, {"uplink.drain_timeout": "1s"}, **quick) as second:
                wait_until(lambda: "refuses this agent" in second.log(), 120, "the second agent's refusal")
                before = first.took()
                wait_until(lambda: first.took() > before + 100, 120, "more ticks of the first")
                told = second.finish()
            kept = first.finish()
        assert collector.terminate() == 0
    assert "a second agent with the same id: 'victim'" in second.log()
    assert "give each agent its own id" in second.log()
    assert not told["drained"]
    assert told["unacked_records"] == told["last_sequence"] == inspect_spool(second.spool).last_sequence
    assert kept["drained"]
    assert kept["reconnects"] == 0
    found = stored(tmp_path / "data")
    assert len(set(found.spools.tolist())) == 1
    assert found.values.tolist() == [i % CYCLE for i in range(kept["ticks"])]
    print(
        f"two agents with one id: {kept['ticks']} ticks of the first stored, 0 of the second, whose "
        f"{told['unacked_records']} records stay in its spool"
    )


def test_what_a_full_spool_dropped_is_known_at_the_collector_to_the_tick(tmp_path):
    gpus = [f"GPU-{i}" for i in range(40)]
    with ProcessCollector(tmp_path / "data") as collector:
        collector.kill()
        small = {"spool.max_bytes": "1MiB"}
        with VictimAgent(
            tmp_path / "agent", collector.target, small, interval_s=0.005, batch_interval_s=0.01, gpu_uuids=gpus
        ) as agent:
            wait_until(lambda: "is full: dropped records" in agent.log(), 120, "a full spool")
            before = agent.took()
            wait_until(lambda: agent.took() > before + 200, 120, "more ticks")
            collector.start()
            report = agent.finish()
        assert collector.terminate() == 0
    assert report["drained"]
    found = stored_of(tmp_path / "data", gpus)
    arrived = sum(len(gpu.values) for gpu in found)
    losses = [loss for loss in found[0].losses if loss.reported]
    assert losses
    assert {loss.reason for loss in losses} == {ingest_pb2.LOSS_REASON_SPOOL_FULL}
    lost = sum(loss.lost_ticks for loss in losses)
    assert lost == report["lost_ticks"] > 0
    assert arrived + lost == report["ticks"] == agent.reached[-1] * len(gpus)
    # What is left is the newest, in one piece.
    newest = found[0].values
    assert newest.tolist() == [(agent.reached[-1] - len(newest) + i) % CYCLE for i in range(len(newest))]
    print(
        f"a spool of 1 MiB for {report['ticks']} ticks: {arrived} arrived, {lost} reported as dropped in {len(losses)} "
        "reports, none unaccounted for"
    )

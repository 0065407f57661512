"""DcgmSource that looks by itself between two readings, as the sampler lets it: the same ticks and requests."""

import threading
import time

import numpy as np
import pytest
from support.dcgm_agent_host import BINDINGS, DcgmHost, forget_bindings, no_nvml
from support.fake_dcgm.engine import FakeEngine, install
from support.fake_libdcgm import SharedEngine, serve
from support.fake_nvidia import compile_library
from support.wire_agent import wait_until

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.sampler import Sampler
from gpusonde.agent.sources.base import GpuEventKind, RawTicks
from gpusonde.agent.sources.dcgm.source import DcgmSource, HostProbes
from gpusonde.telemetry import MissingReason

LIMIT_S = 0.5


@pytest.fixture
def host(dcgm_host):
    dcgm_host.looks_ahead = True
    yield dcgm_host
    dcgm_host.engine.released.set()


def play(host, looks_ahead, **engine):
    """What a source gives of a minute in which much happens."""
    for name, value in engine.items():
        setattr(host.engine, name, value)
    host.looks_ahead = looks_ahead
    source = host.source(slow_interval_s=5.0)
    host.open(source)
    host.run(source, 12.0)
    host.engine.blanks[1, 1005] = "not supported"
    host.run(source, 0.5)
    host.engine.blanks.clear()
    host.run(source, 7.5)
    host.engine.xids.append((0, host.engine.time_s - 0.05, 63))
    host.run(source, 10.0)
    host.engine.lost = {2}
    host.run(source, 10.0)
    host.engine.lost = set()
    host.run(source, 20.0)
    source.close()
    return host


@pytest.mark.parametrize(
    "engine", [{}, {"lag_s": 0.18}, {"drift": 0.0011, "jitter_s": 0.01}, {"profiling_phase_s": 0.03, "version": 3}]
)
def test_the_ticks_are_those_of_one_that_is_read_at_every_deadline(dcgm_host, engine):
    alone = play(dcgm_host, looks_ahead=True, gpus=3, **engine)
    read = play(DcgmHost(FakeEngine()), looks_ahead=False, gpus=3, **engine)
    assert alone.looks > 300
    assert read.looks == 0
    assert [(e.gpu, e.kind, e.value) for e in alone.events] == [(e.gpu, e.kind, e.value) for e in read.events]
    for gpu in (0, 1, 2):
        one, other = alone.ticks[gpu], read.ticks[gpu]
        assert len(one) == pytest.approx(len(other), abs=6)
        at_s = np.array([time_s for time_s, _, _ in one])
        assert (np.diff(at_s) > 0).all()
        for name in ("sm_active", "power_watts", "framebuffer_used_bytes", "gpu_temperature_celsius"):
            values, others = np.array(alone.column(name, gpu)), np.array(read.column(name, gpu))
            assert np.nanmean(values) == pytest.approx(np.nanmean(others), rel=2e-3)
            assert np.isnan(values).sum() == pytest.approx(np.isnan(others).sum(), abs=6)


def test_each_deadline_is_one_request_and_no_tick_is_missing(host):
    host.engine.gpus = 8
    source = host.source()
    host.open(source)
    host.run(source, 5.0)
    before, reads, ticks = host.engine.requests, host.reads, len(host.ticks[7])
    host.run(source, 30.0)
    source.close()
    assert host.engine.requests - before == 300
    assert len(host.ticks[7]) - ticks == pytest.approx(300, abs=2)
    # One reading with what was seen in between, and one of its own, once a second.
    assert host.reads - reads == pytest.approx(60, abs=6)
    assert not np.isnan(host.column("sm_active", 7)[5:]).any()


def test_a_value_that_is_none_amid_looks_is_blank_with_its_reason_and_takes_no_other(host):
    source = host.source()
    host.open(source)
    host.run(source, 10.0)
    host.engine.blanks[1, 1005] = -14
    host.run(source, 0.3)
    host.engine.blanks.clear()
    host.run(source, 5.0)
    source.close()
    blank = [reasons for _, values, reasons in host.ticks[1][20:] if np.isnan(values["dram_active"])]
    assert 1 <= len(blank) <= 4
    assert {reasons["dram_active"] for reasons in blank} == {MissingReason.NO_DATA}
    assert not np.isnan(host.column("sm_active", 1)[20:]).any()
    assert not np.isnan(host.column("dram_active", 0)[20:]).any()


def test_a_slow_value_that_changes_and_one_that_ends_are_seen(host):
    source = host.source(slow_interval_s=2.0)
    host.open(source)
    host.run(source, 10.0)
    assert host.column("energy_joules", 0)[-1] > host.column("energy_joules", 0)[50]
    host.engine.blanks[0, 150] = -15
    host.run(source, 20.0)
    source.close()
    assert np.isnan(host.column("gpu_temperature_celsius", 0)[-1])
    assert host.column("gpu_temperature_celsius", 1)[-1] == 50.0


def test_an_engine_that_ends_between_two_readings_is_lost_and_found_again(host):
    source = host.source()
    host.open(source)
    host.run(source, 10.0)
    kill = threading.Timer(0.0, host.engine.kill)
    kill.start()
    kill.join()
    host.run(source, 3.0)
    host.engine.remote = True
    host.run(source, 12.0)
    source.close()
    kinds = [event.kind for event in host.events]
    assert kinds == [GpuEventKind.LOST] * 2 + [GpuEventKind.RECOVERED] * 2
    assert host.column("sm_active")[-1] > 0


def test_a_look_that_hangs_is_given_up_in_time_and_what_came_before_it_is_kept(host, monkeypatch):
    source = host.source(call_limit_s=LIMIT_S)
    host.open(source)
    host.run(source, 5.05)
    reading = source.read(host.monotonic_s)
    while reading.look_ahead is None:
        host.advance(0.1)
        reading = source.read(host.monotonic_s)
    next_s = host.monotonic_s + 0.1
    before, count = host.engine.requests, host.engine.count_requests

    def hang_after_three(number):
        count(number)
        if host.engine.requests == before + 3:
            host.engine.hanging = {"dcgmEntitiesGetLatestValues"}

    monkeypatch.setattr(host.engine, "count_requests", hang_after_three)
    assert reading.look_ahead(next_s, 0.1, next_s + 10.0) >= 4
    wait_until(lambda: host.engine.held, what="a look that hangs")
    began_s = time.monotonic()
    reading = source.read(host.monotonic_s)
    assert len(reading.looks) == 3
    assert isinstance(reading.ticks, RawTicks)
    assert {ticks.values.shape[1] for ticks in reading.ticks} == {len(reading.looks)}
    assert reading.more
    events = source.read(host.monotonic_s).events
    assert time.monotonic() - began_s < 40 * LIMIT_S
    assert [event.kind for event in events] == [GpuEventKind.LOST] * 2
    assert source.statistics.hung_calls == 1
    source.close()


def test_closing_amid_looks_gives_everything_back(host):
    source = host.source()
    host.open(source)
    host.run(source, 5.0)
    reading = source.read(host.monotonic_s)
    while reading.look_ahead is None:
        host.advance(0.1)
        reading = source.read(host.monotonic_s)
    assert reading.look_ahead(host.monotonic_s + 0.1, 0.1, host.monotonic_s + 10.0) > 0
    source.close()
    assert host.engine.connections == []


def test_the_file_that_pauses_profiling_is_looked_at_as_often(host, tmp_path):
    file = tmp_path / "profiler"
    source = host.source(profiler_pause_file=str(file))
    host.open(source)
    host.run(source, 5.0)
    file.touch()
    host.run(source, 0.7)
    assert host.engine.paused
    assert host.looks > 0
    source.close()


class Sink:
    """Keeps what a sampler reads."""

    def __init__(self):
        self.readings = []

    def has_room(self):
        return True

    def put(self, reading):
        self.readings.append(reading)
        return True


@pytest.fixture
def shared_engine(tmp_path):
    library = compile_library("fake_libdcgm", "libdcgm.so.4", tmp_path)
    process = serve(library, tmp_path)
    engine = SharedEngine(gpus=4)
    wait_until(lambda: engine.connect(library, tmp_path), what="an engine that listens")
    install(engine)
    yield engine
    forget_bindings()
    process.terminate()
    process.wait(200)


def test_a_sampler_wakes_up_for_few_readings_while_a_library_in_c_is_asked_at_every_deadline(shared_engine):
    source = DcgmSource(
        SourceConfig(dcgm_bindings=str(BINDINGS)), probes=HostProbes(load_nvml=no_nvml, cuda_attributes=dict)
    )
    inventory = source.open()
    sink, counters = Sink(), SelfCounters()
    before, began_s = shared_engine.all_requests, time.monotonic()
    sampler = Sampler(source, inventory, 0.1, sink, counters, ahead_s=lambda: 1.0)
    thread = threading.Thread(target=sampler.run)
    thread.start()
    wait_until(lambda: counters.deadlines + counters.missed_ticks >= 60, what="six seconds of deadlines")
    sampler.stop()
    thread.join()
    took_s, asked = time.monotonic() - began_s, shared_engine.all_requests - before
    source.close()
    # Looks that were taken ahead and not handed over yet are in the time alone.
    assert 60 <= counters.deadlines + counters.missed_ticks <= 10 * took_s + 2
    assert asked >= counters.deadlines
    assert sum(len(reading.looks) for reading in sink.readings) > 10
    assert len(sink.readings) < counters.deadlines
    # What came of looks; a hole that a busy machine left is filled with what the engine kept.
    parts = [ticks.values for reading in sink.readings if reading.looks for ticks in reading.ticks if ticks.gpu == 3]
    columns = dict(zip([m.name for m in inventory.metrics], np.concatenate(parts, axis=1), strict=True))
    assert np.nanmax(columns["sm_active"]) == np.nanmin(columns["sm_active"]) == 0.5
    assert np.nanmax(columns["power_watts"]) == np.nanmin(columns["power_watts"]) == 50.0

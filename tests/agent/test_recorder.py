"""``record``: readings into a trace file, finished however the recording ends."""

import math
import threading

import numpy as np
import pytest

from gpusonde.agent import ReplaySource, record
from gpusonde.agent.sources.base import (
    Clocks,
    GpuDescription,
    GpuEventKind,
    GpuTicks,
    Reading,
    SourceEvent,
    SourceInventory,
    SourceStatistics,
    StaticAttribute,
    StaticOrigin,
)
from gpusonde.errors import SourceError
from gpusonde.telemetry import Trace, TraceError, metric, read_trace, read_traces

ORIGIN_NS = 1_700_000_000_250_000_000


def trace(uuid="GPU-1", n=50):
    time_s = np.arange(n) * 0.1
    return Trace(time_s, {"sm_active": np.sin(time_s) ** 2, "power_watts": 100 + time_s}, gpu_uuid=uuid, gpu_model="T4")


class Ticking:
    """Two GPUs, one tick per reading; ``script`` may add events, move the clock or raise."""

    name = "ticking"

    def __init__(self, script=lambda tick: None):
        self.statistics = SourceStatistics()
        self.tick = 0
        self.shift_ns = 0
        self.script = script
        self.closed = False

    def open(self):
        facts = (StaticAttribute("sm_count", 132.0, StaticOrigin.CUDA_DRIVER),)
        gpus = tuple(GpuDescription(f"GPU-{i}", i, "H100", "", 80 << 30, "999", "", facts) for i in (0, 1))
        return SourceInventory("ticking", gpus, (metric("sm_active"),), 0.01)

    def read(self, deadline_s):
        events = self.script(self) or ()
        stamp = ORIGIN_NS + self.tick * 10_000_000 + self.shift_ns
        self.tick += 1
        times = np.array([stamp], dtype=np.int64)
        return Reading(tuple(GpuTicks(g, times, np.full((1, 1), float(self.tick))) for g in (0, 1)), tuple(events))

    def progress(self):
        return None

    def close(self):
        self.closed = True


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_finite_source_is_recorded_to_its_end_and_reads_back_the_same(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    original = [trace("GPU-1"), trace("GPU-2")]
    report = record(ReplaySource(original, speed=math.inf), tmp_path / name, interval_s=0.1, attributes={"job": "test"})
    back = read_traces(tmp_path / name)
    assert report.gpu_uuids == ("GPU-1", "GPU-2")
    assert report.duration_s == pytest.approx(4.9)
    assert report.counters.ticks == 100
    for one, other in zip(original, back, strict=True):
        assert other.gpu_uuid == one.gpu_uuid
        assert other.gpu_model == "T4"
        assert other.attributes["job"] == "test"
        np.testing.assert_allclose(np.diff(other.time_s), np.diff(one.time_s), atol=1e-6)
        for metric_name in one.metrics:
            np.testing.assert_array_equal(other.values[metric_name], one.values[metric_name])


def test_the_file_carries_wall_clock_and_inventory(tmp_path):
    stop = threading.Event()
    source = Ticking(lambda s: stop.set() if s.tick >= 5 else None)
    record(source, tmp_path / "out.csv", interval_s=0.01, stop=stop, clocks=Clocks(wall_ns=lambda: ORIGIN_NS))
    back = read_trace(tmp_path / "out.csv", gpu="GPU-1")
    assert back.origin_unix_s == 1_700_000_000.0
    assert back.time_s[0] == pytest.approx(0.25)
    assert back.gpu_model == "H100"
    assert back.attributes["sm_count"] == "132.0"
    assert back.attributes["memory_bytes"] == str(80 << 30)
    assert back.attributes["source"] == "ticking"
    assert source.closed


def test_a_recording_replays_with_the_figures_of_its_gpu(tmp_path):
    stop = threading.Event()
    record(Ticking(lambda s: stop.set() if s.tick >= 5 else None), tmp_path / "out.csv", interval_s=0.01, stop=stop)
    replay = ReplaySource(read_traces(tmp_path / "out.csv"), speed=math.inf)
    gpu = replay.open().gpus[0]
    replay.close()
    assert gpu.framebuffer_bytes == 80 << 30
    assert {a.name: a.value for a in gpu.static_attributes}["sm_count"] == 132.0


def test_the_recording_ends_after_its_duration(tmp_path):
    clock = {"s": 0.0}

    def monotonic():
        clock["s"] += 0.05
        return clock["s"]

    record(Ticking(), tmp_path / "out.csv", interval_s=0.01, duration_s=1.0, clocks=Clocks(monotonic=monotonic))
    assert clock["s"] < 3.0


def test_ctrl_c_finishes_the_file(tmp_path):
    pressed = threading.Event()

    def interrupt(counters):
        if counters.ticks >= 6 and not pressed.is_set():
            pressed.set()
            raise KeyboardInterrupt

    record(Ticking(), tmp_path / "out.csv", interval_s=0.01, on_progress=interrupt)
    assert len(read_trace(tmp_path / "out.csv", gpu=0)) >= 3


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_clock_step_does_not_bend_the_recording(tmp_path, step_s):
    stop = threading.Event()

    def script(source):
        if source.tick == 5:
            source.shift_ns += step_s * 10**9
            return [SourceEvent(g, 0, GpuEventKind.CLOCK_STEP, step_s * 10**6) for g in (0, 1)]
        if source.tick >= 10:
            stop.set()
        return None

    report = record(
        Ticking(script), tmp_path / "out.csv", interval_s=0.01, stop=stop, clocks=Clocks(wall_ns=lambda: ORIGIN_NS)
    )
    back = read_trace(tmp_path / "out.csv", gpu=0)
    np.testing.assert_allclose(np.diff(back.time_s), 0.01, atol=1e-6)
    assert report.dropped_ticks == 0


def test_ticks_whose_time_does_not_increase_are_left_out_and_counted(tmp_path):
    stop = threading.Event()

    def script(source):
        source.shift_ns = -10_000_000 if source.tick == 5 else 0
        if source.tick >= 10:
            stop.set()

    report = record(Ticking(script), tmp_path / "out.csv", interval_s=0.01, stop=stop)
    assert report.dropped_ticks == 2
    assert len(read_trace(tmp_path / "out.csv", gpu=0)) == report.counters.ticks / 2 - 1


def test_what_was_recorded_before_the_source_failed_is_kept(tmp_path):
    def fail(source):
        if source.tick == 5:
            raise SourceError("driver gone")

    with pytest.raises(SourceError):
        record(Ticking(fail), tmp_path / "out.csv", interval_s=0.01)
    assert len(read_trace(tmp_path / "out.csv", gpu=0)) == 5


def test_an_unusable_name_is_refused_before_anything_is_sampled(tmp_path):
    source = Ticking()
    with pytest.raises(TraceError, match=r"\.csv or \.parquet"):
        record(source, tmp_path / "out.txt")
    assert source.tick == 0
    assert source.closed


def test_a_recording_goes_on_with_its_own_gpus_and_columns_when_others_come(tmp_path, caplog):
    stop = threading.Event()

    class Growing(Ticking):
        def read(self, deadline_s):
            before = super().read(deadline_s)
            if self.tick > 20:
                stop.set()
            if self.tick < 5:
                return before
            ticks = [
                GpuTicks(g, before.ticks[0].time_unix_nano, np.array([[7.0], [self.tick / 10]])) for g in (0, 1, 2)
            ]
            grown = None
            if self.tick == 5:
                gpus = tuple(GpuDescription(f"GPU-{i}", i) for i in (0, 1, 2))
                grown = SourceInventory("ticking", gpus, (metric("power_watts"), metric("sm_active")), 0.01)
            return Reading(tuple(ticks), inventory=grown)

    record(Growing(), tmp_path / "out.csv", interval_s=0.01, stop=stop)
    traces = read_traces(tmp_path / "out.csv")
    assert [trace.gpu_uuid for trace in traces] == ["GPU-0", "GPU-1"]
    values = traces[0].values["sm_active"]
    assert values.tolist()[:12] == [1.0, 2.0, 3.0, 4.0, *(n / 10 for n in range(5, 13))]
    assert "GPU-2" in caplog.text

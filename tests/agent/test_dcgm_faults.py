"""DcgmSource when fields stick, an engine or a GPU goes away, a profiler needs the counters, the clock is set."""

import math

import numpy as np
import pytest

from gpusonde.agent.sources.base import GpuEventKind
from gpusonde.errors import SourceError
from gpusonde.telemetry import MissingReason


def test_a_value_measured_while_the_engine_answers_is_not_lost(dcgm_host):
    dcgm_host.engine.answer_s = 0.0007
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 20.0)
    source.close()
    for name in ("sm_active", "dram_active", "nvlink_rx_bytes_per_second", "power_watts", "gpu_utilization"):
        for gpu in (0, 1):
            assert not any(math.isnan(v) for v in dcgm_host.column(name, gpu)[5:])


def test_a_host_that_stalls_for_seconds_gets_what_the_engine_kept(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.run(source, 4.0, step_s=4.0)
    dcgm_host.run(source, 1.0)
    source.close()
    times = [time_s for time_s, _, _ in dcgm_host.ticks[0]]
    assert np.diff(times) == pytest.approx(0.1, abs=1e-3)
    assert times[-1] - times[0] > 6.0


def test_an_agent_that_looks_once_a_second_gets_every_measurement_and_takes_no_gpu_for_lost(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.run(source, 30.0, step_s=1.0)
    dcgm_host.run(source, 2.0)
    source.close()
    times = [time_s for time_s, _, _ in dcgm_host.ticks[0]]
    assert np.diff(times) == pytest.approx(0.1, abs=1e-3)
    assert times[-1] - times[0] > 33.0
    assert dcgm_host.events == []


def test_stuck_profiling_fields_are_watched_again(dcgm_host, caplog):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    dcgm_host.engine.stuck = {1002, 1005, *range(1001, 1013)}
    dcgm_host.run(source, 6.0)
    source.close()
    column = np.array(dcgm_host.column("sm_active"))
    assert 30 <= np.isnan(column).sum() <= 40
    assert not math.isnan(column[-1])
    assert not any(math.isnan(v) for v in dcgm_host.column("power_watts"))
    assert "gave nothing new: renewing it" in caplog.text
    assert dcgm_host.events == []


def test_profiling_zeros_while_kernels_run_are_blank_and_watched_again(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    dcgm_host.engine.zeros = set(range(1001, 1013))
    dcgm_host.run(source, 9.5)
    assert dcgm_host.engine.zeros
    dcgm_host.run(source, 3.0)
    source.close()
    assert not dcgm_host.engine.zeros
    assert dcgm_host.column("sm_active")[-1] > 0
    assert any(math.isnan(v) for v in dcgm_host.column("dram_active"))


def test_zeros_of_an_idle_gpu_are_zeros(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.engine.zeros = {203, *range(1001, 1013)}
    dcgm_host.run(source, 25.0)
    source.close()
    assert dcgm_host.column("sm_active")[-1] == 0.0
    assert dcgm_host.engine.zeros


def test_a_lost_engine_is_an_event_and_comes_back(dcgm_host, caplog):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.engine.kill()
    dcgm_host.run(source, 12.0)
    before = len(dcgm_host.ticks[0])
    assert [(e.gpu, e.kind) for e in dcgm_host.events] == [(0, GpuEventKind.LOST), (1, GpuEventKind.LOST)]
    dcgm_host.engine.remote = True
    dcgm_host.run(source, 8.0)
    source.close()
    assert [(e.gpu, e.kind) for e in dcgm_host.events[2:]] == [
        (0, GpuEventKind.RECOVERED), (1, GpuEventKind.RECOVERED)
    ]  # fmt: skip
    assert len(dcgm_host.ticks[0]) > before + 20
    time_s, values, _ = dcgm_host.ticks[0][-1]
    assert values["sm_active"] == pytest.approx(0.9 * dcgm_host.engine.mean(0, time_s - 0.1, time_s), abs=1e-4)
    assert sum("trying again" in r.message for r in caplog.records) == 1


def test_an_engine_that_answers_every_call_with_errors_is_connected_to_again(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.engine.refused = {"dcgmGetValuesSince_v2": -3, "dcgmUnwatchFields": -3}
    dcgm_host.run(source, 5.0)
    assert {e.kind for e in dcgm_host.events} == {GpuEventKind.LOST}
    dcgm_host.engine.refused = {}
    dcgm_host.run(source, 8.0)
    source.close()
    assert [e.kind for e in dcgm_host.events] == [GpuEventKind.LOST] * 2 + [GpuEventKind.RECOVERED] * 2
    assert dcgm_host.engine.calls.count("dcgmConnect_v2") == 2
    assert dcgm_host.column("sm_active")[-1] > 0


def test_an_engine_that_stays_away_ends_the_source_when_asked_to(dcgm_host):
    source = dcgm_host.source(patience_s=30.0)
    dcgm_host.open(source)
    dcgm_host.engine.kill()
    with pytest.raises(SourceError, match="systemctl start nvidia-dcgm"):
        dcgm_host.run(source, 60.0)
    source.close()


@pytest.mark.parametrize("how", ["status", "silence"])
def test_a_lost_gpu_is_an_event_and_the_others_go_on(dcgm_host, how):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    gone = dcgm_host.engine.lost if how == "status" else dcgm_host.engine.silent
    gone.add(1)
    dcgm_host.run(source, 10.0)
    others, its = len(dcgm_host.ticks[0]), len(dcgm_host.ticks[1])
    assert 10 <= its <= 12
    assert [(e.gpu, e.kind) for e in dcgm_host.events] == [(1, GpuEventKind.LOST)]
    assert others > its + 40
    gone.clear()
    dcgm_host.run(source, 3.0)
    source.close()
    assert [(e.gpu, e.kind) for e in dcgm_host.events[1:]] == [(1, GpuEventKind.RECOVERED)]
    assert len(dcgm_host.ticks[1]) > its + 20
    assert dcgm_host.ticks[1][-1][1]["sm_active"] > 0


def test_xid_errors_are_events_and_a_counter(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    at_s = dcgm_host.engine.time_s
    dcgm_host.engine.xids = [(1, at_s + 0.1, 79), (1, at_s + 0.2, 79)]
    dcgm_host.run(source, 3.0)
    source.close()
    assert [(e.gpu, e.kind, e.value) for e in dcgm_host.events] == [(1, GpuEventKind.XID, 79)] * 2
    assert dcgm_host.events[0].time_unix_nano == pytest.approx((at_s + 0.1) * 1e9, abs=2000)
    assert (dcgm_host.column("xid_count", 0)[-1], dcgm_host.column("xid_count", 1)[-1]) == (0, 2)


def test_the_counters_are_left_to_a_profiler_while_the_file_exists(dcgm_host, tmp_path):
    pause = tmp_path / "profiling"
    source = dcgm_host.source(profiler_pause_file=str(pause))
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    pause.touch()
    dcgm_host.run(source, 20.0)
    assert dcgm_host.engine.paused
    assert math.isnan(dcgm_host.column("sm_active")[-1])
    assert dcgm_host.ticks[0][-1][2]["sm_active"] is MissingReason.NO_DATA
    assert dcgm_host.column("power_watts")[-1] > 0
    assert dcgm_host.engine.calls.count("profiling watch") == 1
    pause.unlink()
    dcgm_host.run(source, 2.0)
    source.close()
    assert not dcgm_host.engine.paused
    assert dcgm_host.column("sm_active")[-1] > 0


def test_an_agent_that_ends_does_not_resume_over_a_profiler(dcgm_host, tmp_path, caplog):
    pause = tmp_path / "profiling"
    pause.touch()
    source = dcgm_host.source(profiler_pause_file=str(pause))
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    source.close()
    assert dcgm_host.engine.paused
    assert "dcgmi profile --resume" in caplog.text


def test_a_clock_that_is_set_back_does_not_stop_the_values(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    for connection in dcgm_host.engine.connections:
        for watch in connection.watches.values():
            watch.start_s -= 3600.0
    dcgm_host.engine.time_s -= 3600.0
    before = len(dcgm_host.ticks[0])
    dcgm_host.run(source, 3.0)
    source.close()
    assert len(dcgm_host.ticks[0]) > before + 20
    assert dcgm_host.ticks[0][-1][0] == pytest.approx(dcgm_host.engine.time_s, abs=0.3)


def test_an_error_in_the_callback_is_not_swallowed(dcgm_host, monkeypatch):
    source = dcgm_host.source()
    dcgm_host.open(source)
    monkeypatch.setattr("gpusonde.agent.sources.dcgm.watch.read_number", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dcgm_host.run(source, 0.3)
    source.close()

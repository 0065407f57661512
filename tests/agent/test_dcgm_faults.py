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
    dcgm_host.engine.refused = {"dcgmEntitiesGetLatestValues": -3, "dcgmGetValuesSince_v2": -3, "dcgmUnwatchFields": -3}
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
    # One that is listed without a name is looked for every slow interval.
    dcgm_host.run(source, 13.0)
    source.close()
    assert [(e.gpu, e.kind) for e in dcgm_host.events[1:]] == [(1, GpuEventKind.RECOVERED)]
    assert len(dcgm_host.ticks[1]) > its + 20
    assert dcgm_host.ticks[1][-1][1]["sm_active"] > 0


def holes(host, gpu):
    """Steps between ticks that are no interval, and blanks of what is measured every tick."""
    ticks = host.ticks[gpu]
    steps = np.diff([time_s for time_s, _, _ in ticks])
    names = ("sm_active", "dram_active", "power_watts", "gpu_utilization", "framebuffer_used_bytes")
    blanks = [name for _, values, _ in ticks[3:] for name in names if math.isnan(values[name])]
    return [step for step in steps if abs(step - 0.1) > 2e-3], blanks


@pytest.mark.parametrize("names_lost", [False, True])
@pytest.mark.parametrize("refused_at", ["watch", "group"])
def test_one_lost_gpu_of_eight_takes_nothing_from_the_others_and_comes_back(dcgm_host, refused_at, names_lost):
    engine = dcgm_host.engine
    engine.gpus, engine.refuses_lost_at, engine.names_lost = 8, refused_at, names_lost
    engine.level = lambda gpu, seconds: 0.5
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 5.0)
    engine.lost = {3}
    dcgm_host.run(source, 35.0)
    assert [(e.gpu, e.kind) for e in dcgm_host.events] == [(3, GpuEventKind.LOST)]
    its = len(dcgm_host.ticks[3])
    engine.lost = set()
    dcgm_host.run(source, 11.0)
    source.close()
    assert [(e.gpu, e.kind) for e in dcgm_host.events[1:]] == [(3, GpuEventKind.RECOVERED)]
    assert len(dcgm_host.ticks[3]) > its
    for gpu in set(range(8)) - {3}:
        assert holes(dcgm_host, gpu) == ([], [])
        assert len(dcgm_host.ticks[gpu]) == pytest.approx(510, abs=5)
    assert (source.statistics.reconnects, source.statistics.inventories) == (0, 0)


@pytest.mark.parametrize("refused_at", ["watch", "group"])
def test_a_host_starts_with_a_lost_gpu_which_joins_when_it_is_healed(dcgm_host, refused_at, caplog):
    engine = dcgm_host.engine
    engine.gpus, engine.refuses_lost_at, engine.lost = 8, refused_at, {5}
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 25.0)
    assert len(dcgm_host.keys()) == 7
    assert sum("GPU 5 cannot be sampled" in record.getMessage() for record in caplog.records) == 1
    engine.lost = set()
    dcgm_host.run(source, 11.0)
    source.close()
    assert dcgm_host.keys()[7] == engine.uuid(5)
    assert dcgm_host.column("power_watts", 7)[-1] > 0
    for gpu in range(7):
        assert holes(dcgm_host, gpu) == ([], [])
    assert dcgm_host.events == []


def test_a_stuck_watch_that_holds_a_lost_gpu_is_no_lost_engine(dcgm_host):
    dcgm_host.engine.gpus = 3
    source = dcgm_host.source(slow_interval_s=60.0)
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    dcgm_host.engine.silent, dcgm_host.engine.lost = {0, 1, 2}, {1}
    dcgm_host.run(source, 4.0)
    dcgm_host.engine.silent = set()
    dcgm_host.run(source, 4.0)
    source.close()
    assert [(e.gpu, e.kind) for e in dcgm_host.events] == [(1, GpuEventKind.LOST)]
    assert dcgm_host.column("sm_active", 2)[-1] > 0
    assert source.statistics.reconnects == 0


def test_eight_gpus_cost_one_request_a_tick_and_no_tick_is_missing(dcgm_host):
    dcgm_host.engine.gpus = 8
    source = dcgm_host.source()
    dcgm_host.open(source)
    before = dcgm_host.engine.requests
    dcgm_host.run(source, 30.0)
    source.close()
    assert dcgm_host.engine.requests - before == 300
    for gpu in range(8):
        assert holes(dcgm_host, gpu) == ([], [])
        assert len(dcgm_host.ticks[gpu]) == pytest.approx(300, abs=3)


@pytest.mark.parametrize("lag_s", [0.0, 0.05, 0.18])
def test_an_engine_of_its_own_pace_costs_one_request_a_tick_and_no_history(dcgm_host, lag_s):
    engine = dcgm_host.engine
    # As a real one was seen to do: 100.11 ms for 100, most of them within 10 ms.
    engine.gpus, engine.drift, engine.jitter_s, engine.lag_s = 4, 0.0011, 0.01, lag_s
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 15.0)
    dcgm_host.ticks.clear()
    before = engine.requests
    dcgm_host.run(source, 200.0)
    source.close()
    assert engine.requests - before == 2000
    for gpu in range(4):
        steps = np.diff([time_s for time_s, _, _ in dcgm_host.ticks[gpu]])
        assert np.abs(steps - 0.1).max() < 0.01
        assert len(dcgm_host.ticks[gpu]) == pytest.approx(2000 / 1.0011, abs=4)
        assert holes(dcgm_host, gpu)[1] == []


@pytest.mark.parametrize("status", [0, -14])
def test_a_value_that_is_none_amid_good_ones_is_blank_with_its_reason_and_takes_no_other(dcgm_host, status):
    engine = dcgm_host.engine
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 3.3)
    engine.blanks[1, 1005] = status or "not supported"
    dcgm_host.run(source, 0.2)
    engine.blanks.clear()
    dcgm_host.run(source, 3.0)
    source.close()
    blank = [blanks for _, values, blanks in dcgm_host.ticks[1] if math.isnan(values["dram_active"])]
    reason = MissingReason.NO_DATA if status else MissingReason.NOT_SUPPORTED
    assert [blanks["dram_active"] for blanks in blank] == [reason] * 2
    assert holes(dcgm_host, 0) == ([], [])
    assert set(holes(dcgm_host, 1)[1]) == {"dram_active"}


def test_what_the_engine_measured_between_two_looks_is_fetched_alone(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 5.0)
    before = dcgm_host.engine.requests
    # One look is late by half an interval and sees the second of two values of either GPU's nineteen fields or so.
    dcgm_host.run(source, 0.16, step_s=0.16)
    dcgm_host.run(source, 0.04, step_s=0.04)
    dcgm_host.run(source, 5.0)
    source.close()
    assert dcgm_host.engine.requests - before < 52 + 2 * 40
    for gpu in (0, 1):
        assert holes(dcgm_host, gpu) == ([], [])


def test_an_engine_that_does_not_keep_its_pace_is_not_asked_for_holes_all_the_time(dcgm_host):
    dcgm_host.engine.drift = 0.8
    source = dcgm_host.source()
    dcgm_host.open(source)
    before = dcgm_host.engine.requests
    dcgm_host.run(source, 120.0)
    source.close()
    assert dcgm_host.engine.requests - before < 1200 + 10 * 44
    assert not math.isnan(np.nanmax(dcgm_host.column("sm_active")))


def test_a_host_that_is_late_again_and_again_does_not_pay_for_it_in_history(dcgm_host):
    dcgm_host.engine.gpus = 8
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    before = dcgm_host.engine.requests
    for _ in range(100):
        dcgm_host.run(source, 0.4)
        dcgm_host.run(source, 0.2, step_s=0.2)
    source.close()
    looks, seconds = 100 * 5, 60
    assert dcgm_host.engine.requests - before <= looks + 15 * seconds + 400
    blank = [time_s for time_s, values, _ in dcgm_host.ticks[0] if math.isnan(values["power_watts"])]
    assert 0 < len(blank) < 100
    assert dcgm_host.events == []


def test_an_idle_host_that_is_looked_at_rarely_costs_a_request_a_look(dcgm_host):
    engine = dcgm_host.engine
    engine.level = lambda gpu, seconds: 0.0
    engine.mean = lambda gpu, start_s, end_s: 0.0 if start_s < 1_700_000_062 else 0.5
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.run(source, 3.0, step_s=1.0)
    before, ticks = engine.requests, len(dcgm_host.ticks[0])
    dcgm_host.run(source, 50.0, step_s=1.0)
    assert engine.requests - before == 50
    assert len(dcgm_host.ticks[0]) == pytest.approx(ticks + 50, abs=1)
    assert holes(dcgm_host, 0)[1] == []
    # Work begins: the second in which it did is fetched whole.
    dcgm_host.run(source, 10.0, step_s=1.0)
    source.close()
    times = [time_s for time_s, values, _ in dcgm_host.ticks[0] if values["sm_active"] > 0]
    assert times[0] == pytest.approx(1_700_000_062, abs=0.2)
    assert np.diff(times) == pytest.approx(0.1, abs=2e-3)


def test_what_the_adaptive_rate_leaves_out_is_not_fetched_although_a_gpu_works(dcgm_host):
    source = dcgm_host.source(rate="adaptive")
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.run(source, 3.0, step_s=1.0)
    before, ticks = dcgm_host.engine.requests, len(dcgm_host.ticks[0])
    dcgm_host.run(source, 50.0, step_s=1.0)
    source.close()
    assert dcgm_host.engine.requests - before == 50
    assert len(dcgm_host.ticks[0]) == pytest.approx(ticks + 50, abs=1)


@pytest.mark.parametrize("when", ["from the start", "later"])
def test_a_power_of_zero_is_no_measurement(dcgm_host, when):
    if when == "from the start":
        dcgm_host.engine.inner_unsupported = {157}
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.engine.inner_unsupported = {157}
    dcgm_host.run(source, 5.0)
    source.close()
    assert min(dcgm_host.column("power_watts")) > 0
    for time_s, values, _ in dcgm_host.ticks[0][-40:]:
        assert values["power_watts"] == pytest.approx(50 + 600 * dcgm_host.engine.level(0, time_s), abs=0.01)


@pytest.mark.parametrize("when", ["from the start", "later"])
def test_a_memory_of_zero_degrees_has_no_sensor(dcgm_host, when):
    name = "memory_temperature_celsius"
    if when == "from the start":
        dcgm_host.engine.inner_unsupported = {140}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    if when == "from the start":
        assert inventory.gpus[0].missing_metrics[name] is MissingReason.NOT_SUPPORTED
        assert name not in dcgm_host.names
    else:
        dcgm_host.engine.inner_unsupported = {140}
        dcgm_host.run(source, 60.0, step_s=0.5)
        assert 0.0 not in dcgm_host.column(name)
        assert dcgm_host.ticks[0][-1][2][name] is MissingReason.NOT_SUPPORTED
    source.close()


def test_slow_metrics_are_held_over_a_field_without_news_and_end_when_it_lasts(dcgm_host):
    engine = dcgm_host.engine
    engine.gpus = 8
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 30.0)
    slow = ("bar1_free_bytes", "memory_clock_mhz", "pcie_replay_count", "gpu_temperature_celsius", "energy_joules")
    for gpu in range(8):
        for name in slow:
            assert not any(math.isnan(value) for value in dcgm_host.column(name, gpu)[1:])
    engine.blanks = {(0, 150): -14}
    dcgm_host.run(source, 18.0)
    assert not math.isnan(dcgm_host.column("gpu_temperature_celsius")[-1])
    dcgm_host.run(source, 25.0)
    source.close()
    assert math.isnan(dcgm_host.column("gpu_temperature_celsius")[-1])
    assert dcgm_host.ticks[0][-1][2]["gpu_temperature_celsius"] is MissingReason.NO_DATA


def test_an_outage_is_no_zero_of_a_working_gpu(dcgm_host, caplog):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.engine.kill()
    dcgm_host.run(source, 20.0)
    dcgm_host.engine.remote = True
    dcgm_host.run(source, 8.0)
    dcgm_host.engine.lost = {1}
    dcgm_host.run(source, 20.0)
    dcgm_host.engine.lost = set()
    dcgm_host.run(source, 20.0)
    source.close()
    assert "says zero although" not in caplog.text
    assert source.statistics.suspect_ticks == 0


def test_an_engine_that_cannot_pause_is_told_once(dcgm_host, tmp_path, caplog):
    pause = tmp_path / "profiling"
    dcgm_host.engine.refused = {"dcgmProfPause": -6}
    source = dcgm_host.source(profiler_pause_file=str(pause))
    dcgm_host.open(source)
    pause.touch()
    dcgm_host.run(source, 12.0)
    source.close()
    said = [record.getMessage() for record in caplog.records if "pausing" in record.getMessage()]
    assert len(said) == 1
    assert "no pause is needed" in said[0]
    assert dcgm_host.column("sm_active")[-1] > 0


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


def test_what_a_pause_takes_does_not_count_as_missing(dcgm_host, tmp_path):
    pause = tmp_path / "profiling"
    pause.touch()
    dcgm_host.engine.paused = True
    source = dcgm_host.source(profiler_pause_file=str(pause))
    inventory = dcgm_host.open(source)
    dcgm_host.run(source, 60.0)
    assert dcgm_host.inventory is inventory
    pause.unlink()
    dcgm_host.run(source, 2.0)
    source.close()
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
    dcgm_host.engine.set_clock(-3600.0)
    before = len(dcgm_host.ticks[0])
    dcgm_host.run(source, 3.0)
    source.close()
    assert len(dcgm_host.ticks[0]) > before + 20
    assert dcgm_host.ticks[0][-1][0] == pytest.approx(dcgm_host.engine.time_s, abs=0.3)


def test_an_error_in_the_callback_is_not_swallowed(dcgm_host, monkeypatch):
    source = dcgm_host.source()
    dcgm_host.open(source)
    monkeypatch.setattr("gpusonde.agent.sources.dcgm.watch.read_number", lambda *_: 1 / 0)
    dcgm_host.run(source, 0.2)
    with pytest.raises(ZeroDivisionError):
        dcgm_host.run(source, 1.4, step_s=0.7)
    source.close()

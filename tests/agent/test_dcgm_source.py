"""DcgmSource over a stand-in for DCGM whose waveform has a known integral."""

import logging
import math

import numpy as np
import pytest
from support.dcgm_agent_host import BINDINGS, forget_bindings, no_nvml
from support.fake_dcgm.engine import TURING, LiveEngine, install

from gpusonde.agent import record
from gpusonde.agent.sources.base import GpuEventKind, SourceFailedError, SourceUnavailableError, StaticOrigin
from gpusonde.agent.sources.dcgm.bindings import load_bindings
from gpusonde.agent.sources.dcgm.source import DcgmSource
from gpusonde.telemetry import METRICS, BlankReason, read_traces


def test_profiling_values_have_the_true_integral(dcgm_host_of_each_version):
    host = dcgm_host_of_each_version
    source = host.source()
    inventory = host.open(source)
    host.run(source, 30.0)
    source.close()
    assert inventory.source == "dcgm"
    for gpu in (0, 1):
        ticks = host.ticks[gpu][5:]
        times = np.array([time_s for time_s, _, _ in ticks])
        values = np.array([v["sm_active"] for _, v, _ in ticks])
        assert np.diff(times) == pytest.approx(0.1, abs=1e-4)
        true = 0.9 * host.engine.mean(gpu, times[0] - 0.1, times[-1])
        assert values.mean() == pytest.approx(true, rel=1e-4)
        for time_s, row, _ in ticks:
            mean = host.engine.mean(gpu, time_s - 0.1, time_s)
            assert row["graphics_active"] == pytest.approx(mean, abs=1e-4)
            assert row["pcie_rx_bytes_per_second"] == pytest.approx(2e9 * mean, rel=1e-3)


def test_every_measurement_becomes_one_tick_whatever_the_lag_the_jitter_and_the_phases(dcgm_host):
    engine = dcgm_host.engine
    engine.lag_s, engine.jitter_s, engine.profiling_phase_s, engine.drift = 0.3, 0.02, 0.05, 2e-4
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 60.0)
    source.close()
    ticks = dcgm_host.ticks[0][5:]
    times = np.diff([time_s for time_s, _, _ in ticks])
    assert len(ticks) == pytest.approx(600, abs=12)
    assert times.min() > 0.09
    assert times.max() < 0.11
    for name in ("sm_active", "power_watts"):
        assert not any(math.isnan(v) for v in dcgm_host.column(name)[5:])


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


def test_plain_metrics_are_in_the_catalogue_s_units(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    source.close()
    time_s, values, _ = dcgm_host.ticks[1][-1]
    level = dcgm_host.engine.level(1, time_s)
    assert values["gpu_utilization"] == pytest.approx(level, abs=0.011)
    assert values["power_watts"] == pytest.approx(100 + 600 * level, abs=0.01)
    assert values["framebuffer_used_bytes"] == pytest.approx(40960 * level * 2**20, rel=1e-3)
    assert values["memory_clock_mhz"] == 2619
    assert values["bar1_free_bytes"] == 1000 * 2**20
    assert values["energy_joules"] > 0
    assert values["xid_count"] == 0


def test_what_no_field_gives_is_told_as_missing(dcgm_host):
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    source.close()
    names = {m.name for m in inventory.metrics}
    assert names | set(inventory.gpus[0].missing_metrics) == {m.name for m in METRICS}


@pytest.mark.parametrize(
    ("blank", "reason"),
    [
        ("not supported", BlankReason.NOT_SUPPORTED),
        ("no permission", BlankReason.NO_PERMISSION),
        ("not found", BlankReason.NOT_FOUND),
        (-6, BlankReason.NOT_SUPPORTED),
        (-29, BlankReason.NO_PERMISSION),
    ],
)
@pytest.mark.parametrize(("field", "name"), [(1005, "dram_active"), (140, "memory_temperature_celsius")])
def test_a_sentinel_that_lasts_is_a_missing_metric_with_its_reason(dcgm_host, field, name, blank, reason):
    dcgm_host.engine.blanks = {(0, field): blank}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    assert inventory.gpus[0].missing_metrics[name] is reason
    assert name not in inventory.gpus[1].missing_metrics
    dcgm_host.run(source, 1.0)
    source.close()
    _, values, blanks = dcgm_host.ticks[0][-1]
    assert math.isnan(values[name])
    assert blanks[name] is reason
    assert dcgm_host.ticks[1][-1][1][name] > 0


def test_a_sentinel_for_a_while_is_blank_and_no_number(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    dcgm_host.engine.blanks = {(0, 1002): "blank", (0, 203): -15}
    dcgm_host.run(source, 1.0)
    dcgm_host.engine.blanks = {}
    dcgm_host.run(source, 1.0)
    source.close()
    for name in ("sm_active", "gpu_utilization"):
        column = np.array(dcgm_host.column(name))
        assert np.isnan(column).sum() == 10
        assert np.nanmax(column) < 1.0
        reasons = {blanks.get(name) for _, values, blanks in dcgm_host.ticks[0] if math.isnan(values[name])}
        assert reasons == {BlankReason.NO_DATA}
        assert not math.isnan(column[-1])


def test_an_impossible_value_is_blank(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.engine._plain = lambda gpu, field, at_s: 1e9
    dcgm_host.run(source, 1.0)
    source.close()
    _, values, blanks = dcgm_host.ticks[0][-1]
    assert math.isnan(values["gpu_utilization"])
    assert blanks["gpu_utilization"] is BlankReason.OUT_OF_RANGE


def test_metrics_that_take_turns_are_marked(dcgm_host):
    dcgm_host.engine.groups = {0: TURING, 1: TURING}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    source.close()
    assert inventory.multiplexed == {
        "sm_active", "sm_occupancy", "tensor_active", "fp32_active", "fp64_active", "fp16_active"
    }  # fmt: skip
    assert not inventory.gpus[0].missing_metrics.keys() & {"dram_active", "sm_active", "fp64_active"}


def test_an_engine_that_does_not_take_turns_gives_one_pass(dcgm_host):
    dcgm_host.engine.groups = {0: TURING, 1: TURING}
    dcgm_host.engine.max_passes = 1
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    source.close()
    assert inventory.multiplexed == frozenset()
    assert {"sm_active", "tensor_active", "dram_active"} <= {m.name for m in inventory.metrics}
    assert inventory.gpus[0].missing_metrics["fp64_active"] is BlankReason.NOT_SUPPORTED


def test_gpu_models_of_one_host_are_watched_apart(dcgm_host):
    a10 = tuple(group for group in TURING if group[2] != (1006,))
    dcgm_host.engine.groups = {0: a10}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    source.close()
    assert inventory.gpus[0].missing_metrics["fp64_active"] is BlankReason.NOT_SUPPORTED
    assert dcgm_host.ticks[1][-1][1]["fp64_active"] == 0.0
    assert dcgm_host.ticks[0][-1][1]["sm_active"] > 0


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (-33, BlankReason.NOT_SUPPORTED, "datacenter-gpu-manager-4-proprietary"),
        (-29, BlankReason.NO_PERMISSION, "run the host engine as root"),
        (-17, BlankReason.NO_PERMISSION, "NVreg_RestrictProfilingToAdminUsers"),
        (-36, BlankReason.NOT_SUPPORTED, "has no profiling metrics"),
    ],
)
@pytest.mark.parametrize("function", ["dcgmProfGetSupportedMetricGroups", "profiling watch"])
def test_refused_profiling_leaves_the_plain_metrics_and_says_what_to_do(dcgm_host, function, code, reason, advice):
    dcgm_host.engine.refused = {function: code}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    refusals = " ".join(source.refusals)
    dcgm_host.run(source, 1.0)
    source.close()
    assert advice in refusals
    assert inventory.gpus[0].missing_metrics["sm_active"] is reason
    assert dcgm_host.ticks[0][-1][1]["power_watts"] > 0


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
    with pytest.raises(SourceFailedError, match="systemctl start nvidia-dcgm"):
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


def test_a_recording_holds_the_waveform(tmp_path):
    """The source behind the real sampler, on the real clock."""
    engine = LiveEngine(period_s=1.0)
    install(engine)
    source = DcgmSource(bindings_folder=str(BINDINGS), load_nvml=no_nvml, cuda_attributes=dict)
    try:
        report = record(source, tmp_path / "trace.csv", duration_s=2.5)
    finally:
        forget_bindings()
    assert report.counters.ticks >= 30
    trace = read_traces(tmp_path / "trace.csv")[0]
    assert np.diff(trace.time_s) == pytest.approx(0.1, abs=1e-3)
    # The profiling watch begins a little after the other one, so the first ticks may lack its values.
    for time_s, value in zip(trace.time_s[2:], trace.values["sm_active"][2:], strict=True):
        end_s = trace.origin_unix_s + time_s
        assert value == pytest.approx(0.9 * engine.mean(0, end_s - 0.1, end_s), abs=0.01)
    assert engine.connections == []


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
    source = dcgm_host.source(pause_file=str(pause))
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    pause.touch()
    dcgm_host.run(source, 20.0)
    assert dcgm_host.engine.paused
    assert math.isnan(dcgm_host.column("sm_active")[-1])
    assert dcgm_host.ticks[0][-1][2]["sm_active"] is BlankReason.NO_DATA
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
    source = dcgm_host.source(pause_file=str(pause))
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


def test_the_engine_keeps_little(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    (connection,) = dcgm_host.engine.connections
    fast = [w for w in connection.watches.values() if w.interval_s == pytest.approx(0.1)]
    assert {w.keep_s for w in fast} == {10.0}
    assert all(w.keep_s >= 2 * w.interval_s for w in connection.watches.values())
    assert max(w.keep_s for w in connection.watches.values()) <= 30.0
    source.close()


def test_a_remote_engine_is_preferred_to_an_embedded_one(dcgm_host):
    source = dcgm_host.source(address="10.0.0.7:5555")
    dcgm_host.open(source)
    assert source.engine_address == "10.0.0.7:5555"
    source.close()
    dcgm_host.engine.remote = False
    source = dcgm_host.source()
    dcgm_host.open(source)
    assert source.engine_address == "embedded"
    source.close()


def test_without_any_engine_the_error_says_what_each_one_answered(dcgm_host):
    dcgm_host.engine.remote = dcgm_host.engine.embeddable = False
    with pytest.raises(SourceUnavailableError) as caught:
        dcgm_host.source().open()
    assert "127.0.0.1:5555" in str(caught.value)
    assert "systemctl start nvidia-dcgm" in str(caught.value)
    assert "embedded" in str(caught.value)
    with pytest.raises(SourceUnavailableError) as caught:
        dcgm_host.source(embedded=False).open()
    assert "embedded" not in str(caught.value)


def test_an_engine_without_gpus_is_told_what_to_check(dcgm_host):
    dcgm_host.engine.gpus = 0
    with pytest.raises(SourceUnavailableError, match="dcgmi discovery -l"):
        dcgm_host.source().open()
    assert dcgm_host.engine.connections == []


def test_the_inventory_names_the_board_from_the_engine_where_nvml_is_not(dcgm_host_of_each_version):
    host = dcgm_host_of_each_version
    source = host.source(cuda_attributes=lambda: {host.engine.uuid(0): {"sm_count": 132.0}})
    first, second = host.open(source).gpus
    source.close()
    figures = {a.name: (a.value, a.origin) for a in first.static_attributes}
    assert (first.gpu_uuid, first.product_name) == (host.engine.uuid(0), "NVIDIA Fake 80GB HBM3")
    assert (first.driver_version, second.driver_version) == ("999.1", "")
    assert first.framebuffer_bytes == 80 << 30
    assert figures["power_limit_watts"] == (700.0, StaticOrigin.DCGM)
    assert source.library_version == {3: "3.3.9", 4: "4.4.2"}[host.engine.version]
    assert figures["sm_count"] == (132.0, StaticOrigin.CUDA_DRIVER)
    assert "default_power_limit_watts" not in figures


def test_closing_gives_everything_back(dcgm_host):
    source = dcgm_host.source()
    source.close()
    dcgm_host.open(source)
    (connection,) = dcgm_host.engine.connections
    assert len(connection.watches) == 4
    source.close()
    source.close()
    assert (connection.watches, connection.groups, connection.field_groups) == ({}, {}, {})
    assert dcgm_host.engine.connections == []


def test_an_error_in_the_callback_is_not_swallowed(dcgm_host, monkeypatch):
    source = dcgm_host.source()
    dcgm_host.open(source)
    monkeypatch.setattr("gpusonde.agent.sources.dcgm.watch.read_value", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dcgm_host.run(source, 0.3)
    source.close()


def test_the_bindings_are_found_where_the_packages_put_them_and_each_refusal_is_told(dcgm_host, tmp_path):
    nowhere = tmp_path / "v4"
    found = load_bindings("", installed=(nowhere, BINDINGS))
    assert found.folder == str(BINDINGS)
    assert found.library_version == "4.4.2"


def test_missing_bindings_and_a_missing_library_are_told_apart(dcgm_host, tmp_path):
    with pytest.raises(SourceUnavailableError, match=r"no pydcgm\.py.*source\.dcgm_bindings"):
        load_bindings(str(tmp_path))
    dcgm_host.engine.library = False
    with pytest.raises(SourceUnavailableError, match="the libdcgm of the same major version is not installed"):
        load_bindings("", installed=(BINDINGS,))
    dcgm_host.engine.library = True
    assert load_bindings("", installed=(BINDINGS,)).folder == str(BINDINGS)


def test_bindings_that_are_too_old_are_refused(dcgm_host, monkeypatch):
    agent = load_bindings(str(BINDINGS)).agent
    monkeypatch.delattr(agent, "dcgmGetValuesSince_v2")
    with pytest.raises(SourceUnavailableError, match="older than DCGM 3"):
        load_bindings(str(BINDINGS))


def test_nothing_is_logged_as_an_error_while_all_is_well(dcgm_host, caplog):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 30.0)
    source.close()
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []

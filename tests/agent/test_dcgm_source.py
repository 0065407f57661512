"""DcgmSource over a stand-in for DCGM whose waveform has a known integral."""

import logging
import math

import numpy as np
import pytest
from support.dcgm_agent_host import BINDINGS, forget_bindings, no_nvml
from support.fake_dcgm.engine import TURING, LiveEngine, install

from gpusonde.agent import record
from gpusonde.agent.config import SourceConfig
from gpusonde.agent.sources.base import StaticOrigin
from gpusonde.agent.sources.dcgm.source import DcgmSource, HostProbes
from gpusonde.agent.sources.dcgm.values import number_words
from gpusonde.telemetry import METRICS, MissingReason, read_traces


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
        ("not supported", MissingReason.NOT_SUPPORTED),
        ("no permission", MissingReason.NO_PERMISSION),
        ("not found", MissingReason.NOT_FOUND),
        (-6, MissingReason.NOT_SUPPORTED),
        (-29, MissingReason.NO_PERMISSION),
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


@pytest.mark.parametrize(("field", "name"), [(1011, "nvlink_tx_bytes_per_second"), (150, "gpu_temperature_celsius")])
def test_a_metric_without_any_number_counts_as_missing_until_there_is_one(dcgm_host, field, name):
    dcgm_host.engine.blanks = {(1, field): "blank"}
    source = dcgm_host.source(slow_interval_s=5.0)
    dcgm_host.open(source)

    def missing():
        return [gpu.missing_metrics.get(name) for gpu in dcgm_host.inventory.gpus]

    dcgm_host.run(source, 29.0)
    assert missing() == [None, None]
    dcgm_host.run(source, 8.0)
    assert missing() == [None, MissingReason.NO_DATA]
    dcgm_host.engine.blanks = {(0, field): "blank"}
    dcgm_host.run(source, 12.0)
    assert missing() == [None, None]
    dcgm_host.run(source, 60.0)
    source.close()
    assert missing() == [None, None]
    assert source.statistics.inventories == 2
    assert not dcgm_host.events
    for gpu in (0, 1):
        assert np.diff([time_s for time_s, _, _ in dcgm_host.ticks[gpu]]).max() < 0.15
        assert not np.isnan(dcgm_host.column("gpu_utilization", gpu)).any()
    assert not math.isnan(dcgm_host.column(name, 1)[-1])


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
        assert reasons == {MissingReason.NO_DATA}
        assert not math.isnan(column[-1])


def test_an_impossible_value_is_blank(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.engine._plain = lambda gpu, field, at_s: 1e9
    dcgm_host.run(source, 1.0)
    source.close()
    _, values, blanks = dcgm_host.ticks[0][-1]
    assert math.isnan(values["gpu_utilization"])
    assert blanks["gpu_utilization"] is MissingReason.OUT_OF_RANGE


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
    assert inventory.gpus[0].missing_metrics["fp64_active"] is MissingReason.NOT_SUPPORTED


def test_gpu_models_of_one_host_are_watched_apart(dcgm_host):
    a10 = tuple(group for group in TURING if group[2] != (1006,))
    dcgm_host.engine.groups = {0: a10}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    source.close()
    assert inventory.gpus[0].missing_metrics["fp64_active"] is MissingReason.NOT_SUPPORTED
    assert dcgm_host.ticks[1][-1][1]["fp64_active"] == 0.0
    assert dcgm_host.ticks[0][-1][1]["sm_active"] > 0


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (-33, MissingReason.NOT_SUPPORTED, "datacenter-gpu-manager-4-proprietary"),
        (-29, MissingReason.NO_PERMISSION, "run the host engine as root"),
        (-17, MissingReason.NO_PERMISSION, "NVreg_RestrictProfilingToAdminUsers"),
        (-36, MissingReason.NOT_SUPPORTED, "has no profiling metrics"),
    ],
)
@pytest.mark.parametrize("function", ["dcgmProfGetSupportedMetricGroups", "profiling watch"])
def test_refused_profiling_leaves_the_plain_metrics_and_says_what_to_do(dcgm_host, function, code, reason, advice):
    dcgm_host.engine.refused = {function: code, "profiling watch": code}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    refusals = " ".join(source.refusals)
    dcgm_host.run(source, 1.0)
    source.close()
    assert advice in refusals
    assert inventory.gpus[0].missing_metrics["sm_active"] is reason
    assert dcgm_host.ticks[0][-1][1]["power_watts"] > 0


def test_a_recording_holds_the_waveform(tmp_path):
    """The source behind the real sampler, on the real clock."""
    engine = LiveEngine(period_s=1.0)
    install(engine)
    source = DcgmSource(
        SourceConfig(dcgm_bindings=str(BINDINGS)), probes=HostProbes(load_nvml=no_nvml, cuda_attributes=dict)
    )
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
        # The two watches begin some milliseconds apart, and keep that phase.
        assert value == pytest.approx(0.9 * engine.mean(0, end_s - 0.1, end_s), abs=0.05)
    assert engine.connections == []


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


def test_nothing_is_logged_as_an_error_while_all_is_well(dcgm_host, caplog):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 30.0)
    source.close()
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_power_is_the_instant_value_where_the_engine_knows_it(dcgm_host):
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    source.close()
    for time_s, values, _ in dcgm_host.ticks[0][3:]:
        assert values["power_watts"] == pytest.approx(100 + 600 * dcgm_host.engine.level(0, time_s), abs=0.01)


@pytest.mark.parametrize("how", ["unknown field", "no value"])
def test_power_is_the_driver_s_average_where_the_instant_value_is_not(dcgm_host, how):
    if how == "unknown field":
        dcgm_host.engine.instant_power = False
    else:
        dcgm_host.engine.blanks = {(0, 157): "not supported", (1, 157): "not supported"}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    source.close()
    assert "power_watts" not in inventory.gpus[0].missing_metrics
    time_s, values, _ = dcgm_host.ticks[0][-1]
    assert values["power_watts"] == pytest.approx(50 + 600 * dcgm_host.engine.level(0, time_s), abs=0.01)


def test_one_profiling_field_that_a_board_lacks_does_not_take_the_others_with_it(dcgm_host):
    """The engine refuses a whole watch for it, though its metric groups list the field (no NVLink on this board)."""
    dcgm_host.engine.lacking = {0: {1011, 1012}, 1: {1011, 1012}}
    source = dcgm_host.source()
    inventory = dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    source.close()
    assert inventory.gpus[0].missing_metrics["nvlink_tx_bytes_per_second"] is MissingReason.NOT_SUPPORTED
    _, values, _ = dcgm_host.ticks[0][-1]
    assert values["sm_active"] > 0
    assert values["pcie_rx_bytes_per_second"] > 0


def test_an_engine_without_the_profiling_module_may_still_profile(dcgm_host):
    """From Hopper on it reads GPM itself; only the question for metric groups needs the module."""
    dcgm_host.engine.refused = {"dcgmProfGetSupportedMetricGroups": -33}
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    source.close()
    assert dcgm_host.ticks[0][-1][1]["sm_active"] > 0
    assert source.refusals == ()


def test_the_lag_of_the_engine_is_measured(dcgm_host):
    dcgm_host.engine.lag_s = 0.37
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 3.0)
    source.close()
    assert 0.36 <= source.statistics.lag_s <= 0.48


def test_words_that_are_numbers_are_those_that_decode_to_one():
    types = np.array([[ord("d"), ord("d"), ord("i"), ord("i"), ord("i")]], dtype=np.int16)
    least = np.array([0.0, math.nextafter(0.0, 1.0), 0.0, math.nextafter(0.0, 1.0), 0.0])
    most = np.array([1.0, math.inf, 100.0, 250.0, math.inf])
    low, high = number_words(types, least, most)
    blanks = {"d": 140737488355328.0, "i": 0x7FFFFFFFFFFFFFF0}
    doubles = np.array([-1.0, 0.0, 1e-300, 1.0, 1.0000001, 400.0, 1e14, blanks["d"], blanks["d"] + 1])
    whole = np.array([-1, 0, 1, 100, 101, 250, 251, 1 << 60, blanks["i"] - 1, blanks["i"], blanks["i"] + 2])
    for column, kind in enumerate("ddiii"):
        for number, word in zip(
            (v := doubles if kind == "d" else whole).tolist(), v.view(np.int64).tolist(), strict=True
        ):
            is_number = least[column] <= number <= most[column] and number < blanks[kind]
            assert (low[0, column] <= word <= high[0, column]) == is_number, (column, number)

"""NvmlSource over a C stand-in for libnvidia-ml whose waveform has a known integral."""

import logging
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from gpusonde.agent import record
from gpusonde.agent.sources.base import GpuEventKind, StaticOrigin
from gpusonde.agent.sources.nvml.library import Nvml
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.errors import SourceError, SourceUnavailableError
from gpusonde.telemetry import METRICS, MissingReason, read_traces

TICK_S = 0.1


def make_source(fake, **options):
    return fake.source(**options)


@pytest.fixture
def source(fake_nvml):
    source = make_source(fake_nvml)
    yield source
    source.close()


def read(source, fake, inventory, advance_s=TICK_S):
    """One tick later: GPU -> metric -> value, blanks by GPU, events."""
    fake.advance(advance_s)
    reading = source.read(fake.time_s)
    names = [m.name for m in inventory.metrics]
    values = {t.gpu: dict(zip(names, t.values[:, 0].tolist(), strict=True)) for t in reading.ticks}
    blanks = {t.gpu: {names[i]: reason for i, reason in t.blanks.items()} for t in reading.ticks}
    return values, blanks, reading.events


def test_gpm_values_are_the_true_average_between_two_ticks(source, fake_nvml):
    inventory = source.open()
    assert inventory.source == "gpm"
    read(source, fake_nvml, inventory)
    for step_s in (0.1, 0.1, 0.35, 7.3):  # a late tick, and one across the end of a period
        start_s = fake_nvml.time_s
        values, _, _ = read(source, fake_nvml, inventory, step_s)
        for gpu in (0, 1):
            mean = fake_nvml.mean(gpu, start_s, fake_nvml.time_s)
            assert values[gpu]["graphics_active"] == pytest.approx(mean, rel=1e-5)
            assert values[gpu]["sm_active"] == pytest.approx(0.9 * mean, rel=1e-5)
            assert values[gpu]["dram_active"] == pytest.approx(0.6 * mean, rel=1e-5)
            assert values[gpu]["fp64_active"] == 0.0
            assert values[gpu]["pcie_rx_bytes_per_second"] == pytest.approx(2000 * 2**20 * mean, rel=1e-5)


def test_the_first_tick_has_no_profiling_value_and_says_why(source, fake_nvml):
    inventory = source.open()
    values, blanks, _ = read(source, fake_nvml, inventory)
    assert np.isnan(values[0]["sm_active"])
    assert blanks[0]["sm_active"] is MissingReason.NO_DATA
    assert values[0]["power_watts"] > 0


def test_a_gpm_value_that_is_no_number_is_blank_not_zero(source, fake_nvml):
    inventory = source.open()
    read(source, fake_nvml, inventory)
    values, blanks, _ = read(source, fake_nvml, inventory)
    assert np.isnan(values[0]["fp16_active"])
    assert blanks[0]["fp16_active"] is MissingReason.NO_DATA


def test_plain_metrics_are_in_the_catalogue_s_units(source, fake_nvml):
    inventory = source.open()
    values, _, _ = read(source, fake_nvml, inventory)
    for gpu in (0, 1):
        level = fake_nvml.level(gpu, fake_nvml.time_s)
        assert values[gpu]["gpu_utilization"] == pytest.approx(level, abs=0.011)
        assert values[gpu]["power_watts"] == pytest.approx(100 + 600 * level, abs=0.01)
        assert values[gpu]["framebuffer_used_bytes"] == pytest.approx(level * 40 * 2**30, rel=1e-6)
        assert values[gpu]["sm_clock_mhz"] == pytest.approx(1980 * level, abs=1)
        assert values[gpu]["memory_clock_mhz"] == 2619
        assert values[gpu]["encoder_utilization"] == pytest.approx(0.07)
        assert values[gpu]["memory_temperature_celsius"] == 61
        assert values[gpu]["pcie_replay_count"] == 4
        # A driver that knows the call by its older name only.
        assert values[gpu]["clock_event_reason_bits"] == 0x4 | 0x20
        assert values[gpu]["bar1_free_bytes"] == 128 * 2**30 - 2 * 2**20


def test_the_energy_counter_agrees_with_the_integral_of_power(source, fake_nvml):
    inventory = source.open()
    first, _, _ = read(source, fake_nvml, inventory)
    start_s = fake_nvml.time_s
    later, _, _ = read(source, fake_nvml, inventory, 30.0)
    drawn = later[1]["energy_joules"] - first[1]["energy_joules"]
    assert drawn == pytest.approx((100 + 600 * fake_nvml.mean(1, start_s, fake_nvml.time_s)) * 30.0, rel=1e-6)


def test_slow_metrics_are_read_at_their_own_pace_and_repeated_in_between(fake_nvml):
    source = make_source(fake_nvml, slow_interval_s=2.0)
    inventory = source.open()
    energies = [read(source, fake_nvml, inventory)[0][0]["energy_joules"] for _ in range(50)]
    source.close()
    changes = [i for i in range(1, 50) if energies[i] != energies[i - 1]]
    assert changes == [20, 40]


def test_the_gpus_of_a_host_take_their_slow_readings_in_different_ticks(fake_nvml):
    fake_nvml.reset(4)
    source = make_source(fake_nvml, slow_interval_s=2.0)
    inventory = source.open()
    read(source, fake_nvml, inventory)
    calls = []
    for _ in range(20):
        before = fake_nvml.library.fake_calls()
        read(source, fake_nvml, inventory)
        calls.append(fake_nvml.library.fake_calls() - before)
    source.close()
    slow_ticks = [i for i, n in enumerate(calls) if n > min(calls)]
    # One for each GPU, and one to look for lost and new ones.
    assert len(slow_ticks) == 5


def test_a_board_without_gpm_gives_plain_metrics_and_names_what_is_missing(fake_nvml):
    fake_nvml.reset(1, gpm=False)
    source = make_source(fake_nvml)
    inventory = source.open()
    values, _, _ = read(source, fake_nvml, inventory)
    source.close()
    assert inventory.source == "nvml"
    assert "sm_active" not in values[0]
    assert inventory.gpus[0].missing_metrics["sm_active"] is MissingReason.NOT_SUPPORTED
    assert values[0]["gpu_utilization"] > 0
    assert set(values[0]) | set(inventory.gpus[0].missing_metrics) == {m.name for m in METRICS}


def test_metrics_a_board_does_not_give_are_no_columns(source):
    inventory = source.open()
    assert "nvlink_tx_bytes_per_second" not in {m.name for m in inventory.metrics}
    assert inventory.gpus[0].missing_metrics["nvlink_tx_bytes_per_second"] is MissingReason.NOT_SUPPORTED


def test_gpm_without_permission_falls_back_and_says_so(fake_nvml, caplog):
    fake_nvml.fail("nvmlGpmSampleGet", 4)
    source = make_source(fake_nvml)
    inventory = source.open()
    assert inventory.source == "nvml"
    assert inventory.gpus[0].missing_metrics["dram_active"] is MissingReason.NO_PERMISSION
    assert "gives no GPM metrics: nvmlGpmSampleGet: Insufficient Permissions" in caplog.text
    assert fake_nvml.library.fake_live_samples() == 0
    source.close()


def test_without_the_instant_field_power_comes_from_its_getter(fake_nvml):
    fake_nvml.fail("field:186", 3)
    source = make_source(fake_nvml)
    inventory = source.open()
    values, _, _ = read(source, fake_nvml, inventory)
    source.close()
    assert values[0]["power_watts"] == pytest.approx(100 + 600 * fake_nvml.level(0, fake_nvml.time_s), abs=0.01)


def test_one_failed_read_is_one_blank_with_a_reason(source, fake_nvml):
    inventory = source.open()
    read(source, fake_nvml, inventory)
    fake_nvml.fail("nvmlDeviceGetUtilizationRates", 999, gpu=1)
    values, blanks, _ = read(source, fake_nvml, inventory)
    assert blanks[1]["gpu_utilization"] is MissingReason.READ_ERROR
    assert values[1]["power_watts"] > 0
    assert values[0]["gpu_utilization"] > 0
    fake_nvml.heal()
    values, _, _ = read(source, fake_nvml, inventory)
    assert values[1]["gpu_utilization"] > 0


def test_a_lost_gpu_is_an_event_and_the_others_go_on(fake_nvml, caplog):
    source = make_source(fake_nvml, slow_interval_s=2.0)
    inventory = source.open()
    read(source, fake_nvml, inventory)
    fake_nvml.fail("*", 15, gpu=1)
    values, _, events = read(source, fake_nvml, inventory)
    assert set(values) == {0}
    assert [(e.gpu, e.kind) for e in events] == [(1, GpuEventKind.LOST)]
    for _ in range(30):
        values, _, events = read(source, fake_nvml, inventory)
        assert (set(values), events) == ({0}, ())
    fake_nvml.heal()
    seen = [read(source, fake_nvml, inventory) for _ in range(30)]
    assert [(e.gpu, e.kind) for _, _, events in seen for e in events] == [(1, GpuEventKind.RECOVERED)]
    recovered_at = next(i for i, (_, _, events) in enumerate(seen) if events)
    start_s = fake_nvml.time_s - TICK_S
    assert seen[-1][0][1]["sm_active"] == pytest.approx(0.9 * fake_nvml.mean(1, start_s, fake_nvml.time_s), rel=1e-5)
    assert 1 not in seen[recovered_at - 1][0]
    assert seen[recovered_at][1][1]["sm_active"] is MissingReason.NO_DATA
    assert seen[recovered_at + 1][0][1]["sm_active"] > 0
    assert sum("is lost" in r.message for r in caplog.records) == 1
    source.close()
    assert fake_nvml.library.fake_live_samples() == 0


def test_a_gpu_that_does_not_answer_at_the_start_is_left_out(fake_nvml, caplog):
    fake_nvml.fail("nvmlDeviceGetUUID", 15, gpu=0)
    source = make_source(fake_nvml)
    inventory = source.open()
    assert [g.gpu_index for g in inventory.gpus] == [1]
    assert "going on with the others" in caplog.text
    values, _, _ = read(source, fake_nvml, inventory)
    assert values[0]["power_watts"] == pytest.approx(100 + 600 * fake_nvml.level(1, fake_nvml.time_s), abs=0.01)
    source.close()


def test_xid_errors_are_events_and_a_counter(source, fake_nvml):
    inventory = source.open()
    read(source, fake_nvml, inventory)
    fake_nvml.push_xid(1, 79)
    fake_nvml.push_xid(1, 48)
    _, _, events = read(source, fake_nvml, inventory)
    assert events == ()  # looked for twice a second only
    fake_nvml.advance(0.4)
    values, _, events = read(source, fake_nvml, inventory)
    assert [(e.gpu, e.kind, e.value) for e in events] == [(1, GpuEventKind.XID, 79), (1, GpuEventKind.XID, 48)]
    assert (values[0]["xid_count"], values[1]["xid_count"]) == (0, 2)


def test_a_driver_that_goes_away_ends_the_source(source, fake_nvml):
    inventory = source.open()
    read(source, fake_nvml, inventory)
    fake_nvml.fail("*", 9)
    with pytest.raises(SourceError, match="kernel module is not loaded"):
        read(source, fake_nvml, inventory)
    fake_nvml.heal()


def test_a_host_without_gpus_is_told_what_to_check(fake_nvml):
    fake_nvml.reset(0)
    with pytest.raises(SourceUnavailableError, match="nvidia-smi -L"):
        make_source(fake_nvml).open()
    assert fake_nvml.library.fake_initialized() == 0


def test_the_inventory_names_the_board_with_figures_and_units(fake_nvml):
    cuda = {"GPU-fa4e0000-0000-0000-0000-000000000001": {"sm_count": 132.0, "l2_cache_bytes": 52428800.0}}
    source = make_source(fake_nvml, cuda_attributes=lambda: cuda)
    gpu = source.open().gpus[1]
    source.close()
    figures = {a.name: (a.value, a.origin) for a in gpu.static_attributes}
    assert gpu.product_name == "NVIDIA Fake 80GB HBM3"
    assert gpu.pci_bus_id == "00000000:11:00.0"
    assert gpu.driver_version == "999.1"
    assert gpu.framebuffer_bytes == 80 << 30
    assert figures["power_limit_watts"] == (700.0, StaticOrigin.NVML)
    assert figures["max_sm_clock_mhz"] == (1980.0, StaticOrigin.NVML)
    assert figures["pcie_generation"] == (5.0, StaticOrigin.NVML)
    assert figures["compute_capability"] == (9.0, StaticOrigin.NVML)
    assert figures["sm_count"] == (132.0, StaticOrigin.CUDA_DRIVER)
    assert figures["cores_per_sm"][0] == 128.0


def test_a_function_the_driver_does_not_have_is_only_a_missing_figure(source, fake_nvml, caplog):
    fake_nvml.fail("nvmlDeviceGetNumGpuCores", 13)
    with caplog.at_level(logging.WARNING):
        gpu = source.open().gpus[0]
    assert "cuda_cores" not in {a.name for a in gpu.static_attributes}
    assert "cuda_cores" not in caplog.text


def test_closing_releases_samples_events_and_library(fake_nvml):
    source = make_source(fake_nvml)
    source.close()
    source.open()
    assert fake_nvml.library.fake_live_samples() == 4
    source.close()
    source.close()
    library = fake_nvml.library
    assert (library.fake_live_samples(), library.fake_live_event_sets(), library.fake_initialized()) == (0, 0, 0)


def test_a_host_without_a_driver_is_told_what_to_do():
    script = (
        "from gpusonde.agent.sources.nvml.library import Nvml\n"
        "from gpusonde.agent import SourceUnavailableError\n"
        "import ctypes\n"
        "try: ctypes.CDLL('libnvidia-ml.so.1'); print('driver')\n"
        "except OSError:\n"
        "  try: Nvml.load()\n"
        "  except SourceUnavailableError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    if said.strip() == "driver":
        pytest.skip("this host has an NVIDIA driver")
    assert "Install the driver, or replay a trace" in said


def test_a_stale_pynvml_package_is_recognised(monkeypatch):
    import types

    stale = types.ModuleType("pynvml")
    stale.__file__ = "/somewhere/pynvml.py"
    monkeypatch.setitem(sys.modules, "pynvml", stale)
    with pytest.raises(SourceUnavailableError, match="not the module of nvidia-ml-py"):
        Nvml.load()


def test_a_gpu_that_comes_later_joins_the_inventory_without_a_restart(fake_nvml, caplog):
    fake_nvml.fail("nvmlDeviceGetUUID", 15, gpu=1)
    source = make_source(fake_nvml, slow_interval_s=2.0)
    inventory = source.open()
    assert [g.gpu_index for g in inventory.gpus] == [0]
    for _ in range(45):
        read(source, fake_nvml, inventory)
    fake_nvml.heal()
    changed, seen = [], []
    for _ in range(30):
        fake_nvml.advance(TICK_S)
        reading = source.read(fake_nvml.time_s)
        changed += [reading.inventory] if reading.inventory is not None else []
        seen.append({ticks.gpu for ticks in reading.ticks})
    start_s = fake_nvml.time_s
    values, _, _ = read(source, fake_nvml, changed[0])
    source.close()
    assert [[g.gpu_uuid for g in i.gpus] for i in changed] == [[fake_nvml.uuid(0), fake_nvml.uuid(1)]]
    assert (seen[0], seen[-1]) == ({0}, {0, 1})
    assert values[1]["sm_active"] == pytest.approx(0.9 * fake_nvml.mean(1, start_s, fake_nvml.time_s), rel=1e-5)
    assert source.statistics.inventories == 1
    assert sum("GPU 1 cannot be sampled" in r.message for r in caplog.records) == 1


def test_a_gpu_that_only_answers_with_unknown_errors_is_lost_after_a_while(fake_nvml):
    source = make_source(fake_nvml, slow_interval_s=2.0)
    inventory = source.open()
    read(source, fake_nvml, inventory)
    fake_nvml.fail("*", 999, gpu=0)
    events = [event for _ in range(60) for event in read(source, fake_nvml, inventory)[2]]
    assert [(e.gpu, e.kind) for e in events] == [(0, GpuEventKind.LOST)]
    fake_nvml.heal()
    events = [event for _ in range(30) for event in read(source, fake_nvml, inventory)[2]]
    source.close()
    assert [(e.gpu, e.kind) for e in events] == [(0, GpuEventKind.RECOVERED)]


def test_a_lost_gpu_does_not_hide_the_xids_of_the_others(fake_nvml):
    source = make_source(fake_nvml, slow_interval_s=2.0)
    inventory = source.open()
    read(source, fake_nvml, inventory)
    fake_nvml.fail("*", 15, gpu=1)
    fake_nvml.fail("event", 15, gpu=1)
    read(source, fake_nvml, inventory)
    fake_nvml.push_xid(0, 48)
    fake_nvml.advance(0.4)
    _, _, events = read(source, fake_nvml, inventory)
    source.close()
    assert [(e.gpu, e.kind, e.value) for e in events] == [(0, GpuEventKind.XID, 48)]


def test_a_board_without_gpm_gives_pcie_rates_from_counters_that_wrap(fake_nvml):
    fake_nvml.reset(1, gpm=False)
    source = make_source(fake_nvml)
    inventory = source.open()
    read(source, fake_nvml, inventory)
    # 2^32 bytes at about 0.5 GB/s: the 32-bit counter wraps once or more in 20 s.
    for _ in range(200):
        start_s = fake_nvml.time_s
        values, _, _ = read(source, fake_nvml, inventory)
        mean = fake_nvml.mean(0, start_s, fake_nvml.time_s)
        assert values[0]["pcie_tx_bytes_per_second"] == pytest.approx(1e9 * mean, rel=1e-4)
        assert values[0]["pcie_rx_bytes_per_second"] == pytest.approx(2e9 * mean, rel=1e-4)
    source.close()


def test_a_counter_of_32_bits_says_nothing_over_a_time_in_which_it_may_have_wrapped_twice(fake_nvml):
    fake_nvml.reset(1, gpm=False)
    source = make_source(fake_nvml)
    inventory = source.open()
    blanks = []
    for _ in range(12):
        _, reasons, _ = read(source, fake_nvml, inventory, 3.7)
        blanks.append(reasons[0].get("pcie_tx_bytes_per_second"))
    source.close()
    assert MissingReason.NO_DATA in blanks


def test_profiling_zeros_while_kernels_run_are_blank_and_counted(source, fake_nvml):
    inventory = source.open()
    read(source, fake_nvml, inventory)
    fake_nvml.library.fake_set_zeros(1)
    values = [read(source, fake_nvml, inventory)[0][0]["sm_active"] for _ in range(120)]
    assert values[90] == 0.0
    assert np.isnan(values[-1])
    assert source.statistics.suspect_ticks >= 10
    fake_nvml.library.fake_set_zeros(0)
    assert read(source, fake_nvml, inventory)[0][0]["sm_active"] > 0


def test_samples_that_are_too_close_are_no_value_and_the_next_average_is_true(source, fake_nvml):
    inventory = source.open()
    read(source, fake_nvml, inventory)
    read(source, fake_nvml, inventory)
    start_s = fake_nvml.time_s
    _, blanks, _ = read(source, fake_nvml, inventory, 0.01)
    assert blanks[0]["sm_active"] is MissingReason.NO_DATA
    values, _, _ = read(source, fake_nvml, inventory)
    mean = fake_nvml.mean(0, start_s, fake_nvml.time_s)
    assert values[0]["sm_active"] == pytest.approx(0.9 * mean, rel=1e-5)


def test_the_reasons_of_a_tick_stay_those_of_its_time(source, fake_nvml):
    inventory = source.open()
    fake_nvml.advance(TICK_S)
    before = source.read(fake_nvml.time_s).ticks[0]
    reasons = dict(before.blanks)
    fake_nvml.fail("nvmlDeviceGetTemperature", 999, gpu=0)
    for _ in range(120):
        read(source, fake_nvml, inventory)
    assert dict(before.blanks) == reasons


@pytest.mark.parametrize("gpm", [True, False])
def test_ticks_that_are_looked_at_together_are_those_looked_at_one_by_one(fake_nvml, gpm):
    """Over a slow reading, a refusal that comes and goes, another reason, an XID, a lost GPU and its return."""

    def play(together):
        fake_nvml.reset(3, gpm=gpm)
        source = fake_nvml.source(slow_interval_s=2.0)
        source.open()
        found, waiting, events = {}, [], []

        def take(ticks):
            for part in ticks:
                for i, time_ns in enumerate(part.time_unix_nano.tolist()):
                    column = part.values[:, i]
                    reasons = {c: part.blanks[c] for c in np.flatnonzero(np.isnan(column)).tolist()}
                    found[part.gpu, time_ns] = (column.tolist(), reasons)

        for tick in range(150):
            if tick == 20:
                fake_nvml.fail("nvmlDeviceGetUtilizationRates", 4, gpu=1)
                fake_nvml.fail("gpm:2", 999, gpu=0)
                fake_nvml.fail("nvmlDeviceGetTemperature", 21, gpu=0)
                fake_nvml.fail("field:198", 21, gpu=2)
            if tick in (23, 31, 90):
                fake_nvml.heal()
            if tick == 24:
                fake_nvml.fail("nvmlDeviceGetUtilizationRates", 999, gpu=1)
                fake_nvml.fail("nvmlGpmSampleGet", 27, gpu=2)
            if tick == 40:
                fake_nvml.push_xid(1, 31)
            if tick == 60:
                fake_nvml.fail("*", 15, gpu=2)
            fake_nvml.advance(TICK_S)
            reading = source.read(fake_nvml.time_s)
            events += [(tick, event.gpu, event.kind) for event in reading.events]
            if together:
                waiting.append(reading.ticks)
                if reading.inventory is not None or tick % 13 == 0 or tick == 149:
                    take(waiting[0].join(waiting[1:]))
                    waiting = []
            else:
                take(reading.ticks)
        source.close()
        return found, events

    (one_by_one, events), (joined, same_events) = play(together=False), play(together=True)
    assert events == same_events
    assert [kind for _, _, kind in events].count(GpuEventKind.LOST) == 1
    assert len(one_by_one) > 400
    assert joined.keys() == one_by_one.keys()
    for key, (values, reasons) in one_by_one.items():
        assert joined[key][1] == reasons
        np.testing.assert_array_equal(joined[key][0], values)


def test_a_recording_holds_the_waveform(fake_nvml, tmp_path):
    """The source behind the real sampler, on the real clock."""
    fake_nvml.reset(2, period_s=1.0)
    split = fake_nvml.set_mig(1, 1, 3, 2)
    fake_nvml.set_time(-1.0)
    source = NvmlSource(load=fake_nvml.loader(), cuda_attributes=dict)
    report = record(source, tmp_path / "trace.csv", duration_s=2.5)
    assert report.gpu_uuids == (fake_nvml.uuid(0), fake_nvml.uuid(1), split)
    for trace, gpu, share in zip(read_traces(tmp_path / "trace.csv"), (0, 1, 1), (1.0, 1.0, 0.9), strict=True):
        times = trace.origin_unix_s + trace.time_s
        values = trace.values["sm_active"]
        assert len(times) >= 15
        # The first value begins a pair. A tick that came too soon after a late one has none, and the next value covers
        # both: what is there is a chain without holes.
        assert np.isnan(values[0])
        there = np.flatnonzero(~np.isnan(values))
        assert len(there) >= 0.8 * len(times)
        times, values = times[there], values[there]
        true = [share * 0.9 * fake_nvml.mean(gpu, *pair) for pair in pairwise(times)]
        # The machine may stop the process between the time stamp and the sample: at a few ticks, not at most.
        errors = np.abs(values[1:] - true)
        assert np.mean(errors <= 0.02) >= 0.8
        whole = np.average(values[1:], weights=np.diff(times))
        assert whole == pytest.approx(share * 0.9 * fake_nvml.mean(gpu, times[0], times[-1]), abs=0.01)
    assert fake_nvml.library.fake_initialized() == 0

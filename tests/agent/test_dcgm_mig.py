"""DcgmSource on split GPUs, and GPUs and instances that come while it samples."""

import math

import numpy as np
import pytest
from support.fake_dcgm.engine import FakeInstance

from gpusonde.agent.sources.base import GpuEventKind
from gpusonde.telemetry import MissingReason


def place(engine, gpu, instance, compute=0):
    """How an instance is named where NVML does not tell its UUID."""
    return f"MIG-{engine.uuid(gpu)}/{instance}/{compute}"


def test_an_instance_gives_the_true_averages_of_its_part(dcgm_host_of_each_version):
    host = dcgm_host_of_each_version
    host.engine.instances = {21: FakeInstance(1, 2, slices=3), 22: FakeInstance(1, 9)}
    source = host.source()
    host.open(source)
    assert host.keys() == [
        host.engine.uuid(0), host.engine.uuid(1), place(host.engine, 1, 2), place(host.engine, 1, 9)
    ]  # fmt: skip
    host.run(source, 10.0)
    source.close()
    for index, part in ((2, host.engine.instances[21]), (3, host.engine.instances[22])):
        ticks = host.ticks[index][5:]
        assert len(ticks) > 80
        assert np.diff([at_s for at_s, _, _ in ticks]) == pytest.approx(0.1, abs=1e-3)
        for at_s, values, _ in ticks:
            mean = host.engine.mean(1, at_s - 0.1, at_s)
            assert values["sm_active"] == pytest.approx(part.share * 0.9 * mean, abs=1e-4)
            assert values["dram_active"] == pytest.approx(part.share * 0.6 * mean, abs=1e-4)
        used = part.share * 10240 * part.slices * host.engine.level(1, ticks[-1][0])
        assert ticks[-1][1]["framebuffer_used_bytes"] == pytest.approx(used * 2**20, rel=1e-3)


def test_what_an_instance_does_not_have_is_blank_with_a_reason_and_never_zero(dcgm_host):
    dcgm_host.engine.instances = {21: FakeInstance(1, 2)}
    source = dcgm_host.source()
    part = dcgm_host.open(source).gpus[2]
    dcgm_host.run(source, 2.0)
    source.close()
    _, values, blanks = dcgm_host.ticks[2][-1]
    # Utilisation (203) does not exist there; graphics_active (1001) does and says the same.
    assert values["graphics_active"] > 0
    for name in ("gpu_utilization", "power_watts", "energy_joules", "pcie_tx_bytes_per_second", "xid_count"):
        assert part.missing_metrics[name] is MissingReason.NOT_SUPPORTED
        assert math.isnan(values[name])
        assert blanks[name] is MissingReason.NOT_SUPPORTED
    assert dcgm_host.ticks[1][-1][1]["power_watts"] > 0
    assert dcgm_host.ticks[1][-1][1]["pcie_tx_bytes_per_second"] > 0
    assert (part.gpu_uuid, part.gpu_index) == (dcgm_host.engine.uuid(1), 1)
    assert {a.name: a.value for a in part.static_attributes}["mig_gpu_instance_id"] == 2


def test_an_instance_is_named_by_its_uuid_where_nvml_tells_it(dcgm_host, fake_nvml):
    uuid = fake_nvml.set_mig(1, 0, 3, 2)
    dcgm_host.engine.uuid = fake_nvml.uuid
    dcgm_host.engine.instances = {21: FakeInstance(1, 2, slices=3)}
    source = dcgm_host.source(load_nvml=fake_nvml.loader())
    part = dcgm_host.open(source).gpus[2]
    source.close()
    assert (part.key, part.framebuffer_bytes) == (uuid, 30 * 2**30)
    assert {a.name: a.value for a in part.static_attributes}["sm_count"] == 48
    assert fake_nvml.library.fake_initialized() == 0


def test_compute_instances_of_one_gpu_instance_are_told_apart_and_share_its_values(dcgm_host):
    dcgm_host.engine.instances = {21: FakeInstance(1, 2, compute=(0, 1))}
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    source.close()
    assert dcgm_host.keys()[2:] == [place(dcgm_host.engine, 1, 2, 0), place(dcgm_host.engine, 1, 2, 1)]
    assert dcgm_host.column("sm_active", 2) == dcgm_host.column("sm_active", 3)
    assert dcgm_host.column("sm_active", 3)[-1] > 0


def test_a_gpu_instance_in_which_nothing_can_run_is_left_out(dcgm_host):
    dcgm_host.engine.instances = {21: FakeInstance(0, 2, compute=())}
    source = dcgm_host.source()
    dcgm_host.open(source)
    source.close()
    assert len(dcgm_host.keys()) == 2


def test_ratios_above_one_are_stored_as_one_and_counted(dcgm_host):
    dcgm_host.engine.instances = {21: FakeInstance(1, 2)}
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.engine.excess = 1.7
    dcgm_host.run(source, 2.0)
    source.close()
    assert dcgm_host.column("sm_active", 2)[-1] == 1.0
    assert dcgm_host.column("sm_active", 0)[-1] < 1.0
    assert source.statistics.capped_ratios >= 15


def test_an_engine_or_bindings_without_mig_give_the_gpus(dcgm_host, monkeypatch):
    source = dcgm_host.source()
    dcgm_host.engine.refused = {"dcgmGetGpuInstanceHierarchy": -20}
    dcgm_host.open(source)
    source.close()
    assert len(dcgm_host.keys()) == 2
    dcgm_host.engine.refused = {}
    dcgm_host.engine.instances = {21: FakeInstance(0, 2)}
    source = dcgm_host.source()
    monkeypatch.delattr("dcgm_agent.dcgmGetGpuInstanceHierarchy")
    dcgm_host.open(source)
    source.close()
    assert len(dcgm_host.keys()) == 2


def test_instances_made_and_destroyed_while_it_runs_change_the_inventory_without_a_hole(dcgm_host):
    source = dcgm_host.source(slow_interval_s=2.0)
    dcgm_host.open(source)
    dcgm_host.run(source, 3.0)
    dcgm_host.engine.instances = {21: FakeInstance(1, 2)}
    dcgm_host.run(source, 5.0)
    first = place(dcgm_host.engine, 1, 2)
    assert dcgm_host.keys() == [dcgm_host.engine.uuid(0), dcgm_host.engine.uuid(1), first]
    assert dcgm_host.column("sm_active", 2)[-1] > 0
    dcgm_host.engine.instances = {22: FakeInstance(1, 5)}
    dcgm_host.run(source, 6.0)
    source.close()
    assert dcgm_host.keys()[2:] == [first, place(dcgm_host.engine, 1, 5)]
    assert [(e.gpu, e.kind) for e in dcgm_host.events] == [(2, GpuEventKind.LOST)]
    assert dcgm_host.column("sm_active", 3)[-1] > 0
    assert source.statistics.inventories == 2
    times = np.diff([at_s for at_s, _, _ in dcgm_host.ticks[0]])
    assert times.max() < 0.35
    assert len(dcgm_host.ticks[0]) >= 130


def test_a_gpu_that_comes_with_a_new_engine_joins(dcgm_host):
    dcgm_host.engine.gpus = 1
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 2.0)
    dcgm_host.engine.kill()
    dcgm_host.run(source, 1.0)
    dcgm_host.engine.gpus, dcgm_host.engine.remote = 2, True
    dcgm_host.run(source, 10.0)
    source.close()
    assert dcgm_host.keys() == [dcgm_host.engine.uuid(0), dcgm_host.engine.uuid(1)]
    assert [(e.gpu, e.kind) for e in dcgm_host.events] == [(0, GpuEventKind.LOST), (0, GpuEventKind.RECOVERED)]
    assert dcgm_host.column("sm_active", 1)[-1] > 0
    assert source.statistics.reconnects == 1


def test_an_engine_that_dies_while_the_gpus_change_does_not_keep_the_sampler_busy(dcgm_host):
    source = dcgm_host.source(slow_interval_s=2.0)
    dcgm_host.open(source)
    dcgm_host.run(source, 1.8)
    dcgm_host.engine.instances = {21: FakeInstance(1, 2)}
    while source._found is None:
        dcgm_host.advance(0.1)
        source.read(dcgm_host.monotonic_s)
    dcgm_host.engine.kill()
    dcgm_host.run(source, 2.0)
    assert dcgm_host.reads < 60
    dcgm_host.engine.remote = True
    dcgm_host.run(source, 8.0)
    source.close()
    assert dcgm_host.keys()[2:] == [place(dcgm_host.engine, 1, 2)]
    assert dcgm_host.column("sm_active", 2)[-1] > 0


def test_a_new_engine_that_refuses_the_changed_gpus_is_tried_again(dcgm_host):
    dcgm_host.engine.gpus = 1
    source = dcgm_host.source()
    dcgm_host.open(source)
    dcgm_host.run(source, 1.0)
    dcgm_host.engine.kill()
    dcgm_host.run(source, 0.5)
    dcgm_host.engine.gpus, dcgm_host.engine.remote = 2, True
    dcgm_host.engine.refused = {"dcgmWatchFields": -3}
    dcgm_host.run(source, 7.0)
    dcgm_host.engine.refused = {}
    dcgm_host.run(source, 8.0)
    source.close()
    assert len(dcgm_host.keys()) == 2
    assert dcgm_host.column("sm_active", 1)[-1] > 0

"""NvmlSource on split GPUs: every MIG instance is sampled by itself, over the C stand-in for libnvidia-ml."""

import math

import pytest

from gpusonde.agent.batch import inventory_record
from gpusonde.agent.sources.base import GpuEventKind
from gpusonde.telemetry import METRICS, MissingReason


class Host:
    """A source over the stand-in and what it gave at the last tick, by key of the fleet."""

    def __init__(self, fake, **options):
        self.fake = fake
        self.source = fake.source(**options)
        self.inventory = None
        self.values = {}
        self.blanks = {}
        self.events = []
        self.inventories = 0

    def open(self):
        self.inventory = self.source.open()
        return self.inventory

    def keys(self):
        return [gpu.key for gpu in self.inventory.gpus]

    def run(self, ticks=1):
        for _ in range(ticks):
            self.fake.advance(0.1)
            reading = self.source.read(self.fake.time_s)
            if reading.inventory is not None:
                self.inventory, self.inventories = reading.inventory, self.inventories + 1
            names = [m.name for m in self.inventory.metrics]
            self.values = {
                self.keys()[t.gpu]: dict(zip(names, t.values[:, 0].tolist(), strict=True)) for t in reading.ticks
            }
            self.blanks = {self.keys()[t.gpu]: {names[i]: r for i, r in t.blanks.items()} for t in reading.ticks}
            self.events += [(self.keys()[e.gpu], e.kind, e.value) for e in reading.events]


@pytest.fixture
def host(fake_nvml):
    host = Host(fake_nvml, slow_interval_s=2.0)
    yield host
    host.source.close()


def test_an_instance_gives_the_true_averages_of_its_part(host, fake_nvml):
    first, second = fake_nvml.set_mig(1, 0, 3, 2), fake_nvml.set_mig(1, 2, 1, 9)
    host.open()
    assert host.keys() == [fake_nvml.uuid(0), fake_nvml.uuid(1), first, second]
    host.run(2)
    for _ in range(5):
        start_s = fake_nvml.time_s
        host.run()
        mean = fake_nvml.mean(1, start_s, fake_nvml.time_s)
        assert host.values[first]["sm_active"] == pytest.approx(0.9 * mean, rel=1e-5)
        assert host.values[second]["sm_active"] == pytest.approx(0.8 * 0.9 * mean, rel=1e-5)
        assert host.values[second]["dram_active"] == pytest.approx(0.8 * 0.6 * mean, rel=1e-5)
        assert host.values[fake_nvml.uuid(1)]["sm_active"] == pytest.approx(0.9 * mean, rel=1e-5)
    used = 0.8 * fake_nvml.level(1, fake_nvml.time_s) * 10 * 2**30
    assert host.values[second]["framebuffer_used_bytes"] == pytest.approx(used, rel=1e-6)


def test_what_an_instance_cannot_give_is_blank_with_a_reason_and_never_zero(host, fake_nvml):
    instance = fake_nvml.set_mig(0, 0, 1, 7)
    (_, part, _) = host.open().gpus
    host.run(3)
    for name in ("power_watts", "energy_joules", "gpu_utilization", "pcie_tx_bytes_per_second", "sm_clock_mhz"):
        assert part.missing_metrics[name] is MissingReason.NOT_SUPPORTED
        assert math.isnan(host.values[instance][name])
        assert host.blanks[instance][name] is MissingReason.NOT_SUPPORTED
    assert host.values[fake_nvml.uuid(0)]["power_watts"] > 0
    given = {name for name, value in host.values[instance].items() if not math.isnan(value)}
    assert given >= {"graphics_active", "sm_active", "tensor_active", "framebuffer_used_bytes", "bar1_free_bytes"}
    assert given | set(part.missing_metrics) >= {m.name for m in METRICS} - {"fp16_active"}


def test_the_inventory_names_an_instance_with_its_gpu_and_its_share(host, fake_nvml):
    instance = fake_nvml.set_mig(0, 1, 3, 2)
    part = host.open().gpus[1]
    figures = {a.name: a.value for a in part.static_attributes}
    assert (part.gpu_uuid, part.mig_uuid, part.gpu_index) == (fake_nvml.uuid(0), instance, 0)
    assert part.product_name == "NVIDIA Fake 80GB HBM3 MIG"
    assert part.framebuffer_bytes == 30 * 2**30
    assert (figures["sm_count"], figures["mig_gpu_instance_id"], figures["mig_gpu_instance_slices"]) == (48, 2, 3)
    assert "memory_bus_bits" not in figures
    wire = inventory_record(host.inventory).inventory.gpus[1]
    assert (wire.gpu_uuid, wire.mig_uuid) == (fake_nvml.uuid(0), instance)


def test_compute_instances_of_one_gpu_instance_are_told_apart_and_share_its_values(host, fake_nvml):
    one, other = fake_nvml.set_mig(0, 0, 3, 2, 0), fake_nvml.set_mig(0, 1, 3, 2, 1)
    host.open()
    host.run(3)
    assert host.values[one]["sm_active"] == host.values[other]["sm_active"] > 0


def test_ratios_above_one_are_stored_as_one_and_counted(host, fake_nvml):
    instance = fake_nvml.set_mig(0, 0, 1, 7)
    host.open()
    host.run(2)
    fake_nvml.library.fake_set_excess(6.0)
    host.run(4)
    assert host.values[instance]["sm_active"] == 1.0
    assert host.source.statistics.capped_ratios == 4
    assert host.values[instance]["graphics_active"] < 1.0


def test_an_instance_made_while_the_agent_runs_joins_the_inventory(host, fake_nvml):
    host.open()
    host.run(5)
    instance = fake_nvml.set_mig(1, 0, 1, 7)
    host.run(22)
    assert host.keys() == [fake_nvml.uuid(0), fake_nvml.uuid(1), instance]
    assert host.inventories == 1
    assert host.values[instance]["sm_active"] > 0


def test_an_instance_that_is_destroyed_is_lost_and_a_new_one_is_another(host, fake_nvml):
    old = fake_nvml.set_mig(1, 0, 1, 7)
    host.open()
    host.run(5)
    new = fake_nvml.set_mig(1, 0, 1, 7, made=2)
    host.run(24)
    assert host.events == [(old, GpuEventKind.LOST, 0)]
    assert host.keys() == [fake_nvml.uuid(0), fake_nvml.uuid(1), old, new]
    assert set(host.values) == {fake_nvml.uuid(0), fake_nvml.uuid(1), new}
    assert host.values[new]["sm_active"] > 0


def test_an_xid_of_an_instance_is_told_of_the_instance(host, fake_nvml):
    instance = fake_nvml.set_mig(1, 0, 1, 7)
    host.open()
    host.run(2)
    fake_nvml.push_xid(1, 31, gpu_instance=7)
    fake_nvml.push_xid(1, 79)
    host.run(5)
    assert host.events == [(instance, GpuEventKind.XID, 31), (fake_nvml.uuid(1), GpuEventKind.XID, 79)]
    assert host.values[instance]["xid_count"] == host.values[fake_nvml.uuid(1)]["xid_count"] == 1


def test_closing_frees_the_samples_of_instances_too(host, fake_nvml):
    fake_nvml.set_mig(1, 0, 1, 7)
    host.open()
    host.run(2)
    host.source.close()
    assert fake_nvml.library.fake_live_samples() == 0

"""What hosts have free: totals per core over the free cores, and never more than was measured."""

import pytest

from gpusonde.catalog import load_gpus
from gpusonde.collector.ingest.session import KnownLoad
from gpusonde.collector.storage.model import AgentRow, GpuRow
from gpusonde.collector.workload.hosts import ResourceCollector, available_resources, least_resources
from gpusonde.common.v1 import gpu_pb2
from gpusonde.predictor.workload.engine import HostResources

GIB = 1 << 30
HOST = gpu_pb2.Host(
    host_name="node-1", cpu_count=64, cpu_core_count=32, memory_bytes=256 * GIB, cpu_flops=3.2e12, disk_bytes=GIB
)


def test_an_idle_host_has_everything_free():
    found = available_resources(HOST, gpu_pb2.HostLoad())
    assert found == HostResources(cores=32.0, memory_bytes=256.0 * GIB, flops=3.2e12)


def test_a_loaded_host_has_what_its_free_cores_have():
    # Eq. 1 and 2 of the paper: RAM per core, summed over the cores that are free.
    found = available_resources(HOST, gpu_pb2.HostLoad(cpu_busy_ratio=0.75))
    assert (found.cores, found.memory_bytes, found.flops) == pytest.approx((8.0, 8 * 256 * GIB / 32, 8 * 3.2e12 / 32))


def test_memory_that_others_hold_is_not_free_whatever_the_cores_do():
    load = gpu_pb2.HostLoad(cpu_busy_ratio=0.0, available_memory_bytes=10 * GIB)
    assert available_resources(HOST, load).memory_bytes == 10 * GIB
    load = gpu_pb2.HostLoad(cpu_busy_ratio=0.5, available_memory_bytes=200 * GIB)
    assert available_resources(HOST, load).memory_bytes == 128 * GIB


def test_disk_throughput_is_known_of_disks_that_had_to_do():
    load = gpu_pb2.HostLoad(disk_bytes_per_second=1e8, disk_busy_ratio=0.25)
    assert available_resources(HOST, load).disk_bytes_per_second == pytest.approx(0.75 * 4e8)
    load.cpu_busy_ratio = 0.5
    assert available_resources(HOST, load).disk_bytes_per_second == pytest.approx(0.5 * 4e8)
    idle = gpu_pb2.HostLoad(disk_bytes_per_second=1e5, disk_busy_ratio=0.01)
    assert available_resources(HOST, idle).disk_bytes_per_second is None


def test_an_agent_of_an_older_version_tells_less():
    found = available_resources(gpu_pb2.Host(cpu_count=8, memory_bytes=8 * GIB), gpu_pb2.HostLoad())
    assert found == HostResources(cores=8.0, memory_bytes=8.0 * GIB)
    assert available_resources(gpu_pb2.Host(), gpu_pb2.HostLoad()) == HostResources()


@pytest.mark.parametrize("busy", [-0.5, 1.5])
def test_shares_out_of_range_are_taken_to_the_next_end(busy):
    found = available_resources(HOST, gpu_pb2.HostLoad(cpu_busy_ratio=busy))
    assert found.cores == (32.0 if busy < 0 else 0.0)


def test_several_hosts_count_as_the_weakest_of_them():
    one = HostResources(cores=8.0, memory_bytes=2.0, flops=3.0)
    other = HostResources(cores=4.0, memory_bytes=5.0)
    assert least_resources([one, other]) == HostResources(cores=4.0, memory_bytes=2.0)
    assert least_resources([]) is None


class Store:
    def agents(self):
        rows = [("b", HOST), ("a", gpu_pb2.Host(host_name="node-2", cpu_count=4)), ("c", HOST)]
        return [AgentRow(name, "s", "i", 1, host.host_name, "1", host.SerializeToString()) for name, host in rows]

    def gpus(self):
        gpus = [
            ("b", gpu_pb2.Gpu(gpu_uuid="G1", gpu_index=1, product_name="Tesla V100-SXM2-16GB")),
            ("b", gpu_pb2.Gpu(gpu_uuid="G0", gpu_index=0, product_name="Nobody's GPU")),
            ("c", gpu_pb2.Gpu(gpu_uuid="G2", product_name="Tesla T4")),
        ]
        return [GpuRow(gpu.gpu_uuid, agent, "", gpu.SerializeToString(), ()) for agent, gpu in gpus]


class Stream:
    def __init__(self, agent_id, load):
        self.agent_id = agent_id
        self.load = load


def test_hosts_are_found_by_agent_and_by_name_with_their_devices_and_loads():
    load = KnownLoad(gpu_pb2.HostLoad(cpu_busy_ratio=0.5), 5.0)
    resources = ResourceCollector(Store(), lambda: [Stream("b", load), Stream("c", None)], load_gpus())
    loads = resources.loads()
    assert [host.agent_id for host in resources.hosts(loads)] == ["a", "b", "c"]
    assert [host.agent_id for host in resources.hosts(loads, ["a"], ["node-1"])] == ["a", "b", "c"]
    assert [host.agent_id for host in resources.hosts(loads, [], ["node-1"])] == ["b", "c"]
    assert resources.hosts(loads, ["nobody"], []) == []
    a, b, c = resources.hosts(loads)
    assert [(host.connected, host.load) for host in (a, b, c)] == [(False, None), (True, load), (True, None)]
    assert [(device.key, device.spec and device.spec.name) for device in b.devices] == [
        ("G0", None),
        ("G1", "V100-SXM2-16GB"),
    ]
    assert (b.available().cores, c.available().cores, a.devices) == (16.0, 32.0, ())

"""Questions are checked one by one before any process hears of them."""

from dataclasses import replace

import pytest

from gpusonde.catalog import load_gpus
from gpusonde.collector.ingest.session import KnownLoad
from gpusonde.collector.workload.checker import check_workloads
from gpusonde.collector.workload.errors import WorkloadError
from gpusonde.collector.workload.hosts import HostDevice, HostView
from gpusonde.common.v1 import gpu_pb2
from gpusonde.workload.v1 import workload_pb2 as pb

GPUS = load_gpus()
V100 = "V100-SXM2-16GB"


def graph(content=b"{}", **more):
    return pb.GraphSource(graph=pb.Graph(content=content, **more))


def workload(source=None, batch_size=8, **cluster):
    return pb.Workload(
        graph=source or graph(), batch_size=batch_size, cluster=pb.Cluster(**(cluster or {"device": "V100"}))
    )


def host(agent_id, *names, busy=0.0, connected=True, host_name="node"):
    devices = tuple(
        HostDevice(gpu_pb2.Gpu(gpu_uuid=f"{agent_id}-{i}"), GPUS.resolve(name).spec if name else None)
        for i, name in enumerate(names)
    )
    described = gpu_pb2.Host(host_name=host_name, cpu_count=8, memory_bytes=1 << 33)
    load = KnownLoad(gpu_pb2.HostLoad(cpu_busy_ratio=busy), 1.0)
    return HostView(agent_id, described, connected, load, devices)


def check(*workloads, hosts=()):
    return check_workloads(workloads, hosts, GPUS)


def refusal(message, hosts=()):
    (found,) = check(message, hosts=hosts).rows
    assert isinstance(found, WorkloadError)
    return found.kind, found.field


def cluster(message, hosts=()):
    (found,) = check(message, hosts=hosts).rows
    assert isinstance(found, dict), found
    return found["cluster"]


def test_what_is_unset_has_its_default():
    (found,) = check(workload()).rows
    notes = found["cluster"].pop("notes")
    assert found == {
        "graph": 0, "batch_size": 8, "dataset_type": None, "regressor": "",
        "optimizer": "adamw", "samples_per_epoch": None,
        "cluster": {
            "device": V100, "device_count": 1, "node_count": 1, "precision": "fp32", "parallelism": "none",
            "environment": None, "link": "", "network_bytes_per_second": 0.0, "agent_ids": [], "host": None,
        },
    }  # fmt: skip
    # "V100" is two cards; which one was taken is said.
    assert len(notes) == 1
    assert V100 in notes[0]
    assert cluster(workload(device=V100))["notes"] == []


def test_several_devices_are_distributed_unless_it_is_said_how_they_share():
    assert cluster(workload(device=V100, device_count=4))["parallelism"] == "distributed"
    told = workload(device=V100, device_count=4, parallelism=pb.PARALLELISM_DATA_PARALLEL)
    assert cluster(told)["parallelism"] == "data_parallel"


def test_the_same_graph_is_read_once_also_when_it_is_sent_twice():
    found = check(
        workload(graph(b"one")), workload(pb.GraphSource(same_as=0)), workload(graph(b"two")), workload(graph(b"one")),
        workload(pb.GraphSource(same_as=2)), workload(graph(b"one", name="other")),
    )  # fmt: skip
    assert [row["graph"] for row in found.rows] == [0, 0, 1, 0, 1, 2]
    assert found.contents == [b"one", b"two", b"one"]
    assert [each["name"] for each in found.graphs] == ["", "", "other"]


def test_whoever_names_a_graph_that_is_none_has_its_error():
    found = check(workload(graph(b"")), workload(pb.GraphSource(same_as=0)), workload(pb.GraphSource(same_as=2)))
    assert [row.field for row in found.rows] == ["graph.content", "graph.content", "graph.same_as"]
    assert found.contents == []


@pytest.mark.parametrize(
    ("message", "kind", "field"),
    [
        (pb.Workload(batch_size=1), "invalid_request", "graph"),
        (workload(graph(b"x", format=9)), "invalid_request", "format"),
        (workload(graph(b"x", name="a\nb")), "invalid_request", "graph.name"),
        (workload(batch_size=0), "invalid_request", "batch_size"),
        (workload(batch_size=1 << 31), "invalid_request", "batch_size"),
        (workload(device=""), "invalid_request", "cluster.device"),
        (workload(device="no such"), "unknown_device", "cluster.device"),
        (workload(device="4xV100"), "invalid_request", "cluster.device"),
        (workload(device="x" * 10_000), "invalid_request", "cluster.device"),
        (workload(device=V100, device_count=1 << 31), "invalid_request", "cluster.device_count"),
        (workload(device=V100, node_count=2), "invalid_request", "cluster.node_count"),
        (workload(device=V100, device_count=2, parallelism=1), "invalid_request", "cluster.parallelism"),
        (workload(device=V100, parallelism=99), "invalid_request", "parallelism"),
        (workload(device=V100, precision=99), "invalid_request", "precision"),
        (workload(device=V100, environment="\x1b[2J"), "invalid_request", "cluster.environment"),
        (workload(agent_ids=["a"]), "unknown_host", "cluster.agent_ids"),
        (workload(host_names=["a"]), "unknown_host", "cluster.host_names"),
    ],
)
def test_what_cannot_be_is_an_error_of_its_kind_that_names_the_field(message, kind, field):
    assert refusal(message) == (kind, field)


def test_other_fields_are_checked_too():
    for field, value in (("samples_per_epoch", 0), ("samples_per_epoch", 1 << 60), ("regressor", 99)):
        message = workload()
        setattr(message, field, value)
        assert refusal(message) == ("invalid_request", field)
    for name in ("../up", "Big", "x" * 65):
        message = workload()
        message.dataset_type = name
        assert refusal(message) == ("invalid_request", "dataset_type")


def test_hosts_give_devices_their_number_and_what_the_weakest_has_free():
    hosts = [host("a", V100, V100, busy=0.5), host("b", V100, V100, busy=0.25)]
    found = cluster(workload(agent_ids=["a", "b"]), hosts)
    assert (found["device"], found["device_count"], found["node_count"]) == (V100, 4, 2)
    assert (found["agent_ids"], found["host"]["cores"]) == (["a", "b"], 4.0)
    assert cluster(workload(agent_ids=["a", "b"], device_count=3), hosts)["device_count"] == 3
    assert cluster(workload(agent_ids=["b", "b"]), hosts)["node_count"] == 1


def test_hosts_of_several_models_need_one_to_be_named_and_those_outside_of_the_catalogue_do_not_count():
    hosts = [host("a", V100, "T4", ""), host("b", "T4"), host("c", ""), host("d")]
    assert refusal(workload(agent_ids=["a"]), hosts) == ("unknown_device", "cluster.device")
    assert cluster(workload(agent_ids=["a"], device="T4"), hosts)["device_count"] == 1
    assert cluster(workload(agent_ids=["a", "b"], device="T4"), hosts)["device_count"] == 2
    for message in (
        workload(agent_ids=["b"], device="V100"),
        workload(agent_ids=["b"], device_count=2),
        workload(agent_ids=["c"]),
        workload(agent_ids=["d"]),
    ):
        assert refusal(message, hosts)[0] == "unknown_device"
    assert refusal(workload(agent_ids=["b"], node_count=2), hosts) == ("invalid_request", "cluster.node_count")


def test_of_agents_of_one_host_the_one_that_streams_is_meant():
    hosts = [host("old", V100, connected=False), host("new", V100)]
    found = cluster(workload(host_names=["node"]), hosts)
    assert (found["agent_ids"], found["notes"]) == (["new"], [])
    away = cluster(workload(agent_ids=["old"]), hosts)
    assert away["notes"] == ["not streaming now, and taken for idle: old"]


def test_a_host_whose_load_nobody_tells_is_taken_for_idle_and_that_is_said():
    quiet = replace(host("a", V100), load=None)
    found = cluster(workload(host_names=["node"]), [quiet])
    assert found["notes"] == ["their load is not told, so that they are taken for idle: a"]
    assert found["host"]["cores"] == quiet.available().cores

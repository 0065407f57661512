"""Pods from a kubelet that speaks real gRPC over a real socket."""

import tempfile
from pathlib import Path

import grpc
import pytest
from support.fake_kubelet import FakeKubelet

from gpusonde.agent.jobs.kubelet import KubeletPods, list_pods
from gpusonde.agent.jobs.ownership import Scheduler
from gpusonde.agent.jobs.sources import DeviceNames
from gpusonde.agent.sources.base import GpuDescription
from gpusonde.errors import SourceError

STARTED, NOW = 1_700_000_000_000_000_000, 1_700_000_100_000_000_000
GPUS = [GpuDescription("GPU-a", 0), GpuDescription("GPU-b", 1), GpuDescription("GPU-c", 2, mig_uuid="MIG-1")]


@pytest.fixture
def socket():
    # The path of a socket may have 107 characters only.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
def kubelet(socket):
    with FakeKubelet(socket) as running:
        yield running


def pods(socket, minors=None):
    return KubeletPods(socket, DeviceNames(GPUS, minors or {}), STARTED)


def test_each_gpu_gets_the_pod_that_holds_it(kubelet, socket):
    kubelet.pods = [
        ("training", "resnet-0", "main", "nvidia.com/gpu", ["GPU-a"]),
        ("training", "bert-0", "main", "nvidia.com/mig-1g.10gb", ["MIG-1"]),
        ("web", "nginx", "nginx", "cpu", ["0"]),
        ("web", "elsewhere", "x", "nvidia.com/gpu", ["GPU-unknown"]),
    ]
    found = pods(socket).owners(NOW)
    assert {gpu: [o.job_id for o in owners] for gpu, owners in found.items()} == {
        "GPU-a": ["training/resnet-0"],
        "MIG-1": ["training/bert-0"],
    }
    (owner,) = found["GPU-a"]
    assert owner.scheduler is Scheduler.KUBERNETES
    assert owner.labels == {"namespace": "training", "pod": "resnet-0", "container": "main"}


def test_time_slicing_gives_one_gpu_several_pods_and_device_files_are_understood(kubelet, socket):
    kubelet.pods = [
        ("a", "one", "c", "nvidia.com/gpu.shared", ["GPU-a::0"]),
        ("a", "two", "c", "nvidia.com/gpu.shared", ["GPU-a::1", "GPU-a::2"]),
        ("a", "three", "c", "nvidia.com/gpu", ["nvidia5"]),
    ]
    found = pods(socket, {5: "GPU-b"}).owners(NOW)
    assert [o.job_id for o in found["GPU-a"]] == ["a/one", "a/two"]
    assert [o.job_id for o in found["GPU-b"]] == ["a/three"]


def test_claims_of_dynamic_resource_allocation_are_understood(kubelet, socket):
    nvidia = "gpu.nvidia.com"
    kubelet.claims = [
        # As NVIDIA's driver names devices since Kubernetes 1.34; the number is that of the device file.
        ("a", "named", "c", nvidia, "gpu-5", ["k8s.gpu.nvidia.com/claim=0a1b-gpu-5"]),
        # A kubelet that tells CDI names only.
        ("a", "by-cdi", "c", "", "", ["k8s.gpu.nvidia.com/device=gpu-6"]),
        ("a", "by-uuid", "c", "", "", ["nvidia.com/gpu=MIG-1"]),
        # An instance by its profile: which one, nobody says. And devices of others.
        ("a", "profile", "c", nvidia, "gpu-6-mig-19-0-1", ["k8s.gpu.nvidia.com/device=gpu-6-mig-19-0-1"]),
        ("a", "network", "c", "nic.example.com", "gpu-6", ["nic.example.com/port=gpu-6"]),
    ]
    found = pods(socket, {5: "GPU-a", 6: "GPU-b"}).owners(NOW)
    assert {gpu: [o.job_id for o in owners] for gpu, owners in found.items()} == {
        "GPU-a": ["a/named"],
        "GPU-b": ["a/by-cdi"],
        "MIG-1": ["a/by-uuid"],
    }


def test_what_is_there_at_the_first_answer_has_been_there_since_the_agent_began_to_look(kubelet, socket):
    subject = pods(socket)
    kubelet.pods = [("a", "early", "c", "nvidia.com/gpu", ["GPU-a"])]
    assert subject.owners(NOW)["GPU-a"][0].start_unix_nano == STARTED
    kubelet.pods.append(("a", "late", "c", "nvidia.com/gpu", ["GPU-b"]))
    assert subject.owners(NOW)["GPU-b"][0].start_unix_nano == NOW


def test_a_pod_that_has_ended_and_is_still_listed_gives_way_to_the_next_one(kubelet, socket):
    subject = pods(socket)
    kubelet.pods = [("a", "ended", "c", "nvidia.com/gpu", ["GPU-a"]), ("a", "one", "c", "nvidia.com/gpu", ["GPU-b::0"])]
    assert [o.job_id for o in subject.owners(NOW)["GPU-a"]] == ["a/ended"]
    kubelet.pods.insert(0, ("a", "next", "c", "nvidia.com/gpu", ["GPU-a"]))
    kubelet.pods.append(("a", "two", "c", "nvidia.com/gpu", ["GPU-b::1"]))
    for _ in range(2):
        found = subject.owners(NOW)
        assert [o.job_id for o in found["GPU-a"]] == ["a/next"]
        assert [o.job_id for o in found["GPU-b"]] == ["a/one", "a/two"]


def test_a_host_without_a_kubelet_has_no_pods_and_no_error(socket):
    assert pods(socket).owners(NOW) == {}


def test_a_kubelet_that_goes_away_is_an_error_and_its_return_is_none(kubelet, socket):
    subject = pods(socket)
    kubelet.pods = [("a", "one", "c", "nvidia.com/gpu", ["GPU-a"])]
    subject.owners(NOW)
    kubelet.stop()
    with pytest.raises(SourceError, match="is gone"):
        subject.owners(NOW)
    kubelet.start()
    assert subject.owners(NOW)["GPU-a"][0].job_id == "a/one"


def test_a_kubelet_that_refuses_is_quoted(kubelet, socket):
    kubelet.refuse = grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(SourceError, match=r"PERMISSION_DENIED: refused by the test"):
        pods(socket).owners(NOW)


def test_a_kubelet_that_hangs_is_given_up_after_two_seconds(kubelet, socket):
    kubelet.delay_s = 2.5
    with pytest.raises(SourceError, match="DEADLINE_EXCEEDED"):
        pods(socket).owners(NOW)


def test_a_file_that_is_no_socket_is_an_error(socket):
    socket.write_text("")
    with pytest.raises(SourceError, match="does not answer"):
        pods(socket).owners(NOW)


def test_an_answer_that_is_no_message_is_an_error(socket):
    broken = FakeKubelet(socket)
    broken._list = lambda *_: b"\xff\xff\xff\xff"
    with broken, pytest.raises(SourceError, match="does not answer"):
        list_pods(socket)


def test_names_of_any_length_fit_into_a_record(kubelet, socket):
    kubelet.pods = [("n" * 63, "p" * 253, "c" * 300, "nvidia.com/gpu", ["GPU-a"])]
    (owner,) = pods(socket).owners(NOW)["GPU-a"]
    assert len(owner.job_id) == 256
    assert max(map(len, owner.labels.values())) <= 256


def test_the_numbers_on_the_wire_are_the_kubelet_s():
    # name=1 "p", namespace=2 "n", containers=3 { name=1 "c", devices=2 { resource_name=1 "r", device_ids=2 "d" } },
    # and fields that we do not know: cpu_ids=3 of the container, a topology=3 of the devices.
    from gpusonde.kubelet.v1 import pod_resources_pb2 as pb

    devices = bytes.fromhex("0a0172 120164 1a00")
    container = bytes.fromhex("0a0163") + b"\x12" + bytes([len(devices)]) + devices + bytes.fromhex("1a020102")
    pod = bytes.fromhex("0a0170 12016e") + b"\x1a" + bytes([len(container)]) + container
    answer = pb.ListPodResourcesResponse.FromString(b"\x0a" + bytes([len(pod)]) + pod)
    (read,) = answer.pod_resources
    assert (read.name, read.namespace, read.containers[0].name) == ("p", "n", "c")
    assert (read.containers[0].devices[0].resource_name, list(read.containers[0].devices[0].device_ids)) == ("r", ["d"])


def test_the_numbers_of_claims_on_the_wire_are_the_kubelet_s():
    # dynamic_resources=5 { claim_name=2 "n", claim_namespace=3 "s", claim_resources=4 { cdi_devices=1 { name=1
    # "v/c=d" }, driver_name=2 "r", pool_name=3 "p", device_name=4 "gpu-0", share_id=5 "x" } } of a container.
    from gpusonde.kubelet.v1 import pod_resources_pb2 as pb

    cdi = bytes.fromhex("0a05") + b"v/c=d"
    claim = b"\x0a" + bytes([len(cdi)]) + cdi + bytes.fromhex("120172 1a0170 2205") + b"gpu-0" + bytes.fromhex("2a0178")
    dynamic = bytes.fromhex("12016e 1a0173") + b"\x22" + bytes([len(claim)]) + claim
    (read,) = pb.ContainerResources.FromString(b"\x2a" + bytes([len(dynamic)]) + dynamic).dynamic_resources
    (told,) = read.claim_resources
    assert (told.driver_name, told.device_name, told.cdi_devices[0].name) == ("r", "gpu-0", "v/c=d")

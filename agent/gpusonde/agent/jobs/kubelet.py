"""Kubernetes' pods from the kubelet's pod-resources socket: read-only, one small question per poll."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gpusonde.agent.jobs.ownership import Owner, Owners, Scheduler
from gpusonde.agent.jobs.sources import DeviceNames, bounded
from gpusonde.errors import SourceError
from gpusonde.kubelet.v1 import pod_resources_pb2

_METHOD = "/v1.PodResourcesLister/List"
_TIMEOUT_S = 2.0
# A node has at most a few hundred pods; their resources are some hundred kilobytes.
_LARGEST_ANSWER_BYTES = 16 << 20
_MOST_DEVICES = 4096
_RESOURCE_VENDOR = "nvidia.com/"
_DRA_DRIVER = "gpu.nvidia.com"
_VENDORS = frozenset({"nvidia.com", "k8s.gpu.nvidia.com"})
# What names a GPU in a claim's device, whatever stands before it; "gpu-0-mig-..." says a profile, not which instance.
_DRA_ID = re.compile(r"(GPU|MIG)-[0-9a-zA-Z-]+$|(?<![0-9a-z])gpu-[0-9]+$")
_DRA_NAME = re.compile(r"^gpu-([0-9]+)$")
_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", _LARGEST_ANSWER_BYTES),
    # Servers in Go refuse the path of a socket as an authority.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)
_NOT_THERE = "is gone; the kubelet starts again, or its folder is no longer mounted into the agent's container"

ListPods = Callable[[Path], pod_resources_pb2.ListPodResourcesResponse]


def list_pods(socket: Path) -> pod_resources_pb2.ListPodResourcesResponse:
    """Ask the kubelet once.

    A channel of its own for each question outlives no restart of the kubelet and keeps no thread awake in between.

    Raises:
        SourceError: It does not answer.
    """
    with grpc.insecure_channel(f"unix:{socket.absolute()}", options=_CHANNEL_OPTIONS) as channel:
        ask = channel.unary_unary(
            _METHOD,
            request_serializer=pod_resources_pb2.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pod_resources_pb2.ListPodResourcesResponse.FromString,
        )
        try:
            answer: pod_resources_pb2.ListPodResourcesResponse = ask(
                pod_resources_pb2.ListPodResourcesRequest(), timeout=_TIMEOUT_S
            )
        except grpc.RpcError as error:
            # A failed call is its own outcome, which the type of the exception does not say.
            code, details = error.code(), error.details()
            raise SourceError(f"{socket}: the kubelet does not answer ({code.name}: {details})") from error
        return answer


@dataclass(frozen=True)
class _Device:
    gpu: str
    is_replica: bool
    namespace: str
    pod: str
    container: str


class KubeletPods:
    """Tells which pod's container holds which GPU.

    Args:
        socket: The kubelet's socket.
        devices: Resolves device ids.
        started_unix_nano: When the agent began to look: what is there at the first answer has been there since.
        ask: Asks the kubelet.
    """

    name = "kubernetes"

    def __init__(
        self, socket: Path, devices: DeviceNames, started_unix_nano: int, *, ask: ListPods = list_pods
    ) -> None:
        self._socket = socket
        self._devices = devices
        self._started_unix_nano = started_unix_nano
        self._ask = ask
        self._first = True
        self._polls = 0
        self._first_poll: dict[tuple[str, str], int] = {}

    def is_there(self) -> bool:
        """Whether this host has a kubelet, as far as can be seen."""
        try:
            return self._socket.exists()
        except OSError:
            # A folder that only root may enter: there is one, and asking it says what is wrong.
            return True

    def owners(self, now_unix_nano: int) -> Owners:
        """See :class:`gpusonde.agent.jobs.sources.JobSource`."""
        if not self.is_there():
            if self._first:
                return {}
            raise SourceError(f"{self._socket} {_NOT_THERE}")
        start = self._started_unix_nano if self._first else now_unix_nano
        found: dict[str, dict[str, Owner]] = {}
        time_sliced: set[str] = set()
        for device in self._allocated(self._ask(self._socket)):
            job = bounded(f"{device.namespace}/{device.pod}")
            labels = {"namespace": bounded(device.namespace), "pod": bounded(device.pod)}
            if device.container:
                labels["container"] = bounded(device.container)
            owner = Owner(Scheduler.KUBERNETES, job, start_unix_nano=start, labels=labels)
            found.setdefault(device.gpu, {}).setdefault(job, owner)
            if device.is_replica:
                time_sliced.add(device.gpu)
        self._first = False
        self._polls += 1
        self._first_poll = {
            (gpu, job): self._first_poll.get((gpu, job), self._polls) for gpu, owners in found.items() for job in owners
        }
        return {
            gpu: tuple(owners.values()) if gpu in time_sliced else self._newest(gpu, owners)
            for gpu, owners in found.items()
        }

    def _newest(self, gpu: str, owners: Mapping[str, Owner]) -> tuple[Owner, ...]:
        """Return who holds a GPU that only one pod can hold.

        Many kubelets go on listing pods that have ended (kubernetes/kubernetes issue 119423), beside the pod that got
        the GPU after them.
        """
        newest = max(self._first_poll[gpu, job] for job in owners)
        return tuple(owner for job, owner in owners.items() if self._first_poll[gpu, job] == newest)

    def _allocated(self, answer: pod_resources_pb2.ListPodResourcesResponse) -> Iterator[_Device]:
        seen = 0
        for pod in answer.pod_resources:
            for container in pod.containers:
                for names in _names(container):
                    seen += 1
                    if seen > _MOST_DEVICES:
                        return
                    gpu = next((gpu for name in names if (gpu := self._devices.by_plugin_id(name)) is not None), None)
                    if gpu is not None and pod.name:
                        replica = any("::" in name for name in names)
                        yield _Device(gpu, replica, pod.namespace or "default", pod.name, container.name)


def _names(container: pod_resources_pb2.ContainerResources) -> Iterator[Sequence[str]]:
    """Yield the names of each device that a container got, by a device plugin or by claims (DRA)."""
    for group in container.devices:
        if group.resource_name.startswith(_RESOURCE_VENDOR):
            for name in group.device_ids:
                yield (name,)
    for resource in container.dynamic_resources:
        for claim in resource.claim_resources:
            # Of NVIDIA's driver gpu-N is that of /dev/nvidiaN; a name of its CDI devices ends in that or in a UUID.
            known = [each.name.rpartition("=")[2] for each in claim.cdi_devices if each.name.split("/")[0] in _VENDORS]
            if claim.driver_name == _DRA_DRIVER:
                known.append(claim.device_name)
            ids = [match.group() for name in known if (match := _DRA_ID.search(name))]
            if ids:
                yield [_DRA_NAME.sub(r"nvidia\1", each) for each in ids]

"""A kubelet's pod-resources service on a Unix socket: real gRPC, invented pods."""

from __future__ import annotations

import time
from concurrent import futures

import grpc

from gpusonde.kubelet.v1 import pod_resources_pb2 as pb


class FakeKubelet:
    """Answers List with what a test puts into ``pods``: (namespace, pod, container, resource, device ids).

    And into ``claims``: (namespace, pod, container, driver, device, CDI names), as kubelets tell of resource claims.
    """

    def __init__(self, socket):
        self.socket = socket
        self.pods = []
        self.claims = []
        self.refuse = None
        self.delay_s = 0.0
        self.asked = 0
        self._server = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        handler = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=lambda answer: answer if isinstance(answer, bytes) else answer.SerializeToString(),
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        assert server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        self._server = server

    def stop(self):
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        self.socket.unlink(missing_ok=True)

    def _list(self, _request, context):
        self.asked += 1
        time.sleep(self.delay_s)
        if self.refuse is not None:
            context.abort(self.refuse, "refused by the test")
        return pb.ListPodResourcesResponse(
            pod_resources=[
                pb.PodResources(
                    name=pod,
                    namespace=namespace,
                    containers=[
                        pb.ContainerResources(
                            name=container,
                            devices=[pb.ContainerDevices(resource_name=resource, device_ids=ids)],
                        )
                    ],
                )
                for namespace, pod, container, resource, ids in self.pods
            ]
            + [
                pb.PodResources(
                    name=pod,
                    namespace=namespace,
                    containers=[
                        pb.ContainerResources(
                            name=container,
                            dynamic_resources=[
                                pb.DynamicResource(
                                    claim_resources=[
                                        pb.ClaimResource(
                                            driver_name=driver,
                                            device_name=device,
                                            cdi_devices=[pb.CDIDevice(name=name) for name in names],
                                        )
                                    ]
                                )
                            ],
                        )
                    ],
                )
                for namespace, pod, container, driver, device, names in self.claims
            ]
        )

"""The gRPC server: options, services, health, reflection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import tempfile
from collections.abc import Iterator, Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gpusonde.admin.v1 import admin_pb2, admin_pb2_grpc
from gpusonde.collector.ingest.service import AdminService, IngestService
from gpusonde.collector.planning.service import PlanningService
from gpusonde.collector.query.service import QueryService
from gpusonde.collector.workload.service import WorkloadService
from gpusonde.errors import GpusondeError
from gpusonde.ingest.v1 import ingest_pb2, ingest_pb2_grpc
from gpusonde.planning.v1 import planning_pb2, planning_pb2_grpc
from gpusonde.query.v1 import query_pb2, query_pb2_grpc
from gpusonde.service.metrics_endpoint import check_free
from gpusonde.workload.v1 import workload_pb2, workload_pb2_grpc

_MOST_CALLS_PER_CONNECTION = 64
# From the connection to the client's first frame. gRPC's 2 minutes are time for strangers to hold connections in.
_HANDSHAKE_TIMEOUT_S = 10.0
# Without a call. Agents always have one; whoever asks now and then connects again.
_IDLE_TIMEOUT_S = 30.0
# The path of such a socket has 107 bytes at most.
_LONGEST_FOLDER = 90
_REASONS = {
    errno.EADDRINUSE: "another process (another collector?) uses it",
    errno.EADDRNOTAVAIL: "it is no address of this host",
}

INGEST = ingest_pb2.DESCRIPTOR.services_by_name["IngestService"].full_name
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
PLANNING = planning_pb2.DESCRIPTOR.services_by_name["PlanningService"].full_name
WORKLOAD = workload_pb2.DESCRIPTOR.services_by_name["WorkloadService"].full_name
_REFLECTION = "grpc.reflection.v1.ServerReflection"
QUERY = query_pb2.DESCRIPTOR.services_by_name["QueryService"].full_name


class Health:
    """``grpc.health.v1``: ingest and the whole are not serving while no records are taken; queries go on."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        # The loop alone would not keep a task alive.
        self._changes: set[asyncio.Future[None]] = set()

    def note_ingest(self, serving: bool) -> None:
        """Say soon whether records are taken; to be called on the event loop."""
        task = asyncio.ensure_future(self.set_ingest(serving))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def set_ingest(self, serving: bool) -> None:
        """Say whether records are taken."""
        for service in ("", INGEST):
            await self.servicer.set(service, _status(serving))

    async def set_query(self, serving: bool) -> None:
        """Say whether questions are answered."""
        for service in (QUERY, PLANNING, WORKLOAD):
            await self.servicer.set(service, _status(serving))


def build_server(
    ingest: IngestService,
    query: QueryService,
    admin: AdminService,
    planning: PlanningService,
    workload: WorkloadService,
    health_state: Health,
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    *,
    max_record_bytes: int,
    max_question_bytes: int,
    most_connections: int,
    with_reflection: bool,
) -> grpc.aio.Server:
    """Return a server with all services and no address yet."""
    server = grpc.aio.server(
        interceptors=interceptors,
        options=[
            # gRPC shares ports by default: a second collector on this one would silently take half of the streams.
            ("grpc.so_reuseport", 0),
            # Sockets may not take the file descriptors that the store needs.
            ("grpc.max_allowed_incoming_connections", most_connections),
            ("grpc.server_handshake_timeout_ms", round(_HANDSHAKE_TIMEOUT_S * 1e3)),
            ("grpc.max_connection_idle_ms", round(_IDLE_TIMEOUT_S * 1e3)),
            # Records somewhat above the limit are read, so that they can be named, counted and put aside.
            ("grpc.max_receive_message_length", max(2 * max_record_bytes, max_question_bytes) + (1 << 16)),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # The same for the pings of flow control, in whose place no ping of keepalive is sent.
            ("grpc.http2.ping_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # Agents ping every 20 s; the default permits one ping in 5 minutes and hangs up on the rest.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            # As many may come sooner, while nothing is sent, before the connection ends.
            ("grpc.http2.max_ping_strikes", 20),
            # An agent has one stream and a reader a handful; the default is no bound at all.
            ("grpc.max_concurrent_streams", _MOST_CALLS_PER_CONNECTION),
        ],
    )
    ingest_pb2_grpc.add_IngestServiceServicer_to_server(ingest, server)  # type: ignore[no-untyped-call]
    query_pb2_grpc.add_QueryServiceServicer_to_server(query, server)  # type: ignore[no-untyped-call]
    planning_pb2_grpc.add_PlanningServiceServicer_to_server(planning, server)  # type: ignore[no-untyped-call]
    workload_pb2_grpc.add_WorkloadServiceServicer_to_server(workload, server)  # type: ignore[no-untyped-call]
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_state.servicer, server)
    if with_reflection:
        _add_reflection(server)
    return server


def _add_reflection(server: grpc.aio.Server) -> None:
    """Serve reflection under both of its names, whose messages are the same on the wire; the library has the older."""
    names = (INGEST, QUERY, PLANNING, WORKLOAD, ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME, _REFLECTION)
    servicer = reflection.aio.ReflectionServicer(service_names=names)
    for name in (reflection.SERVICE_NAME, _REFLECTION):
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        generic = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        server.add_generic_rpc_handlers((generic,))


def bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None = None) -> str:
    """Make a server listen, with TLS where there are credentials, and return its address with the port it got.

    Raises:
        GpusondeError: The address is taken or cannot be used.
    """
    try:
        # gRPC would say no more than "failed to bind", and write lines of its own to stderr before.
        check_free(listen)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise GpusondeError(f"cannot listen on {listen}: {reason}; choose another one with server.listen") from error
    try:
        port = server.add_insecure_port(listen) if credentials is None else server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise GpusondeError(
            f"cannot listen on {listen}: another process (another collector?) uses it, or it is no address of this"
            " host; choose another one with server.listen"
        ) from error
    return f"{listen.rpartition(':')[0]}:{port}"


@contextlib.contextmanager
def private_socket() -> Iterator[str]:
    """Yield a gRPC address in a folder that only this user can enter, and remove the folder in the end."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpusonde-", ignore_cleanup_errors=True))
        if len(folder) > _LONGEST_FOLDER:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gpusonde-", dir="/tmp", ignore_cleanup_errors=True)
            )
        yield f"unix:{folder}/collector"


def _status(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING

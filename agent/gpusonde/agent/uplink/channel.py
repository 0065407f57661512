"""The channel to a collector, and how a call on it ended."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from gpusonde.agent.uplink.session import SampleCall
from gpusonde.agent.uplink.settings import UplinkSettings
from gpusonde.service.process import within
from gpusonde.service.tls import Access

_STATUS_TIMEOUT_S = 5.0


def open_channel(target: str, access: Access, settings: UplinkSettings) -> grpc.aio.Channel:
    """Return a channel that notices a dead connection by itself."""
    options = [
        *access.options,
        # Otherwise a new channel inherits the back-off of the connection that has just failed.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", round(settings.keepalive_s * 1e3)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1e3)),
        # gRPC 1.85 applies the line above to a ping of its own only; with another one under way a dead connection would
        # be noticed after a minute.
        ("grpc.http2.ping_timeout_ms", round(settings.keepalive_timeout_s * 1e3)),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        # Answers are a few bytes: to measure the bandwidth for them would wake up the host with every one.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_receive_message_length", 1 << 20),
        ("grpc.max_send_message_length", 16 << 20),
        ("grpc.enable_retries", 0),
    ]
    if access.credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, access.credentials, options=options)


async def call_status(
    call: SampleCall,
    error: BaseException | None,
) -> tuple[str, str]:
    """Return the status a call ended with, as far as it can be known."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code().name, error.details() or ""
    try:
        code: grpc.StatusCode = await within(call.code(), _STATUS_TIMEOUT_S)
        details: str = await within(call.details(), _STATUS_TIMEOUT_S) or ""
    except asyncio.TimeoutError:
        return grpc.StatusCode.UNKNOWN.name, f"the stream broke: {error}"
    return code.name, details or "the collector closed the stream"

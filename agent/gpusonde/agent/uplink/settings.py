"""How to reach a collector, and what Hello says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpusonde.common.v1 import gpu_pb2


@dataclass(frozen=True)
class AgentFacts:
    """What Hello says about the agent.

    Attributes:
        host: The machine.
        agent_version: Version of the agent.
        start_time_unix_nano: When this process started.
        instance_id: Unique per process.
        read_load: Says what the machine is doing, for collectors that ask; None for never.
    """

    host: gpu_pb2.Host
    agent_version: str
    start_time_unix_nano: int
    instance_id: str
    read_load: Callable[[], gpu_pb2.HostLoad] | None = None


@dataclass(frozen=True)
class UplinkSettings:
    """How to reach the collector.

    Attributes:
        collector: Its address, ``host:port`` or any other gRPC target.
        max_unacked_records: Most records in flight; the collector may ask for fewer.
        allowed_targets: Patterns of addresses that the collector may send the agent to; * stands for any characters.
        hello_timeout_s: Longest wait for the answer to Hello, connecting included.
        ack_timeout_s: Longest wait for an ack while records are in flight; then the stream is taken for dead.
        keepalive_s: Seconds between pings of an idle connection.
        keepalive_timeout_s: Seconds to wait for a ping's answer.
        renewal_check_s: Seconds between looks at the files of certificate and token.
    """

    collector: str
    max_unacked_records: int = 64
    allowed_targets: tuple[str, ...] = ()
    hello_timeout_s: float = 20.0
    ack_timeout_s: float = 60.0
    keepalive_s: float = 20.0
    keepalive_timeout_s: float = 10.0
    renewal_check_s: float = 10.0

"""``FleetClient``: orders about the agents of a collector, for administrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusonde.admin.v1 import admin_pb2, admin_pb2_grpc
from gpusonde.collector.client.connection import ServiceClient
from gpusonde.service.tls import ClientSecurity


@dataclass(frozen=True)
class ConnectedAgent:
    """An agent whose stream is open.

    Attributes:
        agent_id: Its name.
        host_name: Its machine.
        identity: Who it has proved to be.
        peer: Address that it connects from.
        spool_id: The spool whose records it sends.
        durable_sequence: Highest sequence of the spool that is durable.
        throttled: It was asked for less.
    """

    agent_id: str
    host_name: str
    identity: str
    peer: str
    spool_id: str
    durable_sequence: int
    throttled: bool


class FleetClient(ServiceClient):
    """Gives orders to one collector. Use it as a context manager, or call ``close``.

    Args:
        target: The collector's address, ``host:port``.
        timeout_s: Longest wait for an answer.
        security: Files of certificate, authority and token; read once, here.

    Raises:
        gpusonde.errors.TlsError: One of the files cannot be used.
    """

    def __init__(self, target: str, timeout_s: float = 30.0, security: ClientSecurity | None = None) -> None:
        super().__init__(target, timeout_s, security)
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def list_agents(self) -> list[ConnectedAgent]:
        """Return the agents whose stream is open, by id.

        Raises:
            CollectorError: There is no answer, or the caller is no admin.
        """
        agents: list[ConnectedAgent] = []
        request = admin_pb2.ListAgentsRequest()
        while True:
            with self._errors():
                response = self._stub.ListAgents(request, timeout=self._timeout_s, metadata=self._metadata)
            agents += [
                ConnectedAgent(a.agent_id, a.host_name, a.identity, a.peer, a.spool_id, a.durable_sequence, a.throttled)
                for a in response.agents
            ]
            request.page_token = response.next_page_token
            if not response.next_page_token:
                return agents

    def drain(self, agent_ids: Sequence[str] | None, preferred_target: str = "") -> tuple[list[str], list[str]]:
        """Ask agents to end their stream; return the ids of those that were asked and of those that are not here.

        Args:
            agent_ids: Whose; None means all.
            preferred_target: Where they should go; empty for "come back".

        Raises:
            CollectorError: There is no answer, or the caller is no admin.
        """
        request = admin_pb2.DrainAgentsRequest(
            agent_ids=agent_ids or (), all_agents=agent_ids is None, preferred_target=preferred_target
        )
        with self._errors():
            response = self._stub.DrainAgents(request, timeout=self._timeout_s, metadata=self._metadata)
        return list(response.drained_agent_ids), list(response.absent_agent_ids)

"""``FleetClient``: orders about the agents of a collector, for administrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusonde.admin.v1 import admin_pb2, admin_pb2_grpc
from gpusonde.collector.client.connection import ServiceClient


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
    """Gives orders to one collector."""

    _stub_type = admin_pb2_grpc.AdminServiceStub

    def list_agents(self) -> list[ConnectedAgent]:
        """Return the agents whose stream is open, by id.

        Raises:
            CollectorError: There is no answer, or the caller is no admin.
        """
        return self._list(self._stub.ListAgents, admin_pb2.ListAgentsRequest(), "agents", _agent)

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
        response = self._ask(self._stub.DrainAgents, request)
        return list(response.drained_agent_ids), list(response.absent_agent_ids)


def _agent(agent: admin_pb2.ConnectedAgent) -> ConnectedAgent:
    return ConnectedAgent(
        agent.agent_id,
        agent.host_name,
        agent.identity,
        agent.peer,
        agent.spool_id,
        agent.durable_sequence,
        agent.throttled,
    )

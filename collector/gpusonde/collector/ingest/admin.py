"""``AdminService``: which agents stream here, and sending them elsewhere."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import grpc.aio

from gpusonde.admin.v1 import admin_pb2, admin_pb2_grpc
from gpusonde.collector.ingest.admission import Stop
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.ingest.session import AgentSession
from gpusonde.errors import WireError
from gpusonde.service.wire import check_identity

_LOG = logging.getLogger(__name__)
_PAGE_SIZE = 1000
_MOST_IDS = 10_000
_LONGEST_TARGET = 256

Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Implements ``gpusonde.admin.v1.AdminService``.

    Args:
        agents: Knows the open streams.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def ListAgents(  # noqa: N802 - gRPC's name, as below
        self, request: admin_pb2.ListAgentsRequest, context: Context
    ) -> admin_pb2.ListAgentsResponse:
        """Return the agents whose stream is open."""
        size = min(request.page_size or _PAGE_SIZE, _PAGE_SIZE)
        # A token is the id that the page before ended with: agents that come or go meanwhile shift nothing.
        rest = [session for agent_id, session in sorted(self._open().items()) if agent_id > request.page_token]
        page = rest[:size]
        return admin_pb2.ListAgentsResponse(
            agents=[_connected(session) for session in page],
            next_page_token=page[-1].agent_id if len(rest) > size else "",
        )

    async def DrainAgents(  # noqa: N802
        self, request: admin_pb2.DrainAgentsRequest, context: Context
    ) -> admin_pb2.DrainAgentsResponse:
        """End streams and say where their agents should go."""
        target = request.preferred_target
        try:
            for index, agent_id in enumerate(request.agent_ids):
                check_identity(agent_id, f"agent_ids[{index}]")
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if len(target) > _LONGEST_TARGET or not target.isprintable() or " " in target:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "preferred_target is no address; write host:port")
        if bool(request.agent_ids) == request.all_agents or len(request.agent_ids) > _MOST_IDS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"name up to {_MOST_IDS} agent_ids, or set all_agents, but not both"
            )
        sessions = self._open()
        wanted = list(sessions) if request.all_agents else list(dict.fromkeys(request.agent_ids))
        drained = [agent_id for agent_id in wanted if agent_id in sessions]
        for agent_id in drained:
            sessions[agent_id].end(Stop(grpc.StatusCode.OK, "an administrator drains this agent", target))
        if drained:
            _LOG.info("%d agents are asked to go to %s", len(drained), target or "nowhere else; they come back")
        return admin_pb2.DrainAgentsResponse(
            drained_agent_ids=drained, absent_agent_ids=[agent_id for agent_id in wanted if agent_id not in sessions]
        )

    def _open(self) -> dict[str, AgentSession]:
        return {session.agent_id: session for session in self._agents.sessions()}


def _connected(session: AgentSession) -> admin_pb2.ConnectedAgent:
    return admin_pb2.ConnectedAgent(
        agent_id=session.agent_id,
        host_name=session.host_name,
        identity=session.identity.name if session.identity else "",
        peer=session.peer,
        spool_id=session.spool_id,
        durable_sequence=session.durable_sequence,
        throttled=session.is_throttled,
    )

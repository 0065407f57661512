"""Who a caller is, and what that allows."""

from __future__ import annotations

import enum
import fnmatch
import math
from dataclasses import dataclass


class Role(enum.Enum):
    """What a caller is there for. An admin may also read; nobody but an agent may stream."""

    AGENT = "agent"
    READER = "reader"
    ADMIN = "admin"


_GRANTED = {
    Role.AGENT: frozenset({Role.AGENT}),
    Role.READER: frozenset({Role.READER}),
    Role.ADMIN: frozenset({Role.READER, Role.ADMIN}),
}


@dataclass(frozen=True)
class CallerIdentity:
    """A caller whose proof was checked.

    Attributes:
        name: For logs and limits, for example "certificate host-1"; holds no secret.
        roles: What it may do.
        agent_ids: Agent ids that it may stream as; ``*`` stands for any characters. Empty for none.
        expires_unix_s: When its certificate expires; infinite without one.
        token_digest: SHA-256 of its token in hexadecimal digits; empty without one.
    """

    name: str
    roles: frozenset[Role]
    agent_ids: str = ""
    expires_unix_s: float = math.inf
    token_digest: str = ""

    def may(self, role: Role) -> bool:
        """Return whether it may do what the role is for."""
        return role in self.roles

    def may_stream_as(self, agent_id: str) -> bool:
        """Return whether it may be the agent of that id."""
        return self.may(Role.AGENT) and bool(self.agent_ids) and fnmatch.fnmatchcase(agent_id, self.agent_ids)

    @property
    def is_one_agent(self) -> bool:
        """Whether it stands for one agent and not for several that share a token."""
        return bool(self.agent_ids) and not set(self.agent_ids) & set("*?[")


def granted(role: Role) -> frozenset[Role]:
    """Return everything that a role allows."""
    return _GRANTED[role]


# Whoever can reach a collector that listens on loopback has an account on its host. Such a caller may do what a user
# does, but not tell the fleet where to stream to.
ANONYMOUS = CallerIdentity("anonymous", frozenset({Role.AGENT, Role.READER}), agent_ids="*")

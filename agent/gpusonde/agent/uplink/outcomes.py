"""How a session with a collector can end, and what is said about each end."""

from __future__ import annotations

import grpc


class SessionEnd(Exception):  # noqa: N818 - most ends are ordinary
    """A session ended; the subclass says how to go on."""


class ResendNeeded(SessionEnd):
    """Say Hello again at once: the spool no longer starts where this session was told."""


class Renewed(SessionEnd):
    """Certificate, key, authority, token or the settings have changed: connect with the new ones."""


class Drained(SessionEnd):
    """The collector asked us to go elsewhere.

    Attributes:
        preferred_target: Where to; empty for the same address.
    """

    def __init__(self, preferred_target: str) -> None:
        """Keep the address."""
        super().__init__(preferred_target)
        self.preferred_target = preferred_target


class SessionFailed(SessionEnd):
    """The stream broke or was refused.

    Attributes:
        code: gRPC status name, for example "UNAVAILABLE".
        details: The collector's or the library's words.
    """

    def __init__(self, code: str, details: str) -> None:
        """Keep status and words."""
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details

    @property
    def advice(self) -> str:
        """What a person must do; empty when waiting is enough."""
        return _ADVICE.get(self.code, "")


_ADVICE = {
    grpc.StatusCode.ALREADY_EXISTS.name: (
        "another agent with this agent_id is connected; stop it, or give one of the two its own agent.id and spool"
    ),
    grpc.StatusCode.FAILED_PRECONDITION.name: (
        "the collector does not accept this agent as it is; see its message, then correct agent.id or the spool"
    ),
    grpc.StatusCode.PERMISSION_DENIED.name: "the collector does not allow this agent_id; correct its access list",
    grpc.StatusCode.UNAUTHENTICATED.name: "the collector wants credentials that this agent does not have",
    grpc.StatusCode.INVALID_ARGUMENT.name: "the collector does not understand a record; run one version of both",
    grpc.StatusCode.UNIMPLEMENTED.name: "the address answers but is not a gpusonde collector; correct uplink.collector",
}

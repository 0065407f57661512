"""``Guard``: from a call to an identity, by its client certificate or its token, and on to what it may do.

Of a certificate that gRPC has verified, role and name stand in a URI among the subject's alternative names:
``gpusonde://agent/NAME``, ``gpusonde://reader/NAME`` or ``gpusonde://admin/NAME``. For fleets whose hosts have
certificates already, the collector can be told to take those without such a URI for agents (or readers) named by their
common name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from gpusonde.collector.security.identity import ANONYMOUS, CallerIdentity, Role, granted
from gpusonde.collector.security.tokens import TokenFile
from gpusonde.errors import RequestError
from gpusonde.service.tls.certificates import expiry_unix_s

_URI = re.compile(r"gpusonde://(agent|reader|admin)/([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


def has_certificate(auth_context: Mapping[str, Sequence[bytes]]) -> bool:
    """Return whether the caller came with a certificate; gRPC has turned away those it could not verify."""
    return bool(auth_context.get("x509_pem_cert"))


def certificate_identity(auth_context: Mapping[str, Sequence[bytes]], default_role: Role | None) -> CallerIdentity:
    """Return the identity in a verified certificate.

    Args:
        auth_context: ``ServicerContext.auth_context()``.
        default_role: Role of certificates without a URI of ours; None refuses them.

    Raises:
        RequestError: It names nobody, or more than one (``UNAUTHENTICATED``).
    """
    try:
        expiry = expiry_unix_s(auth_context["x509_pem_cert"][0])
    except ValueError as error:
        raise RequestError("UNAUTHENTICATED", f"the certificate cannot be read: {error}") from None
    uris = [_text(uri) for uri in auth_context.get("peer_uri", ())]
    ours = [uri for uri in uris if uri.startswith("gpusonde:")]
    if len(ours) > 1:
        raise RequestError("UNAUTHENTICATED", "the certificate has more than one gpusonde:// URI; issue one per role")
    if ours:
        match = _URI.fullmatch(ours[0])
        if match is None:
            raise RequestError("UNAUTHENTICATED", "the certificate's gpusonde:// URI is not gpusonde://ROLE/NAME")
        return _identity(Role(match[1]), match[2], expiry)
    if default_role is None:
        raise RequestError(
            "UNAUTHENTICATED",
            "the certificate has no gpusonde://ROLE/NAME URI; issue one with it, or set security.certificate_role",
        )
    names = auth_context.get("x509_common_name", ())
    name = _text(names[0]) if len(names) == 1 else ""
    if not _NAME.fullmatch(name):
        raise RequestError("UNAUTHENTICATED", "the certificate's common name is no agent id")
    return _identity(default_role, name, expiry)


def _identity(role: Role, name: str, expiry: float) -> CallerIdentity:
    return CallerIdentity(
        f"certificate {role.value}/{name}",
        granted(role),
        agent_ids=name if role is Role.AGENT else "",
        expires_unix_s=expiry,
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


Context = grpc.aio.ServicerContext[Any, Any]

WEB_PEER = "gpusonde-web-peer"
"""Key of metadata: for whom a call over the private socket is made, in gRPC's word for a caller."""
_SCHEME = "bearer "
_LONGEST_HEADER = 1024
_ROLES: Mapping[str, Role] = {
    "gpusonde.ingest.v1.IngestService": Role.AGENT,
    "gpusonde.query.v1.QueryService": Role.READER,
    # It computes for the asker and changes nothing.
    "gpusonde.planning.v1.PlanningService": Role.READER,
    "gpusonde.workload.v1.WorkloadService": Role.READER,
    "gpusonde.admin.v1.AdminService": Role.ADMIN,
}
# Of a service's methods those that are for others than the rest.
_ROLES_OF_METHODS: Mapping[str, Role] = {
    # It makes a process compute for hours.
    "gpusonde.workload.v1.WorkloadService/QueueTraining": Role.ADMIN,
}
# Whether the collector is alive, and what its methods are called (where that is served at all), is no secret.
_OPEN = frozenset(
    {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
)


class Guard:
    """Knows callers.

    Args:
        tokens: Bearer tokens that are taken; None for none.
        anonymous: Whether callers without any proof are taken.
        certificate_role: Role of certificates without a URI of ours; None refuses them.
        clock: Unix time in seconds.
    """

    def __init__(
        self,
        tokens: TokenFile | None = None,
        *,
        anonymous: bool = True,
        certificate_role: Role | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tokens
        self._anonymous = anonymous
        self._certificate_role = certificate_role
        self._clock = clock

    def identify(self, context: Context) -> CallerIdentity:
        """Return who calls. A token, where one is sent, decides; a wrong one is never passed over.

        Raises:
            RequestError: The caller proves nothing, or something wrong (``UNAUTHENTICATED``).
        """
        return self._identify(_authorization(context), context.auth_context())

    def identify_by_header(self, authorization: str | None) -> CallerIdentity:
        """Return who asks with a header ``authorization``, or without any, and no certificate.

        Raises:
            RequestError: As of ``identify``.
        """
        return self._identify(authorization, {})

    def _identify(self, authorization: str | None, auth_context: Mapping[str, Any]) -> CallerIdentity:
        if authorization is not None:
            token = _token(authorization)
            found = self._tokens.find(token) if self._tokens else None
            if found is None:
                raise RequestError("UNAUTHENTICATED", "the token is not known here; make one with 'gpusonde token new'")
            return found
        if has_certificate(auth_context):
            identity = certificate_identity(auth_context, self._certificate_role)
            # On a connection that stays open, nobody else looks at the date again.
            if problem := self.revoked(identity):
                raise RequestError("UNAUTHENTICATED", problem)
            return identity
        if self._anonymous:
            return ANONYMOUS
        raise RequestError("UNAUTHENTICATED", "this collector wants a client certificate or a bearer token")

    def revoked(self, identity: CallerIdentity) -> str:
        """Return why an identity is no longer good; empty while it is."""
        if identity.expires_unix_s <= self._clock():
            return "the certificate has expired; renew its file"
        if identity.token_digest and not (self._tokens and self._tokens.still_holds(identity)):
            return "the token was withdrawn"
        return ""


def peer_of(context: Context) -> str:
    """Return gRPC's word for the caller; of a call over the private socket, for whom it is made."""
    peer: str = context.peer()
    if peer.startswith("unix:"):
        for key, value in context.invocation_metadata() or ():
            if key == WEB_PEER:
                return str(value)
    return peer


def required_role(method: str) -> Role | None:
    """Return the role that a method is for; None when everybody may call it."""
    name = method.strip("/")
    service = name.partition("/")[0]
    if service in _OPEN:
        return None
    return _ROLES_OF_METHODS.get(name) or _ROLES.get(service, Role.ADMIN)


def _authorization(context: Context) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return None


def _token(authorization: str) -> str:
    is_one = authorization.lower().startswith(_SCHEME) and authorization.isascii() and authorization.isprintable()
    if len(authorization) > _LONGEST_HEADER or not is_one:
        raise RequestError("UNAUTHENTICATED", "the authorization header is no bearer token")
    return authorization[len(_SCHEME) :].strip()

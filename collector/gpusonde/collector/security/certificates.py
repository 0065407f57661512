"""Identities from client certificates that gRPC has verified.

The role and the name stand in a URI among the subject's alternative names: ``gpusonde://agent/NAME``,
``gpusonde://reader/NAME`` or ``gpusonde://admin/NAME``. For fleets whose hosts have certificates already, the collector
can be told to take those without such a URI for agents (or readers) named by their common name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpusonde.collector.security.identity import AuthenticationError, Identity, Role, granted
from gpusonde.service.tls.certificates import CertificateFormatError, expiry_unix_s

_URI = re.compile(r"gpusonde://(agent|reader|admin)/([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


def has_certificate(auth_context: Mapping[str, Sequence[bytes]]) -> bool:
    """Whether the caller came with a certificate; gRPC has turned away those it could not verify."""
    return bool(auth_context.get("x509_pem_cert"))


def certificate_identity(auth_context: Mapping[str, Sequence[bytes]], default_role: Role | None) -> Identity:
    """Return the identity in a verified certificate.

    Args:
        auth_context: ``ServicerContext.auth_context()``.
        default_role: Role of certificates without a URI of ours; None refuses them.

    Raises:
        AuthenticationError: It names nobody, or more than one.
    """
    try:
        expiry = expiry_unix_s(auth_context["x509_pem_cert"][0])
    except CertificateFormatError as error:
        raise AuthenticationError(f"the certificate cannot be read: {error}") from None
    uris = [_text(uri) for uri in auth_context.get("peer_uri", ())]
    ours = [uri for uri in uris if uri.startswith("gpusonde:")]
    if len(ours) > 1:
        raise AuthenticationError("the certificate has more than one gpusonde:// URI; issue one per role")
    if ours:
        match = _URI.fullmatch(ours[0])
        if match is None:
            raise AuthenticationError("the certificate's gpusonde:// URI is not gpusonde://ROLE/NAME")
        return _identity(Role(match[1]), match[2], expiry)
    if default_role is None:
        raise AuthenticationError(
            "the certificate has no gpusonde://ROLE/NAME URI; issue one with it, or set security.certificate_role"
        )
    names = auth_context.get("x509_common_name", ())
    name = _text(names[0]) if len(names) == 1 else ""
    if not _NAME.fullmatch(name):
        raise AuthenticationError("the certificate's common name is no agent id")
    return _identity(default_role, name, expiry)


def _identity(role: Role, name: str, expiry: float) -> Identity:
    return Identity(
        f"certificate {role.value}/{name}",
        granted(role),
        agent_ids=name if role is Role.AGENT else "",
        expires_unix_s=expiry,
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")

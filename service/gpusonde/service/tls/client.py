"""How a client proves who it is and knows who answers, and which addresses only this host can reach."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpusonde.errors import TlsError
from gpusonde.service.tls.certificates import KeyPair, locate, read_authorities, read_secret

if TYPE_CHECKING:
    import grpc

_SCHEMES = ("dns:///", "ipv4:", "ipv6:")


def is_loopback(address: str) -> bool:
    """Whether ``host:port``, or a gRPC target, means this very host; of what is not understood it says no."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in _SCHEMES:
        address = address.removeprefix(scheme)
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``host:port`` or of a gRPC target with one; IPv6 hosts without their brackets."""
    for scheme in _SCHEMES:
        address = address.removeprefix(scheme)
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def proxy_of(target: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the HTTP proxy that gRPC asks for a target, without its password; empty for none.

    Only ``grpc_proxy`` counts, which nobody sets by chance. ``http_proxy``, which gRPC would take too, is for the web,
    and the proxies that clusters have refuse anything else.
    """
    proxy = environment.get("grpc_proxy", "")
    if not proxy or is_loopback(target):
        return ""
    return proxy.rpartition("@")[2].removeprefix("http://")


_LONGEST_TOKEN = 512


@dataclass(frozen=True)
class Access:
    """What one connection is made with; read once, at the moment it is opened.

    Attributes:
        credentials: TLS, or None for plain text.
        options: Channel arguments that belong to it.
        metadata: Sent with every call.
        expiry_unix_s: When the client's certificate expires, or None without one.
        fingerprint: Digest of all files.
    """

    credentials: grpc.ChannelCredentials | None = None
    options: tuple[tuple[str, str | int], ...] = ()
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    expiry_unix_s: float | None = None
    fingerprint: str = ""


@dataclass(frozen=True)
class ClientSecurity:
    """The files of a client. Relative paths lie in ``$CREDENTIALS_DIRECTORY`` where systemd sets it.

    Attributes:
        ca: Certificates of the authorities that a server's certificate must come from; empty for plain text.
        certificate: The client's own, with its chain; empty for none.
        key: Its key.
        server_name: Name that the server's certificate must have, where it is not the one in the address.
        token_file: File that holds a bearer token; empty for none.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    token_file: str = ""

    def problem(self, target: str) -> str:
        """Return what is wrong with the choice of files for a server at ``target``; empty when nothing is."""
        if bool(self.certificate) != bool(self.key):
            return "a client certificate and its key come together; give both or none"
        if self.certificate and not self.ca:
            return "a client certificate needs the server's authority (CA) too"
        if self.server_name and not self.ca:
            return "a server name is checked with TLS only; give the server's authority (CA) too"
        if self.token_file and not self.ca and not is_loopback(target):
            return f"a token is never sent in plain text to another host ({target}); give the server's authority (CA)"
        return ""

    @property
    def encrypts(self) -> bool:
        """Whether connections use TLS."""
        return bool(self.ca)

    def load(self, target: str, environment: Mapping[str, str] = os.environ) -> Access:
        """Read the files for one connection.

        Raises:
            TlsError: A file cannot be used.
        """
        if problem := self.problem(target):
            raise TlsError(self.token_file or self.certificate or self.ca, problem)
        options: tuple[tuple[str, str | int], ...] = (
            ("grpc.enable_http_proxy", int(proxy_of(target, environment) != "")),
        )
        if not self.ca and not self.token_file:
            return Access(options=options)
        import grpc  # noqa: PLC0415 - commands that ask nobody do not wait for its import

        digest = hashlib.sha256()
        metadata: tuple[tuple[str, str], ...] = ()
        if self.token_file:
            token = read_token(self.token_file, environment)
            digest.update(token.encode())
            metadata = (("authorization", f"Bearer {token}"),)
        if not self.ca:
            return Access(options=options, metadata=metadata, fingerprint=digest.hexdigest())
        authorities = read_authorities(locate(self.ca, environment))
        digest.update(authorities)
        pair: KeyPair | None = None
        if self.certificate:
            pair = KeyPair.read(locate(self.certificate, environment), locate(self.key, environment))
            digest.update(pair.certificate)
        credentials = grpc.ssl_channel_credentials(
            authorities, pair.key if pair else None, pair.certificate if pair else None
        )
        if self.server_name:
            options = (*options, ("grpc.ssl_target_name_override", self.server_name))
        return Access(credentials, options, metadata, pair.expiry_unix_s if pair else None, digest.hexdigest())


def read_token(path: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the bearer token that a file holds.

    Raises:
        TlsError: It cannot be read or holds no token.
    """
    file = locate(path, environment)
    try:
        token = read_secret(file).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or len(token) > _LONGEST_TOKEN or not token.isprintable() or " " in token:
        raise TlsError(str(file), "holds no token; write it alone into the file, as 'gpusonde token new' prints it")
    return token

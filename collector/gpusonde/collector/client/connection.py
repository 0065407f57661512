"""What all clients of a collector share: the channel, its end, and statuses as one exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar, cast

import grpc

from gpusonde.errors import CollectorError
from gpusonde.service.tls import ClientSecurity, find_obstacle

# What gRPC says of the client's deadline; other words are the collector's.
_OWN_DEADLINE = "Deadline Exceeded"
# What gRPC says where the connection is at fault; other words under UNAVAILABLE are the collector's.
_NO_WAY = ("connect", "socket", "resolution", "handshake", "tcp", "goaway", "broken pipe", "recvmsg", "transport")
# What to do about each kind of obstacle.
_ADVICE = {
    "proxy": "unset grpc_proxy, or make the proxy pass connections on to it",
    "host": "check the address",
    "silent": "check the address, and that no firewall drops connections to it",
    "nobody": "start one with 'gpusonde collector', or give its address",
    "path": "check the address and this host's network",
    "http": "give the port of server.listen (7433), not that of its metrics",
    "encrypted": "give --tls-ca, and --tls-cert with --tls-key, or --token-file",
    "plain": "leave --tls-ca out if it is meant to have no TLS, or check the port",
    "authority": "give with --tls-ca the authority that its certificate comes from",
    "expired": "have its certificate renewed, or this host's clock set",
    "name": "ask for it by one of these names, or set GPUSONDE_TLS_SERVER_NAME to one",
    "stranger": "give --tls-cert and --tls-key of a certificate from the collector's client authority",
}


_Client = TypeVar("_Client", bound="ServiceClient")
_Row = TypeVar("_Row")


class ServiceClient:
    """A channel to one collector. Use it as a context manager, or call ``close``.

    Args:
        target: Its address, ``host:port``.
        timeout_s: Longest wait for an answer, queueing included; None means ``usual_timeout_s``.
        security: Files of certificate, authority and token; read once, here.

    Raises:
        gpusonde.errors.TlsError: One of the files cannot be used.
    """

    usual_timeout_s: ClassVar[float] = 30.0
    _stub_type: ClassVar[Any]

    def __init__(self, target: str, timeout_s: float | None = None, security: ClientSecurity | None = None) -> None:
        self._target = target
        self._timeout_s = self.usual_timeout_s if timeout_s is None else timeout_s
        self._security = security or ClientSecurity()
        access = self._security.load(target)
        self._metadata = access.metadata
        options = [("grpc.max_receive_message_length", 64 << 20), *access.options]
        self._channel = (
            grpc.insecure_channel(target, options=options)
            if access.credentials is None
            else grpc.secure_channel(target, access.credentials, options=options)
        )
        self._stub = self._stub_type(self._channel)

    def __enter__(self: _Client) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _ask(self, method: Any, request: Any) -> Any:
        with self._errors():
            return method(request, timeout=self._timeout_s, metadata=self._metadata)

    def _list(
        self,
        method: Any,
        request: Any,
        rows: str,
        read: Callable[[Any], _Row],
        *,
        page_size: int = 1000,
        limit: int | None = None,
    ) -> list[_Row]:
        """Ask page by page and return the rows, which are read one by one; ``limit`` of them at most."""
        found: list[_Row] = []
        while limit is None or len(found) < limit:
            request.page_size = page_size if limit is None else min(page_size, limit - len(found))
            with self._errors():
                response = method(request, timeout=self._timeout_s, metadata=self._metadata)
                found += map(read, getattr(response, rows))
            request.page_token = response.next_page_token
            if not response.next_page_token:
                break
        return found

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn gRPC statuses, and answers that cannot be, into ``CollectorError``."""
        try:
            yield
        except (ValueError, KeyError, OverflowError) as error:
            # Times beyond every calendar, a stream of samples that is none: whoever answers is no collector of ours.
            details = f"the answer of {self._target} makes no sense ({type(error).__name__}: {str(error)[:200]})"
            raise CollectorError("DATA_LOSS", details, "run one version of both sides") from error
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)
            code = call.code().name
            advice = ""
            details = call.details() or code
            if code == "UNAVAILABLE" and any(words in details.lower() for words in _NO_WAY):
                obstacle = find_obstacle(self._target, self._security)
                words = obstacle.words if obstacle else details
                details = f"no collector answers at {self._target}: {words}"
                advice = _ADVICE[obstacle.kind] if obstacle else "try again, or look at its log"
            elif code == "DEADLINE_EXCEEDED" and details == _OWN_DEADLINE:
                details = f"the collector at {self._target} did not answer in time"
                advice = "try again, or look at its log"
            elif code == "UNAUTHENTICATED":
                advice = "give --tls-cert and --tls-key, or --token-file"
            elif code == "PERMISSION_DENIED":
                advice = "ask with a certificate or token of another role"
            raise CollectorError(code, details, advice) from error

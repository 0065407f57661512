"""``AccessControl``: everything around who may connect, put together from the configuration."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections import Counter
from collections.abc import Callable

import grpc

from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.security.connections import Connections
from gpusonde.collector.security.guard import Guard
from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.interceptor import AccessInterceptor
from gpusonde.collector.security.rates import CallerBook, CallerLimits
from gpusonde.collector.security.tokens import TokenFile
from gpusonde.service.tls import ExpiryWarning, ServerTls, is_loopback, warn_of_exposed_files

_LOG = logging.getLogger(__name__)
_STREAM_CHECK_S = 0.5


class AccessControl:
    """Certificate, tokens, guard and limits of one collector.

    Args:
        config: What the operator chose.
        refused: Where refusals are counted.

    Attributes:
        tls: The server's certificate; None for plain text.
        guard: Knows callers.
        refused: Refused calls and streams by reason.
        connections: Makes room for those who call.
        interceptor: Stands before every call.
    """

    def __init__(self, config: CollectorConfig, refused: Counter[str] | None = None) -> None:
        security = config.security
        self._anonymous = config.allow_anonymous
        self._tokens = TokenFile(security.tokens_file) if security.tokens_file else None
        self.tls = (
            ServerTls(security.tls_certificate, security.tls_key, security.tls_client_ca)
            if security.tls_certificate
            else None
        )
        self.refused: Counter[str] = Counter() if refused is None else refused
        self.guard = Guard(
            self._tokens,
            anonymous=self._anonymous,
            certificate_role=Role(security.certificate_role) if security.certificate_role else None,
        )
        self._secret_files = (
            security.tls_key,
            config.clickhouse.password_file,
            config.clickhouse.tls_key,
            config.otlp.headers_file,
            config.remote_write.headers_file,
        )
        self._tokens_file = security.tokens_file
        self._callers = CallerBook(caller_limits(config))
        self.connections = Connections(self.refused)
        self.interceptor = AccessInterceptor(self.guard, self._callers, self.connections, self.refused)

    def configure(self, config: CollectorConfig) -> None:
        """Set other limits for callers; who may call stays as it is."""
        self._callers.configure(caller_limits(config))

    def open(self) -> grpc.ServerCredentials | None:
        """Read all files and return what to listen with; None for plain text.

        Raises:
            TlsError: One of them cannot be used.
        """
        warn_of_exposed_files(*self._secret_files)
        # Its digests are no secret, but whoever can write there lets himself in.
        warn_of_exposed_files(self._tokens_file, others=stat.S_IWOTH)
        if self._tokens:
            self._tokens.load()
        return self.tls.credentials() if self.tls else None

    def warn_of_openness(self, address: str) -> None:
        """Say at every start what others could do."""
        if is_loopback(address):
            return
        if not self.tls:
            _LOG.warning("%s is reachable from other hosts without encryption (security.plaintext)", address)
        if self._anonymous:
            _LOG.warning("%s takes callers without certificate and token (security.anonymous)", address)

    async def watch_streams(self, *looks: Callable[[], None]) -> None:
        """Have open streams looked after, and say when our certificate is about to expire; runs until cancelled.

        Args:
            looks: Called twice a second.
        """
        warning = ExpiryWarning("the collector's certificate")
        while True:
            if self.tls:
                self.tls.refresh()
                warning.check(self.tls.expiry_unix_s)
            for look in looks:
                look()
            await asyncio.sleep(_STREAM_CHECK_S)


def caller_limits(config: CollectorConfig) -> CallerLimits:
    """Return how much one caller may ask."""
    security = config.security
    return CallerLimits(
        questions=security.max_questions,
        questions_per_s=security.questions_per_second,
        all_questions=16 * security.max_questions,
        all_streams=2 * config.ingest.max_agents + 16,
        watches=2 * config.planning.max_watches + 48,
    )

"""A server's certificate, read again when its files change.

gRPC asks a function for the certificate at every handshake (``dynamic_ssl_server_credentials``), from a thread of its
own, for ``grpc.aio`` servers too. So a renewed file is used by the next connection; open ones stay as they are.

The function must say "no change" (None) wherever nothing changed. gRPC puts what it is given in the place of what
handshakes on other threads are just beginning with, without a lock (grpc/grpc#36693, open in 1.85): given the same
configuration at every handshake, some hundred connections at once free it once too often, and the process dies.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

import grpc

from gpusonde.errors import TlsError
from gpusonde.service.tls.certificates import KeyPair, file_stamp, locate, read_authorities

_LOG = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0
# A handshake takes microseconds from its question for the certificate to where it holds what it begins with. gRPC asks
# for one at a time, so nobody comes after the question that waits.
_PAUSE_BEFORE_CHANGE_S = 0.05


class ServerTls:
    """Certificate, key and the authority of clients.

    Args:
        certificate: Path of the server's certificate, with its chain.
        key: Path of its key.
        client_ca: Path of the authorities that clients' certificates must come from; empty when clients need none.
        clock: Monotonic seconds.
        environment: Where systemd's credentials are looked up.
    """

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._certificate = locate(certificate, environment)
        self._key = locate(key, environment)
        self._client_ca = locate(client_ca, environment) if client_ca else None
        self._clock = clock
        self._lock = threading.Lock()
        self._digest = ""
        self._renewed: grpc.ServerCertificateConfiguration | None = None
        self._looked_s = 0.0
        self._stamps: tuple[tuple[int, int, int] | None, ...] = ()
        self._problem = ""
        self.expiry_unix_s: float | None = None

    @property
    def wants_client_certificates(self) -> bool:
        """Whether a client without a certificate is turned away at the handshake."""
        return self._client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """Read the files and return credentials that follow them.

        Raises:
            TlsError: A file cannot be used.
        """
        with self._lock:
            self._digest, configuration = self._read()
            self._renewed = None
            self._looked_s = self._clock()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            with self._lock:
                if self._clock() - self._looked_s >= _LOOK_AGAIN_S:
                    self._look()
                renewed, self._renewed = self._renewed, None
            if renewed is not None:
                time.sleep(_PAUSE_BEFORE_CHANGE_S)
            return renewed

        return grpc.dynamic_ssl_server_credentials(
            configuration,
            fetch,  # type: ignore[arg-type]  # the stubs do not know of None
            require_client_authentication=self.wants_client_certificates,
        )

    def refresh(self) -> None:
        """Look at the files; bad ones are logged and the last good ones stay in use."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        self._looked_s = self._clock()
        stamps = self._stamp_files()
        if stamps == self._stamps:
            return
        try:
            digest, configuration = self._read()
        except TlsError as error:
            if str(error) != self._problem:
                _LOG.error("the certificate in use stays: %s", error)
            self._problem = str(error)
            return
        self._problem, self._stamps = "", stamps
        if digest != self._digest:
            self._digest, self._renewed = digest, configuration
            _LOG.info("the server's certificate was read again from %s", self._certificate)

    def _stamp_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(file_stamp(path) for path in (self._certificate, self._key, self._client_ca) if path is not None)

    def _read(self) -> tuple[str, grpc.ServerCertificateConfiguration]:
        pair = KeyPair.read(self._certificate, self._key)
        authorities = read_authorities(self._client_ca) if self._client_ca else None
        digest = hashlib.sha256(pair.certificate + b"\0" + (authorities or b"")).hexdigest()
        self.expiry_unix_s = pair.expiry_unix_s
        return digest, grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], authorities)

"""Certificates and keys on disk: read together, and only when they fit together."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpusonde.service.tls.errors import TlsError
from gpusonde.service.tls.validity import CertificateFormatError, expiry_unix_s

_CREDENTIALS_DIRECTORY = "CREDENTIALS_DIRECTORY"
# A chain of certificates has a few kilobytes, a bundle of the whole web's authorities some hundred.
_MOST_BYTES = 4 << 20


def locate(path: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file meant: a relative path lies in the credentials of the systemd unit, where there are any."""
    chosen = Path(path).expanduser()
    directory = environment.get(_CREDENTIALS_DIRECTORY, "")
    if directory and not chosen.is_absolute():
        return Path(directory) / chosen
    return chosen


def read_secret(path: Path) -> bytes:
    """Return a file's content.

    Raises:
        TlsError: It cannot be read, is empty, or is too large to be what it should be.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TlsError(str(path), f"{error.strerror}; give a file that this user can read") from error
    if not content.strip():
        raise TlsError(str(path), "is empty")
    if len(content) > _MOST_BYTES:
        raise TlsError(str(path), f"has more than {_MOST_BYTES} bytes, so it is not what it should be")
    return content


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced or written to; None for a file that is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@dataclass(frozen=True)
class KeyPair:
    """A certificate with its key. Never shown: ``repr`` has neither.

    Attributes:
        certificate: PEM, the chain after it.
        key: PEM, private.
        expiry_unix_s: When the certificate expires.
    """

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    expiry_unix_s: float

    @classmethod
    def read(cls, certificate_path: Path, key_path: Path) -> KeyPair:
        """Read both.

        Raises:
            TlsError: One cannot be read, they do not belong together, or they were replaced while being read.
        """
        pair = read_secret(certificate_path), read_secret(key_path)
        try:
            expiry = expiry_unix_s(pair[0])
        except CertificateFormatError as error:
            raise TlsError(str(certificate_path), str(error)) from error
        try:
            # gRPC takes whatever it is given and fails at every handshake; OpenSSL says at once what is wrong. Without
            # the password it would ask the terminal for one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate_path, key_path, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise TlsError(
                str(key_path), f"is not the unencrypted PEM key of the certificate {certificate_path} ({reason})"
            ) from None
        if pair != (read_secret(certificate_path), read_secret(key_path)):
            raise TlsError(str(certificate_path), "is being replaced right now")
        return cls(*pair, expiry)


def read_authorities(path: Path) -> bytes:
    """Return the certificates of authorities.

    Raises:
        TlsError: The file cannot be read or holds none.
    """
    content = read_secret(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(str(path), "holds no PEM certificates of authorities") from error
    return content

"""Certificates and keys on disk: read together, only when they fit together, with a word in time before they expire.

When a certificate expires is found by walking the DER of RFC 5280 to its two dates: Certificate > TBSCertificate >
validity. Only this one field is needed, and the library that reads the rest adds 10 MB to an agent that has 60 MB to
live in. No trust is decided here: gRPC has verified, or will verify, the certificate.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from gpusonde.errors import TlsError

_LOG = logging.getLogger(__name__)

WARN_BEFORE_S = 14 * 86_400.0
_REPEAT_S = 86_400.0


class ExpiryWarning:
    """Logs a certificate that expires within 14 days, once a day and whenever it is another one.

    Args:
        what: Whose certificate it is.
        clock: Unix time in seconds.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.time) -> None:
        self._what = what
        self._clock = clock
        self._said: tuple[float, float] | None = None

    def check(self, expiry_unix_s: float | None) -> None:
        """Say it if it is due; None stands for no certificate."""
        now = self._clock()
        if expiry_unix_s is None or expiry_unix_s - now > WARN_BEFORE_S:
            return
        if self._said is not None and self._said[0] == expiry_unix_s and 0 <= now - self._said[1] < _REPEAT_S:
            return
        self._said = (expiry_unix_s, now)
        when = datetime.fromtimestamp(expiry_unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        if expiry_unix_s <= now:
            _LOG.error("%s expired at %s: renew its file; it is read again without a restart", self._what, when)
        else:
            _LOG.warning(
                "%s expires at %s, in %.1f days: renew its file", self._what, when, (expiry_unix_s - now) / 86_400
            )


_BEGIN_END = re.compile(rb"-----BEGIN CERTIFICATE-----(.{1,1000000}?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _INTEGER, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0


def expiry_unix_s(pem: bytes) -> float:
    """Return the Unix time in seconds after which the first certificate of a PEM text is no longer valid.

    Raises:
        ValueError: It holds none.
    """
    match = _BEGIN_END.search(pem)
    if match is None:
        raise ValueError("holds no PEM certificate")
    try:
        der = base64.b64decode(b"".join(match[1].split()), validate=True)
    except binascii.Error:
        raise ValueError("its PEM certificate is no base64") from None
    to_be_signed = _Reader(_Reader(der).take(_SEQUENCE)).take(_SEQUENCE)
    fields = _Reader(to_be_signed)
    fields.skip_optional(_VERSION)
    fields.take(_INTEGER)  # serial number
    fields.take(_SEQUENCE)  # signature algorithm
    fields.take(_SEQUENCE)  # issuer
    dates = _Reader(fields.take(_SEQUENCE))
    dates.take(_UTC_TIME, _GENERALIZED_TIME)  # not before
    tag = dates.next_tag
    return _time(tag, dates.take(_UTC_TIME, _GENERALIZED_TIME))


class _Reader:
    """Takes DER elements one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def next_tag(self) -> int:
        if self._at >= len(self._data):
            raise ValueError("its certificate is cut short")
        return self._data[self._at]

    def skip_optional(self, tag: int) -> None:
        if self.next_tag == tag:
            self.take(tag)

    def take(self, *tags: int) -> bytes:
        if self.next_tag not in tags:
            raise ValueError("its certificate is not X.509")
        start, length = self._length(self._at + 1)
        if start + length > len(self._data):
            raise ValueError("its certificate is cut short")
        self._at = start + length
        return self._data[start : self._at]

    def _length(self, at: int) -> tuple[int, int]:
        first = self._data[at : at + 1]
        if not first:
            raise ValueError("its certificate is cut short")
        if first[0] < 0x80:
            return at + 1, first[0]
        count = first[0] & 0x7F
        return at + 1 + count, int.from_bytes(self._data[at + 1 : at + 1 + count], "big")


def _time(tag: int, text: bytes) -> float:
    pattern = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    try:
        # Two digits from 69 up are 19xx for strptime, from 50 up for X.509; no certificate here is that old.
        return datetime.strptime(text.decode("ascii"), pattern).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise ValueError("its certificate has no readable date of expiry") from None


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


def warn_of_exposed_files(
    *paths: str, others: int = stat.S_IROTH | stat.S_IWOTH, environment: Mapping[str, str] = os.environ
) -> None:
    """Log each file that every user of this host can read or change; for the start of a daemon.

    Args:
        paths: Files of keys, passwords and tokens; empty ones are left out.
        others: Permissions that users other than the file's owner and group must not have.
        environment: Where systemd's credentials are looked up.
    """
    for path in filter(None, paths):
        with contextlib.suppress(OSError):  # whoever reads it says so
            file = locate(path, environment)
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & others:
                _LOG.warning(
                    "%s is open to every user of this host (mode %04o): make it 'chmod o-rwx', and its content anew if"
                    " others have an account here", file, mode,
                )  # fmt: skip


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
        except ValueError as error:
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

"""When a certificate expires.

Only this one field is needed, and the library that reads the rest adds 10 MB to an agent that has 60 MB to live in. So
the two dates are found by walking the DER of RFC 5280: Certificate > TBSCertificate > validity. No trust is decided
here: gRPC has verified, or will verify, the certificate.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime, timezone

_BEGIN_END = re.compile(rb"-----BEGIN CERTIFICATE-----(.{1,1000000}?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _INTEGER, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0


class CertificateFormatError(ValueError):
    """Bytes that are no X.509 certificate in PEM form."""


def expiry_unix_s(pem: bytes) -> float:
    """Return the Unix time in seconds after which the first certificate of a PEM text is no longer valid.

    Raises:
        CertificateFormatError: It holds none.
    """
    match = _BEGIN_END.search(pem)
    if match is None:
        raise CertificateFormatError("holds no PEM certificate")
    try:
        der = base64.b64decode(b"".join(match[1].split()), validate=True)
    except binascii.Error:
        raise CertificateFormatError("its PEM certificate is no base64") from None
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
            raise CertificateFormatError("its certificate is cut short")
        return self._data[self._at]

    def skip_optional(self, tag: int) -> None:
        if self.next_tag == tag:
            self.take(tag)

    def take(self, *tags: int) -> bytes:
        if self.next_tag not in tags:
            raise CertificateFormatError("its certificate is not X.509")
        start, length = self._length(self._at + 1)
        if start + length > len(self._data):
            raise CertificateFormatError("its certificate is cut short")
        self._at = start + length
        return self._data[start : self._at]

    def _length(self, at: int) -> tuple[int, int]:
        first = self._data[at : at + 1]
        if not first:
            raise CertificateFormatError("its certificate is cut short")
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
        raise CertificateFormatError("its certificate has no readable date of expiry") from None

"""What leaves the collector over HTTP, and the headers that go with it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from typing import Any

from gpusonde.errors import TlsError
from gpusonde.service.tls.certificates import locate, read_secret

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*:[ \t]*([\x20-\x7e]*)")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keeps what is told from going where the configuration did not send it."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(address: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Send one body; redirections are not followed.

    Raises:
        OSError: It was not taken.
    """
    request = urllib.request.Request(address, body, dict(headers))  # noqa: S310 - the configuration checks the scheme
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s):
        pass


def read_headers(path: str) -> dict[str, str]:
    """Return the headers of a file of ``Name: value`` lines, and none where there is no file to read.

    Raises:
        OSError: It cannot be read, or a line is no header.
    """
    if not path:
        return {}
    try:
        lines = read_secret(locate(path)).decode("latin-1").splitlines()
    except TlsError as error:
        raise OSError(str(error)) from error
    found = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        header = _HEADER.fullmatch(line.strip())
        if header is None:
            # Without showing it: it may be a secret.
            raise OSError(f"{path}: line {number} is no header; write Name: value")
        found[header[1]] = header[2]
    return found

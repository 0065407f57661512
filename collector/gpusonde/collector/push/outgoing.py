"""What leaves the collector: the way out over HTTP, and ``Pusher``, which has the series of ``/metrics`` sent.

What a receiver does not take is lost and counted: series are of now, and the next ones are newer. A message that is
refused keeps the next ones from nothing; a receiver that is gone costs little time per interval, and no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import logging
import queue
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpusonde.errors import StoreError, TlsError
from gpusonde.service.tls.certificates import locate, read_secret

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*:[ \t]*([\x20-\x7e]*)")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keeps what is told, and the secret that goes with it, from going where nobody sent it."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer becomes an ``HTTPError``."""


class _EndableConnection(http.client.HTTPConnection):
    """Ends when another thread says so: a socket's timeout is one of silence, which a byte now and then prolongs."""

    _line: socket.socket | None = None
    _is_ended = False

    def connect(self) -> None:
        super().connect()
        # A second name: the handshake of TLS takes the first one away.
        self._line = self.sock.dup()
        if self._is_ended:
            raise TimeoutError("connected too late")

    def close(self) -> None:
        super().close()
        if self._line is not None:
            self._line.close()

    def end(self) -> None:
        """Have what goes on fail."""
        self._is_ended = True
        line = self._line or self.sock
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


class _EndableTlsConnection(http.client.HTTPSConnection, _EndableConnection):
    """The same with TLS."""


class _Connecting(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Keeps the connection of its request."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: _EndableConnection | None = None

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(self._made, _EndableConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(self._made, _EndableTlsConnection), req)

    def _made(self, kind: type[_EndableConnection], host: str, *, timeout: float) -> _EndableConnection:
        self.connection = kind(host, timeout=timeout)
        return self.connection


def post(address: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Send one body within a time, whoever answers how slowly; redirections are not followed.

    Raises:
        OSError: It was not taken.
    """
    connecting = _Connecting()
    failed: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def send() -> None:
        error: Exception | None = None
        try:
            request = urllib.request.Request(address, body, dict(headers))  # noqa: S310 - the configuration checks it
            with urllib.request.build_opener(NoRedirect, connecting).open(request, timeout=timeout_s):
                pass
        except urllib.error.HTTPError as refused:
            refused.close()
            error = refused
        except Exception as other:
            error = other
        finally:
            if connecting.connection is not None:
                connecting.connection.close()
            failed.put(error)

    # Names are looked up without a limit: not even that holds the caller, or the end of the process.
    threading.Thread(target=send, daemon=True).start()
    try:
        error = failed.get(timeout=timeout_s)
    except queue.Empty:
        if connecting.connection is not None:
            connecting.connection.end()
        raise TimeoutError(f"it took longer than {timeout_s:g} s") from None
    if isinstance(error, OSError):
        raise error
    if error is not None:  # what came was no HTTP, or the address is none
        raise OSError(f"{type(error).__name__}: {error}") from error


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


_LOG = logging.getLogger(__name__)
TIMEOUT_S = 5.0
# In one message.
MOST_POINTS = 2000


class Batch(Protocol):
    """Points that are sent together."""

    def __len__(self) -> int:
        """How many."""
        ...

    def send(self) -> None:
        """Send them; blocks for ``TIMEOUT_S`` at most.

        Raises:
            OSError: They were not taken.
        """
        ...


class PushFormat(Protocol):
    """Makes messages of series; methods block."""

    def batches(self, families: Sequence[Metric], now_unix_nano: int) -> Sequence[Batch]:
        """Return all that is to be sent now.

        Raises:
            OSError: A file that it needs cannot be read.
            StoreError: The store cannot be read.
        """
        ...

    def close(self) -> None:
        """End what goes on."""
        ...


class Pusher:
    """Sends to one receiver.

    Args:
        name: Of the receiver, for the log.
        form: Makes messages.
        collectors: Those of ``/metrics``.
        interval_s: Between two times.
        counts: What became of points: ``sent``, ``lost``.
    """

    def __init__(
        self, name: str, form: PushFormat, collectors: Sequence[Collector], interval_s: float, counts: Counter[str]
    ) -> None:
        self._name = name
        self._form = form
        self._collectors = collectors
        self._interval_s = interval_s
        self._counts = counts
        self._fails = False
        self._is_over = False

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                began = time.monotonic()
                await asyncio.to_thread(self._attempt)
                # However long it takes, as long is rested.
                took = time.monotonic() - began
                await asyncio.sleep(max(self._interval_s - took, took))
        finally:
            self._is_over = True
            self._form.close()

    def _attempt(self) -> None:
        try:
            self.push(time.time_ns())
        except Exception:  # whatever the receiver is, the collector goes on
            _LOG.exception("%s: series cannot be sent now", self._name)

    def push(self, now_unix_nano: int) -> None:
        """Send once; blocks."""
        families = [family for collector in self._collectors for family in collector.collect()]
        batches: Sequence[Batch] = ()
        failed: OSError | StoreError | None = None
        lost, failing_s = 0, 0.0
        try:
            batches = self._form.batches(families, now_unix_nano)
        except (OSError, StoreError) as error:
            failed = error
        for batch in batches:
            # What fails fast was refused, and the next one may be taken; what takes its time reaches nobody.
            if self._is_over or failing_s >= TIMEOUT_S:
                lost += len(batch)
                continue
            began = time.monotonic()
            try:
                batch.send()
            except OSError as error:
                failing_s += time.monotonic() - began
                failed = failed or error
                lost += len(batch)
            else:
                self._counts["sent"] += len(batch)
        self._counts["lost"] += lost
        if failed and not self._fails:
            _LOG.warning("%s did not get %d points, and is asked again: %s", self._name, lost, failed)
        elif self._fails and not failed:
            _LOG.info("%s takes points again", self._name)
        self._fails = failed is not None

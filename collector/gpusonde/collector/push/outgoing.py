"""``Pusher``, which has the series of ``/metrics`` sent, and the headers of a receiver that takes them over HTTP.

What a receiver does not take is lost and counted: series are of now, and the next ones are newer. A message that is
refused keeps the next ones from nothing; a receiver that is gone costs little time per interval, and no memory.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpusonde.errors import StoreError, TlsError
from gpusonde.service.tls.certificates import locate, read_secret

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*:[ \t]*([\x20-\x7e]*)")


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

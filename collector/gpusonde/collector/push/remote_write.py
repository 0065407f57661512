"""``RemoteWrite``: series as Prometheus takes them by remote write, version 1.

https://prometheus.io/docs/specs/prw/remote_write_spec/
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.request import Request

import cramjam
from prometheus_client.metrics_core import Metric

from gpusonde.collector.push.outgoing import MOST_POINTS, TIMEOUT_S, read_headers
from gpusonde.formats.v1 import remote_write_pb2 as pb
from gpusonde.http_request import send

_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": "gpusonde",
}
# The NaN by which a sender says that a series has ended.
_STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
# A series that nobody adds to ends after this time, as Prometheus has it; so long its end is worth telling.
_ENDS_BY_ITSELF_NS = 300 * 1_000_000_000
_MOST_ENDS = 100_000
_Labels = tuple[tuple[str, str], ...]


class RemoteWrite:
    """Makes requests for one receiver.

    Args:
        url: Where they go.
        headers_file: File of more headers; empty for none.
        instance: Value of the label ``instance`` of every series; ``job`` is ``gpusonde-collector``.
    """

    def __init__(self, url: str, headers_file: str, instance: str) -> None:
        self._url = url
        self._headers_file = headers_file
        self._own = {"job": "gpusonde-collector", "instance": instance}
        self._before: set[_Labels] = set()
        # Series whose end was not taken yet -> since when they are gone.
        self._ended: dict[_Labels, int] = {}

    def batches(self, families: Sequence[Metric], now_unix_nano: int) -> Sequence[WriteBatch]:
        """Return all series with their values, and the end of those that are gone.

        Raises:
            OSError: The headers cannot be read.
        """
        headers = {**_HEADERS, **read_headers(self._headers_file)}
        series = dict(self._series(families))
        gone = self._ended | dict.fromkeys(self._before - series.keys(), now_unix_nano)
        waiting = [
            (labels, since)
            for labels, since in gone.items()
            if labels not in series and now_unix_nano - since < _ENDS_BY_ITSELF_NS
        ]
        self._ended = dict(waiting[-_MOST_ENDS:])
        self._before = set(series)
        told = [*series.items(), *((labels, _STALE) for labels in self._ended)]
        at = now_unix_nano // 1_000_000
        return [
            WriteBatch(self._url, headers, at, told[i : i + MOST_POINTS], self._note_taken)
            for i in range(0, len(told), MOST_POINTS)
        ]

    def close(self) -> None:
        """Do nothing: a request has its time."""

    def _note_taken(self, labels: _Labels) -> None:
        self._ended.pop(labels, None)

    def _series(self, families: Sequence[Metric]) -> Iterator[tuple[_Labels, float]]:
        for family in families:
            for sample in family.samples:
                if not math.isnan(sample.value):
                    labels = {"__name__": sample.name, **self._own, **sample.labels}
                    # One that is empty is none, and is not to be sent.
                    yield tuple(sorted(label for label in labels.items() if label[1])), sample.value


@dataclass(frozen=True)
class WriteBatch:
    """One request."""

    url: str
    headers: dict[str, str]
    at_unix_ms: int
    points: list[tuple[_Labels, float]]
    note_taken: Callable[[_Labels], None]

    def __len__(self) -> int:
        return len(self.points)

    def series(self) -> list[pb.TimeSeries]:
        """Return the points as they are sent."""
        return [
            pb.TimeSeries(
                labels=[pb.SeriesLabel(name=name, value=label) for name, label in labels],
                samples=[pb.SeriesSample(value=value, timestamp=self.at_unix_ms)],
            )
            for labels, value in self.points
        ]

    def send(self) -> None:
        """Send it.

        Raises:
            OSError: It was not taken.
        """
        body = pb.WriteRequest(timeseries=self.series()).SerializeToString()
        compressed = bytes(cramjam.snappy.compress_raw(body))
        send(Request(self.url, compressed, dict(self.headers)), TIMEOUT_S)  # noqa: S310 - checked by the configuration
        for labels, _ in self.points:
            self.note_taken(labels)

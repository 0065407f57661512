"""``RemoteWrite``: series as Prometheus takes them by remote write, version 1.

https://prometheus.io/docs/specs/prw/remote_write_spec/
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cramjam
from prometheus_client.metrics_core import Metric

from gpusonde.collector.push.outgoing import post, read_headers
from gpusonde.collector.push.pusher import MOST_POINTS, TIMEOUT_S
from gpusonde.formats.v1 import remote_write_pb2 as pb

_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": "gpusonde",
}
# The NaN by which a sender says that a series has ended.
_STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
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

    def batches(self, families: Sequence[Metric], now_unix_nano: int) -> Sequence[WriteBatch]:
        """Return all series with their values, and the end of those that are gone.

        Raises:
            OSError: The headers cannot be read.
        """
        headers = {**_HEADERS, **read_headers(self._headers_file)}
        series = dict(self._series(families))
        ended = dict.fromkeys(self._before - series.keys(), _STALE)
        self._before = set(series)
        at = now_unix_nano // 1_000_000
        made = [
            pb.TimeSeries(
                labels=[pb.SeriesLabel(name=name, value=label) for name, label in labels],
                samples=[pb.SeriesSample(value=value, timestamp=at)],
            )
            for labels, value in itertools.chain(series.items(), ended.items())
        ]
        return [WriteBatch(self._url, headers, made[i : i + MOST_POINTS]) for i in range(0, len(made), MOST_POINTS)]

    def close(self) -> None:
        """Do nothing: a request ends by itself."""

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
    series: list[pb.TimeSeries]

    def __len__(self) -> int:
        return len(self.series)

    def send(self) -> None:
        """Send it.

        Raises:
            OSError: It was not taken.
        """
        body = pb.WriteRequest(timeseries=self.series).SerializeToString()
        post(self.url, bytes(cramjam.snappy.compress_raw(body)), self.headers, TIMEOUT_S)

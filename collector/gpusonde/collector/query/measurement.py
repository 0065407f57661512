"""From a stored run to the measurement that a prediction starts from."""

from __future__ import annotations

import math
from typing import Protocol

from gpusonde.catalog import GpuCatalog, Resolution, UnknownGpuError
from gpusonde.collector.query.errors import NotFoundError, NotYetError
from gpusonde.collector.query.runs import gpu_message
from gpusonde.collector.records.model import Position
from gpusonde.collector.storage.samples import Samples, concatenate
from gpusonde.collector.storage.tables.facts import GpuRow
from gpusonde.collector.storage.tables.results import RunRow
from gpusonde.predictor.crossgpu import SourceMeasurement, run_distributions
from gpusonde.telemetry import Trace

# The detector's interval is a 95 % one: so many standard errors from end to end.
_STANDARD_ERRORS_PER_INTERVAL = 2 * 1.96
_LARGEST_RELATIVE_ERROR = 0.99
# Of a run of days, 48 pieces of 15 minutes tell the distributions as well as all of it, in bounded memory.
_PIECES = 48
_PIECE_NS = 900 * 1_000_000_000


class SampleReader(Protocol):
    """The part of a store that measuring needs; see ``Store``."""

    def gpus(self) -> list[GpuRow]:
        """See ``Store.gpus``."""

    def metrics_of(self, gpu_uuid: str) -> list[str]:
        """See ``Store.metrics_of``."""

    def read(
        self,
        gpu_uuid: str,
        start_unix_nano: int,
        end_unix_nano: int,
        metrics: list[str] | None = None,
        *,
        first: Position | None = None,
        last: Position | None = None,
    ) -> Samples:
        """See ``Store.read``."""


def resolve(gpus: GpuCatalog, name: str, memory_bytes: int = 0) -> Resolution:
    """Look a GPU up by any of its names.

    Args:
        gpus: The catalogue.
        name: What a driver or a user calls it.
        memory_bytes: Its memory, to tell variants apart; 0 when unknown.

    Raises:
        NotFoundError: The catalogue does not hold it.
    """
    try:
        return gpus.resolve(name, memory_bytes=memory_bytes or None)
    except UnknownGpuError as error:
        raise NotFoundError(str(error)) from None


class RunMeasurer:
    """Measures stored runs.

    Args:
        store: Where the samples are.
        gpus: Resolves names.
    """

    def __init__(self, store: SampleReader, gpus: GpuCatalog) -> None:
        self._store = store
        self._gpus = gpus

    def measure(self, run: RunRow) -> SourceMeasurement:
        """Measure a run: its epoch latency, and its metrics over all of it.

        Raises:
            NotYetError: The run has no epochs, or its agent does not name the GPU.
            NotFoundError: The catalogue does not hold the GPU.
            MeasurementError: What was sampled cannot be.
            StoreCorruptError: A segment that is needed cannot be read.
        """
        if run.verdict != "epochs" or not math.isfinite(run.period_s):
            found = run.verdict or "not analysed yet"
            raise NotYetError(
                f"run {run.run_id} has no epochs to predict from ({found}: {run.reason or 'too short so far'});"
                " wait for more of it, or give a measurement"
            )
        gpus = {(gpu.gpu_uuid, gpu.agent_id): gpu for gpu in self._store.gpus()}
        described = gpu_message(gpus.get((run.gpu_uuid, run.agent_id)))
        if not described.product_name:
            raise NotYetError(
                f"the agent does not know what model GPU {run.gpu_uuid} is (a replayed trace need not tell); give a"
                " measurement with its gpu_model instead of the run"
            )
        resolution = resolve(self._gpus, described.product_name, described.framebuffer_bytes)
        attributes = {a.name: a.value for a in described.static_attributes if math.isfinite(a.value) and a.value >= 0}
        error = (run.period_high_s - run.period_low_s) / _STANDARD_ERRORS_PER_INTERVAL / run.period_s
        return SourceMeasurement(
            gpu=resolution.spec,
            epoch_latency_s=run.period_s,
            metrics=run_distributions(self._trace(run)),
            epoch_latency_relative_error=min(max(error, 0.0), _LARGEST_RELATIVE_ERROR) if math.isfinite(error) else 0.0,
            static_attributes=attributes,
            epoch_count=run.epoch_count,
        )

    def _trace(self, run: RunRow) -> Trace:
        """Return the ticks of a run; of a long one, pieces spread evenly over it."""
        start, end = run.start_unix_nano, run.end_unix_nano + 1
        count = _PIECES if end - start > _PIECES * _PIECE_NS else 1
        length = _PIECE_NS if count > 1 else end - start
        starts = [start + (end - length - start) * i // max(count - 1, 1) for i in range(count)]
        metrics = self._store.metrics_of(run.gpu_uuid)
        samples = concatenate(
            [self._store.read(run.gpu_uuid, s, s + length, metrics, first=run.first, last=run.last) for s in starts],
            metrics,
        )
        time_s = (samples.time_unix_nano - run.start_unix_nano) / 1e9
        return Trace(time_s, {name: column.astype(float) for name, column in samples.columns.items()})

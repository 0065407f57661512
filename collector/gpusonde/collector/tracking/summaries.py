"""``EpochSummaries``: mean metrics and energy of the epochs, worked out of the store a little at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from gpusonde.collector.storage.model import EpochRow, Position, RunRow, SummaryRow
from gpusonde.collector.storage.samples import Samples
from gpusonde.collector.storage.store import Store
from gpusonde.epoch_detect.progress import EpochSummary, EpochSums
from gpusonde.epoch_detect.ticks import measure_seen_seconds
from gpusonde.errors import StoreCorruptError, StoreError

_LOG = logging.getLogger(__name__)
_SECOND_NS = 1_000_000_000
# Read at a time: 15 minutes of 27 metrics at 10 Hz are two megabytes.
_WINDOW_NS = 900 * _SECOND_NS
# Around the epochs: the tick before the first one, and readings of a slowly sampled counter on either side.
_MARGIN_NS = 20 * _SECOND_NS
# Such readings may lie in records outside of the run; a second of ticks is one record.
_MARGIN_RECORDS = 20
_MOST_AT_ONCE = 1000


class EpochSummaries:
    """Summarises confirmed epochs that have no summary: some of one run, then some of the next.

    What is still to do is what the catalogue says: a crash loses the piece under way and nothing else.

    Args:
        store: Where samples and epochs are, and their summaries go.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results = store.results
        self._waiting: dict[str, None] = {}
        self._under_way: tuple[str, Iterator[None]] | None = None
        self._unreadable: dict[str, int] = {}
        self._broken: set[str] = set()

    def restore(self, agents: Collection[str] | None = None) -> None:
        """Go on with what an earlier process left, or another collector of agents that have come from it.

        Raises:
            StoreError: The catalogue cannot be read.
        """
        for run_id in self._results.runs_to_summarise(agents):
            self.add(run_id)

    def add(self, run_id: str) -> None:
        """Note that epochs of a run, which are in the catalogue, may have been confirmed or moved."""
        if run_id not in self._broken:
            self._waiting[run_id] = None

    @property
    def waiting(self) -> bool:
        """Whether there is something to do."""
        return bool(self._waiting or self._under_way)

    def work(self, stop: Callable[[], bool]) -> None:
        """Summarise until ``stop()``; between two looks at it lies the reading of at most 15 minutes of one GPU.

        Raises:
            StoreError: The catalogue cannot be read or written; everything stays to do.
        """
        while self.waiting and not stop():
            if self._under_way is None:
                run_id = next(iter(self._waiting))
                del self._waiting[run_id]
                self._under_way = run_id, self._summarise_some(run_id)
            run_id, pieces = self._under_way
            try:
                next(pieces)
            except StopIteration:
                self._under_way = None
            except StoreError:
                self._under_way = None
                self.add(run_id)
                raise
            except Exception:  # a fault in one run leaves the others alone
                _LOG.exception("epochs of run %s have no mean metrics until the next start", run_id)
                self._under_way = None
                self._broken.add(run_id)

    def _summarise_some(self, run_id: str) -> Iterator[None]:
        """Summarise the first epochs of a run that need it; yields after every piece."""
        run = self._results.run(run_id)
        epochs = self._results.to_summarise(run_id, self._unreadable.get(run_id, -1), _MOST_AT_ONCE)
        if run is None or not epochs:
            return
        start = epochs[0].start_unix_nano
        together = [epoch for epoch in epochs if epoch.end_unix_nano <= start + _WINDOW_NS] or epochs[:1]
        try:
            yield from self._summarise(run, together)
        except StoreCorruptError as error:
            for epoch in together if len(together) > 1 else ():
                try:
                    yield from self._summarise(run, [epoch])
                except StoreCorruptError:
                    continue
            _LOG.error("some epochs of run %s have no mean metrics until the next start: %s", run_id, error)
            self._unreadable[run_id] = together[-1].start_unix_nano
        # The next run comes first.
        self.add(run_id)

    def _summarise(self, run: RunRow, epochs: Sequence[EpochRow]) -> Iterator[None]:
        """Summarise neighbouring epochs."""
        start, end = epochs[0].start_unix_nano, max(epoch.end_unix_nano for epoch in epochs)
        sums = [EpochSums((e.start_unix_nano - start) / 1e9, (e.end_unix_nano - start) / 1e9) for e in epochs]
        for samples in _read_pieces(self._store, run, start, end):
            _add(sums, samples, start)
            yield
        rows = [(epoch, _row(one.summary())) for epoch, one in zip(epochs, sums, strict=True)]
        self._results.save_summaries(run.run_id, rows)


def _read_pieces(store: Store, run: RunRow, start: int, end: int) -> Iterator[Samples]:
    """Yield the ticks of a run, and what lies around it, from a little before ``start`` to a little after ``end``.

    A piece begins with the last tick of the one before, for the time that lies between the two.
    """
    metrics = store.facts.metrics(run.gpu_uuid)
    begin, upto, stop = start - _MARGIN_NS, start + _WINDOW_NS, end + _MARGIN_NS
    while True:
        upto = min(upto, stop)
        samples = _read_piece(store, run, begin, upto, metrics)
        yield samples
        if upto >= stop:
            return
        begin = int(samples.time_unix_nano[-1]) if len(samples) else begin
        upto += _WINDOW_NS


def _read_piece(store: Store, run: RunRow, begin: int, end: int, metrics: Sequence[str]) -> Samples:
    samples = store.samples.read(
        run.gpu_uuid,
        begin,
        end,
        metrics,
        first=Position(run.first_spool, max(run.first_sequence - _MARGIN_RECORDS, 0)),
        last=Position(run.last_spool, run.last_sequence + _MARGIN_RECORDS),
    )
    # Where the clock was set back, records before or behind the run lie within its time.
    time, spool, sequence = samples.time_unix_nano, samples.spool, samples.sequence
    early = (spool < run.first_spool) | ((spool == run.first_spool) & (sequence < run.first_sequence))
    late = (spool > run.last_spool) | ((spool == run.last_spool) & (sequence > run.last_sequence))
    foreign = (early & (time >= run.start_unix_nano)) | (late & (time <= run.end_unix_nano))
    return samples.take(~foreign) if foreign.any() else samples


def _add(sums: Sequence[EpochSums], samples: Samples, origin: int) -> None:
    if len(samples) < 2:
        return
    # Relative to the first epoch float64 holds nanoseconds; Unix seconds would only be good to a microsecond.
    time_s = (samples.time_unix_nano - origin) / 1e9
    seen_s = measure_seen_seconds(time_s)
    values = {name: column.astype(np.float64) for name, column in samples.columns.items()}
    for one in sums:
        one.add(time_s, seen_s, values)


def _row(summary: EpochSummary) -> SummaryRow:
    return SummaryRow(summary.seen_share, summary.energy_joules, summary.mean_metrics)

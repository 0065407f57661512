"""``Tail``: the records of the last moments in memory, so that tracking that keeps up asks the database nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from gpusonde.collector.records.model import Decoded, Position
from gpusonde.collector.storage.samples import Mark, StoredBlock
from gpusonde.collector.storage.tail import Generation

_MEBIBYTE = 1 << 20


class Tail:
    """What was stored last, and from where on it is complete.

    Args:
        keep_s: For how long records stay at least.
        keep_bytes: Size beyond which they go earlier.
        clock: Monotonic seconds.
    """

    def __init__(self, keep_s: float, keep_bytes: int, clock: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._keep_bytes = keep_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._older = Generation()
        self._newer = Generation()
        self._began_at = clock()
        # Spool -> everything behind this sequence is here.
        self._complete_after: dict[int, int] = {}

    def begin(self, spool: int, durable_sequence: int) -> None:
        """Note that a spool goes on behind a sequence; what it held between its last record here and that is not."""
        with self._lock:
            known = max(self._newer.reached.get(spool, -1), self._older.reached.get(spool, -1))
            if spool not in self._complete_after or durable_sequence != known:
                self._complete_after[spool] = durable_sequence

    def add(self, records: Sequence[tuple[Position, Decoded]]) -> list[list[str]]:
        """Take records that are durable; returns the GPUs that each is about."""
        with self._lock:
            self._make_room()
            return [self._newer.add(position, record) for position, record in records]

    def _make_room(self) -> None:
        old = self._clock() - self._began_at >= self._keep_s
        if not old and self._newer.nbytes < self._keep_bytes // 2:
            return
        for spool, sequence in self._older.reached.items():
            self._complete_after[spool] = max(self._complete_after.get(spool, 0), sequence)
        self._older, self._newer = self._newer, Generation()
        self._began_at = self._clock()

    def behind(
        self, gpu_uuid: str, durable: Mapping[int, int], after: Position
    ) -> tuple[list[StoredBlock], list[Mark]] | None:
        """Return a GPU's blocks and marks behind a position, or None if not all of them are here.

        Args:
            gpu_uuid: The GPU.
            durable: The spools that count, and how far they are durable.
            after: The position.
        """
        with self._lock:
            for spool, through in durable.items():
                needed = after.sequence if spool == after.spool else 0
                if spool >= after.spool and not self._is_complete(spool, needed, through):
                    return None
            blocks: list[StoredBlock] = []
            marks: list[Mark] = []
            for generation in (self._older, self._newer):
                blocks += generation.blocks_after(gpu_uuid, durable, after)
                marks += generation.marks_after(gpu_uuid, durable, after)
        return blocks, marks

    def _is_complete(self, spool: int, after: int, through: int) -> bool:
        begins = self._complete_after.get(spool, _NEVER)
        ends = self._newer.reached.get(spool, self._older.reached.get(spool, begins))
        return begins <= after and ends >= through


_NEVER = 1 << 63

"""A store that never rests, for tests that kill it: appends, flushes, compacts and deletes small amounts all the time.

    python busy_store.py DIRECTORY

Writes the sequence of each acknowledged record as a line to stdout, and the line ``compacted`` when it has done so.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.store_records import Feed, durable_after

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.compaction import CompactionSizes
from gpusonde.collector.storage.model import AgentRow

# Averages go, ticks stay: what is read must be all of them.
CONFIG = StoreConfig(
    reserve_bytes=0, compact_share=1.0, raw_retention_s=0.0, second_retention_s=0.0, second_max_bytes=20_000
)
COMPACTION = CompactionSizes(file_bytes=20_000, group_rows=200)


def main() -> None:
    """Work until killed."""
    store = LocalStore(Path(sys.argv[1]), CONFIG, compaction=COMPACTION)
    store.open()
    (durable,) = durable_after(store, [AgentRow("agent-1", "spool-1", "instance", 1, "host", "1", b"")])
    next_sequence = durable + 1
    threading.Thread(target=keep_compacting, args=(store,), daemon=True).start()
    while True:
        for _ in range(6):
            store.samples.append(Feed().batches(next_sequence, next_sequence + 3))
            next_sequence += 4
            say(str(next_sequence - 1))
        store.flush()
        # A writer that never pauses starves the compacting thread, and the store outgrows the test.
        time.sleep(0.02)


def say(word: str) -> None:
    """Write a line at once and in one piece: two threads do."""
    os.write(sys.stdout.fileno(), f"{word}\n".encode())


def keep_compacting(store: LocalStore) -> None:
    """Compact and delete without end."""
    while True:
        if store.maintenance.compact_all():
            say("compacted")
        store.maintenance.delete_old()


if __name__ == "__main__":
    main()

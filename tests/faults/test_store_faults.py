"""A store killed while it seals, compacts and deletes: every acknowledged record is there once, and fsck agrees.

``GPUSONDE_FAULT_KILLS=20`` makes the test as long as a release wants it.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

from support.busy_store import OPTIONS
from support.store_records import EVER
from support.wire_agent import START_NS, TICK_NS

from gpusonde.collector import LocalStore
from gpusonde.collector.records.model import Position
from gpusonde.collector.storage.arrivals import TicksArrived
from gpusonde.collector.storage.check.check import check_store

KILLS = int(os.environ.get("GPUSONDE_FAULT_KILLS", "5"))
BUSY_STORE = Path(__file__).parents[1] / "support" / "busy_store.py"


def test_a_store_killed_at_random_moments_of_compaction_loses_and_repeats_nothing(tmp_path):
    chance = random.Random(11)
    directory = tmp_path / "data"
    acknowledged = 0
    compacted = 0
    for _ in range(KILLS):
        with subprocess.Popen([sys.executable, str(BUSY_STORE), str(directory)], stdout=subprocess.PIPE) as process:
            first = process.stdout.readline()
            try:
                process.wait(chance.uniform(0.3, 1.2))
            except subprocess.TimeoutExpired:
                process.kill()
            lines = [first, *process.stdout.read().split()]
        assert process.returncode == -9
        acknowledged = max(acknowledged, int(lines[-1]))
        leftovers = [finding.kind.value for finding in check_store(directory).findings]
        assert set(leftovers) <= {"orphan", "log_tail"}
        compacted = max(compacted, len(list((directory / "hours").glob("*.hour.parquet"))))
        store = LocalStore(directory, OPTIONS)
        store.open()
        samples = store.read("GPU-a", *EVER)
        arrived = [a.samples for a in store.arrivals("agent-1", "GPU-a", Position(0, 0)) if isinstance(a, TicksArrived)]
        store.close()
        ticks = ((samples.time_unix_nano - START_NS) // TICK_NS).tolist()
        assert ticks == list(range(len(ticks)))
        assert len(ticks) >= 10 * (acknowledged - 1)
        sequences = [sequence for piece in arrived for sequence in piece.sequence.tolist()]
        assert sequences == [tick // 10 + 2 for tick in ticks]
    assert compacted > 0
    assert check_store(directory).findings == []

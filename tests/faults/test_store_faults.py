"""A store killed while it flushes, compacts and deletes: every acknowledged record is there once, and fsck agrees.

``GPUSONDE_FAULT_KILLS=20`` makes the test as long as a release wants it.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from support.busy_store import COMPACTION, CONFIG
from support.store_records import EVER
from support.wire_agent import START_NS, TICK_NS

from gpusonde.collector import LocalStore
from gpusonde.collector.storage.local.fsck import check_store
from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry

KILLS = int(os.environ.get("GPUSONDE_FAULT_KILLS", "3"))
BUSY_STORE = Path(__file__).parents[1] / "support" / "busy_store.py"


def test_a_store_killed_at_random_moments_of_compaction_loses_and_repeats_nothing(tmp_path):
    chance = random.Random(11)
    directory = tmp_path / "data"
    acknowledged = 0
    for _ in range(KILLS):
        # Never left without anything to compact, it is killed in the middle of something.
        compactions = chance.randint(1, 4)
        with subprocess.Popen([sys.executable, str(BUSY_STORE), str(directory)], stdout=subprocess.PIPE) as process:
            lines = []
            while lines.count(b"compacted\n") < compactions:
                lines.append(process.stdout.readline())
                assert lines[-1], "the store ended by itself"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, 0.2))
            process.kill()
            lines += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL
        acknowledged = max(acknowledged, *(int(line) for line in lines if line[:1].isdigit() and line.endswith(b"\n")))
        leftovers = [finding.kind.value for finding in check_store(directory).findings]
        assert set(leftovers) <= {"orphan", "log_tail"}
        store = LocalStore(directory, CONFIG, compaction=COMPACTION)
        store.open()
        samples = store.samples.read("GPU-a", *EVER)
        arrived = [
            a.samples for a in store.samples.read_feed("agent-1", "GPU-a", Position(0, 0)) if isinstance(a, TicksEntry)
        ]
        store.close()
        ticks = ((samples.time_unix_nano - START_NS) // TICK_NS).tolist()
        assert ticks == list(range(len(ticks)))
        assert len(ticks) >= 10 * (acknowledged - 1)
        sequences = [sequence for piece in arrived for sequence in piece.sequence.tolist()]
        assert sequences == [tick // 10 + 2 for tick in ticks]
    assert check_store(directory).findings == []

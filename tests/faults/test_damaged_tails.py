"""Spool and log tails cut and flipped at random between the lives of real agents and collectors.

What is promised: everything that was not damaged arrives once and in order; what the collector had lost and the agent
still holds is sent again; what is gone on both sides is on record.
"""

from __future__ import annotations

import os
import random

import numpy as np
from support.counting_agent import CYCLE
from support.running_collector import ProcessCollector
from support.victim_agent import VictimAgent, stored
from support.wire_agent import wait_until

ROUNDS = 6
SEED = int(os.environ.get("GPUSONDE_FAULT_SEED", "1"))
# At most so many bytes of the end are touched.
TAIL_BYTES = 3000


def cut(path, chance):
    """Cut the end off; returns what was done."""
    size = path.stat().st_size
    gone = chance.randint(1, min(TAIL_BYTES, size))
    with path.open("r+b") as file:
        file.truncate(size - gone)
    return f"cut {gone} bytes"


def flip(path, chance):
    """Change a bit near the end; returns what was done."""
    data = bytearray(path.read_bytes())
    back = chance.randint(1, min(TAIL_BYTES, len(data)))
    data[-back] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"flipped a bit {back} bytes before the end"


def test_damaged_tails_of_spool_and_log_are_sent_again_or_on_record_and_nothing_is_twice(tmp_path):
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    damage = []
    quick = {"interval_s": 0.005, "batch_interval_s": 0.01}
    with ProcessCollector(tmp_path / "data", store__segment_interval="1h") as collector:
        agent = VictimAgent(tmp_path / "agent", collector.target, **quick).start()
        try:
            for _ in range(ROUNDS):
                wait_connected(agent, 40 + chance.randint(0, 150))
                # A busy machine's collector may have stored none of these ticks yet.
                wait_until(lambda: len(tails(tmp_path)) == 2, 120, "something in spool and log")
                collector.kill()
                agent.kill()
                victim, file = chance.choice(tails(tmp_path))
                damage.append((victim, chance.choice((cut, flip))(file, chance)))
                collector.start()
                agent.start()
            wait_connected(agent, 40)
            report = agent.finish()
        finally:
            agent.process.kill()
        log = collector.log_path.read_text()
        assert collector.terminate() == 0
    assert report["drained"]
    assert "Traceback" not in log
    found = stored(tmp_path / "data")
    assert found.rejections == []
    lost = 0
    for spool in dict.fromkeys(found.spools.tolist()):
        here = found.spools == spool
        sequences, values = found.sequences[here], found.values[here]
        assert (np.diff(sequences) >= 0).all()
        # Inside of a record, and from a record to the next one, ticks follow each other or a new life begins at 0.
        follows = (np.diff(values) % CYCLE == 1) | (values[1:] == 0) | (np.diff(sequences) > 1)
        assert follows.all()
        first, last = int(sequences[0]), int(sequences[-1])
        missing = set(range(first, last + 1)) - set(sequences.tolist())
        told = {s for loss in found.losses for s in range(loss.first_sequence, loss.last_sequence + 1)}
        # Inventories carry no ticks: one per life, and one in place of each record that an inventory stands for.
        assert len(missing - told) <= agent.lives
        lost += len(missing & told)
    ticks = [int(tick) for tick in found.values[found.sequences == found.sequences[-1]]]
    assert ticks[-1] == (agent.reached[-1] - 1) % CYCLE
    print(
        f"{ROUNDS} damaged tails ({', '.join(f'{victim} {what}' for victim, what in damage)}): {len(found.values)} "
        f"ticks in {len(set(found.spools.tolist()))} runs of numbers, none twice; {lost} records gone and on record"
    )


def wait_connected(agent, ticks):
    """Return once a life of the agent has found the collector and taken so many ticks."""
    wait_until(lambda: agent.log().count("connected to collector") >= agent.lives, 120, "a connection")
    wait_until(lambda: agent.took() > ticks, 120, "ticks")


def tails(tmp_path):
    """The newest file of the spool and of the collector's log, of those that hold something."""
    found = []
    for victim, files in (("spool", "agent/spool/*.seg"), ("log", "data/log/*.log")):
        newest = max((file for file in tmp_path.glob(files) if file.stat().st_size > 100), default=None)
        if newest:
            found.append((victim, newest))
    return found

"""Collector and agent, both the product's own processes, killed with SIGKILL at random again and again.

``GPUSONDE_FAULT_SEED=7`` repeats a run's kills, as far as two processes repeat anything.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time

import numpy as np
from support.counting_agent import CYCLE
from support.decoded_blocks import decode
from support.running_collector import ProcessCollector
from support.scripted_collector import Script, ScriptedCollector
from support.victim_agent import VictimAgent, stored
from support.wire_agent import wait_for_growth, wait_until

from gpusonde.agent.spool.inspection import inspect_spool
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import metric

# docs/results/faults.md was measured with GPUSONDE_FAULT_KILLS=20, and so 10,000 batches.
KILLS = int(os.environ.get("GPUSONDE_FAULT_KILLS", "5"))
BATCHES = 500 * KILLS
SEED = int(os.environ.get("GPUSONDE_FAULT_SEED", "1"))


def kill_again_and_again(collector, chance, failures):
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            collector.kill()
            collector.start()
    except BaseException as error:
        failures.append(error)


def test_collector_and_agent_killed_again_and_again_lose_repeat_and_reorder_nothing(tmp_path):
    print(f"seed {SEED}")
    chance, failures = random.Random(SEED), []
    began = time.monotonic()
    with ProcessCollector(tmp_path / "data", store__segment_interval="5s") as collector:
        killer = threading.Thread(target=kill_again_and_again, args=(collector, random.Random(SEED + 1), failures))
        with VictimAgent(tmp_path / "agent", collector.target, interval_s=0.002, batch_interval_s=0.002) as victim:
            killer.start()
            try:
                for _ in range(KILLS):
                    # Not before it has taken a tick: else only its start would be killed.
                    wait_until(victim.took, 120, "a tick")
                    time.sleep(chance.uniform(0.05, 1.5))
                    victim.kill()
                    victim.start()
            finally:
                killer.join()
            assert not failures, failures
            wait_for_growth(lambda: inspect_spool(victim.spool).last_sequence, BATCHES, "batches in the spool")
            report = victim.finish()
        assert report["drained"]
        assert collector.terminate() == 0
    found = stored(tmp_path / "data")
    assert (found.losses, found.rejections) == ([], [])
    assert report["dropped_records"] == {}
    assert len(set(found.spools.tolist())) == 1
    assert (np.diff(found.sequences) >= 0).all()
    present = np.unique(found.sequences)
    inventories = sorted(set(range(1, report["last_sequence"] + 1)) - set(present.tolist()))
    # Every sequence is there but those of the inventories, one per life.
    assert len(inventories) == victim.lives
    assert inventories[0] == 1
    assert len(present) >= BATCHES
    lost = []
    bounds = [*inventories, report["last_sequence"] + 1]
    for life, (first, following) in enumerate(itertools.pairwise(bounds)):
        ticks = found.values[(found.sequences > first) & (found.sequences < following)]
        # Consecutive from the first tick on: nothing is missing inside of a life and nothing is there twice.
        np.testing.assert_array_equal(ticks, np.arange(len(ticks)) % CYCLE)
        lost.append(victim.reached[life] - len(ticks))
    assert min(lost) >= 0
    assert lost[-1] == 0
    assert inspect_spool(victim.spool).findings == ()
    print(
        f"{KILLS} kills of the collector and {KILLS} of the agent in {time.monotonic() - began:.0f} s; {len(present)} "
        f"batches with {len(found.values)} ticks: 0 missing, 0 twice, in order. A killed agent had sampled and not yet "
        f"committed {max(lost)} ticks of 2 ms at most, {np.mean(lost[:-1]):.1f} on average; one that was told to stop 0"
    )


def test_a_killed_agent_of_the_default_pace_loses_no_more_than_a_batch_and_a_commit(tmp_path):
    chance = random.Random(SEED)
    with ProcessCollector(tmp_path / "data") as collector:
        with VictimAgent(tmp_path / "agent", collector.target, {"spool.commit_interval": "100ms"}) as victim:
            for _ in range(4):
                wait_until(lambda: victim.took() > 8, 120, "ticks")
                time.sleep(chance.uniform(0.0, 1.5))
                victim.kill()
                victim.start()
            wait_until(lambda: victim.took() > 8, 120, "ticks")
            report = victim.finish()
        assert collector.terminate() == 0
    found = stored(tmp_path / "data")
    assert found.losses == []
    # Each life begins with tick 0.
    lives = np.split(found.values, np.flatnonzero(found.values == 0))[1:]
    for life in lives:
        np.testing.assert_array_equal(life, np.arange(len(life)))
    assert len(lives[-1]) == victim.reached[-1] == report["ticks"]
    lost = sum(victim.reached) - len(found.values)
    # 1.1 s each, and what a tick, a slow disk and a busy machine add.
    assert 0 <= lost <= 4 * 20
    print(
        f"4 kills of an agent at 10 Hz with batches of 1 s: {lost} of {sum(victim.reached)} ticks lost, {lost / 4:.1f} "
        "at a time; 0 at SIGTERM"
    )


def test_a_killed_agent_of_which_a_collector_asks_for_long_batches_loses_no_more(tmp_path):
    chance = random.Random(SEED)
    throttle = ingest_pb2.Throttle(batch_interval_ms=30_000)
    with ScriptedCollector(scripts=[Script(throttle_after=(3, throttle)) for _ in range(20)]) as collector:
        quick = {"interval_s": 0.01, "batch_interval_s": 0.05}
        with VictimAgent(tmp_path / "agent", collector.target, **quick) as victim:
            for life in range(1, 4):
                wait_until(lambda life=life: victim.log().count("asks for at most") >= life, 120, "the throttle")
                before = victim.took()
                wait_until(lambda before=before: victim.took() > before + 100, 120, "ticks")
                time.sleep(chance.uniform(0.0, 0.5))
                victim.kill()
                victim.start()
            wait_until(lambda: victim.took() > 8, 120, "ticks")
            assert victim.finish()["drained"]
        records = collector.records()
    values = [
        value
        for record in records
        if record.HasField("batch")
        for block in decode(record.batch, (metric("power_watts"),))
        for value in block.values[0].tolist()
    ]
    lives = np.split(np.array(values), np.flatnonzero(np.array(values) == 0))[1:]
    assert len(lives) == 4
    for life in lives:
        np.testing.assert_array_equal(life, np.arange(len(life)))
    lost = [reached - len(life) for reached, life in zip(victim.reached, lives, strict=True)]
    # A step of 50 ms each, and what a tick and a busy machine add; a batch would be 3,000 ticks.
    assert lost[-1] == 0
    assert max(lost) < 50
    print(f"3 kills while batches of 30 s are asked for: {lost[:-1]} ticks of 10 ms lost")

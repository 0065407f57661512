"""NvmlSource while anything may fail with any code on any GPU at any time: the others go on, no number is made up."""

import random
import re
from pathlib import Path

import numpy as np
import pytest

from gpusonde.agent.sources.base import GpuEventKind
from gpusonde.telemetry import MissingReason

_STAND_IN = Path(__file__).parents[1] / "support" / "fake_nvml.c"
_FUNCTIONS = sorted(set(re.findall(r"API result (nvml\w+)\(", _STAND_IN.read_text(encoding="utf-8"))))
_FIELDS = ["field:186", "field:83", "field:82", "field:94", "gpm:1", "gpm:2", "gpm:10", "event"]
# Everything but "the driver is gone", which ends the source.
_CODES = (2, 3, 4, 6, 7, 10, 15, 16, 21, 25, 27, 28, 999)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_on_some_gpus_the_others_go_on_and_all_come_back(fake_nvml, seed):
    chance = random.Random(seed)
    fake_nvml.reset(4)
    source = fake_nvml.source(slow_interval_s=1.0)
    inventory = source.open()
    lost: set[int] = set()
    generation = 1
    for _ in range(300):
        if chance.random() < 0.05:
            fake_nvml.heal()
        if chance.random() < 0.2:
            # GPU 0 never fails.
            name, code = chance.choice([*_FUNCTIONS, *_FIELDS]), chance.choice(_CODES)
            fake_nvml.fail(name, code, gpu=chance.randrange(1, 4))
        if chance.random() < 0.03:
            generation += 1
            fake_nvml.set_mig(3, chance.randrange(3), chance.choice((0, 1, 2)), chance.randrange(4), made=generation)
        if chance.random() < 0.02:
            fake_nvml.push_xid(chance.randrange(4), 31)
        fake_nvml.advance(0.1)
        reading = source.read(fake_nvml.time_s)
        inventory = reading.inventory or inventory
        for event in reading.events:
            assert event.gpu < len(inventory.gpus)
            if event.kind is GpuEventKind.LOST:
                assert event.gpu not in lost
                lost.add(event.gpu)
            elif event.kind is GpuEventKind.RECOVERED:
                lost.remove(event.gpu)
        sampled = {ticks.gpu for ticks in reading.ticks}
        assert 0 in sampled
        assert not sampled & lost
        assert sampled | lost == set(range(len(inventory.gpus)))
        for ticks in reading.ticks:
            column = ticks.values[:, 0]
            assert column.shape == (len(inventory.metrics),)
            assert np.array_equal(np.flatnonzero(np.isnan(column)), sorted(ticks.blanks))
            assert all(isinstance(reason, MissingReason) for reason in ticks.blanks.values())
            most = np.array([m.maximum or np.inf for m in inventory.metrics])
            assert np.all(np.isnan(column) | ((column >= 0) & (column <= most)))
    fake_nvml.heal()
    for _ in range(40):
        fake_nvml.advance(0.1)
        reading = source.read(fake_nvml.time_s)
        inventory = reading.inventory or inventory
    alive = {inventory.gpus[ticks.gpu].key for ticks in reading.ticks}
    assert {fake_nvml.uuid(gpu) for gpu in range(4)} <= alive
    source.close()
    library = fake_nvml.library
    assert (library.fake_live_samples(), library.fake_live_event_sets(), library.fake_initialized()) == (0, 0, 0)

"""DcgmSource while anything may fail with any code: it goes on, comes back, and makes no number up."""

import random

import numpy as np
import pytest
from support.fake_dcgm.engine import FakeInstance

from gpusonde.agent.sources.base import GpuEventKind
from gpusonde.telemetry import METRIC_BY_NAME

_FUNCTIONS = (
    "dcgmGetAllDevices",
    "dcgmGetDeviceAttributes",
    "dcgmGetGpuInstanceHierarchy",
    "dcgmGroupCreate",
    "dcgmGroupAddEntity",
    "dcgmGroupDestroy",
    "dcgmFieldGroupCreate",
    "dcgmFieldGroupDestroy",
    "dcgmWatchFields",
    "dcgmUnwatchFields",
    "dcgmGetValuesSince_v2",
    "dcgmEntitiesGetLatestValues",
    "dcgmProfGetSupportedMetricGroups",
    "profiling watch",
    "dcgmConnect_v2",
)
_CODES = (-1, -3, -6, -11, -14, -17, -18, -20, -21, -33, -36, -37)


@pytest.mark.parametrize("looks_ahead", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_engine_answers_the_source_goes_on_and_all_gpus_come_back(dcgm_host, seed, looks_ahead):
    chance = random.Random(seed)
    engine = dcgm_host.engine
    dcgm_host.looks_ahead = looks_ahead
    engine.gpus = 3
    source = dcgm_host.source(slow_interval_s=1.0)
    dcgm_host.open(source)
    places = 20
    for _ in range(150):
        if chance.random() < 0.3:
            engine.refused.clear()
        if chance.random() < 0.15:
            engine.refused[chance.choice(_FUNCTIONS)] = chance.choice(_CODES)
        if chance.random() < 0.03:
            engine.kill()
        if chance.random() < 0.3:
            engine.remote = True
        if chance.random() < 0.05:
            places += 1
            engine.instances = {places: FakeInstance(2, chance.randrange(7))} if chance.random() < 0.7 else {}
        engine.blanks = {(chance.randrange(3), 1002): "blank", (chance.randrange(3), 203): -15}
        engine.lost = {1} if chance.random() < 0.1 else set()
        dcgm_host.run(source, chance.choice((0.2, 0.6, 2.0)) if looks_ahead else 0.2)
    engine.refused, engine.blanks, engine.lost, engine.remote = {}, {}, set(), True
    dcgm_host.run(source, 20.0)
    source.close()
    keys = dcgm_host.keys()
    assert {engine.uuid(gpu) for gpu in range(3)} <= set(keys)
    state = dict.fromkeys(range(len(keys)), GpuEventKind.RECOVERED)
    for event in dcgm_host.events:
        assert event.gpu < len(keys)
        if event.kind in (GpuEventKind.LOST, GpuEventKind.RECOVERED):
            assert state[event.gpu] is not event.kind
            state[event.gpu] = event.kind
    for gpu, key in enumerate(keys):
        ticks = dcgm_host.ticks.get(gpu, [])
        assert np.all(np.diff([at_s for at_s, _, _ in ticks]) > 0)
        if key.startswith("GPU"):
            assert state[gpu] is GpuEventKind.RECOVERED
            assert engine.time_s - ticks[-1][0] < 1.0
            assert ticks[-1][1]["power_watts"] > 0
        for _, values, blanks in ticks:
            for name, value in values.items():
                most = METRIC_BY_NAME[name].maximum
                assert (name in blanks) if np.isnan(value) else 0 <= value <= (most or np.inf)

"""GPUs of the stand-in for libnvidia-ml through the whole agent into a collector's store, while one is split."""

import threading

import numpy as np
import pytest
from support.running_collector import ThreadCollector

from gpusonde.agent import AgentConfig, run_agent
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.collector.client import Client


def test_an_instance_made_while_the_agent_runs_is_stored_under_its_own_uuid_with_true_averages(fake_nvml, tmp_path):
    fake_nvml.set_time(-1.0)
    source = NvmlSource(slow_interval_s=0.5, load=fake_nvml.loader(), cuda_attributes=dict)
    stop, made = threading.Event(), []

    def split(counters):
        if counters.ticks >= 20 and not made:
            made.append(fake_nvml.set_mig(1, 1, 3, 2))
        if counters.ticks >= 110:
            stop.set()

    with ThreadCollector(tmp_path / "store", metrics__listen="") as collector:
        config = AgentConfig.load(
            overrides={
                "spool.directory": str(tmp_path / "spool"),
                "uplink.collector": collector.target,
                "uplink.batch_interval": "200ms",
                "metrics.listen": "",
                "jobs.cgroups": "false",
                "jobs.kubelet_socket": "",
            }
        )
        report = run_agent(config, source=source, stop=stop, on_progress=split)
        assert report.drained
        (instance,) = made
        with Client(collector.target) as client:
            traces = {key: client.read_samples(key) for key in (fake_nvml.uuid(0), fake_nvml.uuid(1), instance)}
    for key, trace in traces.items():
        gpu, share = (0, 1.0) if key == fake_nvml.uuid(0) else (1, 0.9 if key == instance else 1.0)
        times, values = trace.origin_unix_s + trace.time_s, trace.values["sm_active"]
        measured = np.flatnonzero(~np.isnan(values))
        assert len(measured) >= 10
        for i in measured[measured > 0]:
            true = share * 0.9 * fake_nvml.mean(gpu, times[i - 1], times[i])
            assert values[i] == pytest.approx(true, abs=0.02)
    assert len(traces[fake_nvml.uuid(0)]) > len(traces[instance]) + 5
    # The GPU itself has no hole where the inventory changed.
    assert np.diff(traces[fake_nvml.uuid(1)].time_s).max() < 0.5
    assert "power_watts" not in traces[instance].values
    assert np.nanmin(traces[fake_nvml.uuid(1)].values["power_watts"]) > 100

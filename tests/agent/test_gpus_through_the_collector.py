"""GPUs of the stand-in for libnvidia-ml through the whole agent into a collector's store, while one is split."""

import threading

import numpy as np
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
        errors = []
        for before, i in zip(measured - 1, measured, strict=True):
            # A tick without a value has begun a pair, or came too soon after a late one and is part of the next.
            begins = {before, *measured[measured < i][-1:]} - {-1}
            true = [share * 0.9 * fake_nvml.mean(gpu, times[begin], times[i]) for begin in begins]
            errors += [min(abs(values[i] - each) for each in true)] if true else []
        # The machine may stop the process between the time stamp and the sample: at a few ticks, not at most.
        assert np.mean(np.array(errors) <= 0.02) >= 0.8
    assert len(traces[fake_nvml.uuid(0)]) > len(traces[instance]) + 5
    # The GPU itself has no hole where the inventory changed: it has every tick of the one beside it.
    np.testing.assert_allclose(*(traces[fake_nvml.uuid(gpu)].time_s for gpu in (0, 1)), atol=0.05)
    assert "power_watts" not in traces[instance].values
    assert np.nanmin(traces[fake_nvml.uuid(1)].values["power_watts"]) > 100

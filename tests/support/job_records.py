"""Jobs on several GPUs of one host, as the records that an agent would send for them."""

from __future__ import annotations

import numpy as np
from support.epoch_traces import training_trace
from support.trace_records import incoming
from support.wire_agent import batch, block, inventory, source_ended

from gpusonde.common.v1 import job_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import Trace

START = 1_700_000_000_000_000_000
METRICS = ("dram_active", "power_watts")
IDLE_S, PERIOD_S, EPOCHS = 15.0, 20.0, 9


def gpu_traces(count, **more):
    """The GPUs of one job: the same epochs, each with its own noise."""
    return {f"GPU-{i}": training_trace(PERIOD_S, EPOCHS, seed=i, **more)[0] for i in range(count)}


def idle_outside(trace, first_s, last_s):
    """The same trace, without work before and after."""
    outside = (trace.time_s < first_s) | (trace.time_s >= last_s)
    quiet = {"dram_active": 0.0, "power_watts": 55.0}
    return Trace(trace.time_s, {name: np.where(outside, quiet[name], row) for name, row in trace.values.items()})


def shifted(trace, by_s):
    ticks = round(by_s / 0.1)
    return Trace(trace.time_s, {name: np.roll(values, ticks) for name, values in trace.values.items()})


def binding(gpu, job="job-1", scheduler=job_pb2.SCHEDULER_SLURM, end=0):
    return job_pb2.JobBinding(
        gpu_uuid=gpu, job_id=job, scheduler=scheduler, start_time_unix_nano=START, end_time_unix_nano=end
    )


def records_of(traces, bindings=None, bound_after_s=0.0, agent_id="agent-1", spool_id="spool-1", activity=None):
    """Records of one agent, each with a second of every GPU, and their bindings as soon as they are known.

    ``activity`` has messages of what processes did, by the second behind whose ticks they come.
    """
    if bindings is None:
        bindings = [binding(gpu) for gpu in traces]
    said = [inventory(1, METRICS, tuple(traces))]
    ticks = len(next(iter(traces.values())))
    for first in range(0, ticks, 10):
        if first == round(bound_after_s * 10):
            told = ingest_pb2.JobBindings(bindings=bindings)
            said.append(ingest_pb2.Record(sequence=len(said) + 1, job_bindings=told))
        blocks = [
            block(
                first,
                min(10, ticks - first),
                np.stack([trace.values[name][first : first + 10] for name in METRICS]),
                METRICS,
                gpu_index=i,
                start_ns=START + i * 1_000_000,  # the GPUs are read one after the other
            )
            for i, trace in enumerate(traces.values())
        ]
        said.append(batch(len(said) + 1, *blocks))
        if activity and (message := activity.get(first // 10)):
            said.append(ingest_pb2.Record(sequence=len(said) + 1, job_activity=message))
    said.append(source_ended(len(said) + 1, *range(len(traces))))
    return incoming(said, agent_id, spool_id)

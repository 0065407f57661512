"""Writes the files of this folder as gpusonde at commit 48c61fd did.

It tells how the files came about and need not run at any later commit: names of modules are those of that one. It ran
in a tree of that commit, with ``tests/support/written_before.py`` added and ``tests`` on the path:
``unshare --uts sh -c 'hostname host-1; PYTHONPATH=tests python generate.py OUT'``. Times, ports, process ids and the
names of spools and runs differ from run to run; all else is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from support.collector_process import GPUSONDE, CollectorProcess, ask, replay, wait_for_ended_runs, wait_for_summaries
from support.epoch_traces import training_trace
from support.fleet_store import write_fleet
from support.problem_documents import measurements
from support.synthetic_runs import synthetic_runs, write_runs
from support.timed_networks import write_timed_networks
from support.wire_agent import StreamEnded, WireStream, batch, hello, inventory, wait_until
from support.written_before import EXPECTED, LIVE_AGENT, LIVE_GPU, OBSERVED, OLD_GPU, observed

from gpusonde.agent.config import JobsConfig
from gpusonde.agent.counters import SelfCounters
from gpusonde.agent.jobs import JobParts, make_watcher
from gpusonde.agent.sources.base import GpuDescription, SourceInventory
from gpusonde.collector.workload.training.queue import TrainingQueue
from gpusonde.common.v1 import job_pb2
from gpusonde.epoch_detect import EpochTracker
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.predictor.workload.embedding import EncoderDescription, EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.predictor.workload.training.checkpoint import write_checkpoint
from gpusonde.predictor.workload.training.options import TrainingOptions
from gpusonde.simulator.allreduce import (
    AllreduceMeasurement,
    AllreduceModel,
    LinkTopology,
    measurements_to_json,
    model_to_json,
)
from gpusonde.simulator.compute import ComputeProbe
from gpusonde.simulator.gradients import GradientTrace
from gpusonde.simulator.job_profile import JobProfile
from gpusonde.telemetry import Trace, read_trace, write_trace

# What the host's kernel and processor are called is nobody's business.
_SITE = """
import platform
platform.release = lambda: "6.8.0"
"""
_V100, _T4 = "Tesla V100-SXM2-16GB", "Tesla T4"


def job_trace(period_s: float, epochs: int, *, gpu: str, model: str, seed: int, **more: float) -> Trace:
    """A training with the metrics that predictions ask for; rounded, so that files stay small."""
    base, _ = training_trace(period_s, epochs, seed=seed, **more)
    dram, power = np.round(base.values["dram_active"], 2), np.round(base.values["power_watts"])
    busy = dram > 0
    interval_s = base.time_s[1] - base.time_s[0]
    values = {
        "dram_active": dram,
        "gpu_utilization": np.where(busy, np.round(np.minimum(1.0, 0.2 + dram), 1), 0.0),
        "memory_utilization": np.where(busy, np.round(0.6 * dram, 1), 0.0),
        "power_watts": power,
        "sm_clock_mhz": np.where(busy, 1380.0, 1590.0),
        "framebuffer_used_bytes": np.where(busy, float(9 << 30), 0.0),
        "energy_joules": 5e6 + np.round(np.cumsum(power) * interval_s),
    }
    time_s = np.round(base.time_s, 3)
    return Trace(time_s, values, gpu, model, 1_790_000_000.0, {"generated": "for tests", "memory_bytes": str(16 << 30)})


def two_traces() -> list[Trace]:
    """Two GPUs: one with holes in its values and its time, one without two of the metrics."""
    one = job_trace(10.0, 6, gpu="GPU-a", model=_V100, seed=11)
    other = job_trace(14.0, 5, gpu="GPU-b", model="NVIDIA A10G", seed=12)
    dram = one.values["dram_active"].copy()
    dram[100:104] = np.nan
    keep = np.ones(len(one), dtype=bool)
    keep[300:305] = False
    one = dataclasses.replace(one, values={**one.values, "dram_active": dram})
    one = dataclasses.replace(one, time_s=one.time_s[keep], values={n: v[keep] for n, v in one.values.items()})
    return [one, other.select([name for name in other.metrics if name not in ("sm_clock_mhz", "energy_joules")])]


def write_traces(folder: Path) -> None:
    """Trace files of both kinds."""
    folder.mkdir()
    write_trace(job_trace(12.0, 7, gpu=OLD_GPU, model=_T4, seed=1), folder / "t4.parquet")
    write_trace(two_traces(), folder / "two.parquet")
    write_trace([trace.window(20.0, 32.0) for trace in two_traces()], folder / "two.csv")


def write_models(out: Path, scratch: Path) -> None:
    """What is fitted, trained or measured, but for problems."""
    models = out / "models"
    models.mkdir()
    runs = write_runs(scratch / "runs.csv", synthetic_runs(models=4, batches=2, seed=5))
    ask("train", str(runs), "--out", str(models / "latency.model"))

    timed = write_timed_networks(scratch)
    for name in ("chain16x4.json", "chain64x8.json"):
        ask("workload", "graph", str(scratch / name), "--out", str(models / name))
    description = EncoderDescription(hidden_size=16, dataset_type="tiny", training_steps=7)
    random = EncoderWeights.random(3, description)
    weights = EncoderWeights(
        dataclasses.replace(random.description, dataset_type="tiny", training_steps=7), random.arrays
    )
    registered = Registry(out / "collector" / "embeddings").add(weights, figures={"accuracy": {"mean": 0.5}})
    encoder = out / "collector" / "embeddings" / f"tiny-{registered.sha256[:12]}.npz"
    ask("workload", "fit", str(timed), "--out", str(models / "workload.model"))
    ask(
        "workload", "fit", str(timed), "--kind", "paper", "--encoder", str(encoder),
        "--out", str(models / "workload_paper.model"),
    )  # fmt: skip

    arrays = {f"network.{name}": array for name, array in weights.arrays.items() if name.startswith("norm")}
    arrays["adam.step.norm.weight"] = np.array(7.0, np.float32)
    arrays["adam.exp_avg.norm.weight"] = np.linspace(-1, 1, 16, dtype=np.float32)
    document = {
        "options": TrainingOptions(steps=20).as_document(),
        "dataset_type": "tiny",
        "dataset_sha256": "00" * 32,
        "losses": [2.25, None, 1.5],
        "skipped_networks": 1,
        "seconds": 1.5,
        "architectures": {"trained": [], "held_out": []},
    }
    write_checkpoint(models / "checkpoint.npz", document, arrays)

    trace = read_trace(out / "traces" / "t4.parquet")
    tracker = EpochTracker(trace.metrics)
    half = slice(0, len(trace) // 2)
    tracker.update(trace.time_s[half], np.stack([trace.values[name][half] for name in trace.metrics]))
    assert tracker.epochs
    (models / "tracker.state").write_bytes(tracker.state())

    found = [
        AllreduceMeasurement(**row, location="here", device="V100", devices_per_machine=4, measured_at_s=1.79e9 + place)
        for place, row in enumerate(measurements("lan", 1.1e9) + measurements("fast", 5e9))
    ]
    found += [dataclasses.replace(each, concurrent=2, seconds=1.8 * each.seconds) for each in found[::3]]
    model = AllreduceModel.fit(found, now_s=1.7901e9, topologies={"fast": LinkTopology({(0, 1): 2, (1, 2): 1})})
    (models / "allreduce.json").write_text(model_to_json(model))


def write_planning(out: Path) -> None:
    """Problems and what they refer to, a plan, and a solution."""
    planning = out / "planning"
    planning.mkdir()
    profile = JobProfile(
        _V100,
        tuple(ComputeProbe(size, 0.004 + 0.001 * size, 0.0015 + 0.0003 * size, 0.02) for size in (4, 16, 64, 128)),
        GradientTrace(np.array([0.2, 0.5, 1.0]), np.array([4e6, 2.5e7, 1.1e7])),
        0.002,
        256,
    )
    profile.write(planning / "profile.json")
    rows = measurements("slow", 1e9) + measurements("fast", 4e9)
    (planning / "measurements.json").write_text(measurements_to_json(AllreduceMeasurement(**row) for row in rows))
    told = ask(
        "predict", "--gpu-model", _V100, "--epoch-s", "50", "--targets", "T4,A10G",
        "--model", str(out / "models" / "latency.model"),
    )  # fmt: skip
    (planning / "predictions.json").write_text(json.dumps(told, indent=1) + "\n")
    problem = {
        "format": "gpusonde.problem/1",
        "name": "measured",
        "objective": "cost",
        "global_batch": 256,
        "epochs": 40,
        "samples_per_epoch": 50_000,
        "deadline_s": 5400.0,
        "job": {
            "profiles": [{"file": "profile.json"}],
            "predictions": [
                {"file": "predictions.json", "batch_size": 64, "samples_per_epoch": 50_000, "shape": _V100}
            ],
            "allreduce_files": ["measurements.json"],
        },
        "offers": [
            {"name": "t4", "device": "T4", "quota": 8, "usd_per_hour": 0.5, "fabric": "slow", "largest_batch": 128},
            {"name": "v100", "device": _V100, "quota": 8, "usd_per_hour": 2.5, "fabric": "fast"},
            {
                "name": "a10g spot", "device": "A10G", "quota": 4, "usd_per_hour": 0.4, "fabric": "slow",
                "billing": "spot", "preemptions_per_hour": 0.1, "largest_batch": 128,
            },
        ],
    }  # fmt: skip
    measured = planning / "measured.json"
    measured.write_text(json.dumps(problem, indent=1) + "\n")
    (planning / "estimated.toml").write_text(
        """format = "gpusonde.problem/1"
objective = "time"
global_batch = 256
iterations = 20_000
budget_usd = 40.0
confidence = 0.9
overhead_s = 60.0
batch_sizes = [16, 32, 64]

[job]
graph = { file = "../models/chain16x4.json", largest_batch = 128, model = "../models/workload.model" }
link = { max_in_flight = 2 }

[[offers]]
name = "t4"
device = "T4"
devices = 2
quota = 8
usd_per_hour = 1.1
network_bytes_per_second = 6.25e8

[[offers]]
name = "v100"
device = "V100-SXM2-16GB"
quota = 4
usd_per_hour = 2.5
network_bytes_per_second = 1.25e9
"""
    )
    ask("plan", "solve", str(measured), "--out", str(planning / "solution.json"))
    plan = {"format": "gpusonde.plan/1", "groups": [{"offer": "v100", "machines": 4, "batch_size": 64}]}
    (planning / "plan.json").write_text(json.dumps(plan) + "\n")


def write_configuration(out: Path) -> None:
    """Configuration files as the daemons print them, with some values of one's own, and a token."""
    folder = out / "configuration"
    folder.mkdir()
    chosen = {
        "agent": ("agent.id=node-7", "source.interval=200ms", "spool.max_bytes=256MiB", "uplink.collector=[::1]:7433"),
        "collector": ("server.listen=127.0.0.1:7440", "store.raw_retention=30d", "runs.activity_threshold=0.1"),
    }
    for daemon, settings in chosen.items():
        options = [word for setting in settings for word in ("--set", setting)]
        (folder / f"{daemon}.toml").write_text(ask(daemon, *options, "--print-config")["config_toml"])
    secrets.token_urlsafe = lambda _: "of-the-tests-and-no-secret"
    made = ask("token", "new", "--role", "reader", "--label", "for tests")
    (folder / "tokens.toml").write_text(made["entry_toml"] + "\n")
    (folder / "reader.token").write_text(made["token"] + "\n")


def write_learnt_models(data: Path, scratch: Path) -> None:
    """What ``gpusonde train --from-store`` puts in service, learnt from another store."""
    fleet = scratch / "fleet"
    table = write_runs(scratch / "table.csv", synthetic_runs(models=3, batches=2, seed=8))
    write_fleet(fleet, jobs=2, batches=2)
    assert ask("train", "--from-store", str(fleet), str(table))["replaced"]
    shutil.move(fleet / "models", data / "models")


@contextlib.contextmanager
def collecting(data: Path, scratch: Path, **settings: str):
    """A collector in the data directory; ended as it should be unless the block killed it."""
    options = {"metrics.listen": "", "workload.host_load_interval": "0s", **settings}
    words = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    collector = CollectorProcess(scratch, *words)
    collector.store = data
    (data / "address").unlink(missing_ok=True)
    collector.start()
    try:
        yield collector
        if collector._process.poll() is None:
            assert collector.stop() == 0
    finally:
        collector.kill_if_running()


def write_collector(out: Path, scratch: Path) -> None:
    """The data directory of a collector that was killed, and the spool of an agent that was killed after it."""
    data = out / "collector"
    with collecting(data, scratch) as collector:
        replay(out / "traces" / "t4.parquet", collector.address, scratch, agent="agent-old")
        wait_for_ended_runs(collector.address)
        for run in ask("runs", "--collector", collector.address)["runs"]:
            wait_for_summaries(collector.address, run["run_id"])
    ask("store", "compact", str(data))
    with collecting(data, scratch, **{"store.raw_max_bytes": "1B"}):
        wait_until(lambda: not list((data / "hours").iterdir()), what="retention")

    with collecting(data, scratch) as collector:
        replay(out / "traces" / "two.parquet", collector.address, scratch, agent="agent-two")
        wait_for_ended_runs(collector.address, 3)
        for run in ask("runs", "--collector", collector.address)["runs"]:
            wait_for_summaries(collector.address, run["run_id"])
        queue(collector.address, data, out)
    ask("store", "compact", str(data))

    settings = {
        "store.segment_interval": "3s", "store.compact": "false", "runs.track_interval": "2s",
        "runs.state_interval": "1s",
    }  # fmt: skip
    with collecting(data, scratch, **settings) as collector:
        wire_agent(collector.address)
        live = start_live_agent(collector.address, out / "spool", scratch)
        try:
            enough = time.monotonic() + 9
            wait_until(
                lambda: (
                    time.monotonic() > enough
                    and len(list((data / "tracking").glob("*.state"))) > 1
                    and len(list((data / "segments").iterdir())) > 1
                    and sum(path.stat().st_size for path in (data / "log").iterdir()) > 20_000
                ),
                what="sealed and unsealed samples, and a state",
            )
            collector._process.kill()
            collector._process.wait()
            wait_until(lambda: spooled(out / "spool"), 120, "segments of the spool")
        finally:
            live.kill()
            live.wait()
    (data / "catalog.sqlite-shm").unlink()
    newest = max((out / "spool").glob("*.seg"))
    os.truncate(newest, newest.stat().st_size - 33)
    write_bindings(out / "spool", scratch)


def spooled(directory: Path) -> bool:
    """Whether a third segment has begun."""
    sizes = [path.stat().st_size for path in sorted(directory.glob("*.seg"))]
    return len(sizes) > 2 and sizes[2] > 20_000


def queue(address: str, data: Path, out: Path) -> None:
    """Trainings that questions asked for, in every state: the trainer of one died at work."""
    question = ("workload", "predict", str(out / "models" / "chain16x4.json"), "--device", "T4", "--collector", address)
    for name in ("landscapes", "textures", "faces", "letters"):
        ask(*question, "--dataset-type", name)
    trainings = TrainingQueue(data / "trainings")
    with trainings.claim(["textures"]) as claim:
        claim.progress(20, 20)
        claim.done("ab" * 32)
    with trainings.claim(["faces"]) as claim:
        claim.failed("no images")
    code = (
        "import os, sys; from pathlib import Path;"
        "from gpusonde.collector.workload.training.queue import TrainingQueue;"
        "TrainingQueue(Path(sys.argv[1])).claim(['letters']).progress(3, 20); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(data / "trainings")], check=False)


def wire_agent(address: str) -> None:
    """Every kind of record, a gap, a record that is refused for good, and a run that stays open."""
    start = time.time_ns()
    shifted = start - 1_700_000_000_000_000_000

    def ticks(sequence: int) -> ingest_pb2.Record:
        record = batch(sequence)
        record.batch.blocks[0].start_time_unix_nano += shifted
        record.batch.blocks[0].blank_counts.add(metric=1, reason=2, count=1)
        return record

    binding = job_pb2.JobBinding(
        gpu_uuid="GPU-wire", job_id="4711", scheduler=job_pb2.SCHEDULER_SLURM, start_time_unix_nano=start,
        labels={"user": "ada"},
    )  # fmt: skip
    event = ingest_pb2.GpuEvent(gpu=0, time_unix_nano=start + 10**9, kind=1, value=79)
    loss = ingest_pb2.LossReport(first_lost_sequence=0, last_lost_sequence=0, reason=3, lost_ticks=12)
    greeting = {"agent_id": "agent-wire", "spool_id": "spool-wire"}
    with WireStream(address, hello(**greeting)) as stream:
        stream.greet()
        stream.send(inventory(1, gpus=("GPU-wire",), model=_V100), ticks(2))
        stream.send(ingest_pb2.Record(sequence=3, job_bindings=ingest_pb2.JobBindings(bindings=[binding])))
        stream.send(ingest_pb2.Record(sequence=4, gpu_events=ingest_pb2.GpuEvents(events=[event])))
        stream.send(ingest_pb2.Record(sequence=5, loss_report=loss), ticks(6)).wait_acked(6)
    poison = ticks(10)
    poison.batch.blocks[0].gpu = 7
    for _ in range(2):
        with WireStream(address, hello(first=9, **greeting)) as stream, contextlib.suppress(StreamEnded):
            stream.greet()
            stream.send(*([ticks(9)] if stream.acked < 9 else []), poison).wait_acked(10)
    with WireStream(address, hello(first=9, **greeting)) as stream:
        stream.greet()
        stream.send(poison, ingest_pb2.Record(sequence=11, job_bindings=ingest_pb2.JobBindings()))
        stream.send(*(ticks(sequence) for sequence in range(12, 40))).wait_acked(39)


def start_live_agent(address: str, spool: Path, scratch: Path) -> subprocess.Popen[bytes]:
    """An agent whose training goes on."""
    write_trace(job_trace(30.0, 60, gpu=LIVE_GPU, model=_V100, seed=21), scratch / "live.parquet")
    settings = ("uplink.batch_interval=100ms", "spool.max_bytes=1MiB", "uplink.compression=none", "metrics.listen=")
    options = [word for setting in settings for word in ("--set", setting)]
    arguments = ["--replay", str(scratch / "live.parquet"), "--speed", "60", "--collector", address]
    with (scratch / "live.log").open("wb") as log:
        return subprocess.Popen(
            [*GPUSONDE, "agent", *arguments, "--spool", str(spool), "--id", LIVE_AGENT, *options], stderr=log
        )


def write_bindings(spool: Path, scratch: Path) -> None:
    """The open bindings of an agent, which are kept beside its spool."""
    mapping = scratch / "mapping"
    mapping.mkdir()
    (mapping / "0").write_text("4712\n4713\n")
    (mapping / "GPU-b").write_text("4712\n")
    gpus = (GpuDescription("GPU-a", 0), GpuDescription("GPU-b", 1))
    parts = JobParts(SourceInventory("test", gpus, (), 0.1), spool, lambda _: None, SelfCounters(), driver=scratch)
    watcher = make_watcher(JobsConfig(slurm_mapping_dir=str(mapping), kubelet_socket=""), parts)
    assert watcher is not None
    watcher.begin()
    watcher.poll()


def write_expected(out: Path) -> None:
    """What is read out of all of it, twice: what differs between two readings is no expectation."""
    answers = []
    for _ in range(2):
        found = {}
        for name in OBSERVED:
            with tempfile.TemporaryDirectory() as folder:
                shutil.copytree(out, Path(folder) / "copy")
                began = time.monotonic()
                found[name] = observed(name, Path(folder) / "copy")
                print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        answers.append(found)
    (out / EXPECTED).mkdir()
    for name in OBSERVED:
        assert answers[0][name] == answers[1][name], name
        (out / EXPECTED / f"{name}.json").write_text(in_lines(answers[0][name]) + "\n")


def in_lines(value: object, depth: int = 0) -> str:
    """JSON in lines that are neither long nor many."""
    line = json.dumps(value)
    if len(line) <= 120 or not isinstance(value, dict | list):
        return line
    begin = "\n" + " " * (depth + 1)
    if isinstance(value, list):
        return "[" + ",".join(begin + in_lines(each, depth + 1) for each in value) + "]"
    return "{" + ",".join(f"{begin}{json.dumps(key)}: {in_lines(each, depth + 1)}" for key, each in value.items()) + "}"


def main() -> None:
    """Write everything into a new folder."""
    out = Path(sys.argv[1])
    assert socket.gethostname() == "host-1"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "sitecustomize.py").write_text(_SITE)
        os.environ["PYTHONPATH"] = os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))
        platform.release = lambda: "6.8.0"
        (out / "collector").mkdir(parents=True)
        write_traces(out / "traces")
        write_models(out, scratch)
        write_planning(out)
        write_configuration(out)
        write_learnt_models(out / "collector", scratch)
        write_collector(out, scratch)
    write_expected(out)


if __name__ == "__main__":
    main()

"""What is read out of the files of ``tests/data/before_house``, as plain values: the same questions then and now."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from support.collector_process import ask, wait_for_summaries
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, hello, source_ended, wait_until

from gpusonde.agent import AgentConfig, SelfCounters, SourceInventory, Spool
from gpusonde.agent.config import JobsConfig
from gpusonde.agent.jobs import JobParts, make_watcher
from gpusonde.agent.sources.base import GpuDescription
from gpusonde.collector import CollectorConfig, LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.epoch_detect import EpochTracker
from gpusonde.errors import ConfigError, ModelFileError
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.workload.engine import WorkloadModel
from gpusonde.predictor.workload.training.result import read_checkpoint
from gpusonde.simulator.allreduce import model_from_json, model_to_json
from gpusonde.telemetry import Trace, read_trace, read_traces

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parents[1] / "data" / "before_house"
EXPECTED = "expected"
LIVE_GPU, LIVE_AGENT, OLD_GPU = "GPU-live", "agent-live", "GPU-old"
EVER = 1 << 62
_LATER_UNIX_NANO = 1_900_000_000_000_000_000
# What people read may be worded anew, files lie elsewhere in every test, and known networks may come to those we have.
_NOT_COMPARED = frozenset(
    {
        "reason", "reasons", "why", "words", "notes", "note", "detail", "problem", "warnings", "directory", "file",
        "store", "model", "graph_file", "source", "trace", "out", "nearest",
    }
)  # fmt: skip
# Old files stay: the test runs for years after they were written.
_KEEPING = {"store.raw_retention": "0s", "store.second_retention": "0s", "runs.silence_end": "876000h"}
_OF_HOST = ("agent_id", "host_name", "cpu_model", "cores", "memory_bytes", "disk_bytes", "cpu_flops")
_TARGETS = ("--targets", "T4,V100-SXM2-16GB,P100-PCIE-16GB,A10G")


def plain(answer: Any) -> Any:
    """An answer without words and places."""
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items() if key not in _NOT_COMPARED}
    return [plain(value) for value in answer] if isinstance(answer, list) else answer


# The collector's data directory -------------------------------------------------------------------------------------


def store_check(folder: Path) -> Any:
    """What ``store fsck`` counts before anything has recovered."""
    return plain(ask("store", "fsck", str(folder / "collector")))


def store_content(folder: Path) -> Any:
    """Everything that a ``LocalStore`` gives after it has replayed the log of the killed collector."""
    store = LocalStore(folder / "collector", StoreConfig(reserve_bytes=0))
    store.open()
    try:
        gpus = {gpu.gpu_uuid: gpu for gpu in store.facts.gpus()}
        kept = {path.name: _digest(path.read_bytes()) for path in store.layout.quarantine.iterdir()}
        return {
            "agents": [_row(agent) for agent in sorted(store.facts.agents(), key=lambda agent: agent.agent_id)],
            "gpus": [_row(gpu) for _, gpu in sorted(gpus.items())],
            "losses": [_row(loss) for loss in store.facts.losses()],
            "rejections": [plain(_row(rejection)) for rejection in store.facts.rejections()],
            "quarantine": kept,
            "samples": {gpu: _samples(store, gpu) for gpu in sorted(gpus)},
            "averages": {gpu: store.samples.has_rollups(gpu, 0, EVER) for gpu in sorted(gpus)},
            "events": {gpu: [_row(event) for event in store.facts.events(gpu)] for gpu in sorted(gpus)},
            "bindings": {
                uuid: [_row(binding) for _, binding in store.facts.bindings(gpu.agent_id, uuid)]
                for uuid, gpu in sorted(gpus.items())
            },
            "blanks": {gpu: sorted([*k, v] for k, v in store.facts.blank_counts(gpu).items()) for gpu in sorted(gpus)},
        }
    finally:
        store.close()


def store_tables(folder: Path) -> Any:
    """Rows of the catalogue."""
    tables = (
        "runs", "epochs", "job_bindings", "gpu_events", "losses", "gaps", "agents", "spools", "segments", "deletions",
        "rejections", "blank_counts",
    )  # fmt: skip
    return {name: _table(folder, f"SELECT * FROM {name} ORDER BY ALL") for name in tables} | {
        name: _table(folder, f"SELECT gpu_uuid, count(*), avg(power_watts) FROM {name} GROUP BY ALL ORDER BY ALL")
        for name in ("samples", "seconds")
    }


def store_compacted(folder: Path) -> Any:
    """The samples, and what ``store fsck`` says, once today's compaction has gone over the old segments."""
    compacted = ask("store", "compact", str(folder / "collector"))
    checked = ask("store", "fsck", str(folder / "collector"))
    return {
        "segments_left": compacted["segments_left"],
        "findings": plain(checked["findings"]),
        "log_entries": checked["log_entries"],
        "samples": store_content(folder)["samples"],
    }


def store_averages(folder: Path) -> Any:
    """The GPU whose ticks retention had deleted."""
    out = folder / "averages.parquet"
    report = ask("store", "export", str(folder / "collector"), str(out), "--gpu", OLD_GPU)
    return [plain(report["gpus"]), _trace(read_trace(out))]


def collector_answers(folder: Path) -> Any:
    """What a collector in the directory answers about the past, once it has tracked what lay in the log."""
    newest = {gpu: round(time_ns * 1e-9, 3) for gpu, time_ns in _newest_ticks(folder / "collector").items()}
    with ThreadCollector(folder / "collector", **_KEEPING, **{"store.compact": "false"}) as collector:
        address = ("--collector", collector.target)

        def tracked() -> Any:
            runs = ask("runs", *address)["runs"]
            ends = {
                run["gpu_uuid"]: datetime.fromisoformat(run["end_time"]).timestamp() for run in runs if run["active"]
            }
            return runs if all(end >= newest[gpu] - 0.001 for gpu, end in ends.items()) else None

        runs = wait_until(tracked, what="tracking of all ticks")
        for run in runs:
            wait_for_summaries(collector.target, run["run_id"])
        epochs = {run["run_id"]: plain(ask("epochs", run["run_id"], "--provisional", *address)) for run in runs}
        measured = [run["run_id"] for run in runs if run["verdict"] == "epochs" and not run["active"]]
        graph = str(folder / "models" / "chain16x4.json")
        hosts = ask("fleet", "hosts", "--agents", LIVE_AGENT, *address)["hosts"]
        return {
            "runs": plain(runs),
            "epochs": epochs,
            "predictions": {run: plain(ask("predict", "--run", run, *_TARGETS, *address)) for run in measured},
            "trainings": plain(ask("fleet", "trainings", *address)["trainings"]),
            "embedding": plain(ask("workload", "embed", graph, "--encoder", "tiny", *address)),
            "hosts": [{key: host[key] for key in _OF_HOST} for host in hosts],
        }


def collector_goes_on(folder: Path) -> Any:
    """The open run, tracked on from its stored state with what the agent had not delivered."""
    spool = Spool(folder / "spool", max_bytes=1 << 20)
    spool.open()
    settings = {**_KEEPING, "store.compact": "false"}
    try:
        with ThreadCollector(folder / "collector", **settings) as collector:
            address = ("--collector", collector.target)
            # A later process of the agent, whatever the clock of the test says.
            greeting = hello(
                spool.agent_id, spool.spool_id, spool.first_available_sequence, _LATER_UNIX_NANO, instance="later"
            )
            last = spool.committed_sequence
            with WireStream(collector.target, greeting) as stream:
                durable = stream.greet().durable_sequence
                for sequence in range(durable + 1, last + 1):
                    stream.send(spool.read(sequence))
                    if sequence % 16 == 0:
                        stream.wait_acked(sequence)
                stream.send(source_ended(last + 1)).wait_acked(last + 1)

            def ended() -> Any:
                runs = ask("runs", *address)["runs"]
                return [run for run in runs if run["gpu_uuid"] == LIVE_GPU and not run["active"] and run["verdict"]]

            (run,) = wait_until(ended, what="end of the run")
            wait_for_summaries(collector.target, run["run_id"])
            return {"durable": durable, **plain(ask("epochs", run["run_id"], "--provisional", *address))}
    finally:
        spool.close()


def model_versions(folder: Path) -> Any:
    """What is in service where the model that a store had taught cannot be read, and after a step back."""
    store = str(folder / "collector")
    question = ("--gpu-model", "T4", "--epoch-s", "12.5", *_TARGETS)
    trace = ("--trace", str(folder / "traces" / "t4.parquet"), "--epoch-s", "12", *_TARGETS)
    served = [plain(ask("predict", *each, "--model", store)) for each in (question, trace)]
    return [served, plain(ask("train", "--rollback", store))]


# The agent's spool --------------------------------------------------------------------------------------------------


def spool_listing(folder: Path) -> Any:
    """What ``spool ls`` and ``spool fsck`` say before and after the repair."""
    directory = str(folder / "spool")
    listed = ask("spool", "ls", directory)
    return [
        [Path(segment["file"]).name for segment in listed["segments"]],
        plain(listed),
        plain(ask("spool", "fsck", directory, exit_code=1)),
        plain(ask("spool", "fsck", directory, "--repair")),
        plain(ask("spool", "fsck", directory)),
    ]


def spool_records(folder: Path) -> Any:
    """Every record that an agent would send after its next start."""
    spool = Spool(folder / "spool", max_bytes=1 << 20)
    recovery = spool.open()
    try:
        sequences = range(spool.first_available_sequence, spool.committed_sequence + 1)
        records = {sequence: spool.read(sequence) for sequence in sequences}
        return {
            "agent_id": spool.agent_id,
            "spool_id": spool.spool_id,
            "torn_bytes": recovery.torn_bytes,
            "lost_records": recovery.lost_records,
            "first": sequences[0],
            "last": sequences[-1],
            "kinds": [record.WhichOneof("payload") for record in records.values()],
            "sha256": [_digest(record.SerializeToString(deterministic=True))[:16] for record in records.values()],
        }
    finally:
        spool.close()


def job_bindings(folder: Path) -> Any:
    """The ends that an agent tells of jobs that left while it was away."""
    gpus = [GpuDescription(f"GPU-{letter}", place) for place, letter in enumerate("ab")]
    told: list[Any] = []
    config = JobsConfig(slurm_mapping_dir=str(folder / "no jobs"), kubelet_socket="")
    parts = JobParts(
        SourceInventory("test", tuple(gpus), (), 0.1), folder / "spool", told.append, SelfCounters(), driver=folder
    )
    watcher = make_watcher(config, parts)
    assert watcher is not None
    watcher.begin()
    watcher.poll()
    (record,) = told
    return sorted(
        [b.gpu_uuid, b.job_id, b.scheduler, b.start_time_unix_nano, b.end_time_unix_nano > 0, dict(b.labels)]
        for b in record.job_bindings.bindings
    )


# Files of models, jobs and measurements ------------------------------------------------------------------------------


def latency_model(folder: Path) -> Any:
    """What is said of the model of ``gpusonde train``, which has features of the length of an epoch."""
    try:
        LatencyModel.load(folder / "models" / "latency.model")
    except ModelFileError as error:
        return str(error).removeprefix(str(folder))
    return "read"


def workload_models(folder: Path) -> Any:
    """What is said of both models of ``gpusonde workload fit``, whose columns are those of fewer parts of a step."""
    said = {}
    for name in ("workload.model", "workload_paper.model"):
        try:
            WorkloadModel.load(folder / "models" / name)
        except ModelFileError as error:
            said[name] = str(error).removeprefix(str(folder))
        else:
            said[name] = "read"
    return said


def encoder(folder: Path) -> Any:
    """Embeddings by a registered encoder."""
    return plain(
        ask("workload", "embed", *_graphs(folder), "--encoder", str(folder / "collector" / "embeddings" / "tiny"))
    )


def _graphs(folder: Path) -> list[str]:
    return [str(folder / "models" / name) for name in ("chain16x4.json", "chain64x8.json")]


def graph(folder: Path) -> Any:
    """A network's graph, and that it is written as it was."""
    path, again = folder / "models" / "chain16x4.json", folder / "again.json"
    told = plain(ask("workload", "graph", str(path), "--out", str(again)))
    return [told, _digest(path.read_bytes()) == _digest(again.read_bytes())]


def tracker(folder: Path) -> Any:
    """A tracker that was stored in the middle of a trace, at its end."""
    trace = read_trace(folder / "traces" / "t4.parquet")
    restored = EpochTracker.restore((folder / "models" / "tracker.state").read_bytes())
    before = [dataclasses.asdict(epoch) for epoch in restored.epochs]
    rest = slice(len(trace) // 2, None)
    restored.update(trace.time_s[rest], np.stack([trace.values[name][rest] for name in restored.metrics]))
    restored.finish()
    return [before, [dataclasses.asdict(epoch) for epoch in restored.epochs], dataclasses.asdict(restored.shares())]


def checkpoint(folder: Path) -> Any:
    """The file that a training of an encoder goes on from."""
    document, arrays = read_checkpoint(folder / "models" / "checkpoint.npz")
    return [document, {name: [str(a.dtype), a.shape, _digest(a.tobytes())] for name, a in arrays.items()}]


def allreduces(folder: Path) -> Any:
    """Bus bandwidths of a model of allreduces, and that it is written as it was."""
    text = (folder / "models" / "allreduce.json").read_text()
    model = model_from_json(text)
    found = {}
    for fabric in model.fabrics:
        reached = model.network(fabric).bus_bandwidth([1e4, 3e6, 1e8], 6)
        found[fabric] = [reached.bytes_per_second.tolist(), reached.log_spread.tolist()]
    return [found, model_to_json(model) == text]


def plans(folder: Path) -> Any:
    """Problems, plans and solutions: solved, estimated and listed again."""
    planning = folder / "planning"
    measured, estimated = str(planning / "measured.json"), str(planning / "estimated.toml")
    return {
        "solve": plain(ask("plan", "solve", measured)),
        "estimate of the solution": plain(ask("plan", "estimate", measured, "--plan", str(planning / "solution.json"))),
        "estimate of the plan": plain(ask("plan", "estimate", measured, "--plan", str(planning / "plan.json"))),
        "pareto": plain(ask("plan", "pareto", measured)),
        "solve by graph": ask("plan", "solve", estimated, exit_code=1)["error"]["message"].rpartition("/")[2],
        "solution": plain(json.loads((planning / "solution.json").read_text())),
    }


def traces(folder: Path) -> Any:
    """Trace files."""
    return {
        name: [_trace(trace) for trace in read_traces(folder / "traces" / name)]
        for name in ("t4.parquet", "two.parquet", "two.csv")
    }


def configurations(folder: Path) -> Any:
    """What daemons make of the files that ``--print-config`` wrote, and which keys they no longer know."""
    found: dict[str, Any] = {"refused": {}}
    for daemon, kind in (("agent", AgentConfig), ("collector", CollectorConfig)):
        path = folder / "configuration" / f"{daemon}.toml"
        refused = found["refused"][daemon] = []
        while (key := _refused_key(kind, path)) is not None:
            refused.append(key)
            section, _, name = key.partition(".")
            path.write_text(re.sub(rf"(?ms)(^\[{section}\]\n.*?)^{name} = .*?\n", r"\1", path.read_text(), count=1))
        found[daemon] = tomllib.loads(ask(daemon, "--config", str(path), "--print-config")["config_toml"])
    return found


def _refused_key(kind: type[AgentConfig | CollectorConfig], path: Path) -> str | None:
    try:
        kind.load(path)
    except ConfigError as error:
        return error.field if "unknown key" in str(error) else None
    return None


def tokens(folder: Path) -> Any:
    """Who may ask a collector with a tokens file: the one with the token, and nobody without."""
    access = folder / "configuration"
    settings = {"security.tokens_file": str(access / "tokens.toml"), "security.anonymous": "never"}
    with ThreadCollector(folder / "empty", **settings) as collector:
        address = ("--collector", collector.target)
        refused = ask("runs", *address, exit_code=1)["error"]["type"]
        return [refused, ask("runs", *address, "--token-file", str(access / "reader.token"))["runs"]]


OBSERVED: Mapping[str, Callable[[Path], Any]] = {
    each.__name__: each
    for each in (
        store_check, store_content, store_tables, store_compacted, store_averages, collector_answers,
        collector_goes_on, model_versions, spool_listing, spool_records, job_bindings, latency_model, workload_models,
        encoder, graph, tracker, checkpoint, allreduces, plans, traces, configurations, tokens,
    )
}  # fmt: skip


def observed(name: str, folder: Path) -> Any:
    """One of these answers, as JSON would hold it."""
    return json.loads(json.dumps(OBSERVED[name](folder)))


def _newest_ticks(directory: Path) -> dict[str, int]:
    # In another copy: who asks for it recovers the directory himself.
    store = LocalStore(shutil.copytree(directory, directory.with_name("another")), StoreConfig(reserve_bytes=0))
    store.open()
    try:
        return {
            gpu.gpu_uuid: int(store.samples.read(gpu.gpu_uuid, 0, EVER).time_unix_nano[-1])
            for gpu in store.facts.gpus()
        }
    finally:
        store.close()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _array(values: np.ndarray) -> list[Any]:
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.nan, values)
    return [values.dtype.str, len(values), _digest(np.ascontiguousarray(values).tobytes())[:16]]


def _row(row: Any) -> dict[str, Any]:
    fields = {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    return {
        name: value.hex() if isinstance(value, bytes) else dict(value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
    }


def _samples(store: LocalStore, gpu_uuid: str) -> dict[str, Any]:
    samples = store.samples.read(gpu_uuid, 0, EVER)
    return {
        "ticks": len(samples),
        "time": _array(samples.time_unix_nano),
        "spool": _array(samples.spool.astype("<i8")),
        "sequence": _array(samples.sequence.astype("<i8")),
        "missed": int(samples.missed_ticks.sum()),
        "columns": {name: _array(column) for name, column in sorted(samples.columns.items())},
    }


def _table(folder: Path, statement: str) -> Any:
    answer = ask("store", "sql", str(folder / "collector"), statement)
    assert not answer["truncated"]
    names = [column["name"] for column in answer["columns"]]
    return [plain(dict(zip(names, row, strict=True))) for row in answer["rows"]]


def _trace(trace: Trace) -> dict[str, Any]:
    return {
        "ticks": len(trace),
        "time": _array(trace.time_s),
        "columns": {name: _array(values) for name, values in trace.values.items()},
        "gpu": [trace.gpu_uuid, trace.gpu_model, trace.origin_unix_s, dict(trace.attributes)],
    }

"""Every decoder of bytes that come from outside or lie on a disk, each with inputs to begin from.

``test_fuzz.py`` mutates the seeds with hypothesis, ``fuzz_with_atheris.py`` lets coverage guide it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zstandard
from fuzz.disk_targets import DISK_TARGETS
from fuzz.file_targets import FILE_TARGETS
from fuzz.folders import clean
from fuzz.model_targets import MODEL_TARGETS
from fuzz.target import Target
from fuzz.workload_targets import WORKLOAD_TARGETS
from google.protobuf.message import DecodeError
from support.problem_documents import small_problem
from support.wire_agent import batch, block, hello, inventory, source_ended
from support.workload_decoders import ask_about_workloads, read_training, trainings, workload_requests

from gpusonde.agent.config import AgentConfig
from gpusonde.agent.jobs.ownership import OwnershipFile
from gpusonde.agent.jobs.sources import DeviceNames, MappingFiles
from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.messages import fill, to_document
from gpusonde.collector.planning.answering import PlanningAnswers
from gpusonde.collector.planning.wire import problem_document
from gpusonde.collector.query.paging import from_token, to_token
from gpusonde.collector.security.tokens import parse_tokens
from gpusonde.collector.storage.store import UnusableStateError
from gpusonde.collector.tracking.run_state import FollowerState
from gpusonde.documents import parse_json
from gpusonde.epoch_detect import EpochTracker
from gpusonde.errors import (
    ConfigError,
    DocumentError,
    EncoderError,
    RequestError,
    TableError,
    TlsError,
    WireError,
)
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.optimizer.documents.watching import read_reports
from gpusonde.planning.v1 import planning_pb2
from gpusonde.predictor.crossgpu import LatencyModel, ModelFileError, read_runs
from gpusonde.predictor.workload.embedding import EncoderDescription, EncoderWeights
from gpusonde.predictor.workload.training.architectures import ArchitectureSpec, sample
from gpusonde.service.durable_files import OsFiles
from gpusonde.service.tls import expiry_unix_s
from gpusonde.service.tls.client import read_token
from gpusonde.service.wire import Limits, check_hello, check_records, decode_record, expand_batch
from gpusonde.telemetry import Trace, TraceError, read_traces, write_trace


def _requests() -> list[bytes]:
    group = ingest_pb2.ProcessGroupActivity(gpu_uuids=["GPU-a"], forks=[0, 2], lifetime_ms=[0, 1500])
    activity = ingest_pb2.JobActivity(start_time_unix_nano=10**18, offsets_ms=[0, 1000], groups=[group])
    records = [
        inventory(), batch(2), source_ended(3), _packed(), ingest_pb2.Record(sequence=4, job_activity=activity)
    ]  # fmt: skip
    requests = [ingest_pb2.StreamSamplesRequest(record=record) for record in records]
    requests.append(ingest_pb2.StreamSamplesRequest(records=records))
    return [r.SerializeToString() for r in (*requests, ingest_pb2.StreamSamplesRequest(hello=hello()))]


def _packed() -> ingest_pb2.Record:
    record = batch(2, encoding=ingest_pb2.ENCODING_FLOAT32_LE_ZSTD)
    record.batch.blocks[0].values = zstandard.compress(record.batch.blocks[0].values)
    return record


@functools.cache
def _known_inventory() -> object:
    return decode_record(inventory(), None, Limits())


def _take_request(data: bytes) -> None:
    request = ingest_pb2.StreamSamplesRequest.FromString(data)
    if request.HasField("hello"):
        check_hello(request.hello, Limits())
    else:
        for record in check_records(request, Limits()):
            decode_record(record, _known_inventory(), Limits())


def _take_zstd_values(data: bytes) -> None:
    record = batch(2, block(), encoding=ingest_pb2.ENCODING_FLOAT32_LE_ZSTD)
    record.batch.blocks[0].values = data
    decode_record(record, _known_inventory(), Limits())


def _agent_unpack(data: bytes) -> None:
    expand_batch(ingest_pb2.SampleBatch.FromString(data))


def _tracker_seed() -> bytes:
    tracker = EpochTracker(("sm_active",))
    tracker.update(np.arange(50) * 0.1, np.tile(np.linspace(0, 1, 10), 5)[None, :])
    return tracker.state()


def _read_trace(data: bytes) -> None:
    path = clean("trace") / "t"
    path.write_bytes(data)
    read_traces(path)


@functools.cache
def _traces() -> list[bytes]:
    trace = Trace(
        np.arange(20) * 0.1, {"power_watts": np.linspace(60, 300, 20)}, gpu_uuid="GPU-1", origin_unix_s=1.5e9,
        attributes={"a": "b"},
    )  # fmt: skip
    folder = clean("made")
    write_trace(trace, folder / "t.csv")
    write_trace(trace, folder / "t.parquet")
    smi = (
        b"timestamp, index, power.draw [W]\n2025/01/01 00:00:00.000, 0, 60.10 W\n2025/01/01 00:00:00.100, 0, 61.20 W\n"
    )
    dmon = b"#Entity   GPUTL   SMACT\nID\n" + b"GPU 0     98      0.951\nGPU 1     97      N/A\n" * 4
    return [(folder / "t.csv").read_bytes(), (folder / "t.parquet").read_bytes(), smi, dmon]


def _load_config(data: bytes) -> None:
    path = clean("config") / "c.toml"
    path.write_bytes(data)
    for kind in (AgentConfig, CollectorConfig):
        with contextlib.suppress(ConfigError):
            kind.load(path)


def _read_token(data: bytes) -> None:
    path = clean("token") / "token"
    path.write_bytes(data)
    read_token(str(path))


def _read_model(data: bytes) -> None:
    path = clean("model") / "model"
    path.write_bytes(data)
    LatencyModel.load(path)


@functools.cache
def _models() -> list[bytes]:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format_version": 2}))
        archive.writestr("arrays.bin", b"")
    return [made.getvalue()]


def _read_runs_table(data: bytes) -> None:
    path = clean("runs") / "runs.csv"
    path.write_bytes(data)
    read_runs(path)


def _page_token(data: bytes) -> None:
    for kinds in ((int, str), (int, int)):
        place = from_token(data.decode("utf-8", "ignore"), kinds)
        for value in place or ():
            # What a database takes.
            assert abs(value) < 1 << 63 if isinstance(value, int) else value.encode() is not None


@functools.cache
def _answers() -> PlanningAnswers:
    return PlanningAnswers()


def _ask_for_a_plan(data: bytes) -> None:
    request = planning_pb2.EstimatePlanRequest.FromString(data)
    question = {"problem": problem_document(request.problem), "plan": to_document(request.plan)}
    answer = _answers().answer({"kind": "estimate", "time_limit_s": 1.0, **question})
    if "error" in answer:
        raise DocumentError(answer["error"]["field"], answer["error"]["text"])


def _plan_request() -> list[bytes]:
    request = planning_pb2.EstimatePlanRequest()
    groups = [{"offer": "t4", "machines": 4, "batch_size": 64}]
    fill(request, {"problem": small_problem(), "plan": {"groups": groups}})
    return [request.SerializeToString()]


def _read_reports(data: bytes) -> None:
    list(read_reports(io.TextIOWrapper(io.BytesIO(data), "utf-8", errors="replace"), "f"))


def _read_job_state(data: bytes) -> None:
    path = clean("jobs") / "job_bindings.json"
    path.write_bytes(data)
    OwnershipFile(path, OsFiles()).load()


def _read_mapping_file(data: bytes) -> None:
    folder = clean("mapping")
    (folder / "0").write_bytes(data)
    MappingFiles(folder, _OneGpu()).owners(1 << 60)


class _OneGpu(DeviceNames):
    """Whatever a mapping file is called, it means this GPU."""

    def __init__(self) -> None:
        super().__init__((), {})

    def by_index(self, index: int) -> str | None:
        return "GPU-a"


def _encoders() -> list[bytes]:
    return [EncoderWeights.random(0, EncoderDescription(hidden_size=2, primitives=("input", "other"))).to_bytes()]


def _read_architecture(data: bytes) -> None:
    ArchitectureSpec.from_json(data.decode(errors="replace"))


def _architectures() -> list[bytes]:
    return [sample(random.Random(seed)).to_json().encode() for seed in range(4)]


def _certificates() -> list[bytes]:
    return [(Path(__file__).parent / "certificate.pem").read_bytes()]


_BINDINGS = b'[{"gpu": "GPU-a", "scheduler": "slurm", "job_id": "17", "start_unix_nano": 5, "labels": {"user": "x"}}]'
_TOKENS = b'[[token]]\ndigest = "' + b"0" * 64 + b'"\nrole = "agent"\nagent_id = "host-*"\nlabel = "x"\n'
_CONFIG = b'[log]\nlevel = "info"\n[server]\nlisten = "127.0.0.1:1"\n[source]\ninterval = "200ms"\n'

TARGETS = {
    "stream_request": Target(_take_request, _requests, (DecodeError, WireError)),
    "zstd_values": Target(_take_zstd_values, lambda: [_packed().batch.blocks[0].values], (WireError,)),
    "agent_batch": Target(
        _agent_unpack, lambda: [_packed().batch.SerializeToString()], (DecodeError, WireError)
    ),
    **DISK_TARGETS,
    "follower_state": Target(FollowerState.decode, lambda: [struct.pack("<I", 2) + b"{}x"], (UnusableStateError,)),
    "tracker_state": Target(EpochTracker.restore, lambda: [_tracker_seed()], (ValueError,)),
    "trace_file": Target(_read_trace, _traces, (TraceError,), is_slow=True),
    "runs_table": Target(_read_runs_table, lambda: [b"gpu,cnn\nT4,vgg\n"], (TableError,), is_slow=True),
    "model_file": Target(_read_model, _models, (ModelFileError,), is_slow=True),
    "tokens_file": Target(lambda data: parse_tokens(data, "f"), lambda: [_TOKENS], (TlsError,)),
    "token_file": Target(_read_token, lambda: [b"gpusonde_abc\n"], (TlsError,)),
    "certificate": Target(expiry_unix_s, _certificates, (ValueError,)),
    "configuration": Target(_load_config, lambda: [_CONFIG]),
    "page_token": Target(_page_token, lambda: [to_token([1, place]).encode() for place in ("a", 2)], (RequestError,)),
    "plan_request": Target(_ask_for_a_plan, _plan_request, (DecodeError, DocumentError), is_slow=True),
    "plan_document": Target(parse_json, lambda: [json.dumps(small_problem()).encode()], (DocumentError,)),
    "plan_reports": Target(
        _read_reports, lambda: [b'{"elapsed_s": 1, "completed_iterations": 2}\n{"elapsed_s": 3, "plan": null}\n'],
        (DocumentError,),
    ),
    **WORKLOAD_TARGETS,
    **MODEL_TARGETS,
    **FILE_TARGETS,
    "workload_request": Target(ask_about_workloads, workload_requests, (DecodeError,), is_slow=True),
    "training_file": Target(
        lambda data: read_training(data, clean("trainings")), trainings,
        (EncoderError,), is_slow=True,
    ),
    "encoder_weights": Target(EncoderWeights.from_bytes, _encoders, (EncoderError,)),
    "architecture": Target(_read_architecture, _architectures, (ValueError,)),
    "job_bindings": Target(_read_job_state, lambda: [_BINDINGS]),
    "job_mapping": Target(_read_mapping_file, lambda: [b"17\n18\n"]),
}  # fmt: skip


def seeds_of(name: str) -> Iterator[bytes]:
    """Yield the inputs that a target begins from."""
    yield from TARGETS[name].seeds()
    yield b""

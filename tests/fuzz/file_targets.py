"""Decoders of tables and documents that people hand over, and of what other programs say."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

from fuzz.folders import file, folder
from fuzz.target import Target
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry
from spot_replay import TraceError as CapacityError
from spot_replay import read_capacity
from support.price_lists import aws_file, azure_page
from support.problem_documents import small_problem

from gpusonde.agent.jobs.kubelet import KubeletPods
from gpusonde.agent.jobs.processes import owner_of
from gpusonde.agent.jobs.sources import DeviceNames
from gpusonde.catalog import CatalogError, load_gpus, load_offers
from gpusonde.catalog.offers import OfferCatalog
from gpusonde.catalog.price_lists import PriceList, read_aws, read_azure
from gpusonde.catalog.refreshing import refresh
from gpusonde.collector.client import Client, CollectorError
from gpusonde.documents import read_document
from gpusonde.errors import DocumentError, ProblemError, TableError
from gpusonde.kubelet.v1 import pod_resources_pb2
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.spot_offers import read_spot_rows
from gpusonde.predictor.workload.engine.measurements import read_measurements
from gpusonde.query.v1 import query_pb2
from gpusonde.service.metrics_endpoint import Endpoint
from gpusonde.simulator.allreduce.documents import MEASUREMENTS_FORMAT, measurements_from_json, model_from_json
from gpusonde.simulator.job_profile import JobProfile

_ROOT = Path(__file__).parents[2]


_gpus = functools.cache(load_gpus)
_offers = functools.cache(lambda: load_offers(gpus=_gpus()))


def _read_problem(data: bytes) -> None:
    parse_problem(read_document(file("problem.toml", data)), _gpus(), _offers())


def _read_problem_json(data: bytes) -> None:
    parse_problem(read_document(file("problem.json", data)), _gpus(), _offers())


_PROBLEM = b"""format = "gpusonde.problem/1"
global_batch = 256
iterations = 1e4
deadline_s = 3600.0
[[offers]]
name = "t4"
device = "T4"
quota = 4
usd_per_hour = 0.5
network_bytes_per_second = 1e9
[job]
gradients = { parameter_bytes = 1e8 }
[[job.curves]]
device = "T4"
probes = [{ batch_size = 8, total_s = 0.1 }, { batch_size = 64, total_s = 0.5 }]
"""


def _read_offers(data: bytes) -> None:
    OfferCatalog.load(file("offers.csv", data), gpus=_gpus())


def _offer_files() -> list[bytes]:
    shipped = (_ROOT / "catalog/gpusonde/catalog/data/offers.csv").read_bytes()
    lines = [line for line in shipped.splitlines() if not line.startswith(b"#")]
    return [b"".join(line + b"\n" for line in lines[:4])]


def _read_aws_prices(data: bytes) -> None:
    _refresh(read_aws(io.StringIO(data.decode(errors="replace"), newline=""), "list"))


def _read_azure_prices(data: bytes) -> None:
    try:
        page = json.loads(data)
    except (ValueError, RecursionError):
        return
    _refresh(read_azure([page], "2026-11-23", "page"))


def _refresh(listed: PriceList) -> None:
    """What a list is made into can be read again."""
    own = folder() / "own.csv"
    own.write_text(refresh(listed, _offers(), _gpus(), own).content, encoding="utf-8")
    OfferCatalog.load(gpus=_gpus(), own=own)
    own.unlink()


def _list_pods(data: bytes) -> None:
    answer = pod_resources_pb2.ListPodResourcesResponse.FromString(data)
    KubeletPods(folder(), _AnyGpu(), 1, ask=lambda _: answer).owners(2)


class _AnyGpu(DeviceNames):
    def __init__(self) -> None:
        super().__init__((), {})

    def by_plugin_id(self, name: str) -> str | None:
        return name[:5] or None


def _pods() -> list[bytes]:
    devices = pod_resources_pb2.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-a", "GPU-b::1"])
    container = pod_resources_pb2.ContainerResources(name="c", devices=[devices])
    pod = pod_resources_pb2.PodResources(name="p", namespace="n", containers=[container])
    return [pod_resources_pb2.ListPodResourcesResponse(pod_resources=[pod, pod]).SerializeToString()]


_CGROUPS = [
    b"0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n",
    b"0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-"
    + b"0123456789abcdef" * 4 + b".scope\n",
    b"4:devices:/user.slice/user-1000.slice/session-3.scope\n1:name=systemd:/init.scope\n",
]  # fmt: skip


def _ask_endpoint(data: bytes) -> None:
    assert Endpoint(CollectorRegistry(), lambda: None, lambda: "no").answer(data).encode()


class _Stub:
    """A collector that answers with these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def ListRuns(self, *_: object, **__: object) -> query_pb2.ListRunsResponse:
        response = query_pb2.ListRunsResponse.FromString(self._data)
        response.next_page_token = ""
        return response

    def ListEpochs(self, *_: object, **__: object) -> query_pb2.ListEpochsResponse:
        response = query_pb2.ListEpochsResponse.FromString(self._data)
        response.next_page_token = ""
        return response

    def PredictEpochLatency(self, *_: object, **__: object) -> query_pb2.PredictEpochLatencyResponse:
        return query_pb2.PredictEpochLatencyResponse.FromString(self._data)

    def ReadSamples(self, *_: object, **__: object) -> list[query_pb2.ReadSamplesResponse]:
        return [query_pb2.ReadSamplesResponse.FromString(self._data)]


def _ask_a_collector(data: bytes) -> None:
    client = Client("127.0.0.1:1")
    client._stub = _Stub(data)
    problem: Exception | None = None
    for ask in (
        client.list_runs, lambda: client.list_epochs("r"), lambda: client.predict_run("r"),
        lambda: client.read_samples("GPU-a"),
    ):  # fmt: skip
        try:
            ask()
        except (CollectorError, DecodeError) as error:
            problem = error
    client.close()
    if problem is not None:
        raise problem


def _answers() -> list[bytes]:
    import pyarrow as pa

    run = query_pb2.Run(run_id="r", gpu_uuid="g")
    run.start_time.seconds, run.epoch_period.seconds = 5, 7
    epoch = query_pb2.Epoch(index=1)
    epoch.end_time.seconds = 9
    trend = query_pb2.DurationTrend(changes=[query_pb2.DurationChange(epoch=3)])
    estimate = query_pb2.EndEstimate(epochs_done=3)
    predictions = [query_pb2.EpochLatencyPrediction(gpu_model="T4")]
    times, shares = pa.array([1, 2], pa.int64()), pa.array([0.5, 0.6], pa.float32())
    streams = []
    # The last three are no samples: texts, times that are none, no times.
    for columns in (
        {"time_unix_nano": times, "sm_active": shares}, {"time_unix_nano": times, "sm_active": times.cast(pa.string())},
        {"time_unix_nano": pa.array([None, "x"]), "sm_active": pa.array([[1], None])}, {"sm_active": shares},
    ):  # fmt: skip
        sink = io.BytesIO()
        table = pa.table(columns)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        streams.append(query_pb2.ReadSamplesResponse(arrow_ipc=sink.getvalue()))
    messages = (
        query_pb2.ListRunsResponse(runs=[run]),
        query_pb2.ListEpochsResponse(epochs=[epoch], trend=trend, estimate=estimate),
        query_pb2.PredictEpochLatencyResponse(predictions=predictions),
        *streams,
    )
    return [message.SerializeToString() for message in messages]


_MEASUREMENT = {"fabric": "f", "transfer_bytes": 1e6, "world_size": 2, "seconds": 0.1}
_ALLREDUCE = {
    "format": "gpusonde.allreduce-model/1", "kind": "default", "half_life_s": 10.0, "now_s": 5.0, "residual": "off",
    "topologies": {"f": [[0, 1, 2]]}, "measurements": [_MEASUREMENT, {**_MEASUREMENT, "transfer_bytes": 1e7}],
}  # fmt: skip
_TIMES = (
    b"model,gpu,batch_per_gpu,sec_per_iter,n_gpus,n_nodes,precision,image_size,parallelism\n"
    b"resnet50,T4,32,0.25,1,1,fp32,224,\nvgg16,V100,16,0.125,2,1,fp16,,DDP\n"
)
_SPOT = (
    b"provider,region,instance_type,time,usd_per_hour,zone,available_machines,preemptions_per_hour\n"
    b"aws,us-east-1,g4dn.xlarge,2026-11-21T15:00:00Z,0.25,us-east-1a,3,0.05\n"
)
_PROFILE = {
    "format": "gpusonde.profile/1",
    "device": "T4",
    "optimizer_s": 0.01,
    "largest_batch": 64,
    "probes": [
        {"batch_size": 8, "total_s": 0.1, "forward_s": 0.03, "spread": 0.01},
        {"batch_size": 64, "total_s": 0.6},
    ],
    "gradients": {"ready_fractions": [0.5, 1.0], "bucket_bytes": [1e6, 2e6]},
}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


FILE_TARGETS = {
    "problem_file": Target(_read_problem, lambda: [_PROBLEM], (DocumentError, ProblemError), is_slow=True),
    "problem_json": Target(
        _read_problem_json, lambda: [json.dumps(small_problem()).encode()], (DocumentError, ProblemError), is_slow=True
    ),
    "offers_file": Target(_read_offers, _offer_files, (CatalogError,), is_slow=True),
    "aws_prices": Target(_read_aws_prices, lambda: [aws_file().encode()], (CatalogError,), is_slow=True),
    "azure_prices": Target(_read_azure_prices, lambda: [azure_page().encode()], (CatalogError,), is_slow=True),
    "spot_table": Target(
        lambda data: list(read_spot_rows(file("spot.csv", data))), lambda: [_SPOT], (TableError,)
    ),
    "training_times": Target(
        lambda data: read_measurements(file("times.csv", data), _gpus()), lambda: [_TIMES], (TableError,),
        is_slow=True,
    ),
    "capacity_trace": Target(
        lambda data: read_capacity(file("capacity.json", data)),
        lambda: [b'{"metadata": {"gap_seconds": 60}, "data": [1, 0, 2]}'], (CapacityError,),
    ),
    "allreduce_model": Target(
        lambda data: model_from_json(_text(data)), lambda: [json.dumps(_ALLREDUCE).encode()], (DocumentError,)
    ),
    "allreduce_measurements": Target(
        lambda data: measurements_from_json(_text(data)),
        lambda: [
            json.dumps({"format": MEASUREMENTS_FORMAT, "measurements": [_MEASUREMENT]}).encode()
        ],
        (DocumentError,),
    ),
    "job_profile": Target(
        lambda data: JobProfile.read(file("profile.json", data)), lambda: [json.dumps(_PROFILE).encode()],
        (DocumentError,),
    ),
    "kubelet_answer": Target(_list_pods, _pods, (DecodeError,)),
    "cgroup": Target(lambda data: owner_of(_text(data), 1000), lambda: _CGROUPS),
    "http_request": Target(
        _ask_endpoint, lambda: [b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /-/ready?x HTTP/1.1\r\n\r\n"]
    ),
    "collectors_answer": Target(_ask_a_collector, _answers, (CollectorError, DecodeError), is_slow=True),
}  # fmt: skip

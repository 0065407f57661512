"""Decoders of the controller, as targets for fuzzing."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from support.layered_graphs import graph_json
from support.workload_parts import make_parts

from gpusonde.catalog import GpuCatalog, load_gpus
from gpusonde.collector.messages import fill
from gpusonde.collector.workload.answering import Answers
from gpusonde.collector.workload.checker import check_workloads
from gpusonde.collector.workload.errors import WorkloadError
from gpusonde.collector.workload.training_queue import TrainingQueue
from gpusonde.workload.v1 import workload_pb2


@functools.cache
def _gpus() -> GpuCatalog:
    return load_gpus()


_OLD_QUEUE = Path(__file__).parents[1] / "data" / "before_house" / "collector" / "trainings"


def ask_about_workloads(data: bytes) -> None:
    """Take a request through check, reading and answer, as the collector and its process do."""
    request = workload_pb2.PredictRequest.FromString(data)
    questions = check_workloads(request.workloads, [], _gpus())
    rows = [row for row in questions.rows if not isinstance(row, WorkloadError)]
    question = {
        "kind": "predict", "graphs": questions.graphs, "rows": rows, "model": "", "embeddings": "/nowhere",
        "max_operations": 1000, "graph_time_limit_s": 5.0,
    }  # fmt: skip
    found = Answers(make_parts()).answer(question, questions.contents)
    assert len(found["answers"]) == len(rows)
    fill(workload_pb2.PredictResponse(), json.loads(json.dumps(found, allow_nan=False)))


def workload_requests() -> list[bytes]:
    """Requests to begin from."""
    request = workload_pb2.PredictRequest()
    graph = {"content": graph_json(), "format": "json", "name": "n"}
    cluster = {"device": "V100", "device_count": 2, "precision": "fp16", "parallelism": "distributed"}
    row = {"batch_size": 8, "cluster": cluster, "dataset_type": "digits", "samples_per_epoch": 100}
    fill(request, {"workloads": [{"graph": {"graph": graph}, **row}, {"graph": {"same_as": 0}, **row}]})
    return [request.SerializeToString()]


def read_training(data: bytes, folder: Path) -> None:
    """Take over a queue of an earlier version with one training, and ask for it."""
    (folder / "digits.json").write_bytes(data)
    queue = TrainingQueue(folder)
    queue.trainings()
    queue.enqueue_if_absent("digits")


def trainings() -> list[bytes]:
    """Files of trainings to begin from."""
    return [path.read_bytes() for path in sorted(_OLD_QUEUE.glob("*.json"))]

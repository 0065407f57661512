"""Files as exporters write them, sent to a running collector."""

from pathlib import Path

import pytest
from support.running_collector import ThreadCollector

from gpusonde.collector.client import WorkloadClient

FILES = Path(__file__).parents[2] / "data" / "graph_files"


@pytest.fixture(scope="module")
def client(tmp_path_factory, model_file):
    folder = tmp_path_factory.mktemp("files")
    with (
        ThreadCollector(folder / "data", workload__model=model_file) as running,
        WorkloadClient(running.target) as asking,
    ):
        yield asking


def test_files_of_one_network_get_one_answer_whatever_their_format(client):
    # The ONNX file does not say the shapes of its tensors: a process of its own infers them.
    contents = [(FILES / f"convolutions{each}").read_bytes() for each in (".json", ".pt2", "_trained.onnx")]
    cluster = {"device": "T4"}
    answers = client.predict([{"graph": {"content": each}, "batch_size": 8, "cluster": cluster} for each in contents])
    assert [answer["error"] for answer in answers] == [None] * 3
    seconds = [answer["prediction"]["iteration_seconds"]["value"] for answer in answers]
    assert seconds == pytest.approx([seconds[0]] * 3, rel=1e-6)

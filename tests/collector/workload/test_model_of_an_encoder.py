"""A collector whose model has columns of an embedding: it has the encoder, or it says so before anybody asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.measured_workloads import chain
from support.running_collector import ThreadCollector
from support.trained_encoders import encoder_weights
from support.wire_agent import wait_until
from support.wired_networks import SLOWER, turned, write_embedding_model

from gpusonde.collector.client import WorkloadClient
from gpusonde.errors import MissingEncoderError, ModelFileError
from gpusonde.predictor.workload.embedding import EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry, name_checkpoint
from gpusonde.predictor.workload.graph import dump_graph

PLACE = {"device": "T4", "environment": "here/T4"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_embedding_model(tmp_path_factory.mktemp("model") / "model.safetensors", encoder_weights())


def question(graph, **more):
    return {"graph": {"content": dump_graph(graph).encode()}, "batch_size": 16, "cluster": PLACE, **more}


def test_it_predicts_with_the_encoder_of_its_own_registry_also_after_a_later_one_has_come(tmp_path, model):
    registry = Registry(tmp_path / "data" / "embeddings")
    first = registry.add(encoder_weights()).sha256
    registry.add(EncoderWeights(encoder_weights().description, EncoderWeights.random(7).arrays))
    with (
        ThreadCollector(tmp_path / "data", workload__model=str(model), workers__time_limit="120s") as running,
        WorkloadClient(running.target) as client,
    ):
        graphs = (chain(48, 6), turned(chain(48, 6)))
        wanted = (None, "tiny", "digits", "voices")
        answers = client.predict(
            [question(graph, **({} if each is None else {"dataset_type": each})) for graph in graphs for each in wanted]
        )
    found = [answer["prediction"] for answer in answers]
    assert {each["features"] for each in found} == {"roofline+analytic+embedding"}
    one, other = found[0]["iteration_seconds"]["value"], found[4]["iteration_seconds"]["value"]
    assert other / one == pytest.approx(SLOWER, rel=0.3)
    fitted = f"predicted with the encoder of tiny with the digest {first[:12]}, as the model was fitted"
    assert found[0]["embedding"] is None
    # The collector has a later encoder of that type by now, which the model does not use.
    assert found[1]["embedding"]["note"] == f"the embedding for tiny is not used: {fitted}"
    assert found[2]["embedding"]["note"] == f"the embedding for digits is not used: {fitted}"
    assert found[3]["embedding"]["note"].startswith(
        f"there is no embedding for voices: {fitted}; its training is queued"
    )


@pytest.mark.parametrize("lacking", ["encoder", "model"])
def test_it_does_not_start_without_the_encoder_or_the_model(tmp_path, model, lacking):
    path = model if lacking == "encoder" else tmp_path / "damaged"
    (tmp_path / "damaged").write_bytes(b"damaged")
    expected = MissingEncoderError if lacking == "encoder" else ModelFileError
    with pytest.raises(expected) as refused, ThreadCollector(tmp_path / "data", workload__model=str(path)):
        pass
    assert str(path) in str(refused.value)
    if lacking == "encoder":
        assert f"put its file {name_checkpoint('tiny', encoder_weights().sha256)} into that folder" in str(
            refused.value
        )


def test_an_encoder_that_is_lost_while_it_runs_is_an_error_of_each_question_and_not_another_encoder(
    tmp_path, model, caplog
):
    registry = Registry(tmp_path / "data" / "embeddings")
    registry.add(encoder_weights())
    with (
        ThreadCollector(tmp_path / "data", workload__model=str(model), workers__time_limit="120s") as running,
        WorkloadClient(running.target) as client,
    ):
        for path in registry.folder.iterdir():
            path.unlink()
        (answer,) = client.predict([question(chain(48, 6))])
        assert answer["error"]["kind"] == "no_embedding"
        assert "its log says more" in answer["error"]["text"]
        assert str(registry.folder) not in answer["error"]["text"]
        assert str(registry.folder) in caplog.text
        registry.add(encoder_weights())
        (answer,) = client.predict([question(chain(48, 6))])
        assert answer["error"] is None


def test_a_reload_is_refused_where_the_encoder_of_the_new_model_is_missing(tmp_path, model):
    config, log = tmp_path / "collector.toml", tmp_path / "log"
    text = '[server]\nlisten = "127.0.0.1:0"\n[metrics]\nlisten = ""\n[workload]\n'
    config.write_text(text)
    command = [sys.executable, "-m", "gpusonde.cli", "collector", "--store", str(tmp_path / "store")]
    with log.open("wb") as stderr:
        process = subprocess.Popen([*command, "--config", str(config)], stderr=stderr)
    try:
        wait_until(lambda: "collecting on" in log.read_text() or process.poll() is not None, 120)
        config.write_text(f'{text}model = "{model}"\n')
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: "the configuration stays as it was" in log.read_text(), 120)
        assert "which cannot be had" in log.read_text()
        with WorkloadClient((tmp_path / "store" / "address").read_text().strip()) as client:
            (answer,) = client.predict([question(chain(48, 6))])
            assert answer["prediction"]["features"] != "roofline+analytic+embedding"
        Registry(tmp_path / "store" / "embeddings").add(encoder_weights())
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: "changed: workload.model" in log.read_text(), 120)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(200)

"""Models with columns of an embedding: validation decides on them, and their files name the encoder."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest
from support.measured_workloads import chain
from support.trained_encoders import encoder_weights
from support.wired_networks import SLOWER, measured_pairs, turned

from gpusonde.errors import MissingEncoderError, ModelError, ModelFileError
from gpusonde.predictor.model_file import decode, encode
from gpusonde.predictor.workload.embedding import EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry, name_checkpoint
from gpusonde.predictor.workload.engine import Cluster, EncoderEmbedder, WorkloadModel, WorkloadRequest


@pytest.fixture(scope="module")
def embedder():
    return EncoderEmbedder(encoder_weights())


@pytest.fixture(scope="module")
def fitted(catalog, embedder):
    return WorkloadModel(catalog, embed=embedder).fit(measured_pairs(catalog), regressor="linear")


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def request(graph):
    return WorkloadRequest(graph, 16, Cluster("T4", environment="here/T4"))


def changed(path, change):
    file = decode(path.read_bytes(), most_bytes=1 << 24)
    change(file.document)
    path.write_bytes(encode(file.document, file.arrays)[0])


def test_an_embedding_stays_where_it_tells_apart_what_counts_do_not(fitted, embedder):
    trial = fitted.state.trial
    assert trial.kept
    assert trial.error < 0.1
    assert trial.error_without > 0.5
    assert fitted.encoder == embedder.reference
    unseen = chain(48, 6)
    one, other = fitted.predict([request(unseen), request(turned(unseen))])
    assert one.features == "roofline+analytic+embedding"
    assert other.seconds / one.seconds == pytest.approx(SLOWER, rel=0.3)


def test_an_embedding_that_does_not_help_leaves_no_trace_in_the_model(catalog, measurements, model, embedder, tmp_path):
    offered = WorkloadModel(catalog, embed=embedder).fit(measurements)
    trial = offered.state.trial
    assert not trial.kept
    assert trial.error > 0
    assert trial.error_without == model.scores[model.state.chosen]
    assert offered.encoder is None
    model.save(tmp_path / "without.safetensors")
    offered.save(tmp_path / "offered.safetensors")
    assert (tmp_path / "offered.safetensors").read_bytes() == (tmp_path / "without.safetensors").read_bytes()


def test_mode_paper_describes_networks_by_the_embedding_whatever_its_error(catalog, measurements, embedder):
    fitted = WorkloadModel(catalog, embed=embedder).fit(measurements, kind="paper", regressor="linear")
    trial = fitted.state.trial
    assert (trial.kept, trial.error_without, fitted.encoder) == (True, None, embedder.reference)


def test_a_saved_model_finds_its_encoder_in_the_registry_or_beside_its_file(fitted, saved, tmp_path):
    registry = Registry(tmp_path / "registry")
    registry.add(encoder_weights())
    asked = [request(chain(48, 6)), request(turned(chain(48, 6)))]
    loaded = WorkloadModel.load(saved, registry=registry)
    assert loaded.predict(asked) == fitted.predict(asked)
    assert loaded.encoder == fitted.encoder
    name = name_checkpoint(fitted.encoder.dataset_type, fitted.encoder.sha256)
    (registry.folder / name).rename(tmp_path / name)
    assert WorkloadModel.load(saved).predict(asked) == fitted.predict(asked)


def test_a_model_of_the_shipped_encoder_needs_no_registry(catalog, tmp_path):
    embedder = EncoderEmbedder(Registry().get("digits").weights)
    fitted = WorkloadModel(catalog, embed=embedder).fit(measured_pairs(catalog), regressor="linear")
    fitted.save(tmp_path / "model.safetensors")
    assert WorkloadModel.load(tmp_path / "model.safetensors").encoder == embedder.reference


def test_without_its_encoder_a_model_is_refused_and_the_reader_told_what_to_do(fitted, saved, tmp_path):
    other = EncoderWeights(encoder_weights().description, EncoderWeights.random(7).arrays)
    registry = Registry(tmp_path / "registry")
    registry.add(other)
    for given in (None, registry):
        with pytest.raises(MissingEncoderError) as refused:
            WorkloadModel.load(saved, registry=given)
        for words in (
            str(saved),
            f"the encoder of tiny with the digest {fitted.encoder.sha256[:12]}",
            "fit the model again",
        ):
            assert words in str(refused.value)
    # The one that is registered now stands in for no other.
    with pytest.raises(ModelError, match="was fitted with the encoder of tiny"):
        WorkloadModel(state=fitted.state, embed=EncoderEmbedder(other))


def test_a_later_encoder_of_the_same_type_leaves_the_models_of_the_one_before_as_they_were(fitted, saved, tmp_path):
    registry = Registry(tmp_path / "registry")
    registry.add(encoder_weights())
    registry.add(EncoderWeights(encoder_weights().description, EncoderWeights.random(7).arrays))
    assert registry.get("tiny").sha256 != fitted.encoder.sha256
    asked = [request(chain(48, 6))]
    assert WorkloadModel.load(saved, registry=registry).predict(asked) == fitted.predict(asked)


def test_an_embedding_without_a_name_is_not_looked_for(catalog, saved, embedder, tmp_path):
    nameless = WorkloadModel(catalog, embed=partial(embedder))
    nameless.fit(measured_pairs(catalog), regressor="linear").save(saved)
    with pytest.raises(MissingEncoderError, match="names no encoder; fit it again"):
        WorkloadModel.load(saved)
    asked = [request(chain(48, 6))]
    assert WorkloadModel.load(saved, embed=embedder).predict(asked) == nameless.predict(asked)


@pytest.mark.parametrize(
    "encoder",
    [None, {}, {"dataset_type": "tiny", "sha256": "ab"}, {"dataset_type": "../up", "sha256": "0" * 64}, "digits"],
)
def test_names_of_encoders_that_cannot_be_are_refused(saved, encoder):
    changed(saved, lambda document: document.update(encoder=encoder))
    with pytest.raises(ModelFileError, match="damaged"):
        WorkloadModel.load(saved)


def test_a_model_that_needs_no_encoder_names_none(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    changed(path, lambda document: document.update(encoder={"dataset_type": "tiny", "sha256": "0" * 64}))
    with pytest.raises(ModelFileError, match="damaged"):
        WorkloadModel.load(path)


def test_a_model_without_an_encoder_and_hosts_is_the_document_that_it_was_before_there_were_names_for_them(tmp_path):
    def document(path):
        return decode(path.read_bytes(), most_bytes=1 << 24).document

    shipped = Path(str(files("gpusonde.predictor.workload.engine").joinpath("shipped/workload_model.safetensors")))
    model = WorkloadModel.shipped()
    assert model.encoder is None
    model.save(tmp_path / "again.safetensors")
    assert document(tmp_path / "again.safetensors") == document(shipped)

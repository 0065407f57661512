"""The encoder that is shipped."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import pytest

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import Encoder
from gpusonde.predictor.workload.embedding.nearest import KnownArchitecture, NearestArchitectures
from gpusonde.predictor.workload.embedding.registry import Registry

# Small graphs of several families: the whole zoo is measured by benchmarks/workload.
NETWORKS = (
    "resnet18", "resnet34", "vgg11", "vgg13", "vgg11_bn", "squeezenet1_0", "squeezenet1_1", "mnasnet0_5", "mnasnet1_0",
    "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
)  # fmt: skip


@pytest.fixture(scope="module")
def shipped():
    return Registry().get("digits")


def test_it_is_there_without_any_folder(shipped):
    assert shipped.is_shipped
    assert "digits" in Registry().dataset_types()
    assert shipped.trained_steps == shipped.weights.description.training_steps == 600
    assert shipped.weights.description.dataset_type == "digits"
    assert len(shipped.weights.to_bytes()) < 100_000


def test_its_card_tells_how_it_was_made_and_what_it_is_worth(shipped):
    figures = shipped.figures
    assert figures["options"]["steps"] == 600
    assert figures["options"]["seed"] == shipped.weights.description.seed
    assert figures["accuracy_of_unseen_architectures"]["architectures"] == 60
    assert figures["accuracy_of_unseen_architectures"]["mean"] > 0.4
    assert figures["accuracy_before_training"]["mean"] <= 0.15
    assert figures["loss_means_of_50_steps"][-1] < 0.7 * figures["loss_means_of_50_steps"][0]
    assert set(figures["versions"]) >= {"torch", "numpy", "python"}
    assert len(hashlib.sha256().hexdigest()) == len(figures["dataset_sha256"])


def test_a_page_beside_it_names_it(shipped):
    page = files("gpusonde.predictor.workload.embedding").joinpath("checkpoints", "CARD.md").read_text("utf-8")
    assert shipped.sha256 in page


def test_networks_resemble_their_family(shipped):
    known = [KnownArchitecture(name, zoo.family(name), zoo.load(name)) for name in NETWORKS]
    search = NearestArchitectures(lambda: known)
    encoder = Encoder(shipped.weights)
    same = sum(search.nearest(each.graph, encoder, 2)[1][1] == each.family for each in known)
    assert same >= 0.8 * len(known)

"""Nearest architectures: centred cosine, every encoder's embeddings computed once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import Encoder, EncoderDescription, EncoderWeights
from gpusonde.predictor.workload.embedding.nearest import (
    ArchitectureIndex,
    KnownArchitecture,
    NearestArchitectures,
    find_nearest,
)
from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph


def chain(name, kinds, width):
    operations = tuple(
        Operation(kind, f"{name}{number}", (1, width), weight=(width, width) if kind is Primitive.LINEAR else ())
        for number, kind in enumerate((Primitive.INPUT, *kinds))
    )
    edges = tuple((number, number + 1) for number in range(len(operations) - 1))
    return WorkloadGraph(name, operations, edges, 1)


DEEP = (Primitive.LINEAR, Primitive.ACTIVATION) * 8
POOLED = (Primitive.MAX_POOL, Primitive.SOFTMAX) * 4
KNOWN = (
    *(KnownArchitecture(f"deep{width}", "deep", chain(f"deep{width}", DEEP, width)) for width in (16, 32, 64)),
    *(KnownArchitecture(f"pooled{n}", "pooled", chain(f"pooled{n}", POOLED * n, 8)) for n in (1, 2, 3)),
)


def encoder(seed=0):
    return Encoder(EncoderWeights.random(seed, EncoderDescription(hidden_size=16)))


def test_a_known_architecture_resembles_itself_most_and_then_its_family():
    search = NearestArchitectures(lambda: KNOWN)
    for known in KNOWN:
        found = search.nearest(known.graph, encoder(), 3)
        assert found[0][:2] == (known.name, known.family)
        assert found[0][2] == pytest.approx(1)
        assert {family for _, family, _ in found} == {known.family}


def test_embeddings_are_centred():
    # Two directions around a mean far away from the origin, where every plain cosine is above 0.99.
    embeddings = np.array([[100.0, 1.0], [100.0, 2.0], [100.0, -1.0], [100.0, -2.0]])
    index = ArchitectureIndex(("a", "b", "c", "d"), ("up", "up", "down", "down"), embeddings)
    found = index.nearest(np.array([100.0, 0.5]), 4)
    assert [family for _, family, _ in found] == ["up", "up", "down", "down"]
    assert [similarity for *_, similarity in found] == pytest.approx([1, 1, -1, -1])


def test_what_lies_at_the_centre_resembles_nothing():
    index = ArchitectureIndex(("a", "b"), ("x", "y"), np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert [similarity for *_, similarity in index.nearest(np.zeros(2), 2)] == [0, 0]


def test_names_can_be_left_out_and_more_than_there_are_can_be_asked_for():
    index = ArchitectureIndex(("a", "b", "c"), ("x", "y", "y"), np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
    found = index.nearest(np.array([1.0, 0.0]), 99, without={"a"})
    assert sorted(name for name, *_ in found) == ["b", "c"]
    assert index.nearest(np.zeros(2), 0) == []


def test_known_architectures_are_embedded_once_per_encoder_and_few_encoders_are_kept():
    asked = []

    def known():
        asked.append(threading.get_ident())
        return KNOWN

    search = NearestArchitectures(known, kept=2)
    for seed in (0, 0, 1, 0, 1):
        search.nearest(KNOWN[0].graph, encoder(seed))
    assert len(asked) == 2
    search.nearest(KNOWN[0].graph, encoder(2))
    # The least recently asked encoder, seed 0, was given up; seed 1 was not.
    search.nearest(KNOWN[0].graph, encoder(1))
    assert len(asked) == 3
    search.nearest(KNOWN[0].graph, encoder(0))
    assert len(asked) == 4


def test_threads_wait_for_one_embedding_of_all():
    asked = []

    def known():
        asked.append(1)
        return KNOWN

    search = NearestArchitectures(known)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(search.nearest(KNOWN[0].graph, encoder()))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1
    assert found == [found[0]] * 6


def test_the_zoo_is_what_networks_are_compared_with():
    found = find_nearest(zoo.load("resnet18"), Encoder(EncoderWeights.random(0)), 2)
    assert found[0][:2] == ("resnet18", zoo.family("resnet18"))
    assert found[0][2] == pytest.approx(1)
    assert found[1][0] in zoo.names()

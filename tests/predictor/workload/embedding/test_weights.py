import contextlib
import dataclasses
import pickle

import numpy as np
import pytest

from gpusonde.errors import EncoderError
from gpusonde.predictor.model_file import decode, encode
from gpusonde.predictor.workload.embedding import EncoderDescription, EncoderWeights, VirtualEdgeRule

DESCRIPTION = EncoderDescription(
    dataset_type="digits", hidden_size=8, maximum_steps=20, virtual_edges=VirtualEdgeRule.PUBLISHED_CODE
)


def trained(seed=0):
    weights = EncoderWeights.random(seed, DESCRIPTION)
    return EncoderWeights(dataclasses.replace(DESCRIPTION, training_steps=600, seed=seed), weights.arrays)


def test_a_file_gives_back_the_same_weights(tmp_path):
    weights = trained()
    weights.save(tmp_path / "encoder.safetensors")
    read = EncoderWeights.load(tmp_path / "encoder.safetensors")
    assert read.description == weights.description
    assert read.sha256 == weights.sha256
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
    assert read.to_bytes() == weights.to_bytes()


def test_random_weights_depend_on_the_seed_alone_and_are_called_untrained():
    one, other = EncoderWeights.random(5, trained().description), EncoderWeights.random(5, DESCRIPTION)
    assert one.sha256 == other.sha256
    assert one.sha256 != EncoderWeights.random(6, DESCRIPTION).sha256
    assert (one.description.dataset_type, one.description.training_steps) == ("", 0)


def test_the_digest_covers_numbers_and_description():
    weights = trained()
    arrays = {name: array.copy() for name, array in weights.arrays.items()}
    arrays["norm.bias"][0] += 1
    assert EncoderWeights(weights.description, arrays).sha256 != weights.sha256
    renamed = dataclasses.replace(weights.description, dataset_type="cifar10")
    assert EncoderWeights(renamed, weights.arrays).sha256 != weights.sha256


def with_array(name, array):
    weights = trained()
    return EncoderWeights(weights.description, {**weights.arrays, name: array})


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.full(8, np.nan, np.float32), "finite"),
        (np.full(8, np.inf, np.float32), "finite"),
        (np.zeros(9, np.float32), r"must be float32 \(8,\)"),
        (np.zeros(8), "float64"),
    ],
)
def test_arrays_that_are_not_those_described_are_refused(array, problem):
    with pytest.raises(EncoderError, match=problem):
        with_array("norm.bias", array)


def test_unknown_or_missing_arrays_are_refused():
    with pytest.raises(EncoderError, match="extra"):
        with_array("extra", np.zeros(8, np.float32))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 7},
        {"hidden_size": 1 << 20},
        {"hidden_size": -2},
        {"hidden_size": 8.0},
        {"hidden_size": None},
        {"maximum_steps": 0},
        {"maximum_steps": 1000},
        {"passes": 1000},
        {"passes": True},
        {"primitives": []},
        {"primitives": "other"},
        {"primitives": ["input"]},
        {"primitives": ["other", "other"]},
        {"primitives": ["other", 5]},
        {"primitives": ["other", *map(str, range(300))]},
        {"virtual_edges": "both"},
        {"virtual_edges": ["paper"]},
        {"training_steps": -1},
        {"training_steps": "many"},
        {"dataset_type": 5},
        {"dataset_type": "x" * 1000},
        {"seed": "x"},
        {"format": "gpusonde.graph_encoder/2"},
        {"unknown": 1},
    ],
)
def test_a_description_that_is_not_sound_is_refused(changes):
    file = decode(trained().to_bytes(), most_bytes=1 << 20)
    with pytest.raises(EncoderError):
        EncoderWeights.from_bytes(encode({**file.document, **changes}, file.arrays)[0])


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("norm.bias", None),
        ("norm.bias", np.zeros(8)),
        ("norm.bias", np.zeros((2, 4), np.float32)),
        ("norm.bias", np.full(8, np.nan, np.float32)),
        ("norm.bias", np.zeros(1 << 20, np.float32)),
        ("another", np.zeros(8, np.float32)),
    ],
)
def test_other_arrays_than_those_described_are_refused_in_a_file(name, new):
    file = decode(trained().to_bytes(), most_bytes=1 << 20)
    arrays = {key: array for key, array in {**file.arrays, name: new}.items() if array is not None}
    with pytest.raises(EncoderError):
        EncoderWeights.from_bytes(encode(file.document, arrays)[0])


@pytest.mark.parametrize("content", [b"", b"PK", b"\0" * 1000, pickle.dumps(Bomb())])
def test_what_is_no_archive_is_refused(content):
    with pytest.raises(EncoderError):
        EncoderWeights.from_bytes(content)


def test_a_file_larger_than_any_encoder_is_refused(tmp_path):
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(EncoderError, match="16 MiB"):
        EncoderWeights.load(path)


def test_a_file_cut_anywhere_or_with_a_changed_byte_is_refused_or_sound():
    content = trained().to_bytes()
    generator = np.random.default_rng(0)
    for cut in generator.integers(0, len(content), 60):
        with pytest.raises(EncoderError):
            EncoderWeights.from_bytes(content[:cut])
    for position in generator.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        with contextlib.suppress(EncoderError):
            assert EncoderWeights.from_bytes(bytes(damaged)).sha256 == trained().sha256

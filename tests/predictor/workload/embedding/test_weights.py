import contextlib
import dataclasses
import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from gpusonde.predictor.workload.embedding import (
    EncoderDescription,
    EncoderWeights,
    EncoderWeightsError,
    VirtualEdgeRule,
)

DESCRIPTION = EncoderDescription(
    dataset_type="digits", hidden_size=8, maximum_steps=20, virtual_edges=VirtualEdgeRule.PUBLISHED_CODE
)


def trained(seed=0):
    weights = EncoderWeights.random(seed, DESCRIPTION)
    return EncoderWeights(dataclasses.replace(DESCRIPTION, training_steps=600, seed=seed), weights.arrays)


def changed(content, name, new):
    """The file with one member replaced, or removed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in old.namelist():
            if each == f"{name}.npy":
                if new is not None:
                    archive.writestr(each, new)
            else:
                archive.writestr(each, old.read(each))
    return file.getvalue()


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version=(1, 0), **options)
    return file.getvalue()


def described(**changes):
    document = {"format": "gpusonde.graph_encoder/1", **dataclasses.asdict(trained().description), **changes}
    return npy(np.frombuffer(json.dumps(document).encode(), dtype=np.uint8))


def test_a_file_gives_back_the_same_weights(tmp_path):
    weights = trained()
    weights.save(tmp_path / "encoder.npz")
    read = EncoderWeights.load(tmp_path / "encoder.npz")
    assert read.description == weights.description
    assert read.sha256 == weights.sha256
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
    assert read.to_bytes() == weights.to_bytes()


def test_numpy_reads_the_file_without_pickle(tmp_path):
    weights = trained()
    weights.save(tmp_path / "encoder.npz")
    with np.load(tmp_path / "encoder.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["norm.weight"], weights.arrays["norm.weight"])
        assert json.loads(file["description"].tobytes())["dataset_type"] == "digits"


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
    with pytest.raises(EncoderWeightsError, match=problem):
        with_array("norm.bias", array)


def test_unknown_or_missing_arrays_are_refused():
    with pytest.raises(EncoderWeightsError, match="extra"):
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
    with pytest.raises(EncoderWeightsError):
        EncoderWeights.from_bytes(changed(trained().to_bytes(), "description", described(**changes)))


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("description", None),
        ("description", b""),
        ("description", npy(np.zeros(4, np.uint8))),
        ("description", npy(np.frombuffer(b"[" * 60_000, dtype=np.uint8))),
        ("description", npy(np.zeros(1 << 20, np.uint8))),
        ("description", npy(np.zeros((4, 4), np.uint8))),
        ("norm.bias", None),
        ("norm.bias", b"\x93NUMPY"),
        ("norm.bias", b"\x93NUMPY\x01\x00\x05\x00hello"),
        ("norm.bias", npy(np.zeros(8, np.float32))[:-1]),
        ("norm.bias", npy(np.zeros(8, np.float32)) + b"\0"),
        ("norm.bias", npy(np.zeros((2, 4), np.float32))),
        ("norm.bias", npy(np.full(8, np.nan, np.float32))),
        ("norm.bias", npy(np.zeros(1 << 22, np.float32))),
        ("norm.bias", npy(np.array([Bomb()], dtype=object), allow_pickle=True)),
        ("norm.bias", pickle.dumps(Bomb())),
    ],
)
def test_a_damaged_or_hostile_member_is_refused_and_nothing_executed(name, new):
    with pytest.raises(EncoderWeightsError):
        EncoderWeights.from_bytes(changed(trained().to_bytes(), name, new))


def test_a_header_that_claims_a_huge_array_asks_for_no_memory():
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(EncoderWeightsError, match="1099511627776"):
        EncoderWeights.from_bytes(changed(trained().to_bytes(), "norm.bias", member))


@pytest.mark.parametrize("content", [b"", b"PK", b"\0" * 1000, pickle.dumps(Bomb())])
def test_what_is_no_archive_is_refused(content):
    with pytest.raises(EncoderWeightsError):
        EncoderWeights.from_bytes(content)


def test_a_file_larger_than_any_encoder_is_refused(tmp_path):
    path = tmp_path / "large.npz"
    with path.open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(EncoderWeightsError, match="16 MiB"):
        EncoderWeights.load(path)


def test_a_file_cut_anywhere_or_with_a_changed_byte_is_refused_or_sound():
    content = trained().to_bytes()
    generator = np.random.default_rng(0)
    for cut in generator.integers(0, len(content), 60):
        with pytest.raises(EncoderWeightsError):
            EncoderWeights.from_bytes(content[:cut])
    for position in generator.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        with contextlib.suppress(EncoderWeightsError):
            assert EncoderWeights.from_bytes(bytes(damaged)).sha256 == trained().sha256

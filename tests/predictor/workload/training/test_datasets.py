"""Images to train on: the same split every time, limits kept, nothing unpickled."""

from __future__ import annotations

import pickle
import struct
import zlib

import numpy as np
import pytest

from gpusonde.errors import EncoderError
from gpusonde.predictor.workload.training import datasets
from gpusonde.predictor.workload.training.datasets import (
    FolderLimits,
    ImageDataset,
    digits,
    read_cifar10,
    read_folder,
)


def test_digits_are_split_the_same_way_every_time():
    once, again = digits(), digits()
    assert once.fingerprint == again.fingerprint
    assert (len(once.train_images), len(once.test_images)) == (1400, 397)
    assert (once.channels, once.side) == (1, 8)
    assert (once.train_images.min(), once.train_images.max()) == (-1, 1)
    assert set(once.test_labels) == set(range(10))
    together = np.concatenate([once.train_images, once.test_images]).reshape(1797, -1)
    # Every image is in one part: their sum is that of scikit-learn's table.
    assert np.isclose((together + 1).sum() * 8, 561718.0)


@pytest.fixture
def image_folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    folder = tmp_path / "flowers"
    for number, name in enumerate(("rose", "aster", "tulip")):
        (folder / name).mkdir(parents=True)
        for index in range(10):
            pixels = generator.integers(0, 80, (20, 30, 3)).astype(np.uint8) + np.uint8(80 * number)
            image.fromarray(pixels).save(folder / name / f"{index}.{('png', 'jpg')[index % 2]}")
    (folder / "rose" / "notes.txt").write_text("no image", encoding="utf-8")
    return folder


def test_a_folder_gives_classes_in_alphabetical_order_and_a_fixed_split(image_folder):
    once, again = (read_folder(image_folder, "flowers", image_size=16) for _ in range(2))
    assert once.fingerprint == again.fingerprint
    assert once.classes == ("aster", "rose", "tulip")
    assert (once.channels, once.side) == (3, 16)
    assert np.bincount(once.train_labels).tolist() == [8, 8, 8]
    assert np.bincount(once.test_labels).tolist() == [2, 2, 2]
    # Aster was the second that was drawn, rose the first: rose is darkest.
    brightness = [once.train_images[once.train_labels == label].mean() for label in range(3)]
    assert brightness[1] < brightness[0] < brightness[2]


def test_a_folder_may_be_read_in_grey(image_folder):
    grey = read_folder(image_folder, "flowers", channels=1, image_size=8)
    assert (grey.channels, grey.side) == (1, 8)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (FolderLimits(images=29), "more than 29 images"),
        (FolderLimits(file_bytes=100), "larger than"),
        (FolderLimits(pixels=599), "30 x 20 pixels"),
        (FolderLimits(memory_bytes=30 * 3 * 16 * 16 * 4 - 1), "use smaller or fewer"),
    ],
)
def test_limits_of_a_folder_are_kept(image_folder, limits, problem):
    with pytest.raises(EncoderError, match=problem):
        read_folder(image_folder, "flowers", image_size=16, limits=limits)


def test_a_header_that_claims_a_huge_image_is_refused_before_it_is_decoded(image_folder):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    (image_folder / "rose" / "0.png").write_bytes(bomb + chunk(b"IEND", b""))
    with pytest.raises(EncoderError, match=r"0\.png"):
        read_folder(image_folder, "flowers")


@pytest.mark.parametrize("content", [b"", b"no image", pickle.dumps([1]), b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_is_no_image_is_named(image_folder, content):
    (image_folder / "tulip" / "4.png").write_bytes(content)
    with pytest.raises(EncoderError, match=r"tulip.4\.png cannot be read as an image"):
        read_folder(image_folder, "flowers")


def test_folders_that_hold_no_classes_are_refused(tmp_path, image_folder):
    with pytest.raises(EncoderError, match="no folder"):
        read_folder(tmp_path / "missing", "flowers")
    with pytest.raises(EncoderError, match="0 sub-folders"):
        read_folder(image_folder / "rose", "flowers")
    (image_folder / "empty").mkdir()
    with pytest.raises(EncoderError, match="empty has 0 images"):
        read_folder(image_folder, "flowers")


@pytest.mark.parametrize("name", ["", "Flowers", "../flowers", "a/b", "a" * 65, ".hidden", "a\n"])
def test_dataset_types_have_names_that_can_be_files(image_folder, name):
    with pytest.raises(EncoderError, match="names no dataset type"):
        read_folder(image_folder, name)


def write_cifar10(folder, images_per_file=10_000):
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        rows = np.zeros((images_per_file, 3073), np.uint8)
        rows[:, 0] = generator.integers(0, 10, images_per_file)
        # Red of each image tells its label.
        rows[:, 1:1025] = 20 * rows[:, :1]
        (folder / name).write_bytes(rows.tobytes())


def test_cifar10_is_read_from_its_binary_version(tmp_path):
    write_cifar10(tmp_path)
    dataset = read_cifar10(tmp_path)
    assert (dataset.channels, dataset.side) == (3, 32)
    assert (len(dataset.train_images), len(dataset.test_images)) == (50_000, 10_000)
    assert np.allclose(dataset.test_images[:, 0, 0, 0], dataset.test_labels * 20 / 127.5 - 1)
    assert (dataset.train_images[:, 1:] == -1).all()


def test_cifar10_is_found_in_its_folder_and_in_the_one_around_it(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_IMAGES_PER_FILE", 10)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    write_cifar10(folder, 10)
    assert read_cifar10(folder).fingerprint == read_cifar10(tmp_path).fingerprint


class Exploit:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_cifar10s_pickled_version_is_never_read(tmp_path):
    pickled = tmp_path / "cifar-10-batches-py"
    pickled.mkdir()
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (pickled / name).write_bytes(pickle.dumps(Exploit()))
    for path in (tmp_path, pickled):
        with pytest.raises(EncoderError, match="pickled and never read here; unpack the binary version"):
            read_cifar10(path)


def test_damaged_files_of_cifar10_are_named(tmp_path):
    with pytest.raises(EncoderError, match="has no CIFAR-10"):
        read_cifar10(tmp_path)
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"\0" * 3073)
    with pytest.raises(EncoderError, match=r"data_batch_3\.bin: not 30730000 bytes"):
        read_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"\x0a" * 30_730_000)
    with pytest.raises(EncoderError, match="label is above 9"):
        read_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(EncoderError, match=r"data_batch_3\.bin is missing"):
        read_cifar10(tmp_path)


def dataset(**changes):
    images = np.zeros((4, 1, 2, 2), np.float32)
    labels = np.array([0, 1, 0, 1])
    parts = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    return ImageDataset(**{"name": "d", "classes": ("a", "b"), **parts, **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"classes": ("a",)}, "1 classes"),
        ({"train_labels": np.array([0, 1, 2, 0])}, "outside of its 2 classes"),
        ({"test_labels": np.array([0, -1, 1, 0])}, "outside of its 2 classes"),
        ({"test_images": np.zeros((4, 1, 3, 3), np.float32)}, "do not agree"),
        ({"train_labels": np.array([0])}, "do not agree"),
        ({"train_images": np.zeros((0, 1, 2, 2), np.float32)}, "no square training images"),
        ({"train_images": np.zeros((4, 1, 2, 3), np.float32)}, "no square training images"),
        ({"train_images": np.full((4, 1, 2, 2), np.nan, np.float32)}, "not finite"),
    ],
)
def test_images_that_nothing_can_be_learnt_from_are_refused(changes, problem):
    with pytest.raises(EncoderError, match=problem):
        dataset(**changes)


def test_the_fingerprint_tells_datasets_apart():
    other = np.zeros((4, 1, 2, 2), np.float32)
    other[0, 0, 0, 0] = 1e-6
    prints = {
        each.fingerprint
        for each in (dataset(), dataset(name="e"), dataset(train_images=other), dataset(classes=("a", "c")))
    }
    assert len(prints) == 4

"""CIFAR-10 from its binary version. Its Python version is pickled, and reading a pickle runs what is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpusonde.predictor.workload.embedding.training.datasets.images import DatasetError, ImageDataset, Images, Labels

#: Dataset type of an encoder trained on it.
CIFAR10 = "cifar10"
_FOLDER = "cifar-10-batches-bin"
_PICKLED_FOLDER = "cifar-10-batches-py"
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILE = "test_batch.bin"
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_IMAGES_PER_FILE = 10_000
_SHAPE = (3, 32, 32)
_ROW_BYTES = 1 + 3 * 32 * 32


def read_cifar10(path: str | Path) -> ImageDataset:
    """CIFAR-10 as its authors split it: 50,000 images to train on, 10,000 to test with.

    Args:
        path: The folder ``cifar-10-batches-bin``, or the one that it is in.

    Raises:
        DatasetError: There is no binary version of CIFAR-10, or a file of it is damaged.
        OSError: A file cannot be read.
    """
    folder = Path(path)
    if (folder / _FOLDER).is_dir():
        folder = folder / _FOLDER
    if not (folder / _TEST_FILE).is_file():
        raise DatasetError(_what_is_missing(folder))
    # Filled in place: two copies of it would be more than a gigabyte.
    train_images = np.empty((len(_TRAIN_FILES) * _IMAGES_PER_FILE, *_SHAPE), np.float32)
    train_labels = np.empty(len(train_images), np.int64)
    for number, name in enumerate(_TRAIN_FILES):
        part = slice(number * _IMAGES_PER_FILE, (number + 1) * _IMAGES_PER_FILE)
        train_images[part], train_labels[part] = _read(folder / name)
    test_images, test_labels = _read(folder / _TEST_FILE)
    return ImageDataset(CIFAR10, train_images, train_labels, test_images, test_labels, _CLASSES)


def _what_is_missing(folder: Path) -> str:
    pickled = (folder / _PICKLED_FOLDER).is_dir() or (folder / "data_batch_1").is_file()
    found = "holds CIFAR-10's Python version, which is pickled and never read here" if pickled else "has no CIFAR-10"
    return (
        f"{folder} {found}; unpack the binary version (cifar-10-binary.tar.gz, folder {_FOLDER}) from "
        "https://www.cs.toronto.edu/~kriz/cifar.html and name its folder"
    )


def _read(path: Path) -> tuple[Images, Labels]:
    if not path.is_file():
        raise DatasetError(f"{path} is missing; unpack the binary version of CIFAR-10 again")
    expected = _IMAGES_PER_FILE * _ROW_BYTES
    with path.open("rb") as file:
        content = file.read(expected + 1)
    if len(content) != expected:
        raise DatasetError(f"{path}: not {expected} bytes; unpack the binary version of CIFAR-10 again")
    rows = np.frombuffer(content, np.uint8).reshape(_IMAGES_PER_FILE, _ROW_BYTES)
    labels = rows[:, 0].astype(np.int64)
    if labels.max() >= len(_CLASSES):
        raise DatasetError(f"{path}: a label is above 9; unpack the binary version of CIFAR-10 again")
    return (rows[:, 1:].astype(np.float32) / 127.5 - 1).reshape(-1, *_SHAPE), labels

"""``ImageDataset``: labelled images in memory, split into those to train on and those to test with, and its sources.

``read_folder`` reads a folder of images with one sub-folder per class, ``read_cifar10`` the binary version of CIFAR-10
(its Python version is pickled, and reading a pickle runs what is in it), and ``digits`` returns scikit-learn's 1,797
handwritten digits, grey images of 8 x 8 that come with it, so that nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import EncoderError
from gpusonde.predictor.workload.embedding.weights import check_dataset_type

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

#: Most classes that the weights of a classifier are predicted for.
MAXIMUM_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Labelled images.

    Attributes:
        name: The dataset type that an encoder trained on it is registered under.
        train_images: (images, channels, height, width), height and width equal, values about -1..1.
        train_labels: Class of each, from 0.
        test_images: Images of the same shape that are never trained on.
        test_labels: Class of each, from 0.
        classes: Names of the classes.

    Raises:
        EncoderError: Shapes or labels do not agree, or there is nothing to learn.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.classes) <= MAXIMUM_CLASSES:
            raise EncoderError(f"{self.name}: {len(self.classes)} classes; there must be 2 to {MAXIMUM_CLASSES}")
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if images.ndim != 4 or not len(images) or images.shape[2] != images.shape[3]:
                raise EncoderError(f"{self.name}: no square {part} images of shape (channels, height, width)")
            if images.shape[1:] != self.train_images.shape[1:] or labels.shape != images.shape[:1]:
                raise EncoderError(f"{self.name}: {part} images and labels do not agree in shape")
            if labels.min() < 0 or labels.max() >= len(self.classes):
                raise EncoderError(f"{self.name}: a {part} label is outside of its {len(self.classes)} classes")
            if not np.isfinite(images).all():
                raise EncoderError(f"{self.name}: a {part} image has values that are not finite")

    @property
    def channels(self) -> int:
        """Channels of an image: 1 grey, 3 colour."""
        return int(self.train_images.shape[1])

    @property
    def side(self) -> int:
        """Height and width of an image, in pixels."""
        return int(self.train_images.shape[2])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of images, labels and classes, by which a training that is resumed knows its dataset."""
        digest = hashlib.sha256("\0".join((self.name, *self.classes)).encode())
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(f"{array.shape}{array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


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
    """Read CIFAR-10 as its authors split it: 50,000 images to train on, 10,000 to test with.

    Args:
        path: The folder ``cifar-10-batches-bin``, or the one that it is in.

    Raises:
        EncoderError: There is no binary version of CIFAR-10, or a file of it is damaged.
        OSError: A file cannot be read.
    """
    folder = Path(path)
    if (folder / _FOLDER).is_dir():
        folder = folder / _FOLDER
    if not (folder / _TEST_FILE).is_file():
        raise EncoderError(_describe_missing(folder))
    # Filled in place: two copies of it would be more than a gigabyte.
    train_images = np.empty((len(_TRAIN_FILES) * _IMAGES_PER_FILE, *_SHAPE), np.float32)
    train_labels = np.empty(len(train_images), np.int64)
    for number, name in enumerate(_TRAIN_FILES):
        part = slice(number * _IMAGES_PER_FILE, (number + 1) * _IMAGES_PER_FILE)
        train_labels[part] = _read(folder / name, train_images[part])
    test_images = np.empty((_IMAGES_PER_FILE, *_SHAPE), np.float32)
    test_labels = _read(folder / _TEST_FILE, test_images)
    return ImageDataset(CIFAR10, train_images, train_labels, test_images, test_labels, _CLASSES)


def _describe_missing(folder: Path) -> str:
    pickled = (folder / _PICKLED_FOLDER).is_dir() or (folder / "data_batch_1").is_file()
    found = "holds CIFAR-10's Python version, which is pickled and never read here" if pickled else "has no CIFAR-10"
    return (
        f"{folder} {found}; unpack the binary version (cifar-10-binary.tar.gz, folder {_FOLDER}) from "
        "https://www.cs.toronto.edu/~kriz/cifar.html and name its folder"
    )


def _read(path: Path, images: Images) -> Labels:
    """Fill ``images`` with those of a file and return their labels."""
    if not path.is_file():
        raise EncoderError(f"{path} is missing; unpack the binary version of CIFAR-10 again")
    expected = _IMAGES_PER_FILE * _ROW_BYTES
    with path.open("rb") as file:
        content = file.read(expected + 1)
    if len(content) != expected:
        raise EncoderError(f"{path}: not {expected} bytes; unpack the binary version of CIFAR-10 again")
    rows = np.frombuffer(content, np.uint8).reshape(_IMAGES_PER_FILE, _ROW_BYTES)
    labels = rows[:, 0].astype(np.int64)
    if labels.max() >= len(_CLASSES):
        raise EncoderError(f"{path}: a label is above 9; unpack the binary version of CIFAR-10 again")
    np.divide(rows[:, 1:], 127.5, out=images.reshape(_IMAGES_PER_FILE, -1), dtype=np.float32)
    images -= 1
    return labels


#: Dataset type of the encoder that is shipped.
DIGITS = "digits"
_TRAIN_IMAGES = 1400
_LARGEST_VALUE = 16.0


def digits() -> ImageDataset:
    """Return the digits, always with the same 1,400 images to train on and the other 397 to test with.

    Raises:
        EncoderError: Scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise EncoderError("digits: needs scikit-learn; install gpusonde[training]") from error
    flat, labels = load_digits(return_X_y=True)
    images = (2 * flat / _LARGEST_VALUE - 1).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:_TRAIN_IMAGES], order[_TRAIN_IMAGES:]
    return ImageDataset(
        DIGITS, images[train], labels[train], images[test], labels[test], tuple(str(digit) for digit in range(10))
    )


# Formats of photographs and scans. The others that Pillow knows only add ways to be hurt by a foreign file.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm")
_MODES = {1: "L", 3: "RGB"}
_FEWEST_PER_CLASS = 2


@dataclass(frozen=True)
class FolderLimits:
    """What a folder of images may ask for.

    Attributes:
        images: Files in all.
        file_bytes: Bytes of a file.
        pixels: Pixels of an image before it is made smaller.
        memory_bytes: Bytes of all images together as they are trained on.
    """

    images: int = 200_000
    file_bytes: int = 32 << 20
    pixels: int = 40_000_000
    memory_bytes: int = 2 << 30


def read_folder(
    path: str | Path,
    dataset_type: str,
    *,
    image_size: int = 32,
    channels: int = 3,
    test_share: float = 0.2,
    limits: FolderLimits | None = None,
) -> ImageDataset:
    """Read images whose class is the sub-folder that they are in.

    Which of them are tested with depends on their names' order alone: reading the folder twice gives the same split.

    Args:
        path: The folder.
        dataset_type: What to register an encoder under that is trained on them.
        image_size: Height and width that every image is scaled to, in pixels, 4..512.
        channels: 3 colour, 1 grey.
        test_share: Share of each class that is tested with, above 0 and below 1.
        limits: What the folder may ask for.

    Raises:
        EncoderError: It is no such folder, a file is no image, a limit is exceeded, or Pillow is not installed.
        EncoderError: ``dataset_type`` is no such name.
        OSError: The folder or a file cannot be read.
    """
    limits = limits or FolderLimits()
    check_dataset_type(dataset_type)
    if not 4 <= image_size <= 512:
        raise EncoderError(f"images of {image_size} pixels: use 4 to 512")
    if channels not in _MODES:
        raise EncoderError(f"{channels} channels: use 1 (grey) or 3 (colour)")
    if not 0 < test_share < 1:
        raise EncoderError(f"a test share of {test_share}: it must lie between 0 and 1")
    folder = Path(path)
    if not folder.is_dir():
        raise EncoderError(f"{folder} is no folder; name one with a sub-folder of images per class")
    files = _list_files(folder, limits)
    count = sum(map(len, files.values()))
    if count * channels * image_size**2 * np.dtype(np.float32).itemsize > limits.memory_bytes:
        raise EncoderError(
            f"{folder}: {count} images of {image_size} x {image_size} need more than {limits.memory_bytes >> 20} MiB; "
            "use smaller or fewer images"
        )
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise EncoderError("a folder of images needs Pillow; install gpusonde[training]") from error
    train: list[tuple[Images, Labels]] = []
    test: list[tuple[Images, Labels]] = []
    for label, paths in enumerate(files.values()):
        images = np.stack([_read_image(pillow, each, image_size, _MODES[channels], limits) for each in paths])
        labels = np.full(len(paths), label, np.int64)
        tested = min(max(1, round(len(paths) * test_share)), len(paths) - 1)
        order = np.random.default_rng(label).permutation(len(paths))
        test.append((images[order[:tested]], labels[:tested]))
        train.append((images[order[tested:]], labels[tested:]))
    return ImageDataset(dataset_type, *_join(train), *_join(test), tuple(files))


def _join(parts: list[tuple[Images, Labels]]) -> tuple[Images, Labels]:
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _list_files(folder: Path, limits: FolderLimits) -> dict[str, list[Path]]:
    classes = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not 2 <= len(classes) <= MAXIMUM_CLASSES:
        raise EncoderError(
            f"{folder} has {len(classes)} sub-folders; there must be one per class, 2 to {MAXIMUM_CLASSES}"
        )
    files: dict[str, list[Path]] = {}
    count = 0
    for each in classes:
        found = sorted(path for path in each.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())
        if len(found) < _FEWEST_PER_CLASS:
            raise EncoderError(f"{each} has {len(found)} images ({', '.join(_SUFFIXES)}); two are the least")
        count += len(found)
        if count > limits.images:
            raise EncoderError(f"{folder} has more than {limits.images} images; use fewer")
        files[each.name] = found
    return files


def _read_image(pillow: Any, path: Path, image_size: int, mode: str, limits: FolderLimits) -> Images:
    """Read an image at one size as (channels, height, width), -1..1."""
    if path.stat().st_size > limits.file_bytes:
        raise EncoderError(f"{path} is larger than {limits.file_bytes >> 20} MiB")
    try:
        scaled = _scale_image(pillow, path, image_size, mode, limits)
    except EncoderError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, pillow.DecompressionBombError) as error:
        raise EncoderError(f"{path} cannot be read as an image ({error}); remove it") from error
    pixels = np.asarray(scaled, np.float32) / 127.5 - 1
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _scale_image(pillow: Any, path: Path, image_size: int, mode: str, limits: FolderLimits) -> Any:
    with pillow.open(path, formats=_FORMATS) as image:
        # The header tells the size before anything is decoded.
        if image.width * image.height > limits.pixels:
            raise EncoderError(f"{path} has {image.width} x {image.height} pixels; remove it or make it smaller")
        return image.convert(mode).resize((image_size, image_size), pillow.Resampling.BILINEAR)

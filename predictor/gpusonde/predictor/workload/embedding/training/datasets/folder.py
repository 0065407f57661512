"""A folder of images, one sub-folder per class."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpusonde.predictor.workload.embedding.names import check_dataset_type
from gpusonde.predictor.workload.embedding.training.datasets.images import (
    MAXIMUM_CLASSES,
    DatasetError,
    ImageDataset,
    Images,
    Labels,
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
        DatasetError: It is no such folder, a file is no image, a limit is exceeded, or Pillow is not installed.
        DatasetTypeNameError: ``dataset_type`` is no such name.
        OSError: The folder or a file cannot be read.
    """
    limits = limits or FolderLimits()
    check_dataset_type(dataset_type)
    if not 4 <= image_size <= 512:
        raise DatasetError(f"images of {image_size} pixels: use 4 to 512")
    if channels not in _MODES:
        raise DatasetError(f"{channels} channels: use 1 (grey) or 3 (colour)")
    if not 0 < test_share < 1:
        raise DatasetError(f"a test share of {test_share}: it must lie between 0 and 1")
    folder = Path(path)
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder; name one with a sub-folder of images per class")
    files = _files(folder, limits)
    count = sum(map(len, files.values()))
    if count * channels * image_size**2 * np.dtype(np.float32).itemsize > limits.memory_bytes:
        raise DatasetError(
            f"{folder}: {count} images of {image_size} x {image_size} need more than {limits.memory_bytes >> 20} MiB; "
            "use smaller or fewer images"
        )
    reader = _Reader(image_size, _MODES[channels], limits)
    train: list[tuple[Images, Labels]] = []
    test: list[tuple[Images, Labels]] = []
    for label, paths in enumerate(files.values()):
        images = np.stack([reader.read(each) for each in paths])
        labels = np.full(len(paths), label, np.int64)
        tested = min(max(1, round(len(paths) * test_share)), len(paths) - 1)
        order = np.random.default_rng(label).permutation(len(paths))
        test.append((images[order[:tested]], labels[:tested]))
        train.append((images[order[tested:]], labels[tested:]))
    return ImageDataset(dataset_type, *_joined(train), *_joined(test), tuple(files))


def _joined(parts: list[tuple[Images, Labels]]) -> tuple[Images, Labels]:
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _files(folder: Path, limits: FolderLimits) -> dict[str, list[Path]]:
    classes = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not 2 <= len(classes) <= MAXIMUM_CLASSES:
        raise DatasetError(
            f"{folder} has {len(classes)} sub-folders; there must be one per class, 2 to {MAXIMUM_CLASSES}"
        )
    files: dict[str, list[Path]] = {}
    count = 0
    for each in classes:
        found = sorted(path for path in each.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())
        if len(found) < _FEWEST_PER_CLASS:
            raise DatasetError(f"{each} has {len(found)} images ({', '.join(_SUFFIXES)}); two are the least")
        count += len(found)
        if count > limits.images:
            raise DatasetError(f"{folder} has more than {limits.images} images; use fewer")
        files[each.name] = found
    return files


class _Reader:
    """Scales images to one size."""

    def __init__(self, image_size: int, mode: str, limits: FolderLimits) -> None:
        self._size, self._mode, self._limits = (image_size, image_size), mode, limits
        self._pillow: Any
        try:
            self._pillow = importlib.import_module("PIL.Image")
        except ModuleNotFoundError as error:
            raise DatasetError("a folder of images needs Pillow; install gpusonde[training]") from error

    def read(self, path: Path) -> Images:
        """An image as (channels, height, width), -1..1."""
        if path.stat().st_size > self._limits.file_bytes:
            raise DatasetError(f"{path} is larger than {self._limits.file_bytes >> 20} MiB")
        try:
            scaled = self._scaled(path)
        except DatasetError:
            raise
        except (OSError, ValueError, SyntaxError, EOFError, self._pillow.DecompressionBombError) as error:
            raise DatasetError(f"{path} cannot be read as an image ({error}); remove it") from error
        pixels = np.asarray(scaled, np.float32) / 127.5 - 1
        return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _scaled(self, path: Path) -> Any:
        with self._pillow.open(path, formats=_FORMATS) as image:
            # The header tells the size before anything is decoded.
            if image.width * image.height > self._limits.pixels:
                raise DatasetError(f"{path} has {image.width} x {image.height} pixels; remove it or make it smaller")
            return image.convert(self._mode).resize(self._size, self._pillow.Resampling.BILINEAR)

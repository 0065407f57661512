"""``ImageDataset``: labelled images in memory, split into those to train on and those to test with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

#: Most classes that the weights of a classifier are predicted for.
MAXIMUM_CLASSES = 1000


class DatasetError(ValueError):
    """Images that cannot be trained on; the message says why and what to do."""


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
        DatasetError: Shapes or labels do not agree, or there is nothing to learn.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.classes) <= MAXIMUM_CLASSES:
            raise DatasetError(f"{self.name}: {len(self.classes)} classes; there must be 2 to {MAXIMUM_CLASSES}")
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if images.ndim != 4 or not len(images) or images.shape[2] != images.shape[3]:
                raise DatasetError(f"{self.name}: no square {part} images of shape (channels, height, width)")
            if images.shape[1:] != self.train_images.shape[1:] or labels.shape != images.shape[:1]:
                raise DatasetError(f"{self.name}: {part} images and labels do not agree in shape")
            if labels.min() < 0 or labels.max() >= len(self.classes):
                raise DatasetError(f"{self.name}: a {part} label is outside of its {len(self.classes)} classes")
            if not np.isfinite(images).all():
                raise DatasetError(f"{self.name}: a {part} image has values that are not finite")

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

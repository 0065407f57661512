"""Scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, bundled with it, so that nothing is downloaded."""

from __future__ import annotations

import numpy as np

from gpusonde.predictor.workload.embedding.training.datasets.images import DatasetError, ImageDataset

#: Dataset type of the encoder that is shipped.
DIGITS = "digits"
_TRAIN_IMAGES = 1400
_LARGEST_VALUE = 16.0


def digits() -> ImageDataset:
    """The digits, always with the same 1,400 images to train on and the other 397 to test with.

    Raises:
        DatasetError: Scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise DatasetError("digits: needs scikit-learn; install gpusonde[training]") from error
    flat, labels = load_digits(return_X_y=True)
    images = (2 * flat / _LARGEST_VALUE - 1).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:_TRAIN_IMAGES], order[_TRAIN_IMAGES:]
    return ImageDataset(
        DIGITS, images[train], labels[train], images[test], labels[test], tuple(str(digit) for digit in range(10))
    )

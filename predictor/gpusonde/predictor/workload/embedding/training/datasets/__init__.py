"""Labelled images that a hypernetwork is trained on: the bundled digits, a folder of images, CIFAR-10."""

from gpusonde.predictor.workload.embedding.training.datasets.cifar import read_cifar10
from gpusonde.predictor.workload.embedding.training.datasets.digits import digits
from gpusonde.predictor.workload.embedding.training.datasets.folder import FolderLimits, read_folder
from gpusonde.predictor.workload.embedding.training.datasets.images import DatasetError, ImageDataset

__all__ = ["DatasetError", "FolderLimits", "ImageDataset", "digits", "read_cifar10", "read_folder"]

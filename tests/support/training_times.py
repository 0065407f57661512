"""A made-up table of measured training times: real networks and GPUs, times from a simple law with noise."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpusonde.catalog import load_gpus
from gpusonde.predictor.workload.engine.measurements import KnownNetworks
from gpusonde.predictor.workload.graph.cost import count_graph_cost

COLUMNS = (
    "model", "framework", "batch_per_gpu", "image_size", "input_desc", "precision", "gpu", "n_gpus", "n_nodes",
    "parallelism", "sec_per_iter", "source", "file", "licence",
)  # fmt: skip
TORCHVISION = (
    "resnet18", "resnet34", "resnet50", "resnet101", "vgg11", "vgg13", "vgg16", "vgg19", "densenet121", "densenet161",
    "mnasnet0_5", "mnasnet1_0",
)  # fmt: skip
KERAS = ("LeNet5", "MNIST_CNN", "CIFAR10_CNN", "VGG11", "VGG16", "ResNetSmall", "ResNet18", "ResNet34")


def write_training_times(
    path: Path,
    torchvision: Sequence[str] = TORCHVISION,
    keras: Sequence[str] = KERAS,
    *,
    image_sizes: Sequence[int] = (32, 64),
    noise: float = 0.02,
) -> Path:
    """Write the table: torchvision's networks on one to four GPUs of two hosts, Keras networks on one GPU of two kinds.

    Args:
        path: The file to write.
        torchvision: Names of torchvision's networks.
        keras: Names of Keras networks.
        image_sizes: Of the Keras rows.
        noise: Standard deviation of the logarithm of the times.
    """
    random = np.random.default_rng(7)
    networks, gpus = KnownNetworks(), load_gpus()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        hosts = (("2080TI", "RTX 2080 Ti"), ("dgx-a100", "A100-SXM4-40GB"))
        for name, (host, gpu), count in itertools.product(torchvision, hosts, (1, 2, 3, 4)):
            row = {
                "model": name, "framework": "pytorch-1.x", "batch_per_gpu": 12, "image_size": 224, "precision": "fp32",
                "gpu": gpu, "n_gpus": count, "parallelism": "DataParallel" if count > 1 else "none",
                "source": "some/benchmark@1", "file": f"results/{host}/{gpu}_{count}_gpus__float_model_train.csv",
            }  # fmt: skip
            writer.writerow(_timed(row, networks, gpus, random.normal(0, noise)))
        for name, gpu, size, batch in itertools.product(keras, ("T4", "K80"), image_sizes, (16, 32, 64, 128)):
            row = {
                "model": f"keras/{name}", "framework": "tf2.5-keras", "batch_per_gpu": batch, "image_size": size,
                "precision": "fp32", "gpu": gpu, "n_gpus": 1, "parallelism": "none", "source": "some/other",
            }  # fmt: skip
            writer.writerow(_timed(row, networks, gpus, random.normal(0, noise)))
    return path


def _timed(row, networks, gpus, noise):
    """The row with a time: arithmetic and memory at a third of the peaks, launches, and an exchange between GPUs."""
    graph = networks.find(row["model"], row["image_size"]).graph
    spec = gpus.resolve(row["gpu"]).spec
    cost = count_graph_cost(graph).at(row["batch_per_gpu"])
    seconds = 3 * 3 * (cost.flops / (spec.fp32_tflops * 1e12) + cost.bytes / spec.memory_bandwidth_bytes_per_second)
    seconds += 3e-5 * len(graph.operations) + 1e-3
    seconds += (row["n_gpus"] - 1) * (4 * graph.parameter_count / 8e9 + 2e-5 * len(graph.operations))
    return {**row, "n_nodes": 1, "licence": "MIT", "sec_per_iter": seconds * float(np.exp(noise))}

"""Training of hypernetworks on the side of whoever owns the images; needs torch, but for the data sets.

What other rooms use can be imported from here, each part, and torch with it, when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusonde.predictor.workload.training.datasets import ImageDataset, digits, read_cifar10, read_folder
    from gpusonde.predictor.workload.training.options import TrainingOptions
    from gpusonde.predictor.workload.training.progress import Phase, ProgressReport, show_on
    from gpusonde.predictor.workload.training.result import TrainingResult, TrainingStoppedError
    from gpusonde.predictor.workload.training.trainer import train

_HOMES = {
    "ImageDataset": "datasets",
    "digits": "datasets",
    "read_cifar10": "datasets",
    "read_folder": "datasets",
    "TrainingOptions": "options",
    "Phase": "progress",
    "ProgressReport": "progress",
    "show_on": "progress",
    "TrainingResult": "result",
    "TrainingStoppedError": "result",
    "train": "trainer",
}
__all__ = [
    "ImageDataset",
    "Phase",
    "ProgressReport",
    "TrainingOptions",
    "TrainingResult",
    "TrainingStoppedError",
    "digits",
    "read_cifar10",
    "read_folder",
    "show_on",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

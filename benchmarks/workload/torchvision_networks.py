"""torchvision's classification networks without their weights, on a torch without CUDA.

torchvision's wheels are built against torch with CUDA: beside a CPU build its compiled part does not load, and
importing it fails for want of two operators' schemas. Only detection uses those operators, so declaring them is enough.
This holds for the pair torch 2.13 and torchvision 0.28, installed with ``pip install --no-deps torchvision==0.28.0``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpusonde.predictor.workload.graph.torch.export import put_parameters_on_meta
from gpusonde.predictor.workload.graph.torch.fx import read_mode

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
_LARGER_IMAGES = {"inception_v3": 299}
_OWN_INITIALISATION = frozenset({"googlenet", "inception_v3"})
_declared: list[torch.library.Library] = []  # operators are gone when their library is


def torchvision_models() -> ModuleType:
    """``torchvision.models``, imported so that it works without CUDA too."""
    if not _declared and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _declared.append(library)
    import torchvision

    return torchvision.models


def network_names() -> list[str]:
    """All classification networks, in alphabetical order."""
    models = torchvision_models()
    return sorted(models.list_models(module=models))


def image_size(name: str) -> int:
    """Height and width of the images that a network's authors feed it with, pixels: 224 or 299."""
    return _LARGER_IMAGES.get(name, 224)


def build(name: str, **keywords: Any) -> nn.Module:
    """A network on the meta device: its shapes, no weights.

    Args:
        name: One of ``network_names()``.
        keywords: Of its constructor.
    """
    if name in _OWN_INITIALISATION:
        keywords.setdefault("init_weights", False)
    with put_parameters_on_meta():
        module: nn.Module = torchvision_models().get_model(name, weights=None, **keywords)
    return module.to("meta").eval()


def images(name: str, size: int | None = None, batch_size: int = 1) -> torch.Tensor:
    """A batch of images for a network on the meta device."""
    pixels = size or image_size(name)
    return torch.empty(batch_size, 3, pixels, pixels, device="meta")


def counted_matrix_flops(module: nn.Module, example: torch.Tensor, *, as_trained: bool = False) -> int:
    """What torch's own counter counts of one forward pass.

    Args:
        module: The network, on the meta device: elsewhere attention takes kernels that the counter does not know.
        example: What it is called with.
        as_trained: Parts that only training runs are run too.
    """
    with read_mode(module, as_trained=as_trained), FlopCounterMode(display=False) as counter:
        module(example)
    return int(counter.get_total_flops())

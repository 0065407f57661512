"""Networks to train: three convolutional shapes and a transformer, written out so that torch alone is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

CLASSES = 100


@dataclass(frozen=True)
class Workload:
    """A network with the batches it takes.

    Attributes:
        network: The module.
        batch: Makes (inputs, labels) of a batch size on a device.
    """

    network: nn.Module
    batch: Callable[[int, torch.device], tuple[torch.Tensor, torch.Tensor]]


def make_workload(name: str) -> Workload:
    """Return a workload by name.

    Raises:
        KeyError: There is no such workload; ``WORKLOADS`` lists them.
    """
    return WORKLOADS[name]()


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.short = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _separable(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


def _residual_net(blocks: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    width = 64
    for stage, count in enumerate(blocks):
        outputs = 64 * 2**stage
        for block in range(count):
            layers.append(_Residual(width, outputs, 2 if stage and not block else 1))
            width = outputs
    return nn.Sequential(*layers, *_head(width))


def _plain_net() -> nn.Module:
    layers: list[nn.Module] = []
    width = 3
    for outputs in (64, 128, 256, 256, 512, 512):
        layers += [nn.Conv2d(width, outputs, 3, 1, 1), nn.ReLU(inplace=True)]
        if outputs != width:
            layers.append(nn.MaxPool2d(2))
        width = outputs
    return nn.Sequential(*layers, *_head(width))


def _separable_net() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    width = 32
    for outputs, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (1024, 2)):
        layers.append(_separable(width, outputs, stride))
        width = outputs
    return nn.Sequential(*layers, *_head(width))


class _Transformer(nn.Module):
    """A causal language model over random tokens; gives logits of the last position only, as a classifier would."""

    tokens = 8192
    length = 256

    def __init__(self, width: int = 512, depth: int = 8, heads: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(self.tokens, width)
        self.place = nn.Parameter(torch.zeros(self.length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        hidden = self.body(self.embed(x) + self.place[: x.shape[1]], mask=mask, is_causal=True)
        return self.out(hidden.mean(dim=1))


def _images(side: int) -> Callable[[int, torch.device], tuple[torch.Tensor, torch.Tensor]]:
    def batch(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 3, side, side, device=device), torch.randint(CLASSES, (size,), device=device)

    return batch


def _texts(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(_Transformer.tokens, (size, _Transformer.length), device=device)
    return tokens, torch.randint(CLASSES, (size,), device=device)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "residual_18": lambda: Workload(_residual_net((2, 2, 2, 2)), _images(224)),
    "residual_34": lambda: Workload(_residual_net((3, 4, 6, 3)), _images(224)),
    "plain": lambda: Workload(_plain_net(), _images(128)),
    "separable": lambda: Workload(_separable_net(), _images(224)),
    "transformer": lambda: Workload(_Transformer(), _texts),
    "tiny": lambda: Workload(_residual_net((1,)), _images(32)),
}

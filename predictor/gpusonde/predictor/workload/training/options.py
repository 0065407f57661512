"""What a training of a hypernetwork is asked to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpusonde.errors import EncoderError


@dataclass(frozen=True)
class TrainingOptions:
    """How to train. The defaults take about ten minutes on one core with the digits.

    More steps predict better weights but worsen the embedding as a code of a network's cost: measure before you raise
    ``steps``.

    Attributes:
        steps: Steps, each over one batch of architectures and one of images.
        seed: Of first weights, architectures, and the order of both. The same seed gives the same encoder on the same
            machine.
        architectures: Random networks to train on.
        held_out_architectures: Random networks that are only tested with; none has the specification of another.
        architectures_per_step: Networks whose weights are predicted in a step.
        images_per_step: Images that each of them classifies in a step.
        learning_rate: Adam's, before it drops.
        learning_rate_drops: Shares of the steps after which it drops.
        learning_rate_factor: What it is multiplied by when it drops.
        weight_decay: Adam's.
        architecture_gradient_norm: Norm that the gradient of each network's loss by its weights is clipped to.
        gradient_norm: Norm that the gradient of the hypernetwork is clipped to.
        checkpoint_steps: A checkpoint is written whenever this many steps were made.
        test_images: Most test images that a held-out network classifies.
        hidden_size: Length of the embedding.
    """

    steps: int = 600
    seed: int = 0
    architectures: int = 250
    held_out_architectures: int = 60
    architectures_per_step: int = 6
    images_per_step: int = 64
    learning_rate: float = 3e-3
    learning_rate_drops: tuple[float, ...] = (0.85, 0.95)
    learning_rate_factor: float = 0.2
    weight_decay: float = 1e-5
    architecture_gradient_norm: float = 1.0
    gradient_norm: float = 5.0
    checkpoint_steps: int = 50
    test_images: int = 1000
    hidden_size: int = 32

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise EncoderError(f"{name} must be 1 to {most}, not {value!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 32:
            raise EncoderError(f"seed must be 0 to {(1 << 32) - 1}, not {self.seed!r}")
        if self.architectures_per_step > self.architectures:
            raise EncoderError(
                f"{self.architectures_per_step} architectures per step, but only {self.architectures} to train on"
            )
        for name in ("learning_rate", "learning_rate_factor", "architecture_gradient_norm", "gradient_norm"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise EncoderError(f"{name} must be above 0, not {getattr(self, name)!r}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise EncoderError(f"weight_decay must be 0 or more, not {self.weight_decay!r}")
        if not all(0 < share < 1 for share in self.learning_rate_drops):
            raise EncoderError(f"learning_rate_drops are shares of the steps, not {self.learning_rate_drops}")

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        drops = sum(step >= int(share * self.steps) for share in self.learning_rate_drops)
        return float(self.learning_rate * self.learning_rate_factor**drops)

    def as_document(self) -> dict[str, Any]:
        """Return the options as JSON holds them."""
        return {**asdict(self), "learning_rate_drops": list(self.learning_rate_drops)}

    def differences(self, document: Mapping[str, Any]) -> list[str]:
        """Return what differs from options that were written with :meth:`as_document`, for messages."""
        own = self.as_document()
        return [
            f"{each.name} ({document.get(each.name)} there, {own[each.name]} here)"
            for each in fields(self)
            if document.get(each.name) != own[each.name]
        ]


_MOST = {
    "steps": 1_000_000,
    "architectures": 100_000,
    "held_out_architectures": 10_000,
    "architectures_per_step": 256,
    "images_per_step": 65_536,
    "checkpoint_steps": 1_000_000,
    "test_images": 1_000_000,
    "hidden_size": 512,
}

"""Networks in torch that do something which front ends can miss. Imported only where torch is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class WritesUnread(nn.Module):
    """Works in place and reads the tensor, not what the operators return; computes what nobody reads."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, found):
        states = self.first(found)
        states.mul_(2)
        states.add_(found)
        torch.tanh(states)
        return self.second(states)


class WritesBuffer(nn.Module):
    """Keeps a running mean in a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, found):
        self.mean.mul_(0.9).add_(found.mean(0) * 0.1)
        return self.linear(found - self.mean)


class KeepsTensors(nn.Module):
    """Assigns to itself while it runs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.last = None
        self.kept = {}
        self.history = []

    def forward(self, found):
        self.mean = self.mean * 0.9 + found.mean(0) * 0.1
        self.last = self.linear(found - self.mean)
        self.kept["last"] = self.last
        self.history.append(self.last)
        return self.last


class ReturnsParts(nn.Module):
    """Hands on what an operator returned as one: states of an LSTM, chunks."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, found):
        states, last = self.lstm(found)
        return torch.cat(states.chunk(2, dim=-1), 0), last


class PicksElements(nn.Module):
    """Reads elements by their numbers, which copies them."""

    def forward(self, images):
        return images[:, [0, 2]] + functional.fold(functional.unfold(images[:, :2], 3, padding=1), (6, 6), 3, padding=1)


class Composite(nn.Module):
    """Functions of PyTorch that are written in Python."""

    def __init__(self):
        super().__init__()
        self.padded = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")

    def forward(self, images):
        return functional.normalize(functional.local_response_norm(self.padded(images), 2), dim=1)


class EmptyParts(nn.Module):
    """Tensors without elements, as a cache at the start."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.prefix = nn.Parameter(torch.zeros(0, 8))

    def forward(self, found):
        states = torch.cat([self.prefix, self.linear(found), found[:0].relu()])
        return states, found[:0]


class Sums(nn.Module):
    """Einstein sums of more than two tensors, and a tensordot."""

    def __init__(self):
        super().__init__()
        self.left, self.core = nn.Parameter(torch.zeros(8, 3)), nn.Parameter(torch.zeros(3, 4, 5))

    def forward(self, found):
        tucker = torch.einsum("bnd,dr,rst->bnst", found, self.left, self.core)
        return tucker, torch.tensordot(found, self.left, dims=([2], [0]))


class OneByOne(nn.Module):
    """Treats each sample alone, by torch.vmap."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 4))

    def forward(self, found):
        return torch.vmap(lambda row: row @ self.weight)(found)


class Cache:
    """An object of which torch knows nothing."""

    def __init__(self, keys):
        self.keys = keys


class ReturnsObject(nn.Module):
    """Returns a cache beside its answer, as language models do."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        states = self.embedding(tokens)
        return {"logits": self.head(states), "cache": Cache(states * 2)}


class Adapted(nn.Module):
    """Weights that are computed from weights, and a transposed view by an attribute."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.down, self.up = nn.Parameter(torch.zeros(8, 2)), nn.Parameter(torch.zeros(2, 8))

    def forward(self, found):
        return functional.linear(found, self.base.weight + (self.down @ self.up).T, self.base.bias)

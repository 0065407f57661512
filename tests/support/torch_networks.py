"""Networks in torch that front ends find hard, each small. Imported only where torch is."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    """Like GPT: causal attention over tokens, the embedding's weights used again by the head."""

    def __init__(self, vocabulary=100, width=32, heads=4, layers=2, longest=16):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        found = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            found = block(found)
        return self.head(self.norm(found))


class DecoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projection, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, states):
        batch, length, width = states.shape
        parts = self.projection(self.before(states)).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return states + self.mlp(self.between(states))


class Encoder(nn.Module):
    """Like BERT: attention spelled out with matrix products and a mask, a pooled first token."""

    def __init__(self, vocabulary=100, width=32, heads=4, layers=2, longest=16):
        super().__init__()
        self.tokens, self.segments = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.positions = nn.Parameter(torch.zeros(1, longest, width))
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens, segments, mask=None):
        found = self.tokens(tokens) + self.segments(segments) + self.positions[:, : tokens.shape[1]]
        bias = None if mask is None else (1.0 - mask[:, None, None, :].float()) * -10000.0
        for layer in self.layers:
            found = layer(found, bias)
        return found, torch.tanh(self.pooler(found[:, 0]))


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, states, bias):
        batch, length, width = states.shape
        query, key, value = (
            each(states).view(batch, length, self.heads, -1).permute(0, 2, 1, 3)
            for each in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        scores = scores if bias is None else scores + bias
        attended = (torch.softmax(scores, -1) @ value).permute(0, 2, 1, 3).reshape(batch, length, width)
        states = self.first(states + self.out(attended))
        return self.second(states + self.narrow(functional.gelu(self.wide(states))))


class Tagger(nn.Module):
    """Recurrent: LSTM in two directions, then a GRU."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 10)
        self.lstm = nn.LSTM(10, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(40, 12, batch_first=True)
        self.tags = nn.Linear(12, 5)

    def forward(self, words):
        states, _ = self.lstm(self.words(words))
        states, last = self.gru(states)
        return self.tags(states), last


class Upscaler(nn.Module):
    """Transposed, grouped and dilated convolutions, interpolation, a residual from before."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1, groups=2)
        self.register_buffer("kernel", torch.ones(4, 1, 3, 3))

    def forward(self, images):
        found = self.up(functional.relu(self.grouped(self.down(images))))
        blurred = functional.conv2d(found, self.kernel, padding=1, groups=4)
        return torch.cat([functional.interpolate(each, scale_factor=2.0) for each in (images, blurred)], 1)


class ByShape(nn.Module):
    """An if on a shape, and another use of sizes."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 4), nn.Linear(4, 4)

    def forward(self, states):
        if states.shape[-1] > 4:
            states = self.wide(states)
        return self.narrow(states).reshape(states.size(0), -1)


class ByData(nn.Module):
    """An if on the values."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, states):
        if states.sum() > 0:
            return self.one(states)
        return self.other(states)


class LoopByData(nn.Module):
    """As many steps as a value says."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, states):
        for _ in range(int(states.max())):
            states = self.step(states)
        return states


class SizeByData(nn.Module):
    """Boolean indexing."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, states):
        return self.step(states[states[:, 0] > 0])


class Branch(nn.Module):
    """torch.cond."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, states):
        return torch.cond(states.sum() > 0, self._one, self._other, (states,))

    def _one(self, states):
        return self.one(states)

    def _other(self, states):
        return self.other(states)


class WithAuxiliaryHead(nn.Module):
    """A head that only training runs, and a tensor that nothing ever reads."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)
        self.forgotten = nn.Parameter(torch.zeros(7))

    def forward(self, states):
        found = self.body(states)
        return (self.head(found), self.auxiliary(found)) if self.training else self.head(found)

"""``from_config``: the graph of a transformer from the ``config.json`` that lies beside its weights on a model hub.

The file says sizes, not operations; which operations a model type has is known here, as PyTorch runs them. No package
of the model's is needed and no code of its repository runs. The loss over the vocabulary is part of the graph, dropout
and index arithmetic are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpusonde.errors import MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.ir import Operation, Parameter, Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits

FRONT_END = "config"


@dataclass(frozen=True)
class _Design:
    """What the layers of a model type are made of; sizes have the names that its configurations use.

    Attributes:
        hidden: Width of the residual stream.
        layers: Layers.
        heads: Attention heads.
        inner: Width of the feed-forward part; four times the hidden width where the configuration has none.
        positions: Longest sequence.
        learnt_positions: Positions are looked up, else rotated into queries and keys.
        gated: The feed-forward part has a gate beside its first product.
        fused_qkv: One product makes queries, keys and values.
        biased: Products have a bias.
        causal: A language model; else an encoder with a masked-language head.
        tied: Whether the head shares the table of tokens, where the configuration does not say.
    """

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    positions: str = "max_position_embeddings"
    learnt_positions: bool = False
    gated: bool = False
    fused_qkv: bool = False
    biased: bool = True
    causal: bool = True
    tied: bool = True


_LLAMA = _Design(gated=True, biased=False, tied=False)
_BERT = _Design(learnt_positions=True, causal=False)
_DESIGNS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "gpt2": _Design("n_embd", "n_layer", "n_head", "n_inner", "n_positions", learnt_positions=True, fused_qkv=True),
    "gpt_neox": _Design(fused_qkv=True, tied=False),
    "opt": _Design(inner="ffn_dim", learnt_positions=True),
    "mpt": _Design("d_model", "n_layers", "n_heads", "", "max_seq_len", learnt_positions=True, fused_qkv=True,
                   biased=False),
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3"), _LLAMA),
    **dict.fromkeys(("gemma", "gemma2"), _Design(gated=True, biased=False)),
}  # fmt: skip
MODEL_TYPES = tuple(sorted(_DESIGNS))
# Weights that attention's own products have: what LoRA adapts unless it is told otherwise.
_ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj")


def from_config(
    config: Mapping[str, Any],
    *,
    sequence_length: int | None = None,
    lora_rank: int | None = None,
    name: str | None = None,
    limits: GraphLimits | None = None,
) -> WorkloadGraph:
    """Build the graph of one sequence.

    Args:
        config: What ``config.json`` holds. ``_attn_implementation`` "eager" has attention as separate products and a
            softmax; else it is one fused operation.
        sequence_length: Tokens in the sequence; the longest that the model takes when left out.
        lora_rank: Freeze all weights and train adapters of this rank on attention's products.
        name: What the user calls it; its ``_name_or_path`` or model type when left out.
        limits: What is accepted; None means the defaults.

    Returns:
        The graph; a sample is a sequence.

    Raises:
        UnsupportedGraphError: A model type that is not known here; the text names those that are.
        MalformedGraphError: A size is missing or cannot be.
        GraphLimitError: Larger than the limits.
    """
    limits = limits or GraphLimits()
    kind = config.get("model_type")
    if isinstance(config.get("text_config"), Mapping):
        raise UnsupportedGraphError(f"model type {kind!r} has several parts: hand in the configuration of its language"
                                    " model alone, or a factory (file.py:function) of the whole")  # fmt: skip
    if not isinstance(kind, str) or kind not in _DESIGNS:
        raise UnsupportedGraphError(f"model type {kind!r}: graphs from configurations are known of"
                                    f" {', '.join(MODEL_TYPES)}; of others hand in a factory (file.py:function)"
                                    " or an ONNX file")  # fmt: skip
    sizes = _Sizes(config, _DESIGNS[kind])
    layers = sizes.read(sizes.design.layers)
    # A layer has fewer than 40 operations: refused before a list of them is made.
    limits.check_count("operations", 40 * layers, limits.operations)
    title = name or config.get("_name_or_path") or kind
    title = limits.check_text("name", "".join(filter(str.isprintable, str(title)))[: limits.text])
    longest = sizes.read(sizes.design.positions)
    length = longest if sequence_length is None else sequence_length
    writer = _Writer(sizes, length, lora_rank, limits)
    writer.write_model(layers, longest)
    notes = [f"a sample is a sequence of {length:,} tokens"]
    if length > longest:
        notes.append(f"the configuration says that sequences have at most {longest:,} tokens")
    if lora_rank is not None:
        notes.append(f"weights are frozen but for adapters of rank {lora_rank} on attention's products (LoRA)")
    graph = WorkloadGraph(title, tuple(writer.operations), tuple(sorted(writer.edges)), 1, FRONT_END, tuple(notes))
    return limits.check_totals(graph)


@dataclass(frozen=True)
class _Sizes:
    """Sizes in a configuration."""

    config: Mapping[str, Any]
    design: _Design

    def read(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise MalformedGraphError(f"config.json: {key} is {value!r}; it must be whole, from 1 to 2147483647")
        return value

    def says(self, key: str, default: bool) -> bool:
        return bool(self.config.get(key, default))


class _Writer:
    """Writes a model's operations one after the other; each method returns the position of its last one."""

    def __init__(self, sizes: _Sizes, length: int, lora_rank: int | None, limits: GraphLimits) -> None:
        if length < 1 or (lora_rank is not None and lora_rank < 1):
            raise MalformedGraphError("sequence length and rank of adapters must be at least 1")
        self.operations: list[Operation] = []
        self.edges: set[tuple[int, int]] = set()
        self._sizes, self._design, self._limits = sizes, sizes.design, limits
        self._length, self._rank = length, lora_rank
        self._hidden = sizes.read(self._design.hidden)
        self._heads = sizes.read(self._design.heads)
        self._head_width = sizes.read("head_dim", max(self._hidden // self._heads, 1))
        self._key_heads = sizes.read("num_key_value_heads", self._heads)
        inner = sizes.read("expansion_ratio", 4) * self._hidden
        self._inner = sizes.read(self._design.inner, inner) if self._design.inner else inner
        self._experts = sizes.read("num_local_experts", 1)
        self._chosen = sizes.read("num_experts_per_tok", 1) if self._experts > 1 else 1
        self._check_sizes()
        self._fused_attention = sizes.config.get("_attn_implementation") != "eager"

    def _check_sizes(self) -> None:
        of_heads = f"{self._heads} heads"
        if self._sizes.config.get("head_dim") is None and self._hidden % self._heads:
            raise MalformedGraphError(f"config.json: {self._design.hidden} {self._hidden} is no multiple of {of_heads}")
        if self._heads % self._key_heads:
            raise MalformedGraphError(f"config.json: {of_heads} cannot share {self._key_heads} heads of keys evenly")
        if self._chosen > self._experts:
            raise MalformedGraphError(f"config.json: num_experts_per_tok is {self._chosen} of {self._experts} experts")
        narrowest = min(self._hidden, self._heads * self._head_width)
        if self._rank is not None and self._rank > narrowest:
            raise MalformedGraphError(f"adapters of rank {self._rank}: products of attention have {narrowest} at most")

    def write_model(self, layers: int, positions: int) -> None:
        vocabulary = self._sizes.read("vocab_size")
        tokens = self._add(Primitive.INPUT, "tokens", (1, self._length))
        table = (vocabulary, self._hidden)
        at = self._look_up("embed_tokens", tokens, table)
        if self._design.learnt_positions:
            places = self._look_up("embed_positions", tokens, (max(positions, self._length), self._hidden))
            at = self._elementwise(Primitive.SUM, "embed", at, places)
        if not self._design.causal:
            at = self._normalise("embed_norm", at)
        for number in range(layers):
            at = self._write_layer(f"layers.{number}", at)
        at = self._normalise("norm", at) if self._design.causal else self._write_masked_head(at)
        tied = self._sizes.says("tie_word_embeddings", self._design.tied)
        logits = self._multiply("lm_head", at, self._hidden, vocabulary, tied=tied, biased=False)
        loss = self._elementwise(Primitive.SOFTMAX, "loss", logits)
        self._add(Primitive.OUTPUT, "output", (1, self._length, vocabulary), loss)

    def _write_masked_head(self, at: int) -> int:
        at = self._multiply("head.dense", at, self._hidden, self._hidden)
        return self._normalise("head.norm", self._elementwise(Primitive.ACTIVATION, "head.activation", at))

    def _write_layer(self, name: str, at: int) -> int:
        """Write attention and the feed-forward part, each with its residual sum and norm."""
        before = self._design.causal
        read = self._normalise(f"{name}.attention_norm", at) if before else at
        attended = self._elementwise(Primitive.SUM, f"{name}.attention_sum", self._attend(name, read), at)
        if not before:
            attended = self._normalise(f"{name}.attention_norm", attended)
        read = self._normalise(f"{name}.feed_norm", attended) if before else attended
        fed = self._elementwise(Primitive.SUM, f"{name}.feed_sum", self._feed(name, read), attended)
        return fed if before else self._normalise(f"{name}.feed_norm", fed)

    def _attend(self, name: str, at: int) -> int:
        width, keys = self._heads * self._head_width, self._key_heads * self._head_width
        if self._design.fused_qkv:
            query = key = value = self._multiply(f"{name}.qkv_proj", at, self._hidden, width + 2 * keys)
        else:
            query = self._multiply(f"{name}.q_proj", at, self._hidden, width)
            key = self._multiply(f"{name}.k_proj", at, self._hidden, keys)
            value = self._multiply(f"{name}.v_proj", at, self._hidden, keys)
        of_queries: Shape = (1, self._heads, self._length, self._head_width)
        of_keys: Shape = (1, self._key_heads, self._length, self._head_width)
        if not self._design.learnt_positions:
            query = self._rotate(f"{name}.q_rotary", query, of_queries)
            key = self._rotate(f"{name}.k_rotary", key, of_keys)
        if self._fused_attention:
            at = self._add(
                Primitive.ATTENTION, f"{name}.attention", of_queries, query, key, value,
                inputs=(of_queries, of_keys, of_keys),
            )  # fmt: skip
        else:
            scores: Shape = (1, self._heads, self._length, self._length)
            turned = (1, self._heads, self._head_width, self._length)
            at = self._add(Primitive.MATRIX_PRODUCT, f"{name}.scores", scores, query, key, inputs=(of_queries, turned))
            at = self._elementwise(Primitive.PRODUCT, f"{name}.scale", at)
            at = self._elementwise(Primitive.SUM, f"{name}.mask", at)
            at = self._elementwise(Primitive.SOFTMAX, f"{name}.softmax", at)
            repeated = (1, self._heads, self._length, self._head_width)
            at = self._add(
                Primitive.MATRIX_PRODUCT, f"{name}.attention", of_queries, at, value, inputs=(scores, repeated)
            )
        return self._multiply(f"{name}.o_proj", at, width, self._hidden)

    def _rotate(self, name: str, at: int, shape: Shape) -> int:
        """Rotate positions in: two products, the halves swapped, their sum."""
        straight = self._add(Primitive.PRODUCT, f"{name}.cos", shape, at, inputs=(shape,))
        swapped = self._add(Primitive.CONCATENATION, f"{name}.swap", shape, at, inputs=(shape,))
        swapped = self._add(Primitive.PRODUCT, f"{name}.sin", shape, swapped, inputs=(shape,))
        return self._add(Primitive.SUM, f"{name}.sum", shape, straight, swapped, inputs=(shape, shape))

    def _feed(self, name: str, at: int) -> int:
        rows = self._chosen
        if self._experts > 1:
            routed = self._multiply(f"{name}.router", at, self._hidden, self._experts)
            self._elementwise(Primitive.SOFTMAX, f"{name}.router_softmax", routed)
        inner = self._multiply(f"{name}.up_proj", at, self._hidden, self._inner, rows=rows, experts=self._experts)
        if self._design.gated:
            gate = self._multiply(f"{name}.gate_proj", at, self._hidden, self._inner, rows=rows, experts=self._experts)
            gate = self._elementwise(Primitive.ACTIVATION, f"{name}.activation", gate)
            inner = self._elementwise(Primitive.PRODUCT, f"{name}.gate", gate, inner)
        else:
            inner = self._elementwise(Primitive.ACTIVATION, f"{name}.activation", inner)
        return self._multiply(
            f"{name}.down_proj", inner, self._inner, self._hidden, rows=rows, experts=self._experts
        )  # fmt: skip

    def _multiply(
        self, name: str, at: int, wide: int, out: int, *, rows: int = 1, experts: int = 1, tied: bool = False,
        biased: bool | None = None,
    ) -> int:  # fmt: skip
        """Multiply with a weight; each token does so ``rows`` times, with that many of the experts."""
        shape = (1, rows * self._length, out)
        read = (1, rows * self._length, wide)
        # The weights of experts lie one below the other: each row meets one of them.
        weight = (experts * out, wide)
        parameters = [] if tied else [Parameter(f"{name}.weight", weight)]
        if self._design.biased if biased is None else biased:
            parameters.append(Parameter(f"{name}.bias", (experts * out,)))
        done = self._add(Primitive.LINEAR, name, shape, at, inputs=(read,), weight=weight, parameters=tuple(parameters))
        if self._rank is None or name.rsplit(".", 1)[-1] not in _ADAPTED:
            return done
        low: Shape = (1, self._length, self._rank)
        adapters = [Parameter(f"{name}.lora_A", (self._rank, wide)), Parameter(f"{name}.lora_B", (out, self._rank))]
        down = self._add(Primitive.LINEAR, f"{name}.lora_A", low, at, inputs=(read,), weight=adapters[0].shape,
                         parameters=(adapters[0],), adapter=True)  # fmt: skip
        up = self._add(Primitive.LINEAR, f"{name}.lora_B", shape, down, inputs=(low,), weight=adapters[1].shape,
                       parameters=(adapters[1],), adapter=True)  # fmt: skip
        scaled = self._elementwise(Primitive.PRODUCT, f"{name}.lora_scale", up)
        return self._elementwise(Primitive.SUM, f"{name}.lora_sum", done, scaled)

    def _normalise(self, name: str, at: int) -> int:
        shape = self.operations[at].output
        parameters = [Parameter(f"{name}.weight", (self._hidden,))]
        if self._design.biased:
            parameters.append(Parameter(f"{name}.bias", (self._hidden,)))
        return self._add(Primitive.LAYER_NORM, name, shape, at, inputs=(shape,), weight=(self._hidden,),
                         parameters=tuple(parameters))  # fmt: skip

    def _look_up(self, name: str, at: int, table: Shape) -> int:
        return self._add(Primitive.LOOKUP, name, (1, self._length, table[1]), at, inputs=((1, self._length),),
                         weight=table, parameters=(Parameter(f"{name}.weight", table),))  # fmt: skip

    def _elementwise(self, primitive: Primitive, name: str, *read: int) -> int:
        shapes = tuple(self.operations[each].output for each in read)
        return self._add(primitive, name, max(shapes, key=math.prod), *read, inputs=shapes)

    def _add(
        self, primitive: Primitive, name: str, output: Shape, *read: int, inputs: tuple[Shape, ...] = (),
        weight: Shape = (), parameters: tuple[Parameter, ...] = (), adapter: bool = False,
    ) -> int:  # fmt: skip
        for shape in (output, weight):
            self._limits.check_shape(name, shape)
        # What is frozen has a weight and no parameters.
        if self._rank is not None and not adapter:
            parameters = ()
        self.operations.append(Operation(primitive, name, output, inputs, weight, parameters, source=name))
        position = len(self.operations) - 1
        self.edges.update((each, position) for each in read)
        return position

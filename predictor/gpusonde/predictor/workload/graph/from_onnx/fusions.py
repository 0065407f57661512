"""Activations and attention that ONNX writes as several nodes, put together again: they are one operation elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from gpusonde.predictor.workload.graph.from_onnx.model import DEFAULT_DOMAINS, OnnxNode

_GATES = {"Sigmoid": "SiLU", "HardSigmoid": "HardSwish"}
_SCALED = frozenset({"Div", "Mul"})


@dataclass
class Fusions:
    """Nodes that are one operation together.

    Attributes:
        activations: By the tensor that the last of the nodes writes: the operation's name and the tensor that it reads.
        attentions: By the tensor that the last of the nodes writes: queries, keys (the last two extents changed about),
            values and, if there is one, the mask.
        inner: What the other nodes write; nobody else reads it.
    """

    activations: dict[str, tuple[str, str]] = field(default_factory=dict)
    attentions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    inner: set[str] = field(default_factory=set)


def find_fusions(nodes: Sequence[OnnxNode], constants: Set[str], outputs: Set[str]) -> Fusions:
    """Find x * sigmoid(x), x * hardsigmoid(x), the error function's form of GELU, and softmax(Q K + mask) V.

    Args:
        nodes: Of the file.
        constants: Tensors that depend on no input and no weight.
        outputs: What the network returns: it is read by somebody else.
    """
    search = _Search(nodes, constants, outputs)
    found = Fusions()
    for node in nodes:
        if node.domain not in DEFAULT_DOMAINS or len(node.outputs) != 1:
            continue
        if node.operator in _GATES and len(node.inputs) == 1:
            product = search.only_reader(node.outputs[0], "Mul")
            if product is not None and sorted(product.inputs) == sorted((node.inputs[0], node.outputs[0])):
                found.activations[product.outputs[0]] = (_GATES[node.operator], node.inputs[0])
                found.inner.add(node.outputs[0])
        elif node.operator == "Erf" and len(node.inputs) == 1:
            source, *chain = search.gelu(node) or ("",)
            if chain:
                found.activations[chain[-1]] = ("Gelu", source)
                found.inner.update(chain[:-1])
        elif node.operator == "Softmax" and len(node.inputs) == 1:
            attention = search.attention(node)
            if attention is not None:
                last, operands, inner = attention
                found.attentions[last] = operands
                found.inner.update(inner)
    return found


class _Search:
    def __init__(self, nodes: Sequence[OnnxNode], constants: Set[str], outputs: Set[str]) -> None:
        self._constants = constants
        self._outputs = outputs
        self._writers = {name: node for node in nodes for name in node.outputs if name}
        self._readers: dict[str, list[OnnxNode]] = defaultdict(list)
        for node in nodes:
            for name in node.inputs:
                self._readers[name].append(node)

    def only_reader(self, name: str, operator: str) -> OnnxNode | None:
        """The node that reads a tensor, if there is one only, of this operator, with two inputs and one output."""
        readers = self._readers[name]
        if len(readers) != 1 or name in self._outputs:
            return None
        node = readers[0]
        is_it = node.operator == operator and node.domain in DEFAULT_DOMAINS
        return node if is_it and len(node.inputs) == 2 and len(node.outputs) == 1 else None

    def gelu(self, erf: OnnxNode) -> list[str] | None:
        """What GELU reads, and what its nodes write, the last one at the end: 0.5 x (1 + erf(x / sqrt(2)))."""
        scaled = self._writers.get(erf.inputs[0])
        if scaled is None or scaled.operator not in _SCALED or self.only_reader_of(erf.inputs[0]) is not erf:
            return None
        source = self._changing(scaled)
        plus_one = self.only_reader(erf.outputs[0], "Add")
        if source is None or plus_one is None or self._changing(plus_one) != erf.outputs[0]:
            return None
        chain = [source, erf.inputs[0], erf.outputs[0], plus_one.outputs[0]]
        half, once = False, False
        while not (half and once):
            product = self.only_reader(chain[-1], "Mul")
            if product is None:
                return None
            factor = product.inputs[1] if product.inputs[0] == chain[-1] else product.inputs[0]
            if factor in self._constants and not half:
                half = True
            elif factor == source and not once:
                once = True
            elif self._is_half(factor, source) and not half and not once:
                half = once = True
                chain.insert(1, factor)
            else:
                return None
            chain.append(product.outputs[0])
        return chain

    def attention(self, softmax: OnnxNode) -> tuple[str, tuple[str, ...], list[str]] | None:
        """What the product with the values writes, what attention reads, and what its other nodes write.

        Only as PyTorch's exporters write its scaled_dot_product_attention, where queries and keys both are scaled: one
        that a network spells out stays spelled out, as it does elsewhere.
        """
        weights, inner = softmax.outputs[0], [softmax.outputs[0]]
        dropout = self.only_reader_of(weights)
        if dropout is not None and dropout.operator == "Dropout" and dropout.outputs[0] not in self._outputs:
            weights = dropout.outputs[0]
            inner.append(weights)
        last = self.only_reader(weights, "MatMul")
        if last is None or last.inputs[0] != weights or last.inputs[1] not in self._writers:
            return None
        scores, reader = softmax.inputs[0], softmax
        mask: tuple[str, ...] = ()
        inner.append(scores)
        node = self._writers.get(scores)
        if node is not None and node.operator == "Add" and len(node.inputs) == 2 and self._is_only(scores, reader):
            first = self._writers.get(node.inputs[0])
            is_first = first is not None and first.operator == "MatMul"
            scores, mask = node.inputs[not is_first], (node.inputs[is_first],)
            reader, node = node, self._writers.get(scores)
            inner.append(scores)
        if node is None or node.operator != "MatMul" or len(node.inputs) != 2 or not self._is_only(scores, reader):
            return None
        queries, keys = (self._scaled(each, node) for each in node.inputs)
        if queries is None or keys is None:
            return None
        return last.outputs[0], (queries, keys, last.inputs[1], *mask), [*inner, *node.inputs]

    def _scaled(self, name: str, reader: OnnxNode) -> str | None:
        """What is scaled by a constant for this reader alone."""
        node = self._writers.get(name)
        if node is None or node.operator not in _SCALED or not self._is_only(name, reader):
            return None
        return self._changing(node)

    def _is_only(self, name: str, reader: OnnxNode) -> bool:
        return self.only_reader_of(name) is reader

    def only_reader_of(self, name: str) -> OnnxNode | None:
        """The node that reads a tensor, if there is one only."""
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 and name not in self._outputs else None

    def _is_half(self, name: str, source: str) -> bool:
        """Whether a tensor is x times a constant and read once."""
        node = self._writers.get(name)
        if node is None or node.operator not in _SCALED or self.only_reader_of(name) is None:
            return False
        return self._changing(node) == source

    def _changing(self, node: OnnxNode) -> str | None:
        """The input of a node that is no constant, if the other one is one."""
        changing = [each for each in node.inputs if each not in self._constants]
        return changing[0] if len(node.inputs) == 2 and len(changing) == 1 else None

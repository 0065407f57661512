"""Hands the nodes of an ONNX file to a graph's builder.

Activations and attention that ONNX writes as several nodes are put together again: they are one operation elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from gpusonde.errors import MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.builder import GraphBuilder
from gpusonde.predictor.workload.graph.ir import Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.onnx.model import DEFAULT_DOMAINS, OnnxModel, OnnxNode, OnnxTensor
from gpusonde.predictor.workload.graph.onnx.shapes import Shapes
from gpusonde.predictor.workload.graph.op_registry import CONSTANT, VIEW, OpType, find_onnx_op_type

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
        """Return the only node that reads a tensor, if it is of this operator, with two inputs and one output."""
        readers = self._readers[name]
        if len(readers) != 1 or name in self._outputs:
            return None
        node = readers[0]
        is_it = node.operator == operator and node.domain in DEFAULT_DOMAINS
        return node if is_it and len(node.inputs) == 2 and len(node.outputs) == 1 else None

    def gelu(self, erf: OnnxNode) -> list[str] | None:
        """Return what GELU reads, and what its nodes write, the last one at the end: 0.5 x (1 + erf(x / sqrt(2)))."""
        scaled = self._writers.get(erf.inputs[0])
        if scaled is None or scaled.operator not in _SCALED or self.only_reader_of(erf.inputs[0]) is not erf:
            return None
        source = self._find_changing(scaled)
        plus_one = self.only_reader(erf.outputs[0], "Add")
        if source is None or plus_one is None or self._find_changing(plus_one) != erf.outputs[0]:
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
        """Return what the product with the values writes, what attention reads, and what its other nodes write.

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
        queries, keys = (self._find_scaled(each, node) for each in node.inputs)
        if queries is None or keys is None:
            return None
        return last.outputs[0], (queries, keys, last.inputs[1], *mask), [*inner, *node.inputs]

    def _find_scaled(self, name: str, reader: OnnxNode) -> str | None:
        """Return what is scaled by a constant for this reader alone."""
        node = self._writers.get(name)
        if node is None or node.operator not in _SCALED or not self._is_only(name, reader):
            return None
        return self._find_changing(node)

    def _is_only(self, name: str, reader: OnnxNode) -> bool:
        return self.only_reader_of(name) is reader

    def only_reader_of(self, name: str) -> OnnxNode | None:
        """Return the node that reads a tensor, if there is one only."""
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 and name not in self._outputs else None

    def _is_half(self, name: str, source: str) -> bool:
        """Tell whether a tensor is x times a constant and read once."""
        node = self._writers.get(name)
        if node is None or node.operator not in _SCALED or self.only_reader_of(name) is None:
            return False
        return self._find_changing(node) == source

    def _find_changing(self, node: OnnxNode) -> str | None:
        """Return the input of a node that is no constant, if the other one is one."""
        changing = [each for each in node.inputs if each not in self._constants]
        return changing[0] if len(node.inputs) == 2 and len(changing) == 1 else None


_DOMAINS = DEFAULT_DOMAINS | {"com.microsoft"}
_BATCH_NORM = "BatchNormalization"
# Operators whose floating-point arguments are weights; those of others are scales, bounds and sizes.
_WITH_WEIGHTS = frozenset(
    {
        Primitive.CONVOLUTION, Primitive.TRANSPOSED_CONVOLUTION, Primitive.LINEAR, Primitive.MATRIX_PRODUCT,
        Primitive.ATTENTION, Primitive.BATCH_NORM, Primitive.LAYER_NORM, Primitive.OTHER_NORM, Primitive.RECURRENT,
        Primitive.LOOKUP, Primitive.SUM, Primitive.PRODUCT, Primitive.CONCATENATION,
    }
)  # fmt: skip


class NodeReader:
    """Decides what each node is.

    Args:
        model: The file.
    """

    def __init__(self, model: OnnxModel) -> None:
        self._model = model
        self._keys = [_make_key(node) for node in model.nodes]
        self._tensors = dict(model.tensors)
        for node, key in zip(model.nodes, self._keys, strict=True):
            if node.constant is not None and not node.inputs:
                self._tensors[key] = OnnxTensor(key, node.constant.shape, node.constant.is_float)
        self._roles = [_find_op_type(node, model, self._tensors) for node in model.nodes]
        self._trained = self._find_trained()
        self._constants = self._find_constants()
        self._recurrent = self._find_recurrent()
        self._biases, self._sums = self._find_biases()
        self._fusions = find_fusions(model.nodes, self._constants, model.outputs.keys())

    def wanted(self) -> Iterator[str]:
        """Yield the tensors whose shapes the graph needs."""
        unwanted = {*self._constants, *self._tensors, *self._fusions.inner}
        for key, op_type in zip(self._keys, self._roles, strict=True):
            if op_type is not CONSTANT and key not in unwanted:
                yield key

    def assemble(self, name: str, shapes: Shapes, limits: GraphLimits) -> WorkloadGraph:
        """Make the graph.

        Args:
            name: What the user calls the network.
            shapes: Of every tensor that is wanted.
            limits: What is accepted.

        Raises:
            MalformedGraphError: A node reads what no node before it writes, or two write the same.
            GraphLimitError: It has too many edges.
            UnsupportedGraphError: A shape is missing, or the file defines operators of its own.
        """
        builder = GraphBuilder(name, "onnx")
        for tensor in self._model.tensors.values():
            self._add_tensor(builder, tensor)
        for key, shape in shapes.inputs.items():
            builder.add_input(key, shape)
        written = {*self._model.tensors, *shapes.inputs}
        for node, key, op_type in zip(self._model.nodes, self._keys, self._roles, strict=True):
            for output in filter(None, node.outputs):
                if output in written:
                    raise MalformedGraphError(f"tensor {output!r} is written twice")
                written.add(output)
            self._add(builder, node, key, op_type, shapes.known, limits)
        for note in self._make_notes():
            builder.add_note(note)
        if shapes.was_symbolic:
            builder.add_note(f"the file leaves the batch open: shapes are those of a batch of {shapes.batch_size}")
        return builder.build(self._model.outputs, shapes.batch_size)

    def _add(
        self,
        builder: GraphBuilder,
        node: OnnxNode,
        key: str,
        op_type: OpType | None,
        shapes: Mapping[str, Shape],
        limits: GraphLimits,
    ) -> None:
        if key in self._tensors:
            self._add_tensor(builder, self._tensors[key])
            return
        if key in self._fusions.inner:
            return
        if key not in shapes and op_type is not CONSTANT and key not in self._constants:
            raise UnsupportedGraphError(f"the shape of tensor {key!r}, which {node.operator} writes, is not known")
        shape = shapes.get(key, ())
        if key in self._sums:
            builder.add_view(key, self._sums[key], shape)
            return
        if key in self._fusions.activations:
            source, read = self._fusions.activations[key]
            builder.add_operator(key, Primitive.ACTIVATION, [read], shape, source=source)
            return
        if key in self._fusions.attentions:
            queries, keys, *others = self._fusions.attentions[key]
            turned = builder.shape(keys)
            builder.add_view(f"{key} keys", keys, (*turned[:-2], *reversed(turned[-2:])))
            operands = [queries, f"{key} keys", *others]
            builder.add_operator(key, Primitive.ATTENTION, operands, shape, source="Attention")
            return
        arguments = [each or None for each in node.inputs]
        if key in self._biases:
            arguments.append(self._biases[key])
        builder.add_operator(
            key, op_type, arguments, shape, source=node.operator, groups=node.integer("group", 1),
            equation=node.texts.get("equation", "") if node.operator == "Einsum" else "",
        )  # fmt: skip
        limits.check_count("edges", builder.edge_count, limits.edges)
        for other in filter(None, node.outputs):
            if other != key:
                builder.add_view(other, key, shapes.get(other, shape))

    def _add_tensor(self, builder: GraphBuilder, tensor: OnnxTensor) -> None:
        if tensor.name not in self._trained:
            builder.add_constant(tensor.name, tensor.shape)
            return
        shape = tensor.shape
        if tensor.name in self._recurrent and len(shape) > 1:
            # Both directions of a recurrent layer lie in one tensor, as its first extent.
            shape = (shape[0] * shape[1], *shape[2:])
        builder.add_parameter(tensor.name, tensor.name, shape)

    def _find_recurrent(self) -> frozenset[str]:
        """Find the arguments of recurrent layers."""
        nodes = zip(self._model.nodes, self._roles, strict=True)
        return frozenset(each for node, op_type in nodes if op_type is Primitive.RECURRENT for each in node.inputs)

    def _find_trained(self) -> frozenset[str]:
        """Find the tensors that are weights: what a file trains it does not say."""
        used: set[str] = set()
        # From the end, so that a tensor whose view is a weight is one, too.
        for node, key, op_type in reversed(list(zip(self._model.nodes, self._keys, self._roles, strict=True))):
            if op_type is VIEW:
                used.update(node.inputs[:1] if key in used else ())
            elif op_type in _WITH_WEIGHTS or node.operator == "PRelu":
                settings = _find_settings(node, op_type)
                used.update(each for position, each in enumerate(node.inputs) if position not in settings)
        return frozenset(
            name
            for name, tensor in self._tensors.items()
            if name in used and tensor.is_float and math.prod(tensor.shape) > 1
        )

    def _find_constants(self) -> frozenset[str]:
        """Find the tensors that depend on no input and no weight."""
        found = {name for name in self._tensors if name not in self._trained}
        for node, key, op_type in zip(self._model.nodes, self._keys, self._roles, strict=True):
            if key in self._tensors:
                continue
            if op_type is CONSTANT or all(not each or each in found for each in node.inputs):
                found.update(filter(None, node.outputs))
        return frozenset(found)

    def _find_biases(self) -> tuple[dict[str, str], dict[str, str]]:
        """Find products with a weight to which a bias is added: PyTorch's linear layer of more than two dimensions.

        Returns:
            The bias by the product, and the product by the sum.
        """
        readers = Counter(each for node in self._model.nodes for each in node.inputs)
        readers.update(list(self._model.outputs))
        # What each name stands for: a weight, and its shape as it lies there.
        weights = {name: (name, self._tensors[name].shape) for name in self._trained}
        widths: dict[str, Shape] = {}
        biases: dict[str, str] = {}
        sums: dict[str, str] = {}
        for node, key in zip(self._model.nodes, self._keys, strict=True):
            if node.operator in {"Identity", "Transpose"} and len(node.inputs) == 1 and node.inputs[0] in weights:
                name, shape = weights[node.inputs[0]]
                if len(shape) <= 2:
                    weights[key] = (name, shape[::-1] if node.operator == "Transpose" else shape)
            if len(node.inputs) != 2:
                continue
            first, second = node.inputs
            if node.operator == "MatMul" and second in weights:
                widths[key] = weights[second][1][-1:]
            elif node.operator == "Add":
                for product, added in ((first, second), (second, first)):
                    bias, shape = weights.get(added, ("", ()))
                    if bias and shape == widths.get(product) and readers[product] == 1 and key not in sums:
                        biases[product], sums[key] = bias, product
        return biases, sums

    def _make_notes(self) -> Iterator[str]:
        operators = {node.operator for node in self._model.nodes}
        yield "every floating-point tensor that the ONNX file holds as a weight counts as trainable"
        if "Conv" in operators and _BATCH_NORM not in operators:
            yield (
                "no batch normalisation: an export for inference folds it into the convolutions; if the network has "
                "it, export in training mode without constant folding"
            )


def _make_key(node: OnnxNode) -> str:
    key = next(filter(None, node.outputs), None)
    if key is None:
        raise MalformedGraphError(f"a node ({node.operator}) writes nothing")
    return key


def _find_settings(node: OnnxNode, op_type: OpType | None) -> tuple[int, ...]:
    """Return the positions of the arguments that are no weights."""
    if node.operator == _BATCH_NORM:
        return (3, 4)  # mean and variance
    if op_type is Primitive.RECURRENT:
        return (4, 5, 6)  # lengths and states to begin from
    return (1,) if op_type is Primitive.LOOKUP else ()


def _find_op_type(node: OnnxNode, model: OnnxModel, tensors: Mapping[str, OnnxTensor]) -> OpType | None:
    if (node.domain, node.operator) in model.functions:
        raise UnsupportedGraphError(
            f"the file itself defines the operator {node.operator}: inline its functions first "
            "(onnx.inliner.inline_local_functions)"
        )
    if node.domain not in _DOMAINS:
        return None
    op_type = find_onnx_op_type(node.operator)
    if node.operator == "Gemm" and not node.integer("transB", 0):
        # Its weight lies as MatMul's does.
        return Primitive.MATRIX_PRODUCT
    if op_type is Primitive.LOOKUP and not (node.inputs and node.inputs[0] in tensors):
        # A part of an activation, or of a shape.
        return VIEW
    return op_type

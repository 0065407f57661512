"""Hands the nodes of an ONNX file to a graph's assembly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from gpusonde.predictor.workload.graph.assembly import GraphAssembly
from gpusonde.predictor.workload.graph.errors import MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.from_onnx.fusions import find_fusions
from gpusonde.predictor.workload.graph.from_onnx.model import DEFAULT_DOMAINS, OnnxModel, OnnxNode, OnnxTensor
from gpusonde.predictor.workload.graph.from_onnx.shapes import Shapes
from gpusonde.predictor.workload.graph.ir import Primitive, Shape, WorkloadGraph
from gpusonde.predictor.workload.graph.limits import GraphLimits
from gpusonde.predictor.workload.graph.vocabulary import CONSTANT, VIEW, Role, onnx_role

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
        self._keys = [_key(node) for node in model.nodes]
        self._tensors = dict(model.tensors)
        for node, key in zip(model.nodes, self._keys, strict=True):
            if node.constant is not None and not node.inputs:
                self._tensors[key] = OnnxTensor(key, node.constant.shape, node.constant.is_float)
        self._roles = [_role(node, model, self._tensors) for node in model.nodes]
        self._trained = self._find_trained()
        self._constants = self._find_constants()
        self._recurrent = self._find_recurrent()
        self._biases, self._sums = self._find_biases()
        self._fusions = find_fusions(model.nodes, self._constants, model.outputs.keys())

    def wanted(self) -> Iterator[str]:
        """Yield the tensors whose shapes the graph needs."""
        unwanted = {*self._constants, *self._tensors, *self._fusions.inner}
        for key, role in zip(self._keys, self._roles, strict=True):
            if role is not CONSTANT and key not in unwanted:
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
        assembly = GraphAssembly(name, "onnx")
        for tensor in self._model.tensors.values():
            self._add_tensor(assembly, tensor)
        for key, shape in shapes.inputs.items():
            assembly.add_input(key, shape)
        written = {*self._model.tensors, *shapes.inputs}
        for node, key, role in zip(self._model.nodes, self._keys, self._roles, strict=True):
            for output in filter(None, node.outputs):
                if output in written:
                    raise MalformedGraphError(f"tensor {output!r} is written twice")
                written.add(output)
            self._add(assembly, node, key, role, shapes.known, limits)
        for note in self._notes():
            assembly.add_note(note)
        if shapes.was_symbolic:
            assembly.add_note(f"the file leaves the batch open: shapes are those of a batch of {shapes.batch_size}")
        return assembly.build(self._model.outputs, shapes.batch_size)

    def _add(
        self,
        assembly: GraphAssembly,
        node: OnnxNode,
        key: str,
        role: Role | None,
        shapes: Mapping[str, Shape],
        limits: GraphLimits,
    ) -> None:
        if key in self._tensors:
            self._add_tensor(assembly, self._tensors[key])
            return
        if key in self._fusions.inner:
            return
        if key not in shapes and role is not CONSTANT and key not in self._constants:
            raise UnsupportedGraphError(f"the shape of tensor {key!r}, which {node.operator} writes, is not known")
        shape = shapes.get(key, ())
        if key in self._sums:
            assembly.add_view(key, self._sums[key], shape)
            return
        if key in self._fusions.activations:
            source, read = self._fusions.activations[key]
            assembly.add_operator(key, Primitive.ACTIVATION, [read], shape, source=source)
            return
        if key in self._fusions.attentions:
            queries, keys, *others = self._fusions.attentions[key]
            turned = assembly.shape(keys)
            assembly.add_view(f"{key} keys", keys, (*turned[:-2], *reversed(turned[-2:])))
            operands = [queries, f"{key} keys", *others]
            assembly.add_operator(key, Primitive.ATTENTION, operands, shape, source="Attention")
            return
        arguments = [each or None for each in node.inputs]
        if key in self._biases:
            arguments.append(self._biases[key])
        assembly.add_operator(
            key, role, arguments, shape, source=node.operator, groups=node.integer("group", 1),
            equation=node.texts.get("equation", "") if node.operator == "Einsum" else "",
        )  # fmt: skip
        limits.check_count("edges", assembly.edge_count, limits.edges)
        for other in filter(None, node.outputs):
            if other != key:
                assembly.add_view(other, key, shapes.get(other, shape))

    def _add_tensor(self, assembly: GraphAssembly, tensor: OnnxTensor) -> None:
        if tensor.name not in self._trained:
            assembly.add_constant(tensor.name, tensor.shape)
            return
        shape = tensor.shape
        if tensor.name in self._recurrent and len(shape) > 1:
            # Both directions of a recurrent layer lie in one tensor, as its first extent.
            shape = (shape[0] * shape[1], *shape[2:])
        assembly.add_parameter(tensor.name, tensor.name, shape)

    def _find_recurrent(self) -> frozenset[str]:
        """Arguments of recurrent layers."""
        nodes = zip(self._model.nodes, self._roles, strict=True)
        return frozenset(each for node, role in nodes if role is Primitive.RECURRENT for each in node.inputs)

    def _find_trained(self) -> frozenset[str]:
        """Tensors that are weights: what a file trains it does not say."""
        used: set[str] = set()
        # From the end, so that a tensor whose view is a weight is one, too.
        for node, key, role in reversed(list(zip(self._model.nodes, self._keys, self._roles, strict=True))):
            if role is VIEW:
                used.update(node.inputs[:1] if key in used else ())
            elif role in _WITH_WEIGHTS or node.operator == "PRelu":
                settings = _settings(node, role)
                used.update(each for position, each in enumerate(node.inputs) if position not in settings)
        return frozenset(
            name
            for name, tensor in self._tensors.items()
            if name in used and tensor.is_float and math.prod(tensor.shape) > 1
        )

    def _find_constants(self) -> frozenset[str]:
        """Tensors that depend on no input and no weight."""
        found = {name for name in self._tensors if name not in self._trained}
        for node, key, role in zip(self._model.nodes, self._keys, self._roles, strict=True):
            if key in self._tensors:
                continue
            if role is CONSTANT or all(not each or each in found for each in node.inputs):
                found.update(filter(None, node.outputs))
        return frozenset(found)

    def _find_biases(self) -> tuple[dict[str, str], dict[str, str]]:
        """Products with a weight to which a bias is added: PyTorch's linear layer of more than two dimensions.

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

    def _notes(self) -> Iterator[str]:
        operators = {node.operator for node in self._model.nodes}
        yield "every floating-point tensor that the ONNX file holds as a weight counts as trainable"
        if "Conv" in operators and _BATCH_NORM not in operators:
            yield (
                "no batch normalisation: an export for inference folds it into the convolutions; if the network has "
                "it, export in training mode without constant folding"
            )


def _key(node: OnnxNode) -> str:
    key = next(filter(None, node.outputs), None)
    if key is None:
        raise MalformedGraphError(f"a node ({node.operator}) writes nothing")
    return key


def _settings(node: OnnxNode, role: Role | None) -> tuple[int, ...]:
    """Positions of the arguments that are no weights."""
    if node.operator == _BATCH_NORM:
        return (3, 4)  # mean and variance
    if role is Primitive.RECURRENT:
        return (4, 5, 6)  # lengths and states to begin from
    return (1,) if role is Primitive.LOOKUP else ()


def _role(node: OnnxNode, model: OnnxModel, tensors: Mapping[str, OnnxTensor]) -> Role | None:
    if (node.domain, node.operator) in model.functions:
        raise UnsupportedGraphError(
            f"the file itself defines the operator {node.operator}: inline its functions first "
            "(onnx.inliner.inline_local_functions)"
        )
    if node.domain not in _DOMAINS:
        return None
    role = onnx_role(node.operator)
    if node.operator == "Gemm" and not node.integer("transB", 0):
        # Its weight lies as MatMul's does.
        return Primitive.MATRIX_PRODUCT
    if role is Primitive.LOOKUP and not (node.inputs and node.inputs[0] in tensors):
        # A part of an activation, or of a shape.
        return VIEW
    return role

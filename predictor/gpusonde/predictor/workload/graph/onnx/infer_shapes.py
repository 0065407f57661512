"""What a confined child does with an ONNX file without weights: returns it with the shapes that onnx infers.

Node by node, so that sizes that are computed from shapes (as exporters write them) are known where a later node needs
them: ``onnx.shape_inference.infer_shapes`` loses track of those.
"""

from __future__ import annotations

import ctypes
import math
import resource
import signal
import time
from collections.abc import Iterable
from typing import Any

import onnx
import onnx.reference
import onnx.shape_inference
from onnx import numpy_helper

from gpusonde.service.child import Answer

_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
# Values that say how large something is to be, and operators that compute such values.
_MOST_ELEMENTS = 64
_COMPUTED = frozenset(
    {
        "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand",
        "Floor", "Gather", "GatherElements", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
        "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd",
        "ReduceSum", "Reshape", "ScatterElements", "ScatterND", "Size", "Slice", "Split", "Squeeze", "Sub",
        "Tile", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip


def _deny(limit: int, most: int) -> None:
    _, hard = resource.getrlimit(limit)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (most, most))


def _shut_off() -> None:
    """Leave the network, where that is permitted, and every right that a program could be started with."""
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if library.unshare(_CLONE_NEWNET) != 0:
        library.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


class _Inference:
    """Types and small values of a model's tensors, as far as they are known."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._opsets = {each.domain: each.version for each in model.opset_import}
        self.types = {each.name: each.type for each in (*model.graph.value_info, *model.graph.input)}
        self._values: dict[str, Any] = {}
        for tensor in model.graph.initializer:
            self._add_tensor(tensor.name, tensor)

    def run(self) -> None:
        """Visit every node."""
        for node in self._model.graph.node:
            for name, kind in self._infer(node).items():
                if _is_complete(kind) or name not in self.types:
                    self.types[name] = kind
            self._compute(node)

    def _add_tensor(self, name: str, tensor: Any) -> None:
        self.types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        if _count(tensor.dims) <= _MOST_ELEMENTS:
            try:
                self._values[name] = numpy_helper.to_array(tensor)
            except (ValueError, TypeError):
                self._values.pop(name, None)

    def _add_constant(self, node: Any) -> None:
        for attribute in node.attribute:
            if attribute.name == "value":
                self._add_tensor(node.output[0], attribute.t)
            elif attribute.name in ("value_int", "value_ints"):
                # PyTorch's newer exporter writes sizes so, unless it optimises.
                extents = [len(attribute.ints)] if attribute.name == "value_ints" else []
                values = attribute.ints or [attribute.i]
                if len(values) <= _MOST_ELEMENTS:
                    kind = onnx.TensorProto.INT64
                    self._add_tensor(node.output[0], onnx.helper.make_tensor(node.output[0], kind, extents, values))

    def _infer(self, node: Any) -> dict[str, Any]:
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain)
            return onnx.shape_inference.infer_node_outputs(
                schema, node, {each: self.types[each] for each in node.input if each},
                {each: numpy_helper.from_array(self._values[each]) for each in node.input if each in self._values},
                opset_imports=list(self._model.opset_import), ir_version=self._model.ir_version,
            )  # fmt: skip
        except Exception:  # an operator that onnx does not know, or inputs that it makes no sense of
            return {}

    def _compute(self, node: Any) -> None:
        if len(node.output) < 1:
            return
        if node.op_type == "Shape":
            self._take_shape(node)
        elif node.op_type == "Constant":
            self._add_constant(node)
        elif (
            node.op_type in _COMPUTED
            and all(not each or each in self._values for each in node.input)
            and all(_is_small(self.types.get(each)) for each in node.output)
        ):
            self._evaluate(node)

    def _take_shape(self, node: Any) -> None:
        kind = self.types.get(node.input[0])
        if kind is not None and _is_complete(kind):
            settings = {each.name: each.i for each in node.attribute}
            extents = [each.dim_value for each in kind.tensor_type.shape.dim]
            part = extents[settings.get("start", 0) : settings.get("end", len(extents))]
            self._values[node.output[0]] = onnx.numpy_helper.to_array(
                onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [len(part)], part)
            )

    def _evaluate(self, node: Any) -> None:
        given = {each: self._values[each] for each in node.input if each}
        try:
            computed = onnx.reference.ReferenceEvaluator(node, opsets=self._opsets).run(None, given)
        except Exception:  # then nobody knows the value
            return
        for name, value in zip(node.output, computed, strict=False):
            if getattr(value, "size", _MOST_ELEMENTS + 1) <= _MOST_ELEMENTS:
                self._values[name] = value


def _count(extents: Iterable[int]) -> int:
    count = 1
    for each in extents:
        count *= each
    return count


def _is_complete(kind: Any) -> bool:
    tensor = kind.tensor_type
    return tensor.HasField("shape") and all(each.HasField("dim_value") for each in tensor.shape.dim)


def _is_small(kind: Any) -> bool:
    """Tell whether it is sure that computing it allocates next to nothing."""
    return (
        kind is not None
        and _is_complete(kind)
        and 0 <= _count(each.dim_value for each in kind.tensor_type.shape.dim) <= _MOST_ELEMENTS
    )


def make_answer() -> Answer:
    """Return what answers in the child: an ONNX file without weights in, one with the shapes that onnx infers out."""
    _shut_off()
    return _infer_shapes


def _infer_shapes(data: bytes, limit_s: float) -> bytes:
    # What the file may make of the native code in onnx ends with this process.
    _deny(resource.RLIMIT_CPU, math.ceil(limit_s) + math.ceil(time.process_time()))
    _deny(resource.RLIMIT_FSIZE, 0)
    _deny(resource.RLIMIT_NPROC, 0)
    _deny(resource.RLIMIT_CORE, 0)
    model = onnx.load_model_from_string(data)
    inference = _Inference(model)
    inference.run()
    graph = model.graph
    named = {each.name: each for each in graph.output}
    del graph.value_info[:]
    for node in graph.node:
        for name in node.output:
            if name in inference.types:
                value = named.get(name) or graph.value_info.add(name=name)
                value.type.CopyFrom(inference.types[name])
    return bytes(model.SerializeToString())

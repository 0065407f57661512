import pytest

from gpusonde.predictor.workload.graph import Primitive
from gpusonde.predictor.workload.graph.op_registry import (
    CONSTANT,
    TORCH_MODULES,
    VIEW,
    find_onnx_op_type,
    find_torch_op_type,
    is_in_place,
    strip_torch_name,
)


@pytest.mark.parametrize(
    ("operator", "op_type"),
    [
        ("torch.ops.aten.conv2d.default", Primitive.CONVOLUTION),
        ("aten::relu_", Primitive.ACTIVATION),
        ("aten.add_.Tensor", Primitive.SUM),
        ("__and__", Primitive.ACTIVATION),
        ("_softmax", Primitive.SOFTMAX),
        ("flatten", VIEW),
        ("new_zeros", CONSTANT),
        ("no_such_operator", None),
        ("torchvision::conv2d", None),
        ("torch.ops.mine.conv2d.default", None),
    ],
)
def test_names_of_torch_are_recognised_in_every_spelling(operator, op_type):
    assert find_torch_op_type(operator) == op_type


def test_every_module_is_an_operator():
    assert [name for name, operator in TORCH_MODULES.items() if find_torch_op_type(operator) is None] == []


@pytest.mark.parametrize(("operator", "expected"), [("aten.add_.Tensor", True), ("add", False), ("__add__", False)])
def test_operators_that_overwrite_are_told_by_their_name(operator, expected):
    assert is_in_place(operator) is expected
    assert strip_torch_name(operator) == "add"


@pytest.mark.parametrize(
    ("operator", "op_type"), [("Conv", Primitive.CONVOLUTION), ("Transpose", VIEW), ("Shape", CONSTANT), ("conv", None)]
)
def test_names_of_onnx_are_recognised(operator, op_type):
    assert find_onnx_op_type(operator) == op_type


def test_the_same_work_by_another_librarys_name_is_known():
    assert find_torch_op_type("transformers::grouped_mm_fallback") is Primitive.MATRIX_PRODUCT
    assert find_torch_op_type("transformers::relu") is None

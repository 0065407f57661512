"""Which primitive an operator is: names of PyTorch (aten, functions, methods, modules) and of ONNX.

An operator is a ``Primitive``, or it only passes its first argument on (``VIEW``: reshapes, slices, copies, padding,
and dropout, which a GPU hardly notices), or what it makes depends on no data (``CONSTANT``: sizes, ranges, zeros).
Names that are in no table are unknown: None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from gpusonde.predictor.workload.graph.ir import Primitive


class NoOp(Enum):
    """Operators that are no operation of a graph."""

    VIEW = "view"
    CONSTANT = "constant"


VIEW: Final = NoOp.VIEW
CONSTANT: Final = NoOp.CONSTANT
OpType = Primitive | NoOp


def _make_table(groups: Mapping[OpType, str]) -> dict[str, OpType]:
    return {name: op_type for op_type, names in groups.items() for name in names.split()}


# Without the trailing "_" of the variants that work in place.
_TORCH: Final = _make_table(
    {
        Primitive.CONVOLUTION: "conv1d conv2d conv3d convolution _convolution mkldnn_convolution cudnn_convolution",
        Primitive.TRANSPOSED_CONVOLUTION: "conv_transpose1d conv_transpose2d conv_transpose3d",
        Primitive.LINEAR: "linear",
        Primitive.MATRIX_PRODUCT: (
            "matmul mm bmm addmm addbmm baddbmm mv dot vdot inner einsum rmatmul addmv _grouped_mm grouped_mm"
        ),
        Primitive.ATTENTION: (
            "scaled_dot_product_attention _scaled_dot_product_flash_attention"
            " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention"
            " _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math"
        ),
        Primitive.BATCH_NORM: (
            "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training"
            " _native_batch_norm_legit_functional cudnn_batch_norm batch_norm_with_update _batch_norm_with_update"
            " _batch_norm_impl_index _batch_norm_no_update"
        ),
        Primitive.LAYER_NORM: "layer_norm native_layer_norm rms_norm _fused_rms_norm",
        Primitive.OTHER_NORM: (
            "group_norm native_group_norm instance_norm local_response_norm normalize renorm _weight_norm"
            " _weight_norm_interface"
        ),
        Primitive.ACTIVATION: (
            "relu relu6 gelu silu mish hardswish hardsigmoid hardtanh sigmoid tanh leaky_relu elu selu celu prelu"
            " rrelu _prelu_kernel softplus softsign tanhshrink softshrink hardshrink threshold logsigmoid"
            " log_sigmoid_forward glu clamp clamp_min clamp_max clip exp exp2 expm1 log log2 log10 log1p pow rpow"
            " square sqrt rsqrt erf erfc abs neg sign sin cos tan asin acos atan sinh cosh reciprocal floor ceil"
            " round trunc frac where masked_fill cumsum cumprod bernoulli logical_not bitwise_not invert isnan isinf"
            " nan_to_num sgn eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"
            " and or xor fake_quantize tril triu polar"
            " log_sigmoid sinc logit deg2rad rad2deg lgamma digamma mvlgamma isfinite signbit positive angle erfinv"
            " special_erfinv special_expit special_log_ndtr special_ndtr special_i0 special_i0e special_gammaln"
            " special_entr cummax cummin logcumsumexp dequantize quantize_per_tensor bucketize"
        ),
        Primitive.SUM: (
            "add sub rsub radd iadd isub subtract lerp addcmul addcdiv maximum minimum atan2 fmax fmin hypot"
            " logaddexp logaddexp2 addr dist diff"
        ),
        Primitive.PRODUCT: (
            "mul div rmul imul truediv itruediv rtruediv floordiv floor_divide remainder fmod mod multiply divide outer"
            " ger kron xlogy ldexp copysign float_power cross linalg_cross heaviside nextafter"
        ),
        Primitive.CONCATENATION: "cat concat concatenate stack hstack vstack dstack cartesian_prod block_diag",
        Primitive.MAX_POOL: (
            "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices"
            " max_pool1d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
            " fractional_max_pool2d amax amin max min aminmax"
        ),
        Primitive.AVERAGE_POOL: (
            "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
            " _adaptive_avg_pool2d _adaptive_avg_pool3d lp_pool1d lp_pool2d"
        ),
        Primitive.GLOBAL_AVERAGE_POOL: (
            "mean sum var std var_mean logsumexp norm linalg_vector_norm prod nansum nanmean std_mean any all"
            " count_nonzero cosine_similarity trapezoid trapz trace"
        ),
        Primitive.SOFTMAX: "softmax _softmax _safe_softmax log_softmax _log_softmax softmin",
        Primitive.LOOKUP: "embedding embedding_bag index index_select gather take take_along_dim",
        Primitive.RECURRENT: "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
        Primitive.INTERPOLATION: (
            "interpolate upsample upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d"
            " upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact2d"
            " _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sample grid_sampler grid_sampler_2d affine_grid"
        ),
        Primitive.OTHER: (
            "bilinear argmax argmin topk sort argsort cdist fold im2col col2im unfold_windows fft_rfft fft_irfft"
            " fft_fft fft_ifft fft_rfft2 fft_irfft2 cross_entropy_loss nll_loss nll_loss_nd mse_loss scatter"
            " scatter_add index_put index_add masked_scatter linalg_qr linalg_inv bincount histc one_hot"
            " searchsorted median nanmedian mode quantile nanquantile kthvalue msort smooth_l1_loss huber_loss"
            " l1_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss"
            " cosine_embedding_loss margin_ranking_loss hinge_embedding_loss multi_margin_loss"
            " multilabel_margin_loss triplet_margin_loss nll_loss2d _ctc_loss ctc_loss stft istft fft_fft2"
            " fft_ifft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_hfft fft_ihfft index_copy index_fill"
            " scatter_reduce index_reduce put _index_put_impl linalg_solve linalg_svd linalg_eigh linalg_cholesky"
            " linalg_det linalg_slogdet linalg_matrix_exp linalg_solve_triangular cholesky inverse matrix_exp"
            " linalg_matrix_power linalg_pinv"
        ),
        VIEW: (
            "view _unsafe_view _reshape_alias reshape reshape_as flatten unflatten permute transpose t swapaxes"
            " swapdims mT T movedim moveaxis adjoint contiguous clone detach alias expand expand_as broadcast_to"
            " unsqueeze squeeze getitem getattr slice select split split_with_sizes chunk tensor_split unbind"
            " unsafe_split unsafe_chunk dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout"
            " feature_alpha_dropout native_dropout stochastic_depth to _to_copy type_as type float half bfloat16"
            " double long int bool identity lift_fresh_copy lift_fresh lift pad constant_pad_nd reflection_pad1d"
            " reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d circular_pad"
            " zero_pad2d roll unfold as_strided narrow repeat tile repeat_interleave view_as view_as_real"
            " view_as_complex real imag channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle flip"
            " rot90 copy slice_scatter select_scatter diagonal cuda cpu requires_grad set_ ravel atleast_1d"
            " atleast_2d meshgrid atleast_3d broadcast_tensors numpy_T matrix_H conj conj_physical resolve_conj"
            " resolve_neg diag diag_embed hsplit vsplit dsplit fft_fftshift fft_ifftshift"
            " wrap_with_set_grad_enabled _assert_tensor_metadata tuple list"
        ),
        CONSTANT: (
            "size sym_size sym_numel numel sym_stride stride dim ndimension shape len arange linspace zeros ones"
            " full empty rand randn randint randperm eye tensor scalar_tensor new_zeros new_ones new_empty new_full"
            " new_tensor zeros_like ones_like full_like empty_like rand_like randn_like fill zero tril_indices"
            " triu_indices _assert _assert_async _assert_scalar sym_constrain_range sym_constrain_range_for_size"
            " is_floating_point get_device device dtype"
        ),
    }
)

# The same work as an operator of PyTorch, by another name.
_OTHER_LIBRARIES: Final = {"transformers::grouped_mm_fallback": "aten::_grouped_mm"}

# What is added comes first among their arguments, then the two matrices.
PRODUCTS_WITH_A_SUM: Final = frozenset({"addmm", "addbmm", "baddbmm", "addmv"})

# Modules of torch.nn that are one operator: its name. Those that are several operations are not here.
TORCH_MODULES: Final[Mapping[str, str]] = {
    module: operator
    for operator, modules in {
        "conv1d": "Conv1d",
        "conv2d": "Conv2d",
        "conv3d": "Conv3d",
        "conv_transpose1d": "ConvTranspose1d",
        "conv_transpose2d": "ConvTranspose2d",
        "conv_transpose3d": "ConvTranspose3d",
        "linear": "Linear NonDynamicallyQuantizableLinear",
        "batch_norm": "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm",
        "layer_norm": "LayerNorm",
        "rms_norm": "RMSNorm",
        "group_norm": "GroupNorm",
        "instance_norm": "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
        "local_response_norm": "LocalResponseNorm",
        "relu": "ReLU",
        "relu6": "ReLU6",
        "gelu": "GELU",
        "silu": "SiLU",
        "mish": "Mish",
        "hardswish": "Hardswish",
        "hardsigmoid": "Hardsigmoid",
        "hardtanh": "Hardtanh",
        "sigmoid": "Sigmoid",
        "log_sigmoid_forward": "LogSigmoid",
        "tanh": "Tanh",
        "leaky_relu": "LeakyReLU",
        "elu": "ELU",
        "selu": "SELU",
        "celu": "CELU",
        "glu": "GLU",
        "prelu": "PReLU",
        "rrelu": "RReLU",
        "softplus": "Softplus",
        "softsign": "Softsign",
        "threshold": "Threshold",
        "max_pool1d": "MaxPool1d",
        "max_pool2d": "MaxPool2d",
        "max_pool3d": "MaxPool3d",
        "avg_pool1d": "AvgPool1d",
        "avg_pool2d": "AvgPool2d",
        "avg_pool3d": "AvgPool3d",
        "adaptive_avg_pool1d": "AdaptiveAvgPool1d",
        "adaptive_avg_pool2d": "AdaptiveAvgPool2d",
        "adaptive_avg_pool3d": "AdaptiveAvgPool3d",
        "adaptive_max_pool1d": "AdaptiveMaxPool1d",
        "adaptive_max_pool2d": "AdaptiveMaxPool2d",
        "adaptive_max_pool3d": "AdaptiveMaxPool3d",
        "softmax": "Softmax Softmax2d Softmin",
        "log_softmax": "LogSoftmax",
        "embedding": "Embedding",
        "embedding_bag": "EmbeddingBag",
        "lstm": "LSTM",
        "gru": "GRU",
        "rnn_tanh": "RNN",
        "lstm_cell": "LSTMCell",
        "gru_cell": "GRUCell",
        "rnn_tanh_cell": "RNNCell",
        "upsample": "Upsample UpsamplingBilinear2d UpsamplingNearest2d",
        "dropout": "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout",
        "identity": "Identity",
        "flatten": "Flatten",
        "unflatten": "Unflatten",
        "pixel_shuffle": "PixelShuffle",
        "pixel_unshuffle": "PixelUnshuffle",
        "channel_shuffle": "ChannelShuffle",
        "pad": (
            "ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d"
            " ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d CircularPad1d"
            " CircularPad2d CircularPad3d"
        ),
    }.items()
    for module in modules.split()
}

_ONNX: Final = _make_table(
    {
        Primitive.CONVOLUTION: "Conv",
        Primitive.TRANSPOSED_CONVOLUTION: "ConvTranspose",
        Primitive.LINEAR: "Gemm",
        Primitive.MATRIX_PRODUCT: "MatMul Einsum",
        Primitive.ATTENTION: "Attention MultiHeadAttention",
        Primitive.BATCH_NORM: "BatchNormalization",
        Primitive.LAYER_NORM: "LayerNormalization RMSNormalization SimplifiedLayerNormalization",
        Primitive.OTHER_NORM: "GroupNormalization InstanceNormalization LRN LpNormalization MeanVarianceNormalization",
        Primitive.ACTIVATION: (
            "Relu Clip Sigmoid HardSwish HardSigmoid Gelu FastGelu Erf Tanh LeakyRelu Elu Selu Celu PRelu Softplus"
            " Softsign ThresholdedRelu Mish Swish Pow Sqrt Exp Log Abs Neg Sign Reciprocal Floor Ceil Round Sin Cos"
            " Tan Asin Acos Atan Sinh Cosh Where Not IsNaN IsInf Equal Less LessOrEqual Greater GreaterOrEqual And"
            " Or Xor CumSum Trilu"
        ),
        Primitive.SUM: "Add Sub Sum Max Min Mean",
        Primitive.PRODUCT: "Mul Div Mod",
        Primitive.CONCATENATION: "Concat",
        Primitive.MAX_POOL: "MaxPool GlobalMaxPool ReduceMax ReduceMin",
        Primitive.AVERAGE_POOL: "AveragePool LpPool",
        Primitive.GLOBAL_AVERAGE_POOL: (
            "GlobalAveragePool GlobalLpPool ReduceMean ReduceSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp"
            " ReduceProd ReduceSumSquare"
        ),
        Primitive.SOFTMAX: "Softmax LogSoftmax Hardmax",
        Primitive.LOOKUP: "Gather GatherElements GatherND",
        Primitive.RECURRENT: "LSTM GRU RNN",
        Primitive.INTERPOLATION: "Resize Upsample GridSample AffineGrid",
        Primitive.OTHER: "ArgMax ArgMin TopK DFT STFT ScatterND ScatterElements Scatter OneHot NonZero Det",
        VIEW: (
            "Reshape Flatten Transpose Squeeze Unsqueeze Slice Split Identity Dropout Cast CastLike Pad Expand Tile"
            " DepthToSpace SpaceToDepth CenterCropPad ReverseSequence"
        ),
        CONSTANT: (
            "Shape Size Constant ConstantOfShape Range EyeLike RandomNormal RandomUniform RandomNormalLike"
            " RandomUniformLike"
        ),
    }
)


def find_torch_op_type(operator: str) -> OpType | None:
    """Return what an operator of PyTorch is.

    Args:
        operator: Name of an aten operator, a function or a method, such as "aten.conv2d.default", "aten::relu_",
            "conv2d" or "__and__".

    Returns:
        None for an unknown one; operators of other libraries may be anything, whatever they are called.
    """
    operator = _OTHER_LIBRARIES.get(operator, operator)
    library, _, rest = operator.rpartition("::")
    if rest and library not in {"", "aten"}:
        return None
    return _TORCH.get(strip_torch_name(operator))


def strip_torch_name(operator: str) -> str:
    """Return an operator's bare name: "add" of "torch.ops.aten.add_.Tensor", "aten::add.out" and "__add__".

    Args:
        operator: As for ``torch_role``.
    """
    name = operator.rpartition("::")[2]
    if name.startswith("torch.ops."):
        name = name[len("torch.ops.") :]
    if name.startswith("aten."):
        name = name[len("aten.") :]
    name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2]
    return name.rstrip("_") or name


def is_in_place(operator: str) -> bool:
    """Tell whether an operator of PyTorch overwrites its first argument: its name ends with "_".

    Args:
        operator: As for ``torch_role``.
    """
    name = operator.rpartition("::")[2].removeprefix("torch.ops.").removeprefix("aten.").partition(".")[0]
    return name.endswith("_") and not name.endswith("__")


def find_onnx_op_type(operator: str) -> OpType | None:
    """Return what an operator of ONNX's default domain is.

    Args:
        operator: Its type, such as "Conv".

    Returns:
        None for an unknown one.
    """
    return _ONNX.get(operator)


def operators(op_types: Iterable[OpType]) -> frozenset[str]:
    """Return the names of PyTorch's operators that are one of these, without the trailing "_".

    Args:
        op_types: Primitives, ``VIEW`` or ``CONSTANT``.
    """
    wanted = set(op_types)
    return frozenset(name for name, op_type in _TORCH.items() if op_type in wanted)

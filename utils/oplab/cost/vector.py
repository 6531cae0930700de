"""FLOPs of everything that is not a matrix product: one per arithmetic operation of the definition.

exp, log, tanh, erf, sqrt and the like are one operation, and so are maximum and minimum. Moving,
converting, comparing, selecting and drawing random numbers are none. `PER_OUTPUT`, `PER_INPUT` and
`NOTHING` are the table; docs/costs.md is printed from it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from oplab.cost.matrix import convolution_flops
from oplab.cost.registry import Flops, Formula, Shape, formula

aten = torch.ops.aten

# FLOPs per element of the output, by operator; in-place and out= forms are the same.
PER_OUTPUT: dict[str, int] = {
    **dict.fromkeys(
        """
            add sub rsub mul div neg abs reciprocal sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh
            cosh tanh asin acos atan asinh acosh atanh atan2 erf erfc erfinv lgamma digamma floor ceil round
            trunc frac sgn sign pow square maximum minimum fmax fmin clamp_min clamp_max relu remainder fmod
            floor_divide hypot threshold threshold_backward special_erf i0
        """.split(),
        1,
    ),
    "clamp": 2, "hardtanh": 2, "relu6": 2, "rsqrt": 2, "leaky_relu": 2, "xlogy": 2, "addcmul": 3, "addcdiv": 3,
    "lerp": 3, "elu": 3, "softplus": 3, "hardsigmoid": 4, "hardswish": 5, "sigmoid": 4, "logit": 3, "silu": 5,
    "mish": 6, "celu": 4, "logaddexp": 5, "heaviside": 0, "prelu": 2, "_prelu_kernel": 2, "log_sigmoid_forward": 4,
    "native_dropout": 2, "dropout": 2, "_fused_dropout": 2, "native_dropout_backward": 2, "cumsum": 1, "cumprod": 1,
    "sigmoid_backward": 3, "tanh_backward": 3, "silu_backward": 9, "leaky_relu_backward": 1, "elu_backward": 3,
    "hardtanh_backward": 0, "hardswish_backward": 4, "hardsigmoid_backward": 1, "softplus_backward": 4,
    "mish_backward": 11, "log_sigmoid_backward": 5, "logit_backward": 3, "mse_loss_backward": 3,
    "_softmax_backward_data": 4, "_log_softmax_backward_data": 4, "masked_softmax_backward": 4,
    "smooth_l1_loss_backward": 3, "huber_loss_backward": 3, "binary_cross_entropy_backward": 5, "glu_backward": 9,
    "upsample_bilinear2d": 8, "upsample_bicubic2d": 36, "upsample_linear1d": 3, "grid_sampler_2d": 12,
    "addr_": 2, "_prelu_kernel_backward": 2, "deg2rad": 1, "rad2deg": 1, "nan_to_num": 0, "copysign": 0,
}  # fmt: skip

# FLOPs per element of the first input: reductions and normalisations.
PER_INPUT: dict[str, int] = {
    **dict.fromkeys(
        """
            sum mean prod nansum max min amax amin cummax cummin logcumsumexp trace max_pool1d
            avg_pool2d_backward adaptive_avg_pool2d_backward _adaptive_avg_pool2d_backward
            embedding_dense_backward adaptive_avg_pool2d _adaptive_avg_pool2d _adaptive_avg_pool3d
            max_pool2d_with_indices_backward nll_loss_forward nll_loss2d_forward _embedding_bag_dense_backward
            upsample_bilinear2d_backward
        """.split(),
        1,
    ),
    "aminmax": 2, "var": 4, "std": 4, "var_mean": 4, "std_mean": 4, "norm": 2, "linalg_vector_norm": 2,
    "logsumexp": 4, "_softmax": 5, "softmax": 5, "_log_softmax": 5, "_safe_softmax": 5,
    "native_layer_norm": 7, "native_group_norm": 7, "_fused_rms_norm": 4, "native_batch_norm": 8,
    "cudnn_batch_norm": 8, "miopen_batch_norm": 8, "_native_batch_norm_legit": 8, "_batch_norm_with_update": 8,
    "_native_batch_norm_legit_functional": 8, "_native_batch_norm_legit_no_training": 4, "_batch_norm_no_update": 4,
    "native_layer_norm_backward": 13, "native_group_norm_backward": 13, "_fused_rms_norm_backward": 11,
    "native_batch_norm_backward": 11, "cudnn_batch_norm_backward": 11, "miopen_batch_norm_backward": 11,
    "batch_norm_backward": 11, "mse_loss": 3, "l1_loss": 3, "smooth_l1_loss": 5, "huber_loss": 5,
    "binary_cross_entropy": 7, "binary_cross_entropy_with_logits": 8, "kl_div": 4, "glu": 3,
    "_thnn_fused_lstm_cell": 8, "_thnn_fused_gru_cell": 8, "_embedding_bag": 0, "_embedding_bag_forward_only": 0,
}  # fmt: skip

# Known to compute nothing: moving, converting, comparing, selecting, counting, drawing.
NOTHING = set(
    """
        copy_ copy _to_copy clone fill fill_ zero zero_ zeros zeros_like ones ones_like full full_like new_full
        new_zeros new_ones empty empty_like empty_strided new_empty new_empty_strided empty_permuted arange
        linspace eye cat stack index index_select index_put index_copy gather take take_along_dim embedding
        where masked_fill masked_select masked_scatter eq ne lt le gt ge equal logical_and logical_or
        logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift
        bitwise_right_shift __and__ __or__ __lshift__ __rshift__ isnan isinf isfinite signbit argmax argmin sort
        topk kthvalue median mode searchsorted bucketize nonzero count_nonzero any all unique _unique2
        unique_consecutive unique_dim roll flip rot90 repeat repeat_interleave constant_pad_nd reflection_pad1d
        reflection_pad2d replication_pad1d replication_pad2d reflection_pad2d_backward
        replication_pad2d_backward tril triu tril_indices triu_indices diag_embed diagonal_backward
        select_backward slice_backward slice_scatter select_scatter diagonal_scatter as_strided_scatter
        unfold_backward im2col bernoulli bernoulli_ normal normal_ normal_functional uniform_ random_ rand randn
        randint rand_like randn_like randint_like randperm exponential_ multinomial _local_scalar_dense item
        isin scatter upsample_nearest1d upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle
        channel_shuffle one_hot lift lift_fresh lift_fresh_copy resize_ set_ _resize_output_ detach_ complex
        real imag view_as_real_copy conj_physical _conj_physical scalar_tensor _efficientzerotensor _pin_memory
        is_same_size record_stream _assert_async _assert_tensor_metadata _fused_sdp_choice sparse_resize_
        _coalesce coalesce _sparse_coo_tensor_with_dims_and_tensors _indices _values values indices crow_indices
        col_indices to_dense _to_dense sparse_mask _to_sparse _nested_tensor_from_mask_left_aligned int_repr
    """.split()
)


def complex_factor(name: str) -> int:
    """Real operations in one complex operation: (a+bi)(c+di) is 4 multiplications and 2 additions."""
    return {"mul": 6, "mul_": 6, "div": 11, "div_": 11, "addcmul": 8}.get(name, 2)


def _size(shapes: Any) -> int:
    """Elements of a shape, or of all shapes in a list."""
    if isinstance(shapes, tuple) and all(isinstance(n, int) for n in shapes):
        return prod(shapes)
    if isinstance(shapes, (list, tuple)):
        return sum(_size(shape) for shape in shapes if isinstance(shape, (list, tuple)))
    return 0


def _first(out: Any) -> Shape:
    """The shape of the (first) output."""
    return out if isinstance(out, tuple) and all(isinstance(n, int) for n in out) else out[0]


def _per_output(flops: int) -> Formula:
    return lambda *args, out=None, **kwargs: flops * _size(_first(out))


def _per_input(flops: int) -> Formula:
    return lambda x, *args, out=None, **kwargs: flops * _size(x)


def _packets(name: str) -> list[Any]:
    """The operator and its in-place form, those that this PyTorch has."""
    return [getattr(aten, n) for n in (name, f"{name}_") if hasattr(aten, n)]


for _name, _flops in PER_OUTPUT.items():
    if _found := _packets(_name):
        formula(*_found, unit="vector")(_per_output(_flops))
for _name, _flops in PER_INPUT.items():
    if _found := _packets(_name):
        formula(*_found, unit="vector")(_per_input(_flops))
for _name in NOTHING:
    if _found := _packets(_name):
        formula(*_found, unit="vector")(lambda *args, out=None, **kwargs: 0)


@formula(aten.add, aten.add_, aten.sub, aten.sub_, aten.rsub, unit="vector")
def add(a: Any, b: Any, *args: Any, out: Any = None, alpha: float = 1, **kwargs: Any) -> int:
    """One per element, two with a factor ``alpha``."""
    return (1 if alpha == 1 else 2) * _size(_first(out))


@formula(aten.gelu, aten.gelu_, unit="vector")
def gelu(x: Shape, *args: Any, out: Any = None, approximate: str = "none", **kwargs: Any) -> int:
    """0.5 x (1 + erf(x / sqrt 2)): 5. With tanh(sqrt(2/pi) (x + 0.044715 x^3)): 9."""
    return (9 if approximate == "tanh" else 5) * _size(x)


@formula(aten.gelu_backward, unit="vector")
def gelu_backward(grad: Shape, x: Shape, *args: Any, out: Any = None, approximate: str = "none", **kw: Any) -> int:
    """erf: the forward's factor 4, pdf exp(-x^2/2)/sqrt(2 pi) 4, x pdf + cdf 2, times grad 1. tanh: 9 more."""
    return (20 if approximate == "tanh" else 11) * _size(x)


@formula(aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, unit="vector")
def max_pool(x: Shape, kernel: Any, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """One maximum for each element of the window but the first."""
    rank = len(x) - 2 if len(x) > 3 else len(x) - 1
    window = prod(kernel) if len(kernel) == rank else kernel[0] ** rank
    return (window - 1) * _size(_first(out))


@formula(aten.avg_pool2d, aten.avg_pool3d, unit="vector")
def avg_pool(x: Shape, kernel: Any, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """The sum over the window and one division."""
    rank = len(x) - 2 if len(x) > 3 else len(x) - 1
    window = prod(kernel) if len(kernel) == rank else kernel[0] ** rank
    return window * _size(out)


@formula(aten.nll_loss_backward, aten.nll_loss2d_backward, unit="vector")
def nll_loss_backward(grad: Shape, x: Shape, target: Shape, *args: Any, out: Any = None, **kw: Any) -> int:
    """One scaled gradient per target."""
    return _size(target)


@formula(aten.scatter_add, aten.scatter_add_, aten.index_add, aten.index_add_, unit="vector")
def scatter_add(x: Shape, dim: int, index: Shape, source: Shape, *args: Any, out: Any = None, **kw: Any) -> int:
    return _size(source)


@formula(aten.index_put, aten.index_put_, aten._unsafe_index_put, aten._index_put_impl_, unit="vector")
def index_put(
    x: Shape, indices: Any, values: Shape, accumulate: bool = False, *args: Any, out: Any = None, **kw: Any
) -> int:
    return _size(values) if accumulate else 0


@formula(aten._cdist_forward, unit="vector")
def cdist(a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """Subtract, power, add for each pair and coordinate; one root per pair."""
    return (3 * a[-1] + 1) * _size(out)


@formula(aten.convolution_backward_overrideable, unit="matrix")
def convolution_backward_overrideable(
    grad: Shape, x: Shape, weight: Shape, *args: Any, out: Any = None, **kw: Any
) -> int:
    mask = args[-1]
    return convolution_flops(x, weight, grad, bool(args[3])) * (bool(mask[0]) + bool(mask[1]))


# --- optimisers: all parameters of a list in one operator --------------------------------------------

# FLOPs per parameter of the fused steps, from the update rules in torch.optim's documentation.
FUSED_STEPS = {"_fused_adam_": 13, "_fused_adamw_": 14, "_fused_sgd_": 4, "_fused_adagrad_": 6}
for _name, _flops in FUSED_STEPS.items():
    if hasattr(aten, _name):
        formula(getattr(aten, _name), unit="vector")(_per_input(_flops))

for _name, _flops in (PER_OUTPUT | PER_INPUT | dict.fromkeys(NOTHING | {"zero", "copy"}, 0)).items():
    if _found := _packets(f"_foreach_{_name.rstrip('_')}"):
        formula(*_found, unit="vector")(_per_input(_flops))


def table() -> list[tuple[str, str, int]]:
    """(operator, per what, FLOPs) of every entry; docs/costs.md is printed from it."""
    rows = [(name, "output element", flops) for name, flops in PER_OUTPUT.items()]
    rows += [(name, "input element", flops) for name, flops in PER_INPUT.items()]
    rows += [(name, "parameter", flops) for name, flops in FUSED_STEPS.items()]
    return sorted((name, per, flops) for name, per, flops in rows if _packets(name))


__all__ = ["Flops", "complex_factor", "table"]

"""FLOPs of matrix products, convolutions, recurrent layers and attention. One FMA is two FLOPs.

Arguments are shapes. A bias, where the operator adds one itself, is one vector FLOP per output element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from oplab.cost.registry import Flops, Shape, formula

aten = torch.ops.aten


# --- products ------------------------------------------------------------------------------------


@formula(aten.mm, aten._int_mm)
def mm(a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """a [M, K], b [K, N]: 2MKN."""
    return 2 * a[0] * a[1] * b[1]


@formula(aten._scaled_mm)
def scaled_mm(a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """a [M, K], b [K, N] in fp8; scaling is left out, as a part of the operands' format."""
    return 2 * a[0] * a[1] * b[1]


@formula(aten.addmm, aten._addmm_activation)
def addmm(bias: Shape, a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    """bias broadcast to [M, N]."""
    return Flops(2 * a[0] * a[1] * b[1], a[0] * b[1])


@formula(aten.bmm)
def bmm(a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """a [B, M, K], b [B, K, N]: 2BMKN."""
    return 2 * a[0] * a[1] * a[2] * b[2]


@formula(aten.baddbmm)
def baddbmm(bias: Shape, a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    return Flops(2 * a[0] * a[1] * a[2] * b[2], a[0] * a[1] * b[2])


@formula(aten.addbmm)
def addbmm(bias: Shape, a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    """The products of a batch, summed; the sum over the batch is part of the product."""
    return Flops(2 * a[0] * a[1] * a[2] * b[2], a[1] * b[2])


@formula(aten.mv)
def mv(a: Shape, x: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    return 2 * a[0] * a[1]


@formula(aten.addmv, aten.addmv_)
def addmv(bias: Shape, a: Shape, x: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    return Flops(2 * a[0] * a[1], a[0])


@formula(aten.dot, aten.vdot)
def dot(x: Shape, y: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    return 2 * x[0]


@formula(aten.addr)
def addr(bias: Shape, x: Shape, y: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    return Flops(x[0] * y[0], x[0] * y[0])


@formula(aten._grouped_mm, aten._scaled_grouped_mm)
def grouped_mm(a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """Groups along rows of a 2-D ``a`` (b [G, K, N]), along columns of ``b``, along K, or a batch."""
    if len(a) == 3 and len(b) == 3:
        return 2 * a[0] * a[1] * a[2] * b[2]
    if len(a) == 3:  # [G, M, K] x [K, N split in G]
        return 2 * a[1] * a[2] * b[1]
    return 2 * a[0] * a[1] * b[-1]  # rows or K split: each multiply-add belongs to one group


@formula(aten._weight_int8pack_mm)
def int8pack_mm(a: Shape, b: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    """a [M, K], b [N, K]."""
    return 2 * a[0] * a[1] * b[0]


@formula(aten._weight_int4pack_mm, aten._weight_int4pack_mm_for_cpu)
def int4pack_mm(a: Shape, *args: Any, out: Any = None, **kwargs: Any) -> int:
    return 2 * a[0] * a[1] * out[-1]


# --- convolutions ----------------------------------------------------------------------------------


def convolution_flops(x: Shape, weight: Shape, out: Shape, transposed: bool) -> int:
    """2 x positions x weight elements: each position meets the whole kernel once.

    weight [Cout, Cin / groups, *kernel], positions = those of the output; transposed:
    weight [Cin, Cout / groups, *kernel], positions = those of the input.
    """
    positions = x if transposed else out
    return 2 * positions[0] * prod(positions[2:]) * prod(weight)


@formula(
    aten.convolution, aten._convolution, aten.cudnn_convolution, aten.convolution_overrideable,
    aten.cudnn_convolution_transpose, aten._slow_conv2d_forward, aten.mkldnn_convolution, aten.slow_conv3d,
    aten.slow_conv3d_forward, aten._conv_depthwise2d, aten.conv_depthwise3d, aten.miopen_convolution,
)  # fmt: skip
def convolution(x: Shape, weight: Shape, *args: Any, out: Shape, **kwargs: Any) -> Flops:
    """Of any rank, grouped, dilated or transposed: padding and dilation show in the shapes only."""
    # cudnn_convolution(x, w, padding, …) has no bias; convolution(x, w, bias, stride, padding, dilation, transposed, …)
    bias = args[0] if args and _is_shape_of_bias(args[0], weight, out) else kwargs.get("bias")
    transposed = bool(args[4]) if len(args) > 4 and isinstance(args[4], bool) else False
    return Flops(convolution_flops(x, weight, out, transposed), prod(out) if bias is not None else 0)


def _is_shape_of_bias(value: Any, weight: Shape, out: Shape) -> bool:
    return isinstance(value, tuple) and tuple(value) == (out[1],)


@formula(aten.convolution_backward)
def convolution_backward(
    grad: Shape, x: Shape, weight: Shape, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Sequence[bool], *, out: Any = None,
) -> Flops:  # fmt: skip
    """Two convolutions of the forward's size, one per asked gradient; the bias gradient sums ``grad``."""
    once = convolution_flops(x, weight, grad, transposed)
    return Flops(once * (bool(mask[0]) + bool(mask[1])), prod(grad) if mask[2] else 0)


# --- attention -------------------------------------------------------------------------------------


def live_pairs(queries: int, keys: int, causal: str | None) -> int:
    """(query, key) pairs that are computed: all, or those on and below the diagonal.

    "top-left": query i sees keys 0…i (PyTorch's is_causal). "bottom-right": the last query sees all keys.
    """
    if causal is None:
        return queries * keys
    if causal not in ("top-left", "bottom-right"):
        raise ValueError(f"causal is None, 'top-left' or 'bottom-right', not {causal!r}")
    shift = keys - queries if causal == "bottom-right" else 0
    # Query i sees min(keys, i + 1 + shift) keys, at least none.
    first, last = max(0, -shift), min(queries, keys - shift)  # queries on the slanted part: first <= i < last
    slanted = sum_of(first + 1 + shift, last + shift) if last > first else 0
    return slanted + max(0, queries - max(last, 0)) * keys


def sum_of(first: int, last: int) -> int:
    """first + … + last."""
    return (first + last) * (last - first + 1) // 2


def attention_flops(
    batch: int, heads: int, queries: int, keys: int, dim: int, value_dim: int, causal: str | None = None
) -> int:
    """Two products over the live pairs: scores (2 x dim each) and the weighted sum (2 x value_dim each)."""
    return batch * heads * live_pairs(queries, keys, causal) * 2 * (dim + value_dim)


def attention_backward_flops(
    batch: int, heads: int, queries: int, keys: int, dim: int, value_dim: int, causal: str | None = None
) -> int:
    """Five products: scores recomputed, dV, dP, dQ, dK (Dao et al., FlashAttention, 2022, algorithm 4)."""
    return batch * heads * live_pairs(queries, keys, causal) * 2 * (3 * dim + 2 * value_dim)


def softmax_over(batch: int, heads: int, pairs: int) -> int:
    """Scale, running maximum, subtract, exponential, sum: five vector FLOPs per live pair."""
    return 5 * batch * heads * pairs


def _causal(flag: Any) -> str | None:
    return "top-left" if flag else None


def _argument(args: tuple, kwargs: dict, position: int, name: str, default: Any) -> Any:
    return kwargs.get(name, args[position] if len(args) > position else default)


def _forward(q: Shape, k: Shape, v: Shape, causal: str | None) -> Flops:
    """q [B, H, N, D], k [B, Hk, S, D], v [B, Hk, S, Dv]; grouped queries share keys, the work is per query head."""
    B, H, N, D = q
    S, Dv = k[2], v[3]
    pairs = live_pairs(N, S, causal)
    return Flops(attention_flops(B, H, N, S, D, Dv, causal), softmax_over(B, H, pairs))


def _backward(q: Shape, k: Shape, v: Shape, causal: str | None) -> Flops:
    B, H, N, D = q
    S, Dv = k[2], v[3]
    pairs = live_pairs(N, S, causal)
    # per pair: exp(s - lse) 2, dS = P (dP - delta) 2, scale 1; delta = rowsum(dO o O) 2 per output element
    return Flops(attention_backward_flops(B, H, N, S, D, Dv, causal), 5 * B * H * pairs + 2 * B * H * N * Dv)


@formula(aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_for_cpu)
def sdpa_flash(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    return _forward(q, k, v, _causal(_argument(args, kwargs, 1, "is_causal", False)))


@formula(aten._scaled_dot_product_efficient_attention)
def sdpa_efficient(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    return _forward(q, k, v, _causal(_argument(args, kwargs, 3, "is_causal", False)))


@formula(aten._scaled_dot_product_cudnn_attention)
def sdpa_cudnn(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    return _forward(q, k, v, _causal(_argument(args, kwargs, 3, "is_causal", False)))


@formula(aten._scaled_dot_product_fused_attention_overrideable)
def sdpa_overrideable(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kwargs: Any) -> Flops:
    return _forward(q, k, v, _causal(_argument(args, kwargs, 2, "is_causal", False)))


@formula(aten._scaled_dot_product_flash_attention_backward)
def sdpa_flash_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    # (…, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, …)
    return _backward(q, k, v, _causal(_argument(args, kw, 7, "is_causal", False)))


@formula(aten._scaled_dot_product_flash_attention_for_cpu_backward)
def sdpa_cpu_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    return _backward(q, k, v, _causal(_argument(args, kw, 3, "is_causal", False)))


@formula(aten._scaled_dot_product_efficient_attention_backward)
def sdpa_efficient_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    # (…, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal)
    return _backward(q, k, v, _causal(_argument(args, kw, 7, "is_causal", False)))


@formula(aten._scaled_dot_product_cudnn_attention_backward)
def sdpa_cudnn_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    # (…, out, logsumexp, seed, offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal)
    return _backward(q, k, v, _causal(_argument(args, kw, 10, "is_causal", False)))


def _heads_first(shape: Shape) -> Shape:
    """[B, S, H, D], the order of the library's own operators, as [B, H, S, D]."""
    return (shape[0], shape[2], shape[1], shape[3])


@formula(aten._flash_attention_forward)
def flash_forward(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    # (…, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, …); the library aligns bottom-right
    causal = "bottom-right" if _argument(args, kw, 5, "is_causal", False) else None
    return _forward(_heads_first(q), _heads_first(k), _heads_first(v), causal)


@formula(aten._efficient_attention_forward)
def efficient_forward(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    # (…, bias, cu_seqlens_q, cu_seqlens_k, max_q, max_k, dropout_p, custom_mask_type, …)
    causal = {1: "top-left", 2: "bottom-right"}.get(_argument(args, kw, 6, "custom_mask_type", 0))
    return _forward(_heads_first(q), _heads_first(k), _heads_first(v), causal)


@formula(aten._flash_attention_backward)
def flash_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    causal = "bottom-right" if _argument(args, kw, 7, "is_causal", False) else None
    return _backward(_heads_first(q), _heads_first(k), _heads_first(v), causal)


@formula(aten._efficient_attention_backward)
def efficient_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    # (…, bias, out, cu_seqlens_q, cu_seqlens_k, max_q, max_k, logsumexp, dropout_p, seed, offset, custom_mask_type, …)
    causal = {1: "top-left", 2: "bottom-right"}.get(_argument(args, kw, 10, "custom_mask_type", 0))
    return _backward(_heads_first(q), _heads_first(k), _heads_first(v), causal)


@formula(torch.ops.higher_order.flex_attention)
def flex_forward(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    """All pairs: which ones the score and mask functions drop is not in the shapes."""
    return _forward(q, k, v, None)


@formula(torch.ops.higher_order.flex_attention_backward)
def flex_backward(q: Shape, k: Shape, v: Shape, *args: Any, out: Any = None, **kw: Any) -> Flops:
    return _backward(q, k, v, None)


# --- whole layers in one operator --------------------------------------------------------------------


@formula(aten._transformer_encoder_layer_fwd)
def encoder_layer(src: Shape, embed: int, heads: int, *args: Any, out: Any = None, **kw: Any) -> Flops:
    """src [B, S, E]; arguments as in torch.nn.TransformerEncoderLayer's fast path."""
    B, S, E = src
    hidden = args[11][0]  # (qkv_w, qkv_b, proj_w, proj_b, use_gelu, norm_first, eps, n1w, n1b, n2w, n2b, ffn_w1, …)
    tokens, pairs = B * S, S * S
    products = 2 * tokens * (3 * E * E + E * E + 2 * E * hidden)
    biases = tokens * (3 * E + E + hidden + E)
    norms_and_residuals = tokens * E * (2 * 7 + 2)
    activation = tokens * hidden * (5 if args[4] else 1)
    attention = attention_flops(B, heads, S, S, E // heads, E // heads)
    vector = biases + norms_and_residuals + activation + softmax_over(B, heads, pairs)
    return Flops(products + attention, vector)


@formula(aten._native_multi_head_attention)
def native_attention(
    q: Shape, k: Shape, v: Shape, embed: int, heads: int, *args: Any, out: Any = None, **kw: Any
) -> Flops:
    (B, N, E), S = q, k[1]
    products = 2 * B * E * E * (N + S + S + N)  # projections of q, k, v and of the output
    attention = attention_flops(B, heads, N, S, E // heads, E // heads)
    return Flops(products + attention, B * E * (2 * N + 2 * S) + softmax_over(B, heads, N * S))


def _recurrent(x: Shape, weights: Sequence[Shape]) -> int:
    """x [T, B, I] (or [B, T, I]): every weight matrix meets every time step of every sequence once."""
    return 2 * x[0] * x[1] * sum(prod(w) for w in weights if len(w) == 2)


@formula(aten._cudnn_rnn)
def cudnn_rnn(x: Shape, weights: Sequence[Shape], *args: Any, out: Any = None, **kw: Any) -> int:
    return _recurrent(x, weights)


@formula(aten._cudnn_rnn_backward)
def cudnn_rnn_backward(x: Shape, weights: Sequence[Shape], *args: Any, out: Any = None, **kw: Any) -> int:
    """Gradients of inputs and of weights: twice the forward."""
    return 2 * _recurrent(x, weights)


@formula(aten.mkldnn_rnn_layer)
def mkldnn_rnn_layer(x: Shape, w0: Shape, w1: Shape, *args: Any, out: Any = None, **kw: Any) -> int:
    return _recurrent(x, (w0, w1))


@formula(aten.mkldnn_rnn_layer_backward)
def mkldnn_rnn_layer_backward(x: Shape, w0: Shape, w1: Shape, *args: Any, out: Any = None, **kw: Any) -> int:
    return 2 * _recurrent(x, (w0, w1))

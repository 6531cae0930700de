"""Softmax over rows: three passes, online, and fused in registers; and its backward.

Shapes: x, y, dy, dx [M, N]. y = exp(x - max) / sum(exp(x - max)) for each row. Compulsory bytes: forward x
once and y once, backward y and dy once and dx once. What differs is how often a row is read:

- ``three_pass``: once for the maximum, once for the sum, once to write;
- ``online``: maximum and sum in one pass, the sum rescaled whenever the maximum grows (Milakov and
  Gimelshein, "Online normalizer calculation for softmax", 2018), and once to write;
- ``fused``: once. The row stays in registers, so it must fit there.

Infinities and NaN come out as in torch: a row that has NaN or +inf is NaN all over.
"""

from __future__ import annotations

import torch

from oplab.kernels.launch import Launch, power_of_two, refuse_bfloat16_on_cpu, rows_of
from oplab.kernels.triton_or_not import tl, triton

WIDEST = 32768  # columns that `fused` keeps in the registers of one program
WAYS = ("three_pass", "online", "fused")

# What people read, in one place.
TEXT = {
    "way": "softmax: way is one of {ways}; got {way!r}",
    "wide": "softmax: 'fused' keeps a row in registers and takes up to {widest:,} columns, not {n:,}; use 'online'",
}


@triton.jit
def three_pass_kernel(x_ptr, y_ptr, N, stride_x, stride_y, BLOCK: tl.constexpr):
    """One program, one row, read three times in pieces of BLOCK columns."""
    x_row = x_ptr + tl.program_id(0).to(tl.int64) * stride_x
    y_row = y_ptr + tl.program_id(0).to(tl.int64) * stride_y
    at = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for first in range(0, N, BLOCK):
        x = tl.load(x_row + first + at, mask=first + at < N, other=-float("inf")).to(tl.float32)
        largest = tl.maximum(largest, x)
    top = tl.max(largest, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        x = tl.load(x_row + first + at, mask=first + at < N, other=-float("inf")).to(tl.float32)
        total += tl.exp(x - top)
    scale = 1.0 / tl.sum(total, 0)
    for first in range(0, N, BLOCK):
        inside = first + at < N
        x = tl.load(x_row + first + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_row + first + at, (tl.exp(x - top) * scale).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def online_kernel(x_ptr, y_ptr, N, stride_x, stride_y, BLOCK: tl.constexpr):
    """One program, one row, read twice: each lane keeps a maximum and a sum that refers to it."""
    x_row = x_ptr + tl.program_id(0).to(tl.int64) * stride_x
    y_row = y_ptr + tl.program_id(0).to(tl.int64) * stride_y
    at = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        x = tl.load(x_row + first + at, mask=first + at < N, other=-float("inf")).to(tl.float32)
        grown = tl.maximum(largest, x)
        # A lane that has seen only -inf has no sum to rescale: -inf - -inf would make it NaN.
        old = tl.where(largest == -float("inf"), 0.0, total * tl.exp(largest - grown))
        total = old + tl.where(x == -float("inf"), 0.0, tl.exp(x - grown))
        largest = grown
    top = tl.max(largest, 0)
    lanes = tl.where(largest == -float("inf"), 0.0, total * tl.exp(largest - top))
    scale = 1.0 / tl.sum(lanes, 0)
    for first in range(0, N, BLOCK):
        inside = first + at < N
        x = tl.load(x_row + first + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_row + first + at, (tl.exp(x - top) * scale).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def fused_kernel(x_ptr, y_ptr, M, N, stride_x, stride_y, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """One program, ROWS whole rows, each element read once."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    at = tl.arange(0, BLOCK)  # [BLOCK]
    inside = (row < M)[:, None] & (at < N)[None, :]
    x = tl.load(x_ptr + row[:, None] * stride_x + at[None, :], mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(x - tl.max(x, 1)[:, None])  # [ROWS, BLOCK]
    y = power * (1.0 / tl.sum(power, 1))[:, None]
    tl.store(y_ptr + row[:, None] * stride_y + at[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    y_ptr, dy_ptr, dx_ptr, M, N, stride_y, stride_dy, stride_dx, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """dx = y (dy - sum(y dy)); one program, ROWS rows, each element read once."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    at = tl.arange(0, BLOCK)  # [BLOCK]
    inside = (row < M)[:, None] & (at < N)[None, :]
    y = tl.load(y_ptr + row[:, None] * stride_y + at[None, :], mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row[:, None] * stride_dy + at[None, :], mask=inside, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(y * dy, 1)[:, None])
    tl.store(dx_ptr + row[:, None] * stride_dx + at[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def wide_backward_kernel(y_ptr, dy_ptr, dx_ptr, N, stride_y, stride_dy, stride_dx, BLOCK: tl.constexpr):
    """The same for rows that do not fit into registers: y and dy are read twice."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        inside = first + at < N
        y = tl.load(y_ptr + row * stride_y + first + at, mask=inside, other=0.0).to(tl.float32)
        total += y * tl.load(dy_ptr + row * stride_dy + first + at, mask=inside, other=0.0).to(tl.float32)
    dot = tl.sum(total, 0)
    for first in range(0, N, BLOCK):
        inside = first + at < N
        y = tl.load(y_ptr + row * stride_y + first + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * stride_dy + first + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * stride_dx + first + at, (y * (dy - dot)).to(dx_ptr.dtype.element_ty), mask=inside)


def forward(x: torch.Tensor, out: torch.Tensor | None = None, *, way: str | None = None) -> Launch:
    """Softmax over the last dimension; ``way`` is one of `WAYS`, by default the one that reads least."""
    refuse_bfloat16_on_cpu(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    rows = rows_of(x)
    to = y.view(rows.shape)
    M, N = rows.shape
    way = way or ("fused" if N <= WIDEST else "online")
    if way not in WAYS:
        raise ValueError(TEXT["way"].format(ways=", ".join(WAYS), way=way))
    strides = (rows.stride(0), to.stride(0))
    if way == "fused":
        if N > WIDEST:
            raise ValueError(TEXT["wide"].format(widest=WIDEST, n=N))
        return Launch(fused_kernel, _programs(M, N), (rows, to, M, N, *strides), y, **held(N))
    kernel = three_pass_kernel if way == "three_pass" else online_kernel
    return Launch(kernel, (M if N else 0,), (rows, to, N, *strides), y, BLOCK=4096, num_warps=8)


def backward(y: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None = None) -> Launch:
    """dx of the softmax whose result is ``y``, for the gradient ``dy`` of it."""
    refuse_bfloat16_on_cpu(y)
    dx = torch.empty_like(y, memory_format=torch.contiguous_format) if out is None else out
    rows, grads = rows_of(y), rows_of(dy)
    to = dx.view(rows.shape)
    M, N = rows.shape
    strides = (rows.stride(0), grads.stride(0), to.stride(0))
    if N > WIDEST:
        return Launch(wide_backward_kernel, (M,), (rows, grads, to, N, *strides), dx, BLOCK=4096, num_warps=8)
    return Launch(backward_kernel, _programs(M, N), (rows, grads, to, M, N, *strides), dx, **held(N))


def held(N: int) -> dict[str, int]:
    """Tunables of a kernel that keeps whole rows in registers: about 16 elements per thread, at least 2,048 in all."""
    block = power_of_two(N)
    rows = max(1, 2048 // block) if block < 2048 else 1
    return {"ROWS": rows, "BLOCK": block, "num_warps": min(32, max(4, block * rows // 512))}


def _programs(M: int, N: int) -> tuple[int]:
    return (-(-M // held(N)["ROWS"]) if N else 0,)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        y = forward(x)()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (y,) = ctx.saved_tensors
        return backward(y, dy)()


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension, differentiable once. Saves its output and nothing else."""
    return _Softmax.apply(x)


def eager(x: torch.Tensor) -> torch.Tensor:
    """Softmax from its definition as five PyTorch operators, each through memory."""
    power = torch.exp(x - x.amax(-1, keepdim=True))
    return power / power.sum(-1, keepdim=True)


def eager_backward(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """dx from its definition as four PyTorch operators."""
    return y * (dy - (y * dy).sum(-1, keepdim=True))


compiled = torch.compile(eager, dynamic=False, fullgraph=True)
compiled_backward = torch.compile(eager_backward, dynamic=False, fullgraph=True)


def reference(x: torch.Tensor) -> torch.Tensor:
    """Softmax in float64."""
    return x.double().softmax(-1)


def compulsory_bytes(M: int, N: int, element_size: int) -> tuple[int, int]:
    """(forward, backward): x and y; y, dy and dx."""
    return 2 * M * N * element_size, 3 * M * N * element_size


def bytes_read(way: str, M: int, N: int, element_size: int) -> int:
    """Bytes that a way asks for in the forward; caches may catch the second and third reading."""
    return {"three_pass": 3, "online": 2, "fused": 1}[way] * M * N * element_size

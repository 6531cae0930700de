"""SwiGLU: y = silu(a) * b, forward and backward, one kernel each at the compulsory bytes.

Shapes: a, b, y and their gradients alike, rows of neighbouring columns. silu(a) = a * sigmoid(a). Saved for
the backward: a and b; the sigmoid is computed again, which costs no bytes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from oplab.kernels.launch import Launch, refuse_bfloat16_on_cpu, rows_of
from oplab.kernels.triton_or_not import tl, triton

BLOCK = 1024  # eight elements, 16 bytes in bf16, for each of 128 threads


@triton.jit
def forward_kernel(a_ptr, b_ptr, y_ptr, N, stride_a, stride_b, stride_y, BLOCK: tl.constexpr):
    """One program: BLOCK columns of one row."""
    blocks = tl.cdiv(N, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    a = tl.load(a_ptr + row * stride_a + at, mask=at < N, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + row * stride_b + at, mask=at < N, other=0.0).to(tl.float32)
    y = a * tl.sigmoid(a) * b
    tl.store(y_ptr + row * stride_y + at, y.to(y_ptr.dtype.element_ty), mask=at < N)


@triton.jit
def backward_kernel(
    a_ptr, b_ptr, dy_ptr, da_ptr, db_ptr,
    N, stride_a, stride_b, stride_dy, stride_da, stride_db,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """da = dy b s (1 + a (1 - s)) and db = dy a s, with s = sigmoid(a)."""
    blocks = tl.cdiv(N, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    a = tl.load(a_ptr + row * stride_a + at, mask=at < N, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + row * stride_b + at, mask=at < N, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride_dy + at, mask=at < N, other=0.0).to(tl.float32)
    s = tl.sigmoid(a)
    tl.store(da_ptr + row * stride_da + at, (dy * b * s * (1 + a * (1 - s))).to(da_ptr.dtype.element_ty), mask=at < N)
    tl.store(db_ptr + row * stride_db + at, (dy * a * s).to(db_ptr.dtype.element_ty), mask=at < N)


def forward(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> Launch:
    """y = silu(a) * b."""
    refuse_bfloat16_on_cpu(a)
    y = torch.empty(a.shape, dtype=a.dtype, device=a.device) if out is None else out
    tensors = [rows_of(t) for t in (a, b, y)]
    return Launch(forward_kernel, _grid(y), _operands(tensors), y, BLOCK=BLOCK, num_warps=4)


def backward(a: torch.Tensor, b: torch.Tensor, dy: torch.Tensor) -> Launch:
    """A launch that returns (da, db)."""
    refuse_bfloat16_on_cpu(a)
    da, db = (torch.empty(a.shape, dtype=a.dtype, device=a.device) for _ in range(2))
    tensors = [rows_of(t) for t in (a, b, dy, da, db)]
    return Launch(backward_kernel, _grid(da), _operands(tensors), (da, db), BLOCK=BLOCK, num_warps=4)


def _grid(y: torch.Tensor) -> tuple[int]:
    return (y.numel() // y.shape[-1] * -(-y.shape[-1] // BLOCK) if y.numel() else 0,)


def _operands(tensors: list[torch.Tensor]) -> tuple:
    return (*tensors, tensors[0].shape[1], *(t.stride(0) for t in tensors))


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(a, b)
        return forward(a, b)()

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        a, b = ctx.saved_tensors
        return backward(a, b, dy)()


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) * b, differentiable once."""
    return _SwiGLU.apply(a, b)


def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(a) * b


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) * b in float64."""
    return F.silu(a.double()) * b.double()


def compulsory_bytes(M: int, N: int, element_size: int) -> tuple[int, int]:
    """(forward, backward): a, b, y; a, b, dy, da, db."""
    return 3 * M * N * element_size, 5 * M * N * element_size

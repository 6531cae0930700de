"""Cross-entropy of rows of scores against class indices, forward and backward, one kernel each.

Shapes: scores x and dx [M, V], target [M] of integers, loss and its gradient [M] in float32, lse [M].

    lse = log(sum(exp(x))),  loss = lse - x[target],  dx = (exp(x - lse) - onehot(target)) * dloss

The forward reads the scores once: maximum and sum are kept together, the sum rescaled when the maximum
grows. The softmax is never written; the backward makes it again from the scores and lse. A target of
`IGNORE` has loss 0 and gradient 0. A target outside the classes is an error, found before the launch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from oplab.kernels.launch import Launch, power_of_two, refuse_bfloat16_on_cpu, rows_of
from oplab.kernels.triton_or_not import tl, triton

IGNORE = -100  # as in torch.nn.functional.cross_entropy

# What people read, in one place.
TEXT = {
    "shapes": "cross-entropy needs scores [M, V] and target [M] of integers; got {scores} and {target} of {dtype}",
    "range": "cross-entropy: a target is outside [0, {classes}) and is not {ignore}",
}


@triton.jit
def forward_kernel(x_ptr, target_ptr, loss_ptr, lse_ptr, V, stride_x, IGNORED: tl.constexpr, BLOCK: tl.constexpr):
    """One program, one row, in pieces of BLOCK classes."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        x = tl.load(x_ptr + row * stride_x + first + at, mask=first + at < V, other=-float("inf")).to(tl.float32)
        grown = tl.maximum(largest, x)
        # A lane that has seen only -inf has no sum: -inf - -inf would make it NaN.
        old = tl.where(largest == -float("inf"), 0.0, total * tl.exp(largest - grown))
        total = old + tl.where(x == -float("inf"), 0.0, tl.exp(x - grown))
        largest = grown
    top = tl.max(largest, 0)
    lse = top + tl.log(tl.sum(tl.where(largest == -float("inf"), 0.0, total * tl.exp(largest - top)), 0))
    target = tl.load(target_ptr + row)
    live = target != IGNORED
    score = tl.load(x_ptr + row * stride_x + target, mask=live, other=0.0).to(tl.float32)
    tl.store(loss_ptr + row, tl.where(live, lse - score, 0.0))
    tl.store(lse_ptr + row, lse)


@triton.jit
def backward_kernel(
    x_ptr, target_ptr, lse_ptr, dloss_ptr, dx_ptr,
    V, stride_x, stride_dloss, stride_dx,
    IGNORED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK classes of one row."""
    blocks = tl.cdiv(V, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    target = tl.load(target_ptr + row)
    lse = tl.load(lse_ptr + row)
    dloss = tl.where(target != IGNORED, tl.load(dloss_ptr + row * stride_dloss), 0.0)
    x = tl.load(x_ptr + row * stride_x + at, mask=at < V, other=0.0).to(tl.float32)
    dx = (tl.exp(x - lse) - tl.where(at == target, 1.0, 0.0)) * dloss
    dx = tl.where(target != IGNORED, dx, 0.0)  # even where the row has infinities
    tl.store(dx_ptr + row * stride_dx + at, dx.to(dx_ptr.dtype.element_ty), mask=at < V)


def forward(x: torch.Tensor, target: torch.Tensor) -> tuple[Launch, torch.Tensor]:
    """(launch that returns the losses [M], lse [M])."""
    refuse_bfloat16_on_cpu(x)
    check(x, target)
    rows = rows_of(x)
    M, V = rows.shape
    loss, lse = torch.empty(2, M, dtype=torch.float32, device=x.device).unbind()
    operands = (rows, target.contiguous(), loss, lse, V, rows.stride(0))
    block = min(4096, power_of_two(V))
    return Launch(forward_kernel, (M,), operands, loss, IGNORED=IGNORE, BLOCK=block, num_warps=8), lse


def backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, out: torch.Tensor | None = None
) -> Launch:
    """A launch that returns dx; ``out=x`` overwrites the scores, which saves their memory."""
    rows = rows_of(x)
    M, V = rows.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    operands = (rows, target.contiguous(), lse, dloss, dx, V, rows.stride(0), dloss.stride(0), dx.stride(0))
    block = min(2048, power_of_two(V))
    return Launch(backward_kernel, (M * -(-V // block),), operands, dx, IGNORED=IGNORE, BLOCK=block, num_warps=4)


def check(x: torch.Tensor, target: torch.Tensor) -> None:
    """ValueError for shapes that do not go together, IndexError for targets outside the classes."""
    if x.dim() != 2 or target.shape != x.shape[:1] or target.is_floating_point():
        shapes = {"scores": tuple(x.shape), "target": tuple(target.shape), "dtype": target.dtype}
        raise ValueError(TEXT["shapes"].format(**shapes))
    outside = ((target < 0) | (target >= x.shape[1])) & (target != IGNORE)
    if bool(outside.any()):
        raise IndexError(TEXT["range"].format(classes=x.shape[1], ignore=IGNORE))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):  # type: ignore[no-untyped-def]
        launch, lse = forward(x, target)
        ctx.save_for_backward(x, target, lse)
        return launch()

    @staticmethod
    def backward(ctx, dloss):  # type: ignore[no-untyped-def]
        x, target, lse = ctx.saved_tensors
        return backward(x, target, lse, dloss)(), None


def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Losses [M] in float32, differentiable once; ``.mean()`` them as you like."""
    return _CrossEntropy.apply(x, target)


def reference(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The losses in float64."""
    return F.cross_entropy(x.double(), target, reduction="none")


def compulsory_bytes(M: int, V: int, element_size: int) -> tuple[int, int]:
    """(forward, backward): scores, targets (8 B), loss and lse; the same and dx."""
    forward = M * V * element_size + M * (8 + 4 + 4)
    return forward, 2 * M * V * element_size + M * (8 + 4 + 4)

"""A chain of element-wise operators: y = gelu(x + bias) * scale + residual.

Shapes: x, residual, y [M, N]; bias, scale [N]. GELU in GPT-2's tanh form. Compulsory bytes: x and
residual read once, y written once, bias and scale read once. Run eagerly, it is four operators and
moves three times as much: every intermediate is written and read back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch
import torch.nn.functional as F

from oplab import compiler
from oplab.compiler.targets import Target
from oplab.kernels import launch
from oplab.kernels.on_cpu import REORDER, split_rows
from oplab.kernels.triton_or_not import tl, triton

# What people read, in one place.
TEXT = {
    "shapes": "the chain needs x and residual [M, N], bias and scale [N]; got {shapes}",
}


@dataclass(frozen=True)
class Block:
    """The tunables of the fused Triton kernel.

    The defaults won on an H200 (2026-12-01, bf16): eight elements, 16 bytes, per thread and one row
    per program, 1.00 of a copy of the same bytes at 8192 x 8192 and 1.02 at 16384 x 16384; four rows
    per program gave 0.99 and 1.01, sixteen elements per thread 0.91 and 0.95.
    """

    block_n: int = 1024  # columns of one program
    rows: int = 1  # rows of one program: bias and scale are loaded once for all of them
    num_warps: int = 4


def eager(x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The chain as four PyTorch operators; also the definition that the others must match."""
    return F.gelu(x + bias, approximate="tanh") * scale + residual


compiled = torch.compile(eager, dynamic=False, fullgraph=True)
"""The chain through ``torch.compile``: one program per shape and dtype; call `launch.compile_for_shapes` first."""


# --- Triton --------------------------------------------------------------------------------------


@triton.jit
def _gelu(v):
    """GPT-2's GELU: 0.5 v (1 + tanh(u)) with u = sqrt(2/pi) (v + 0.044715 v^3), written as v * sigmoid(2u)."""
    return v * tl.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))


@triton.jit
def chain_kernel(
    x_ptr, bias_ptr, scale_ptr, residual_ptr, y_ptr,
    M, N, stride_x, stride_residual, stride_y,
    BLOCK_N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of BLOCK_N columns; every element is read once and written once."""
    blocks = tl.cdiv(N, BLOCK_N)  # neighbouring programs take neighbouring columns of one row
    cols = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    inside = cols < N
    bias = tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    first = tl.program_id(0) // blocks * ROWS
    for i in tl.static_range(ROWS):
        row = (first + i).to(tl.int64)  # 64-bit: M * stride may pass 2^31
        live = inside & (row < M)
        x = tl.load(x_ptr + row * stride_x + cols, mask=live, other=0.0).to(tl.float32)
        r = tl.load(residual_ptr + row * stride_residual + cols, mask=live, other=0.0).to(tl.float32)
        y = _gelu(x + bias) * scale + r
        tl.store(y_ptr + row * stride_y + cols, y.to(y_ptr.dtype.element_ty), mask=live)


def fused(
    x: torch.Tensor,
    bias: torch.Tensor,
    scale: torch.Tensor,
    residual: torch.Tensor,
    out: torch.Tensor | None = None,
    block: Block = Block(),
) -> torch.Tensor:
    """The chain as one Triton kernel. Any shape; fp32, fp16 or bf16."""
    return Launch(x, bias, scale, residual, out, block)()


class Launch(launch.Launch):
    """A call without arguments that computes ``out``; timing it does not time preparing it."""

    def __init__(
        self,
        x: torch.Tensor,
        bias: torch.Tensor,
        scale: torch.Tensor,
        residual: torch.Tensor,
        out: torch.Tensor | None = None,
        block: Block = Block(),
    ) -> None:
        check_operands(x, bias, scale, residual)
        x, residual = launch.rows_of(x), launch.rows_of(residual)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
        M, N = x.shape
        # One axis: a grid's second and third end at 65,535, too few for the rows of a tall array.
        grid = (-(-M // block.rows) * -(-N // block.block_n),)
        operands = (
            x,
            bias.contiguous(),
            scale.contiguous(),
            residual,
            y,
            M,
            N,
            *(t.stride(0) for t in (x, residual, y)),
        )
        super().__init__(
            chain_kernel, grid, operands, y, BLOCK_N=block.block_n, ROWS=block.rows, num_warps=block.num_warps
        )


def compile_for(target: str | Target, *, dtype: str = "bf16", **block: int) -> compiler.Compiled:
    """The fused chain compiled for ``target``, no GPU needed; ``block`` as in `Block`. Sizes: multiples of 16."""
    tunables = Block(**block)
    pointers = ("x_ptr", "bias_ptr", "scale_ptr", "residual_ptr", "y_ptr")
    sizes = ("M", "N", "stride_x", "stride_residual", "stride_y")
    signature = dict.fromkeys(pointers, f"*{dtype}") | dict.fromkeys(sizes, "i32:16")
    constants = {"BLOCK_N": tunables.block_n, "ROWS": tunables.rows}
    return compiler.compile_for(
        chain_kernel, target, signature=signature, constants=constants, num_warps=tunables.num_warps
    )


def check_operands(x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> None:
    """ValueError unless the shapes are [M, N], [N], [N], [M, N]."""
    shapes = [tuple(t.shape) for t in (x, bias, scale, residual)]
    if x.dim() != 2 or shapes[1:] != [shapes[0][1:], shapes[0][1:], shapes[0]]:
        raise ValueError(TEXT["shapes"].format(shapes=shapes))
    launch.refuse_bfloat16_on_cpu(x)


# --- CPU -----------------------------------------------------------------------------------------


# error_model="numpy": numba's default raises on a division by zero, and a loop that may raise is not
# vectorised (measured: 6.3 ns per element against 1 or less).
@numba.njit(nogil=True, fastmath=REORDER, error_model="numpy", cache=True)
def _chain_rows(x, bias, scale, residual, y, first, last):  # type: ignore[no-untyped-def]
    """Rows [first, last) of the chain in one pass.

    tanh as a ratio of two polynomials, since a call to the C library would keep the loop from being
    vectorised. The coefficients are those of Eigen's float tanh (Eigen/src/Core/MathFunctionsImpl.h),
    good to a few units in the last place on [-7.9, 7.9], beyond which tanh is 1 in float32.
    """
    half, one, cubic, root = np.float32(0.5), np.float32(1.0), np.float32(0.044715), np.float32(0.7978845608028654)
    limit = np.float32(7.90531110763549805)
    a1, a3, a5 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)
    a7, a9 = np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11)
    a11, a13 = np.float32(2.00018790482477e-13), np.float32(-2.76076847742355e-16)
    b0, b2 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
    b4, b6 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)
    for i in range(first, last):
        x_row, residual_row, y_row = x[i], residual[i], y[i]
        for j in range(x.shape[1]):
            v = x_row[j] + bias[j]
            full = root * (v + cubic * v * v * v)
            u = min(max(full, -limit), limit)
            s = u * u
            top = u * (a1 + s * (a3 + s * (a5 + s * (a7 + s * (a9 + s * (a11 + s * a13))))))
            bottom = b0 + s * (b2 + s * (b4 + s * b6))
            t = one if full > limit else (-one if full < -limit else top / bottom)
            y_row[j] = half * v * (one + t) * scale[j] + residual_row[j]


def fused_cpu(
    x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """The chain in one pass over memory, fp32, on all of torch's threads."""
    arrays = tuple(t.numpy() for t in (x, bias, scale, residual, out))
    split_rows(x.shape[0], 1, lambda first, last: _chain_rows(*arrays, first, last))  # type: ignore[call-arg]
    return out


# --- the reference and the costs -----------------------------------------------------------------


def reference(x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The chain in float64, straight from the definition."""
    v = x.double() + bias.double()
    u = 0.7978845608028654 * (v + 0.044715 * v**3)
    return 0.5 * v * (1 + torch.tanh(u)) * scale.double() + residual.double()


def compulsory_bytes(M: int, N: int, element_size: int) -> int:
    """x and residual read, y written, bias and scale read once."""
    return element_size * (3 * M * N + 2 * N)


def eager_bytes(M: int, N: int, element_size: int) -> int:
    """Add, GELU and multiply read and write [M, N]; the last add reads two: 9 M N, and the vectors."""
    return element_size * (9 * M * N + 2 * N)


def flops(M: int, N: int) -> int:
    """Per element: bias 1, GELU 9 (docs/costs.md), scale 1, residual 1."""
    return 12 * M * N

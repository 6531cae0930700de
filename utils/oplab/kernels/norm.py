"""Layer norm and RMS norm over rows, forward and backward, each one kernel that reads its row once.

Shapes: x, y, dy, dx [M, N]; weight, bias and their gradients [N]; mean, rstd [M] in float32.

    layer norm:  y = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(variance + eps)
    RMS norm:    y = x * rstd * weight,                  rstd = 1 / sqrt(mean of x² + eps)

Saved for the backward: x, weight and one or two numbers per row; not the normalised rows. The gradients of
weight and bias are sums over all rows. Each program of the backward keeps such sums for the rows it walks,
and a second, small step adds the programs up: no atomics, so the same result every time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from oplab.kernels.launch import Launch, power_of_two, refuse_bfloat16_on_cpu, rows_of
from oplab.kernels.triton_or_not import tl, triton

WIDEST = 32768  # columns that one program keeps in registers

# What people read, in one place.
TEXT = {"wide": "the norm kernels keep a row in registers and take up to {widest:,} columns, not {n:,}"}


@triton.jit
def forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr,
    M, N, stride_x, stride_y, eps,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program, ROWS whole rows. CENTRED: layer norm, else RMS norm."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    at = tl.arange(0, BLOCK)  # [BLOCK]
    live, inside = row < M, (row < M)[:, None] & (at < N)[None, :]
    x = tl.load(x_ptr + row[:, None] * stride_x + at[None, :], mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    if CENTRED:
        mean = tl.sum(x, 1) / N
        tl.store(mean_ptr + row, mean, mask=live)
        x = tl.where((at < N)[None, :], x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, 1) / N + eps)
    tl.store(rstd_ptr + row, rstd, mask=live)
    y = x * rstd[:, None] * weight
    if CENTRED:
        y += tl.load(bias_ptr + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + row[:, None] * stride_y + at[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    x_ptr, weight_ptr, dy_ptr, mean_ptr, rstd_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    M, N, stride_x, stride_dy, stride_dx,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program p of P takes every P-th ROWS rows; its sums go to row p of dweight and dbias [P, N]."""
    at = tl.arange(0, BLOCK)  # [BLOCK]
    weight = tl.load(weight_ptr + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)  # [ROWS]
        live, inside = row < M, (row < M)[:, None] & (at < N)[None, :]
        x = tl.load(x_ptr + row[:, None] * stride_x + at[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row[:, None] * stride_dy + at[None, :], mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row, mask=live, other=0.0)[:, None]
        if CENTRED:
            mean = tl.load(mean_ptr + row, mask=live, other=0.0)[:, None]
            x = tl.where(inside, x - mean, 0.0)
            dbias += dy
        normal = x * rstd  # the normalised rows, made again instead of read
        dweight += dy * normal
        scaled = dy * weight
        dx = scaled - normal * (tl.sum(scaled * normal, 1) / N)[:, None]
        if CENTRED:
            dx -= (tl.sum(scaled, 1) / N)[:, None]
        tl.store(dx_ptr + row[:, None] * stride_dx + at[None, :], (dx * rstd).to(dx_ptr.dtype.element_ty), mask=inside)
    own = tl.program_id(0) * N + at
    tl.store(dweight_ptr + own, tl.sum(dweight, 0), mask=at < N)
    if CENTRED:
        tl.store(dbias_ptr + own, tl.sum(dbias, 0), mask=at < N)


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> tuple[Launch, torch.Tensor, torch.Tensor]:
    """(launch that returns y, mean [M], rstd [M]): layer norm with ``bias``, RMS norm without."""
    refuse_bfloat16_on_cpu(x)
    rows = rows_of(x)
    M, N = rows.shape
    options = held(N)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = torch.empty(2, M, dtype=torch.float32, device=x.device).unbind()
    shift = weight if bias is None else bias
    grid = (-(-M // options["ROWS"]) if N else 0,)
    operands = (rows, weight, shift, y, mean, rstd, M, N, rows.stride(0), N, eps)
    return Launch(forward_kernel, grid, operands, y, CENTRED=bias is not None, **options), mean, rstd


def backward(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, *, centred: bool
) -> Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """A call that returns (dx, dweight, dbias); dbias is None for RMS norm."""
    refuse_bfloat16_on_cpu(x)
    rows, grads = rows_of(x), rows_of(dy)
    M, N = rows.shape
    options = held(N)
    programs = min(-(-M // options["ROWS"]), _programs(x.device, N)) if N else 0
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = torch.empty(2 if centred else 1, programs, N, dtype=torch.float32, device=x.device)
    operands = (rows, weight, grads, mean, rstd, dx, sums[0], sums[-1], M, N, rows.stride(0), grads.stride(0), N)
    launch = Launch(backward_kernel, (programs,), operands, dx, CENTRED=centred, **options)

    def call() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        launch()
        totals = sums.sum(1).to(weight.dtype)
        return dx, totals[0], totals[1] if centred else None

    return call


def held(N: int) -> dict[str, int]:
    """Tunables for whole rows in registers: about 16 elements per thread, at least 2,048 in all."""
    if N > WIDEST:
        raise ValueError(TEXT["wide"].format(widest=WIDEST, n=N))
    block = power_of_two(N)
    rows = max(1, 2048 // block)
    return {"ROWS": rows, "BLOCK": block, "num_warps": min(32, max(4, block * rows // 512))}


def _programs(device: torch.device, N: int) -> int:
    """Enough to fill the GPU a few times; each costs a row of sums."""
    if device.type != "cuda":
        return 3  # the interpreter: a few, so that each walks several rows
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return sms * (2 if N > 8192 else 4)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):  # type: ignore[no-untyped-def]
        launch, mean, rstd = forward(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.centred = bias is not None
        return launch()

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        x, weight, mean, rstd = ctx.saved_tensors
        dx, dweight, dbias = backward(x, weight, dy, mean, rstd, centred=ctx.centred)()
        return dx, dweight, dbias, None


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Layer norm over the last dimension, differentiable once."""
    return _Norm.apply(x, weight, bias, eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """RMS norm over the last dimension, differentiable once."""
    return _Norm.apply(x, weight, None, eps)


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """Layer norm, or RMS norm without ``bias``, in float64."""
    if bias is None:
        return F.rms_norm(x.double(), x.shape[-1:], weight.double(), eps)
    return F.layer_norm(x.double(), x.shape[-1:], weight.double(), bias.double(), eps)


def compulsory_bytes(M: int, N: int, element_size: int, *, centred: bool = True) -> tuple[int, int]:
    """(forward, backward): x and y; x, dy and dx; weight, bias, their gradients, and mean and rstd in fp32."""
    vectors, saved = (2 if centred else 1), (2 if centred else 1) * 4 * M
    forward = element_size * (2 * M * N + vectors * N) + saved
    return forward, element_size * (3 * M * N + (1 + vectors) * N) + saved

"""Matrix product C = A B: tiled Triton, persistent Triton, numba on the CPU, torch as reference.

Shapes: A [M, K], B [K, N], C [M, N], row-major. FLOPs 2MNK. Compulsory bytes: A, B and C once each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from oplab import compiler
from oplab.compiler.targets import Target
from oplab.kernels import launch
from oplab.kernels.on_cpu import REORDER, split_rows
from oplab.kernels.triton_or_not import tl, triton

# What people read, in one place.
TEXT = {
    "shapes": "matmul needs A [M, K] and B [K, N]; got {a} and {b}",
    "dtypes": "matmul needs A and B of one dtype; got {a} and {b}",
    "descriptor": "a tensor descriptor needs rows that start on 16-byte boundaries: {name} has rows of "
    "{stride} elements of {size} B. Use kernel='tiled' for this shape",
}


@dataclass(frozen=True)
class Tile:
    """The tunables. ``num_warps`` and ``num_stages`` mean nothing on a CPU."""

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    num_warps: int = 8
    num_stages: int = 3
    group_m: int = 8  # tile rows walked together so that their B tiles are still in L2


# --- Triton: one program per tile of C -----------------------------------------------------------


@triton.jit
def _grouped_tile(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Tile number -> (row, column) of tiles, walking GROUP_M tile rows column by column."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    per_group = GROUP_M * tiles_n
    first_m = (tile // per_group) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    return first_m + (tile % per_group) % rows, (tile % per_group) // rows


@triton.jit
def tiled_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_bk, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes one [BLOCK_M, BLOCK_N] tile of C, BLOCK_K columns of A at a time."""
    tile_m, tile_n = _grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    # Rows and columns past the edge read row or column 0 of the tile; the store leaves them out.
    rows = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left_m = M - tile_m * BLOCK_M
    left_n = N - tile_n * BLOCK_N
    safe_rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < left_m, rows, 0), BLOCK_M), BLOCK_M)
    safe_cols = tl.max_contiguous(tl.multiple_of(tl.where(cols < left_n, cols, 0), BLOCK_N), BLOCK_N)
    # 64-bit tile bases, 32-bit offsets inside a tile: no overflow on large matrices.
    a_tile = a_ptr + (tile_m * BLOCK_M).to(tl.int64) * stride_am
    b_tile = b_ptr + tile_n * BLOCK_N
    a = a_tile + safe_rows[:, None] * stride_am + inner[None, :]  # [BLOCK_M, BLOCK_K]
    b = b_tile + inner[:, None] * stride_bk + safe_cols[None, :]  # [BLOCK_K, BLOCK_N]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            a_block = tl.load(a)
            b_block = tl.load(b)
        else:
            a_block = tl.load(a, mask=inner[None, :] < K - k * BLOCK_K, other=0.0)
            b_block = tl.load(b, mask=inner[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a_block, b_block, acc, input_precision=PRECISION)
        a += BLOCK_K
        b += BLOCK_K * stride_bk
    c_tile = c_ptr + (tile_m * BLOCK_M).to(tl.int64) * stride_cm + tile_n * BLOCK_N
    c = c_tile + rows[:, None] * stride_cm + cols[None, :]  # [BLOCK_M, BLOCK_N]
    inside = (rows[:, None] < left_m) & (cols[None, :] < left_n)
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=inside)


# --- Triton: as many programs as the GPU has SMs, each walking many tiles -------------------------


@triton.jit
def persistent_kernel(
    a_desc, b_desc, c_desc,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Program p of P computes tiles p, p + P, p + 2P, …; the copy engine fetches blocks by descriptor.

    ``flatten`` makes one loop of the two, so that the first blocks of the next tile are on their way
    while this one is finished. The tile leaves in two halves: half the shared memory to stage it, which
    leaves room for a fourth stage of 128 x 256 x 64.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = _grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, tl.cdiv(K, BLOCK_K)):
            a_block = a_desc.load([tile_m * BLOCK_M, k * BLOCK_K])  # zeros past the edge
            b_block = b_desc.load([k * BLOCK_K, tile_n * BLOCK_N])
            acc = tl.dot(a_block, b_block, acc, input_precision=PRECISION)
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)  # each [BLOCK_M, BLOCK_N // 2]
        c_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N], left.to(c_desc.dtype))
        c_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N + BLOCK_N // 2], right.to(c_desc.dtype))


def tiled(a: torch.Tensor, b: torch.Tensor, tile: Tile = Tile(), tf32: bool = False) -> torch.Tensor:
    """C = A B with one program per tile. Any shape, fp32, fp16 or bf16; ``tf32`` rounds fp32 inputs."""
    return Launch(a, b, tile=tile, tf32=tf32)()


def persistent(a: torch.Tensor, b: torch.Tensor, tile: Tile = Tile(), tf32: bool = False) -> torch.Tensor:
    """C = A B with one program per SM and tensor descriptors. Rows must be multiples of 16 bytes."""
    return Launch(a, b, kernel="persistent", tile=tile, tf32=tf32)()


class Launch(launch.Launch):
    """A call without arguments that computes ``out``; timing it does not time preparing it.

    ``kernel`` is "tiled" or "persistent". After a call, ``compiled`` is Triton's compiled kernel
    (registers, spills, shared memory).
    """

    def __init__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        kernel: str = "tiled",
        tile: Tile = Tile(),
        tf32: bool = False,
    ) -> None:
        check_operands(a, b)
        a, b = (t if t.stride(-1) == 1 or t.numel() == 0 else t.contiguous() for t in (a, b))
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty((M, N), dtype=a.dtype, device=a.device) if out is None else out
        tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
        multiprocessors = _multiprocessors(a.device)
        self.resources: dict[str, float] = {"tiles": tiles, "waves": tiles / multiprocessors}
        options: dict[str, int | str] = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
        options |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}
        options |= {"GROUP_M": tile.group_m, "PRECISION": "tf32" if tf32 else "ieee"}
        self.nothing = tiles == 0 or K == 0
        operands: tuple[Any, ...]
        if kernel == "persistent":
            pairs = zip("ABC", (a, b, c), _descriptor_blocks(tile), strict=True)
            operands = () if self.nothing else tuple(_descriptor(*pair) for pair in pairs)
            super().__init__(persistent_kernel, (min(tiles, multiprocessors),), (*operands, M, N, K), c, **options)
        else:
            operands = (a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0))
            super().__init__(tiled_kernel, (tiles,), operands, c, **options, EVEN_K=K % tile.block_k == 0)

    def __call__(self) -> torch.Tensor:
        return self.out.zero_() if self.nothing else super().__call__()  # zero: a sum over nothing


def compile_for(
    target: str | Target, *, dtype: str = "bf16", kernel: str = "tiled", even_k: bool = True, **tile: int
) -> compiler.Compiled:
    """``kernel`` ("tiled" or "persistent") compiled for ``target``, no GPU needed; ``tile`` as in `Tile`.

    ``dtype``: "fp32" (exact), "tf32", "bf16" or "fp16". Sizes and strides are taken as multiples of 16, and
    with ``even_k`` K as a multiple of block_k. Raises as `compiler.compile_for` does.
    """
    shape = Tile(**tile)
    element = "fp32" if dtype == "tf32" else dtype
    constants: dict[str, object] = {"BLOCK_M": shape.block_m, "BLOCK_N": shape.block_n, "BLOCK_K": shape.block_k}
    constants |= {"GROUP_M": shape.group_m, "PRECISION": "tf32" if dtype == "tf32" else "ieee"}
    signature = dict.fromkeys(("M", "N", "K"), "i32:16")
    if kernel == "persistent":
        for name, block in zip("abc", _descriptor_blocks(shape), strict=True):
            signature[f"{name}_desc"] = f"tensordesc<{element}{list(block)}>"
        function = persistent_kernel
    else:
        signature |= dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), f"*{element}")
        signature |= dict.fromkeys(("stride_am", "stride_bk", "stride_cm"), "i32:16")
        constants["EVEN_K"] = even_k
        function = tiled_kernel
    options = {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
    return compiler.compile_for(function, target, signature=signature, constants=constants, **options)


def _descriptor_blocks(tile: Tile) -> tuple[tuple[int, int], ...]:
    """The blocks of A, B and C that the copy engine moves; C leaves in two halves."""
    return (tile.block_m, tile.block_k), (tile.block_k, tile.block_n), (tile.block_m, tile.block_n // 2)


def _descriptor(name: str, tensor: torch.Tensor, block: tuple[int, int]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    if tensor.stride(0) * tensor.element_size() % 16 or tensor.data_ptr() % 16:
        size = tensor.element_size()
        raise ValueError(TEXT["descriptor"].format(name=name, stride=tensor.stride(0), size=size))
    return TensorDescriptor.from_tensor(tensor, list(block))


def _multiprocessors(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 4  # the interpreter: a few programs, so that each walks several tiles


def check_operands(a: torch.Tensor, b: torch.Tensor) -> None:
    """ValueError unless A [M, K] and B [K, N] have one dtype and one inner size."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(TEXT["shapes"].format(a=tuple(a.shape), b=tuple(b.shape)))
    if a.dtype != b.dtype:
        raise ValueError(TEXT["dtypes"].format(a=a.dtype, b=b.dtype))
    launch.refuse_bfloat16_on_cpu(a)


# --- CPU: the same loop with and without tiles ----------------------------------------------------


@numba.njit(nogil=True, fastmath=REORDER, cache=True)
def _naive_rows(a, b, c, first, last):  # type: ignore[no-untyped-def]
    """Rows [first, last) of C by the definition. The inner loop walks down a column of B."""
    for i in range(first, last):
        for j in range(b.shape[1]):
            total = np.float32(0.0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total


@numba.njit(nogil=True, fastmath=REORDER, cache=True)
def _tiled_rows(a, b, c, block_m, block_n, block_k, first, last):  # type: ignore[no-untyped-def]
    """Rows [first, last) of C, tile by tile: a block of B is used block_m times while it is in cache."""
    n_cols, n_inner = b.shape[1], a.shape[1]
    c[first:last, :] = 0.0
    for i0 in range(first, last, block_m):
        i1 = min(i0 + block_m, last)
        for k0 in range(0, n_inner, block_k):
            k1 = min(k0 + block_k, n_inner)
            for j0 in range(0, n_cols, block_n):
                j1 = min(j0 + block_n, n_cols)
                for i in range(i0, i1):
                    c_row = c[i, j0:j1]
                    k = k0
                    while k + 4 <= k1:  # four rows of B per pass over the row of C
                        a0, a1, a2, a3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
                        b0, b1, b2, b3 = b[k, j0:j1], b[k + 1, j0:j1], b[k + 2, j0:j1], b[k + 3, j0:j1]
                        for j in range(j1 - j0):
                            c_row[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j]
                        k += 4
                    while k < k1:
                        a0, b0 = a[i, k], b[k, j0:j1]
                        for j in range(j1 - j0):
                            c_row[j] += a0 * b0[j]
                        k += 1


def naive_cpu(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """C = A B by the definition, fp32, on all of torch's threads."""
    arrays = (a.numpy(), b.numpy(), out.numpy())
    split_rows(out.shape[0], 1, lambda first, last: _naive_rows(*arrays, first, last))
    return out


def tiled_cpu(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, tile: Tile) -> torch.Tensor:
    """C = A B in tiles, fp32, on all of torch's threads."""
    arrays = (a.numpy(), b.numpy(), out.numpy(), tile.block_m, tile.block_n, tile.block_k)
    split_rows(out.shape[0], tile.block_m, lambda first, last: _tiled_rows(*arrays, first, last))
    return out


# --- the reference and the costs -----------------------------------------------------------------


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A B in float64."""
    return a.double() @ b.double()


def flops(M: int, N: int, K: int) -> int:
    """One multiplication and one addition for each (m, n, k)."""
    return 2 * M * N * K


def compulsory_bytes(M: int, N: int, K: int, element_size: int) -> int:
    """A and B read once, C written once."""
    return element_size * (M * K + K * N + M * N)

"""A copy y = x whose loads and stores are as wide as you say: the smallest memory-bound kernel.

Shapes: x, y [n], contiguous. Compulsory bytes: x read once, y written once. Written in Gluon, Triton's
lower level, where the programmer and not the compiler decides which thread holds which elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oplab import compiler
from oplab.compiler.targets import Target, find
from oplab.kernels import launch
from oplab.kernels.triton_or_not import gl, gluon

# What people read, in one place.
TEXT = {
    "shapes": "copy needs two contiguous arrays of one shape and dtype; got {x} and {y}",
    "gpu": "the Gluon copy needs a GPU: Triton's interpreter does not run Gluon",
}


@dataclass(frozen=True)
class Vector:
    """The tunables. A thread moves ``vector`` neighbouring elements at a time, ``unroll`` times."""

    vector: int = 8
    unroll: int = 1
    num_warps: int = 4


@gluon.jit
def copy_kernel(
    x_ptr, y_ptr, n,
    VECTOR: gl.constexpr, UNROLL: gl.constexpr, WARPS: gl.constexpr, WARP_SIZE: gl.constexpr,
):  # fmt: skip
    """One program copies WARPS * WARP_SIZE * VECTOR * UNROLL elements."""
    # Thread t of warp w holds elements (w * WARP_SIZE + t) * VECTOR + [0, VECTOR), and so on UNROLL times.
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [WARP_SIZE], [WARPS], [0])
    block: gl.constexpr = WARPS * WARP_SIZE * VECTOR * UNROLL
    offsets = gl.program_id(0).to(gl.int64) * block + gl.arange(0, block, layout)  # [block]
    inside = offsets < n
    gl.store(y_ptr + offsets, gl.load(x_ptr + offsets, mask=inside), mask=inside)


class Launch(launch.Launch):
    """A call without arguments that copies ``x`` to ``out``; timing it does not time preparing it."""

    def __init__(self, x: torch.Tensor, out: torch.Tensor | None = None, vector: Vector = Vector()) -> None:
        y = torch.empty_like(x) if out is None else out
        alike = x.shape == y.shape and x.dtype == y.dtype
        if not (alike and x.is_contiguous() and y.is_contiguous()):
            raise ValueError(TEXT["shapes"].format(x=tuple(x.shape), y=tuple(y.shape)))
        if x.device.type == "cpu":
            raise ValueError(TEXT["gpu"])
        warp_size = torch.cuda.get_device_properties(x.device).warp_size
        block = warp_size * vector.num_warps * vector.vector * vector.unroll
        constants = _constants(vector, warp_size)
        grid = (-(-x.numel() // block),)
        super().__init__(copy_kernel, grid, (x, y, x.numel()), y, num_warps=vector.num_warps, **constants)


def _constants(vector: Vector, warp_size: int) -> dict[str, int]:
    return {"VECTOR": vector.vector, "UNROLL": vector.unroll, "WARPS": vector.num_warps, "WARP_SIZE": warp_size}


def compile_for(
    target: str | Target,
    *,
    dtype: str = "bf16",
    vector: int = 8,
    unroll: int = 1,
    num_warps: int = 4,
    aligned: bool = True,
) -> compiler.Compiled:
    """The copy compiled for ``target``, no GPU needed. Without ``aligned``, for a length of any remainder."""
    where = find(target)
    constants = _constants(Vector(vector, unroll, num_warps), where.warp_size)
    signature = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "n": "i32:16" if aligned else "i32"}
    return compiler.compile_for(copy_kernel, where, signature=signature, constants=constants, num_warps=num_warps)


def compulsory_bytes(n: int, element_size: int) -> int:
    """x read once, y written once."""
    return 2 * n * element_size

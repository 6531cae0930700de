"""A kernel with its arguments: called without any, so that timing it does not time preparing it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from oplab import compiler
from oplab.compiler.source import parameters

# What people read, in one place.
TEXT = {"interpreter": "Triton's interpreter mishandles bfloat16: use fp16 or fp32 there"}


class Launch:
    """Calls ``kernel[grid](*operands, **options)`` and returns ``out``.

    After a call, ``compiled`` is Triton's compiled kernel (registers, spills, shared memory). A grid with
    no programs launches nothing.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], operands: tuple, out: Any, **options: Any) -> None:
        self.kernel, self.grid, self.operands, self.out, self.options = kernel, grid, operands, out, options
        self.compiled: Any = None

    def __call__(self) -> Any:
        if all(self.grid):
            self.compiled = self.kernel[self.grid](*self.operands, **self.options)
        return self.out

    def compile(self) -> None:
        """Compile without launching, so that compiling needs no hold on the device."""
        if all(self.grid):
            self.kernel.warmup(*self.operands, grid=self.grid, **self.options)

    def trace(self, timeout: float = 600.0) -> compiler.Traffic:
        """What the call loads and stores, by Triton's interpreter; ``out`` counts as not yet written."""
        outs = self.out if isinstance(self.out, tuple) else (self.out,)
        pairs = zip((name for name, _ in parameters(self.kernel)), self.operands, strict=False)
        outputs = [name for name, given in pairs if any(getattr(given, "base", given) is out for out in outs)]
        return compiler.trace(self.kernel, self.grid, *self.operands, outputs=outputs, timeout=timeout, **self.options)


def compile_for_shapes(compiled: Callable[..., object], *inputs: torch.Tensor) -> None:
    """Have a function of ``torch.compile`` make its program for these shapes, seconds the first time.

    Its limit of 8 programs per function is lifted here and not around every call: the patch would
    cost each call more time than a small operator takes.
    """
    with torch._dynamo.config.patch(recompile_limit=256):
        compiled(*inputs)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """``x`` as [rows, columns] with neighbouring columns next to each other; copied only where it must be."""
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return flat if flat.stride(-1) == 1 or flat.numel() == 0 else flat.contiguous()


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def refuse_bfloat16_on_cpu(*tensors: torch.Tensor) -> None:
    """ValueError: on CPU tensors kernels run in Triton's interpreter, which mishandles bfloat16."""
    if any(t.device.type == "cpu" and t.dtype == torch.bfloat16 for t in tensors):
        raise ValueError(TEXT["interpreter"])

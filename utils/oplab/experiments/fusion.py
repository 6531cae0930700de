"""FUSION: what does it cost to write every intermediate of an element-wise chain to memory?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch

from oplab.compiler import Compiled
from oplab.compiler.targets import Target
from oplab.experiments.experiment import Experiment, Knob, dtype_name, offered, whole_number
from oplab.experiments.live import Cost, Counted, Work, trial
from oplab.experiments.result import Result
from oplab.kernels import pointwise
from oplab.kernels.launch import compile_for_shapes
from oplab.machine import DTYPES

# What people read, in one place.
TEXT = {
    "title": "Fusing bias + GELU + scale + residual",
    "size": "The arrays are size x size.",
    "dtype": "Bytes per element: 4 for fp32, 2 for bf16 and fp16.",
    "fused": "eager: four PyTorch operators. compiled: torch.compile. triton: one kernel by hand. "
    "numba: one loop by hand, on the CPU.",
    "baseline": "eager",
    "triton_here": "fused: the Triton kernel runs on a GPU; on a CPU the kernel by hand is 'numba'",
    "numba_here": "fused: the numba kernel runs on a CPU; on a GPU the kernel by hand is 'triton'",
}


SIZES = (512, 1024, 2048, 4096, 8192, 16384)
WAYS = ("eager", "compiled", "triton")


def _way(knob: Knob, value: object, source: str) -> object:
    if value not in knob.choices(source) and value in ("triton", "numba"):
        raise ValueError(TEXT["triton_here" if value == "triton" else "numba_here"])
    return offered(knob, value, source)


class Fusion(Experiment):
    name = "fusion"
    title = TEXT["title"]
    knobs = (
        Knob("size", "size", TEXT["size"], SIZES, 8192, SIZES[:4], 4096, whole_number),
        Knob("dtype", "dtype", TEXT["dtype"], ("bf16", "fp16", "fp32"), "bf16", ("fp32",), "fp32", dtype_name),
        Knob("fused", "fused", TEXT["fused"], WAYS, "eager", ("eager", "compiled", "numba"), "eager", _way),
    )

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        size, dtype = knobs["size"], knobs["dtype"]
        item = DTYPES[dtype].itemsize
        return trial(
            self.blank(knobs, source),
            device,
            key=(self.name, size, dtype, device.type),
            make_work=partial(_make_work, size, dtype, device),
            work_bytes=size * size * (5 * item + 4),  # two inputs, the output, two intermediates, the reference
            cost=Cost(pointwise.flops(size, size), pointwise.compulsory_bytes(size, size, item), dtype),
            candidate=partial(_candidate, knobs["fused"]),
            baseline=TEXT["baseline"],
        )

    def compiled(self, knobs: dict, source: str, target: Target) -> tuple[Compiled, int] | None:
        if knobs["fused"] != "triton":
            return None
        block, size = pointwise.Block(), knobs["size"]
        blocks = -(-size // block.rows) * -(-size // block.block_n)
        return pointwise.compile_for(target, dtype=knobs["dtype"], **vars(block)), blocks

    def settings(self, source: str) -> Iterator[dict]:
        size, dtype, fused = (knob.choices(source) for knob in self.knobs)
        for s, d, f in product(size, dtype, fused):
            yield {"size": s, "dtype": d, "fused": f}


def _make_work(size: int, dtype: str, device: torch.device) -> Work:
    draw = partial(torch.randn, device=device)
    inputs = tuple(draw(shape).to(DTYPES[dtype]) for shape in ((size, size), (size,), (size,), (size, size)))
    x, bias, scale, residual = inputs
    right = torch.empty(size, size, device=device)
    for first in range(0, size, 2048):  # float64 intermediates of a part of the rows at a time
        rows = slice(first, first + 2048)
        right[rows] = pointwise.reference(x[rows], bias, scale, residual[rows])
    return Work(inputs, torch.empty_like(x), right, partial(pointwise.eager, *inputs))


def _candidate(fused: str, work: Work) -> Counted:
    """Bytes are counted from the definition: each kernel reads its inputs once and writes its output once."""
    x, bias, scale, residual = work.inputs
    calls: dict[str, Callable[[], Callable[[], torch.Tensor]]] = {
        "eager": lambda: partial(pointwise.eager, *work.inputs),
        "compiled": lambda: partial(pointwise.compiled, *work.inputs),
        "triton": lambda: pointwise.Launch(x, bias, scale, residual, work.output),
        "numba": lambda: partial(pointwise.fused_cpu, x, bias, scale, residual, work.output),
    }
    (M, N), item = work.output.shape, work.output.element_size()
    moved = pointwise.eager_bytes if fused == "eager" else pointwise.compulsory_bytes
    resources = {"kernels": 4 if fused == "eager" else 1, "bytes_moved": moved(M, N, item)}
    compile = partial(compile_for_shapes, pointwise.compiled, *work.inputs) if fused == "compiled" else None
    return Counted(calls[fused](), resources, compile)


FUSION = Fusion()

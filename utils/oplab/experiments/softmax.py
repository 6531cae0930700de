"""SOFTMAX: how often must a row be read to normalise it, and what does each reading cost?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch

from oplab.cost import count
from oplab.experiments.experiment import Experiment, Knob, dtype_name, offered, whole_number
from oplab.experiments.live import Cost, Counted, Work, trial
from oplab.experiments.result import LIVE_CPU, Result
from oplab.kernels import softmax
from oplab.kernels.launch import compile_for_shapes
from oplab.machine import DTYPES

ELEMENTS = {"cuda": 1 << 28, "cpu": 1 << 24}  # of x: far beyond every cache
COLUMNS = (64, 256, 1024, 4096, 16384, 65536)
CPU_WAYS = ("eager", "torch", "compiled")
BACKWARD_WAYS = ("eager", "torch", "compiled", "fused")

# What people read, in one place.
TEXT = {
    "title": "Softmax over rows",
    "columns": "Length of a row. The array keeps its size: a longer row, fewer rows.",
    "step": "forward: y from x. backward: dx from y and dy.",
    "dtype": "Bytes per element: 4 for fp32, 2 for bf16 and fp16.",
    "way": "eager: one PyTorch operator for each step. torch: its own kernel. compiled: torch.compile. "
    "three_pass, online, fused: by hand, each row read three times, twice, once.",
    "baseline": "torch",
    "triton_here": "way: {way!r} is a Triton kernel and runs on a GPU; on a CPU choose one of {have}",
    "forward_only": "way: {way!r} is a way forward; backward there are {have}",
}


def _way(knob: Knob, value: object, source: str) -> object:
    if source == LIVE_CPU and value in softmax.WAYS:
        raise ValueError(TEXT["triton_here"].format(way=value, have=", ".join(CPU_WAYS)))
    return offered(knob, value, source)


class Softmax(Experiment):
    """``resources``: ``kernels`` that run, ``bytes_moved`` by them when each finds its data in memory."""

    name = "softmax"
    title = TEXT["title"]
    knobs = (
        Knob("columns", "columns", TEXT["columns"], COLUMNS, 4096, COLUMNS[:5], 1024, whole_number),
        Knob("dtype", "dtype", TEXT["dtype"], ("bf16", "fp16", "fp32"), "bf16", ("fp32",), "fp32", dtype_name),
        Knob("step", "step", TEXT["step"], ("forward", "backward"), "forward", ("forward", "backward"), "forward"),
        Knob("way", "way", TEXT["way"], (*CPU_WAYS, *softmax.WAYS), "eager", CPU_WAYS, "eager", _way),
    )

    def check(self, knobs: dict, source: str) -> None:
        if knobs["step"] == "backward" and knobs["way"] not in BACKWARD_WAYS:
            have = BACKWARD_WAYS[:3] if source == LIVE_CPU else BACKWARD_WAYS
            raise ValueError(TEXT["forward_only"].format(way=knobs["way"], have=", ".join(have)))

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        columns, dtype, step, way = (knobs[knob.name] for knob in self.knobs)
        M, item = max(1, ELEMENTS[device.type] // columns), DTYPES[dtype].itemsize
        forward = step == "forward"
        return trial(
            self.blank(knobs, source),
            device,
            key=(self.name, columns, dtype, step, device.type),
            make_work=partial(_make_work, (M, columns), dtype, step, device),
            work_bytes=M * columns * ((2 if forward else 3) * item + 4 + 2 * item),  # and eager's intermediates
            cost=Cost(0, softmax.compulsory_bytes(M, columns, item)[0 if forward else 1], dtype),
            candidate=partial(_candidate, step, way),
            baseline=TEXT["baseline"],
        )

    def settings(self, source: str) -> Iterator[dict]:
        for c, d, s, w in product(*(knob.choices(source) for knob in self.knobs)):
            if s == "forward" or w in BACKWARD_WAYS:
                yield {"columns": c, "dtype": d, "step": s, "way": w}


def _make_work(shape: tuple[int, int], dtype: str, step: str, device: torch.device) -> Work:
    x = (3 * torch.randn(shape, device=device)).to(DTYPES[dtype])
    right = torch.empty(shape, device=device)
    rows = max(1, (1 << 23) // shape[1])  # float64 of a part at a time
    if step == "forward":
        for part, to in zip(x.split(rows), right.split(rows), strict=True):
            to.copy_(softmax.reference(part))
        return Work((x,), torch.empty_like(x), right, partial(_torch_forward, x))
    y, dy = x.softmax(-1), torch.randn(shape, device=device).to(x.dtype)
    for part, grad, to in zip(y.split(rows), dy.split(rows), right.split(rows), strict=True):
        exact, slope = part.double(), grad.double()
        to.copy_(exact * (slope - (exact * slope).sum(-1, keepdim=True)))
    return Work((y, dy), torch.empty_like(y), right, partial(_torch_backward, y, dy))


def _torch_forward(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _torch_backward(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def _by_hand(step: str, way: str, work: Work) -> Callable[[], torch.Tensor]:
    if step == "forward":
        return softmax.forward(work.inputs[0], work.output, way=way)
    return softmax.backward(work.inputs[0], work.inputs[1], work.output)


def _candidate(step: str, way: str, work: Work) -> Counted:
    inputs, forward = work.inputs, step == "forward"
    moved = _moved(step, way, work.output)
    if way == "compiled":
        compiled = softmax.compiled if forward else softmax.compiled_backward
        return Counted(partial(compiled, *inputs), moved, partial(compile_for_shapes, compiled, *inputs))
    if way == "eager":
        return Counted(partial(softmax.eager if forward else softmax.eager_backward, *inputs), moved)
    if way == "torch":
        return Counted(partial(_torch_forward if forward else _torch_backward, *inputs), moved)
    return Counted(_by_hand(step, way, work), moved)


def _moved(step: str, way: str, output: torch.Tensor) -> dict[str, float]:
    (M, N), item = output.shape, output.element_size()
    least = softmax.compulsory_bytes(M, N, item)[0 if step == "forward" else 1]
    if way == "eager":
        y, dy = (torch.empty(M, N, dtype=output.dtype, device="meta") for _ in range(2))
        costs = count(softmax.eager, y) if step == "forward" else count(softmax.eager_backward, y, dy)
        return {"kernels": sum(1 for op in costs.operators if op.bytes), "bytes_moved": costs.bytes}
    again = softmax.bytes_read(way, M, N, item) - M * N * item if step == "forward" and way in softmax.WAYS else 0
    return {"kernels": 1, "bytes_moved": least + again}


SOFTMAX = Softmax()

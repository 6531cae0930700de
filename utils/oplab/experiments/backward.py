"""BACKWARD: what does the backward of an operator cost, and what does it save?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from oplab import roofline, timing
from oplab.cost import CostCounter, Costs, Saved, saved_by
from oplab.cost.costs import readable
from oplab.cost.traffic import region_bytes
from oplab.experiments import live
from oplab.experiments.experiment import Experiment, Knob, dtype_name, whole_number
from oplab.experiments.result import LIVE_CPU, OUT_OF_MEMORY, RECORDED, SUSPECT, WRONG, Result
from oplab.machine import DTYPES, Machine, machine, tf32_allowed

# What people read, in one place.
TEXT = {
    "title": "Forward and backward of an operator",
    "operator": "Which operator to run forward and backward.",
    "size": "Rows and columns of its main input; a convolution has size/128 images of size/16 channels, 256 at most.",
    "dtype": "fp32 is exact float32, for convolutions too. bf16 and fp16 halve the bytes.",
    "baseline": "forward",
    "wrong": "gradient {number} is wrong: relative error {error:.2g}, {limit:.0e} allowed for {dtype}",
    "uncounted": "FLOPs not counted for: {names}",
    "not_measured": "not measured",
}

# Relative Frobenius error of a gradient that rounding alone explains: what was saved is rounded, and the
# gradient once more. fp32 leaves room for long sums and none for tf32.
LIMIT = {"fp32": 1e-4, "fp16": 4e-3, "bf16": 2e-2}

Inputs = tuple[Tensor, ...]
Draw = Callable[..., Tensor]


def _square(size: int, draw: Draw) -> Inputs:
    return (draw(size, size),)


def _pair(size: int, draw: Draw) -> Inputs:
    return draw(size, size), draw(size, size)


def _linear(size: int, draw: Draw) -> Inputs:
    return draw(size, size), draw(size, size), draw(size)  # rows, weight, bias


def _rows(size: int, draw: Draw) -> Inputs:
    return draw(size, size), draw(size), draw(size)  # rows, weight, bias


def _images(size: int, draw: Draw) -> Inputs:
    channels = min(256, max(4, size // 16))
    return draw(max(1, size // 128), channels, 56, 56), draw(channels, channels, 3, 3)


def _scores(size: int, draw: Draw) -> Inputs:
    scores = draw(size, size)
    return scores, torch.randint(size, (size,), device=scores.device)


# name -> (inputs, what is called on them)
MENU: dict[str, tuple[Callable[[int, Draw], Inputs], Callable[..., Tensor]]] = {
    "add": (_pair, torch.add),
    "mul": (_pair, torch.mul),
    "matmul": (_pair, torch.matmul),
    "linear": (_linear, F.linear),
    "convolution 3x3": (_images, lambda x, w: F.conv2d(x, w, padding=1)),
    "relu": (_square, torch.relu),
    "gelu": (_square, F.gelu),
    "layer norm": (_rows, lambda x, weight, bias: F.layer_norm(x, x.shape[1:], weight, bias)),
    "softmax": (_square, lambda x: x.softmax(dim=-1)),
    "cross entropy": (_scores, lambda x, target: F.cross_entropy(x, target, reduction="none")),
}

GPU_SIZES, CPU_SIZES = (1024, 4096, 8192), (64, 256, 1024, 2048)


@dataclass(frozen=True)
class Pass:
    """One operator on fresh inputs: its output, a gradient for it, and the two calls that are timed."""

    call: Callable[..., Tensor]
    inputs: Inputs
    output: Tensor
    gradient: Tensor

    @classmethod
    def of(cls, call: Callable[..., Tensor], inputs: Inputs) -> Pass:
        output = call(*inputs)
        # Bounded, so that no single row of it dominates the error.
        return cls(call, inputs, output, torch.rand_like(output).mul_(2).sub_(1))

    def forward(self) -> Tensor:
        return self.call(*self.inputs)

    def backward(self) -> tuple[Tensor, ...]:
        wanted = [t for t in self.inputs if t.requires_grad]
        return torch.autograd.grad(self.output, wanted, self.gradient, retain_graph=True)

    def costs(self) -> tuple[Costs, Costs]:
        """Of the calls as they are timed: nothing is added up into ``.grad``."""
        with CostCounter() as forward:
            self.forward()
        with CostCounter() as backward:
            self.backward()
        return forward.costs, backward.costs

    def exact(self) -> tuple[Tensor, ...]:
        """The gradients in float64."""
        doubles = tuple(t.detach().double().requires_grad_() if t.is_floating_point() else t for t in self.inputs)
        return Pass(self.call, doubles, self.call(*doubles), self.gradient.double()).backward()


class Backward(Experiment):
    """Times of the two passes of one operator, their counted costs, and what lies between them.

    ``samples`` are of the backward, ``baseline_seconds`` is the forward, so ``speedup`` is forward over
    backward. The forward runs in grad mode and saves what it saves. The backward is `torch.autograd.grad`
    on a given random gradient with ``retain_graph=True``: it includes the engine's own time, allocates
    its gradients, and does not add them into ``.grad``. On a GPU both are the device's time with a cold
    L2; where the host is slower than the device, the device's waiting is in them.

    ``resources``: ``forward_`` and ``backward_`` flops, bytes, operators (calls that move data) and
    floor_seconds (what the measured ceilings allow); ``input_bytes``; ``saved_bytes``, of which
    ``saved_new_bytes`` are neither inputs nor parameters, of which ``saved_output_bytes`` are the output.
    """

    name = "backward"
    title = TEXT["title"]
    knobs = (
        Knob("operator", "operator", TEXT["operator"], tuple(MENU), "linear", tuple(MENU), "linear"),
        Knob("size", "size", TEXT["size"], GPU_SIZES, 4096, CPU_SIZES, 1024, whole_number),
        Knob("dtype", "dtype", TEXT["dtype"], ("bf16", "fp16", "fp32"), "bf16", ("fp32", "bf16"), "fp32", dtype_name),
    )

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        result = replace(self.blank(knobs, source), baseline=TEXT["baseline"])
        dtype = knobs["dtype"]
        make, call = MENU[knobs["operator"]]
        try:
            ceilings = machine(device)
            with timing.device_lock(device), tf32_allowed(False), torch.enable_grad():
                if refusal := _no_room(make(knobs["size"], _on_meta(dtype)), device, result.machine):
                    return result.failed(OUT_OF_MEMORY, refusal)
                both = Pass.of(call, _differentiable(make(knobs["size"], _random(dtype, device))))
                error, complaint = check(both.backward(), both.exact(), dtype)
                result = replace(result, relative_error=error)
                if complaint:
                    return result.failed(WRONG, complaint)
                saved, costs = saved_by(call, *both.inputs), both.costs()
                least = _least_bytes(both, saved, costs)
                forward = timing.measure(both.forward, device=device, budget=0.05)
                backward = timing.measure(both.backward, device=device, budget=0.05)
        except Exception as failure:  # every failure of a setting becomes a sentence
            return live.explain(result, failure)
        result = replace(
            result,
            samples=backward.samples,
            notes=tuple(dict.fromkeys(forward.notes + backward.notes)) + _uncounted(*costs),
            baseline_seconds=forward.median,
            flops=costs[1].flops,
            nbytes=costs[1].bytes,
            resources=_resources(ceilings, dtype, both.inputs, saved, *costs),
        )
        if source == LIVE_CPU:  # a warm CPU cache is faster than memory, honestly
            return result
        for part, nbytes, timed in zip(costs, least, (forward, backward), strict=True):
            work = {"nbytes": nbytes, "flops": part.matrix_flops, "dtype": dtype}
            if faster := roofline.faster_than_ceiling(timed.median, ceilings, **work):
                return result.failed(SUSPECT, faster)
        return result

    def settings(self, source: str) -> Iterator[dict]:
        names, sizes, dtypes = (knob.choices(source) for knob in self.knobs)
        for size, dtype, name in product(sizes, dtypes, names):
            yield {"operator": name, "size": size, "dtype": dtype}


def check(got: Iterable[Tensor], right: Iterable[Tensor], dtype: str) -> tuple[float, str]:
    """(largest relative error of the gradients, complaint or ""). NaN never passes."""
    largest, limit = 0.0, LIMIT[dtype]
    for number, (gradient, exact) in enumerate(zip(got, right, strict=True)):
        error, worst = live.relative_error(gradient, exact)
        # `not <=` instead of `>`: a comparison with NaN is false.
        if not error <= limit or not worst <= 50 * limit:
            found = max(error, worst / 50) if error == error else error
            return error, TEXT["wrong"].format(number=number, error=found, limit=limit, dtype=dtype)
        largest = max(largest, error)
    return largest, ""


def _random(dtype: str, device: torch.device) -> Draw:
    return lambda *shape: torch.randn(*shape, device=device).to(DTYPES[dtype])


def _on_meta(dtype: str) -> Draw:
    return lambda *shape: torch.empty(*shape, dtype=DTYPES[dtype], device="meta")


def _differentiable(inputs: Inputs) -> Inputs:
    return tuple(t.requires_grad_() if t.is_floating_point() else t for t in inputs)


def _no_room(inputs: Inputs, device: torch.device, name: str) -> str:
    """A sentence when the passes and their float64 reference do not fit, else ""."""
    numbers = 2 * sum(t.numel() for t in inputs)  # an output is about as large as its inputs
    need = numbers * (3 * 8 + 4 * inputs[0].element_size())
    free = live.free_bytes(device)
    return live.TEXT["memory"].format(need=need / 1e9, free=free / 1e9, device=name) if need > free else ""


def _least_bytes(both: Pass, saved: Saved, costs: tuple[Costs, Costs]) -> tuple[int, int]:
    """What forward and backward must move even when one of their operators finds another's data in a cache."""
    forward = region_bytes([*both.inputs, both.output]) + saved.extra_bytes
    backward = saved.bytes + region_bytes([both.gradient, *both.backward()])
    return min(forward, costs[0].bytes), min(backward, costs[1].bytes)


def _uncounted(*costs: Costs) -> tuple[str, ...]:
    names = ", ".join(sorted({name for part in costs for name in part.uncounted}))
    return (TEXT["uncounted"].format(names=names),) if names else ()


def _resources(
    ceilings: Machine, dtype: str, inputs: Inputs, saved: Saved, forward: Costs, backward: Costs
) -> dict[str, float]:
    resources: dict[str, float] = {
        "input_bytes": region_bytes(inputs),
        "saved_bytes": saved.bytes,
        "saved_new_bytes": saved.new_bytes,
        "saved_output_bytes": saved.output_bytes,
    }
    for name, costs in (("forward", forward), ("backward", backward)):
        resources[f"{name}_flops"] = costs.flops
        resources[f"{name}_bytes"] = costs.bytes
        resources[f"{name}_operators"] = sum(1 for op in costs.operators if op.bytes)
        resources[f"{name}_floor_seconds"] = _floor(ceilings, costs, dtype)
    return resources


def _floor(ceilings: Machine, costs: Costs, dtype: str) -> float:
    work = {"matrix_flops": costs.matrix_flops, "vector_flops": costs.vector_flops, "nbytes": costs.bytes}
    return roofline.classify(ceilings, dtype=dtype, **work).floor_seconds


def on_paper(operator: str, size: int, dtype: str) -> tuple[Costs, Costs, Saved]:
    """(forward costs, backward costs, what is saved) of one operator of the menu; nothing is run."""
    make, call = MENU[operator]
    with torch.enable_grad():
        both = Pass.of(call, _differentiable(make(size, _on_meta(dtype))))
        return *both.costs(), saved_by(call, *both.inputs)


def at_a_glance(operators: Iterable[str] = tuple(MENU), size: int = 4096, dtype: str = "bf16") -> pd.DataFrame:
    """What each operator computes, moves and saves, forward and backward; counted, nothing is run."""
    rows = []
    for name in operators:
        forward, backward, saved = on_paper(name, size, dtype)
        row = {"operator": name}
        for when, costs in (("forward", forward), ("backward", backward)):
            row |= {f"{when} FLOP": readable(costs.flops, ""), f"{when} bytes": readable(costs.bytes, "B")}
        kept = {"given": saved.given_bytes, "output": saved.output_bytes, "extra": saved.extra_bytes}
        named = [f"{what} {readable(nbytes, 'B')}" for what, nbytes in kept.items() if nbytes]
        rows.append(row | {"saved": ", ".join(named) or "nothing"})
    return pd.DataFrame(rows)


def ratios(operators: Iterable[str] = tuple(MENU), *, source: str = RECORDED, **knobs: Any) -> pd.DataFrame:
    """Forward and backward seconds of each operator, and their ratio beside that of the predictions.

    An operator that was not measured says why; when none was, that is all the table says.
    """
    results = [BACKWARD.run(source=source, operator=name, **knobs) for name in operators]
    if not any(r.seconds for r in results):
        return pd.DataFrame({TEXT["not_measured"]: list(dict.fromkeys(r.reason for r in results))})
    return pd.DataFrame([_ratio_row(r) for r in results])


def _ratio_row(result: Result) -> dict[str, str]:
    row = {"operator": str(result.knobs["operator"])}
    if result.seconds is None or result.baseline_seconds is None:
        return (
            row
            | dict.fromkeys(("forward", "backward", "backward / forward", "predicted"), "")
            | {"remark": result.reason}
        )
    least = [result.resources[f"{when}_floor_seconds"] for when in ("backward", "forward")]
    return row | {
        "forward": timing.seconds(result.baseline_seconds),
        "backward": timing.seconds(result.seconds),
        "backward / forward": f"{result.seconds / result.baseline_seconds:.2f}",
        "predicted": f"{least[0] / least[1]:.2f}",
        "remark": result.reason,
    }


BACKWARD = Backward()

"""OPERATORS: where does an operator sit on the roofline, and does it get there?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from oplab import roofline, timing
from oplab.cost import count
from oplab.experiments.experiment import Experiment, Knob, dtype_name, whole_number
from oplab.experiments.live import explain
from oplab.experiments.result import LIVE_CPU, SUSPECT, Result
from oplab.machine import DTYPES, Machine, machine

# What people read, in one place.
TEXT = {
    "title": "An operator on the roofline",
    "operator": "Which operator to place.",
    "size": "Rows and columns of its main input.",
    "dtype": "Bytes per element: 4 for fp32, 2 for bf16 and fp16.",
    "batch": "For linear: how many rows are multiplied by the size x size weight.",
    "baseline": "predicted at best",
}

Inputs = tuple[Tensor, ...]


def _square(size: int, draw: Callable[..., Tensor], batch: int) -> Inputs:
    return (draw(size, size),)


def _pair(size: int, draw: Callable[..., Tensor], batch: int) -> Inputs:
    return draw(size, size), draw(size, size)


def _linear(size: int, draw: Callable[..., Tensor], batch: int) -> Inputs:
    return draw(batch, size), draw(size, size)


def _table(size: int, draw: Callable[..., Tensor], batch: int) -> Inputs:
    return torch.randint(0, 8 * size, (size,), device=draw(1).device), draw(8 * size, size)


def _images(size: int, draw: Callable[..., Tensor], batch: int) -> Inputs:
    side = max(4, size // 64)
    return draw(8, 64, side, side), draw(64, 64, 3, 3)


# name -> (inputs, what is called on them)
MENU: dict[str, tuple[Callable[..., Inputs], Callable[..., Tensor]]] = {
    "add": (_pair, torch.add),
    "relu": (_square, torch.relu),
    "sigmoid": (_square, torch.sigmoid),
    "exp": (_square, torch.exp),
    "gelu": (_square, F.gelu),
    "dropout": (_square, lambda x: torch.native_dropout(x, 0.5, True)[0]),  # the fused one, as on a GPU
    "sum": (_square, torch.sum),
    "mean of rows": (_square, lambda x: x.mean(dim=1)),
    "max": (_square, torch.max),
    "cumsum": (_square, lambda x: x.cumsum(dim=0)),
    "softmax": (_square, lambda x: x.softmax(dim=-1)),
    "layer norm": (_square, lambda x: F.layer_norm(x, x.shape[1:])),
    "batch norm": (_square, lambda x: F.batch_norm(x, None, None, training=True)),
    "copy": (_square, torch.clone),
    "cat": (_pair, lambda x, y: torch.cat([x, y])),
    "transpose, contiguous": (_square, lambda x: x.t().contiguous()),
    "embedding": (_table, lambda index, table: F.embedding(index, table)),
    "convolution 3x3": (_images, lambda x, w: F.conv2d(x, w, padding=1)),
    "linear": (_linear, F.linear),
    "matmul": (_pair, torch.matmul),
}

GPU_SIZES, CPU_SIZES = (256, 1024, 4096, 16384), (64, 256, 1024, 4096)
BATCHES = (1, 8, 64, 512, 4096)


class Operators(Experiment):
    name = "operators"
    title = TEXT["title"]
    knobs = (
        Knob("operator", "operator", TEXT["operator"], tuple(MENU), "add", tuple(MENU), "add"),
        Knob("size", "size", TEXT["size"], GPU_SIZES, 4096, CPU_SIZES, 1024, whole_number),
        Knob("dtype", "dtype", TEXT["dtype"], ("fp32", "bf16", "fp16"), "bf16", ("fp32", "bf16"), "fp32", dtype_name),
        Knob("batch", "batch", TEXT["batch"], BATCHES, 512, BATCHES[:4], 64, whole_number),
    )

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        """``baseline_seconds`` is the prediction: the floor that its FLOPs and bytes set on this machine."""
        result = replace(self.blank(knobs, source), baseline=TEXT["baseline"])
        dtype = knobs["dtype"]
        try:
            ceilings = machine(device)
            make, call = MENU[knobs["operator"]]
            with timing.device_lock(device), torch.no_grad():
                inputs = make(knobs["size"], _drawer(dtype, device), knobs["batch"])
                costs = count(call, *inputs)
                timed = timing.measure(lambda: call(*inputs), device=device, budget=0.05)
                launch = timing.launch_seconds(device)
        except Exception as error:  # every failure of a setting becomes a sentence
            return explain(result, error)
        place = roofline.classify(
            ceilings,
            matrix_flops=costs.matrix_flops,
            vector_flops=costs.vector_flops,
            nbytes=costs.bytes,
            dtype=dtype,
            seconds=timed.median,
            launch_seconds=launch,
        )
        result = replace(
            result,
            samples=timed.samples,
            notes=timed.notes,
            baseline_seconds=place.floor_seconds,
            flops=costs.flops,
            nbytes=costs.bytes,
            resources={f"{place.bound.value}_bound": 1, "intensity": costs.intensity, "launch_seconds": launch},
        )
        if source == LIVE_CPU:  # a warm CPU cache is faster than memory, honestly
            return result
        faster = roofline.faster_than_ceiling(timed.median, ceilings, nbytes=costs.bytes)
        return result.failed(SUSPECT, faster) if faster else result

    def settings(self, source: str) -> Iterator[dict]:
        names, sizes, dtypes, batches = (knob.choices(source) for knob in self.knobs)
        for size, dtype, name in product(sizes, dtypes, names):
            for batch in batches if name == "linear" else (self.knobs[3].initial(source),):
                yield {"operator": name, "size": size, "dtype": dtype, "batch": batch}


def _drawer(dtype: str, device: torch.device) -> Callable[..., Tensor]:
    return lambda *shape: torch.randn(*shape, device=device).to(DTYPES[dtype])


def at_a_glance(machine: Machine, size: int = 4096, dtype: str = "fp32") -> pd.DataFrame:
    """Every operator of the menu on ``machine``, predicted from its measured ceilings alone; nothing is run."""
    rows = []
    for name, (make, call) in MENU.items():
        inputs = make(size, lambda *shape: torch.empty(*shape, dtype=DTYPES[dtype], device="meta"), size)
        costs = count(call, *inputs)
        work = {"matrix_flops": costs.matrix_flops, "vector_flops": costs.vector_flops, "nbytes": costs.bytes}
        place = roofline.classify(machine, dtype=dtype, **work)
        row = {"operator": name, "FLOP/B": f"{costs.intensity:.2f}", "class": place.bound.value}
        rows.append(row | {"at best µs": f"{1e6 * place.floor_seconds:,.1f}"})
    return pd.DataFrame(rows)


OPERATORS = Operators()

"""GATHER: what does it cost that the rows you want lie scattered?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product

import torch

from oplab.compiler import Compiled
from oplab.compiler.targets import Target
from oplab.experiments.experiment import Experiment, Knob, dtype_name, offered, whole_number
from oplab.experiments.live import Cost, Counted, Work, trial
from oplab.experiments.result import LIVE_CPU, Result
from oplab.kernels import gather
from oplab.machine import DTYPES

ELEMENTS = {"cuda": 1 << 26, "cpu": 1 << 24}  # of the table: far beyond every cache
LINE = {"cuda": 32, "cpu": 64}  # bytes that memory delivers at least: a sector of a GPU, a cache line of a CPU
ORDERS = ("in order", "sorted", "random", "few rows")
FEW = 0.01  # share of the table's rows that "few rows" picks from

# What people read, in one place.
TEXT = {
    "title": "Gathering rows of a table",
    "columns": "Width of a row. The table keeps its size: half the width, twice the rows.",
    "order": "in order: each row once, one after the other. sorted: as many picks at random, then sorted. "
    "random: not sorted. few rows: at random from 1 % of the rows.",
    "dtype": "Bytes per element: 4 for fp32, 2 for bf16.",
    "way": "torch: index_select, what an embedding runs. triton: one kernel by hand.",
    "baseline": "copy of as many rows",
    "triton_here": "way: the Triton kernel runs on a GPU; on a CPU choose 'torch'",
}

COLUMNS = (4, 16, 64, 256, 1024, 4096)


def _way(knob: Knob, value: object, source: str) -> object:
    if value == "triton" and source == LIVE_CPU:
        raise ValueError(TEXT["triton_here"])
    return offered(knob, value, source)


class Gather(Experiment):
    """As many rows are picked as the table has.

    ``resources``: ``unique_rows`` picked, ``rows`` of the table, ``fetched_bytes`` of the table in whole lines,
    each once, ``worst_bytes`` when each pick fetches its own, ``wanted_bytes`` of the unique rows.
    """

    name = "gather"
    title = TEXT["title"]
    knobs = (
        Knob("columns", "columns", TEXT["columns"], COLUMNS, 256, COLUMNS[:5], 64, whole_number),
        Knob("order", "order", TEXT["order"], ORDERS, "random", ORDERS, "random"),
        Knob("dtype", "dtype", TEXT["dtype"], ("bf16", "fp32"), "bf16", ("fp32",), "fp32", dtype_name),
        Knob("way", "way", TEXT["way"], ("torch", "triton"), "torch", ("torch",), "torch", _way),
    )

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        columns, order, dtype = knobs["columns"], knobs["order"], knobs["dtype"]
        item = DTYPES[dtype].itemsize
        rows = max(1, ELEMENTS[device.type] // columns)
        index = _index(rows, order)
        unique = int(index.unique().numel())
        nbytes = gather.compulsory_bytes(unique, rows, columns, item)
        resources = {
            "rows": rows,
            "unique_rows": unique,
            "wanted_bytes": unique * columns * item,
            "fetched_bytes": gather.fetched_bytes(index, columns, item, LINE[device.type]),
            "worst_bytes": gather.worst_bytes(index, columns, item, LINE[device.type]),
        }
        return trial(
            self.blank(knobs, source),
            device,
            key=(self.name, columns, order, dtype, device.type),
            make_work=partial(_make_work, index, columns, dtype, device),
            work_bytes=rows * columns * (2 * item + 4 + 4) + 8 * rows,
            cost=Cost(0, nbytes, dtype),
            candidate=partial(_candidate, knobs["way"], resources),
            baseline=TEXT["baseline"],
        )

    def compiled(self, knobs: dict, source: str, target: Target) -> tuple[Compiled, int] | None:
        if knobs["way"] != "triton":
            return None
        columns = knobs["columns"]
        rows = max(1, ELEMENTS["cuda"] // columns)
        made = gather.compile_for(target, dtype=knobs["dtype"], columns=columns)
        return made, gather.programs(rows, columns)

    def settings(self, source: str) -> Iterator[dict]:
        columns, order, dtype, way = (knob.choices(source) for knob in self.knobs)
        for c, o, d, w in product(columns, order, dtype, way):
            yield {"columns": c, "order": o, "dtype": d, "way": w}


@lru_cache(maxsize=1)
def _index(rows: int, order: str) -> torch.Tensor:
    """[rows] of int64 on the CPU; the same for the same arguments, so that settings can be compared."""
    draw = torch.Generator().manual_seed(rows)
    if order == "in order":
        return torch.arange(rows)
    if order == "few rows":
        few = torch.randperm(rows, generator=draw)[: max(1, round(FEW * rows))]
        return few[torch.randint(few.numel(), (rows,), generator=draw)]
    index = torch.randint(rows, (rows,), generator=draw)
    return index.sort().values if order == "sorted" else index


def _make_work(index: torch.Tensor, columns: int, dtype: str, device: torch.device) -> Work:
    table = torch.randn(index.numel(), columns, device=device).to(DTYPES[dtype])
    there = index.to(device)
    output = torch.empty_like(table)
    beside = torch.empty_like(table)
    return Work((table, there), output, table[there].float(), partial(beside.copy_, table))


def _candidate(way: str, resources: dict[str, int], work: Work) -> Counted:
    table, index = work.inputs
    if way == "triton":
        return Counted(gather.forward(table, index, work.output), resources)
    return Counted(lambda: torch.index_select(table, 0, index, out=work.output), resources)


GATHER = Gather()

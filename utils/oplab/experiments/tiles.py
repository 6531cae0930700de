"""TILES: how does the tile of a matrix product change its speed?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch

from oplab.compiler import Compiled
from oplab.compiler.targets import Target
from oplab.experiments.experiment import Experiment, Knob, block_size, dtype_name, whole_number
from oplab.experiments.live import Cost, Work, trial
from oplab.experiments.result import LIVE_CPU, Result
from oplab.kernels import matmul
from oplab.machine import DTYPES, tf32_allowed

# What people read, in one place.
TEXT = {
    "title": "The tile of a matrix product",
    "size": "The product is size x size x size.",
    "dtype": "fp32 is exact float32; tf32 rounds its inputs to 10 bits of mantissa and uses the matrix units.",
    "kernel": "tiled: one program per tile. persistent: one program per SM walks many tiles, fed by the copy engine.",
    "block_m": "Rows of C that one program computes.",
    "block_n": "Columns of C that one program computes.",
    "block_k": "Columns of A (rows of B) fetched per step.",
    "num_warps": "Warps of 32 threads that share one tile.",
    "num_stages": "Blocks in flight: while one is multiplied, the next ones are on their way.",
    "cpu_baseline": "torch.mm",
    "gpu_baseline": "torch.mm (cuBLAS)",
}

SIDES = (16, 32, 64, 128, 256)


def _tile(knobs: dict) -> matmul.Tile:
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
    return matmul.Tile(**{name: knobs[name] for name in names if name in knobs})


class Tiles(Experiment):
    name = "tiles"
    title = TEXT["title"]
    knobs = (
        Knob("size", "size", TEXT["size"], (2048, 4096, 8192), 4096, (256, 512, 1024), 1024, whole_number),
        Knob("dtype", "dtype", TEXT["dtype"], ("bf16", "fp16", "tf32", "fp32"), "bf16", ("fp32",), "fp32", dtype_name),
        Knob("kernel", "kernel", TEXT["kernel"], ("tiled", "persistent"), "tiled", ("tiled", "naive"), "tiled"),
        Knob("block_m", "block_m", TEXT["block_m"], SIDES, 128, (4, 16, 64, 256, 1024), 64, block_size),
        Knob("block_n", "block_n", TEXT["block_n"], SIDES, 128, (4, 16, 64, 256, 1024), 64, block_size),
        Knob("block_k", "block_k", TEXT["block_k"], (32, 64, 128), 64, (4, 16, 64, 256, 1024), 64, block_size),
        Knob("num_warps", "num_warps", TEXT["num_warps"], (4, 8), 8),
        Knob("num_stages", "num_stages", TEXT["num_stages"], (1, 2, 3, 4), 3),
    )

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        size, dtype = knobs["size"], knobs["dtype"]
        item = DTYPES[dtype].itemsize
        return trial(
            self.blank(knobs, source),
            device,
            key=(self.name, size, dtype, device.type),
            make_work=partial(_make_work, size, dtype, device),
            work_bytes=size * size * (3 * item + 3 * 8),  # operands, output, and float64 while referencing
            cost=Cost(
                matmul.flops(size, size, size), matmul.compulsory_bytes(size, size, size, item), dtype, peak_dtype=dtype
            ),
            candidate=partial(_candidate, knobs),
            baseline=TEXT["cpu_baseline" if source == LIVE_CPU else "gpu_baseline"],
            budget=0.05,
        )

    def compile(self, knobs: dict) -> None:
        # Small operands: what is compiled depends on dtype and divisibility, not on the size.
        a, b, out = (torch.empty(256, 256, dtype=DTYPES[knobs["dtype"]], device="cuda") for _ in range(3))
        matmul.Launch(a, b, out, kernel=knobs["kernel"], tile=_tile(knobs), tf32=knobs["dtype"] == "tf32").compile()

    def compiled(self, knobs: dict, source: str, target: Target) -> tuple[Compiled, int] | None:
        if source == LIVE_CPU:
            return None
        tile, size = _tile(knobs), knobs["size"]
        even = size % tile.block_k == 0
        tiles = -(-size // tile.block_m) * -(-size // tile.block_n)
        made = matmul.compile_for(target, dtype=knobs["dtype"], kernel=knobs["kernel"], even_k=even, **vars(tile))
        return made, min(tiles, target.sms) if knobs["kernel"] == "persistent" else tiles

    def distinct_kernels(self, settings: list[dict]) -> list[dict]:
        kernels = {tuple((k, v) for k, v in knobs.items() if k != "size"): knobs for knobs in settings}
        return list(kernels.values())

    def settings(self, source: str) -> Iterator[dict]:
        if source == LIVE_CPU:
            for size, m, n, k in product((512, 1024), *[(4, 16, 64, 256, 1024)] * 3):
                yield {"size": size, "dtype": "fp32", "kernel": "tiled", "block_m": m, "block_n": n, "block_k": k}
            return
        for size in (*range(1152, 2048, 128), 2176):  # the tiles pass one and two waves over 132 SMs
            yield self.defaults(source) | {"size": size, "num_warps": 4}
        for dtype, size in product(("bf16", "fp16", "tf32", "fp32"), (2048, 4096, 8192)):
            for kernel, m, n, k, warps, stages in _tunings(dtype, size):
                yield {
                    "size": size, "dtype": dtype, "kernel": kernel, "block_m": m, "block_n": n, "block_k": k,
                    "num_warps": warps, "num_stages": stages,
                }  # fmt: skip


def _tunings(dtype: str, size: int) -> Iterator[tuple]:
    """All combinations for the explorer's opening size and dtype, the ones that matter for the rest."""
    tiled, persistent = partial(product, ("tiled",)), partial(product, ("persistent",))
    if (dtype, size) == ("bf16", 4096):
        yield from tiled(SIDES, SIDES, (32, 64, 128), (4, 8), (1, 3, 4))
    elif dtype == "bf16":
        yield from tiled(SIDES, SIDES, (32, 64), (4, 8), (3,))
        yield from tiled(SIDES, SIDES, (64,), (4, 8), (4,))
    elif dtype == "fp16":
        yield from tiled(SIDES, SIDES, (64,), (4, 8), (3, 4))
    else:
        yield from tiled(SIDES, SIDES, (32,), (4, 8), (3,))
    if dtype in ("bf16", "fp16"):
        yield from persistent(SIDES[2:], SIDES[2:], (64,), (4, 8), (3, 4))


def _make_work(size: int, dtype: str, device: torch.device) -> Work:
    a, b = (torch.randn(size, size, device=device).to(DTYPES[dtype]) for _ in range(2))
    out = torch.empty_like(a)
    vendor_out = torch.empty_like(a)

    def vendor() -> None:
        with tf32_allowed(dtype == "tf32"):
            torch.mm(a, b, out=vendor_out)

    return Work((a, b), out, matmul.reference(a, b).float(), vendor)


def _candidate(knobs: dict, work: Work):  # type: ignore[no-untyped-def]
    a, b = work.inputs
    if a.device.type == "cuda":
        call = matmul.Launch(
            a, b, work.output, kernel=knobs["kernel"], tile=_tile(knobs), tf32=knobs["dtype"] == "tf32"
        )
        return call
    if knobs["kernel"] == "naive":
        return partial(matmul.naive_cpu, a, b, work.output)
    return partial(matmul.tiled_cpu, a, b, work.output, _tile(knobs))


TILES = Tiles()

"""Ratios of this course's kernels against their peers, timed with public tools only.

    python benchmarks/ratios.py          (the GPU where there is one, else the CPU)

Timers: triton.testing.do_bench on a GPU, torch.utils.benchmark on a CPU; oplab.timing is not used.
Each pair is timed in turn five times and the median ratio is printed: read the ratios, not the times.
"""

from __future__ import annotations

import datetime
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.utils.benchmark
from oplab.kernels import launch, matmul, pointwise

ROUNDS = 5


def seconds(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        from triton.testing import do_bench

        return do_bench(call, warmup=10, rep=50, return_mode="median") / 1e3
    timer = torch.utils.benchmark.Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.1).median


def ratio(ours: Callable[[], object], peer: Callable[[], object], device: str) -> float:
    """Median over rounds of peer time / our time: above 1, ours is faster."""
    ours(), peer()
    return statistics.median(seconds(peer, device) / seconds(ours, device) for _ in range(ROUNDS))


def line(what: str, against: str, value: float, reach: float | None) -> None:
    verdict = "" if reach is None else f"   reach {reach:.2f}: {'met' if value >= reach else 'NOT MET'}"
    print(f"{what:<52}{against:<26}{value:8.3f}{verdict}", flush=True)


def on_gpu() -> None:
    for size in (4096, 8192):
        matmul_against_cublas(size)
    for size, reach in ((8192, 0.90), (16384, 0.93)):
        chain_against_peers(size, reach)
    eager_steps(8192)


def copy_of(moved_bytes: int) -> Callable[[], object]:
    """A copy that reads half of ``moved_bytes`` and writes the other half."""
    source = torch.empty(moved_bytes // 2, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def matmul_against_cublas(size: int) -> None:
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ours = matmul.Launch(a, b, kernel="persistent", tile=matmul.Tile(128, 256, 64, 8, 4))
    value = ratio(ours, lambda: torch.matmul(a, b), "cuda")
    line(f"matmul bf16 {size}, persistent 128x256x64", "torch.matmul", value, 0.97)


def chain_operands(size: int) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((size, size), (size,), (size,), (size, size))
    )


def chain_against_peers(size: int, reach: float) -> None:
    x, bias, scale, residual = chain_operands(size)
    ours = pointwise.Launch(x, bias, scale, residual)
    launch.compile_for_shapes(pointwise.compiled, x, bias, scale, residual)
    peers: dict[str, tuple[Callable[[], object], float | None]] = {
        "copy of the same bytes": (copy_of(pointwise.compulsory_bytes(size, size, 2)), reach),
        "torch.compile": (lambda: pointwise.compiled(x, bias, scale, residual), 1.0),
        "eager": (lambda: pointwise.eager(x, bias, scale, residual), None),
    }
    for name, (peer, least) in peers.items():
        line(f"fused chain bf16 {size}", name, ratio(ours, peer, "cuda"), least)


def eager_steps(size: int) -> None:
    """Each operator of the eager chain against a copy of the bytes it must move."""
    x, bias, scale, residual = chain_operands(size)
    steps: dict[str, tuple[Callable[[], object], int]] = {
        "x + bias": (lambda: x + bias, 2),
        "gelu(x)": (lambda: torch.nn.functional.gelu(x, approximate="tanh"), 2),
        "x * scale": (lambda: x * scale, 2),
        "x + residual": (lambda: x + residual, 3),
    }
    for name, (call, trips) in steps.items():
        line(f"  eager {name}", "copy of the same bytes", ratio(call, copy_of(trips * x.nbytes), "cuda"), None)


def on_cpu() -> None:
    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty_like(a)
    tiles = [matmul.Tile(m, n, k) for m, n, k in ((16, 1024, 64), (64, 256, 64), (256, 256, 256))]
    best = min(tiles, key=lambda tile: seconds(lambda: matmul.tiled_cpu(a, b, out, tile), "cpu"))
    naive = lambda: matmul.naive_cpu(a, b, out)  # noqa: E731
    tiled = lambda: matmul.tiled_cpu(a, b, out, best)  # noqa: E731
    line(
        f"matmul fp32 {size}, tile {best.block_m}x{best.block_n}x{best.block_k}",
        "naive",
        ratio(tiled, naive, "cpu"),
        4.0,
    )
    line("  the same", "torch.mm", ratio(tiled, lambda: torch.mm(a, b, out=out), "cpu"), None)
    x, residual = torch.randn(4096, 4096), torch.randn(4096, 4096)
    operands = (x, torch.randn(4096), torch.randn(4096), residual)
    y = torch.empty_like(x)
    fused = lambda: pointwise.fused_cpu(*operands, y)  # noqa: E731
    line("fused chain fp32 4096", "eager", ratio(fused, lambda: pointwise.eager(*operands), "cpu"), 1.5)
    code = "import time, torch; t = time.perf_counter(); import oplab; print(time.perf_counter() - t)"
    spent = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    line("import oplab beyond import torch: 0.3 s over it", "", 0.3 / statistics.median(spent), 1.0)


if __name__ == "__main__":
    gpu = torch.cuda.is_available()
    machine = torch.cuda.get_device_name() if gpu else "CPU"
    print(f"{machine}, torch {torch.__version__}, {datetime.date.today()}; peer time / our time")
    on_gpu() if gpu else on_cpu()

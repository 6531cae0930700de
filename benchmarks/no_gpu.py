"""How long the instruments take that need no GPU: the compiler's answer, cold and cached, and a trace.

    python benchmarks/no_gpu.py

Reach: a common tile compiles within 1.5 s, comes from the cache within 50 ms; a 512 x 512 x 512 product is
traced within 20 s on two cores.
"""

from __future__ import annotations

import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable

COMMON = [(64, 64, 32, 4, 3), (64, 128, 64, 4, 3), (128, 128, 32, 4, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3)]
TARGETS = ("A100", "H200", "B200", "MI300X")


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPLAB_CACHE_DIR"] = folder
        from oplab.compiler import compile as compiler
        from oplab.hardware import cpu_name
        from oplab.kernels import copy, matmul

        print(f"{cpu_name()}, {os.cpu_count()} cores, Triton {compiler.triton_version()}, {datetime.date.today()}")
        print(f"first answer, with the worker's start     {seconds(lambda: copy.compile_for('H200')):6.2f} s")
        for target in TARGETS:
            cold, cached = [], []
            for m, n, k, warps, stages in COMMON:
                tile = {"block_m": m, "block_n": n, "block_k": k, "num_warps": warps, "num_stages": stages}
                cold.append(seconds(lambda: matmul.compile_for(target, **tile)))  # noqa: B023 (called at once)
                compiler._recent.clear()  # so that the answer comes from the disk
                cached.append(seconds(lambda: matmul.compile_for(target, **tile)))  # noqa: B023
            print(
                f"{target:<8} cold: median {statistics.median(cold):5.2f} s, longest {max(cold):5.2f} s    "
                f"cached: longest {1e3 * max(cached):4.0f} ms"
            )
        trace_a_product()


def trace_a_product() -> None:
    import torch
    from oplab.compiler import trace
    from oplab.kernels import matmul

    size, side, deep = 512, 64, 32
    a, b, c = (torch.randn(size, size) for _ in range(3))
    constants = {"BLOCK_M": side, "BLOCK_N": side, "BLOCK_K": deep, "GROUP_M": 8, "EVEN_K": True, "PRECISION": "ieee"}
    grid = ((size // side) ** 2,)
    arguments = (a, b, c, size, size, size, size, size, size)
    taken = seconds(lambda: trace(matmul.tiled_kernel, grid, *arguments, **constants))
    print(f"trace of a {size}³ product in tiles of {side} x {side} x {deep}: {taken:.1f} s")


if __name__ == "__main__":
    main()

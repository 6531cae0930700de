"""Does `compile_for` say, with no GPU, what the GPU says of the loaded kernel? A table of both.

    python benchmarks/compiled.py          (on a machine with a GPU)

Each kernel is compiled twice with this machine's Triton: by ``compile_for`` in its worker, and by a
launch. From the loaded kernel come Triton's ``n_regs``, ``n_spills`` (4-byte words of local memory per
thread) and ``metadata.shared``; blocks per SM come from ``cuOccupancyMaxActiveBlocksPerMultiprocessor``.
"""

from __future__ import annotations

import ctypes
import datetime
import sys
from collections.abc import Iterator
from itertools import product

import pandas as pd
import torch
import triton
from oplab.compiler import Compiled
from oplab.kernels import copy, matmul, pointwise
from oplab.machine import DTYPES

TILES = [
    (kernel, dtype, m, n, k, warps, stages)
    for kernel, dtype, (m, n, k), warps, stages in product(
        ("tiled", "persistent"),
        ("bf16", "fp32"),
        ((32, 32, 32), (64, 64, 32), (128, 64, 64), (128, 128, 64), (128, 256, 64), (256, 256, 64)),
        (4, 8),
        (2, 3),
    )
    # fp32 in large tiles spills by the kilobyte and takes ptxas a minute.
    if not (dtype == "fp32" and m * n > 128 * 64)
]


def pairs(target: str) -> Iterator[tuple[str, Compiled, object]]:
    """(name, as compiled offline, as loaded on the device or None where it was refused)."""
    for kernel, dtype, m, n, k, warps, stages in TILES:
        tile = matmul.Tile(m, n, k, warps, stages)
        a, b = (torch.randn(256, 256, device="cuda").to(DTYPES[dtype]) for _ in range(2))
        yield (
            f"matmul {kernel} {dtype} {m}x{n}x{k}, {warps} warps, {stages} stages",
            matmul.compile_for(target, dtype=dtype, kernel=kernel, **vars(tile)),
            loaded(matmul.Launch(a, b, kernel=kernel, tile=tile)),
        )
    for dtype, block in product(("bf16", "fp32"), (pointwise.Block(), pointwise.Block(4096, 4, 8))):
        x = torch.randn(64, 4096, device="cuda").to(DTYPES[dtype])
        offline = pointwise.compile_for(target, dtype=dtype, **vars(block))
        yield f"chain {dtype} {block}", offline, loaded(pointwise.Launch(x, x[0], x[0], x, block=block))
    for vector in (1, 2, 4, 8, 16):
        x = torch.randn(1 << 16, device="cuda").bfloat16()
        yield (
            f"copy bf16, {vector} elements per thread",
            copy.compile_for(target, vector=vector),
            loaded(copy.Launch(x, vector=copy.Vector(vector))),
        )


def loaded(call: matmul.Launch | pointwise.Launch | copy.Launch) -> object:
    """Triton's loaded kernel; None where the device refuses the launch."""
    try:
        call()
    except triton.runtime.errors.OutOfResources:
        return None
    return call.compiled


def blocks_per_sm(kernel: object) -> int:
    """The driver's own answer for a loaded kernel."""
    cuda = ctypes.CDLL("libcuda.so.1")
    found = ctypes.c_int()
    metadata = kernel.metadata  # type: ignore[attr-defined]
    function = ctypes.c_void_p(kernel.function)  # type: ignore[attr-defined]
    ask = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
    status = ask(ctypes.byref(found), function, 32 * metadata.num_warps, ctypes.c_size_t(metadata.shared))
    assert status == 0, f"CUDA error {status}"
    return found.value


def frame() -> pd.DataFrame:
    """One row per kernel: offline value and device value of each resource."""
    target = torch.cuda.get_device_name()
    rows = []
    for name, offline, device in pairs(target):
        row = {"kernel": name, "shared": offline.shared_bytes, "registers": offline.registers}
        row |= {"spilled words": offline.stack_bytes // 4, "blocks per SM": offline.blocks_per_sm}
        if device is None:
            row |= {"device": "refused", "agrees": not offline.fits}
        else:
            there = {"shared": device.metadata.shared, "registers": device.n_regs}  # type: ignore[attr-defined]
            there |= {"spilled words": device.n_spills, "blocks per SM": blocks_per_sm(device)}  # type: ignore[attr-defined]
            row |= {"device": ", ".join(f"{value}" for value in there.values())}
            row["agrees"] = all(row[key] == value for key, value in there.items())
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> int:
    table = frame()
    print(f"{torch.cuda.get_device_name()}, Triton {triton.__version__}, {datetime.date.today()}")
    print(table.to_string(index=False))
    print(f"{table['agrees'].sum()} of {len(table)} agree")
    return 0 if table["agrees"].all() else 1


if __name__ == "__main__":
    sys.exit(main())

"""Predicted bytes against the hardware's counters, operator by operator (NVIDIA GPU, Nsight Compute).

    python benchmarks/counters.py OUT.json

Every operator works on at least four times the L2. Predicted: oplab.count. Counted: DRAM bytes read and
written by ncu, caches flushed before each kernel, clocks left alone. Timed twice: by ncu (kernel
duration) and by oplab.measure, in another process, since nothing is timed under a counter.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

METRICS = {
    "dram__bytes_read.sum": "dram_read",
    "dram__bytes_write.sum": "dram_written",
    "gpu__time_duration.sum": "ncu_ns",
}
SCALE = {
    "byte": 1,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "ns": 1,
    "us": 1e3,
    "usecond": 1e3,
    "ms": 1e6,
    "nsecond": 1,
}
SEPARATOR = "spin_kernel"  # torch.cuda._sleep, launched between operators


def operators() -> dict[str, Callable[[], Callable[[], object]]]:
    """name -> make; ``make()`` allocates and returns the call. One gigabyte and more for each."""
    n, side = 1 << 28, 16384

    def vector(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(n, device="cuda").to(dtype)

    def matrix(rows: int = side, columns: int = side, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(rows, columns, device="cuda").to(dtype)

    def one(call: Callable) -> Callable[[], Callable[[], object]]:
        return lambda: (lambda x: lambda: call(x))(vector())

    def two(call: Callable) -> Callable[[], Callable[[], object]]:
        return lambda: (lambda x, y: lambda: call(x, y))(vector(), vector())

    def rows(call: Callable) -> Callable[[], Callable[[], object]]:
        return lambda: (lambda x: lambda: call(x))(matrix())

    def product(size: int, dtype: torch.dtype) -> Callable[[], Callable[[], object]]:
        return lambda: (lambda a, b: lambda: a @ b)(matrix(size, size, dtype), matrix(size, size, dtype))

    def embedding(repeat: bool) -> Callable[[], object]:
        table = matrix(1 << 20, 256)
        index = torch.randperm(1 << 20, device="cuda")
        index = index[: 1 << 17].repeat(8) if repeat else index
        return lambda: F.embedding(index, table)

    def attention() -> Callable[[], object]:
        q, k, v = (torch.randn(16, 16, 4096, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def convolution() -> Callable[[], object]:
        x, w = torch.randn(64, 256, 56, 56, device="cuda"), torch.randn(256, 256, 3, 3, device="cuda")
        x, w = (t.bfloat16().to(memory_format=torch.channels_last) for t in (x, w))
        return lambda: F.conv2d(x, w, padding=1)

    return {
        "add": two(torch.add), "mul": two(torch.mul), "relu": one(torch.relu), "gelu": one(F.gelu),
        "sigmoid": one(torch.sigmoid), "exp": one(torch.exp), "abs_ in place": one(lambda x: x.abs_()),
        "add_ in place": two(lambda x, y: x.add_(y)), "clone": one(torch.clone), "fill_": one(lambda x: x.fill_(2.0)),
        "to bf16": one(lambda x: x.bfloat16()), "where": two(lambda x, y: torch.where(x > 0, x, y)),
        "addcmul": two(lambda x, y: torch.addcmul(x, x, y)), "sum": one(torch.sum), "mean": one(torch.mean),
        "max": one(torch.max), "sum of rows": rows(lambda x: x.sum(1)), "softmax": rows(lambda x: x.softmax(-1)),
        "layer_norm": rows(lambda x: F.layer_norm(x, (side,))), "cat": two(lambda x, y: torch.cat([x, y])),
        "transpose, contiguous": rows(lambda x: x.t().contiguous()), "embedding": lambda: embedding(False),
        "embedding, each row 8 times": lambda: embedding(True), "matmul bf16 8192": product(8192, torch.bfloat16),
        "matmul fp32 8192": product(8192, torch.float32), "attention, causal": attention, "convolution": convolution,
    }  # fmt: skip


def under_ncu() -> None:
    runtime = torch.cuda.cudart()
    for make in operators().values():
        call = make()
        call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        torch.cuda._sleep(1000)
        call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()
        del call
        torch.cuda.empty_cache()


def counted() -> list[dict[str, float]]:
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--metrics", ",".join(METRICS)]
    done = subprocess.run(
        [*command, sys.executable, __file__, "--under-ncu"], capture_output=True, text=True, check=True
    )
    start = done.stdout.index('"ID"')
    found: list[dict[str, float]] = []
    for row in csv.DictReader(io.StringIO(done.stdout[start:])):
        if SEPARATOR in row["Kernel Name"]:
            if row["Metric Name"] == "gpu__time_duration.sum":
                found.append({"kernels": 0, **dict.fromkeys(METRICS.values(), 0.0)})
            continue
        value = float(row["Metric Value"].replace(",", "")) * SCALE[row["Metric Unit"]]
        found[-1][METRICS[row["Metric Name"]]] += value
        found[-1]["kernels"] += row["Metric Name"] == "gpu__time_duration.sum"
    return found


def main(path: Path) -> None:
    from oplab.cost import count
    from oplab.machine import machine
    from oplab.timing import measure

    rows = []
    for (name, make), seen in zip(operators().items(), counted(), strict=True):
        call = make()
        costs = count(call)
        timed = measure(call)
        row = {"operator": name, "predicted_read": costs.bytes_read, "predicted_written": costs.bytes_written}
        row |= {"matrix_flops": costs.matrix_flops, **seen, "measured_ns": timed.median * 1e9}
        rows.append(row)
        predicted, real = costs.bytes, seen["dram_read"] + seen["dram_written"]
        print(
            f"{name:<30}{predicted / 1e9:8.3f} GB predicted{real / 1e9:8.3f} GB counted{real / predicted:8.3f}"
            f"   {seen['ncu_ns'] / 1e3:9.1f} us ncu{timed.median * 1e6:9.1f} us measured", flush=True,
        )  # fmt: skip
        del call
        torch.cuda.empty_cache()
    here = machine()
    data = {"schema": 1, "machine": here.as_dict(), "date": datetime.date.today().isoformat(), "rows": rows}
    path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--under-ncu"]:
        under_ncu()
    else:
        main(Path(sys.argv[1]))

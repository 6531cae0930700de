"""Gather: rows of a table picked by an index, y[i] = table[index[i]]; what an embedding does forward.

Shapes: table [R, N], index [M] of integers, y [M, N]. Compulsory bytes: every row that is picked at all read once, the
index read once, y written once. No arithmetic: the time is that of the memory, and depends on which rows are picked,
in which order, and how wide a row is.
"""

from __future__ import annotations

import torch

from oplab import compiler
from oplab.compiler.targets import Target
from oplab.kernels.launch import Launch, power_of_two, refuse_bfloat16_on_cpu
from oplab.kernels.triton_or_not import tl, triton

WIDEST = 1024  # columns that one program takes; a wider row is cut

# What people read, in one place.
TEXT = {
    "shapes": "gather needs a table of two dimensions and an index of one, of integers; "
    "got {table} and {index} ({dtype})",
    "range": "gather: index {number} asks for row {row}, outside [0, {rows})",
}


@triton.jit
def gather_kernel(
    table_ptr, index_ptr, y_ptr, M, N, stride_table, stride_column, stride_y, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """One program, ROWS picks, BLOCK neighbouring columns of each."""
    pieces = tl.cdiv(N, BLOCK)
    pick = (tl.program_id(0) // pieces).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    at = (tl.program_id(0) % pieces) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    row = tl.load(index_ptr + pick, mask=pick < M, other=0).to(tl.int64)  # [ROWS]
    inside = (pick < M)[:, None] & (at < N)[None, :]
    values = tl.load(table_ptr + row[:, None] * stride_table + at[None, :] * stride_column, mask=inside)
    tl.store(y_ptr + pick[:, None] * stride_y + at[None, :], values, mask=inside)


def check(table: torch.Tensor, index: torch.Tensor) -> None:
    """ValueError for shapes and types that do not fit, IndexError for a pick outside the table.

    A kernel would read whatever lies there, or fault; looking costs one pass over the index.
    """
    if table.dim() != 2 or index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        shapes = {"table": tuple(table.shape), "index": tuple(index.shape), "dtype": index.dtype}
        raise ValueError(TEXT["shapes"].format(**shapes))
    outside = (index < 0) | (index >= table.shape[0])
    if bool(outside.any()):
        number = int(outside.nonzero()[0])
        raise IndexError(TEXT["range"].format(number=number, row=int(index[number]), rows=table.shape[0]))


def forward(table: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None) -> Launch:
    """A call that returns the picked rows, [M, N]; the index is checked here, not in the call."""
    refuse_bfloat16_on_cpu(table)
    check(table, index)
    M, N = index.shape[0], table.shape[1]
    y = torch.empty(M, N, dtype=table.dtype, device=table.device) if out is None else out
    operands = (table, index.contiguous(), y, M, N, table.stride(0), table.stride(1), y.stride(0))
    return Launch(gather_kernel, (programs(M, N),), operands, y, **_options(N))


def programs(M: int, N: int) -> int:
    """How many programs gather [M, N]."""
    options = _options(N)
    return -(-M // options["ROWS"]) * -(-N // options["BLOCK"])


def _options(N: int) -> dict[str, int]:
    """About 16 elements a thread with four warps, so that narrow rows keep enough bytes in flight."""
    block = min(WIDEST, power_of_two(N))
    return {"ROWS": max(1, 2048 // block), "BLOCK": block, "num_warps": 4}


def compile_for(target: str | Target, *, dtype: str = "bf16", columns: int = 1024) -> compiler.Compiled:
    """The kernel compiled for ``target``, no GPU needed."""
    options = _options(columns)
    signature = {
        "table_ptr": f"*{dtype}", "index_ptr": "*i64", "y_ptr": f"*{dtype}", "M": "i32", "N": columns,
        "stride_table": columns, "stride_column": 1, "stride_y": columns,
    }  # fmt: skip
    constants = {"ROWS": options["ROWS"], "BLOCK": options["BLOCK"]}
    warps = options["num_warps"]
    return compiler.compile_for(gather_kernel, target, signature=signature, constants=constants, num_warps=warps)


def compulsory_bytes(unique_rows: int, M: int, N: int, element_size: int, index_size: int = 8) -> int:
    """Rows that are picked at all, the index, and y."""
    return unique_rows * N * element_size + M * index_size + M * N * element_size


def fetched_bytes(index: torch.Tensor, N: int, element_size: int, line: int) -> int:
    """Bytes of the table in lines of ``line`` bytes that the picks touch, each line once: what memory delivers."""
    width = N * element_size
    rows = index.unique()  # sorted
    first, last = rows * width // line, (rows * width + width - 1) // line
    # Neighbouring rows may share a line: what a row adds begins after the last line of the row before.
    begin = torch.cat([first[:1], torch.maximum(first[1:], last[:-1] + 1)])
    return int((last - begin + 1).sum()) * line


def worst_bytes(index: torch.Tensor, N: int, element_size: int, line: int) -> int:
    """The same when no line is still in a cache once the next pick wants it: its lines for every pick."""
    width = N * element_size
    first, last = index * width // line, (index * width + width - 1) // line
    return int((last - first + 1).sum()) * line

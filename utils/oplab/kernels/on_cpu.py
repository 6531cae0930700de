"""Running a numba kernel on several threads.

The kernels release the GIL and take a row range, and Python's own threads drive them: numba's
default threading layer aborts the process when two threads enter it at once, which is what a
notebook cell and an explorer's measurement do.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

# What numba may do to sums: reorder and fuse them, so that they vectorise. Not the rest of "fastmath",
# which also lets the compiler assume that NaN and infinity never occur.
REORDER = {"reassoc", "contract", "nsz", "arcp"}


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="oplab-kernel")


def split_rows(rows: int, multiple: int, kernel: Callable[[int, int], None]) -> None:
    """Call ``kernel(first, last)`` over [0, rows), one share per thread, cut at multiples of ``multiple``."""
    threads = torch.get_num_threads()
    blocks = -(-rows // multiple)
    share = -(-blocks // threads) * multiple
    ranges = [(first, min(first + share, rows)) for first in range(0, rows, share)] if rows else []
    for done in [_pool(threads).submit(kernel, first, last) for first, last in ranges]:
        done.result()

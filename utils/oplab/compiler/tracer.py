"""The worker that traces: ``python -m oplab.compiler.tracer``, with TRITON_INTERPRET set.

It lays out the tensors of a call so that every address names its tensor, runs the kernel in Triton's
interpreter over the whole grid, and answers with the books that were kept and what was stored.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from oplab.compiler.ledger import Region, Shadow

GUARD = 64 << 20  # bytes of address space around a tensor that count as "near" it; no memory is used
REPORT_SECONDS = 0.1


class Memory:
    """The storages of a call, each in a file without a name that every tensor maps at an address of its own.

    So two tensors of one storage see the same bytes, and an address still says through which argument
    the kernel went.
    """

    def __init__(self, storages: list[dict], tensors: list[dict]) -> None:
        import torch

        self.files: list[int] = []
        self.heads: list[int] = []
        for storage in storages:
            size = len(storage["data"])
            head = (GUARD + size) // mmap.PAGESIZE * mmap.PAGESIZE + storage["alignment"]
            file = os.memfd_create("oplab")
            os.ftruncate(file, 2 * head + mmap.PAGESIZE)
            os.pwrite(file, storage["data"].tobytes(), head) if size < 2**30 else _write(file, storage["data"], head)
            self.files.append(file)
            self.heads.append(head)
        self.sizes = [len(storage["data"]) for storage in storages]
        units = [min((t["itemsize"] for t in tensors if t["storage"] == n), default=1) for n in range(len(storages))]
        shadows = [Shadow(size, unit) for size, unit in zip(self.sizes, units, strict=True)]
        self.tensors, self.regions = [], []
        for number, entry in enumerate(tensors):
            which = entry["storage"]
            mapped = mmap.mmap(self.files[which], 2 * self.heads[which] + mmap.PAGESIZE)
            size, head = self.sizes[which], self.heads[which]
            flat = torch.frombuffer(mapped, dtype=torch.uint8, count=max(size, 1), offset=head)
            made = torch.empty(0, dtype=getattr(torch, entry["dtype"]))
            made.set_(flat.untyped_storage(), entry["offset"], entry["shape"], entry["stride"])
            self.tensors.append(made)
            low, high = _span(entry, size)
            base = flat.data_ptr()
            self.regions.append(
                Region(
                    number, entry["name"], base - head, base + head, base, low, high, entry["itemsize"], shadows[which]
                )
            )
        self._mark_outputs(tensors)

    def _mark_outputs(self, tensors: list[dict]) -> None:
        """Elements of outputs have no value yet, except those that are an input too."""
        for output in (True, False):
            for entry, region in zip(tensors, self.regions, strict=True):
                if entry["output"] is output and (output or region.shadow.empty is not None):
                    own = _elements(entry) * entry["itemsize"]
                    if output:
                        region.own = own
                        if region.shadow.empty is None:
                            region.shadow.empty = np.zeros(len(region.shadow.stored), bool)
                    assert region.shadow.empty is not None
                    for part in range(0, entry["itemsize"], region.shadow.unit):
                        region.shadow.empty[(own + part) // region.shadow.unit] = output

    def contents(self) -> dict[int, np.ndarray]:
        """Bytes of each storage in which the kernel stored something."""
        written = {self.tensor_storage(r) for r in self.regions if r.shadow.stored.any()}
        found = {}
        for which in written:
            data = os.pread(self.files[which], self.sizes[which], self.heads[which])
            found[which] = np.frombuffer(data, np.uint8)
        return found

    def tensor_storage(self, region: Region) -> int:
        return self.storages[region.number]

    def close(self) -> None:
        for file in self.files:
            os.close(file)

"""What a forward keeps for its backward: the tensors that autograd saves, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from oplab.cost.costs import readable
from oplab.cost.counter import leaves_of, tensors_of
from oplab.cost.traffic import parts, region_bytes, storage_of

# What people read, in one place.
TEXT = {
    "no_grad": "saved_by: nothing in the output needs a gradient, so nothing is saved; "
    "set requires_grad on an input or parameter",
    "nothing": "nothing saved for the backward",
    "total": "{total} saved for the backward: {given} of inputs and parameters, {output} of outputs, {extra} besides",
    "row": "  {what:<7}{shape} {dtype}, {nbytes}",
}

GIVEN, OUTPUT, EXTRA = "given", "output", "extra"


@dataclass(frozen=True)
class SavedTensor:
    """One tensor kept for the backward. ``what``: "given" (an input or parameter), "output" or "extra"."""

    what: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class Saved:
    """What autograd keeps, each storage region once.

    ``given_bytes``: inputs and parameters, which were there before the call; keeping a parameter costs
    nothing, keeping an input keeps somebody's output alive. ``output_bytes``: what the call returned.
    ``extra_bytes``: made for the backward (or on the way) and kept by nobody else.
    """

    tensors: tuple[SavedTensor, ...]
    given_bytes: int
    output_bytes: int
    extra_bytes: int

    @property
    def bytes(self) -> int:
        return self.given_bytes + self.output_bytes + self.extra_bytes

    @property
    def new_bytes(self) -> int:
        """What the call itself brought into the world: outputs and extras."""
        return self.output_bytes + self.extra_bytes

    def frame(self) -> pd.DataFrame:
        """One row per kind, shape and dtype, most bytes first."""
        columns = ["what", "shape", "dtype", "tensors", "bytes"]
        alike: dict[tuple, list[int]] = {}
        for t in self.tensors:
            alike.setdefault((t.what, t.shape, t.dtype), []).append(t.nbytes)
        rows: list[list[Any]] = [[*key, len(sizes), sum(sizes)] for key, sizes in alike.items()]
        rows.sort(key=lambda row: -row[-1])
        return pd.DataFrame(rows, columns=columns, dtype=object)

    def __repr__(self) -> str:
        if not self.tensors:
            return TEXT["nothing"]
        parts = {"given": self.given_bytes, "output": self.output_bytes, "extra": self.extra_bytes}
        sizes = {name: readable(value, "B") for name, value in parts.items()}
        lines = [TEXT["total"].format(total=readable(self.bytes, "B"), **sizes)]
        for t in self.tensors[:8]:
            shape = " x ".join(map(str, t.shape)) or "scalar"
            lines.append(TEXT["row"].format(what=t.what, shape=shape, dtype=t.dtype, nbytes=readable(t.nbytes, "B")))
        if len(self.tensors) > 8:
            lines.append(f"  … {len(self.tensors) - 8} more; see .frame()")
        return "\n".join(lines)


def saved_by(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Saved:
    """What ``fn(*args, **kwargs)`` keeps for its backward. Runs the forward once; works on meta tensors.

    Seen are the tensors that pass through `torch.autograd.graph.saved_tensors_hooks`: those of built-in
    operators and of ``ctx.save_for_backward``, not what a Function hides in other attributes of ``ctx``.
    ValueError when nothing in the output needs a gradient; errors of ``fn`` pass through.
    """
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = fn(*args, **kwargs)
    outputs = tensors_of(out)
    roots = [t for t in outputs if t.requires_grad]
    if not roots:
        raise ValueError(TEXT["no_grad"])
    given = tensors_of((args, kwargs)) + leaves_of(roots) + (list(fn.buffers()) if isinstance(fn, nn.Module) else [])
    owners = {key: OUTPUT for key in _storages(outputs)} | {key: GIVEN for key in _storages(given)}
    kinds: dict[str, list[Tensor]] = {GIVEN: [], OUTPUT: [], EXTRA: []}
    for tensor in kept:
        kinds[next((owners[key] for key in _storages([tensor]) if key in owners), EXTRA)].append(tensor)
    rows = tuple(row for kind, tensors in kinds.items() for row in _rows(kind, tensors))
    return Saved(rows, *(region_bytes(tensors) for tensors in kinds.values()))


def _storages(tensors: list[Tensor]) -> list[int]:
    return [storage_of(part) for tensor in tensors for part in parts(tensor)]


def _rows(kind: str, tensors: list[Tensor]) -> list[SavedTensor]:
    """Each distinct view of a storage once."""
    distinct: dict[tuple, SavedTensor] = {}
    for t in tensors:
        key = (*_storages([t]), t.storage_offset() if t.layout == torch.strided else 0, t.numel())
        name = str(t.dtype).removeprefix("torch.")
        distinct.setdefault(key, SavedTensor(kind, tuple(t.shape), name, region_bytes([t])))
    return list(distinct.values())

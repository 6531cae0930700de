"""Compulsory bytes of one operator call: every storage region read once, every one written once.

A region is what a tensor addresses in its storage. Expanded (stride-0) dimensions address nothing
new, two inputs that overlap count their union, and an output that only looks at an input (a view)
moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


class Region(NamedTuple):
    """Elements that a tensor addresses: where its storage is, and a box of strides."""

    storage: int
    offset: int  # elements
    dims: tuple[tuple[int, int], ...]  # (stride, size), largest stride first, without size 1 and stride 0
    item: int  # bytes per element

    @property
    def numel(self) -> int:
        """Distinct elements. Exact unless dimensions interleave, where the addressed span bounds it."""
        return min(prod(size for _, size in self.dims), self.span)

    @property
    def span(self) -> int:
        """Elements from the first to the last addressed one."""
        return 1 + sum(stride * (size - 1) for stride, size in self.dims)

    @property
    def dense(self) -> bool:
        return self.numel == self.span


def parts(value: Any) -> list[Tensor]:
    """The strided tensors that hold a tensor's data: itself, or the parts of a sparse one."""
    if value.layout == torch.strided:
        return [value]
    if value.layout == torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    if value.layout == torch.jagged:
        return [value.values(), value.offsets()]
    return []  # opaque to us (mkldnn): counted by size in `region`


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def region(tensor: Tensor) -> Region | None:
    """Of a strided tensor; None when it has no elements."""
    count = tensor.numel()
    if count == 0:
        return None
    if tensor.is_contiguous():  # the common case, and quick
        return Region(storage_of(tensor), int(tensor.storage_offset()), ((1, count),), tensor.element_size())
    dims = tuple(
        sorted(((st, n) for st, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1 and st), reverse=True)
    )
    return Region(storage_of(tensor), int(tensor.storage_offset()), dims, tensor.element_size())


def region_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the union of what the tensors address."""
    by_storage: dict[int, list[Region]] = {}
    total = 0
    for tensor in tensors:
        strided = parts(tensor)
        if not strided:
            total += tensor.numel() * tensor.element_size()
        for part in strided:
            if (found := region(part)) is not None:
                by_storage.setdefault(found.storage, []).append(found)
    return total + sum(_union(regions) for regions in by_storage.values())


def _union(regions: list[Region]) -> int:
    """Bytes addressed by regions of one storage."""
    distinct = list(dict.fromkeys(regions))
    if len(distinct) == 1:
        return distinct[0].numel * distinct[0].item
    # In bytes, since views of one storage may differ in dtype.
    dense = sorted((r.offset * r.item, (r.offset + r.span) * r.item) for r in distinct if r.dense)
    covered, end = 0, -1
    for first, last in dense:
        covered += max(0, last - max(first, end))
        end = max(end, last)
    total = covered
    for r in distinct:
        if not r.dense and not any(a <= r.offset * r.item and (r.offset + r.span) * r.item <= b for a, b in dense):
            total += r.numel * r.item  # rows or columns of one matrix: disjoint unless a dense part holds them
    first = min(r.offset * r.item for r in distinct)
    last = max((r.offset + r.span) * r.item for r in distinct)
    return min(total, last - first)


# --- which arguments an operator writes, and which of them it does not read ------------------------

# Targets of these are overwritten without being read.
WRITE_ONLY = {
    "copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_",
    "log_normal_", "geometric_", "_foreach_zero_", "_foreach_copy_", "eye_", "fill_diagonal_", "randperm",
}  # fmt: skip

# Outputs of these are reserved, not written.
ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_"}

# Their inputs say only how large the output is; they are not read.
SHAPE_ONLY = {
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "empty_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_empty_strided", "bernoulli_", "normal_", "uniform_", "random_",
}  # fmt: skip


class Schema(NamedTuple):
    """What we need of an operator's schema, looked up once."""

    name: str
    written: tuple[tuple[int | None, str], ...]  # (position or None, name) of the arguments it writes
    overwritten: frozenset[str]  # names of those it does not read first


@cache
def schema_of(operator: OpOverload) -> Schema:
    name = operator._schema.name.split("::")[-1]
    written, overwritten = [], set()
    for position, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append((None if argument.kwarg_only else position, argument.name))
            if argument.is_out or name in WRITE_ONLY:
                overwritten.add(argument.name)
    return Schema(name, tuple(written), frozenset(overwritten))


def tensors_in(value: Any, found: list[Tensor] | None = None) -> list[Tensor]:
    """All tensors inside nested lists, tuples and dicts."""
    found = [] if found is None else found
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            tensors_in(entry, found)
    elif isinstance(value, dict):
        for entry in value.values():
            tensors_in(entry, found)
    return found


def traffic(operator: OpOverload, args: tuple, kwargs: dict, out: Any) -> tuple[int, int]:
    """(bytes read, bytes written) of a call that has just returned ``out``."""
    schema = schema_of(operator)
    if schema.name in ALLOCATIONS:
        return 0, 0
    special = _SPECIAL.get(schema.name)
    if special is not None and (found := special(args, kwargs, out)) is not None:
        return found
    inputs = tensors_in(args)
    if kwargs:
        tensors_in(kwargs, inputs)
    mutated: list[Tensor] = []
    not_read: set[int] = set()
    for position, name in schema.written:
        value = kwargs.get(name) if position is None or position >= len(args) else args[position]
        targets = tensors_in(value)
        mutated += targets
        if name in schema.overwritten:
            not_read.update(id(t) for t in targets)
    outputs = tensors_in(out)
    if schema.name in SHAPE_ONLY:
        reads: list[Tensor] = []
    else:
        reads = [t for t in inputs if id(t) not in not_read] if not_read else inputs
    known = {storage_of(part) for t in inputs for part in parts(t)}
    fresh = [t for t in outputs if not all(storage_of(part) in known for part in parts(t))]
    if not fresh and not mutated and outputs:
        return 0, 0  # a view
    return region_bytes(reads), region_bytes(mutated) + region_bytes(fresh)


# --- gathers and scatters: only the rows that are touched ------------------------------------------


def _values_known(index: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return index.device.type != "meta" and not isinstance(index, FakeTensor)


def _unique(index: Tensor, bound: int) -> int:
    """Distinct values of an index tensor, or the most there can be where its values are not known."""
    if _values_known(index):
        return int(torch.unique(index.detach()).numel())
    return min(index.numel(), bound)


def _rows(table: Tensor, index: Tensor, dim: int = 0) -> int:
    """Bytes of the slices of ``table`` along ``dim`` that ``index`` names."""
    if table.numel() == 0:
        return 0
    return _unique(index, table.shape[dim]) * (table.numel() // table.shape[dim]) * table.element_size()


def _embedding(args: tuple, kwargs: dict, out: Any) -> tuple[int, int]:
    weight, index = args[0], args[1]
    return region_bytes([index]) + _rows(weight, index), region_bytes([out])


def _index_select(args: tuple, kwargs: dict, out: Any) -> tuple[int, int]:
    source, dim, index = args[0], args[1], args[2]
    return region_bytes([index]) + _rows(source, index, dim), region_bytes([out])


def _index(args: tuple, kwargs: dict, out: Any) -> tuple[int, int] | None:
    source, indices = args[0], [i for i in args[1] if i is not None]
    taken = min(out.numel(), source.numel()) * source.element_size()
    if len(indices) == 1 and indices[0].dtype not in (torch.bool, torch.uint8):
        dim = next(position for position, entry in enumerate(args[1]) if entry is not None)
        taken = _rows(source, indices[0], dim)
    return region_bytes(indices) + taken, region_bytes([out])


def _gather(args: tuple, kwargs: dict, out: Any) -> tuple[int, int]:
    source, dim, index = args[0], args[1], args[2]
    taken = min(index.numel(), source.numel())
    if _values_known(index) and index.numel() and source.dim() == index.dim():
        # Address of every element that is taken, as a flat number.
        dim = dim % max(source.dim(), 1)
        address = torch.zeros_like(index)
        for d in range(source.dim()):
            shape = [1] * source.dim()
            shape[d] = index.shape[d]
            where = index if d == dim else torch.arange(index.shape[d], device=index.device).reshape(shape)
            address = address * source.shape[d] + where
        taken = int(torch.unique(address).numel())
    return region_bytes([index]) + taken * source.element_size(), region_bytes([out])


def _add_rows(target_position: int, index_position: int, source_position: int, dim_position: int) -> Callable:
    """In-place additions of rows: read and write the rows that are touched, read what is added."""

    def rule(args: tuple, kwargs: dict, out: Any) -> tuple[int, int]:
        target, index, source = args[target_position], args[index_position], args[source_position]
        touched = _rows(target, index, args[dim_position])
        return region_bytes([index, source]) + touched, touched

    return rule


_SPECIAL: dict[str, Callable[[tuple, dict, Any], tuple[int, int] | None]] = {
    "embedding": _embedding,
    "index_select": _index_select,
    "index": _index,
    "gather": _gather,
    "index_add_": _add_rows(0, 2, 3, 1),
}

"""Counting while code runs: a dispatch mode that sees every ATen operator below autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from oplab.cost import matrix, vector  # noqa: F401  (registers their formulas)
from oplab.cost.costs import Costs, OperatorCost
from oplab.cost.registry import Flops, find
from oplab.cost.traffic import schema_of, storage_of, tensors_in, traffic

# What people read, in one place.
TEXT = {
    "no_grad": "count(backward=True): nothing in the output needs a gradient, so there is no backward to count; "
    "set requires_grad on an input or parameter, or leave backward out",
    "no_tensor": "count(backward=True): the function returned no tensor",
    "grad_shape": "count(backward=True): the output has several tensors; the gradient must be a list of as many",
}

# Questions about a tensor, not work on it.
IGNORED = {"device", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous", "layout"}


class CostCounter(TorchDispatchMode):
    """Context manager: the cost of every operator called inside, as ``.costs`` at any time.

    Counters nest, each seeing what runs inside it; a counter belongs to the thread that entered it.
    Works on CPU, CUDA, meta and fake tensors, with and without autograd. An exception passes through
    and leaves the counter off.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operators: list[OperatorCost] = []
        self._backward_from: int | None = None

    @property
    def costs(self) -> Costs:
        cut = len(self._operators) if self._backward_from is None else self._backward_from
        return Costs(tuple(self._operators), tuple(self._operators[cut:]))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator
            return self._higher_order(func, args, kwargs)
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)  # questions and marks, not work; prim is not even in the dispatcher
        formula = find(func)
        if formula is None and _is_composite(func):
            # Under inference_mode whole compositions (linear, matmul) arrive here: take them apart.
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if schema_of(func).name not in IGNORED:
            self._operators.append(cost_of(func, formula, args, kwargs, out))
        return out

    def _higher_order(self, func: Any, args: tuple, kwargs: dict) -> Any:
        out = func(*args, **kwargs)
        formula = find(func)
        flops = formula(*_shapes(args), out=_shapes(out)) if formula else None
        self._operators.append(_record(func.name(), tensors_in(args), flops, 0, 0))
        return out


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def cost_of(func: Any, formula: Callable | None, args: tuple, kwargs: dict, out: Any) -> OperatorCost:
    """The cost of one call of the overload ``func`` that returned ``out``."""
    read, written = traffic(func, args, kwargs, out)
    inputs = tensors_in(args)
    if formula is not None:
        options = {name: _shapes(value) for name, value in kwargs.items() if name != "out"}
        flops = formula(*_shapes(args), **options, out=_shapes(out))
        if any(t.is_complex() for t in inputs):
            flops = Flops(4 * flops.matrix, flops.vector * vector.complex_factor(schema_of(func).name))
    elif not written and _aliases(inputs, out):
        flops = Flops()  # a view, known to compute nothing
    else:
        flops = None
    namespace = func.namespace
    return _record(f"{namespace}.{schema_of(func).name}", inputs or tensors_in(out), flops, read, written)


def _record(name: str, tensors: list[Tensor], flops: Flops | None, read: int, written: int) -> OperatorCost:
    matrix_flops, vector_flops = flops or (0, 0)
    return OperatorCost(
        name,
        tuple(tuple(t.shape) for t in tensors),
        _dtype_name(tensors[0].dtype) if tensors else "",
        matrix_flops,
        vector_flops,
        read,
        written,
        counted=flops is not None,
    )


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aliases(inputs: list[Tensor], out: Any) -> bool:
    outputs = tensors_in(out)
    if any(t.layout != torch.strided for t in (*inputs, *outputs)):
        return False
    known = {storage_of(t) for t in inputs}
    return bool(outputs) and all(storage_of(t) in known for t in outputs)


def _shapes(value: Any) -> Any:
    """Every tensor inside replaced by its shape."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_shapes, value)) if type(value) in (list, tuple) else [_shapes(v) for v in value]
    if isinstance(value, dict):
        return {key: _shapes(entry) for key, entry in value.items()}
    return value


def count(fn: Callable[..., Any], *args: Any, backward: bool = False, gradient: Any = None, **kwargs: Any) -> Costs:
    """FLOPs and bytes of ``fn(*args, **kwargs)``, by operator.

    ``backward=True`` also runs autograd from every output that needs a gradient, with random
    gradients or the given ``gradient`` (one, or a list of as many); making them is not counted, and
    ``.grad`` of the leaves is left as it was. What activation checkpointing recomputes belongs to the
    backward. ValueError when there is nothing to differentiate; errors of ``fn`` pass through.
    """
    counter = CostCounter()
    with counter:
        out = fn(*args, **kwargs)
    if backward:
        counter._backward_from = len(counter._operators)
        outputs = tensors_of(out)
        if not outputs:
            raise ValueError(TEXT["no_tensor"])
        roots = [t for t in outputs if t.requires_grad]
        if not roots:
            raise ValueError(TEXT["no_grad"])
        gradients = _gradients(roots, gradient)
        with _leaves_untouched(roots), counter:
            torch.autograd.backward(roots, gradients)
    return counter.costs


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors of an output or of arguments, inside dataclasses and model outputs, too."""
    entries, _ = torch.utils._pytree.tree_flatten(value)
    return tensors_in([entry for entry in entries if isinstance(entry, Tensor)])


def _gradients(roots: list[Tensor], given: Any) -> list[Tensor]:
    if given is None:
        return [torch.randn_like(t) for t in roots]
    gradients = [given] if isinstance(given, Tensor) else list(given)
    if len(gradients) != len(roots):
        raise ValueError(TEXT["grad_shape"])
    return gradients


class _leaves_untouched:
    """Context: ``.grad`` of all leaves of a graph is put aside and restored."""

    def __init__(self, roots: list[Tensor]) -> None:
        self.leaves = leaves_of(roots)

    def __enter__(self) -> None:
        self.before = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None

    def __exit__(self, *exc: object) -> None:
        for leaf, grad in zip(self.leaves, self.before, strict=True):
            leaf.grad = grad


def leaves_of(roots: list[Tensor]) -> list[Tensor]:
    """The inputs and parameters that a graph differentiates with respect to."""
    leaves: dict[int, Tensor] = {id(t): t for t in roots if t.is_leaf}
    stack, seen = [t.grad_fn for t in roots if t.grad_fn is not None], set()
    while stack:
        node: Any = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves[id(variable)] = variable
        stack += [following for following, _ in node.next_functions if following is not None]
    return list(leaves.values())

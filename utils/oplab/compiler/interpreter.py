"""Triton's interpreter, listened to. The one module that knows its private interfaces (see `USED`).

Every load and store of the interpreter goes through two methods of its builder, whether it was written
with pointers, block pointers or tensor descriptors; atomics, products and program ids have their own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from oplab.compiler.ledger import ATOMIC, LOAD, STORE, Ledger

# Methods of triton.runtime.interpreter.InterpreterBuilder that are wrapped, with their parameters.
USED = {
    "create_masked_load": ["self", "ptrs", "mask", "other", "cache_modifier", "eviction_policy", "is_volatile"],
    "create_masked_store": ["self", "ptrs", "value", "mask", "cache_modifier", "eviction_policy"],
    "create_atomic_cas": ["self", "ptr", "cmp", "val", "sem", "scope"],
    "create_atomic_rmw": ["self", "rmwOp", "ptr", "val", "mask", "sem", "scope"],
    "create_dot": ["self", "a", "b", "d", "input_precision", "max_num_imprecise_acc"],
    "set_grid_idx": ["self", "x", "y", "z"],
}
TRIED = ("3.6", "3.7")

# What people read, in one place.
TEXT = {
    "missing": "trace needs {names} of triton.runtime.interpreter as they are in Triton {tried}; "
    "this is Triton {version}",
    "untried": "trace was never tried with Triton {version} ({tried} were): check its numbers",
    "bf16": "the interpreter mishandles bfloat16: use fp16 or fp32 here; the traffic is the same for fp16",
}


class Listener:
    """What one run of a kernel reports to: the ledger, FLOPs of products, and the program that runs."""

    def __init__(self, ledger: Ledger, files: set[str], started: Callable[[tuple[int, int, int], int], None]) -> None:
        self.ledger, self.files, self.started = ledger, files, started
        self.programs = 0
        self.dot_flops: dict[str, int] = {}  # by dtype
        self.scratch = np.zeros(2, np.uint64)  # where atomics outside every tensor go

    def place(self) -> tuple[str, int]:
        """File and line of the learner's code that is running."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename not in self.files:
            frame = frame.f_back  # type: ignore[assignment]
        return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)

    def outside(self, kind: str, pointers: Any, mask: Any, **how: bool) -> np.ndarray | None:
        """Lanes of an access that lie in no tensor."""
        bits = pointers.get_element_ty().primitive_bitwidth
        # `mask & (row < M)` with a scalar on one side comes as int32.
        alive = np.broadcast_to(mask, pointers.data.shape).astype(bool, copy=False)
        return self.ledger.access(kind, pointers.data, alive, max(1, bits // 8), self.place(), **how)


listener: Listener | None = None


def version() -> str:
    import triton

    return triton.__version__


def missing() -> str:
    """What this Triton lacks of `USED`, as a sentence; "" when all is there."""
    from triton.runtime import interpreter

    builder = getattr(interpreter, "InterpreterBuilder", None)
    names = []
    for name, expected in USED.items():
        method = getattr(builder, name, None)
        if method is None or list(inspect.signature(inspect.unwrap(method)).parameters) != expected:
            names.append(f"InterpreterBuilder.{name}")
    tried = " and ".join(TRIED)
    return TEXT["missing"].format(names=", ".join(names), tried=tried, version=version()) if names else ""


def untried() -> str:
    """A sentence where this version of Triton was never tried, else ""."""
    known = version().startswith(tuple(f"{number}." for number in TRIED))
    return "" if known else TEXT["untried"].format(version=version(), tried=" and ".join(TRIED))


def listen(to: Listener | None) -> None:
    """Report everything that the interpreter does to ``to``. Only in a process made for it."""
    global listener
    from triton.runtime.interpreter import InterpreterBuilder

    listener = to
    if version().startswith("3.6."):
        _count_with_scalars()
    for name in USED:
        original = getattr(InterpreterBuilder, name)
        if not hasattr(original, "__wrapped__"):
            wrapper = globals()[f"_{name.removeprefix('create_')}"](original)
            wrapper.__wrapped__ = original
            setattr(InterpreterBuilder, name, wrapper)


def _count_with_scalars() -> None:
    """Let ``range`` take a tensor: Triton 3.6 calls int() on an array of one element, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    if hasattr(original, "__wrapped__"):
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch.__wrapped__ = original  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch


def _masked_load(original: Callable) -> Callable:
    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        assert listener is not None
        outside = listener.outside(LOAD, ptrs, mask.data, other=other is not None)
        if outside is None:
            return original(self, ptrs, mask, other, *rest, **named)
        found = original(self, ptrs, _masked(mask, outside), other, *rest, **named)
        found.data[outside] = 0
        return found

    return create_masked_load


def _masked_store(original: Callable) -> Callable:
    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        assert listener is not None
        outside = listener.outside(STORE, ptrs, mask.data)
        return original(self, ptrs, value, mask if outside is None else _masked(mask, outside), *rest, **named)

    return create_masked_store


def _atomic_cas(original: Callable) -> Callable:
    def create_atomic_cas(self: Any, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        assert listener is not None
        outside = listener.outside(ATOMIC, ptr, np.True_, meets=_orders(sem))
        return original(self, _elsewhere(ptr, outside), cmp, val, sem, scope)

    return create_atomic_cas


def _atomic_rmw(original: Callable) -> Callable:
    def create_atomic_rmw(self: Any, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        assert listener is not None
        reads = "XCHG" not in str(rmwOp)
        outside = listener.outside(ATOMIC, ptr, mask.data, reads=reads, meets=_orders(sem))
        return original(self, rmwOp, _elsewhere(ptr, outside), val, mask, sem, scope)

    return create_atomic_rmw


def _dot(original: Callable) -> Callable:
    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        assert listener is not None
        dtype = str(a.dtype.scalar)
        if dtype == "bf16":
            raise ValueError(TEXT["bf16"])
        if dtype == "fp32" and "TF32" in str(input_precision):
            dtype = "tf32"
        flops = 2 * a.data.size * b.data.shape[-1]  # [..., M, K] x [..., K, N]
        name = "fp8" if dtype.startswith("fp8") else dtype
        listener.dot_flops[name] = listener.dot_flops.get(name, 0) + flops
        return original(self, a, b, d, input_precision, max_num_imprecise_acc)

    return create_dot


def _set_grid_idx(original: Callable) -> Callable:
    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        assert listener is not None
        original(self, x, y, z)
        listener.ledger.begin(listener.programs)
        listener.started((x, y, z), listener.programs)
        listener.programs += 1

    return set_grid_idx


def _masked(mask: Any, outside: np.ndarray) -> Any:
    return type(mask)(np.broadcast_to(mask.data, outside.shape).astype(bool) & ~outside, mask.dtype)


def _elsewhere(pointers: Any, outside: np.ndarray | None) -> Any:
    if outside is None:
        return pointers
    assert listener is not None
    moved = np.where(outside, np.uint64(listener.scratch.ctypes.data), pointers.data)
    return type(pointers)(moved, pointers.dtype)


def _orders(sem: Any) -> bool:
    return "RELAXED" not in str(sem)

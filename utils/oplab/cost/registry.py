"""Formulas for the FLOPs of operators: short functions of shapes, found by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Flops(NamedTuple):
    """What a formula returns: FLOPs that matrix units can do, and the rest."""

    matrix: int = 0
    vector: int = 0


Formula = Callable[..., "Flops | int"]
_formulas: dict[Any, Callable[..., Flops]] = {}


def formula(*operators: Any, unit: str = "matrix") -> Callable[[Formula], Formula]:
    """Register the decorated function as the FLOP formula of ``operators``.

    It is called with the operator's own arguments, every tensor replaced by its shape (a tuple), and
    ``out``, the shape of the result (or a tuple of shapes). It returns `Flops`, or an int, which counts
    as ``unit`` ("matrix" or "vector"). An operator is an overload packet (``torch.ops.aten.mm``: all
    its overloads) or one overload (``torch.ops.mylib.op.default``).
    """
    if unit not in ("matrix", "vector"):
        raise ValueError(f"unit is 'matrix' or 'vector', not {unit!r}")

    def register(function: Formula) -> Formula:
        def as_flops(*args: Any, **kwargs: Any) -> Flops:
            value = function(*args, **kwargs)
            if isinstance(value, Flops):
                return value
            return Flops(matrix=int(value)) if unit == "matrix" else Flops(vector=int(value))

        for operator in operators:
            _formulas[operator] = as_flops
        return function

    return register


def find(operator: Any) -> Callable[..., Flops] | None:
    """The formula of this overload or higher-order operator, or of its packet, or None."""
    found = _formulas.get(operator)
    return found if found is not None else _formulas.get(getattr(operator, "overloadpacket", None))

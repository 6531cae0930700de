"""What counting returns: FLOPs and bytes, per operator call and in total."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd


class _Amounts:
    """Sums and the ratio, alike for one call and for many."""

    if TYPE_CHECKING:  # a call has them as fields, many calls as sums

        @property
        def matrix_flops(self) -> int: ...
        @property
        def vector_flops(self) -> int: ...
        @property
        def bytes_read(self) -> int: ...
        @property
        def bytes_written(self) -> int: ...

    @property
    def flops(self) -> int:
        return self.matrix_flops + self.vector_flops

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """FLOP per byte; 0 where nothing moves."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class OperatorCost(_Amounts):
    """One call of one ATen operator. FLOPs with FMA = 2; bytes of one cold call.

    ``matrix_flops``: what matrix units can do (products, convolutions, attention). ``vector_flops``:
    the rest. ``counted`` is False when no formula gives this operator's FLOPs (its bytes are still right).
    """

    name: str  # such as "aten.mm"
    shapes: tuple[tuple[int, ...], ...]  # of its tensor inputs
    dtype: str
    matrix_flops: int = 0
    vector_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    counted: bool = True


@dataclass(frozen=True)
class Costs(_Amounts):
    """The operator calls of a function, in order, and their sums.

    ``forward`` and ``backward`` are Costs of their own; without ``backward=True`` everything is forward.
    FLOPs follow FMA = 2, bytes are the compulsory traffic of each call: every storage region that an
    operator reads, once, and every one that it writes, once. Python integers: nothing overflows.
    """

    operators: tuple[OperatorCost, ...] = ()
    backward_operators: tuple[OperatorCost, ...] = field(default=(), repr=False)

    @property
    def forward(self) -> Costs:
        return Costs(self.operators[: len(self.operators) - len(self.backward_operators)])

    @property
    def backward(self) -> Costs:
        return Costs(self.backward_operators)

    @property
    def matrix_flops(self) -> int:
        return sum(op.matrix_flops for op in self.operators)

    @property
    def vector_flops(self) -> int:
        return sum(op.vector_flops for op in self.operators)

    @property
    def bytes_read(self) -> int:
        return sum(op.bytes_read for op in self.operators)

    @property
    def bytes_written(self) -> int:
        return sum(op.bytes_written for op in self.operators)

    @property
    def uncounted(self) -> dict[str, int]:
        """Operators whose FLOPs no formula gives, with how often they were called. Empty is good."""
        calls: dict[str, int] = {}
        for op in self.operators:
            if not op.counted:
                calls[op.name] = calls.get(op.name, 0) + 1
        return calls

    def frame(self) -> pd.DataFrame:
        """One row per kind of operator, most bytes first."""
        columns = ["operator", "calls", "matrix_flops", "vector_flops", "bytes_read", "bytes_written", "counted"]
        rows: dict[str, list] = {}
        for op in self.operators:
            row = rows.setdefault(op.name, [op.name, 0, 0, 0, 0, 0, True])
            numbers = (1, op.matrix_flops, op.vector_flops, op.bytes_read, op.bytes_written)
            row[1:6] = [old + new for old, new in zip(row[1:6], numbers, strict=True)]
            row[6] = row[6] and op.counted
        # object: sums beyond 64 bits stay exact
        table = pd.DataFrame(list(rows.values()), columns=columns, dtype=object)
        moved = table.bytes_read + table.bytes_written
        flops = table.matrix_flops + table.vector_flops
        table["intensity"] = [f / b if b else 0.0 for f, b in zip(flops, moved, strict=True)]
        order = sorted(range(len(table)), key=lambda i: -moved[i])
        return table.iloc[order].reset_index(drop=True)

    def __repr__(self) -> str:
        lines = [
            f"{readable(self.flops, 'FLOP')} ({readable(self.matrix_flops, 'FLOP')} in matrix products), "
            f"{readable(self.bytes, 'B')} moved ({readable(self.bytes_read, 'B')} read, "
            f"{readable(self.bytes_written, 'B')} written), "
            f"{self.intensity:.3g} FLOP/B, {len(self.operators)} operators"
        ]
        if self.backward_operators:
            for name, part in (("forward", self.forward), ("backward", self.backward)):
                lines.append(f"  {name}: {readable(part.flops, 'FLOP')}, {readable(part.bytes, 'B')}")
        if self.uncounted:
            calls = ", ".join(f"{name} ({count})" for name, count in self.uncounted.items())
            lines.append(f"  FLOPs not counted for: {calls}")
        return "\n".join(lines)


def readable(value: float, unit: str) -> str:
    """``readable(2.5e9, "FLOP") == "2.5 GFLOP"``."""
    for prefix, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"

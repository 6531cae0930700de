"""What a kernel loaded and stored, as `trace` saw it: plain data that knows its sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

import numpy as np
import pandas as pd

from oplab import roofline
from oplab.cost.costs import readable
from oplab.machine import Machine

# What people read, in one place.
TEXT = {
    "head": "{kernel}: {programs:,} programs, {flops} in dot, {requested} requested, {unique} unique",
    "intensity": "intensity {value:.3g} FLOP per unique byte; operations outside dot are not counted",
    "no_dot": "no dot; operations outside dot are not counted",
    "load": "{name} loaded {bytes} ({factor:.3g} times its unique bytes)",
    "store": "{name} stored {bytes} ({factor:.3g} times its unique bytes)",
    "masked": "{count:,} of {lanes:,} lanes of {name} were masked off",
    "clean": "no problem found",
    "problem": "{kind}: {name}{where} by program {program}{more}{line}{count}",
    "element": "[{index}]",
    "past": ", {count:,} element(s) past its end",
    "before": ", {count:,} element(s) before its start",
    "far": ", an address far from every tensor",
    "other": ", which program {other} also touched",
    "line": ", line {line}: {text}",
    "times": " ({count:,} times in all)",
    "never_stored": "never stored: {count:,} of the elements of {name}",
    "no other": "{name}: {count:,} masked-off lanes without other=, so their values are undefined{line}",
    "ordered": "{name}: programs that touch the same element meet at an atomic first; taken as ordered{line}",
    "no_dtype": "dot ran in {dtypes}: say which ceiling to use, predicted_seconds(machine, dtype=…)",
    "steps": "the elements of this trace were not kept: over {limit:,} accesses. Trace a smaller problem",
    "no_program": "there is no program {program}; the grid is {grid}",
}


@dataclass(frozen=True)
class TensorTraffic:
    """One tensor argument. Bytes are requested by lanes that are on; ``unique_`` counts each byte once."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    itemsize: int
    offset: int  # of its first element in its storage, in elements
    load_bytes: int
    unique_load_bytes: int
    store_bytes: int
    unique_store_bytes: int
    masked_loads: int  # lanes, not bytes
    masked_stores: int
    atomics: int
    never_stored: int  # elements; of outputs only

    @property
    def reread(self) -> float:
        """Loaded bytes over unique loaded bytes; 0 where nothing was loaded."""
        return self.load_bytes / self.unique_load_bytes if self.unique_load_bytes else 0.0

    @property
    def rewritten(self) -> float:
        """Stored bytes over unique stored bytes; 0 where nothing was stored."""
        return self.store_bytes / self.unique_store_bytes if self.unique_store_bytes else 0.0

    def coordinates(self, elements: np.ndarray) -> np.ndarray:
        """Indices [element, dimension] of positions in the storage, counted in elements."""
        rest = elements.astype(np.int64) - self.offset
        found = np.zeros((len(rest), len(self.shape)), np.int64)
        for dimension in sorted(range(len(self.shape)), key=lambda d: -self.stride[d]):
            if self.stride[dimension] and self.shape[dimension] > 1:
                found[:, dimension], rest = np.divmod(rest, self.stride[dimension])
        return found


@dataclass(frozen=True)
class Problem:
    """Something wrong with an access. ``kind``: "out-of-bounds load", "uninitialised load", "race: two stores", …

    ``index``: of the first element it was seen at (None where outside); ``past``: elements behind the end
    or, negative, before the start. ``program`` and ``other``: grid positions. ``count``: elements in all.
    """

    kind: str
    tensor: str
    index: tuple[int, ...] | None
    past: int | None
    program: tuple[int, int, int] | None
    other: tuple[int, int, int] | None
    line: int
    text: str
    count: int

    def __str__(self) -> str:
        if self.program is None:
            return TEXT["never_stored"].format(count=self.count, name=self.tensor)
        if self.index is not None:
            where = TEXT["element"].format(index=", ".join(map(str, self.index)))
        elif self.past is None:
            where = TEXT["far"]
        else:
            where = TEXT["past" if self.past >= 0 else "before"].format(count=abs(self.past) + (self.past >= 0))
        return TEXT["problem"].format(
            kind=self.kind,
            name=self.tensor,
            where=where,
            program=self.program,
            more=TEXT["other"].format(other=self.other) if self.other is not None else "",
            line=TEXT["line"].format(line=self.line, text=self.text) if self.line else "",
            count=TEXT["times"].format(count=self.count) if self.count > 1 else "",
        )


@dataclass(frozen=True)
class Step:
    """One access of one program: which elements of a tensor, as indices [element, dimension]."""

    tensor: str
    kind: str  # "load", "store" or "atomic"
    elements: np.ndarray
    line: int
    text: str


@dataclass(frozen=True)
class Traffic:
    """Loads and stores of one run of a kernel over its whole grid.

    ``dot_flops``: FLOPs of ``tl.dot`` per dtype, FMA = 2. ``loaded_bytes`` and ``stored_bytes``: each byte
    of each storage once, through whichever tensors. Caches are not modelled: what was requested lies
    between what a perfect cache and no cache would move.
    """

    kernel: str
    grid: tuple[int, ...]
    tensors: tuple[TensorTraffic, ...]
    loaded_bytes: int
    stored_bytes: int
    dot_flops: dict[str, int]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    triton: str
    _steps: list[tuple[int, int, str, tuple[str, int, str]]] | None = field(repr=False)
    _elements: list[np.ndarray] = field(repr=False)

    def __getitem__(self, name: str) -> TensorTraffic:
        """The traffic of the tensor argument ``name``; KeyError names those there are."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(f"no tensor {name!r}; there are {', '.join(t.name for t in self.tensors)}")

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def flops(self) -> int:
        """FLOPs of ``tl.dot``."""
        return sum(self.dot_flops.values())

    @property
    def requested_bytes(self) -> int:
        return sum(t.load_bytes + t.store_bytes for t in self.tensors)

    @property
    def unique_bytes(self) -> int:
        """Each byte loaded once and stored once: what must move at least."""
        return self.loaded_bytes + self.stored_bytes

    @property
    def intensity(self) -> float:
        """FLOPs of ``tl.dot`` per unique byte."""
        return self.flops / self.unique_bytes if self.unique_bytes else 0.0

    @property
    def requested_intensity(self) -> float:
        """FLOPs of ``tl.dot`` per requested byte: the intensity if no cache helped."""
        return self.flops / self.requested_bytes if self.requested_bytes else 0.0

    def predicted_seconds(self, machine: Machine, dtype: str | None = None) -> float:
        """The least time by the roofline of ``machine``: unique bytes from memory, dot FLOPs at the peak.

        ``dtype``: whose ceiling to hold the FLOPs against; of the dot's operands unless given.
        ValueError where dot ran in several dtypes and none is given.
        """
        if dtype is None:
            if len(self.dot_flops) > 1:
                raise ValueError(TEXT["no_dtype"].format(dtypes=", ".join(self.dot_flops)))
            dtype = next(iter(self.dot_flops), "fp32")
        return roofline.classify(
            machine, dtype=dtype, matrix_flops=self.flops, vector_flops=0, nbytes=self.unique_bytes
        ).floor_seconds

    def steps(self, program: tuple[int, ...] | int = 0) -> list[Step]:
        """The accesses of one program in their order. ``program``: its position in the grid.

        ValueError where the trace was too long to keep them, or there is no such program.
        """
        if self._steps is None:
            from oplab.compiler.ledger import KEPT_ELEMENTS

            raise ValueError(TEXT["steps"].format(limit=KEPT_ELEMENTS))
        position = (program,) if isinstance(program, int) else tuple(program)
        sizes = (*self.grid, 1, 1)[:3]
        position = (*position, 0, 0)[:3]
        if not all(0 <= p < size for p, size in zip(position, sizes, strict=True)):
            raise ValueError(TEXT["no_program"].format(program=program, grid=self.grid))
        number = int(np.ravel_multi_index(position, sizes))
        found = []
        for (who, which, kind, (_, line, text)), elements in zip(self._steps, self._elements, strict=True):
            if who == number:
                tensor = self.tensors[which]
                found.append(Step(tensor.name, kind, tensor.coordinates(elements), line, text))
        return found

    def frame(self) -> pd.DataFrame:
        """One row per tensor argument."""
        rows = [
            {
                "tensor": t.name, "loaded": t.load_bytes, "unique loaded": t.unique_load_bytes, "re-read": t.reread,
                "stored": t.store_bytes, "unique stored": t.unique_store_bytes,
                "lanes masked off": t.masked_loads + t.masked_stores,
            }
            for t in self.tensors
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        lines = [self._head(), TEXT["intensity"].format(value=self.intensity) if self.flops else TEXT["no_dot"]]
        for t in self.tensors:
            for key, nbytes, factor in (("load", t.load_bytes, t.reread), ("store", t.store_bytes, t.rewritten)):
                if nbytes:
                    lines.append("  " + TEXT[key].format(name=t.name, bytes=readable(nbytes, "B"), factor=factor))
            if off := t.masked_loads + t.masked_stores:
                lanes = off + (t.load_bytes + t.store_bytes) // t.itemsize
                lines.append("  " + TEXT["masked"].format(count=off, lanes=lanes, name=t.name))
        lines += [str(problem) for problem in self.problems] or [TEXT["clean"]]
        return "\n".join(lines + list(self.notes))

    def _head(self) -> str:
        return TEXT["head"].format(
            kernel=self.kernel,
            programs=int(np.prod(self.grid)),
            flops=readable(self.flops, "FLOP"),
            requested=readable(self.requested_bytes, "B"),
            unique=readable(self.unique_bytes, "B"),
        )

    def _repr_html_(self) -> str:
        frame = self.frame()
        for column in ("loaded", "unique loaded", "stored", "unique stored"):
            frame[column] = [readable(value, "B") if value else "" for value in frame[column]]
        frame["re-read"] = [f"{value:.3g}" if value else "" for value in frame["re-read"]]
        below = TEXT["intensity"].format(value=self.intensity) if self.flops else TEXT["no_dot"]
        said = [str(problem) for problem in self.problems] or [TEXT["clean"]]
        lines = [f"<b>{escape(self._head())}</b>", frame.to_html(index=False, border=0), escape(below)]
        return "<br>".join(lines + [escape(line) for line in [*said, *self.notes]])

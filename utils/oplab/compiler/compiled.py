"""`Compiled`: one kernel, compiled for one GPU, and what that takes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from oplab.compiler import instructions as reading
from oplab.compiler.occupancy import Occupancy, occupancy
from oplab.compiler.targets import Target

# What people read, in one place.
TEXT = {
    "title": "{kernel} for {target}: {warps} warps, {stages}",
    "stages": "{stages} stages",
    "shared": "A block of {threads} threads takes {shared:,} B of shared memory; {gpu} allows {limit:,} B.",
    "too_much": "It does not fit: {shared:,} B of shared memory are needed and {gpu} allows {limit:,} B per block. "
    "Make a block side or num_stages smaller.",
    "too_many": "It does not fit: not one block of {threads} threads with {registers} registers each goes on an SM.",
    "registers": "Each thread has {registers} registers and spills none.",
    "spills": "Each thread has {registers} registers, which is not enough: {spills:,} B per thread go out to memory "
    "and back. Use a smaller block or more warps.",
    "blocks": "{occupancy}.",
    "matrix": "Products run on the matrix units: {what}.",
    "no_matrix": "No instruction of the matrix units: all arithmetic is ordinary.",
    "loads": "Global memory is read in pieces of {what}.",
    "stores": "Global memory is written in pieces of {what}.",
    "narrow": "Pieces under 16 B need more instructions for the same bytes: are pointers and lengths multiples of 16?",
    "no_asm": "{kernel} has no {kind!r}; it has {have}",
    "nothing": "no line has {what!r}",
    "pipelined": "no line has {what!r}: loads that are pipelined through shared memory are written cp.async, and "
    "the copy engine's cp.async.bulk.tensor",
    "many": "{{{first}, … {count} registers}}",
    "same": "no difference",
    "and": " and ",
    "row shared": "shared memory per block",
    "row registers": "registers per thread",
    "row spills": "spilled per thread",
    "row blocks": "blocks per SM",
    "row warps": "warps per SM",
    "row matrix": "matrix instructions",
    "row loads": "global loads",
    "row stores": "global stores",
    "limited": "{blocks} (limited by {what})",
    "none": "none",
}


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a kernel. Registers, spills and stack are per thread, shared memory per block.

    ``instructions`` counts instructions as written (PTX for NVIDIA, assembler for AMD). ``asm``: every
    stage from Triton's own form to the binary, by name ("ttir", "ttgir", "llir", "ptx", "cubin" or
    "amdgcn", "hsaco").
    """

    kernel: str
    target: Target
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int | None
    shared_bytes: int
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    asm: dict[str, str | bytes] = field(repr=False, compare=False)
    triton: str
    seconds: float = field(compare=False)  # what compiling took, when it was done

    @property
    def spill_bytes(self) -> int:
        """Bytes per thread stored to memory because registers ran out, and loaded again."""
        return self.spill_store_bytes + self.spill_load_bytes

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.num_warps * self.target.warp_size

    @cached_property
    def instructions(self) -> dict[str, int]:
        if "ptx" in self.asm:
            return reading.of_ptx(str(self.asm["ptx"]))
        return reading.of_amd(str(self.asm["amdgcn"]))

    @property
    def matrix_instructions(self) -> dict[str, int]:
        """Of the matrix units ("tensor cores"): "wgmma m64n256k16 bf16" → count; empty if there are none."""
        return reading.matrix(self.instructions)

    @property
    def load_widths(self) -> dict[str, int]:
        """Global loads: "16 B" per thread and instruction, or "TMA" for the copy engine → count."""
        return reading.load_widths(self.instructions)

    @property
    def store_widths(self) -> dict[str, int]:
        """Global stores, like `load_widths`."""
        return reading.store_widths(self.instructions)

    @property
    def occupancy(self) -> Occupancy:
        warps, shared = self.num_warps, self.shared_bytes
        return occupancy(self.target, registers=self.registers, shared_bytes=shared, num_warps=warps)

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that one SM holds at once; 0 when the kernel cannot be launched."""
        return self.occupancy.blocks_per_sm

    @property
    def limited_by(self) -> str:
        """What keeps another block from an SM: "shared memory", "registers", "threads per SM" or "blocks per SM"."""
        return self.occupancy.limited_by

    @property
    def fits(self) -> bool:
        """Can the target launch it?"""
        return self.blocks_per_sm > 0

    # -- for people

    @property
    def title(self) -> str:
        stages = TEXT["stages"].format(stages=self.num_stages) if self.num_stages else ""
        text = TEXT["title"].format(kernel=self.kernel, target=self.target.label, warps=self.num_warps, stages=stages)
        return text.rstrip(", ")

    def explain(self) -> str:
        """What it takes and what that means, a sentence per line."""
        gpu = self.target.gpu or self.target.name
        numbers = {"threads": self.threads, "shared": self.shared_bytes, "registers": self.registers, "gpu": gpu}
        numbers |= {"limit": self.target.shared_per_block, "spills": self.spill_bytes}
        lines = []
        if self.shared_bytes > self.target.shared_per_block:
            lines.append(TEXT["too_much"].format(**numbers))
        elif not self.fits:
            lines.append(TEXT["too_many"].format(**numbers))
        else:
            lines += [TEXT["shared"].format(**numbers), TEXT["blocks"].format(occupancy=self.occupancy)]
        lines.append(TEXT["spills" if self.spill_bytes else "registers"].format(**numbers))
        matrix = self.matrix_instructions
        lines.append(TEXT["matrix"].format(what=_counts(matrix)) if matrix else TEXT["no_matrix"])
        for key, widths in (("loads", self.load_widths), ("stores", self.store_widths)):
            if widths:
                lines.append(TEXT[key].format(what=TEXT["and"].join(widths)))
        if any(width in self.load_widths | self.store_widths for width in ("1 B", "2 B", "4 B")):
            lines.append(TEXT["narrow"])
        return "\n".join(lines)

    def facts(self) -> dict[str, str]:
        """Label → value; the rows of tables and comparisons."""
        held = self.occupancy
        return {
            TEXT["row shared"]: f"{self.shared_bytes:,} of {self.target.shared_per_block:,} B",
            TEXT["row registers"]: f"{self.registers}",
            TEXT["row spills"]: f"{self.spill_bytes:,} B",
            TEXT["row blocks"]: TEXT["limited"].format(blocks=held.blocks_per_sm, what=held.limited_by),
            TEXT["row warps"]: f"{held.warps} of {held.warps_per_sm}",
            TEXT["row matrix"]: _counts(self.matrix_instructions),
            TEXT["row loads"]: _counts(self.load_widths),
            TEXT["row stores"]: _counts(self.store_widths),
        }

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {label:<26}{value}" for label, value in self.facts().items())])

    def _repr_html_(self) -> str:
        cells = "".join(_row(label, value) for label, value in self.facts().items())
        sentences = "<br>".join(escape(line) for line in self.explain().splitlines())
        return f"<b>{escape(self.title)}</b><table>{cells}</table><p>{sentences}</p>"

    def diff(self, other: Compiled) -> Difference:
        """What changed from this one to ``other``: resources and instructions."""
        mine, theirs = self.facts(), other.facts()
        rows = [(label, mine[label], theirs[label]) for label in mine if mine[label] != theirs[label]]
        names = sorted({*self.instructions, *other.instructions})
        pairs = ((name, self.instructions.get(name, 0), other.instructions.get(name, 0)) for name in names)
        changed = sorted((p for p in pairs if p[1] != p[2]), key=lambda pair: -abs(pair[1] - pair[2]))
        return Difference(self.title, other.title, tuple(rows), tuple(changed))

    def show(self, kind: str = "ptx", around: str = "", context: int = 3) -> Listing:
        """The text of one stage; with ``around``, the lines that contain it and ``context`` more on each side.

        "sass", what the hardware executes, is disassembled from the binary when asked for. KeyError
        names the stages there are.
        """
        if kind == "sass" and "cubin" in self.asm:
            text = disassembled(self.asm["cubin"])
        elif isinstance(found := self.asm.get(kind), str):
            text = found
        else:
            have = [*(name for name, value in self.asm.items() if isinstance(value, str))]
            have += ["sass"] if "cubin" in self.asm else []
            raise KeyError(TEXT["no_asm"].format(kernel=self.kernel, kind=kind, have=", ".join(have)))
        return Listing(tuple(_without_debug(text)), around, context)


def disassembled(cubin: str | bytes) -> str:
    """NVIDIA's binary as SASS, by the disassembler that Triton brings."""
    from triton import knobs

    assert isinstance(cubin, bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([knobs.nvidia.nvdisasm.path, "-c", path], capture_output=True, text=True, check=True)
    return done.stdout


def _without_debug(text: str) -> list[str]:
    lines = text.split("\n\t.section\t.debug", 1)[0].splitlines()
    kept = (line for line in lines if not re.match(r"\s*(\.loc\b|\.file\b|//\s*(begin|end) inline|//## File)", line))
    return [re.sub(r"\{(%\w+)((?:,\s*%\w+){8,})\}", _shortened, line) for line in kept]


def _shortened(registers: re.Match) -> str:
    """A tile's accumulator is up to 128 registers on one line."""
    return TEXT["many"].format(first=registers[1], count=1 + registers[2].count(","))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in counts.items()) or TEXT["none"]


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in cells) + "</tr>"


@dataclass(frozen=True)
class Difference:
    """Two compiled kernels side by side; only what differs."""

    first: str
    second: str
    facts: tuple[tuple[str, str, str], ...]
    instructions: tuple[tuple[str, int, int], ...]  # largest change first

    def __bool__(self) -> bool:
        return bool(self.facts or self.instructions)

    def __repr__(self) -> str:
        if not self:
            return TEXT["same"]
        lines = [f"- {self.first}", f"+ {self.second}"]
        lines += [f"  {label:<26}{before}  →  {after}" for label, before, after in self.facts]
        lines += [f"  {name:<72}{before:>6} → {after}" for name, before, after in self.instructions[:20]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self:
            return escape(TEXT["same"])
        rows = [_row("", self.first, self.second), *(_row(*fact) for fact in self.facts)]
        rows += [_row(name, str(before), str(after)) for name, before, after in self.instructions[:20]]
        return f"<table>{''.join(rows)}</table>"


@dataclass(frozen=True)
class Listing:
    """Lines of assembler; those that contain ``around`` are marked."""

    lines: tuple[str, ...]
    around: str
    context: int

    def chosen(self) -> list[tuple[int, str, bool]]:
        """(line number, line, does it contain ``around``)."""
        if not self.around:
            return [(number, line, False) for number, line in enumerate(self.lines, 1)]
        hits = {number for number, line in enumerate(self.lines) if self.around in line}
        near = {n for hit in hits for n in range(hit - self.context, hit + self.context + 1)}
        return [(n + 1, self.lines[n], n in hits) for n in sorted(near) if 0 <= n < len(self.lines)]

    def __repr__(self) -> str:
        lines = [f"{'>' if hit else ' '}{number:>5}  {line.expandtabs(4)}" for number, line, hit in self.chosen()]
        return "\n".join(lines) or self._nothing()

    def _nothing(self) -> str:
        asynchronous = self.around.startswith("ld.global") and any("cp.async" in line for line in self.lines)
        return TEXT["pipelined" if asynchronous else "nothing"].format(what=self.around)

    def _repr_html_(self) -> str:
        def shown(number: int, line: str, hit: bool) -> str:
            text = escape(line.expandtabs(4))
            if self.around:
                text = text.replace(escape(self.around), f"<mark>{escape(self.around)}</mark>")
            return f"<span style='opacity:0.5'>{number:>5}</span>  {f'<b>{text}</b>' if hit else text}"

        lines = "\n".join(shown(*line) for line in self.chosen())
        text = lines or escape(self._nothing())
        return f"<pre style='max-height:30em;overflow:auto;line-height:1.3'>{text}</pre>"

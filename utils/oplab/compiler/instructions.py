"""Reading assembler: which instructions there are, how wide global loads and stores are, registers on AMD.

Counts are of instructions as written, not as executed: one in a loop counts once. NVIDIA's are read
from PTX, whose names say what they do; AMD's from the assembler itself.
"""

from __future__ import annotations

import re
from collections import Counter

_PTX_LINE = re.compile(r"^\s*(?:\{\s*)?(?:@!?%?\w+\s+)?([a-z][a-z0-9_]*(?:[.:]+[a-zA-Z0-9_]+)*)\s*([^;]*);?")
_PTX_WIDTH = re.compile(r"(?:\.v(\d))?\.[a-z]*(\d+)$")
_CP_ASYNC_SIZE = re.compile(r",\s*(?:0x([0-9a-fA-F]+)|(\d+))\s*(?:,.*)?$")
_AMD_LINE = re.compile(r"^\s+([a-z][a-z0-9_]+)\b")
_AMD_WORDS = {
    "dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "ushort": 2, "short": 2, "ubyte": 1, "byte": 1,
    "b128": 16, "b96": 12, "b64": 8, "b32": 4, "b16": 2, "u16": 2, "i16": 2, "b8": 1, "u8": 1, "i8": 1,
}  # fmt: skip


def of_ptx(ptx: str) -> dict[str, int]:
    """Instruction → how often it is written, commonest first. ``cp.async`` carries its size in bytes."""
    counts: Counter[str] = Counter()
    for line in _body(ptx):
        if (match := _PTX_LINE.match(line)) and "." in match[1]:
            name = match[1]
            if name.startswith("cp.async.c") and ".bulk" not in name and (size := _CP_ASYNC_SIZE.search(match[2])):
                name += f" {int(size[1], 16) if size[1] else int(size[2])}"
            counts[name] += 1
    return dict(counts.most_common())


def _body(ptx: str) -> list[str]:
    """Lines with instructions: no directives, comments or debug sections."""
    code = ptx.split("\n\t.section", 1)[0]
    lines = (line.split("//")[0] for line in code.splitlines())
    return [line for line in lines if line.strip() and not line.lstrip().startswith((".", "$", "(", ")", "}"))]


def of_amd(assembler: str) -> dict[str, int]:
    """Instruction → how often it is written, commonest first."""
    code = re.split(r"^\s*s_code_end|^\s*\.section", assembler, maxsplit=1, flags=re.M)[0]
    return dict(Counter(match[1] for line in code.splitlines() if (match := _AMD_LINE.match(line))).most_common())


def matrix(instructions: dict[str, int]) -> dict[str, int]:
    """Instructions of the matrix units ("tensor cores"), by a short name such as "wgmma m64n256k16 bf16"."""
    found: Counter[str] = Counter()
    for name, count in instructions.items():
        if name.startswith(("wgmma.mma_async", "mma.sync", "tcgen05.mma", "v_mfma", "v_smfma", "v_wmma", "v_swmma")):
            found[_short(name)] += count
    return dict(found)


def _short(name: str) -> str:
    if name.startswith("v_"):
        return name
    parts = re.split(r"[.:]+", name)
    family = {"wgmma": "wgmma", "mma": "mma.sync", "tcgen05": "tcgen05.mma"}[parts[0]]
    shape = next((part for part in parts if re.fullmatch(r"m\d+n\d+k\d+", part)), "")
    dtypes = [part for part in parts if re.fullmatch(r"(bf16|tf32|f\d+|e\dm\d|[su]\d+|f8f6f4|i8)", part)]
    if "kind" in parts:  # tcgen05: "f16" stands for bf16 as well
        return f"{family} kind::{parts[parts.index('kind') + 1]}"
    # D, A, B, C in this order; A is what people mean by the dtype of the product.
    dtype = dtypes[1] if len(dtypes) > 1 else "".join(dtypes)
    return " ".join(part for part in (family, shape, dtype) if part)


def load_widths(instructions: dict[str, int]) -> dict[str, int]:
    """How global memory is read: bytes per thread and instruction, or the copy engine ("TMA") → count."""
    return _widths(instructions, ("ld.global", "cp.async.c"), "_load_", r"\.shared::\w+\.global")


def store_widths(instructions: dict[str, int]) -> dict[str, int]:
    """How global memory is written: bytes per thread and instruction, or "TMA" → count."""
    return _widths(instructions, ("st.global",), "_store_", r"\.global\.shared::\w+")


def _widths(instructions: dict[str, int], plain: tuple[str, ...], amd: str, direction: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, count in instructions.items():
        if name.startswith("cp.async.bulk.tensor") and re.search(direction, name):
            found["TMA"] += count
        elif name.startswith("cp.async.c") and name.startswith(plain) and " " in name:
            found[f"{name.split()[1]} B"] += count
        elif name.startswith(plain) and (match := _PTX_WIDTH.search(name)):
            found[f"{int(match[1] or 1) * int(match[2]) // 8} B"] += count
        elif name.startswith(("global" + amd, "buffer" + amd, "flat" + amd)):
            word = re.sub(r"^(?:global|buffer|flat)_(?:load|store)_(?:lds_)?", "", name)
            word = re.sub(r"_?d16(_hi)?_?", "", word)  # the upper or lower half of a register
            found[f"{_AMD_WORDS[word]} B" if word in _AMD_WORDS else word] += count
    return dict(found.most_common())


_AMD_FACTS = {
    "registers": r"\.vgpr_count:\s+(\d+)",
    "accumulators": r"\.agpr_count:\s+(\d+)",
    "scalar_registers": r"\.sgpr_count:\s+(\d+)",
    "vector_spills": r"\.vgpr_spill_count:\s+(\d+)",
    "scalar_spills": r"\.sgpr_spill_count:\s+(\d+)",
    "stack_bytes": r"\.private_segment_fixed_size:\s+(\d+)",
}


def amd_resources(assembler: str) -> dict[str, int]:
    """Registers per thread (vector and accumulation together), stack and spilled bytes per thread.

    A spilled scalar register is one value for 64 threads; it counts as 4 B like a vector register.
    """
    found = {name: re.findall(pattern, assembler) for name, pattern in _AMD_FACTS.items()}
    number = {name: int(values[-1]) if values else 0 for name, values in found.items()}
    return {
        "registers": number["registers"],  # .vgpr_count holds the accumulation registers already
        "stack_bytes": number["stack_bytes"],
        "spill_store_bytes": 4 * (number["vector_spills"] + number["scalar_spills"]),
        "spill_load_bytes": 4 * (number["vector_spills"] + number["scalar_spills"]),
    }

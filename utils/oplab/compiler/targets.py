"""The GPUs that a kernel can be compiled for, and what one of their multiprocessors holds.

NVIDIA limits: CUDA C++ Programming Guide, section "Compute Capabilities", table "Technical
Specifications per Compute Capability"; allocation units: ``cuda_occupancy.h`` of the CUDA toolkit.
AMD limits: the architecture's ISA guide and LLVM's AMDGPUBaseInfo.cpp (``getTotalNumVGPRs``,
``getVGPRAllocGranule``, ``getMaxWavesPerEU``). Multiprocessor counts: the vendors' data sheets.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace

KIB = 1024

# What people read, in one place.
TEXT = {
    "unknown": "no target {name!r}. Architectures: {archs}. GPUs: {gpus}.{hint}",
    "nvidia_source": "CUDA C++ Programming Guide, Technical Specifications per Compute Capability",
    "amd_source": "AMD ISA guide and LLVM AMDGPUBaseInfo.cpp",
    "hint": " Did you mean {close!r}?",
}


@dataclass(frozen=True)
class Target:
    """One architecture, and where ``gpu`` names one, that GPU.

    "SM" stands for NVIDIA's streaming multiprocessor and for AMD's compute unit. Registers are 32 bits
    wide and counted per thread; ``registers_per_sm`` over all threads. Sizes are bytes.
    """

    name: str  # "sm_90", "gfx942"
    gpus: dict[str, int] = field(compare=False)  # name -> SMs
    threads_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    shared_per_block: int
    shared_reserved: int = KIB  # what the system keeps in each block
    shared_unit: int = 128
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    register_unit: int = 256  # a warp's registers are rounded up to this
    warp_size: int = 32
    parts: int = 4  # SM sub-partitions, AMD: SIMDs; a warp's registers come from one of them
    gpu: str = ""

    @property
    def nvidia(self) -> bool:
        return self.name.startswith("sm_")

    @property
    def backend(self) -> str:
        return "cuda" if self.nvidia else "hip"

    @property
    def arch(self) -> int | str:
        """As Triton's GPUTarget wants it: 90 or "gfx942"."""
        return int(self.name.removeprefix("sm_")) if self.nvidia else self.name

    @property
    def source(self) -> str:
        return TEXT["nvidia_source" if self.nvidia else "amd_source"]

    @property
    def sms(self) -> int:
        """Multiprocessors of ``gpu``, or of the first GPU of this architecture."""
        return self.gpus[self.gpu] if self.gpu else next(iter(self.gpus.values()))

    @property
    def label(self) -> str:
        return f"{self.gpu} ({self.name})" if self.gpu else self.name

    @property
    def threads_per_block(self) -> int:
        return 1024


def _nvidia(name: str, threads: int, blocks: int, sm_kib: int, block_kib: int, **gpus: int) -> Target:
    names = {gpu.replace("_", " "): sms for gpu, sms in gpus.items()}
    return Target(name, names, threads, blocks, sm_kib * KIB, block_kib * KIB)


def _amd(name: str, shared_kib: int, **gpus: int) -> Target:
    """CDNA: wave64, 4 SIMDs of 512 registers a lane (vector and accumulation together), 8 waves each."""
    names = {gpu.replace("_", " "): sms for gpu, sms in gpus.items()}
    return Target(
        name, names, 2048, 16, shared_kib * KIB, shared_kib * KIB, shared_reserved=0, shared_unit=512,
        registers_per_sm=4 * 512 * 64, registers_per_thread=512, register_unit=8 * 64, warp_size=64,
    )  # fmt: skip


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        replace(_nvidia("sm_75", 1024, 16, 64, 64, T4=40, RTX_2080_Ti=68), shared_reserved=0, shared_unit=256),
        _nvidia("sm_80", 2048, 32, 164, 163, A100=108, A30=56),
        _nvidia("sm_86", 1536, 16, 100, 99, RTX_3090=82, A10=72, A40=84, RTX_A6000=84),
        _nvidia("sm_89", 1536, 24, 100, 99, RTX_4090=128, L4=58, L40S=142),
        _nvidia("sm_90", 2048, 32, 228, 227, H200=132, H100=132),
        _nvidia("sm_100", 2048, 32, 228, 227, B200=148),
        _nvidia("sm_120", 1536, 24, 100, 99, RTX_5090=170),
        _amd("gfx90a", 64, MI250X=110, MI210=104),
        _amd("gfx942", 64, MI300X=304, MI300A=228),
        _amd("gfx950", 160, MI355X=256, MI350X=256),
        # RDNA3: wave32, per compute unit 2 SIMDs of 1536 registers a lane, 16 waves each.
        Target(
            "gfx1100", {"RX 7900 XTX": 96, "Radeon Pro W7900": 96}, 1024, 16, 64 * KIB, 64 * KIB, shared_reserved=0,
            shared_unit=512, registers_per_sm=2 * 1536 * 32, registers_per_thread=256, register_unit=24 * 32, parts=2,
        ),
    )
}  # fmt: skip


def find(name: object) -> Target:
    """The target that "sm_90", "sm90a", "H200", "NVIDIA H200" or "gfx942" names; ValueError lists them."""
    if isinstance(name, Target):
        return name
    text = str(name).strip()
    if match := re.fullmatch(r"(?:sm_?|cuda:)?(\d{2,3})a?", text.lower()):
        text = f"sm_{match[1]}"
    if text.lower() in TARGETS:
        return TARGETS[text.lower()]
    gpus = {gpu: target for target in TARGETS.values() for gpu in target.gpus}
    wanted = _plain(text)
    # The longest name first: "RTX 3090 Ti" is not there, and "A100-SXM4-80GB" contains "A10".
    for gpu in sorted(gpus, key=len, reverse=True):
        if re.search(rf"(?<![a-z0-9]){_plain(gpu)}(?![a-z0-9])", wanted):
            return replace(gpus[gpu], gpu=gpu)
    close = difflib.get_close_matches(text, [*TARGETS, *gpus], 1)
    hint = TEXT["hint"].format(close=close[0]) if close else ""
    raise ValueError(TEXT["unknown"].format(name=name, archs=", ".join(TARGETS), gpus=", ".join(gpus), hint=hint))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()

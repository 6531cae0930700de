"""How many blocks of a kernel one multiprocessor holds at once, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from oplab.compiler.targets import Target

# What people read, in one place.
TEXT = {
    "registers": "registers",
    "shared": "shared memory",
    "threads": "threads per SM",
    "blocks": "blocks per SM",
    "none": "no block fits an SM: {what} runs out",
    "some": "{blocks} block(s) per SM, {warps} of {most} warps ({share:.0%}), limited by {what}",
}


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks of one kernel on one SM. ``limits`` says how many each resource alone would allow."""

    limits: dict[str, int]  # "registers", "shared", "threads", "blocks" -> blocks per SM
    warps_per_block: int
    warps_per_sm: int  # what the SM could hold

    @property
    def blocks_per_sm(self) -> int:
        return min(self.limits.values())

    @property
    def limited_by(self) -> str:
        """The resource that runs out first, in people's words; of several, the one that a kernel can change."""
        least = self.blocks_per_sm
        return TEXT[next(name for name in ("shared", "registers", "threads", "blocks") if self.limits[name] == least)]

    @property
    def warps(self) -> int:
        """Warps resident on one SM."""
        return self.blocks_per_sm * self.warps_per_block

    @property
    def fraction(self) -> float:
        """Resident warps over those that the SM could hold; what CUDA calls occupancy."""
        return self.warps / self.warps_per_sm

    def __repr__(self) -> str:
        if not self.blocks_per_sm:
            return TEXT["none"].format(what=self.limited_by)
        numbers = {"blocks": self.blocks_per_sm, "warps": self.warps, "most": self.warps_per_sm}
        return TEXT["some"].format(**numbers, share=self.fraction, what=self.limited_by)


def occupancy(target: Target, *, registers: int, shared_bytes: int, num_warps: int) -> Occupancy:
    """Blocks per SM of a kernel with ``registers`` per thread and ``shared_bytes`` per block.

    The rules of CUDA's occupancy calculator (``cuda_occupancy.h``): a warp's registers are rounded up to
    the allocation unit and must come from one of the SM's parts; warps are dealt to the parts evenly.
    """
    warps_per_sm = target.threads_per_sm // target.warp_size
    a_warp = _rounded(max(registers, 1) * target.warp_size, target.register_unit)
    warps_that_fit = target.registers_per_sm // target.parts // a_warp * target.parts
    a_block = _rounded(shared_bytes + target.shared_reserved, target.shared_unit)
    fits_a_block = shared_bytes <= target.shared_per_block
    threads = warps_per_sm // num_warps if num_warps * target.warp_size <= target.threads_per_block else 0
    limits = {
        "registers": warps_that_fit // num_warps,
        "shared": (target.shared_per_sm // a_block if a_block else target.blocks_per_sm) if fits_a_block else 0,
        "threads": threads,
        "blocks": target.blocks_per_sm,
    }
    return Occupancy(limits, num_warps, warps_per_sm)


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit

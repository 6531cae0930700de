"""Where an operator sits against what this machine can do."""

from __future__ import annotations

from oplab.machine import Machine

# Ceilings are medians of a noisy quantity on a chip whose clock follows its temperature: a kernel
# may honestly beat one by some per cent. Beyond this, the number is wrong or came from a cache.
TOLERANCE = 1.10

TEXT = {
    "faster": "{share:.0%} of the measured {ceiling}: cache-hot or wrong, not a success",
    "bandwidth": "copy bandwidth ({value:.3g} TB/s)",
    "peak": "{dtype} peak ({value:.3g} TFLOP/s)",
}


def bandwidth_share(nbytes: float, seconds: float, ceiling: float) -> float:
    """Compulsory bytes per second over ``ceiling`` (B/s)."""
    return nbytes / seconds / ceiling


def flops_share(flops: float, seconds: float, ceiling: float) -> float:
    """FLOP per second over ``ceiling`` (FLOP/s)."""
    return flops / seconds / ceiling


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """The roofline: FLOP/s that an operator of ``intensity`` (FLOP/B) can reach at most.

    Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009: min(peak, bandwidth x intensity).
    """
    return min(peak, bandwidth * intensity)


def faster_than_ceiling(
    seconds: float, machine: Machine, *, nbytes: float = 0, flops: float = 0, dtype: str | None = None
) -> str | None:
    """A plain sentence when ``seconds`` beats what the machine was measured to do, else None."""
    if nbytes:
        share = bandwidth_share(nbytes, seconds, machine.bandwidth)
        if share > TOLERANCE:
            name = TEXT["bandwidth"].format(value=machine.bandwidth / 1e12)
            return TEXT["faster"].format(share=share, ceiling=name)
    if flops and dtype in machine.peaks:
        share = flops_share(flops, seconds, machine.peaks[dtype])
        if share > TOLERANCE:
            name = TEXT["peak"].format(dtype=dtype, value=machine.peaks[dtype] / 1e12)
            return TEXT["faster"].format(share=share, ceiling=name)
    return None

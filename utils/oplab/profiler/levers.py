"""Which lever an operator asks for, with one sentence why, from its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oplab.cost.costs import readable as amount
from oplab.roofline import Bound
from oplab.timing import seconds as readable

if TYPE_CHECKING:
    from oplab.profiler.profile import Profile, ProfiledOperator

GOOD = 0.7  # of attainable: nothing to gain worth the work

# What people read, in one place.
TEXT = {
    "precision": "{name} multiplies in {dtype}; the {better} peak here is {ratio:.0f} times as high",
    "library": "{name} reaches {share:.0%} of what its FLOPs and bytes allow: try other tiles, "
    "or shapes that fill the device",
    "layout": "{name} works on NCHW data in {dtype}; channels-last saves the library its conversions",
    "fusion": "{name} are neighbours and element-wise: as one kernel they would save {saved} of memory traffic "
    "in {calls} places",
    "memory": "{name} reaches {share:.0%} of the copy's speed: look at its access pattern",
    "overhead": "{calls} operator calls are shorter than the {launch} it takes to start one, and {idle} of the "
    "step is idle: torch.compile, CUDA graphs or a larger batch",
}


@dataclass(frozen=True)
class Advice:
    """One lever: where, why, and at most how many seconds of the step it can save."""

    lever: str  # precision, library, layout, fusion, memory, overhead
    where: str
    why: str
    seconds: float

    def __repr__(self) -> str:
        return f"{self.lever}: saves at most {readable(self.seconds)} per step. {self.why}."


def advise(profile: Profile) -> list[Advice]:
    """Every lever that the numbers point to, the one with most to gain first."""
    found = [advice for op in _by_name(profile) if (advice := _for_operator(profile, op)) is not None]
    found += [_fusion(profile, *fusion) for fusion in profile.fusions]
    overhead = [op for op in profile.operators if op.bound == Bound.OVERHEAD.value]
    waste = profile.by_bound()[Bound.OVERHEAD.value]
    if overhead and waste > 0.05 * profile.step_seconds:
        why = TEXT["overhead"].format(
            calls=sum(op.calls for op in overhead),
            launch=readable(profile.launch_seconds),
            idle=readable(profile.idle_seconds) if profile.idle_seconds else "none",
        )
        found.append(Advice("overhead", "the whole step", why, waste))
    return sorted(found, key=lambda advice: -advice.seconds)


def _by_name(profile: Profile) -> list[ProfiledOperator]:
    """The longest entry of each (operator, dtype, class), with the seconds of all of them."""
    from dataclasses import replace

    longest: dict[tuple, ProfiledOperator] = {}
    for op in profile.operators:
        key = (op.name, op.dtype, op.bound)
        before = longest.get(key)
        if before is None:
            longest[key] = op
            continue
        total = before.seconds + op.seconds
        weighted = (before.efficiency * before.seconds + op.efficiency * op.seconds) / total if total else 0.0
        longest[key] = replace(before, seconds=total, efficiency=weighted, calls=before.calls + op.calls)
    return list(longest.values())


def _for_operator(profile: Profile, op: ProfiledOperator) -> Advice | None:
    name, peaks = op.name, profile.machine.peaks
    if op.bound == Bound.COMPUTE.value and op.matrix_flops:
        better = _fastest_training_dtype(peaks)
        if op.dtype == "float32" and peaks[better] > 1.5 * peaks["fp32"]:
            ratio = peaks[better] / peaks["fp32"]
            why = TEXT["precision"].format(name=name, dtype=op.dtype, better=better, ratio=ratio)
            return Advice("precision", name, why, op.seconds * (1 - 1 / ratio))
        if op.channels_first and op.dtype in ("bfloat16", "float16"):
            why = TEXT["layout"].format(name=name, dtype=op.dtype)
            return Advice("layout", name, why, op.seconds * (1 - min(1.0, op.efficiency)))
        if op.efficiency < GOOD:
            why = TEXT["library"].format(name=name, share=op.efficiency)
            return Advice("library", name, why, op.seconds * (1 - op.efficiency))
    if op.bound == Bound.MEMORY.value and op.efficiency < GOOD:
        why = TEXT["memory"].format(name=name, share=op.efficiency)
        return Advice("memory", name, why, op.seconds * (1 - op.efficiency))
    return None


def _fastest_training_dtype(peaks: dict[str, float]) -> str:
    """bf16 where it is as fast as any: it needs no loss scaling."""
    fastest = max(
        (dtype for dtype in ("fp32", "tf32", "fp16", "bf16") if dtype in peaks), key=lambda dtype: peaks[dtype]
    )
    return "bf16" if peaks.get("bf16", 0) > 0.9 * peaks[fastest] else fastest


def _fusion(profile: Profile, chain: str, saved_bytes: int, calls: int) -> Advice:
    why = TEXT["fusion"].format(name=chain, saved=amount(saved_bytes, "B"), calls=calls)
    return Advice("fusion", chain, why, saved_bytes / profile.machine.bandwidth)

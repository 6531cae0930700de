"""Measuring one setting live: verify against float64, time it, time its baseline, hold it against the ceilings.

Whatever goes wrong with a setting becomes a status and a sentence; nothing is raised for it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import torch

from oplab import roofline, timing
from oplab.experiments.result import (
    COMPILE_ERROR,
    FAILED,
    OUT_OF_MEMORY,
    OUT_OF_RESOURCES,
    SUSPECT,
    UNAVAILABLE,
    WRONG,
    Result,
)
from oplab.kernels.triton_or_not import TritonMissing
from oplab.machine import copy_rate, machine

# Relative Frobenius error that rounding alone explains, by dtype of inputs and output.
TOLERANCE = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2}
WORK_LIFETIME = 60.0  # seconds after which inputs, baseline and ceilings are made anew

# What people read, in one place.
TEXT = {
    "memory": "this size needs {need:.3g} GB, and {free:.3g} GB are free on {device}; choose a smaller size",
    "oom": "{device} ran out of memory; choose a smaller size",
    "resources": "needs {need:,} {unit} of {what}; {device} allows {limit:,} a block. "
    "Lower block_k, num_stages or the tile",
    "ptxas": "the GPU's assembler refuses this setting: {why}",
    "triton": "Triton cannot compile this setting: {why}",
    "wrong": "the result is wrong: relative error {error:.2g}, {limit:.0e} allowed for {dtype}",
    "unwritten": "the result is wrong: {count:,} elements were never written",
    "spills": "{spills} registers per thread did not fit and spill to memory",
    "no_compiler": "torch.compile needs a C++ compiler and finds none. Debian or Ubuntu: apt install g++; "
    "macOS: xcode-select --install; Windows: the Visual Studio build tools",
    "failed": "{kind}: {why}",
}


@dataclass
class Work:
    """Inputs, the right answer and the thing to beat; shared by the settings that differ in tuning only."""

    inputs: tuple[torch.Tensor, ...]
    output: torch.Tensor
    reference: torch.Tensor  # float32, rounded from float64
    baseline: Callable[[], object]
    made: float = field(default_factory=time.monotonic)
    copy_bandwidth: float | None = None


@dataclass(frozen=True)
class Cost:
    """What the work asks for, whatever runs it."""

    flops: int
    nbytes: int
    dtype: str
    peak_dtype: str | None = None  # None: not a matter of FLOP/s


class Counted:
    """A call with what it takes besides time: ``resources`` for its result; ``compile`` defaults to the call's own."""

    def __init__(
        self,
        call: Callable[[], torch.Tensor],
        resources: Mapping[str, float],
        compile: Callable[[], object] | None = None,
    ) -> None:
        self.call, self.resources = call, resources
        compile = compile or getattr(call, "compile", None)
        if compile is not None:
            self.compile = compile

    def __call__(self) -> torch.Tensor:
        return self.call()

    @property
    def compiled(self) -> object:
        return getattr(self.call, "compiled", None)


_shared_work: dict[object, Work] = {}


def trial(
    blank: Result,
    device: torch.device,
    *,
    key: object,
    make_work: Callable[[], Work],
    work_bytes: int,
    cost: Cost,
    candidate: Callable[[Work], Callable[[], torch.Tensor]],
    baseline: str,
    budget: float = 0.1,
) -> Result:
    """Measure ``candidate`` on the shared ``Work`` of ``key``.

    ``candidate(work)`` returns a call that computes the output and returns it; it may carry a
    ``compile()`` and, after a call, ``compiled`` (Triton's kernel) or ``resources`` (a dict).
    """
    result = replace(blank, flops=cost.flops, nbytes=cost.nbytes, baseline=baseline)
    try:
        ceilings = machine(device)
        with timing.device_lock(device):
            free = free_bytes(device)
            if key not in _shared_work and work_bytes > free + _held_bytes():
                text = TEXT["memory"].format(need=work_bytes / 1e9, free=free / 1e9, device=result.machine)
                return result.failed(OUT_OF_MEMORY, text)
            work = _fresh_work(key, make_work)
        call = candidate(work)
        timing.report("compiling")
        if hasattr(call, "compile"):
            call.compile()  # outside the lock: others may measure meanwhile
        with timing.device_lock(device):
            result = _verified(result, call, work, cost)
            if not result.ok:
                return result
            timed = timing.measure(call, device=device, budget=budget)
            # Right after the candidate each time: a chip at its power limit drifts by 10 % in seconds.
            beside = timing.measure(work.baseline, device=device, budget=budget)
            if work.copy_bandwidth is None and cost.peak_dtype is None:
                work.copy_bandwidth = copy_rate(device, cost.nbytes)[0]
    except Exception as error:  # every failure of a setting becomes a sentence; see explain
        return explain(result, error)
    resources = _resources(call)
    notes = timed.notes
    if resources.get("spills"):
        notes += (TEXT["spills"].format(spills=resources["spills"]),)
    result = replace(
        result,
        samples=timed.samples,
        notes=notes,
        baseline_seconds=beside.median,
        resources=resources,
    )
    seconds = timed.median
    if cost.peak_dtype in ceilings.peaks:
        share = roofline.flops_share(cost.flops, seconds, ceilings.peaks[cost.peak_dtype])
        result = replace(result, flops_fraction=share)
    if work.copy_bandwidth:
        share = roofline.bandwidth_share(cost.nbytes, seconds, work.copy_bandwidth)
        result = replace(result, bandwidth_fraction=share)
    cold_bytes = cost.nbytes if device.type == "cuda" else 0  # a warm CPU cache is faster than memory, honestly
    faster = roofline.faster_than_ceiling(seconds, ceilings, nbytes=cold_bytes, flops=cost.flops, dtype=cost.peak_dtype)
    return result.failed(SUSPECT, faster) if faster else result


def _fresh_work(key: object, make: Callable[[], Work]) -> Work:
    work = _shared_work.get(key)
    if work is None or time.monotonic() - work.made > WORK_LIFETIME:
        work = None
        release_memory()
        work = _shared_work[key] = make()
    return work


def release_memory() -> None:
    """Let go of the shared inputs, so that a larger size fits."""
    _shared_work.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _held_bytes() -> int:
    tensors = [t for work in _shared_work.values() for t in (*work.inputs, work.output, work.reference)]
    return sum(t.nbytes for t in tensors)


def free_bytes(device: torch.device) -> int:
    """Bytes that could be allocated on ``device`` now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + cached)
    return int(psutil.virtual_memory().available)


def _verified(result: Result, call: Callable[[], torch.Tensor], work: Work, cost: Cost) -> Result:
    """The result with its error, or marked as wrong. NaN never passes."""
    timing.poison(work.output)
    got = call()
    if got is work.output and (left := timing.unwritten(got)):
        return result.failed(WRONG, TEXT["unwritten"].format(count=left))
    error, worst = relative_error(got, work.reference)
    limit = TOLERANCE[cost.dtype]
    result = replace(result, relative_error=error)
    # `not <=` instead of `>`: a comparison with NaN is false. A single wrong element hides in the
    # norm of a large matrix, so the worst element is held against the typical size as well.
    if not error <= limit or not worst <= 50 * limit:
        text = TEXT["wrong"].format(error=max(error, worst), limit=limit, dtype=cost.dtype)
        return result.failed(WRONG, text)
    return result


def relative_error(got: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """(Frobenius norm of the difference, largest difference), over the norm and rms of the reference."""
    if got.numel() == 0:
        return 0.0, 0.0
    square, worst, norm = 0.0, 0.0, 0.0
    for rows, right in zip(got.split(2048), reference.split(2048), strict=True):
        difference = rows.double() - right
        square += float(difference.square().sum())
        largest = float(difference.abs().max())
        worst = largest if largest != largest else max(worst, largest)
        norm += float(right.double().square().sum())
    if norm == 0.0:
        return square**0.5, worst
    return (square / norm) ** 0.5, worst / (norm / got.numel()) ** 0.5


def _resources(call: Any) -> dict[str, float]:
    resources: dict[str, float] = dict(getattr(call, "resources", {}))
    compiled = getattr(call, "compiled", None)
    if compiled is not None:
        resources["shared_bytes"] = compiled.metadata.shared
        resources["registers"] = compiled.n_regs
        resources["spills"] = compiled.n_spills
    return resources


def explain(result: Result, error: Any) -> Result:
    """The status and the sentence for whatever a setting raised."""
    kind, text = type(error).__name__, str(error).strip()
    first = text.splitlines()[0] if text else kind
    if isinstance(error, timing.Withdrawn):
        raise error
    if isinstance(error, TritonMissing):
        return result.failed(UNAVAILABLE, text)
    if isinstance(error, ValueError):
        return result.failed(COMPILE_ERROR if "CompilationError" in kind else FAILED, first)
    if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in text:
        release_memory()
        return result.failed(OUT_OF_MEMORY, TEXT["oom"].format(device=result.machine))
    if kind == "OutOfResources":  # triton.runtime.errors, not importable where Triton is missing
        unit = "B" if "memory" in str(error.name) else ""
        text = TEXT["resources"].format(
            need=error.required, unit=unit, what=error.name, device=result.machine, limit=error.limit
        )
        return replace(result, resources={"shared_bytes": error.required}).failed(OUT_OF_RESOURCES, text)
    if kind == "PTXASError":
        why = next((line for line in text.splitlines() if "fatal" in line or "error" in line.lower()), first)
        return result.failed(COMPILE_ERROR, TEXT["ptxas"].format(why=why.strip()))
    if kind == "CompilationError":
        return result.failed(COMPILE_ERROR, TEXT["triton"].format(why=text.splitlines()[-1]))
    if "InvalidCxxCompiler" in text or "InvalidCxxCompiler" in kind:
        return result.failed(UNAVAILABLE, TEXT["no_compiler"])
    return result.failed(FAILED, TEXT["failed"].format(kind=kind, why=first))

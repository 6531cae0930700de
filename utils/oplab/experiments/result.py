"""What an experiment answers: one `Result` per knob setting, whether it ran or not."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from oplab.timing import seconds as readable_seconds

LIVE_GPU, LIVE_CPU, RECORDED = "live-gpu", "live-cpu", "recorded"
SOURCES = (LIVE_GPU, LIVE_CPU, RECORDED)

# Statuses. Everything but OK carries a reason in plain words.
OK = "ok"
INVALID = "invalid"  # a knob value that means nothing
OUT_OF_RESOURCES = "out_of_resources"  # the GPU refuses to launch: shared memory, registers, threads
OUT_OF_MEMORY = "out_of_memory"
COMPILE_ERROR = "compile_error"
WRONG = "wrong"  # numbers differ from the float64 reference, or elements were never written
SUSPECT = "suspect"  # faster than this machine was measured to be
UNAVAILABLE = "unavailable"  # something is missing on this machine
NOT_RECORDED = "not_recorded"
FAILED = "failed"

# What people read, in one place.
TEXT = {
    LIVE_GPU: "live on {machine}",
    LIVE_CPU: "live on {machine}",
    RECORDED: "recorded on {machine}, {date}",
}


@dataclass(frozen=True)
class Result:
    """One knob setting, measured, read from a recording, or refused with a reason.

    ``samples`` are seconds. ``baseline_seconds``: the vendor library or eager PyTorch (``baseline``
    says which) on the same work in the same run. ``bandwidth_fraction``: compulsory bytes per second
    over the rate of a copy that moves as many bytes. ``flops_fraction``: FLOP/s over the measured
    peak of that dtype. ``resources``: what the kernel takes (shared_bytes, registers, spills, …).
    """

    experiment: str
    knobs: dict[str, Any]
    source: str
    machine: str
    date: str
    status: str = OK
    reason: str = ""
    samples: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    baseline: str = ""
    baseline_seconds: float | None = None
    flops: float = 0.0
    nbytes: float = 0.0
    bandwidth_fraction: float | None = None
    flops_fraction: float | None = None
    relative_error: float | None = None
    resources: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def seconds(self) -> float | None:
        """Median seconds of one call; None when the setting did not run."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def rate(self) -> float | None:
        """FLOP/s."""
        return self.flops / self.seconds if self.seconds else None

    @property
    def bandwidth(self) -> float | None:
        """Compulsory bytes per second."""
        return self.nbytes / self.seconds if self.seconds else None

    @property
    def speedup(self) -> float | None:
        """Baseline time over this time: above 1 is faster than the baseline."""
        return self.baseline_seconds / self.seconds if self.seconds and self.baseline_seconds else None

    @property
    def stable(self) -> bool:
        return self.ok and not any(note.startswith("noisy") for note in self.notes)

    @property
    def label(self) -> str:
        """Where the number comes from, as shown beside it."""
        return TEXT[self.source].format(machine=self.machine, date=self.date)

    def failed(self, status: str, reason: str) -> Result:
        return replace(self, status=status, reason=reason)

    def __repr__(self) -> str:
        knobs = " ".join(f"{name}={value}" for name, value in self.knobs.items())
        if self.seconds is None:
            return f"{self.experiment}: {knobs}\n  {self.status}: {self.reason} [{self.label}]"
        text = f"{self.experiment}: {knobs}\n  {readable_seconds(self.seconds)}"
        if self.rate is not None and self.flops_fraction is not None:
            text += f", {self.rate / 1e12:.3g} TFLOP/s = {self.flops_fraction:.0%} of the measured peak"
        if self.bandwidth_fraction is not None:
            text += f", {self.bandwidth_fraction:.0%} of a copy of the same bytes"
        if self.baseline_seconds is not None and self.speedup is not None:
            text += f"\n  {self.baseline}: {readable_seconds(self.baseline_seconds)} ({self.speedup:.3g} x)"
        text += "".join(f"\n  {note}" for note in self.notes)
        text += "" if self.ok else f"\n  {self.status}: {self.reason}"
        return text + f"\n  [{self.label}]"

    def as_dict(self) -> dict:
        """For a recording; what the recording says once (machine, date, source) is left out."""
        data = {
            "knobs": self.knobs,
            "status": self.status,
            "reason": self.reason,
            "samples": [float(f"{s:.4g}") for s in self.samples],
            "notes": list(self.notes),
            "baseline": self.baseline,
            "baseline_seconds": _rounded(self.baseline_seconds),
            "flops": self.flops,
            "nbytes": self.nbytes,
            "bandwidth_fraction": _rounded(self.bandwidth_fraction),
            "flops_fraction": _rounded(self.flops_fraction),
            "relative_error": _rounded(self.relative_error),
            "resources": self.resources,
        }
        return {key: value for key, value in data.items() if value not in (None, "", [], {}, 0.0)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")

"""``triton`` and ``tl``, or stand-ins that name what is missing when a kernel is launched.

A kernel file can then be imported, read and tested where Triton does not exist (macOS, Windows).
"""

from __future__ import annotations

from typing import Any

TEXT = {"missing": "this kernel needs Triton, which is not installed here; `oplab doctor` says how to get it"}


class TritonMissing(RuntimeError):
    """A Triton kernel was launched where Triton is not installed."""


class _StandIn:
    """Accepts the decorators and annotations of a kernel file; refuses a launch."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self

    def __getitem__(self, grid: object) -> Any:
        raise TritonMissing(TEXT["missing"])


try:
    import triton
    import triton.language as tl

    HAVE_TRITON = True
except ImportError:
    triton = tl = _StandIn()  # type: ignore[assignment]
    HAVE_TRITON = False

"""``triton``, ``tl``, ``gluon`` and ``gl``, or stand-ins that name what is missing when a kernel is launched.

A kernel file can then be imported, read and tested where Triton does not exist (macOS, Windows).
"""

from __future__ import annotations

from typing import Any

from oplab.compiler.errors import TritonMissing


class _StandIn:
    """Accepts the decorators and annotations of a kernel file; refuses a launch."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self

    def __getitem__(self, grid: object) -> Any:
        raise TritonMissing()


try:
    import triton
    import triton.language as tl
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    HAVE_TRITON = True
except ImportError:
    triton = tl = gluon = gl = _StandIn()  # type: ignore[assignment]
    HAVE_TRITON = False

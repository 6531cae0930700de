"""What the GPU compiler made of a kernel, with no GPU present; what a kernel really loads and stores.

Names are imported when first used: the workers, which import this package too, start quickly.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oplab.compiler.compile import compile_for
    from oplab.compiler.compiled import Compiled
    from oplab.compiler.errors import KernelError, TritonMissing
    from oplab.compiler.process import WorkerError
    from oplab.compiler.targets import TARGETS
    from oplab.compiler.tracing import trace
    from oplab.compiler.traffic import Traffic

_NAMES = {
    "Compiled": "compiled",
    "KernelError": "errors",
    "TARGETS": "targets",
    "Traffic": "traffic",
    "TritonMissing": "errors",
    "WorkerError": "process",
    "compile_for": "compile",
    "trace": "tracing",
}
__all__ = ["TARGETS", "Compiled", "KernelError", "Traffic", "TritonMissing", "WorkerError", "compile_for", "trace"]


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return getattr(importlib.import_module(f"oplab.compiler.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'oplab.compiler' has no attribute {name!r}")

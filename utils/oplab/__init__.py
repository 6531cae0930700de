"""oplab: the instruments of the course *Operator Tuning in Practice*.

A name below is imported when it is first used, so that ``import oplab`` stays cheap and works where
Triton, a GPU or a notebook is missing.
"""

import importlib

__version__ = "0.1.0"

_MODULES = (
    "cli", "compiler", "cost", "experiments", "kernels", "machine", "models", "profiler", "roofline", "timing",
    "widgets",
)  # fmt: skip
_SHORTCUTS = {
    "compile_for": "compiler", "trace": "compiler", "count": "cost", "profile": "profiler", "measure": "timing",
    "explore": "widgets", "predict": "widgets",
}  # fmt: skip

__all__ = ["__version__", *_MODULES, *_SHORTCUTS]


def __getattr__(name: str) -> object:
    if name in _SHORTCUTS:
        return getattr(importlib.import_module(f"oplab.{_SHORTCUTS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"oplab.{name}")
    raise AttributeError(f"module 'oplab' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Showing the code of a kernel where the text speaks of it."""

from __future__ import annotations

import inspect
import textwrap

from IPython.display import Code


def show_source(function: object) -> Code:
    """The source of a function, Triton kernel or numba kernel, highlighted."""
    plain = getattr(function, "fn", None) or getattr(function, "py_func", None) or function
    return Code(textwrap.dedent(inspect.getsource(plain)), language="python")  # type: ignore[arg-type]

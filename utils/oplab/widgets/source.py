"""Showing the code of a kernel where the text speaks of it."""

from __future__ import annotations

import inspect
import re
import textwrap

from IPython.display import Code

FOR_TOOLS = re.compile(r"  # (fmt|type|noqa):.*")  # comments that speak to formatters and type checkers


def show_source(function: object) -> Code:
    """The source of a function, Triton kernel or numba kernel, highlighted."""
    plain = getattr(function, "fn", None) or getattr(function, "py_func", None) or function
    source = textwrap.dedent(inspect.getsource(plain))  # type: ignore[arg-type]
    return Code(FOR_TOOLS.sub("", source), language="python")

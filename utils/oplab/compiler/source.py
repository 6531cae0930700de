"""A kernel taken out of this process: its source, its helpers and constants, ready for a worker.

A kernel may be defined in a notebook cell, call other jit functions and use module constants. Each
function travels as its text and the values of the names it uses; see `loading` for the other side.
"""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import pickle
import symtable
import textwrap
import types
from typing import Any

from oplab.compiler.errors import TritonMissing

# What people read, in one place.
TEXT = {
    "not_a_kernel": "{what!r} is not a Triton kernel: decorate a function with @triton.jit",
    "no_source": "the source of {name} cannot be found: define the kernel in a notebook cell or a file",
    "unusable": "{name} uses {used!r}, a {kind} of this process, which a kernel cannot: pass it as an argument",
}


class SourceError(ValueError):
    """What was given is no kernel, or uses something that cannot leave this process."""


def unwrap(kernel: Any) -> Any:
    """The jit function inside autotuners, heuristics and the like; SourceError where there is none."""
    for _ in range(8):
        if _kind(kernel):
            return kernel
        kernel = getattr(kernel, "fn", None)
    raise SourceError(TEXT["not_a_kernel"].format(what=kernel))


def bundle(kernel: Any) -> list[dict]:
    """The functions that ``kernel`` needs, callees first, itself last; plain data that pickles.

    Each is ``{name, kind, text, first_line, file, noinline, values, modules, attributes, functions}``:
    ``values`` name → pickled constant, ``modules`` name → module to import, ``attributes`` name →
    (module, attribute), ``functions`` name → position in this list.
    """
    if importlib.util.find_spec("triton") is None:
        raise TritonMissing()
    found: list[dict] = []
    _collect(unwrap(kernel), found, {})
    return found


def parameters(kernel: Any) -> list[tuple[str, bool]]:
    """(name, is it a constexpr) for each parameter, in order."""
    function = unwrap(kernel).fn
    named = inspect.signature(function).parameters.values()
    return [(p.name, "constexpr" in str(p.annotation)) for p in named]


def defaults(kernel: Any) -> dict[str, Any]:
    """Default values of parameters that have one."""
    named = inspect.signature(unwrap(kernel).fn).parameters.values()
    return {p.name: p.default for p in named if p.default is not inspect.Parameter.empty}


def _kind(thing: Any) -> str:
    """ "triton", "gluon" or "constexpr" for jit functions, "" for anything else."""
    names = {cls.__name__ for cls in type(thing).__mro__}
    if "GluonJITFunction" in names:
        return "gluon"
    if names & {"JITFunction", "InterpretedFunction"}:
        return "triton"
    return "constexpr" if "ConstexprFunction" in names else ""


def _collect(jit: Any, found: list[dict], places: dict[int, int]) -> int:
    if id(jit.fn) in places:
        return places[id(jit.fn)]
    function = jit.fn
    lines, first = _source(jit)
    text = textwrap.dedent("".join(lines))
    line, names = _definition(text)
    # Decorators are dropped: the worker decorates again. What is left keeps its line numbers.
    kept = text.splitlines()[line - 1 :]
    entry: dict[str, Any] = {
        "name": function.__name__,
        "kind": _kind(jit),
        "text": "\n".join(kept) + "\n",
        "first_line": first + line - 1,
        "file": function.__code__.co_filename,
        "noinline": bool(getattr(jit, "noinline", False)),
        "values": {}, "modules": {}, "attributes": {}, "functions": {},
    }  # fmt: skip
    scope = function.__globals__ | inspect.getclosurevars(function).nonlocals
    annotations = function.__globals__.get("__annotations__", {})
    for name in sorted(names):
        if name not in scope or name == function.__name__:
            continue  # a builtin, or a mistake that Triton reports in its own words
        _describe(name, scope[name], entry, found, places, str(annotations.get(name, "")))
    places[id(function)] = len(found)
    found.append(entry)
    return places[id(function)]


def _describe(name: str, value: Any, entry: dict, found: list[dict], places: dict[int, int], annotation: str) -> None:
    """Put one global name of a function where the worker finds it."""
    function = value.fn if _kind(value) else value  # an interpreted function claims Triton's module as its own
    module = str(getattr(function, "__module__", "") or "")
    attribute = str(getattr(function, "__qualname__", "") or getattr(function, "__name__", "") or "")
    if isinstance(value, types.ModuleType):
        entry["modules"][name] = value.__name__
    elif module.split(".")[0] == "triton" and attribute and "." not in attribute:
        entry["attributes"][name] = (module, attribute)
    elif _kind(value):
        entry["functions"][name] = _collect(value, found, places)
    elif getattr(builtins, name, None) is value:
        return
    else:
        if "constexpr" in annotation:
            import triton.language as tl

            value = value if isinstance(value, tl.constexpr) else tl.constexpr(value)
        entry["values"][name] = _pickled(value, name, entry["name"])


def _pickled(value: Any, used: str, name: str) -> bytes:
    inner = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    plain = isinstance(inner, (int, float, str, bool, tuple, list, dict, type(None)))
    ours = type(inner).__module__.split(".")[0] == "triton"  # dtypes, layouts
    if not plain and not ours:
        raise SourceError(TEXT["unusable"].format(name=name, used=used, kind=type(value).__name__))
    return pickle.dumps(value)


def _source(jit: Any) -> tuple[list[str], int]:
    """(lines, number of the first) as they stood when the function was decorated."""
    if hasattr(jit, "raw_src"):
        return list(jit.raw_src), int(jit.starting_line_number)
    try:
        return inspect.getsourcelines(jit.fn)
    except (OSError, TypeError) as error:
        raise SourceError(TEXT["no_source"].format(name=jit.fn.__name__)) from error


def _definition(text: str) -> tuple[int, set[str]]:
    """(line of the ``def``, names that the function reads and does not itself assign).

    From the symbol table, not `ast`: explorers compile on threads, and in CPython 3.11 two threads that build
    syntax trees at once break each other ("AST constructor recursion depth mismatch"), the notebook's own included.
    """
    module = symtable.symtable(text, "<kernel>", "exec")
    (function,) = (table for table in module.get_children() if table.get_type() == "function")
    names = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_referenced()}  # annotations, decorators
    tables = [function]
    while tables:
        table = tables.pop()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        tables += table.get_children()
    return function.get_lineno(), names

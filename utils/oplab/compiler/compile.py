"""`compile_for`: a kernel, compiled for a GPU that need not be here."""

from __future__ import annotations

import base64
import difflib
import gzip
import hashlib
import importlib.util
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from oplab.compiler import instructions as reading
from oplab.compiler import source, targets
from oplab.compiler.compiled import Compiled
from oplab.compiler.errors import KernelError
from oplab.compiler.process import Worker
from oplab.compiler.targets import Target
from oplab.machine import cache_folder, short_dtype, write_atomically

SCHEMA = 1  # of the cache's files
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack")

# What people read, in one place.
TEXT = {
    "missing": "{kernel} needs {names}: signature={{'{first}': …}} takes a type ('*fp16', 'i32') or a sample value",
    "constant": "{kernel} needs a value for {names}: constants={{'{first}': …}}",
    "extra": "{kernel} has no parameter {name!r}; it has {have}.{hint}",
    "type": "{name}: {value!r} is neither a Triton type ('*fp16', 'i32', 'fp32') nor a tensor or number",
    "option": "no option {name!r}; there are {have}.{hint}",
    "hint": " Did you mean {close!r}?",
    "version": "Triton {version} was never tried with this course (3.6 and 3.7 were): what follows may be wrong",
    "bad_cache": "ignored the compiled kernel {path}: {why}; compiling again",
    "no_save": "could not keep compiled kernels in {path}: {why}; each will be compiled again next time",
    "internal": "the compiler failed: {why}",
}

_worker = Worker(
    "oplab.compiler.worker",
    "compiler",
    # A log of ptxas has the spills; a kernel that Triton had in its own cache would have none.
    {"TRITON_INTERPRET": None, "TRITON_DUMP_PTXAS_LOG": "1", "TRITON_ALWAYS_COMPILE": "1"},
)
_recent: dict[str, Compiled] = {}
_warned: set[str] = set()


def compile_for(
    kernel: Any,
    target: str | Target,
    *,
    signature: Mapping[str, object],
    constants: Mapping[str, object] = {},
    timeout: float = 120.0,
    **options: Any,
) -> Compiled:
    """Compile a Triton or Gluon ``kernel`` for ``target`` ("sm_90", "H200", "gfx942", …); no GPU is needed.

    ``signature``: for each parameter that is no constexpr, a Triton type ("*fp16", "i32", "fp32";
    "i32:16" promises a multiple of 16; pointers are taken as aligned to 16 bytes unless they end in
    ":1"), or a sample value (a tensor, a number), which is specialised as a launch would. ``constants``:
    values of constexpr parameters. ``options``: num_warps, num_stages, num_ctas, maxnreg, …

    Raises `KernelError` with the learner's line when Triton refuses the kernel, ValueError or TypeError
    for arguments that do not go together, `WorkerError` when compiling took over ``timeout`` seconds.
    """
    where = targets.find(target)
    for name in options:
        if name not in OPTIONS:
            raise TypeError(TEXT["option"].format(name=name, have=", ".join(OPTIONS), hint=_hint(name, OPTIONS)))
    packed = source.bundle(kernel)
    request = _request(kernel, packed[-1]["name"], signature, constants)
    request |= {"bundle": packed, "backend": where.backend, "arch": where.arch, "warp_size": where.warp_size}
    request["options"] = {name: value for name, value in options.items() if value is not None}
    key = _key(request)
    if key not in _recent:
        path = cache_folder() / "compiled" / f"{key}.json.gz"
        answer = _load(path)
        if answer is None:
            answer = _compile(request, timeout)
            _save(path, answer)
        _recent[key] = _made(answer, request, where)
    found = _recent[key]
    # The same code for another GPU of the architecture: only the name and the number of SMs differ.
    return found if found.target.gpu == where.gpu else _with_target(found, where)


def start() -> None:
    """Start the compiler's process, so that the first kernel need not wait for it. Does nothing without Triton."""
    if importlib.util.find_spec("triton") is not None:
        _worker.start()


@lru_cache(maxsize=1)
def triton_version() -> str:
    version = metadata.version("triton")
    if not version.startswith(("3.6", "3.7")):
        warnings.warn(TEXT["version"].format(version=version), stacklevel=3)
    return version


# --- the request ---------------------------------------------------------------------------------


def _request(kernel: Any, name: str, signature: Mapping[str, object], constants: Mapping[str, object]) -> dict:
    """Types, values and promises in the form that Triton's ``ASTSource`` takes."""
    parameters = source.parameters(kernel)
    names = [parameter for parameter, _ in parameters]
    for given in [*signature, *constants]:
        if given not in names:
            have = ", ".join(names)
            raise TypeError(TEXT["extra"].format(kernel=name, name=given, have=have, hint=_hint(given, names)))
    values = {p: v for p, v in source.defaults(kernel).items() if p not in signature} | dict(constants)
    types: dict[str, str] = {}
    attributes: dict[tuple[int], list] = {}
    for place, (parameter, constexpr) in enumerate(parameters):
        if constexpr or parameter in values:
            types[parameter] = "constexpr"
        elif parameter in signature:
            types[parameter], sixteen, value = _type(parameter, signature[parameter])
            if types[parameter] == "constexpr":
                values[parameter] = value
            elif sixteen:
                attributes[(place,)] = [["tt.divisibility", 16]]
    for key, absent in (
        ("missing", [p for p in names if p not in types]),
        ("constant", [p for p in types if types[p] == "constexpr" and p not in values]),
    ):
        if absent:
            raise TypeError(TEXT[key].format(kernel=name, names=", ".join(absent), first=absent[0]))
    return {"signature": types, "constants": pickle.dumps(values), "attributes": attributes}


def _type(name: str, given: Any) -> tuple[str, bool, object]:
    """(Triton's type, is it a multiple of 16, value where it becomes a constant) of a type or a sample value."""
    if isinstance(given, str) and re.fullmatch(r"\*?[a-z][a-z0-9]*(:\d+)?|tensordesc<.*>", given):
        kind, _, promise = given.partition(":") if not given.startswith("tensordesc") else (given, "", "")
        kind = "*" + short_dtype(kind[1:]) if kind.startswith("*") else short_dtype(kind)
        return kind, (promise == "16" or (kind.startswith("*") and not promise)), None
    if given is None or isinstance(given, bool):
        return ("constexpr", False, None) if given is None else ("i1", False, None)
    if isinstance(given, int):
        if given == 1:  # as a launch does
            return "constexpr", False, 1
        return ("i32" if -(2**31) <= given < 2**31 else "i64"), given % 16 == 0, None
    if isinstance(given, float):
        return "fp32", False, None
    if hasattr(given, "block_shape"):  # a tensor descriptor
        return f"tensordesc<{_element(given.base.dtype)}{list(given.block_shape)}>", False, None
    if hasattr(given, "data_ptr"):
        return f"*{_element(given.dtype)}", given.device.type == "meta" or given.data_ptr() % 16 == 0, None
    raise TypeError(TEXT["type"].format(name=name, value=given))


def _element(dtype: object) -> str:
    """Triton's name of a torch dtype."""
    name = short_dtype(dtype)
    special = {"float8_e5m2": "fp8e5", "fp8": "fp8e4nv", "bool": "i1", "int": "i32", "long": "i64"}
    return special.get(name, re.sub(r"^(u?)int", r"\1i" if not name.startswith("uint") else "u", name))


def _hint(name: str, names: Any) -> str:
    close = difflib.get_close_matches(name, list(names), 1)
    return TEXT["hint"].format(close=close[0]) if close else ""


# --- the answer ----------------------------------------------------------------------------------


def _compile(request: dict, timeout: float) -> dict:
    answer = _worker.ask(request, timeout)
    if "error" not in answer:
        if "amdgcn" in answer["asm"]:
            answer |= reading.amd_resources(answer["asm"]["amdgcn"])
        return answer
    error = answer["error"]
    message = error["message"].strip()
    printed = [line for line in error["printed"].splitlines() if "error:" in line or "fatal" in line]
    if error["kind"] == "PTXASError" or "PassManager" in message or not message:
        why = printed or [line for line in message.splitlines() if "error" in line.lower()] or [message]
        message = TEXT["internal"].format(why=re.sub(r"^.*?error:\s*", "", why[0]).strip())
    raise KernelError(error["function"], message, error["line"], error.get("text", ""))


def _made(answer: dict, request: dict, target: Target) -> Compiled:
    names = ("shared_bytes", "registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "num_warps")
    return Compiled(
        kernel=request["bundle"][-1]["name"],
        target=target,
        signature=dict(request["signature"]),
        constants=pickle.loads(request["constants"]),
        num_stages=request["options"].get("num_stages"),
        asm=answer["asm"],
        triton=answer["triton"],
        seconds=answer["seconds"],
        **{name: answer[name] for name in names},
    )


def _with_target(found: Compiled, target: Target) -> Compiled:
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return Compiled(**{**fields, "target": target})


# --- the cache on disk -----------------------------------------------------------------------------


def _key(request: dict) -> str:
    """Of everything that decides the code; where the kernel stands in its file does not."""
    functions = [{k: v for k, v in f.items() if k not in ("file", "first_line")} for f in request["bundle"]]
    facts = [SCHEMA, triton_version(), functions, {k: v for k, v in request.items() if k != "bundle"}]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _save(path: Path, answer: dict) -> None:
    asm = {k: v if isinstance(v, str) else {"base64": base64.b64encode(v).decode()} for k, v in answer["asm"].items()}
    try:
        write_atomically(path, gzip.compress(json.dumps({**answer, "asm": asm}).encode(), 1))
    except OSError as error:
        if "no_save" not in _warned:  # once, not for each kernel
            _warned.add("no_save")
            warnings.warn(TEXT["no_save"].format(path=path.parent, why=error), stacklevel=4)


def _load(path: Path) -> dict | None:
    if not path.exists():
        return None
    try:
        answer = json.loads(gzip.decompress(path.read_bytes()))
        asm = answer["asm"]
        answer["asm"] = {k: v if isinstance(v, str) else base64.b64decode(v["base64"]) for k, v in asm.items()}
        return answer
    except (ValueError, OSError, EOFError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(TEXT["bad_cache"].format(path=path, why=error), stacklevel=4)
        return None

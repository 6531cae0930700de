"""`trace`: a kernel run in Triton's interpreter, every load and store counted; no GPU is needed."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from oplab.compiler import source
from oplab.compiler.compile import triton_version
from oplab.compiler.errors import KernelError
from oplab.compiler.process import Worker
from oplab.compiler.traffic import TEXT as SAYS
from oplab.compiler.traffic import Problem, TensorTraffic, Traffic

# What people read, in one place.
TEXT = {
    "bf16": "{name} is bfloat16, which Triton's interpreter mishandles (it computes on bit patterns): "
    "trace with fp16, whose traffic is the same",
    "gluon": "{kernel} is a Gluon kernel, which Triton's interpreter does not run; compile_for takes it",
    "many": "{kernel} takes {have} arguments; got {given}",
    "twice": "{kernel} got {name!r} twice",
    "extra": "{kernel} has no parameter {name!r}; it has {have}",
    "missing": "{kernel} needs {names}: pass them as in a launch, constants by name",
    "outputs": "outputs names {name!r}, which is no tensor argument of {kernel}; there are {have}",
    "grid": "grid must be one to three whole numbers, or a function of the constants that returns them; got {grid!r}",
    "tensor": "{name}: {kind} tensors cannot be traced; give a plain one",
    "tracing": "tracing {kernel}",
    "timeout_hint": "A smaller problem with the same tiles shows the same pattern.",
}
LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # of a launch; nothing to the interpreter
BAR_AFTER = 2.0  # seconds until a bar shows

_worker = Worker("oplab.compiler.tracer", "interpreter", {"TRITON_INTERPRET": "1"})


def trace(
    kernel: Any,
    grid: int | tuple[int, ...] | Callable[[dict], tuple[int, ...]],
    *args: Any,
    outputs: Iterable[str] = (),
    timeout: float = 600.0,
    **named: Any,
) -> Traffic:
    """Run ``kernel[grid](*args, **named)`` in Triton's interpreter and report what it loads and stores.

    Tensors may live anywhere; what the kernel stores is copied back into them. ``outputs``: parameters
    whose tensors hold nothing yet: loading an element of them before it was stored is a problem, and so is
    an element that nobody stores. An access outside its tensor is reported and loads 0; the kernel goes on.

    Programs run one after the other, in fp32 where a GPU's ``tl.dot`` may use tf32: results that come out
    right here prove nothing about the compiled kernel. A race is two programs that touch one element, one
    of them storing, without an atomic between.

    Raises `KernelError` with the learner's line when the kernel fails, ValueError for bfloat16 and Gluon,
    TypeError for arguments that do not fit, `WorkerError` after ``timeout`` seconds.
    """
    triton_version()
    packed = source.bundle(kernel)
    name = packed[-1]["name"]
    if packed[-1]["kind"] == "gluon":
        raise ValueError(TEXT["gluon"].format(kernel=name))
    given = _arguments(kernel, name, args, named)
    sizes = _grid(grid, given)
    tensors, storages, values = _split(given, name, set(outputs))
    request = {
        "bundle": packed,
        "grid": sizes,
        "tensors": tensors,
        "storages": [_bytes_of(storage).cpu().numpy() for storage in storages],
        "values": pickle.dumps(values),
    }
    with tqdm(
        total=1.0, delay=BAR_AFTER, leave=False, file=sys.stderr, desc=TEXT["tracing"].format(kernel=name),
        bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed}",
    ) as bar:  # fmt: skip
        answer = _worker.ask(request, timeout, lambda share: bar.update(share - bar.n))
    if printed := answer.get("printed", ""):
        print(printed, end="")  # what the kernel printed
    if "unusable" in answer:
        raise RuntimeError(answer["unusable"])
    if error := answer.get("error"):
        raise KernelError(error["function"], error["message"], error["line"], error["text"])
    for which, data in answer["contents"].items():
        # NumPy's arrays from a pickle may be read-only; copy_ only reads.
        _bytes_of(storages[which]).copy_(torch.from_numpy(np.array(data)))
    return _made(answer, request, name)


def _arguments(kernel: Any, name: str, args: tuple, named: dict) -> dict[str, Any]:
    """Value of each parameter, as a launch would bind them; TypeError where they do not fit."""
    parameters = [parameter for parameter, _ in source.parameters(kernel)]
    if len(args) > len(parameters):
        raise TypeError(TEXT["many"].format(kernel=name, have=len(parameters), given=len(args)))
    given = dict(zip(parameters, args, strict=False))
    for key, value in named.items():
        if key in LAUNCH_OPTIONS and key not in parameters:
            continue
        if key not in parameters:
            raise TypeError(TEXT["extra"].format(kernel=name, name=key, have=", ".join(parameters)))
        if key in given:
            raise TypeError(TEXT["twice"].format(kernel=name, name=key))
        given[key] = value
    given = source.defaults(kernel) | given
    if absent := [parameter for parameter in parameters if parameter not in given]:
        raise TypeError(TEXT["missing"].format(kernel=name, names=", ".join(absent)))
    return given


def _grid(grid: Any, given: dict[str, Any]) -> tuple[int, ...]:
    sizes = grid(given) if callable(grid) else grid
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    whole = isinstance(sizes, (tuple, list)) and all(isinstance(n, int) and n >= 0 for n in sizes)
    if not whole or not 1 <= len(sizes) <= 3:
        raise ValueError(TEXT["grid"].format(grid=sizes))
    return tuple(int(n) for n in sizes)


def _split(given: dict[str, Any], kernel: str, outputs: set[str]) -> tuple[list[dict], list[Any], dict[str, Any]]:
    """(description of each tensor, their storages each once, the other arguments)."""
    tensors: list[dict] = []
    storages: list[Any] = []
    places: dict[tuple, int] = {}
    values: dict[str, Any] = {}
    for name, value in given.items():
        descriptor = None
        if hasattr(value, "block_shape") and hasattr(value, "base"):
            shape, strides, block = (list(v) for v in (value.shape, value.strides, value.block_shape))
            descriptor = {"shape": shape, "strides": strides, "block_shape": block}
            if hasattr(value, "padding"):
                descriptor["padding"] = value.padding
            value = value.base
        if not isinstance(value, torch.Tensor):
            values[name] = value
            continue
        if value.dtype == torch.bfloat16:
            raise ValueError(TEXT["bf16"].format(name=name))
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            kind = "meta" if value.is_meta else "quantised" if value.is_quantized else "sparse"
            raise ValueError(TEXT["tensor"].format(name=name, kind=kind))
        storage = value.untyped_storage()
        key = (str(value.device), storage.data_ptr() or id(value))
        if key not in places:
            places[key] = len(storages)
            storages.append(storage)
        tensors.append({
            "name": name, "storage": places[key], "offset": value.storage_offset(), "shape": tuple(value.shape),
            "stride": value.stride(), "dtype": str(value.dtype).removeprefix("torch."),
            "itemsize": value.element_size(), "output": name in outputs, "descriptor": descriptor,
        })  # fmt: skip
    names = [entry["name"] for entry in tensors]
    for wrong in sorted(outputs - set(names)):
        raise ValueError(TEXT["outputs"].format(name=wrong, kernel=kernel, have=", ".join(names)))
    return tensors, storages, values


def _bytes_of(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _made(answer: dict, request: dict, kernel: str) -> Traffic:
    tensors = tuple(
        TensorTraffic(
            name=entry["name"], shape=entry["shape"], stride=entry["stride"], dtype=entry["dtype"],
            itemsize=entry["itemsize"], offset=entry["offset"],
            **counts,
        )
        for entry, counts in zip(request["tensors"], answer["tensors"], strict=True)
    )  # fmt: skip
    by_name = {tensor.name: tensor for tensor in tensors}
    problems = [_problem(entry, by_name[entry["tensor"]], answer["programs"]) for entry in answer["problems"]]
    problems += [
        Problem("never stored", t.name, None, None, None, None, 0, "", t.never_stored)
        for t in tensors
        if t.never_stored
    ]
    notes = [_note(entry) for entry in answer["notes"]]
    return Traffic(
        kernel=kernel,
        grid=request["grid"],
        tensors=tensors,
        loaded_bytes=sum(loaded for loaded, _ in answer["storages"]),
        stored_bytes=sum(stored for _, stored in answer["storages"]),
        dot_flops=answer["dot_flops"],
        problems=tuple(problems),
        notes=tuple(notes + [answer["untried"]] * bool(answer["untried"])),
        triton=triton_version(),
        _steps=answer["steps"],
        _elements=answer["elements"],
    )


def _problem(entry: dict, tensor: TensorTraffic, programs: list[tuple[int, int, int]]) -> Problem:
    _, line, text = entry["line"]
    index, past, count = None, None, entry["count"]
    if entry["byte"] is not None:
        index = tuple(int(n) for n in tensor.coordinates(np.array([entry["byte"] // tensor.itemsize]))[0])
        count = math.ceil(count / tensor.itemsize)
    elif entry["past"] is not None:
        past = entry["past"] // tensor.itemsize
    other = None if entry["other"] is None else programs[entry["other"]]
    return Problem(
        entry["kind"], tensor.name, index, past, programs[entry["program"]], other, line, text, count
    )  # fmt: skip


def _note(entry: dict) -> str:
    _, line, text = entry["line"]
    where = SAYS["line"].format(line=line, text=text) if line else ""
    return SAYS[entry["kind"]].format(name=entry["tensor"], count=entry["count"], line=where)

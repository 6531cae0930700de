"""The worker that traces: ``python -m oplab.compiler.tracer``, with TRITON_INTERPRET set.

It lays out the tensors of a call so that every address names its tensor, runs the kernel in Triton's
interpreter over the whole grid, and answers with the books that were kept and what was stored.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from oplab.compiler import interpreter, process
from oplab.compiler.ledger import Ledger, Region, Shadow
from oplab.compiler.loading import load

GUARD = 64 << 20  # bytes of address space around a tensor that count as "near" it; no memory is used
REPORT_SECONDS = 0.1


class Memory:
    """The storages of a call, each in a file without a name that every tensor maps at an address of its own.

    So two tensors of one storage see the same bytes, and an address still says through which argument
    the kernel went.
    """

    def __init__(self, storages: list[np.ndarray], tensors: list[dict]) -> None:
        import torch

        self.sizes = [len(data) for data in storages]
        self.heads = [(GUARD + size) // mmap.PAGESIZE * mmap.PAGESIZE for size in self.sizes]
        self.files = [os.memfd_create("oplab") for _ in storages]
        for file, head, data in zip(self.files, self.heads, storages, strict=True):
            os.ftruncate(file, 2 * head + mmap.PAGESIZE)
            with os.fdopen(os.dup(file), "wb") as stream:
                stream.seek(head)
                stream.write(memoryview(data))  # type: ignore[arg-type]
        sizes = [[t["itemsize"] for t in tensors if t["storage"] == n] for n in range(len(storages))]
        shadows = [Shadow(size, min(found, default=1)) for size, found in zip(self.sizes, sizes, strict=True)]
        self.tensors: list[torch.Tensor] = []
        self.regions: list[Region] = []
        self.storage_of = [entry["storage"] for entry in tensors]
        for number, entry in enumerate(tensors):
            size, head = self.sizes[entry["storage"]], self.heads[entry["storage"]]
            mapped = mmap.mmap(self.files[entry["storage"]], 2 * head + mmap.PAGESIZE)
            flat = torch.frombuffer(mapped, dtype=torch.uint8, count=max(size, 1), offset=head)
            base = flat.data_ptr()
            made = torch.empty(0, dtype=getattr(torch, entry["dtype"]))
            self.tensors.append(
                made.set_(flat.untyped_storage(), entry["offset"], entry["shape"], entry["stride"])  # type: ignore[call-overload]
            )
            edges = base - head, base + head, base, *_span(entry)
            shadow = shadows[entry["storage"]]
            self.regions.append(Region(number, entry["name"], *edges, entry["itemsize"], shadow))
        self._mark_outputs(tensors)

    def _mark_outputs(self, tensors: list[dict]) -> None:
        """Elements of outputs have no value yet, except those that are an input too."""
        for output in (True, False):
            for entry, region in zip(tensors, self.regions, strict=True):
                if entry["output"] is not output or not (output or region.shadow.empty is not None):
                    continue
                own = _offsets(entry)
                if output:
                    region.own = own
                    if region.shadow.empty is None:
                        region.shadow.empty = np.zeros(len(region.shadow.stored), bool)
                assert region.shadow.empty is not None
                for part in range(0, entry["itemsize"], region.shadow.unit):
                    region.shadow.empty[(own + part) // region.shadow.unit] = output

    def contents(self) -> dict[int, np.ndarray]:
        """Bytes of each storage in which the kernel stored something."""
        written = {self.storage_of[r.number] for r in self.regions if r.shadow.stored.any()}
        found = {}
        for which in written:
            with os.fdopen(os.dup(self.files[which]), "rb") as stream:
                stream.seek(self.heads[which])
                found[which] = np.frombuffer(stream.read(self.sizes[which]), np.uint8)
        return found

    def close(self) -> None:
        self.tensors.clear()
        for file in self.files:
            os.close(file)


def _span(entry: dict) -> tuple[int, int]:
    """Bytes of the storage from the first to behind the last element of a tensor."""
    first = entry["offset"] * entry["itemsize"]
    if 0 in entry["shape"]:
        return first, first
    reach = sum((n - 1) * stride for n, stride in zip(entry["shape"], entry["stride"], strict=True))
    return first, first + (reach + 1) * entry["itemsize"]


def _offsets(entry: dict) -> np.ndarray:
    """Byte offset in the storage of each element."""
    where = np.full((), entry["offset"], np.int64)
    for n, stride in zip(entry["shape"], entry["stride"], strict=True):
        where = where[..., None] + np.arange(n) * stride
    return where.reshape(-1) * entry["itemsize"]


def trace_one(request: dict, report: Callable[[float], None]) -> dict:
    """The books of one run of the request's kernel, or ``{"error": …}`` in the learner's terms."""
    if lacking := interpreter.missing():
        return {"unusable": lacking}
    memory: Memory | None = None
    with tempfile.TemporaryDirectory() as name, process.captured_output() as printed:
        folder = Path(name)
        try:
            memory = Memory(request["storages"], request["tensors"])
            answer = _trace(request, folder, memory, report)
        except Exception as caught:  # whatever the kernel raises is an answer, not the worker's end
            answer = {"error": _explained(caught, request["bundle"], folder)}
        finally:
            if memory is not None:
                memory.close()
    return answer | {"printed": printed[0]}


def _trace(request: dict, folder: Path, memory: Memory, report: Callable[[float], None]) -> dict:
    from triton.tools.tensor_descriptor import TensorDescriptor

    kernel = load(request["bundle"], folder)
    arguments = dict(pickle.loads(request["values"]))
    for entry, tensor in zip(request["tensors"], memory.tensors, strict=True):
        arguments[entry["name"]] = tensor
        if described := entry["descriptor"]:
            arguments[entry["name"]] = TensorDescriptor(tensor, **described)
    ledger = Ledger(memory.regions)
    total = max(1, int(np.prod(request["grid"])))
    programs: list[tuple[int, int, int]] = []
    said = time.monotonic()

    def started(program: tuple[int, int, int], number: int) -> None:
        nonlocal said
        programs.append(program)
        if time.monotonic() - said > REPORT_SECONDS:
            said = time.monotonic()
            report(number / total)

    listener = interpreter.Listener(ledger, set(_files(request["bundle"], folder)), started)
    interpreter.listen(listener)
    if all(request["grid"]):
        with np.errstate(all="ignore"):
            kernel[tuple(request["grid"])](**arguments)
    lines = {path: entry for path, entry in _files(request["bundle"], folder).items()}
    return {
        "programs": programs,
        "dot_flops": listener.dot_flops,
        "tensors": [_summary(region, ledger) for region in memory.regions],
        "storages": [_unique(memory, number) for number in range(len(memory.sizes))],
        "problems": [_placed(key, entry, lines) for key, entry in ledger.problems.items()],
        "notes": [_placed(key, entry, lines) for key, entry in ledger.notes.items()],
        "steps": ledger.steps and [(*step[:3], _line(step[3], lines)) for step in ledger.steps],
        "elements": ledger.elements,
        "contents": memory.contents(),
        "untried": interpreter.untried(),
    }


def _summary(region: Region, ledger: Ledger) -> dict:
    unit = region.shadow.unit
    return region.counts | {
        "unique_load_bytes": int(region.loaded.sum()) * unit,
        "unique_store_bytes": int(region.stored.sum()) * unit,
        "never_stored": ledger.never_stored(region),
    }


def _unique(memory: Memory, number: int) -> tuple[int, int]:
    """(bytes loaded, bytes stored) of a storage, each once, through whichever tensors."""
    shadow = next((r.shadow for r in memory.regions if memory.storage_of[r.number] == number), None)
    if shadow is None:
        return 0, 0
    return int(shadow.loaded.sum()) * shadow.unit, int(shadow.stored.sum()) * shadow.unit


def _files(bundle: list[dict], folder: Path) -> dict[str, dict]:
    """The file of each function as `loading` writes it."""
    return {str(folder / f"{number}-{entry['name']}.py"): entry for number, entry in enumerate(bundle)}


def _line(place: tuple[str, int], files: dict[str, dict]) -> tuple[str, int, str]:
    """(function, line, its text) of a place."""
    entry = files.get(place[0])
    if entry is None:
        return "", 0, ""
    lines = entry["text"].splitlines()
    number = place[1] - entry["first_line"]
    return entry["name"], place[1], lines[number].strip() if 0 <= number < len(lines) else ""


def _placed(key: tuple, entry: dict, files: dict[str, dict]) -> dict:
    kind, tensor, place = key
    return entry | {"kind": kind, "tensor": tensor, "line": _line(place, files)}


def _explained(error: BaseException, bundle: list[dict], folder: Path) -> dict:
    """Function, line and message of the innermost place in the learner's source."""
    files = _files(bundle, folder)
    place = ("", 0)
    cause: BaseException | None = error
    message = ""
    while cause is not None:
        for frame in traceback.extract_tb(cause.__traceback__):
            if frame.filename in files:
                place = (frame.filename, frame.lineno or 0)
        message = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        cause = cause.__cause__
    function, line, text = _line(place, files)
    return {"function": function or bundle[-1]["name"], "line": line, "text": text, "message": message}


if __name__ == "__main__":
    process.serve(trace_one)

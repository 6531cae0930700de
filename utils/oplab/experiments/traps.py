"""TRAPS: the ways a stopwatch lies. Each setting falls into one trap and then measures the same work honestly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType

import numba
import torch

from oplab import timing
from oplab.experiments.experiment import Experiment, Knob
from oplab.experiments.result import Result
from oplab.kernels import pointwise

# What people read, in one place.
TEXT = {
    "title": "How timing goes wrong",
    "trap": "Which mistake to make.",
    "baseline": "timed honestly",
}

# What each trap did, read beside its numbers.
STORIES = {
    "no_sync": "The clock stopped when the work was handed to the GPU, not when the GPU had done it.",
    "no_warmup": "The first call also compiled the kernel.",
    "cache_hot": "The same small array was used again and again, so it never left the cache.",
    "zeros": "The operands were zeros: fewer bits flip, less power is drawn, the clock stays higher.",
    "cold_clocks": "The chip had been idle, and its clock and caches were asleep.",
    "noise": "One sample, taken while other work ran beside it.",
    "side_stream": "The work ran on another stream, which the events do not see.",
    "fresh_pages": "The output was allocated inside the timed call: the system handed out fresh pages.",
}

Reading = tuple[float, timing.Timing]  # (what the mistake reports in seconds, the honest timing)


def _once(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _finished(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call, and a wait until the device has done it."""
    if device.type != "cuda":
        return call

    def finished() -> None:
        call()
        torch.cuda.synchronize(device)

    return finished


def _product(device: torch.device, fill: Callable[..., torch.Tensor] = torch.randn) -> Callable[[], object]:
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (fill(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def no_sync(device: torch.device) -> Reading:
    call = _product(device)
    _finished(call, device)()
    wrong = _once(call)
    torch.cuda.synchronize(device)
    return wrong, timing.measure(call, device=device)


def no_warmup(device: torch.device) -> Reading:
    size = 1024
    x, bias, scale, residual = (torch.randn(s, device=device) for s in ((size, size), (size,), (size,), (size, size)))
    out = torch.empty_like(x)
    if device.type == "cuda":
        # A block shape that nothing else in the course uses, so that it is not compiled yet.
        launch = pointwise.Launch(x, bias, scale, residual, out, pointwise.Block(512, 1, 2))
        return _once(_finished(launch, device)), timing.measure(launch, device=device)
    source = pointwise._chain_rows.py_func
    fresh = numba.njit(nogil=True, error_model="numpy")(FunctionType(source.__code__, source.__globals__))
    arrays = [t.numpy() for t in (x, bias, scale, residual, out)]

    def call() -> None:
        fresh(*arrays, 0, size)

    return _once(call), timing.measure(call, device=device)


def cache_hot(device: torch.device) -> Reading:
    if device.type == "cuda":
        x = torch.randn(4 << 20, device=device)  # 16 MB in, 16 MB out: half of an H200's L2
        out = torch.empty_like(x)

        def call() -> None:
            torch.clamp(x, min=0, out=out)

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(20):
            call()
        start.record()
        for _ in range(100):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / 100, timing.measure(call, device=device)
    x = torch.randn(1 << 18)  # 1 MB
    broom = torch.zeros(1 << 26)  # writing 256 MB sweeps the caches
    hot = timing.measure(lambda: x.sum(), device=device)
    cold = []
    for _ in range(10):
        broom.fill_(1.0)
        cold.append(_once(lambda: x.sum()))
    return hot.median, timing.Timing(tuple(cold), hot.device)


def zeros(device: torch.device) -> Reading:
    return timing.measure(_product(device, torch.zeros), device=device).median, timing.measure(
        _product(device), device=device
    )


def cold_clocks(device: torch.device) -> Reading:
    call = _finished(_product(device), device)
    call()
    honest = timing.measure(call, device=device)
    time.sleep(2.0)
    return _once(call), honest


def noise(device: torch.device) -> Reading:
    call, other = _finished(_product(device), device), _product(device)
    honest = timing.measure(call, device=device)
    stop = threading.Event()

    def compete() -> None:
        stream = None
        if device.type == "cuda":
            torch.cuda.set_device(device)  # a new thread has no context yet
            stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            while not stop.is_set():
                for _ in range(4):  # several in a row, so that the device is never idle between them
                    other()
                if stream is not None:
                    stream.synchronize()

    thread = threading.Thread(target=compete)
    thread.start()
    try:
        time.sleep(0.05)
        return _once(call), honest
    finally:
        stop.set()
        thread.join()


def side_stream(device: torch.device) -> Reading:
    call, stream = _product(device), torch.cuda.Stream(device)
    _finished(call, device)()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(stream):
        call()
    end.record()
    end.synchronize()
    wrong = start.elapsed_time(end) / 1e3
    torch.cuda.synchronize(device)
    return wrong, timing.measure(call, device=device)


def fresh_pages(device: torch.device) -> Reading:
    x = torch.randn(1 << 25)  # 128 MB
    out = torch.empty_like(x).fill_(1.0)
    wrong = timing.measure(lambda: x + 1, device=device)
    return wrong.median, timing.measure(lambda: torch.add(x, 1, out=out), device=device)


ON_GPU = (no_sync, no_warmup, cache_hot, zeros, cold_clocks, noise, side_stream)
ON_CPU = (no_warmup, cache_hot, zeros, cold_clocks, noise, fresh_pages)


def _names(traps: tuple[Callable, ...]) -> tuple[str, ...]:
    return tuple(trap.__name__ for trap in traps)


class Traps(Experiment):
    name = "traps"
    title = TEXT["title"]
    knobs = (Knob("trap", "trap", TEXT["trap"], _names(ON_GPU), "no_sync", _names(ON_CPU), "no_warmup"),)

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        trap = next(f for f in ON_GPU + ON_CPU if f.__name__ == knobs["trap"])
        result = replace(self.blank(knobs, source), baseline=TEXT["baseline"])
        with timing.device_lock(device):
            timing.report("measuring")
            wrong, honest = trap(device)
        notes = (STORIES[knobs["trap"]], *honest.notes)
        return replace(result, samples=(wrong,), baseline_seconds=honest.median, notes=notes)

    def settings(self, source: str) -> Iterator[dict]:
        for trap in self.knobs[0].choices(source):
            yield {"trap": trap}


TRAPS = Traps()

"""Running a step under the profiler and joining each operator's time with its cost."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from oplab import roofline, timing
from oplab.cost.costs import OperatorCost
from oplab.cost.counter import CostCounter
from oplab.cost.traffic import storage_of, tensors_in
from oplab.cost.vector import PER_OUTPUT
from oplab.machine import machine
from oplab.profiler.profile import Profile, ProfiledOperator

MARK = "oplab#"  # our spans in torch.profiler's trace: oplab#<number of the call>

# What people read, in one place.
TEXT = {
    "no_loss": "profile(backward=True) needs a function that returns a tensor which needs a gradient (a loss, say); "
    "pass backward=False to profile the forward alone",
}


@dataclass
class _Call:
    cost: OperatorCost
    phase: str
    inputs: frozenset[int]  # storages
    outputs: frozenset[int]
    channels_first: bool
    seconds: float = 0.0


class _Marker(CostCounter):
    """Counts each operator and puts a numbered span around it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.phase = "forward"

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        before = len(self._operators)
        with record_function(f"{MARK}{len(self.calls)}"):
            out = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self._operators) == before + 1:
            self.calls.append(_call(self._operators[-1], self.phase, args, out))
        return out


def _call(cost: OperatorCost, phase: str, args: tuple, out: Any) -> _Call:
    inputs = [t for t in tensors_in(args) if t.layout == torch.strided]
    outputs = [t for t in tensors_in(out) if t.layout == torch.strided]
    nchw = "convolution" in cost.name and any(_is_nchw(t) for t in inputs[:2])
    return _Call(cost, phase, frozenset(map(storage_of, inputs)), frozenset(map(storage_of, outputs)), nchw)


def _is_nchw(t: Tensor) -> bool:
    return (
        t.dim() == 4 and t.shape[1] > 1 and t.is_contiguous() and not t.is_contiguous(memory_format=torch.channels_last)
    )


def profile(
    fn: Callable[..., Any],
    *args: Any,
    backward: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    title: str = "",
    **kwargs: Any,
) -> Profile:
    """Take one step apart: ``fn(*args, **kwargs)``, its backward, and ``optimizer.step()`` when given.

    The step runs about ten times: to warm up, to be timed without the profiler, and once with it. With an
    optimizer the parameters change accordingly. Gradients are cleared before each step. ValueError when
    there is no gradient to take; errors of ``fn`` pass through.
    """
    device = _device_of(fn, args, kwargs)

    def step(marker: _Marker | None = None) -> None:
        def phase(name: str) -> None:
            if marker is not None:
                marker.phase = name

        phase("forward")
        out = fn(*args, **kwargs)
        if backward:
            roots = [t for t in tensors_in(out) if t.requires_grad]
            if not roots:
                raise ValueError(TEXT["no_loss"])
            phase("backward")
            torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
        if optimizer is not None:
            phase("optimizer")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        elif backward:
            _forget_gradients(fn, args)

    ceilings = machine(device)
    with timing.device_lock(device):
        step()
        launch = timing.launch_seconds(device)
        timed = _time_step(step, device)
        calls = _profiled_calls(step, device)
    operators = _grouped(calls, ceilings, launch)
    today = datetime.date.today().isoformat()
    return Profile(ceilings, today, timed, launch, operators, _fusable(calls), title)


def _device_of(fn: Any, args: tuple, kwargs: dict) -> torch.device:
    tensors = tensors_in(args) + tensors_in(kwargs)
    for module in _modules(fn, args):
        tensors += list(module.parameters())
    if any(t.device.type == "cuda" for t in tensors):
        return timing.pick_device("cuda")
    return timing.pick_device("cpu" if tensors else None)


def _forget_gradients(fn: Any, args: tuple) -> None:
    for module in _modules(fn, args):
        module.zero_grad(set_to_none=True)


def _modules(fn: Any, args: tuple) -> list[torch.nn.Module]:
    """Modules that the step works with: the function itself, its arguments, what it closes over or finds globally."""
    seen = [fn, *args, getattr(fn, "__self__", None)]
    if inspect.isfunction(fn):
        found = inspect.getclosurevars(fn)
        seen += [*found.nonlocals.values(), *found.globals.values()]
    return [value for value in seen if isinstance(value, torch.nn.Module)]


def _time_step(step: Callable[[], None], device: torch.device) -> float:
    """Median seconds of steps run back to back, as in training: caches stay as the step leaves them."""

    def once() -> float:
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(7))


def _profiled_calls(step: Callable[[_Marker], None], device: torch.device) -> list[_Call]:
    on_gpu = device.type == "cuda"
    marker = _Marker()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about profiler cycles, which we do not use
        trace = torch_profile(activities=activities, acc_events=True)
        with _quiet():
            trace.start()
        try:
            with marker:
                step(marker)
            if on_gpu:
                torch.cuda.synchronize(device)
        finally:
            with _quiet():
                trace.stop()
        for event in trace.events():
            if not event.name.startswith(MARK) or event.device_type != torch.autograd.DeviceType.CPU:
                continue
            number = int(event.name.removeprefix(MARK))
            if number < len(marker.calls):
                spent = event.device_time_total if on_gpu else sum(child.cpu_time_total for child in event.cpu_children)
                marker.calls[number].seconds += spent / 1e6
    return marker.calls


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the profiler's C++ side prints when it starts and stops ("USDT: …"); no setting turns it off."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _grouped(calls: list[_Call], ceilings: Any, launch: float) -> tuple[ProfiledOperator, ...]:
    groups: dict[tuple, list[_Call]] = {}
    for call in calls:
        if call.cost.flops or call.cost.bytes or not call.cost.counted:  # views do no work and are left out
            groups.setdefault((call.cost.name, call.phase, call.cost.shapes, call.cost.dtype), []).append(call)
    return tuple(_entry(group, ceilings, launch) for group in groups.values())


def _entry(group: list[_Call], ceilings: Any, launch: float) -> ProfiledOperator:
    cost, n = group[0].cost, len(group)
    seconds = sum(call.seconds for call in group)
    matrix, vector = sum(c.cost.matrix_flops for c in group), sum(c.cost.vector_flops for c in group)
    nbytes = sum(c.cost.bytes for c in group)
    place = roofline.classify(
        ceilings,
        matrix_flops=matrix / n,
        vector_flops=vector / n,
        nbytes=nbytes / n,
        dtype=cost.dtype,
        seconds=seconds / n if seconds else None,
        launch_seconds=launch,
    )
    return ProfiledOperator(
        cost.name, group[0].phase, cost.shapes, cost.dtype, n, seconds, matrix, vector, nbytes, cost.counted,
        place.bound.value, place.efficiency or 0.0, group[0].channels_first,
    )  # fmt: skip


def _fusable(calls: list[_Call]) -> tuple[tuple[str, int, int], ...]:
    """Runs of neighbouring element-wise operators where each reads what the one before wrote.

    Fusing a run saves writing and reading back every intermediate.
    """
    found: dict[str, tuple[int, int]] = {}
    run: list[_Call] = []

    def close() -> None:
        if len(run) > 1:
            name = " + ".join(call.cost.name.removeprefix("aten.") for call in run)
            saved = sum(2 * call.cost.bytes_written for call in run[:-1])
            bytes_before, times = found.get(name, (0, 0))
            found[name] = (bytes_before + saved, times + 1)

    for call in calls:
        if not call.cost.bytes and not call.cost.flops:
            continue  # views do not break a run
        if not _elementwise(call):
            close()
            run = []
        elif run and not (run[-1].outputs & call.inputs):
            close()
            run = [call]
        else:
            run = [*run, call]
    close()
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    return tuple((name, saved, times) for name, (saved, times) in ranked[:5])


def _elementwise(call: _Call) -> bool:
    name = call.cost.name.removeprefix("aten.").rstrip("_")
    return name in PER_OUTPUT or name in ("gelu", "gelu_backward", "_to_copy", "where", "masked_fill")

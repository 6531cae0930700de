"""How long something takes, honestly.

``measure(fn)`` times one call of ``fn`` on the GPU (events, L2 cleared between samples) or on the
CPU (``torch.utils.benchmark``) and returns a `Timing`, which knows its spread and says by itself
when it should not be trusted. Measurements on one device queue behind a lock that all processes of
this computer share, so two notebooks never time each other.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.utils.benchmark
from filelock import FileLock, Timeout

# What people read, in one place.
TEXT = {
    "noisy": "noisy: the middle half of the samples spreads over {spread:.0%} of the median",
    "throttled": "the GPU slowed itself down ({why}) while measuring",
    "elsewhere": "the device went on working for {seconds:.2g} s after the timed stream had finished: "
    "work on another stream is not in this time",
    "waiting": "waiting for {device}: another notebook or process is measuring",
    "unwritten": "{count:,} of {total:,} output elements were never written",
    "no_triton": "timing on a GPU needs Triton; install it with: pip install triton "
    "(on Windows: pip install triton-windows)",
}

NOISE_LIMIT = 0.10  # interquartile range over median; above this a timing calls itself unstable
MAX_SAMPLES = 50  # of one round on a GPU
MAX_ROUNDS = 3  # a noisy measurement is extended this many times before it is called noisy


class Withdrawn(Exception):
    """Raised by a listener of `reporting` whose request is no longer wanted."""


class OutputNotWritten(RuntimeError):
    """The timed function left part of its declared output untouched."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call, with every sample kept.

    ``median`` is the estimate, ``low`` and ``high`` the quartiles around it. It is the time of one
    cold call on a GPU (L2 cleared before each sample) and of one warm call on a CPU. ``stable`` is
    False when the samples spread by more than 10 %, when the device throttled, or when work ran
    where the clock could not see it; ``notes`` says which.
    """

    samples: tuple[float, ...]
    device: str
    notes: tuple[str, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        return _quartiles(self.samples)[0]

    @property
    def high(self) -> float:
        return _quartiles(self.samples)[1]

    @property
    def spread(self) -> float:
        """Interquartile range over the median; 0 for a perfectly quiet machine."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @property
    def stable(self) -> bool:
        return not self.notes

    def __repr__(self) -> str:
        text = f"{seconds(self.median)} ({seconds(self.low)} to {seconds(self.high)}, "
        text += f"{len(self.samples)} samples) on {self.device}"
        return text + "".join(f"\n  caution: {note}" for note in self.notes)


def seconds(value: float) -> str:
    """A duration in the unit people would say it in: ``seconds(0.00019) == '190 µs'``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale * 0.9995:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def measure(
    fn: Callable[[], object],
    *,
    device: str | torch.device | None = None,
    output: torch.Tensor | None = None,
    budget: float = 0.1,
) -> Timing:
    """Time one call of ``fn``.

    ``device`` defaults to the GPU when there is one. ``output``, when given, is the tensor that
    ``fn`` fills: it is poisoned first, and `OutputNotWritten` is raised if any poison survives one
    call. ``budget`` is the time in seconds spent on samples; a noisy measurement takes up to three
    times as long. Errors of ``fn`` pass through untouched.
    """
    dev = pick_device(device)
    with device_lock(dev):
        report("measuring")
        if output is not None:
            _check_written(fn, output)
        return _measure_cuda(fn, dev, budget) if dev.type == "cuda" else _measure_cpu(fn, budget)


def pick_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or the current GPU, or the CPU where there is none."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dev = torch.device(device)
    if dev.type == "cuda" and dev.index is None:
        dev = torch.device("cuda", torch.cuda.current_device())
    return dev


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"


# --- measuring ---------------------------------------------------------------------------------


def _measure_cpu(fn: Callable[[], object], budget: float) -> Timing:
    # Timer defaults to one thread; the learner's programs use all of torch's threads.
    timer = torch.utils.benchmark.Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads())
    samples: list[float] = []
    for _ in range(MAX_ROUNDS):
        samples += timer.blocked_autorange(min_run_time=budget).times
        if not _noise_notes(samples) or sum(samples) > 2 * budget:
            break
        report("measuring")  # a listener may withdraw its request between rounds
    return Timing(tuple(samples), "this CPU", _noise_notes(samples))


def _measure_cuda(fn: Callable[[], object], device: torch.device, budget: float) -> Timing:
    try:
        from triton.testing import do_bench  # clears L2 outside the events of each sample
    except ImportError as error:
        raise RuntimeError(TEXT["no_triton"]) from error
    samples: list[float] = []
    with torch.cuda.device(device), _throttle_watch(device) as throttled:
        once, elsewhere = _one_call(fn)
        rep = 1e3 * min(budget, MAX_SAMPLES * once)  # milliseconds
        for _ in range(MAX_ROUNDS):
            samples += [ms / 1e3 for ms in do_bench(fn, warmup=10, rep=rep, return_mode="all")]
            if not _noise_notes(samples):
                break
            report("measuring")
        notes = _noise_notes(samples) + elsewhere + throttled()
    return Timing(tuple(samples), device_name(device), notes)


def _one_call(fn: Callable[[], object]) -> tuple[float, tuple[str, ...]]:
    """(seconds of one call, cautions): is the device still busy once the timed stream has finished?

    Events see one stream only. The host clock sees all of them: after the end event has passed, a
    full synchronise must return at once.
    """
    fn()  # compile and warm up outside the comparison
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    fn()
    end.record()
    end.synchronize()
    finished = time.perf_counter()
    torch.cuda.synchronize()
    late = time.perf_counter() - finished
    once = start.elapsed_time(end) / 1e3
    return once, (TEXT["elsewhere"].format(seconds=late),) if late > max(2e-4, 0.25 * once) else ()


def _quartiles(samples: tuple[float, ...] | list[float]) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0], samples[0]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, high


def _noise_notes(samples: list[float]) -> tuple[str, ...]:
    low, high = _quartiles(samples)
    spread = (high - low) / statistics.median(samples)
    return (TEXT["noisy"].format(spread=spread),) if spread > NOISE_LIMIT else ()


@contextlib.contextmanager
def _throttle_watch(device: torch.device) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Yields a function that says whether the GPU slowed itself down since we began.

    A power cap is the normal state of a data-centre GPU under a matrix product, so only heat and
    hardware slow-downs count. Without NVML nothing is reported: the spread still shows unsteady clocks.
    """
    found = nvml(device)
    if found is None:
        yield lambda: ()
        return
    pynvml, handle = found
    reasons = {
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat",
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat",
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    }

    def check() -> tuple[str, ...]:
        active = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        why = sorted({name for bit, name in reasons.items() if active & bit})
        return (TEXT["throttled"].format(why=", ".join(why)),) if why else ()

    yield check


def launch_seconds(device: str | torch.device | None = None, operators: int = 200) -> float:
    """Seconds that the host needs to start one small operator: the path from Python to the device.

    Median over rounds of queueing ``operators`` one-element additions, without waiting for the device.
    """
    dev = pick_device(device)
    x = torch.zeros(1, device=dev)
    rounds = []
    with device_lock(dev):
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(operators):
                x.add_(1.0)
            rounds.append((time.perf_counter() - start) / operators)
            if dev.type == "cuda":
                torch.cuda.synchronize(dev)
    return statistics.median(rounds)


# --- poisoned outputs --------------------------------------------------------------------------

# A NaN with a payload that no arithmetic produces, so that a genuine NaN result is not mistaken
# for an unwritten element; integers get an unlikely value.
_POISON_BITS = {1: 0x5B, 2: 0x7FA5, 4: 0x7FA5A5A5, 8: 0x7FF5A5A5A5A5A5A5}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def poison(tensor: torch.Tensor) -> None:
    """Fill ``tensor`` in place with a bit pattern that a kernel would not write."""
    size = tensor.element_size()
    tensor.view(_BITS[size]).fill_(_POISON_BITS[size])


def unwritten(tensor: torch.Tensor) -> int:
    """How many elements of a poisoned ``tensor`` still hold the poison."""
    size = tensor.element_size()
    return int((tensor.view(_BITS[size]) == _POISON_BITS[size]).sum())


def _check_written(fn: Callable[[], object], output: torch.Tensor) -> None:
    poison(output)
    fn()
    left = unwritten(output)
    # One-byte types have no spare bit pattern: a few equal values are chance, a whole tensor is not.
    if left and (output.element_size() > 1 or left > output.numel() // 16):
        raise OutputNotWritten(TEXT["unwritten"].format(count=left, total=output.numel()))


# --- what a measurement is doing, and who is watching --------------------------------------------

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("oplab_listener", default=None)


@contextlib.contextmanager
def reporting(listener: Callable[[str], None]) -> Iterator[None]:
    """Within this context ``listener`` is told each state ("waiting …", "compiling", "measuring").

    A listener may raise `Withdrawn`; everything held is released on the way out.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(state: str) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(state)
    elif state.startswith("waiting"):
        print(state, file=sys.stderr)


# --- the driver's own view -----------------------------------------------------------------------


def nvml(device: torch.device) -> tuple[ModuleType, Any] | None:
    """(pynvml, handle of ``device``), or None where NVML is not to be had (AMD, no driver, WSL)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(device_uuid(device))
    except pynvml.NVMLError:
        return None


# --- one measurement at a time per device --------------------------------------------------------

_process_locks: dict[str, threading.RLock] = {}
_file_locks: dict[str, FileLock] = {}
_registry_lock = threading.Lock()


def device_uuid(device: torch.device) -> str:
    """A name for the device that is the same in every process: its UUID, or ``cpu``."""
    if device.type != "cuda":
        return "cpu"
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def lock_folder() -> Path:
    """Where the lock files lie: ``$OPLAB_LOCK_DIR``, or a folder in the system's temporary folder."""
    folder = Path(os.environ.get("OPLAB_LOCK_DIR") or Path(tempfile.gettempdir()) / "oplab-locks")
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # made by another user: then it is open already
            folder.chmod(0o777)
    return folder


@contextlib.contextmanager
def device_lock(device: torch.device) -> Iterator[None]:
    """Hold the device for a measurement; waits, visibly, for whoever holds it now.

    Re-entrant within a thread. The operating system releases the file lock of a process that dies.
    """
    key = device_uuid(device)
    with _registry_lock:
        in_process = _process_locks.setdefault(key, threading.RLock())
        between = _file_locks.setdefault(key, FileLock(lock_folder() / f"{key}.lock", mode=0o666, thread_local=False))
    waiting = TEXT["waiting"].format(device=device_name(device))
    _acquire(lambda limit: in_process.acquire(timeout=limit), waiting)
    try:
        _acquire(lambda limit: _try_file_lock(between, limit), waiting)
        try:
            yield
        finally:
            between.release()
    finally:
        in_process.release()


def _try_file_lock(lock: FileLock, limit: float) -> bool:
    try:
        lock.acquire(timeout=limit, poll_interval=0.02)
    except Timeout:
        return False
    return True


def _acquire(attempt: Callable[[float], bool], waiting: str) -> None:
    if attempt(0.3):  # a short wait is not worth a message
        return
    report(waiting)
    while not attempt(0.2):
        if _listener.get() is not None:
            report(waiting)  # so that a stale request can be withdrawn while it queues

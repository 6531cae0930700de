"""What this hardware can do: identity, limits, and ceilings measured here, not read from a sheet.

``machine()`` returns a `Machine`. The first call on a device measures it (under 20 s, with a
progress bar) and remembers the result in the user's cache folder, keyed by device, driver and
library versions; ``machine(refresh=True)`` measures again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
from platformdirs import user_cache_path
from tqdm.auto import tqdm

from oplab import hardware, timing

SLOW_PRODUCT = 0.4  # seconds; a CPU's ceiling is measured with products no longer than this
SCHEMA = 1  # of the cache file and of the `machine` part of a recording

# What people read, in one place.
TEXT = {
    "measuring": "measuring the ceilings of {name}",
    "bad_cache": "ignored the machine cache {path}: {why}; measuring again",
    "no_save": "could not keep the measured ceilings in {path}: {why}; they will be measured again next time",
    "no_peak": "{name} has no measured peak for {dtype!r}; it has {have}",
    "datasheet": "NVIDIA H200 datasheet (SXM, dense)",
}

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,  # float32 storage, matrix units allowed to round to 10 bits of mantissa
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}

SHORT_NAMES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
}


def short_dtype(dtype: object) -> str:
    """``"bf16"`` for "bf16", "bfloat16" and torch.bfloat16; other names come back as they are."""
    name = str(dtype).removeprefix("torch.")
    return SHORT_NAMES.get(name, name)


# Beside the measured values, never instead of them. B/s and FLOP/s.
SPEC_SHEETS: dict[str, dict[str, float | str]] = {
    "NVIDIA H200": {"source": TEXT["datasheet"], "bandwidth": 4.8e12, "bf16": 989e12, "fp32": 67e12},
}


@dataclass(frozen=True)
class Machine:
    """One device: who it is, what it allows, what it was measured to do.

    ``bandwidth``: B/s of a large copy, bytes read plus bytes written. ``l2_bandwidth``: B/s of reading
    what fits the L2 cache again and again; None where it was not measured (CPU). ``peaks``: FLOP/s of a large
    matrix product through the vendor library on random data, by dtype name ("fp32", "tf32", …).
    ``limits``: hardware limits in bytes, Hz or counts, read from the driver or operating system.
    """

    name: str
    kind: str  # "cuda" or "cpu"
    uuid: str
    driver: str
    limits: dict[str, float | str]
    bandwidth: float
    peaks: dict[str, float]
    versions: dict[str, str]
    date: str
    notes: tuple[str, ...] = field(default=())
    l2_bandwidth: float | None = None

    def peak(self, dtype: str | torch.dtype) -> float:
        """FLOP/s measured for ``dtype`` ("bf16" or torch.bfloat16); KeyError names those that were measured."""
        name = short_dtype(dtype)
        if name not in self.peaks:
            have = ", ".join(self.peaks)
            raise KeyError(TEXT["no_peak"].format(name=self.name, dtype=name, have=have))
        return self.peaks[name]

    def balance(self, dtype: str | torch.dtype) -> float:
        """FLOP per byte at the ridge of the roofline: below it, an operator waits for memory."""
        return self.peak(dtype) / self.bandwidth

    @property
    def spec_sheet(self) -> dict[str, float | str] | None:
        """What the vendor's sheet says, with its source; None where we have none."""
        return SPEC_SHEETS.get(self.name)

    def rows(self) -> list[tuple[str, str]]:
        """(label, value) pairs for people."""
        rows = [("device", self.name), ("driver", self.driver), ("measured", self.date)]
        rows.append(("memory bandwidth", f"{self.bandwidth / 1e9:,.0f} GB/s"))
        if self.l2_bandwidth:
            rows.append(("L2 cache bandwidth", f"{self.l2_bandwidth / 1e9:,.0f} GB/s"))
        for dtype, peak in self.peaks.items():
            rows.append((f"{dtype} peak", f"{peak / 1e12:,.3g} TFLOP/s (balance {_whole(self.balance(dtype))} FLOP/B)"))
        rows += [(key.replace("_", " "), _readable(key, value)) for key, value in self.limits.items()]
        rows += [("caution", note) for note in self.notes]
        return rows

    def __repr__(self) -> str:
        return "\n".join(f"{label:<28}{value}" for label, value in self.rows())

    def _repr_html_(self) -> str:
        from html import escape

        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(label)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
            for label, value in self.rows()
        )
        return f"<table>{cells}</table>"

    def as_dict(self) -> dict:
        return {"schema": SCHEMA, **asdict(self), "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, data: dict) -> Machine:
        """Raises ValueError when ``data`` is of another schema or incomplete."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"written by another version (schema {data.get('schema')!r}, this one reads {SCHEMA})")
        fields = {key: data[key] for key in data if key != "schema"}
        try:
            return cls(**{**fields, "notes": tuple(fields.get("notes", ()))})
        except TypeError as error:
            raise ValueError(f"incomplete: {error}") from error


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _readable(key: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if key.endswith("_bytes"):
        for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if value >= scale:
                return f"{value / scale:,.4g} {unit}"
    if key.endswith("_hz"):
        return f"{value / 1e6:,.0f} MHz"
    return f"{value:,.4g}"


# --- finding or measuring it ---------------------------------------------------------------------

_known: dict[str, Machine] = {}


def machine(device: str | torch.device | None = None, *, refresh: bool = False) -> Machine:
    """The ceilings of ``device`` (default: the GPU, else the CPU), measured once and remembered."""
    dev = timing.pick_device(device)
    key = _cache_key(dev)
    if not refresh and key in _known:
        return _known[key]
    path = cache_folder() / f"machine-{key}.json"
    found = None if refresh else _load(path)
    if found is None:
        found = _measure(dev)
        _save(path, found)
    _known[key] = found
    return found


def cache_folder() -> Path:
    """``$OPLAB_CACHE_DIR``, or the user's cache folder for oplab."""
    return Path(os.environ.get("OPLAB_CACHE_DIR") or user_cache_path("oplab"))


def versions() -> dict[str, str]:
    """Versions of what decides a measurement; a library that is absent is left out."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "numba", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.version.hip:
        found["hip"] = torch.version.hip
    return found


def _cache_key(dev: torch.device) -> str:
    facts = [
        hardware.name(dev),
        timing.device_uuid(dev),
        hardware.driver(dev),
        versions(),
        torch.get_num_threads(),
        SCHEMA,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _load(path: Path) -> Machine | None:
    if not path.exists():
        return None
    try:
        return Machine.from_dict(json.loads(path.read_text()))
    except (ValueError, OSError, AttributeError) as error:
        warnings.warn(TEXT["bad_cache"].format(path=path, why=error), stacklevel=3)
        return None


def _save(path: Path, found: Machine) -> None:
    try:
        write_atomically(path, json.dumps(found.as_dict(), indent=1))
    except OSError as error:
        warnings.warn(TEXT["no_save"].format(path=path.parent, why=error), stacklevel=3)


def write_atomically(path: Path, content: str | bytes) -> None:
    """All of ``content`` or the old file: a killed process leaves no half-written one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(draft, path)


def _measure(dev: torch.device) -> Machine:
    steps = _cuda_peaks(dev) if dev.type == "cuda" else _cpu_peaks()
    peaks: dict[str, float] = {}
    notes: list[str] = []
    bar = tqdm(
        total=len(steps) + 1, desc=TEXT["measuring"].format(name=hardware.name(dev)), leave=False, file=sys.stderr
    )
    with timing.device_lock(dev), bar:
        bandwidth, note = copy_rate(dev, _large_copy_bytes(dev))
        notes += [f"copy: {line}" for line in note]
        l2_bandwidth = _l2_rate(dev) if dev.type == "cuda" else None
        bar.update()
        for dtype, step in steps:
            peaks[dtype], note = step()
            notes += [f"{dtype}: {line}" for line in note]
            bar.update()
        if dev.type == "cuda":
            torch.cuda.empty_cache()
    return Machine(
        name=hardware.name(dev),
        kind=dev.type,
        uuid=timing.device_uuid(dev),
        driver=hardware.driver(dev),
        limits=hardware.limits(dev),
        bandwidth=bandwidth,
        peaks=peaks,
        versions=versions(),
        date=datetime.date.today().isoformat(),
        notes=tuple(notes),
        l2_bandwidth=l2_bandwidth,
    )


# --- ceilings ------------------------------------------------------------------------------------


def copy_rate(dev: torch.device, moved_bytes: int) -> tuple[float, tuple[str, ...]]:
    """(B/s, cautions) of a copy that reads half of ``moved_bytes`` and writes the other half.

    Both buffers are allocated and touched first: reading fresh pages measures the operating system.
    """
    source = torch.empty(max(moved_bytes // 2, 1), dtype=torch.uint8, device=dev).random_()
    target = torch.empty_like(source).fill_(1)
    timed = timing.measure(lambda: target.copy_(source), device=dev)
    return 2 * source.numel() / timed.median, timed.notes


def _l2_rate(dev: torch.device) -> float:
    """B/s of reading a quarter of the L2 cache 256 times over within one kernel.

    One kernel, because several short ones would measure the gaps between them; reading only, because
    expanding a dimension is how PyTorch repeats an input without storing it again.
    """
    quarter = torch.cuda.get_device_properties(dev).L2_cache_size // 4
    repeats = 256
    values = torch.randn(quarter // 4, device=dev).expand(repeats, -1)  # float32
    timed = timing.measure(lambda: values.sum(dim=1), device=dev)
    return repeats * quarter / timed.median


def _large_copy_bytes(dev: torch.device) -> int:
    """Enough to leave every cache far behind, within an eighth of the free memory."""
    if dev.type == "cuda":
        free, _ = torch.cuda.mem_get_info(dev)
        return min(4 << 30, free // 8)
    last_level = max((int(v) for k, v in hardware.cpu_limits().items() if k.endswith("cache_bytes")), default=0)
    return min(max(8 * last_level, 1 << 29), psutil.virtual_memory().available // 8)


_Step = tuple[str, Callable[[], tuple[float, tuple[str, ...]]]]


def _cuda_peaks(dev: torch.device) -> list[_Step]:
    capability = torch.cuda.get_device_capability(dev)
    nvidia = torch.version.hip is None
    names = ["fp32", "fp16"]
    if nvidia and capability >= (8, 0):
        names.insert(1, "tf32")
    if not nvidia or capability >= (8, 0):
        names.append("bf16")
    if (nvidia and capability >= (8, 9)) or (
        not nvidia and "gfx942" in torch.cuda.get_device_properties(dev).gcnArchName
    ):
        names.append("fp8")
    return [(name, partial(_matmul_rate, dev, name, (4096, 8192))) for name in names]


def _cpu_peaks() -> list[_Step]:
    return [(name, partial(_cpu_matmul_rate, name)) for name in ("fp32", "bf16")]


def _cpu_matmul_rate(dtype: str) -> tuple[float, tuple[str, ...]]:
    """`_matmul_rate` at the largest size up to 2048 whose product takes a fraction of a second.

    A processor without bf16 instructions (AVX2 only) needs half a minute for one bf16 product of 2048.
    """
    cpu = torch.device("cpu")
    size = 256
    while size < 2048:
        product = _vendor_product(cpu, dtype, size)
        product()  # the first call starts the threads
        start = time.perf_counter()
        product()
        if 8 * (time.perf_counter() - start) > SLOW_PRODUCT:  # twice the size is eight times the work
            break
        size *= 2
    return _matmul_rate(cpu, dtype, (size,))


def _matmul_rate(dev: torch.device, dtype: str, sizes: tuple[int, ...]) -> tuple[float, tuple[str, ...]]:
    """(FLOP/s, cautions): the best of square products of ``sizes`` through the vendor library."""
    best = 0.0
    notes: tuple[str, ...] = ()
    for size in sizes:
        product = _vendor_product(dev, dtype, size)
        with tf32_allowed(dtype == "tf32"):
            timed = timing.measure(product, device=dev)
        rate = 2 * size**3 / timed.median
        if rate > best:
            best, notes = rate, timed.notes
    return best, notes


def _vendor_product(dev: torch.device, dtype: str, size: int) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device=dev) for _ in range(2))
    if dtype == "fp8":
        # cuBLASLt's fp8 product wants the second operand column-major and one scale per tensor.
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=dev)
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    a, b = a.to(DTYPES[dtype]), b.to(DTYPES[dtype])
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


class tf32_allowed:
    """Context: may float32 matrix products and convolutions use the tf32 matrix units? Restores the old settings."""

    def __init__(self, allowed: bool) -> None:
        self.precision = "tf32" if allowed else "ieee"
        self.settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self.before = [setting.fp32_precision for setting in self.settings]
        for setting in self.settings:
            setting.fp32_precision = self.precision

    def __exit__(self, *exc: object) -> None:
        for setting, before in zip(self.settings, self.before, strict=True):
            setting.fp32_precision = before

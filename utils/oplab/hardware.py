"""Who a device is and what it allows, as its driver or the operating system says; nothing is measured here."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch

from oplab import timing


def name(dev: torch.device) -> str:
    """The marketing name of the GPU or processor."""
    return torch.cuda.get_device_name(dev) if dev.type == "cuda" else cpu_name()


def driver(dev: torch.device) -> str:
    """The GPU driver's version, or the operating system's for a CPU."""
    if dev.type != "cuda":
        return f"{platform.system()} {platform.release()}"
    found = timing.nvml(dev)
    if found is None:
        return f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
    return str(found[0].nvmlSystemGetDriverVersion())


def cpu_name() -> str:
    """The processor's marketing name, from wherever the operating system keeps it."""
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    elif sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def _sysctl(name: str) -> str:
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def limits(dev: torch.device) -> dict[str, float | str]:
    """Hardware limits of ``dev`` in bytes, Hz or counts, by name."""
    return cuda_limits(dev) if dev.type == "cuda" else cpu_limits()


def cpu_limits() -> dict[str, float | str]:
    found: dict[str, float | str] = {
        "cores": psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "simd": torch.backends.cpu.get_cpu_capability(),
    }
    found.update(_cpu_caches())
    return found


def _cpu_caches() -> dict[str, int]:
    """Sizes of the data caches that one core sees; empty where the system does not tell (Windows)."""
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() in ("Data", "Unified"):
            text = (index / "size").read_text().strip()  # such as "2048K"
            scale = {"K": 2**10, "M": 2**20}.get(text[-1], 1)
            sizes[f"l{(index / 'level').read_text().strip()}_cache_bytes"] = int(text.rstrip("KM")) * scale
    if sys.platform == "darwin":
        for level, name in (("l1", "hw.perflevel0.l1dcachesize"), ("l2", "hw.perflevel0.l2cachesize")):
            if value := _sysctl(name):
                sizes[f"{level}_cache_bytes"] = int(value)
    return sizes


def cuda_limits(dev: torch.device) -> dict[str, float | str]:
    p: Any = torch.cuda.get_device_properties(dev)  # its stub lacks some of the fields
    found: dict[str, float | str] = {
        "compute_capability": f"{p.major}.{p.minor}",
        "sms": p.multi_processor_count,
        "memory_bytes": p.total_memory,
        "l2_bytes": p.L2_cache_size,
        "shared_per_block_bytes": p.shared_memory_per_block_optin,
        "shared_per_sm_bytes": p.shared_memory_per_multiprocessor,
        "registers_per_sm": p.regs_per_multiprocessor,
        "threads_per_sm": p.max_threads_per_multi_processor,
    }
    if view := timing.nvml(dev):
        pynvml, handle = view
        found["sm_clock_hz"] = 1e6 * pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        found["memory_clock_hz"] = 1e6 * pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    return found

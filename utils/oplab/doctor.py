"""What this computer has, what is missing, and the command that fixes it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

# What people read, in one place.
TEXT = {
    "python_old": "the course needs Python 3.11 or newer; make a new environment with one",
    "torch_missing": "pip install torch==2.13.0",
    "torch_cuda": "{version}, built for CUDA {cuda}",
    "torch_hip": "{version}, built for ROCm {hip}",
    "torch_cpu": "{version}, CPU build",
    "torch_cpu_on_gpu": "this build cannot use the NVIDIA GPU that is here: "
    "pip install --force-reinstall torch==2.13.0 (on Windows add --index-url https://download.pytorch.org/whl/cu130)",
    "no_gpu": "none that PyTorch can use; live CPU and recorded GPU numbers work without one",
    "driver_old": "driver {driver} is too old for this PyTorch (CUDA {cuda}): update the NVIDIA driver, "
    "or install a PyTorch built for an older CUDA",
    "no_driver": "no NVIDIA driver: nvidia-smi is not there. Without a GPU nothing is wrong; "
    "with one, install the driver from your system's packages",
    "gpu_shared": "other processes are using it ({who}): timings will be disturbed",
    "gpu_quiet": "no other process is using it",
    "triton_missing": "GPU kernels need it. Linux: pip install triton==3.7.1; Windows: pip install triton-windows; "
    "macOS: there is none, and the course runs without",
    "no_compiler": "torch.compile on the CPU needs a C++ compiler. Debian or Ubuntu: apt install g++; "
    "macOS: xcode-select --install; Windows: the Visual Studio build tools",
    "missing": "pip install {name}",
    "widgets_off": "JupyterLab does not load the widgets: pip install --force-reinstall jupyterlab_widgets",
    "summary_good": "Everything the course needs is here.",
    "summary_bad": "{count} requirement(s) missing; the lines marked with ✗ say what to do.",
    "no_torch_here": "not looked at: PyTorch is missing",
}

OLDEST_PYTHON = (3, 11)
FOUND, OPTIONAL, MISSING = "✓", "–", "✗"


@dataclass(frozen=True)
class Finding:
    """One requirement: ``mark`` is ✓ found, – absent but not needed, ✗ missing or broken."""

    mark: str
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.mark} {self.name:<22}{self.detail}"


def examine() -> list[Finding]:
    """Look at everything the course uses; starts no kernel and changes nothing."""
    findings = [_python(), _torch(), _gpu_driver(), *_gpu(), _triton(), _compiler()]
    findings += [_package(name) for name in ("jupyterlab", "ipywidgets", "matplotlib", "numba", "nbval")]
    return [*findings, _widgets_extension()]


def print_report(findings: list[Finding]) -> int:
    """Print them; 1 when something that the course cannot do without is missing."""
    for finding in findings:
        print(finding)
    missing = sum(finding.mark == MISSING for finding in findings)
    print(TEXT["summary_bad"].format(count=missing) if missing else TEXT["summary_good"])
    return 1 if missing else 0


def _python() -> Finding:
    version = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding(MISSING, "Python", f"{version}: {TEXT['python_old']}")
    return Finding(FOUND, "Python", version)


def _have(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _torch() -> Finding:
    if not _have("torch"):
        return Finding(MISSING, "PyTorch", TEXT["torch_missing"])
    import torch

    version = torch.__version__
    if torch.version.cuda:
        return Finding(FOUND, "PyTorch", TEXT["torch_cuda"].format(version=version, cuda=torch.version.cuda))
    if torch.version.hip:
        return Finding(FOUND, "PyTorch", TEXT["torch_hip"].format(version=version, hip=torch.version.hip))
    text = TEXT["torch_cpu"].format(version=version)
    if _nvidia_smi("--query-gpu=name"):
        return Finding(MISSING, "PyTorch", f"{text}: {TEXT['torch_cpu_on_gpu']}")
    return Finding(FOUND, "PyTorch", text)


def _nvidia_smi(*query: str) -> list[str]:
    """Lines of ``nvidia-smi query``; empty where there is no driver or it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", *query, "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _gpu_driver() -> Finding:
    versions = _nvidia_smi("--query-gpu=driver_version")
    if not versions:
        return Finding(OPTIONAL, "NVIDIA driver", TEXT["no_driver"])
    return Finding(FOUND, "NVIDIA driver", versions[0])


def _gpu() -> list[Finding]:
    if not _have("torch"):
        return [Finding(OPTIONAL, "GPU", TEXT["no_torch_here"])]
    import torch

    if not torch.cuda.is_available():
        if torch.version.cuda and (versions := _nvidia_smi("--query-gpu=driver_version")):
            text = TEXT["driver_old"].format(driver=versions[0], cuda=torch.version.cuda)
            return [Finding(MISSING, "GPU", text)]
        return [Finding(OPTIONAL, "GPU", TEXT["no_gpu"])]
    found = [Finding(FOUND, "GPU", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    others = [
        line for line in _nvidia_smi("--query-compute-apps=pid,process_name") if not line.startswith(f"{os.getpid()},")
    ]
    if others:
        return [*found, Finding(OPTIONAL, "GPU is shared", TEXT["gpu_shared"].format(who="; ".join(others[:4])))]
    return [*found, Finding(FOUND, "GPU is quiet", TEXT["gpu_quiet"])]


def _triton() -> Finding:
    for name in ("triton", "triton-windows"):
        try:
            return Finding(FOUND, "Triton", metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return Finding(MISSING if sys.platform == "linux" else OPTIONAL, "Triton", TEXT["triton_missing"])


def _compiler() -> Finding:
    names = ("cl",) if sys.platform == "win32" else ("g++", "clang++")
    for name in names:
        if path := shutil.which(os.environ.get("CXX") or name):
            return Finding(FOUND, "C++ compiler", path)
    return Finding(OPTIONAL, "C++ compiler", TEXT["no_compiler"])


def _package(name: str) -> Finding:
    try:
        return Finding(FOUND, name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(MISSING, name, TEXT["missing"].format(name=name))


def _widgets_extension() -> Finding:
    """Does JupyterLab find the widgets' own half, the one that runs in the browser?"""
    name = "JupyterLab widgets"
    if not _have("jupyter_core"):
        return Finding(MISSING, name, TEXT["missing"].format(name="jupyterlab"))
    from jupyter_core.paths import jupyter_path

    for folder in jupyter_path("labextensions"):
        if os.path.isdir(os.path.join(folder, "@jupyter-widgets", "jupyterlab-manager")):
            return Finding(FOUND, name, folder)
    return Finding(MISSING, name, TEXT["widgets_off"])

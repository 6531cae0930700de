"""What a person sees at the command line, on machines that lack this or that."""

import shutil
import subprocess
import sys

from oplab import doctor
from oplab.cli import main


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_this_machine_has_what_the_tests_need():
    found = by_name(doctor.examine())
    for name in ("Python", "PyTorch", "jupyterlab", "ipywidgets", "matplotlib", "numba", "nbval", "JupyterLab widgets"):
        assert found[name].mark == doctor.FOUND, found[name]


def without(monkeypatch, *absent):
    which = shutil.which
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None if name in absent else which(name))


def test_no_driver_is_no_fault(monkeypatch):
    without(monkeypatch, "nvidia-smi")
    finding = by_name(doctor.examine())["NVIDIA driver"]
    assert finding.mark == doctor.OPTIONAL
    assert "nothing is wrong" in finding.detail


def test_no_compiler_names_the_command(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    without(monkeypatch, "g++", "clang++")
    finding = by_name(doctor.examine())["C++ compiler"]
    assert finding.mark == doctor.OPTIONAL
    assert "apt install g++" in finding.detail


def test_a_cpu_build_beside_a_gpu_is_a_fault(monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda *query: ["NVIDIA H200"])
    finding = by_name(doctor.examine())["PyTorch"]
    assert finding.mark == doctor.MISSING
    assert "pip install" in finding.detail


def test_a_driver_too_old_for_the_build_is_a_fault(monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda *query: ["470.10"])
    finding = by_name(doctor.examine())["GPU"]
    assert finding.mark == doctor.MISSING
    assert "470.10" in finding.detail


def test_other_processes_on_the_gpu_are_named(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i=0: "NVIDIA H200")
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda *query: ["4242, python3"])
    assert "4242, python3" in by_name(doctor.examine())["GPU is shared"].detail


def test_an_old_python_is_a_fault(monkeypatch):
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (3, 99))
    found = doctor.examine()
    assert by_name(found)["Python"].mark == doctor.MISSING
    assert doctor.print_report(found) == 1


def test_a_missing_package_names_pip(monkeypatch):
    def absent(name):
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", absent)
    assert doctor._package("jupyterlab").detail == "pip install jupyterlab"
    assert doctor._triton().mark in (doctor.MISSING, doctor.OPTIONAL)


def test_doctor_command(capsys):
    assert main(["doctor"]) == 0
    assert "Everything the course needs is here." in capsys.readouterr().out


def test_machine_command(capsys):
    assert main(["machine", "--device", "cpu"]) == 0
    assert "memory bandwidth" in capsys.readouterr().out


def test_an_unknown_experiment_is_one_line_that_lists_them(capsys):
    assert main(["record", "nonsense"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("oplab: there is no experiment 'nonsense'")
    assert "tiles" in said
    assert said.count("\n") == 1


def test_a_bad_device_is_one_line(capsys):
    assert main(["machine", "--device", "quantum"]) == 1
    assert capsys.readouterr().err.startswith("oplab: ")


# --- what `import oplab` costs and needs

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
{code}
"""


def run_without(blocked, code):
    script = BLOCKED.format(blocked=set(blocked), code=code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


def test_import_is_cheap_in_modules():
    code = "import sys, torch; before = set(sys.modules); import oplab; print(len(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10


def test_experiments_work_without_triton():
    code = (
        "from oplab import experiments as e\n"
        "print(e.TILES.run(source='recorded').status, e.TILES.run(source='live-cpu', size=64).status)\n"
        "import torch\nfrom oplab.kernels import matmul, pointwise\n"
        "a = torch.randn(4, 4)\n"
        "try:\n    matmul.tiled(a, a)\nexcept RuntimeError as error:\n    print(error)"
    )
    done = run_without(["triton"], code)
    assert done.stdout.splitlines()[0] == "ok ok", done.stderr
    assert "needs Triton" in done.stdout


def test_machine_works_without_nvml():
    done = run_without(["pynvml"], "from oplab.doctor import examine, print_report; print_report(examine())")
    assert "Everything the course needs is here." in done.stdout, done.stderr

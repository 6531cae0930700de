"""The three lists of versions say the same."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIRECT = {r.name: r for r in map(Requirement, PROJECT["dependencies"])}
CONSTRAINTS = [
    Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
PIP_LINES = next(entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict))
CONDA_LINES = [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]
COURSE = {"jupyterlab", "torch", "ipywidgets", "matplotlib", "nbval"}


def test_the_course_packages_are_pinned():
    assert set(DIRECT) >= COURSE
    for requirement in DIRECT.values():
        assert re.fullmatch(r"==[0-9.]+", str(requirement.specifier)), requirement


def test_constraints_agree_with_the_project():
    pinned = {r.name: r for r in CONSTRAINTS}
    for name, requirement in DIRECT.items():
        assert pinned[name].specifier == requirement.specifier, name


def test_constraints_come_from_the_public_index_alone():
    for requirement in CONSTRAINTS:
        assert requirement.url is None, requirement
        assert "+" not in str(requirement.specifier), f"{requirement}: a local version exists on one machine only"
        assert str(requirement.specifier).startswith("=="), requirement


def test_constraints_serve_every_platform():
    for requirement in CONSTRAINTS:
        if requirement.name in ("triton", "nvidia-cublas"):
            assert "linux" in str(requirement.marker), requirement
    names = [
        r.name
        for r in CONSTRAINTS
        if r.marker is None or Marker(str(r.marker)).evaluate({"sys_platform": "win32", "platform_system": "Windows"})
    ]
    assert set(names) >= COURSE
    assert "triton" not in names


def test_conda_installs_the_same_pins_and_torch_from_pip():
    assert not any(line.startswith(("pytorch", "torch", "jupyterlab")) for line in CONDA_LINES)
    assert "-c constraints.txt" in PIP_LINES
    assert "-e .[test]" in PIP_LINES
    listed = {r.name: r for r in (Requirement(line) for line in PIP_LINES if not line.startswith("-"))}
    assert set(listed) >= COURSE
    for name, requirement in listed.items():
        assert requirement.specifier == DIRECT[name].specifier, name
        assert requirement.marker == DIRECT[name].marker, name


def test_conda_python_is_one_the_project_takes():
    (line,) = [line for line in CONDA_LINES if line.startswith("python=")]
    from packaging.specifiers import SpecifierSet

    assert line.removeprefix("python=") + ".0" in SpecifierSet(PROJECT["requires-python"])

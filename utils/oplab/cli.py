"""The command line: ``oplab doctor``, ``oplab machine``, ``oplab profile``, ``oplab record``."""

from __future__ import annotations

import argparse
import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

# What people read, in one place.
TEXT = {
    "doctor": "say what this computer has, what is missing, and how to get it",
    "machine": "measure what this computer can do, or show what was measured",
    "record": "measure all settings of an experiment and keep them",
    "experiment": "tiles, fusion, …, or profiles; another name lists them all",
    "refresh": "measure again instead of reading the cache",
    "device": "cuda, cuda:1 or cpu (default: the GPU where there is one)",
    "name": "folder of the recording (default: from the device's name)",
    "folder": "where recordings are kept (default: inside the package)",
    "restart": "forget what an earlier recording holds",
    "profile": "where the time of your training step goes, and which lever to pull",
    "target": "file.py:function; the function takes nothing and returns a loss (or any tensor)",
    "forward": "profile the forward alone",
    "no_target": "{target!r} is not file.py:function",
    "no_file": "there is no file {path}",
    "no_function": "{path} has no function {name!r}; it has {have}",
    "advice": "Levers, the one with most to gain first:",
    "no_advice": "No lever stands out: the step is near what this machine can do.",
    "stopped": "stopped; what was measured is kept",
    "wrote": "wrote {path}",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status (1: something required is missing, 2: bad usage)."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print(f"\noplab: {TEXT['stopped']}", file=sys.stderr)
        return 130
    except (LookupError, ValueError, RuntimeError, OSError) as error:
        # str() of a KeyError is its message in quotes.
        print(f"oplab: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    from oplab import __version__

    parser = argparse.ArgumentParser(prog="oplab", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")

    doctor = commands.add_parser("doctor", help=TEXT["doctor"])
    doctor.set_defaults(run=_doctor)

    show = commands.add_parser("machine", help=TEXT["machine"])
    show.add_argument("--device", help=TEXT["device"])
    show.add_argument("--refresh", action="store_true", help=TEXT["refresh"])
    show.set_defaults(run=_machine)

    profile = commands.add_parser("profile", help=TEXT["profile"])
    profile.add_argument("target", help=TEXT["target"])
    profile.add_argument("--forward", action="store_true", help=TEXT["forward"])
    profile.set_defaults(run=_profile)

    record = commands.add_parser("record", help=TEXT["record"])
    record.add_argument("experiment", help=TEXT["experiment"])
    record.add_argument("--name", help=TEXT["name"])
    record.add_argument("--folder", type=Path, help=TEXT["folder"])
    record.add_argument("--restart", action="store_true", help=TEXT["restart"])
    record.set_defaults(run=_record)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from oplab.doctor import examine, print_report

    return print_report(examine())


def _machine(options: argparse.Namespace) -> int:
    from oplab.machine import machine

    print(machine(options.device, refresh=options.refresh))
    return 0


def _record(options: argparse.Namespace) -> int:
    from oplab import experiments
    from oplab.experiments.recorder import record
    from oplab.experiments.recording import FOLDER

    if options.experiment == "profiles":
        return _record_profiles(options.folder or FOLDER, options.name)
    path = record(
        experiments.by_name(options.experiment),
        name=options.name,
        folder=options.folder or FOLDER,
        restart=options.restart,
    )
    print(TEXT["wrote"].format(path=path))
    return 0


def _record_profiles(folder: Path, name: str | None) -> int:
    from oplab.experiments.recorder import slug
    from oplab.machine import machine
    from oplab.profiler import recorded

    here = machine()
    for path in recorded.record(folder / (name or slug(here.name)), here.kind):
        print(TEXT["wrote"].format(path=path))
    return 0


def _profile(options: argparse.Namespace) -> int:
    from oplab.profiler import profile

    found = profile(_function(options.target), backward=not options.forward)
    print(found)
    advice = found.advice()
    print(TEXT["advice"] if advice else TEXT["no_advice"])
    for line in advice:
        print(f"- {line}")
    return 0


def _function(target: str) -> Callable[[], object]:
    """The function that ``file.py:function`` names; ValueError says what is missing."""
    file, _, name = target.rpartition(":")
    if not file or not name.isidentifier():
        raise ValueError(TEXT["no_target"].format(target=target))
    path = Path(file)
    if not path.is_file():
        raise ValueError(TEXT["no_file"].format(path=path))
    sys.path.insert(0, str(path.parent.resolve()))  # so that the script finds its neighbours
    names = runpy.run_path(str(path), run_name="oplab_profile")
    if not callable(names.get(name)):
        have = ", ".join(key for key, value in names.items() if inspect.isfunction(value)) or "none"
        raise ValueError(TEXT["no_function"].format(path=path, name=name, have=have))
    return names[name]


if __name__ == "__main__":
    sys.exit(main())

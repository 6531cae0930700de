"""The command line: ``oplab doctor``, ``oplab machine``, ``oplab record``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# What people read, in one place.
TEXT = {
    "doctor": "say what this computer has, what is missing, and how to get it",
    "machine": "measure what this computer can do, or show what was measured",
    "record": "measure all settings of an experiment and keep them",
    "refresh": "measure again instead of reading the cache",
    "device": "cuda, cuda:1 or cpu (default: the GPU where there is one)",
    "name": "folder of the recording (default: from the device's name)",
    "folder": "where recordings are kept (default: inside the package)",
    "restart": "forget what an earlier recording holds",
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
    except (ValueError, RuntimeError, OSError) as error:
        print(f"oplab: {error}", file=sys.stderr)
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

    record = commands.add_parser("record", help=TEXT["record"])
    record.add_argument("experiment", choices=("traps", "tiles", "fusion"))
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

    path = record(
        experiments.ALL[options.experiment], name=options.name, folder=options.folder or FOLDER, restart=options.restart
    )
    print(TEXT["wrote"].format(path=path))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Results measured earlier on a named machine, kept as JSON, never interpolated."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from oplab.experiments.result import RECORDED, Result
from oplab.machine import Machine, write_atomically

SCHEMA = 1
FOLDER = Path(__file__).parent.parent / "recordings"

# What people read, in one place.
TEXT = {
    "absent": "there is no recording of {experiment} named {name!r}; there are: {have}",
    "broken": "the recording {path} cannot be read: {why}. Make it again with `oplab record {experiment}`, "
    "or restore the file from the repository",
    "schema": "it was written by another version (schema {found!r}, this one reads {want})",
    "truncated": "it is not complete JSON ({why})",
}


class RecordingError(ValueError):
    """A recording that is missing, truncated or of another schema; the message names the file."""


def _freeze(knobs: dict[str, object]) -> tuple:
    return tuple(sorted(knobs.items()))


@dataclass(frozen=True)
class Recording:
    """``results`` of one experiment on one machine, with what they depend on."""

    experiment: str
    machine: Machine
    versions: dict[str, str]
    date: str
    commit: str
    results: tuple[Result, ...]

    @cached_property
    def _by_knobs(self) -> dict[tuple, Result]:
        return {_freeze(result.knobs): result for result in self.results}

    def find(self, knobs: dict[str, object]) -> Result | None:
        """The result of exactly this setting, or None."""
        return self._by_knobs.get(_freeze(knobs))

    def where(self, **knobs: object) -> list[Result]:
        """All results whose knobs have these values."""
        wanted = knobs.items()
        return [r for r in self.results if all(r.knobs.get(name) == value for name, value in wanted)]

    def values(self, knob: str) -> list[object]:
        """The values of one knob that were recorded, in order of first appearance."""
        return list(dict.fromkeys(result.knobs[knob] for result in self.results))

    def __repr__(self) -> str:
        good = sum(result.ok for result in self.results)
        libraries = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.experiment}: {len(self.results)} settings ({good} ran) on {self.machine.name}, "
            f"driver {self.machine.driver}, {libraries}, {self.date}, commit {self.commit}"
        )


def names(experiment: str) -> list[str]:
    """The machines on which this experiment was recorded."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{experiment}.json"))


def load(experiment: str, name: str, folder: Path = FOLDER) -> Recording:
    """Read a recording; `RecordingError` says what is wrong with it and what to do."""
    path = folder / name / f"{experiment}.json"
    if not path.exists():
        have = ", ".join(sorted(p.parent.name for p in folder.glob(f"*/{experiment}.json"))) or "none"
        raise RecordingError(TEXT["absent"].format(experiment=experiment, name=name, have=have))
    try:
        return _parse(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        why = TEXT["truncated"].format(why=error)
    except (KeyError, TypeError, AttributeError) as error:
        why = f"incomplete: {error!r}"
    except ValueError as error:
        why = str(error)
    raise RecordingError(TEXT["broken"].format(path=path, why=why, experiment=experiment))


def _parse(data: dict) -> Recording:
    if data.get("schema") != SCHEMA:
        raise ValueError(TEXT["schema"].format(found=data.get("schema"), want=SCHEMA))
    machine = Machine.from_dict(data["machine"])
    common = {
        "experiment": data["experiment"],
        "source": RECORDED,
        "machine": machine.name,
        "date": data["date"],
    }
    results = tuple(
        Result(**common, **{**row, "samples": tuple(row.get("samples", ())), "notes": tuple(row.get("notes", ()))})
        for row in data["results"]
    )
    return Recording(data["experiment"], machine, data["versions"], data["date"], data["commit"], results)


def save(path: Path, *, experiment: str, machine: Machine, date: str, commit: str, results: Iterable[Result]) -> None:
    """Write a recording, one line per setting so that a diff is readable; all of it or nothing."""
    head = {
        "schema": SCHEMA,
        "experiment": experiment,
        "machine": machine.as_dict(),
        "versions": machine.versions,
        "date": date,
        "commit": commit,
    }
    rows = ",\n".join(json.dumps(result.as_dict(), separators=(",", ":")) for result in results)
    text = json.dumps(head, indent=1)[:-2] + f',\n "results": [\n{rows}\n]\n}}\n'
    write_atomically(path, text)

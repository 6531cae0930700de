"""A question with knobs: `Experiment.run(**knobs) -> Result`, live or from a recording."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from oplab import timing
from oplab.compiler import Compiled
from oplab.compiler.targets import Target
from oplab.experiments import recording as recordings
from oplab.experiments.recording import Recording, RecordingError
from oplab.experiments.result import INVALID, LIVE_CPU, LIVE_GPU, NOT_RECORDED, RECORDED, SOURCES, UNAVAILABLE, Result
from oplab.hardware import cpu_name
from oplab.machine import short_dtype

DEFAULT_RECORDING = "nvidia-h200"

# What people read, in one place.
TEXT = {
    "no_knob": "{experiment} has no knob {name!r}; its knobs are {have}.{hint}",
    "no_source": "unknown source {source!r}; choose one of {have}",
    "no_gpu": "this needs a CUDA GPU, and PyTorch sees none here; choose 'recorded' or 'live-cpu'",
    "not_recorded": "this setting was not recorded on {machine}; measure it live, or move a knob back",
    "choice": "{label}: {value!r} is not one of {have}",
    "whole": "{label}: {value!r} is not a whole number of at least {least}",
    "power": "{label}: {value} is not a power of two; a Triton block needs 16, 32, 64, …",
}


@dataclass(frozen=True)
class Knob:
    """One thing the learner can turn.

    ``gpu`` and ``cpu`` are the values that an explorer offers for each kind of device; an empty
    ``cpu`` means the knob has no meaning there. ``check`` turns a value into its canonical form or
    raises ValueError with a plain sentence; without it, only offered values are accepted.
    """

    name: str
    label: str
    help: str
    gpu: tuple
    default: object
    cpu: tuple = ()
    cpu_default: object = None
    check: Callable[[Knob, object, str], object] | None = None

    def choices(self, source: str) -> tuple:
        return self.cpu if source == LIVE_CPU else self.gpu

    def initial(self, source: str) -> object:
        return self.cpu_default if source == LIVE_CPU else self.default

    def canonical(self, value: object, source: str) -> object:
        return (self.check or offered)(self, value, source)


def offered(knob: Knob, value: object, source: str) -> object:
    """A check for knobs with a fixed list: one of the values that an explorer offers."""
    if value not in knob.choices(source):
        have = ", ".join(map(str, knob.choices(source)))
        raise ValueError(TEXT["choice"].format(label=knob.name, value=value, have=have))
    return value


def whole_number(knob: Knob, value: object, source: str, least: int = 1) -> int:
    """A check for sizes and counts: any whole number from ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(TEXT["whole"].format(label=knob.name, value=value, least=least))
    return value


def block_size(knob: Knob, value: object, source: str) -> int:
    """A check for tile sides: a power of two from 16 for Triton, any whole number on a CPU."""
    size = whole_number(knob, value, source)
    if source != LIVE_CPU:
        whole_number(knob, value, source, least=16)
        if size & (size - 1):
            raise ValueError(TEXT["power"].format(label=knob.name, value=size))
    return size


def dtype_name(knob: Knob, value: object, source: str) -> str:
    """A check for dtypes: "bf16", "bfloat16" and torch.bfloat16 are one."""
    return str(offered(knob, short_dtype(value), source))


class Experiment:
    """A question, its knobs and how to answer it. One subclass per experiment, one file each.

    A subclass sets ``name``, ``title``, ``knobs`` and writes ``measure``; ``settings`` lists what
    `oplab record` goes through. It may refuse combinations of knobs in ``check``.
    """

    name: str
    title: str
    knobs: tuple[Knob, ...]

    # -- for subclasses

    def measure(self, knobs: dict, source: str, device: torch.device) -> Result:
        """Measure one setting on ``device``. Knobs are complete and canonical."""
        raise NotImplementedError

    def settings(self, source: str) -> Iterator[dict]:
        """The settings that a recording holds, those that share inputs next to each other."""
        raise NotImplementedError

    def compile(self, knobs: dict) -> None:
        """Compile what one GPU setting needs, without running it; recordings do this in parallel."""

    def distinct_kernels(self, settings: list[dict]) -> list[dict]:
        """One setting for each kernel that has to be compiled."""
        return settings

    def compiled(self, knobs: dict, source: str, target: Target) -> tuple[Compiled, int] | None:
        """The Triton kernel of one setting compiled for ``target`` and how many blocks of it are launched.

        No GPU is needed. None for settings that run no Triton kernel of this course.
        """
        return None

    def check(self, knobs: dict, source: str) -> None:
        """ValueError for combinations that mean nothing."""

    # -- for everybody

    def run(self, *, source: str | None = None, recording: str = DEFAULT_RECORDING, **knobs: object) -> Result:
        """Answer the question for these knobs; those left out take their defaults.

        ``source`` is "live-gpu", "live-cpu" or "recorded"; by default live on the GPU where there
        is one, else from the recording. A setting that cannot run is a `Result` with a status and a
        reason; only an unknown knob name or source raises.
        """
        source = source or default_source()
        if source not in SOURCES:
            raise ValueError(TEXT["no_source"].format(source=source, have=", ".join(SOURCES)))
        self._known_names(knobs)
        try:
            setting = self.complete(knobs, source)
        except ValueError as error:
            return self.blank({**self.defaults(source), **knobs}, source).failed(INVALID, str(error))
        if source == RECORDED:
            return self._read(setting, recording)
        if source == LIVE_GPU and not torch.cuda.is_available():
            return self.blank(setting, source).failed(UNAVAILABLE, TEXT["no_gpu"])
        return self.measure(setting, source, timing.pick_device("cuda" if source == LIVE_GPU else "cpu"))

    def recording(self, name: str = DEFAULT_RECORDING) -> Recording:
        """What was recorded on the machine ``name``; `RecordingError` says what is wrong with it."""
        return _load_once(self.name, name)

    def knobs_of(self, source: str) -> tuple[Knob, ...]:
        """The knobs that mean something for this source."""
        return tuple(knob for knob in self.knobs if knob.choices(source))

    def defaults(self, source: str) -> dict:
        return {knob.name: knob.initial(source) for knob in self.knobs_of(source)}

    def complete(self, knobs: dict, source: str) -> dict:
        """Defaults filled in, every value in canonical form; ValueError says what is wrong."""
        offered = {knob.name: knob for knob in self.knobs_of(source)}
        setting = self.defaults(source)
        for name, value in knobs.items():
            if name in offered:  # a knob that means nothing here (num_warps on a CPU) is left out
                setting[name] = offered[name].canonical(value, source)
        self.check(setting, source)
        return setting

    def blank(self, knobs: dict, source: str) -> Result:
        """A result without numbers, to be filled in or marked as failed."""
        if source == LIVE_GPU and torch.cuda.is_available():
            machine = torch.cuda.get_device_name()
        elif source == LIVE_CPU:
            machine = cpu_name()
        else:
            machine = "no GPU" if source == LIVE_GPU else "no recording"
        return Result(self.name, knobs, source, machine, datetime.date.today().isoformat())

    def _known_names(self, knobs: dict) -> None:
        have = [knob.name for knob in self.knobs]
        for name in knobs:
            if name not in have:
                close = difflib.get_close_matches(name, have, 1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(
                    TEXT["no_knob"].format(experiment=self.name, name=name, have=", ".join(have), hint=hint)
                )

    def _read(self, setting: dict, name: str) -> Result:
        try:
            recorded = self.recording(name)
        except RecordingError as error:
            return self.blank(setting, RECORDED).failed(UNAVAILABLE, str(error))
        found = recorded.find(setting)
        if found is not None:
            return found
        reason = TEXT["not_recorded"].format(machine=recorded.machine.name)
        return Result(self.name, setting, RECORDED, recorded.machine.name, recorded.date, NOT_RECORDED, reason)


def default_source() -> str:
    return LIVE_GPU if torch.cuda.is_available() else RECORDED


@lru_cache(maxsize=32)
def _load_once(experiment: str, name: str) -> Recording:
    return recordings.load(experiment, name)

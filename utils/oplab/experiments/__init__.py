"""Questions with knobs. One file each; `ALL` lists them, `by_name` finds one."""

from oplab.experiments.backward import BACKWARD
from oplab.experiments.experiment import Experiment, Knob
from oplab.experiments.fusion import FUSION
from oplab.experiments.gather import GATHER
from oplab.experiments.operators import OPERATORS
from oplab.experiments.recording import Recording, RecordingError
from oplab.experiments.result import LIVE_CPU, LIVE_GPU, RECORDED, SOURCES, Result
from oplab.experiments.softmax import SOFTMAX
from oplab.experiments.tiles import TILES
from oplab.experiments.traps import TRAPS

ALL: tuple[Experiment, ...] = (TRAPS, OPERATORS, TILES, FUSION, BACKWARD, GATHER, SOFTMAX)


def by_name(name: str) -> Experiment:
    """The experiment of that name; KeyError names those there are."""
    for experiment in ALL:
        if experiment.name == name:
            return experiment
    raise KeyError(f"there is no experiment {name!r}; there are {', '.join(e.name for e in ALL)}")


__all__ = [
    "ALL",
    "BACKWARD",
    "FUSION",
    "GATHER",
    "LIVE_CPU",
    "LIVE_GPU",
    "OPERATORS",
    "RECORDED",
    "SOFTMAX",
    "SOURCES",
    "TILES",
    "TRAPS",
    "Experiment",
    "Knob",
    "Recording",
    "RecordingError",
    "Result",
    "by_name",
]

"""Questions with knobs. One file each; `ALL` lists them by name."""

from oplab.experiments.experiment import Experiment, Knob
from oplab.experiments.fusion import FUSION
from oplab.experiments.operators import OPERATORS
from oplab.experiments.recording import Recording, RecordingError
from oplab.experiments.result import LIVE_CPU, LIVE_GPU, RECORDED, SOURCES, Result
from oplab.experiments.tiles import TILES
from oplab.experiments.traps import TRAPS

ALL: dict[str, Experiment] = {experiment.name: experiment for experiment in (TRAPS, OPERATORS, TILES, FUSION)}

__all__ = [
    "ALL",
    "FUSION",
    "LIVE_CPU",
    "LIVE_GPU",
    "OPERATORS",
    "RECORDED",
    "SOURCES",
    "TILES",
    "TRAPS",
    "Experiment",
    "Knob",
    "Recording",
    "RecordingError",
    "Result",
]

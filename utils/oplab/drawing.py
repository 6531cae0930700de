"""Figures without pyplot: colours, a figure, and a picture that a notebook shows.

pyplot keeps global state, and a widget's callback runs on another thread than the cells, so every
picture of the course is drawn on a `Figure` of its own. White paper and dark ink; the style sheet
of the explorers turns the light round in a dark theme. Colours: Okabe and Ito's set, which
colour-blind readers can tell apart.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, FAINT, BLUE, ORANGE, GREEN = "#222222", "#767676", "#0072B2", "#D55E00", "#009E73"
SKY, PURPLE = "#56B4E9", "#AA4499"
DPI = 120
lock = threading.Lock()  # matplotlib shares its font and path caches between figures


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of ``width`` x ``height`` inches with one frameless axes."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(colors=INK, labelsize=9, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure, axes


def to_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Picture:
    """A PNG that a notebook shows, with ``text`` for readers who cannot see it."""

    png: bytes
    text: str = ""

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return self.text or f"<picture, {len(self.png):,} bytes>"

"""One still picture for viewers that run nothing: a phone, a code host, a printed page."""

from __future__ import annotations

import io

from matplotlib.figure import Figure
from matplotlib.image import imread

from oplab.drawing import DPI, FAINT, to_png


def side_by_side(pictures: list[bytes], caption: str) -> bytes:
    """The PNGs next to each other on white, with where the numbers come from below."""
    images = [imread(io.BytesIO(png)) for png in pictures]
    height = max(image.shape[0] for image in images) + 30
    width = sum(image.shape[1] for image in images)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    left = 0
    for image in images:
        figure.figimage(image, xo=left, yo=height - image.shape[0])
        left += image.shape[1]
    figure.text(0.5, 6 / height, caption, ha="center", fontsize=9, color=FAINT)
    return to_png(figure)

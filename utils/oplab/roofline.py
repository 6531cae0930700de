"""Where an operator sits against what this machine can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from oplab import drawing
from oplab.drawing import BLUE, FAINT, GREEN, INK, ORANGE, SKY
from oplab.machine import Machine, short_dtype

# Ceilings are medians of a noisy quantity on a chip whose clock follows its temperature: a kernel
# may honestly beat one by some per cent. Beyond this, the number is wrong or came from a cache.
TOLERANCE = 1.10

TEXT = {
    "faster": "{share:.0%} of the measured {ceiling}: cache-hot or wrong, not a success",
    "bandwidth": "copy bandwidth ({value:.3g} TB/s)",
    "peak": "{dtype} peak ({value:.3g} TFLOP/s)",
    "x": "arithmetic intensity (FLOP per byte)",
    "slope": "copy: {value:,.0f} GB/s",
    "l2": "L2 cache (dashed): {value:,.0f} GB/s",
    "ceiling": "{dtype}: {value}",
    "picture": "Roofline of {name}, measured {date}",
}


def bandwidth_share(nbytes: float, seconds: float, ceiling: float) -> float:
    """Compulsory bytes per second over ``ceiling`` (B/s)."""
    return nbytes / seconds / ceiling


def flops_share(flops: float, seconds: float, ceiling: float) -> float:
    """FLOP per second over ``ceiling`` (FLOP/s)."""
    return flops / seconds / ceiling


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """The roofline: FLOP/s that an operator of ``intensity`` (FLOP/B) can reach at most.

    Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009: min(peak, bandwidth x intensity).
    """
    return min(peak, bandwidth * intensity)


class Bound(Enum):
    """What limits an operator: arithmetic, memory, or getting it started."""

    COMPUTE = "compute"
    MEMORY = "memory"
    OVERHEAD = "overhead"


@dataclass(frozen=True)
class Place:
    """Where an operator sits: its floor in seconds, what sets it, and how close it came."""

    bound: Bound
    floor_seconds: float
    efficiency: float | None  # floor over measured; None where nothing was measured


def floor_seconds(
    machine: Machine, *, matrix_flops: float = 0, vector_flops: float = 0, nbytes: float = 0, dtype: str = "fp32"
) -> tuple[float, float]:
    """(seconds of arithmetic, seconds of memory) at this machine's measured ceilings.

    Matrix FLOPs run at the peak of ``dtype``, vector FLOPs at the fp32 peak. A dtype without a
    measured peak (integers, float64 here) is held against fp32.
    """
    fp32 = machine.peak("fp32")
    arithmetic = matrix_flops / machine.peaks.get(short_dtype(dtype), fp32) + vector_flops / fp32
    return arithmetic, nbytes / machine.bandwidth


def classify(
    machine: Machine,
    *,
    matrix_flops: float = 0,
    vector_flops: float = 0,
    nbytes: float = 0,
    dtype: str = "fp32",
    seconds: float | None = None,
    launch_seconds: float = 0.0,
) -> Place:
    """Which ceiling an operator meets first.

    It is overhead-bound when its work on the device, measured (``seconds``) or at best (its floor), is
    shorter than ``launch_seconds``, the time that the host needs to start it.
    """
    arithmetic, memory = floor_seconds(
        machine, matrix_flops=matrix_flops, vector_flops=vector_flops, nbytes=nbytes, dtype=dtype
    )
    floor = max(arithmetic, memory)
    if (floor if seconds is None else seconds) < launch_seconds:
        bound = Bound.OVERHEAD
    else:
        bound = Bound.COMPUTE if arithmetic > memory else Bound.MEMORY
    return Place(bound, floor, floor / seconds if seconds else None)


def faster_than_ceiling(
    seconds: float, machine: Machine, *, nbytes: float = 0, flops: float = 0, dtype: str | None = None
) -> str | None:
    """A plain sentence when ``seconds`` beats what the machine was measured to do, else None."""
    if nbytes:
        share = bandwidth_share(nbytes, seconds, machine.bandwidth)
        if share > TOLERANCE:
            name = TEXT["bandwidth"].format(value=machine.bandwidth / 1e12)
            return TEXT["faster"].format(share=share, ceiling=name)
    if flops and dtype in machine.peaks:
        share = flops_share(flops, seconds, machine.peaks[dtype])
        if share > TOLERANCE:
            name = TEXT["peak"].format(dtype=dtype, value=machine.peaks[dtype] / 1e12)
            return TEXT["faster"].format(share=share, ceiling=name)
    return None


def plot(*machines: Machine, points: Sequence[tuple[str, float, float]] = ()) -> drawing.Picture:
    """The rooflines of one or several machines, as measured; ``points`` are (name, FLOP/B, FLOP/s).

    With several machines, each has one colour; with one, each dtype has. Labels stand at the right end,
    nearly equal ceilings share one.
    """
    colours = (ORANGE, GREEN, SKY, BLUE, INK)
    with drawing.lock:
        figure, axes = drawing.new_figure(7.2, 3.8 if len(machines) == 1 else 4.6)
        words = []
        for number, machine in enumerate(machines):
            one_colour = colours[number % len(colours)] if len(machines) > 1 else None
            words.append(_draw_machine(axes, machine, one_colour or colours))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([2.0**p for p in range(-4, 14, 2)], [f"{2.0**p:g}" for p in range(-4, 14, 2)])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: _flops(value))
        axes.grid(True, color="#DDDDDD", linewidth=0.6)
        axes.set_xlabel(TEXT["x"], fontsize=9, color=INK)
        names = " and ".join(m.name for m in machines)
        title = TEXT["picture"].format(name=names, date=max(m.date for m in machines))
        figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
        figure.draw_without_rendering()  # so that data can be turned into pixels
        _draw_points(axes, points)
        return drawing.Picture(drawing.to_png(figure), f"{title}: {'; '.join(words)}")


LOWEST, HIGHEST = 2.0**-4, 2.0**13  # FLOP/B shown


def _draw_machine(axes: Axes, machine: Machine, colours: str | Sequence[str]) -> str:
    """Slope, ceilings, ridges and labels of one machine; returns the same in words."""
    ranked = sorted(machine.peaks, key=lambda dtype: machine.peaks[dtype])
    for number, dtype in enumerate(ranked):
        peak = machine.peaks[dtype]
        colour = colours if isinstance(colours, str) else colours[number % len(colours)]
        axes.plot([machine.balance(dtype), HIGHEST], [peak, peak], color=colour, linewidth=2)
        axes.plot(machine.balance(dtype), peak, "o", color=colour, markersize=5)
    for group in _neighbours(machine.peaks):
        label = TEXT["ceiling"].format(dtype=", ".join(group), value=", ".join(_flops(machine.peaks[d]) for d in group))
        middle = (max(machine.peaks[d] for d in group) * min(machine.peaks[d] for d in group)) ** 0.5
        axes.annotate(
            label, (HIGHEST, middle), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, color=INK
        )
    top = machine.balance(ranked[-1])
    slope_colour = colours if isinstance(colours, str) else FAINT
    axes.plot([LOWEST, top], [machine.bandwidth * LOWEST, machine.bandwidth * top], color=slope_colour, linewidth=2)
    slope = TEXT["slope"].format(value=machine.bandwidth / 1e9)
    where = (HIGHEST, machine.bandwidth)  # in the margin, where no point is
    axes.annotate(slope, where, xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, color=INK)
    if machine.l2_bandwidth:
        peak = machine.peaks[ranked[-1]]
        ends = [LOWEST, peak / machine.l2_bandwidth]
        axes.plot(ends, [machine.l2_bandwidth * LOWEST, peak], color=slope_colour, linewidth=1.2, linestyle="--")
        l2 = TEXT["l2"].format(value=machine.l2_bandwidth / 1e9)
        above = (5, 13)
        axes.annotate(l2, where, xytext=above, textcoords="offset points", va="center", fontsize=9, color=INK)
        slope += f"; {l2}"
    ceilings = ", ".join(TEXT["ceiling"].format(dtype=d, value=_flops(p)) for d, p in machine.peaks.items())
    return f"{slope}; {ceilings}"


def _draw_points(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Points, each with its name at the place around it that hides least."""
    for _, intensity, rate in points:
        axes.plot(intensity, rate, "D", color=BLUE, markersize=6)
    pixel = drawing.DPI / 72
    markers: Any = axes.transData.transform([point[1:] for point in points]) / pixel if points else []
    levels = [heights[0] for heights in (np.asarray(line.get_ydata()) for line in axes.lines) if len(set(heights)) == 1]
    lines = [axes.transData.transform((1, level))[1] / pixel for level in levels]
    names: list[tuple[float, float, float]] = []  # left, right, middle of names, in points
    for (name, intensity, rate), (x, y) in sorted(zip(points, markers, strict=True), key=lambda pair: pair[0][1]):
        width = 5.2 * len(name)  # of nine-point letters, near enough
        # On the right of the picture stand the ceilings' labels.
        sides = (-7.0 - width, 7.0) if intensity > 512 else (7.0, -7.0 - width)
        places = [(dx, dy) for dx in sides for dy in (0, -9, 9, -21, 21)]

        hidden = []
        for dx, dy in places:
            left, right, middle = x + dx, x + dx + width, y + dy
            over_names = sum(right > l and left < r and abs(middle - m) < 11 for l, r, m in names)
            over_markers = sum(left - 4 < px < right + 4 and abs(middle - py) < 9 for px, py in markers)
            over_lines = sum(abs(middle - line) < 5 for line in lines)
            hidden.append(10 * over_names + 4 * over_markers + over_lines + abs(dy) / 20 + (dx != sides[0]))
        dx, dy = places[hidden.index(min(hidden))]
        names.append((x + dx, x + dx + width, y + dy))
        at: dict[str, Any] = {"xytext": (dx, dy), "textcoords": "offset points", "va": "center"}
        axes.annotate(name, (intensity, rate), fontsize=9, color=BLUE, **at)


def _neighbours(peaks: dict[str, float]) -> list[list[str]]:
    """Dtypes whose ceilings lie within 30 % share one label, so that labels never overlap."""
    groups: list[list[str]] = []
    for dtype in sorted(peaks, key=lambda name: peaks[name]):
        if groups and peaks[dtype] < 1.3 * peaks[groups[-1][0]]:
            groups[-1].append(dtype)
        else:
            groups.append([dtype])
    return groups


def _flops(value: float) -> str:
    for unit, scale in (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9)):
        if value >= scale * 0.9995:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e6:.3g} MFLOP/s"

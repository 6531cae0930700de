"""The pictures of the explorers, as PNG bytes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from oplab import drawing
from oplab.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, new_figure, to_png
from oplab.experiments import LIVE_CPU, RECORDED, Result
from oplab.experiments import result as statuses
from oplab.timing import seconds

# What people read, in one place.
TEXT = {
    "this": "this setting",
    "peak": "measured peak",
    "rate": "TFLOP/s",
    "gflops": "GFLOP/s",
    "map": "{unit} by tile",
    "cannot": "does not\nfit",
    "bad": "failed",
    "key": "outlined: recorded   filled: measured here   thick: now",
    "copy": "a copy of the same bytes",
    "share": "share of the speed of a copy of the same bytes",
    "size": "size (the arrays are size × size)",
    "columns": "columns of a row",
    "nothing": "nothing measured yet",
}


# The same value has the same colour in every picture.
COLOURS = {
    "eager": ORANGE, "compiled": GREEN, "triton": BLUE, "numba": BLUE,
    "torch": INK, "three_pass": PURPLE, "online": SKY, "fused": BLUE,
    "in order": BLUE, "sorted": GREEN, "random": ORANGE, "few rows": INK,
}  # fmt: skip


def _unit(source: str) -> tuple[float, str]:
    return (1e9, TEXT["gflops"]) if source == LIVE_CPU else (1e12, TEXT["rate"])


def rate_bars(result: Result) -> bytes:
    """This setting, the vendor library and the measured peak, in FLOP/s."""
    scale, unit = _unit(result.source)
    bars: list[tuple[str, float, str, str]] = []
    if result.rate is not None:
        bars.append((TEXT["this"], result.rate / scale, BLUE, seconds(result.seconds or 0)))
    if result.baseline_seconds:
        rate = result.flops / result.baseline_seconds / scale
        bars.append((result.baseline, rate, ORANGE, seconds(result.baseline_seconds)))
    if result.flops_fraction:
        bars.append((TEXT["peak"], (result.rate or 0) / result.flops_fraction / scale, FAINT, ""))
    with drawing.lock:
        figure, axes = new_figure(4.2, 2.3)
        if not bars:
            return _empty(figure, axes)
        top = max(value for _, value, _, _ in bars)
        for row, (name, value, colour, note) in enumerate(reversed(bars)):
            axes.barh(row, value, color=colour, height=0.55)
            axes.text(0, row + 0.32, name, fontsize=9, color=INK, va="bottom")
            label = f"{value:,.3g}" + (f"  ({note})" if note else "")
            inside = value > 0.6 * top
            axes.text(
                value - 0.01 * top if inside else value + 0.01 * top, row, label,
                ha="right" if inside else "left", va="center", fontsize=10, color="white" if inside else INK,
            )  # fmt: skip
        axes.set(xlim=(0, top), ylim=(-0.4, len(bars) - 0.1), yticks=[], xticks=[])
        axes.set_xlabel(unit, fontsize=9, color=INK)
        return to_png(figure)


def _empty(figure: Figure, axes: Axes) -> bytes:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, TEXT["nothing"], ha="center", va="center", color=FAINT, transform=axes.transAxes)
    return to_png(figure)


def tile_map(results: Iterable[Result], rows: tuple, columns: tuple, now: Result) -> bytes:
    """block_m down, block_n across; outlined cells were recorded, filled ones measured here."""
    scale, unit = _unit(now.source)
    cells = {(r.knobs["block_m"], r.knobs["block_n"]): r for r in results}
    best = max((r.rate for r in cells.values() if r.rate), default=1.0)
    colour_of = colormaps["cividis"]
    with drawing.lock:
        figure, axes = new_figure(4.2, 3.4)
        for (y, m), (x, n) in product(enumerate(rows), enumerate(columns)):
            result = cells.get((m, n))
            if result is None:
                axes.plot(x, y, ".", color=FAINT, markersize=4)  # not explored yet
                continue
            current = (m, n) == (now.knobs.get("block_m"), now.knobs.get("block_n"))
            _cell(axes, x, y, result, scale, result.rate / best if result.rate else 0.0, colour_of, current)
        axes.set(xlim=(-0.55, len(columns) - 0.45), ylim=(len(rows) - 0.45, -0.55))
        axes.set_xticks(range(len(columns)), [str(value) for value in columns])
        axes.set_yticks(range(len(rows)), [str(value) for value in rows])
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel("block_n", fontsize=9, color=INK)
        axes.set_ylabel("block_m", fontsize=9, color=INK)
        figure.supxlabel(f"{TEXT['map'].format(unit=unit)}   {TEXT['key']}", fontsize=7.5, color=FAINT)
        return to_png(figure)


def _cell(axes: Axes, x: int, y: int, result: Result, scale: float, share: float, colour_of, current: bool) -> None:  # type: ignore[no-untyped-def]
    colour = colour_of(share) if result.rate else FAINT
    filled = result.source != RECORDED and result.rate
    side = 0.86
    box = Rectangle((x - side / 2, y - side / 2), side, side, facecolor=colour if filled else "white",
                    edgecolor=INK if current else colour, linewidth=3.5 if current else 2)  # fmt: skip
    axes.add_patch(box)
    if result.rate:
        text, size = f"{result.rate / scale:,.0f}", 9.5
    else:
        text, size = TEXT["cannot" if result.status == statuses.OUT_OF_RESOURCES else "bad"], 6.5
    dark = filled and share < 0.55
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color="white" if dark else INK)


def time_bars(results: list[Result], now: Result, by: str) -> bytes:
    """Time for each value of the knob ``by``, and of a copy that moves as many bytes."""
    with drawing.lock:
        figure, axes = new_figure(4.2, 2.6)
        ran = [r for r in results if r.seconds]
        if not ran:
            return _empty(figure, axes)
        ran.sort(key=lambda r: -(r.seconds or 0))
        top = max(r.seconds or 0 for r in ran)
        lanes = max(len(ran), 3)
        for row, result in zip(range(lanes - 1, -1, -1), ran, strict=False):  # slowest on top
            spent = result.seconds or 0
            current = result.knobs == now.knobs
            filled = result.source != RECORDED
            axes.barh(row, spent, height=0.5, facecolor=BLUE if filled else "white", edgecolor=INK if current else BLUE,
                      linewidth=2.5 if current else 1.5)  # fmt: skip
            name = f"{result.knobs[by]}: {seconds(spent)}, {_work_of(result)}"
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # over the line of the copy
            axes.text(0, row + 0.29, name, fontsize=9, color=INK, va="bottom", bbox=paper, zorder=3)
        shares = [r for r in ran if r.bandwidth_fraction]
        if shares and len({r.nbytes for r in ran}) == 1:  # else there is no one copy to compare with
            floor = (shares[0].seconds or 0) * (shares[0].bandwidth_fraction or 1)
            axes.axvline(floor, color=ORANGE, linewidth=2, linestyle="--")
            axes.text(floor, -0.62, f" {TEXT['copy']}: {seconds(floor)}", fontsize=8.5, color=ORANGE, va="center",
                      ha="left" if floor < 0.5 * top else "right")  # fmt: skip
        axes.set(xlim=(0, top * 1.02), ylim=(-0.9, lanes - 0.1), yticks=[], xticks=[])
        return to_png(figure)


def _work_of(result: Result) -> str:
    """Kernels and bytes where they differ from way to way, else the rate."""
    if "kernels" not in result.resources:
        return f"{(result.bandwidth or 0) / 1e9:,.0f} GB/s"
    kernels, moved = int(result.resources["kernels"]), result.resources.get("bytes_moved", result.nbytes)
    return f"{kernels} kernel{'s' * (kernels > 1)}, {moved / 1e9:.3g} GB"


def share_by(results: Iterable[Result], now: Result, x: str, by: str) -> bytes:
    """How close one comes to a copy of the same bytes over the knob ``x``, a line for each value of ``by``."""
    with drawing.lock:
        figure, axes = new_figure(4.2, 2.6)
        ran = [r for r in results if r.bandwidth_fraction]
        if not ran:
            return _empty(figure, axes)
        axes.axhline(100, color=FAINT, linewidth=1)
        kinds = list(dict.fromkeys(r.knobs[by] for r in ran))
        ends = []
        for kind in kinds:
            points = sorted((r.knobs[x], 100 * (r.bandwidth_fraction or 0), r) for r in ran if r.knobs[by] == kind)
            colour = COLOURS.get(kind, FAINT)
            axes.plot([p[0] for p in points], [p[1] for p in points], color=colour, linewidth=1.2)
            for size, share, result in points:
                face = colour if result.source != RECORDED else "white"
                side = 9 if result.knobs == now.knobs else 6
                axes.plot(size, share, "o", markersize=side, mec=colour, mfc=face, mew=1.6)
            ends.append((points[-1][1], points[-1][0], kind, colour))
        top = max(110.0, *(100 * (r.bandwidth_fraction or 0) for r in ran)) * 1.05
        free = -top  # names are kept apart, the lowest first
        for share, size, kind, colour in sorted(ends):
            free = max(share, free + 0.09 * top)
            axes.annotate(str(kind), (size, free), xytext=(8, 0), textcoords="offset points", fontsize=9, color=colour,
                          va="center")  # fmt: skip
        sizes = sorted({r.knobs[x] for r in ran})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set(xlim=(sizes[0] / 1.3, sizes[-1] * 2.2), ylim=(0, top))
        axes.yaxis.set_major_formatter("{x:.0f}%")
        axes.set_xlabel(TEXT[x], fontsize=8.5, color=INK)
        axes.set_title(TEXT["share"], fontsize=9, color=INK, loc="left")
        return to_png(figure)

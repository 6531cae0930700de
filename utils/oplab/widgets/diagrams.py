"""Drawings that explain, for the text of the chapters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from oplab import drawing
from oplab.drawing import BLUE, FAINT, GREEN, INK, ORANGE, SKY, Picture, new_figure, to_png
from oplab.experiments import Result
from oplab.timing import seconds

# What people read, in one place.
TEXT = {
    "tile": "One program computes one tile of C. Step by step it reads a strip of A and a strip of B.",
    "tile_alt": "A block_m x block_n tile of C, the block_m rows of A and the block_n columns of B that it needs.",
    "memory": "memory",
    "eager": "four operators: 9 trips of one array through memory",
    "fused": "one fused kernel: 3 trips",
    "ladder": "TFLOP/s",
    "wave": "{wave} wave: {sms} SMs × {per_sm} ",
    "waves_x": "tiles of C (beside each point: the size of the product)",
}


def tile_diagram(blocks: int = 6, step: int = 2) -> Picture:
    """A, B and C of a tiled product, with the tile of one program and the blocks of one step."""
    with drawing.lock:
        figure, axes = new_figure(6.4, 3.0)
        row, column = 2, 3
        for name, x, y in (("A", 0, 0), ("B", 8, 0), ("C", 16, 0)):
            axes.add_patch(Rectangle((x, y), blocks, blocks, facecolor="white", edgecolor=FAINT))
            axes.text(x + blocks / 2, -0.6, name, ha="center", fontsize=12, color=INK)
            for line in range(1, blocks):
                axes.plot([x, x + blocks], [line, line], color="#DDDDDD", linewidth=0.7)
                axes.plot([x + line, x + line], [0, blocks], color="#DDDDDD", linewidth=0.7)
        axes.add_patch(Rectangle((0, row), blocks, 1, facecolor=SKY, alpha=0.35))
        axes.add_patch(Rectangle((step, row), 1, 1, facecolor=BLUE))
        axes.add_patch(Rectangle((8 + column, 0), 1, blocks, facecolor=ORANGE, alpha=0.25))
        axes.add_patch(Rectangle((8 + column, step), 1, 1, facecolor=ORANGE))
        axes.add_patch(Rectangle((16 + column, row), 1, 1, facecolor=GREEN))
        axes.text(-0.3, row + 0.5, "block_m", ha="right", va="center", fontsize=9, color=INK)
        axes.text(step + 0.5, row + 1.45, "block_k", ha="center", va="center", fontsize=9, color=INK)
        axes.text(8 + column + 0.5, blocks + 0.5, "block_n", ha="center", va="center", fontsize=9, color=INK)
        axes.text(7, blocks / 2, "×", ha="center", va="center", fontsize=16, color=INK)
        axes.text(15, blocks / 2, "=", ha="center", va="center", fontsize=16, color=INK)
        axes.set(xlim=(-2.6, 22.4), ylim=(blocks + 1, -1.2), xticks=[], yticks=[], aspect="equal")
        figure.supxlabel(TEXT["tile"], fontsize=9, color=FAINT)
        return Picture(to_png(figure), TEXT["tile_alt"])


def traffic_diagram() -> Picture:
    """What the chain bias + GELU + scale + residual moves, run eagerly and fused."""
    with drawing.lock:
        figure, axes = new_figure(6.8, 3.2)
        names = ("+ bias", "GELU", "× scale", "+ residual")
        for i, name in enumerate(names):
            extra = 1 if i == 3 else 0
            _operator(axes, 1.6 * i, name, reads=1 + extra, writes=1)
        _operator(axes, 7.6, "all four", reads=2, writes=1)
        for x0, x1, caption in ((-0.6, 5.5, TEXT["eager"]), (6.4, 8.9, TEXT["fused"])):
            axes.add_patch(Rectangle((x0, 0), x1 - x0, 0.5, facecolor="#DDDDDD"))
            axes.text((x0 + x1) / 2, 0.25, TEXT["memory"], ha="center", va="center", fontsize=9, color=INK)
            axes.text((x0 + x1) / 2, -0.35, caption, ha="center", va="center", fontsize=9, color=INK)
        axes.set(xlim=(-0.8, 9.2), ylim=(-0.6, 3.2), xticks=[], yticks=[])
        return Picture(to_png(figure), f"{TEXT['eager']}; {TEXT['fused']}")


def _operator(axes: Axes, x: float, name: str, reads: int, writes: int) -> None:
    axes.add_patch(Rectangle((x - 0.5, 2.0), 1.3, 0.7, facecolor=SKY, alpha=0.5, edgecolor=BLUE))
    axes.text(x + 0.15, 2.35, name, ha="center", va="center", fontsize=9, color=INK)
    lanes = reads + writes
    for lane in range(lanes):
        at = x - 0.35 + 1.0 * lane / max(lanes - 1, 1)
        up = lane < reads
        ends = ((at, 0.55), (at, 1.95)) if up else ((at, 1.95), (at, 0.55))
        axes.add_patch(
            FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=11, color=BLUE if up else ORANGE, linewidth=1.6)
        )


def ladder(rungs: Sequence[tuple[str, Result]], top: tuple[str, float] | None = None) -> Picture:
    """Rates of the rungs, slowest first; ``top`` is (name, FLOP/s) of what they are held against."""
    rows = [(name, (result.rate or 0) / 1e12) for name, result in rungs]
    if top:
        rows.append((top[0], top[1] / 1e12))
    with drawing.lock:
        figure, axes = new_figure(6.8, 0.42 * len(rows) + 0.5)
        most = max(rate for _, rate in rows)
        for row, (_, rate) in enumerate(rows):
            last = top is not None and row == len(rows) - 1
            axes.barh(row, rate, color=ORANGE if last else BLUE, height=0.62)
            axes.text(rate + 0.01 * most, row, f"{rate:,.3g}", va="center", fontsize=9, color=INK)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set(xlim=(0, most * 1.1), ylim=(len(rows) - 0.4, -0.6), xticks=[])
        axes.set_xlabel(TEXT["ladder"], fontsize=9, color=INK)
        text = "; ".join(f"{name}: {rate:.3g} TFLOP/s" for name, rate in rows)
        return Picture(to_png(figure), text)


def waves(results: Iterable[Result], sms: int, per_sm: int) -> Picture:
    """Time over the number of tiles, ``per_sm`` of which run on an SM at once: steps where a wave begins."""
    places = sms * per_sm
    ran = sorted((r for r in results if r.seconds), key=lambda r: r.knobs["size"])
    with drawing.lock:
        figure, axes = new_figure(6.8, 3.0)
        for r in ran:
            tiles = int(r.resources["tiles"])
            colour = (BLUE, ORANGE, GREEN, SKY)[(-(-tiles // places) - 1) % 4]
            axes.plot(tiles, 1e6 * (r.seconds or 0), "o", color=colour, markersize=7)
            beside: dict[str, Any] = {
                "xytext": (0, 7),
                "textcoords": "offset points",
                "ha": "center",
                "fontsize": 8,
                "color": INK,
            }
            axes.annotate(str(r.knobs["size"]), (tiles, 1e6 * (r.seconds or 0)), **beside)
        most = max(r.resources["tiles"] for r in ran)
        for wave in range(1, int(most // places) + 1):
            axes.axvline(wave * places, color=FAINT, linestyle="--", linewidth=1)
            label = TEXT["wave"].format(wave=wave, sms=sms, per_sm=per_sm)
            axes.text(wave * places, 0.5, label, fontsize=8, color=FAINT, va="bottom", ha="right")
        axes.set_ylim(0, None)
        axes.set_xlabel(TEXT["waves_x"], fontsize=9, color=INK)
        axes.set_ylabel("µs", fontsize=9, color=INK)
        axes.grid(True, axis="y", color="#DDDDDD", linewidth=0.6)
        text = "; ".join(
            f"size {r.knobs['size']}: {r.resources['tiles']:.0f} tiles, {seconds(r.seconds or 0)}" for r in ran
        )
        return Picture(to_png(figure), text)

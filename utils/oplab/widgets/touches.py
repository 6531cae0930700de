"""Which elements of each tensor a program of a kernel touches, step by step; from a `compiler.trace`."""

from __future__ import annotations

import base64
import math
import threading
from html import escape

import ipywidgets as w
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

from oplab import drawing
from oplab.compiler import Traffic
from oplab.compiler.traffic import Step, TensorTraffic
from oplab.drawing import FAINT, INK, ORANGE, Picture
from oplab.widgets.explorer import STYLE

# What people read, in one place.
TEXT = {
    "program": "program",
    "program_help": "Which program of the grid to watch, by its position.",
    "step": "step",
    "step_help": "The accesses of this program in their order; earlier ones stay in light blue.",
    "caption": "program {program}, step {number} of {steps}: {kind} {count:,} elements of {tensor}",
    "line": "line {line}: {text}",
    "nothing": "program {program} touches nothing",
    "key": "orange: this step   blue: earlier steps of this program",
    "title": "{name}  {shape}",
}
COLOURS = ListedColormap(["#F4F4F4", "#9CCBEA", ORANGE])  # nothing, earlier, now


class TouchesExplorer:
    """Two sliders and a picture. ``errors`` keeps exceptions of callbacks, which Jupyter would hide.

    Raises ValueError where the trace was too long for its elements to be kept.
    """

    def __init__(self, traffic: Traffic) -> None:
        traffic.steps(0)  # says so now where they were not kept
        self.traffic = traffic
        self.errors: list[BaseException] = []
        self._token = 0
        grid = [range(size) for size in traffic.grid]
        programs = [tuple(int(n) for n in position) for position in np.ndindex(*(len(axis) for axis in grid))]
        labels = [", ".join(map(str, position)) for position in programs]
        wide = {"style": {"description_width": "70px"}, "layout": {"width": "420px"}, "continuous_update": False}
        self.program = w.SelectionSlider(
            options=list(zip(labels, programs, strict=True)), description=TEXT["program"],
            tooltip=TEXT["program_help"], **wide,
        )  # fmt: skip
        self.step = w.SelectionSlider(options=[1], description=TEXT["step"], tooltip=TEXT["step_help"], **wide)
        self.image = w.Image(format="png", layout={"width": "830px", "max_width": "100%"})
        self.image.add_class("oplab-picture")
        self.caption = w.HTML()
        self.box = w.VBox([w.HTML(STYLE), self.program, self.step, self.caption, self.image])
        self.box.add_class("oplab-explorer")
        self.box.add_class("oplab-touches")
        self._offer_steps()
        self.program.observe(lambda change: self._moved(True), "value")
        self.step.observe(lambda change: self._moved(False), "value")
        self._show(self._token)

    def _offer_steps(self) -> None:
        """One value per access of the program; the slider stays where it is as far as it can."""
        count = max(1, len(self.traffic.steps(self.program.value)))
        kept = min(self.step.value, count)
        if len(self.step.options) != count:
            self.step.options = list(range(1, count + 1))
            self.step.value = kept

    def _moved(self, program: bool) -> None:
        """Draw on a thread of its own; the latest request wins."""
        self._token += 1
        threading.Thread(target=self._guarded, args=(self._token, program), daemon=True).start()

    def _guarded(self, token: int, program: bool) -> None:
        try:
            if program:
                self._offer_steps()
            self._show(token)
        except Exception as error:  # shown where the learner looks, and kept
            self.errors.append(error)
            self.caption.value = f"<div class='oplab-reason'>{escape(f'{type(error).__name__}: {error}')}</div>"

    def _show(self, token: int) -> None:
        program, number = self.program.value, self.step.value
        steps = self.traffic.steps(program)
        png = draw(self.traffic, steps, number)
        if token <= self._token and (program, number) == (self.program.value, self.step.value):
            first, *rest = describe(program, steps, number)
            lines = [f"<b>{escape(first)}</b>", *(f"<code>{escape(line)}</code>" for line in rest)]
            self.caption.value = "<br>".join([*lines, f"<span class='oplab-quiet'>{TEXT['key']}</span>"])
            self.image.value = png

    def picture(self, program: tuple[int, ...] | int = 0, step: int = 1) -> Picture:
        """One program at one step, for viewers that run nothing."""
        steps = self.traffic.steps(program)
        position = (program,) if isinstance(program, int) else program
        return Picture(draw(self.traffic, steps, step), "\n".join(describe(position, steps, step)))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The live widget, and a picture of a middle step for viewers that run nothing."""
        last = self.program.options[-1][1]
        picture = self.picture(last, max(1, 2 * len(self.traffic.steps(last)) // 3))
        png = base64.b64encode(picture.png).decode()
        return dict(self.box._repr_mimebundle_()) | {"image/png": png, "text/plain": picture.text}


def describe(program: tuple[int, ...], steps: list[Step], number: int) -> list[str]:
    """One line on the step, and the learner's line of code."""
    position = ", ".join(map(str, program))
    if not steps:
        return [TEXT["nothing"].format(program=position)]
    step = steps[number - 1]
    facts = {"program": position, "number": number, "steps": len(steps), "kind": step.kind, "tensor": step.tensor}
    lines = [TEXT["caption"].format(count=len(step.elements), **facts)]
    return lines + [TEXT["line"].format(line=step.line, text=step.text)] * bool(step.line)


def draw(traffic: Traffic, steps: list[Step], number: int) -> bytes:
    """Every tensor as a matrix, its last dimension across; what this step and the steps before it touch."""
    shown = [tensor for tensor in traffic.tensors if math.prod(tensor.shape)]
    tallest = max([_sides(tensor)[0] for tensor in shown if len(tensor.shape) > 1], default=1)
    with drawing.lock:
        figure, unused = drawing.new_figure(8.6, 3.1)
        unused.remove()
        widths = [max(_sides(tensor)[1], 0.2 * max(_sides(t)[1] for t in shown)) for tensor in shown]
        panels = figure.subplots(1, max(1, len(shown)), width_ratios=widths or [1], squeeze=False)[0]
        for axes, tensor in zip(panels, shown, strict=False):
            axes.imshow(
                _touched(tensor, steps, number), cmap=COLOURS, vmin=0, vmax=2, interpolation="nearest",
                aspect="equal" if len(tensor.shape) > 1 else "auto",
            )  # fmt: skip
            axes.set(xticks=[], yticks=[])
            axes.set_frame_on(False)
            rows, columns = _sides(tensor)
            axes.add_patch(
                Rectangle((-0.5, -0.5), columns, rows, fill=False, edgecolor=FAINT, linewidth=1.5, clip_on=False)
            )
            if len(tensor.shape) > 1:
                axes.set_ylim(tallest - 0.5, -0.5)  # every matrix on one scale
            shape = " × ".join(map(str, tensor.shape)) or "1"
            axes.set_title(TEXT["title"].format(name=tensor.name, shape=shape), fontsize=9, color=INK)
        return drawing.to_png(figure)


def _sides(tensor: TensorTraffic) -> tuple[int, int]:
    """(rows, columns) of the matrix that stands for a tensor."""
    columns = tensor.shape[-1] if tensor.shape else 1
    return math.prod(tensor.shape) // columns, columns


def _touched(tensor: TensorTraffic, steps: list[Step], number: int) -> np.ndarray:
    """[rows, columns]: 0 untouched, 1 touched before, 2 touched now."""
    found = np.zeros(tensor.shape or (1,), np.uint8)
    for position, step in enumerate(steps[:number], 1):
        if step.tensor == tensor.name:
            found[tuple(step.elements.T) if tensor.shape else 0] = 2 if position == number else 1
    return found.reshape(_sides(tensor))

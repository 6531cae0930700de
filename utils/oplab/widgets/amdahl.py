"""Amdahl's law on a profile: speed up one kind of operator, see what the whole step gains."""

from __future__ import annotations

import base64
from html import escape

import ipywidgets as w

from oplab import drawing
from oplab.drawing import BLUE, FAINT, INK, ORANGE, Picture
from oplab.profiler import Profile
from oplab.timing import seconds
from oplab.widgets.explorer import STYLE

SPEEDUPS = (1.1, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0, float("inf"))

# What people read, in one place.
TEXT = {
    "operator": "operator",
    "operator_help": "The kind of operator that you imagine faster, with its share of the step.",
    "speedup": "times faster",
    "speedup_help": "How many times faster it gets; infinite: it takes no time at all.",
    "line": "{name} takes {share:.0%} of {step}. {factor} times faster, the step takes {after}: "
    "{gain:.2f} times as fast, {saved:.0%} of the time saved.",
    "everything": "infinitely many",
    "before": "before",
    "after": "after",
    "rest": "the rest",
    "source": "{title}: profiled on {machine}, {date}",
}


def whole_gain(share: float, factor: float) -> float:
    """Amdahl's law: the step's speed-up when a part with ``share`` of its time gets ``factor`` times faster."""
    return 1.0 / (1.0 - share + share / factor)


class AmdahlExplorer:
    """Two controls, one picture. ``errors`` keeps exceptions of callbacks, which Jupyter would hide."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.errors: list[BaseException] = []
        total = max(profile.step_seconds, profile.operator_seconds)
        spent: dict[str, float] = {}
        for op in profile.operators:
            spent[op.name] = spent.get(op.name, 0.0) + op.seconds
        longest = sorted(spent.items(), key=lambda item: -item[1])[:12]
        self.shares = {name: value / total for name, value in longest}
        if profile.idle_seconds:
            self.shares["launch overhead, idle"] = profile.idle_seconds / total
        wide = {"style": {"description_width": "110px"}, "layout": {"width": "420px"}}
        self.operator = w.Dropdown(
            options=[(f"{name} ({share:.0%})", name) for name, share in self.shares.items()],
            description=TEXT["operator"], tooltip=TEXT["operator_help"], **wide,
        )  # fmt: skip
        self.speedup = w.SelectionSlider(
            options=[("∞" if f == float("inf") else f"{f:g}", f) for f in SPEEDUPS], value=1.3,
            description=TEXT["speedup"], tooltip=TEXT["speedup_help"], continuous_update=False, **wide,
        )  # fmt: skip
        self.line = w.HTML()
        self.image = w.Image(format="png", layout={"width": "640px", "max_width": "100%"})
        self.image.add_class("oplab-picture")
        self.operator.observe(self._turned, "value")
        self.speedup.observe(self._turned, "value")
        self.box = w.VBox([w.HTML(STYLE), self.operator, self.speedup, self.line, self.image])
        self.box.add_class("oplab-explorer")
        self._turned()

    def _turned(self, change: object = None) -> None:
        try:
            self.line.value = f"<div class='oplab-headline'>{escape(self.sentence())}</div>"
            self.image.value = self.picture().png
        except Exception as error:  # shown where the learner looks, and kept
            self.errors.append(error)
            self.line.value = f"<div class='oplab-reason'>{escape(f'{type(error).__name__}: {error}')}</div>"

    def sentence(self) -> str:
        name, factor = self.operator.value, self.speedup.value
        share, step = self.shares[name], self.profile.step_seconds
        gain = whole_gain(share, factor)
        return TEXT["line"].format(
            name=name,
            share=share,
            step=seconds(step),
            factor=TEXT["everything"] if factor == float("inf") else f"{factor:g}",
            after=seconds(step / gain),
            gain=gain,
            saved=1 - 1 / gain,
        )

    def picture(self) -> Picture:
        """The step before and after, the chosen part in colour."""
        name, factor = self.operator.value, self.speedup.value
        share, step = self.shares[name], 1e3 * self.profile.step_seconds
        with drawing.lock:
            figure, axes = drawing.new_figure(6.4, 1.9)
            for row, (label, part) in enumerate(((TEXT["before"], share), (TEXT["after"], share / factor))):
                rest = (1 - share) * step
                axes.barh(row, part * step, color=ORANGE, height=0.6)
                axes.barh(row, rest, left=part * step, color=BLUE, height=0.6)
                axes.text(part * step + rest + 0.01 * step, row, f"{part * step + rest:.3g} ms", va="center", color=INK)
                axes.text(
                    part * step + rest / 2, row, TEXT["rest"], ha="center", va="center", color="white", fontsize=9
                )
                axes.text(-0.01 * step, row, label, ha="right", va="center", color=INK, fontsize=9)
            axes.text(0, -0.42, name, color=ORANGE, fontsize=9, va="bottom")
            axes.set(xlim=(-0.09 * step, 1.13 * step), ylim=(1.5, -0.75), xticks=[], yticks=[])
            profile = self.profile
            source = TEXT["source"].format(title=profile.title, machine=profile.machine.name, date=profile.date)
            axes.set_xlabel(source, fontsize=8, color=FAINT)
            return Picture(drawing.to_png(figure), self.sentence())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The live widget, and its picture for viewers that run nothing."""
        picture = self.picture()
        still = {"image/png": base64.b64encode(picture.png).decode(), "text/plain": picture.text}
        return dict(self.box._repr_mimebundle_()) | still

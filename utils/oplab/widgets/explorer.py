"""The frame of every explorer: controls, state, pictures, history; an `Experiment` gives the answers.

A change of a knob starts a request on a thread of its own. The latest request wins: an older one
is withdrawn at its next report, and what it still brings is dropped. Measurements of one process
queue in `timing.device_lock`. Exceptions in callbacks are shown in the widget and kept in
``errors``: Jupyter would hide them in a log.
"""

from __future__ import annotations

import base64
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

import ipywidgets as w
import torch

from oplab import timing
from oplab.compiler import compile as compiler
from oplab.drawing import Picture
from oplab.experiments import LIVE_CPU, LIVE_GPU, RECORDED, Experiment, Recording, RecordingError, Result
from oplab.experiments.experiment import DEFAULT_RECORDING
from oplab.experiments.recording import names as recording_names
from oplab.hardware import cpu_name
from oplab.widgets.panel import ResourcePanel

DEBOUNCE = 0.15  # seconds that a live request waits for a newer one
HISTORY = 8  # rows shown

# What people read, in one place.
TEXT = {
    "source": "numbers from",
    "source_help": "Live: measured on this computer when you move a knob. Recorded: measured earlier on the named GPU.",
    "recorded": "recorded: {machine}",
    "live": "live: {machine}",
    "reveal": "show all recorded",
    "reveal_help": "Show every recorded value of this picture, not only those you have visited.",
    "asked": "asked",
    "done": "done",
    "failed": "failed",
    "error": "The explorer hit an error of its own; the knobs still work. {error}",
    "history": "this session",
    "static": "Run this cell in JupyterLab to turn the knobs. The picture shows the recording on {machine}, {date}.",
}

STYLE = """<style>
.oplab-picture { max-width: 100%; height: auto; align-self: flex-start; margin-right: 10px; }
body[data-jp-theme-light="false"] .oplab-picture { filter: invert(0.93) hue-rotate(180deg); }
.oplab-headline { font-size: 1.15em; line-height: 1.4; }
.oplab-headline b { font-size: 1.25em; }
.oplab-reason { border-left: 4px solid #D55E00; padding: 2px 8px; line-height: 1.4; }
.oplab-quiet { opacity: 0.75; line-height: 1.4; }
.oplab-history td, .oplab-history th { padding: 0 10px 0 0; text-align: left; white-space: nowrap; }
</style>"""


@dataclass(frozen=True)
class View:
    """What makes one explorer of the frame: how it speaks of a result and which pictures it draws."""

    headline: Callable[[Result], str]  # HTML
    pictures: Callable[[Explorer, Result], list[bytes]]
    remark: Callable[[Result], str] = lambda result: ""  # a sentence about a result that did run
    sliders: tuple[str, ...] = ()  # knobs offered as sliders; the others are drop-down lists
    count: int = 2  # pictures, and the width of each in pixels
    width: int = 405
    still: Callable[[], Picture] | None = None  # for viewers that run nothing, instead of `pictures`
    compiler: bool = False  # show what the GPU compiler made of the setting


class Explorer:
    """An experiment on the screen. ``errors`` keeps exceptions of callbacks; ``results`` this session's answers."""

    def __init__(self, experiment: Experiment, view: View) -> None:
        self.experiment, self.view = experiment, view
        self.errors: list[BaseException] = []
        self.results: dict[tuple, Result] = {}  # the latest answer per source and setting
        self.history: list[Result] = []
        self.current: Result | None = None
        self._token = self._answered = self._compiled = 0
        self._publishing = threading.Lock()
        self._build()
        self._offer_knobs()
        self.request()

    # -- what the learner does

    def set(self, **knobs: object) -> None:
        """Turn knobs from code, as if by hand."""
        for name, value in knobs.items():
            self.controls[name].value = value

    def request(self) -> None:
        """Ask for the setting that the knobs show."""
        with self._publishing:  # an older answer is either on the page already or will find that it is old
            self._token += 1
            token = self._token
            self._say(TEXT["asked"])
        source, name = self.source.value
        knobs = {knob.name: self.controls[knob.name].value for knob in self.experiment.knobs_of(source)}
        threading.Thread(target=self._guard, args=(self._answer, token, source, name, knobs), daemon=True).start()

    # -- off the comm thread

    def _answer(self, token: int, source: str, name: str, knobs: dict) -> None:
        def listen(state: str) -> None:
            if token != self._token:
                raise timing.Withdrawn
            self._say(state)

        if source != RECORDED:
            time.sleep(DEBOUNCE)
        try:
            with timing.reporting(listen):
                if token != self._token:
                    return
                result = self.experiment.run(source=source, recording=name or DEFAULT_RECORDING, **knobs)
        except timing.Withdrawn:
            return
        self._show(result, token)
        self._show_compiled(result, token)

    def _show_compiled(self, result: Result, token: int) -> None:
        """Ask the compiler about the setting that is on the page; it may take seconds the first time."""
        if self.panel is not None and token == self._token:
            self.panel.announce()
            answer = self.panel.answer(result.knobs, self.source.value[0])
            with self._publishing:
                if token == self._token:
                    self.panel.table.value = answer
        self._compiled = max(self._compiled, token)  # an overtaken request may end last

    def _show(self, result: Result, token: int) -> None:
        """Draw, then put everything on the page at once, unless the knobs have moved on meanwhile."""
        with self._publishing:
            self.results[(result.source, *sorted(result.knobs.items()))] = result
            if result is not self.current:
                self.history = [result, *self.history][:HISTORY]
        if token != self._token:
            return
        pictures = self.view.pictures(self, result)
        warnings = [line for line in (result.reason, *result.notes) if line]
        with self._publishing:
            if token != self._token:
                return
            self.current = result
            for image, png in zip(self.images, pictures, strict=True):
                image.value = png
            self.headline.value = (
                f"<div class='oplab-headline'>{self.view.headline(result)}</div>"
                f"<div class='oplab-quiet'>{escape(result.label)}</div>"
            )
            self.reason.value = f"<div class='oplab-quiet'>{escape(self.view.remark(result))}</div>" + "".join(
                f"<div class='oplab-reason'>{escape(line)}</div>" for line in warnings
            )
            self.table.value = self._history_table()
            self._say(TEXT["done"] if result.ok else TEXT["failed"])
            self._answered = token

    def seen(self, **knobs: object) -> list[Result]:
        """Answers of this session whose knobs have these values; with "show all", the recorded ones too.

        Where a setting was both read and measured, the live answer comes last.
        """
        found: list[Result] = []
        source, name = self.source.value
        if self.reveal.value and (recording := self._recording(name)):
            found += recording.where(**knobs)
        mine = [r for r in self.results.values() if all(r.knobs.get(k) == v for k, v in knobs.items())]
        # A CPU's numbers and a GPU's do not belong in one picture.
        same_kind = [r for r in mine if (r.source == LIVE_CPU) == (source == LIVE_CPU)]
        return found + sorted(same_kind, key=lambda r: r.source != RECORDED)

    def recording(self) -> Recording:
        """The recording that the learner chose; `RecordingError` where none can be read."""
        return self.experiment.recording(self.source.value[1] or DEFAULT_RECORDING)

    # -- the frame

    def _recording(self, name: str) -> Recording | None:
        """The recording; None where there is none or it cannot be read, which the answer then says."""
        try:
            return self.experiment.recording(name) if name else None
        except RecordingError:
            return None

    def _build(self) -> None:
        self.source = w.Dropdown(
            options=_sources(self.experiment.name), description=TEXT["source"], tooltip=TEXT["source_help"],
            style={"description_width": "110px"}, layout={"width": "360px"},
        )  # fmt: skip
        self.source.observe(self._guarded(lambda change: self._source_changed()), "value")
        self.reveal = w.Checkbox(
            value=False,
            description=TEXT["reveal"],
            tooltip=TEXT["reveal_help"],
            indent=False,
            layout={"width": "180px"},
        )
        self.reveal.observe(self._guarded(lambda change: self._redraw()), "value")
        self.controls: dict[str, w.Widget] = {}
        self.knob_box = w.HBox(layout={"flex_flow": "row wrap"})
        self.state = w.HTML()
        self.headline, self.reason, self.table = w.HTML(), w.HTML(), w.HTML()
        width = f"{self.view.width}px"
        self.images = [
            w.Image(format="png", layout={"width": width, "max_width": "100%"}) for _ in range(self.view.count)
        ]
        for image in self.images:
            image.add_class("oplab-picture")
        self.panel = ResourcePanel(self.experiment) if self.view.compiler else None
        self.box = w.VBox(
            [
                w.HTML(STYLE),
                w.HBox([self.source, self.reveal, self.state], layout={"flex_flow": "row wrap"}),
                self.knob_box,
                self.headline,
                self.reason,
                w.HBox(self.images, layout={"flex_flow": "row wrap"}),
                *([self.panel.box] if self.panel else []),
                self.table,
            ]
        )
        if self.panel is not None:
            self.panel.aim(self.source.label.split(": ", 1)[1])
            self.panel.target.observe(self._guarded(lambda change: self._retarget()), "value")
            compiler.start()
        self.box.add_class("oplab-explorer")
        self.box.add_class(f"oplab-{self.experiment.name}")

    def _offer_knobs(self) -> None:
        """Make the controls that mean something for the chosen source; keep values that are still offered."""
        source, name = self.source.value
        before = {knob: control.value for knob, control in self.controls.items()}
        defaults = self.experiment.defaults(source)
        self.controls = {}
        for knob in self.experiment.knobs_of(source):
            choices = knob.choices(source)
            if source == RECORDED and (recording := self._recording(name)):
                recorded = recording.values(knob.name)
                choices = tuple(value for value in choices if value in recorded) or tuple(recorded)
            kept = before.get(knob.name, defaults[knob.name])
            value = next(v for v in (kept, defaults[knob.name], choices[0]) if v in choices)
            kind = w.SelectionSlider if knob.name in self.view.sliders else w.Dropdown
            live_update = {"continuous_update": False} if kind is w.SelectionSlider else {}
            control = kind(
                options=[(str(choice), choice) for choice in choices], value=value, description=knob.label,
                tooltip=f"{knob.label}: {knob.help}", style={"description_width": "90px"}, layout={"width": "270px"},
                **live_update,
            )  # fmt: skip
            control.observe(self._guarded(lambda change: self.request()), "value")
            self.controls[knob.name] = control
        self.knob_box.children = tuple(self.controls.values())
        self.reveal.layout.visibility = "visible" if name else "hidden"

    def _source_changed(self) -> None:
        if self.panel is not None:
            self.panel.aim(self.source.label.split(": ", 1)[1])
        self._offer_knobs()  # new controls: their first values raise no events
        self.request()

    def _retarget(self) -> None:
        """Another GPU to compile for: the result on the page stays."""
        if self.current is not None and self._answered == self._token:  # else the coming answer asks
            self._compiled = -1
            threading.Thread(
                target=self._guard, args=(self._show_compiled, self.current, self._token), daemon=True
            ).start()

    def _redraw(self) -> None:
        if self.current is not None and self._answered == self._token:  # else the coming answer draws
            self._show(self.current, self._token)

    def _say(self, state: str) -> None:
        mark = {TEXT["done"]: "●", TEXT["failed"]: "▲"}.get(state, "○")
        self.state.value = f"<span class='oplab-state' role='status'>{mark} {escape(state)}</span>"

    def _history_table(self) -> str:
        rows = []
        for r in self.history:
            knobs = " ".join(str(value) for value in r.knobs.values())
            number = timing.seconds(r.seconds) if r.seconds else r.status.replace("_", " ")
            ratio = f"{r.speedup:.2f} × {escape(r.baseline)}" if r.speedup else ""
            rows.append(f"<tr><td>{escape(knobs)}</td><td>{number}</td><td>{ratio}</td><td>{escape(r.label)}</td></tr>")
        names = " ".join(knob.name for knob in self.experiment.knobs_of(self.source.value[0]))
        head = f"<tr><th>{escape(names)}</th><th>time</th><th></th><th></th></tr>"
        return (
            f"<details class='oplab-history'><summary>{TEXT['history']}</summary>"
            f"<div style='overflow-x:auto'><table>{head}{''.join(rows)}</table></div></details>"
        )

    # -- errors

    def _guarded(self, callback: Callable) -> Callable:
        return lambda *arguments: self._guard(callback, *arguments)

    def _guard(self, callback: Callable, *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # the one place where an explorer's own errors arrive
            self.errors.append(error)
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = TEXT["error"].format(error=f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})")
            with self._publishing:
                self.reason.value = f"<div class='oplab-reason'>{escape(text)}</div>"
                self._say(TEXT["failed"])
                self._answered = self._compiled = self._token

    # -- on the page

    def wait(self, timeout: float = 60.0) -> Result | None:
        """Until the latest request is answered; for scripts and tests. TimeoutError after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while self._answered != self._token or self._compiled < self._answered:
            if time.monotonic() > end:
                raise TimeoutError(f"no answer within {timeout} s; last state: {self.state.value}")
            time.sleep(0.02)
        return self.current

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The live widget, and a picture from the recording for viewers that run nothing."""
        bundle = dict(self.box._repr_mimebundle_())
        if self.view.still is not None:
            picture = self.view.still()
            return bundle | {"image/png": base64.b64encode(picture.png).decode(), "text/plain": picture.text}
        try:
            png = self.static_picture()
        except RecordingError as error:
            bundle["text/plain"] = str(error)
            return bundle
        recorded = self.experiment.recording()
        bundle["image/png"] = base64.b64encode(png).decode()
        bundle["text/plain"] = TEXT["static"].format(machine=recorded.machine.name, date=recorded.date)
        return bundle

    def static_picture(self) -> bytes:
        """Both pictures side by side, drawn from the whole recording at the default knobs."""
        from oplab.widgets.static import side_by_side

        shown = _Recorded(self.experiment)
        result = self.experiment.run(source=RECORDED)
        return side_by_side(self.view.pictures(shown, result), result.label)  # type: ignore[arg-type]


class _Recorded:
    """Stands for an explorer in which everything recorded has been seen."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def recording(self) -> Recording:
        return self.experiment.recording()

    def seen(self, **knobs: object) -> list[Result]:
        return self.recording().where(**knobs)


def _sources(experiment: str) -> list[tuple[str, tuple[str, str]]]:
    """(label, (source, recording name)) with the best one first: GPU, recording, CPU."""
    recorded = [
        (TEXT["recorded"].format(machine=name.upper().replace("-", " ")), (RECORDED, name))
        for name in recording_names(experiment)
    ]
    cpu = (TEXT["live"].format(machine=cpu_name()), (LIVE_CPU, ""))
    gpu = []
    if torch.cuda.is_available():
        gpu = [(TEXT["live"].format(machine=torch.cuda.get_device_name()), (LIVE_GPU, ""))]
    return [*gpu, *recorded, cpu]

"""What the GPU compiler made of the explorer's setting: resources against the limits of a GPU of your choice.

The compiler needs no GPU, so the panel answers on any machine. It asks on the explorer's own thread,
after the result is on the page.
"""

from __future__ import annotations

from html import escape

import ipywidgets as w

from oplab.compiler import Compiled, KernelError, TritonMissing, WorkerError
from oplab.compiler.targets import TARGETS, find
from oplab.experiments import Experiment

# What people read, in one place.
TEXT = {
    "target": "compile for",
    "target_help": "The GPU that the compiler builds this kernel for. None is needed here.",
    "compiling": "compiling for {target} …",
    "title": "What the compiler made of it for {target} (Triton {version}; no GPU needed)",
    "no_kernel": "This setting has no GPU kernel of this course, so there is nothing to compile.",
    "refused": "The compiler refuses this kernel: {why}",
    "shared": "shared memory per block",
    "registers": "registers per thread",
    "spilled": "{registers} of {most}, and {spills:,} B spilled",
    "of": "{value:,} of {most:,}{unit}",
    "blocks": "blocks per SM",
    "warps": "{blocks}: {warps} of {most} warps; {what} is the limit",
    "no_block": "0: does not fit, {what}",
    "waves": "last wave",
    "one_wave": "{blocks:,} blocks at once on {sms} SMs: {idle:.0%} of the places stay empty",
    "many_waves": "{waves:.2f} waves of {places:,} blocks: in the last one {idle:.0%} of the places stay empty",
    "matrix": "matrix units",
    "loads": "global loads",
    "wide": "{widths} at a time",
    "none": "not used",
}

STYLE = """<style>
.oplab-panel table { border-spacing: 0; }
.oplab-panel td { padding: 1px 12px 1px 0; white-space: nowrap; text-align: left; line-height: 1.4; }
.oplab-panel td:last-child { white-space: normal; }
.oplab-bar { display: inline-block; width: 130px; height: 10px; border: 1px solid currentColor; opacity: 0.9; }
.oplab-bar span { display: block; height: 100%; background: #0072B2; }
.oplab-bar .over { background: #D55E00; }
</style>"""


class ResourcePanel:
    """A target to choose and a table of resources. `show` is called off the comm thread."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        options = [(find(gpu).label, gpu) for target in TARGETS.values() for gpu in list(target.gpus)[:1]]
        self.target = w.Dropdown(
            options=options, value="H200", description=TEXT["target"], tooltip=TEXT["target_help"],
            style={"description_width": "90px"}, layout={"width": "270px"},
        )  # fmt: skip
        self.table = w.HTML()
        self.box = w.VBox([w.HTML(STYLE), self.target, self.table])

    def aim(self, gpu: str) -> None:
        """Choose the target that is, or stands for, the named GPU; keep the present one if it is unknown."""
        try:
            known = find(gpu)
        except ValueError:
            return
        here = [value for _, value in self.target.options]
        self.target.value = next((v for v in here if v == known.gpu), next(v for v in here if v in known.gpus))

    def announce(self) -> None:
        self.table.value = _quiet(TEXT["compiling"].format(target=find(self.target.value).label))

    def answer(self, knobs: dict, source: str) -> str:
        """HTML for a setting; whatever the compiler refuses is a sentence in it."""
        try:
            found = self.experiment.compiled(knobs, source, find(self.target.value))
        except (KernelError, TritonMissing, WorkerError) as error:
            return f"<div class='oplab-reason'>{escape(TEXT['refused'].format(why=error))}</div>"
        return _quiet(TEXT["no_kernel"]) if found is None else table(*found)


def table(compiled: Compiled, blocks: int) -> str:
    """The panel's HTML for a kernel of which ``blocks`` are launched."""
    target, held = compiled.target, compiled.occupancy
    rows = [
        (
            TEXT["shared"],
            _bar(compiled.shared_bytes / target.shared_per_block),
            TEXT["of"].format(value=compiled.shared_bytes, most=target.shared_per_block, unit=" B"),
        )
    ]
    numbers = {"registers": compiled.registers, "most": target.registers_per_thread, "spills": compiled.spill_bytes}
    registers = TEXT["of"].format(value=compiled.registers, most=target.registers_per_thread, unit="")
    spilled = TEXT["spilled"].format(**numbers)
    share = compiled.registers / target.registers_per_thread + (1 if compiled.spill_bytes else 0)
    rows.append((TEXT["registers"], _bar(share), spilled if compiled.spill_bytes else registers))
    if held.blocks_per_sm:
        text = TEXT["warps"].format(
            blocks=held.blocks_per_sm, warps=held.warps, most=held.warps_per_sm, what=held.limited_by
        )
        rows.append((TEXT["blocks"], _bar(held.fraction), text))
        rows.append((TEXT["waves"], *_waves(blocks, held.blocks_per_sm, target.sms)))
    else:
        rows.append((TEXT["blocks"], _bar(2.0), TEXT["no_block"].format(what=held.limited_by)))
    rows.append((TEXT["matrix"], "", escape(", ".join(compiled.matrix_instructions) or TEXT["none"])))
    rows.append((TEXT["loads"], "", TEXT["wide"].format(widths=", ".join(compiled.load_widths))))
    cells = "".join(f"<tr><td>{label}</td><td>{bar}</td><td>{text}</td></tr>" for label, bar, text in rows)
    title = TEXT["title"].format(target=target.label, version=compiled.triton)
    return f"<div class='oplab-panel'>{_quiet(title)}<table>{cells}</table></div>"


def _waves(blocks: int, per_sm: int, sms: int) -> tuple[str, str]:
    """Bar and text of the last wave: the share of places that have a block."""
    places = per_sm * sms
    busy = (blocks % places or places) / places
    if blocks <= places:
        text = TEXT["one_wave"].format(blocks=blocks, sms=sms, idle=1 - blocks / places)
    else:
        text = TEXT["many_waves"].format(waves=blocks / places, places=places, idle=1 - busy)
    return _bar(busy), text


def _bar(share: float) -> str:
    over = " class='over'" if share > 1 else ""
    return f"<span class='oplab-bar'><span{over} style='width:{min(share, 1):.0%}'></span></span>"


def _quiet(text: str) -> str:
    return f"<div class='oplab-quiet'>{escape(text)}</div>"

"""One kernel, four GPUs: the same source as the compiler writes it for each of them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from html import escape

import ipywidgets as w

from oplab import drawing
from oplab.compiler import Compiled, KernelError, TritonMissing, WorkerError
from oplab.drawing import FAINT, INK, Picture
from oplab.kernels import copy, matmul, pointwise
from oplab.widgets.explorer import STYLE

TARGETS = ("A100", "H200", "B200", "MI300X")

# name -> compiled for a target and dtype
KERNELS: dict[str, Callable[[str, str], Compiled]] = {
    "matrix product": lambda target, dtype: matmul.compile_for(target, dtype=dtype, num_warps=4, num_stages=2),
    "matrix product, persistent": lambda target, dtype: matmul.compile_for(
        target, dtype=dtype, kernel="persistent", num_warps=4, num_stages=2
    ),
    "bias + GELU + scale + residual": lambda target, dtype: pointwise.compile_for(target, dtype=dtype),
    "copy": lambda target, dtype: copy.compile_for(target, dtype=dtype),
}
DTYPES = ("bf16", "fp16", "fp32")

# What people read, in one place.
TEXT = {
    "kernel": "kernel",
    "kernel_help": "The kernel that is compiled; the matrix products compute tiles of 128 x 128 x 64.",
    "dtype": "dtype",
    "dtype_help": "The dtype of its operands. fp32 is exact float32, for which no matrix unit exists on NVIDIA.",
    "compiling": "compiling for {target} …",
    "matrix": "matrix instruction",
    "loads": "global loads",
    "stores": "global stores",
    "registers": "registers per thread",
    "shared": "shared memory per block",
    "blocks": "blocks per SM",
    "none": "none",
    "spilled": " ({count:,} B spilled)",
    "lines": "the lines themselves",
    "caption": "{kernel}, {dtype}, compiled with Triton {version}; no GPU was needed",
}

PAGE = """<style>
.oplab-backends th, .oplab-backends td { text-align: left; padding: 2px 16px 2px 0; vertical-align: top; }
.oplab-backends pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.85em; line-height: 1.3; }
</style>"""


class BackendsExplorer:
    """Two drop-down lists and a table. ``errors`` keeps exceptions of callbacks, which Jupyter would hide."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._token = 0
        wide = {"style": {"description_width": "60px"}, "layout": {"width": "320px"}}
        self.kernel = w.Dropdown(options=list(KERNELS), description=TEXT["kernel"], tooltip=TEXT["kernel_help"], **wide)
        self.dtype = w.Dropdown(options=DTYPES, description=TEXT["dtype"], tooltip=TEXT["dtype_help"], **wide)
        self.table = w.HTML()
        self.box = w.VBox([w.HTML(STYLE + PAGE), w.HBox([self.kernel, self.dtype]), self.table])
        self.box.add_class("oplab-explorer")
        for control in (self.kernel, self.dtype):
            control.observe(lambda change: self.request(), "value")
        self.request()

    def request(self) -> threading.Thread:
        """Compile what the lists show, on a thread of its own; the latest request wins."""
        self._token += 1
        thread = threading.Thread(target=self._answer, args=(self._token,), daemon=True)
        thread.start()
        return thread

    def _answer(self, token: int) -> None:
        try:
            found = []
            for target in TARGETS:
                if token != self._token:
                    return
                self.table.value = f"<div class='oplab-quiet'>{TEXT['compiling'].format(target=target)}</div>"
                found.append(KERNELS[self.kernel.value](target, self.dtype.value))
            html = self._html(found)
        except (KernelError, TritonMissing, WorkerError) as error:
            html = f"<div class='oplab-reason'>{escape(str(error))}</div>"
        except Exception as error:  # shown where the learner looks, and kept
            self.errors.append(error)
            html = f"<div class='oplab-reason'>{escape(f'{type(error).__name__}: {error}')}</div>"
        if token == self._token:
            self.table.value = html

    def _html(self, found: list[Compiled]) -> str:
        head = "".join(f"<th>{escape(compiled.target.label)}</th>" for compiled in found)
        rows = "".join(
            f"<tr><th>{label}</th>" + "".join(f"<td>{escape(value)}</td>" for value in values) + "</tr>"
            for label, values in _rows(found)
        )
        lines = "".join(f"<td><pre>{escape(_excerpt(compiled))}</pre></td>" for compiled in found)
        return (
            f"<div class='oplab-quiet'>{escape(self._caption(found))}</div>"
            f"<div style='overflow-x:auto'><table class='oplab-backends'><tr><th></th>{head}</tr>{rows}"
            f"<tr><th>{TEXT['lines']}</th>{lines}</tr></table></div>"
        )

    def _caption(self, found: list[Compiled]) -> str:
        return TEXT["caption"].format(kernel=self.kernel.value, dtype=self.dtype.value, version=found[0].triton)

    def picture(self) -> Picture:
        """The table as a picture, for viewers that run nothing. Raises where Triton is missing."""
        found = [KERNELS[self.kernel.value](target, self.dtype.value) for target in TARGETS]
        rows = _rows(found)
        with drawing.lock:
            figure, axes = drawing.new_figure(8.6, 0.3 * len(rows) + 0.9)
            axes.set(xlim=(0, 5), ylim=(len(rows) + 0.6, -1.4), xticks=[], yticks=[])
            for column, compiled in enumerate(found):
                axes.text(column + 1, -0.9, compiled.target.label, fontsize=9, fontweight="bold", color=INK)
            for row, (label, values) in enumerate(rows):
                axes.text(0, row, label, fontsize=8, color=FAINT)
                for column, value in enumerate(values):
                    axes.text(column + 1, row, value, fontsize=8, color=INK)
            axes.set_xlabel(self._caption(found), fontsize=8, color=FAINT)
            text = "\n".join(f"{label}: {'; '.join(values)}" for label, values in rows)
            names = ", ".join(compiled.target.label for compiled in found)
            return Picture(drawing.to_png(figure), f"{self._caption(found)}\n{names}\n{text}")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The live widget, and the table as a picture for viewers that run nothing."""
        bundle = dict(self.box._repr_mimebundle_())
        try:
            picture = self.picture()
        except (KernelError, TritonMissing, WorkerError) as error:
            return bundle | {"text/plain": str(error)}
        return bundle | {"image/png": base64.b64encode(picture.png).decode(), "text/plain": picture.text}


def _rows(found: list[Compiled]) -> list[tuple[str, list[str]]]:
    """(label, one value per target)."""
    return [
        (TEXT["matrix"], [", ".join(c.matrix_instructions) or TEXT["none"] for c in found]),
        (TEXT["loads"], [", ".join(c.load_widths) or TEXT["none"] for c in found]),
        (TEXT["stores"], [", ".join(c.store_widths) or TEXT["none"] for c in found]),
        (
            TEXT["registers"],
            [f"{c.registers}" + (f" ({c.spill_bytes} B spilled)" * bool(c.spill_bytes)) for c in found],
        ),
        (TEXT["shared"], [f"{c.shared_bytes:,} B" for c in found]),
        (TEXT["blocks"], [f"{c.blocks_per_sm} ({c.limited_by})" for c in found]),
    ]


def _registers(compiled: Compiled) -> str:
    spilled = TEXT["spilled"].format(count=compiled.spill_bytes) if compiled.spill_bytes else ""
    return f"{compiled.registers}{spilled}"


def _excerpt(compiled: Compiled) -> str:
    """The first line of assembler with the matrix unit at work, or else with a global load."""
    kind = "ptx" if "ptx" in compiled.asm else "amdgcn"
    for sign in (
        "mma_async",
        "mma.sync",
        "tcgen05.mma",
        "v_mfma",
        "cp.async",
        "ld.global",
        "global_load",
        "buffer_load",
    ):
        if hits := [line for _, line, hit in compiled.show(kind, around=sign, context=0).chosen() if hit]:
            return hits[0].strip().expandtabs(1)
    return ""

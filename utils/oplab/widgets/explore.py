"""The explorers, one function each: ``tiles()``, ``fusion()``, ``backward()``, ``roofline()``, …"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from oplab import roofline as rooflines
from oplab.compiler import Traffic
from oplab.cost.costs import readable
from oplab.drawing import Picture
from oplab.experiments import BACKWARD, FUSION, GATHER, LIVE_CPU, OPERATORS, RECORDED, SOFTMAX, TILES, Result
from oplab.machine import Machine, machine
from oplab.profiler import Profile, recorded
from oplab.timing import seconds
from oplab.widgets import passes, pictures
from oplab.widgets.amdahl import AmdahlExplorer
from oplab.widgets.backends import BackendsExplorer
from oplab.widgets.explorer import Explorer, View
from oplab.widgets.touches import TouchesExplorer

# What people read, in one place.
TEXT = {
    "rate": "<b>{rate}</b> in {time}",
    "peak": "{share:.0%} of the measured {dtype} peak",
    "ratio": "{ratio:.2f} × {baseline}",
    "copy": "{share:.0%} of a copy of the same bytes",
    "time": "<b>{time}</b>",
    "predicted": "predicted {time} at best ({share:.0%})",
    "bound": "{bound}-bound",
    "three": "{flops}, {bytes}: {intensity:.3g} FLOP per byte.",
    "bandwidth": "{value:,.0f} GB/s",
    "refused": "<b>did not run</b>",
    "picked": "{unique:,.0f} of {rows:,.0f} rows are picked: {wanted} wanted, "
    "{fetched} to {worst} in whole lines, by how often a line is fetched.",
    "moved": "{kernels:.0f} kernel(s) move {moved:.3g} GB; {least:.3g} GB must move.",
}


def tiles() -> Explorer:
    """The tile of a matrix product: knobs, rate against the vendor library and the peak, a map of tiles."""
    sliders = ("size", "block_m", "block_n", "block_k", "num_warps", "num_stages")
    return Explorer(TILES, View(_tiles_headline, _tiles_pictures, sliders=sliders, compiler=True))


def fusion() -> Explorer:
    """An element-wise chain run four ways: time, kernels and bytes against a copy of the same bytes."""
    return Explorer(
        FUSION, View(_bandwidth_headline, _over("size", "fused", "dtype"), _moved_remark, ("size",), compiler=True)
    )


def gather() -> Explorer:
    """Rows picked from a table in order, sorted, at random, again and again; and how wide a row is."""
    view = View(
        _bandwidth_headline, _over("columns", "order", "dtype", "way"), _gather_remark, ("columns",), compiler=True
    )
    return Explorer(GATHER, view)


def softmax() -> Explorer:
    """Softmax over rows, forward and backward: how often each way reads a row, and what that costs."""
    return Explorer(
        SOFTMAX, View(_bandwidth_headline, _over("columns", "way", "dtype", "step"), _moved_remark, ("columns",))
    )


def backward() -> Explorer:
    """An operator forward and backward: the two times, their ratio, and what is kept between them."""
    return Explorer(BACKWARD, View(passes.headline, passes.pictures, passes.remark, ("size",), still=passes.counted))


def roofline() -> Explorer:
    """Any operator on this machine's roofline: the prediction, then the measurement; earlier points stay."""
    sliders = ("size", "batch")
    view = View(_operator_headline, _operator_pictures, _operator_remark, sliders, 1, 640, operators_picture)
    return Explorer(OPERATORS, view)


def amdahl(profile: Profile | None = None) -> AmdahlExplorer:
    """What speeding up one kind of operator does to the whole step; of ``profile``, else of the recorded GPT-2."""
    return AmdahlExplorer(profile or recorded.load("gpt2"))


def backends() -> BackendsExplorer:
    """One kernel compiled for four GPUs, side by side: matrix instruction, load width, registers. Needs no GPU."""
    return BackendsExplorer()


def touches(traffic: Traffic) -> TouchesExplorer:
    """Which elements each program of a traced kernel touches, step by step; of `compiler.trace` or ``Launch.trace``."""
    return TouchesExplorer(traffic)


def _operator_headline(result: Result) -> str:
    if result.seconds is None or result.baseline_seconds is None:
        return TEXT["refused"]
    parts = [TEXT["time"].format(time=seconds(result.seconds))]
    parts.append(TEXT["predicted"].format(time=seconds(result.baseline_seconds), share=result.speedup or 0))
    bound = next(key.removesuffix("_bound") for key in result.resources if key.endswith("_bound"))
    return " &nbsp;·&nbsp; ".join([*parts, TEXT["bound"].format(bound=bound)])


def _operator_remark(result: Result) -> str:
    if not result.nbytes:
        return ""
    numbers = {"flops": readable(result.flops, "FLOP"), "bytes": readable(result.nbytes, "B")}
    return TEXT["three"].format(**numbers, intensity=result.flops / result.nbytes)


def _operator_pictures(explorer: Explorer, result: Result) -> list[bytes]:
    trail = [r for r in explorer.seen() if r.seconds and r.flops and r.machine == result.machine]
    points = [(_point_name(r) if r.knobs == result.knobs else "", r.flops / r.nbytes, r.rate or 0.0) for r in trail]
    return [rooflines.plot(_machine_of(result, explorer), points=points).png]


def _machine_of(result: Result, explorer: Explorer) -> Machine:
    if result.source == RECORDED:
        return explorer.recording().machine
    return machine("cpu" if result.source == LIVE_CPU else "cuda")


def _point_name(result: Result) -> str:
    return f"{result.knobs['operator']} {result.knobs['size']} {result.knobs['dtype']}"


SHOWN = ("add", "sum", "gelu", "convolution 3x3", "matmul")


def operators_picture() -> Picture:
    """A choice of operators at size 4096 in bf16, as recorded; "linear" once for each batch."""
    recording = OPERATORS.recording()
    points = []
    for result in recording.where(size=4096, dtype="bf16"):
        name = str(result.knobs["operator"])
        name = f"linear, batch {result.knobs['batch']}" if name == "linear" else name
        if name == "linear, batch 4096":  # the same work as matmul
            continue
        if result.rate and (name in SHOWN or name.startswith("linear")):
            points.append((name, result.flops / result.nbytes, result.rate))
    return rooflines.plot(recording.machine, points=points)


def _tiles_headline(result: Result) -> str:
    if result.seconds is None or result.rate is None:
        return TEXT["refused"]
    giga = result.source == LIVE_CPU
    rate = f"{result.rate / 1e9:,.3g} GFLOP/s" if giga else f"{result.rate / 1e12:,.3g} TFLOP/s"
    parts = [TEXT["rate"].format(rate=rate, time=seconds(result.seconds))]
    if result.flops_fraction:
        parts.append(TEXT["peak"].format(share=result.flops_fraction, dtype=result.knobs["dtype"]))
    if result.speedup:
        parts.append(TEXT["ratio"].format(ratio=result.speedup, baseline=escape(result.baseline)))
    return " &nbsp;·&nbsp; ".join(parts)


def _tiles_pictures(explorer: Explorer, result: Result) -> list[bytes]:
    beside = {name: value for name, value in result.knobs.items() if name not in ("block_m", "block_n")}
    rows, columns = (
        next(knob for knob in TILES.knobs if knob.name == name).choices(result.source)
        for name in ("block_m", "block_n")
    )
    return [pictures.rate_bars(result), pictures.tile_map(explorer.seen(**beside), rows, columns, result)]


def _bandwidth_headline(result: Result) -> str:
    if result.seconds is None or result.bandwidth is None:
        return TEXT["refused"]
    parts = [TEXT["time"].format(time=seconds(result.seconds))]
    parts.append(TEXT["bandwidth"].format(value=result.bandwidth / 1e9))
    if result.bandwidth_fraction:
        parts.append(TEXT["copy"].format(share=result.bandwidth_fraction))
    if result.speedup:
        parts.append(TEXT["ratio"].format(ratio=result.speedup, baseline=escape(result.baseline)))
    return " &nbsp;·&nbsp; ".join(parts)


def _moved_remark(result: Result) -> str:
    if "kernels" not in result.resources:
        return ""
    moved, least = result.resources["bytes_moved"] / 1e9, result.nbytes / 1e9
    return TEXT["moved"].format(kernels=result.resources["kernels"], moved=moved, least=least)


def _gather_remark(result: Result) -> str:
    r = result.resources
    if "fetched_bytes" not in r:
        return ""
    sizes = {name: readable(int(r[f"{name}_bytes"]), "B") for name in ("wanted", "fetched", "worst")}
    return TEXT["picked"].format(unique=r["unique_rows"], rows=r["rows"], **sizes)


def _over(x: str, by: str, *same: str) -> Callable[[Explorer, Result], list[bytes]]:
    """Two pictures: times for each value of the knob ``by``, and its share of a copy's speed over the knob ``x``.

    Both show what was seen with the same values of the knobs ``same`` as now.
    """

    def draw(explorer: Explorer, result: Result) -> list[bytes]:
        alike = [*explorer.seen(**{name: result.knobs[name] for name in same}), result]
        latest = {(r.knobs[x], r.knobs[by]): r for r in alike}
        here = [r for (at, _), r in latest.items() if at == result.knobs[x]]
        return [pictures.time_bars(here, result, by), pictures.share_by(latest.values(), result, x, by)]

    return draw

"""How `explore.backward()` speaks of a result: forward beside backward, and the ratio of every operator seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oplab import drawing
from oplab.cost.costs import readable
from oplab.drawing import BLUE, FAINT, INK, ORANGE, Picture, new_figure, to_png
from oplab.experiments import RECORDED, Result
from oplab.experiments.backward import MENU, at_a_glance, on_paper
from oplab.timing import seconds

if TYPE_CHECKING:
    from oplab.widgets.explorer import Explorer

# What people read, in one place.
TEXT = {
    "refused": "<b>did not run</b>",
    "ratio": "backward takes <b>{ratio:.2f}</b> times as long as forward",
    "predicted": "{predicted:.2f} by the ceilings",
    "saves": "Keeps {saved} for the backward: {parts}.",
    "saves_nothing": "Keeps nothing for the backward.",
    "given": "{size} given to it",
    "output": "{size} of its output",
    "extra": "{size} besides",
    "forward": "forward",
    "backward": "backward",
    "bar": "{name}: {time};  {flops}, {bytes}",
    "floor": "orange: what this machine's ceilings allow at best",
    "ratios": "backward / forward, {dtype}, size {size}",
    "predicted_mark": "orange: by the ceilings",
    "counted": "Counted at size 4096 in bf16; nothing was run.",
    "moved_forward": "moved forward",
    "moved_backward": "moved backward",
    "kept": "kept in between",
    "megabytes": "MB",
}


def headline(result: Result) -> str:
    """The ratio of the two passes, measured and by the ceilings."""
    if result.seconds is None or not result.baseline_seconds:
        return TEXT["refused"]
    ratio = TEXT["ratio"].format(ratio=result.seconds / result.baseline_seconds)
    return f"{ratio} &nbsp;·&nbsp; {TEXT['predicted'].format(predicted=_by_ceilings(result))}"


def remark(result: Result) -> str:
    """What the forward keeps, and whose it is."""
    if "saved_bytes" not in result.resources:
        return ""
    saved, new, output = (int(result.resources[f"saved_{name}bytes"]) for name in ("", "new_", "output_"))
    if not saved:
        return TEXT["saves_nothing"]
    sizes = {"given": saved - new, "output": output, "extra": new - output}
    parts = [TEXT[name].format(size=readable(size, "B")) for name, size in sizes.items() if size]
    return TEXT["saves"].format(saved=readable(saved, "B"), parts=", ".join(parts))


def pictures(explorer: Explorer, result: Result) -> list[bytes]:
    """The two passes of this setting; the ratio of each operator seen at the same size and dtype."""
    same = explorer.seen(size=result.knobs["size"], dtype=result.knobs["dtype"])
    by_name = {str(r.knobs["operator"]): r for r in [*same, result] if r.seconds and r.baseline_seconds}
    return [pass_bars(result), ratio_bars([by_name[name] for name in MENU if name in by_name], result)]


def _by_ceilings(result: Result) -> float:
    return result.resources["backward_floor_seconds"] / result.resources["forward_floor_seconds"]


def pass_bars(result: Result) -> bytes:
    """Time of forward and backward, what each computes and moves, and a mark at the least time."""
    with drawing.lock:
        figure, axes = new_figure(4.2, 2.3)
        axes.set(xticks=[], yticks=[])
        if result.seconds is None or not result.baseline_seconds:
            return to_png(figure)
        top = max(result.seconds, result.baseline_seconds)
        for row, (name, spent) in enumerate(
            [(TEXT["backward"], result.seconds), (TEXT["forward"], result.baseline_seconds)]
        ):
            facts = {key: result.resources[f"{name}_{key}"] for key in ("flops", "bytes", "floor_seconds")}
            filled = result.source != RECORDED
            axes.barh(row, spent, height=0.42, facecolor=BLUE if filled else "white", edgecolor=BLUE, linewidth=1.5)
            axes.plot([facts["floor_seconds"]] * 2, [row - 0.26, row + 0.26], color=ORANGE, linewidth=3)
            label = TEXT["bar"].format(
                name=name,
                time=seconds(spent),
                flops=readable(facts["flops"], "FLOP"),
                bytes=readable(facts["bytes"], "B"),
            )
            axes.text(0, row + 0.3, label, fontsize=9, color=INK, va="bottom")
        axes.set(xlim=(0, top * 1.02), ylim=(-0.45, 1.75))
        axes.set_xlabel(TEXT["floor"], fontsize=8.5, color=FAINT)
        return to_png(figure)


def ratio_bars(results: list[Result], now: Result) -> bytes:
    """backward / forward of several operators, one bar each, with a mark at the predicted ratio."""
    with drawing.lock:
        figure, axes = new_figure(4.2, 3.0)
        axes.set(yticks=[])
        if not results:
            axes.set(xticks=[])
            return to_png(figure)
        ratios = [(r.seconds or 0) / (r.baseline_seconds or 1) for r in results]
        top = max([2.2, *ratios, *(_by_ceilings(r) for r in results)])
        for row, (result, ratio) in enumerate(zip(results, ratios, strict=True)):
            y = len(results) - 1 - row
            current = result.knobs == now.knobs
            filled = result.source != RECORDED
            axes.barh(y, ratio, height=0.6, facecolor=BLUE if filled else "white", edgecolor=INK if current else BLUE,
                      linewidth=2.5 if current else 1.2)  # fmt: skip
            axes.plot([_by_ceilings(result)] * 2, [y - 0.38, y + 0.38], color=ORANGE, linewidth=2.5)
            axes.text(-0.05, y, str(result.knobs["operator"]), fontsize=9, color=INK, va="center", ha="right")
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # over the lines at 1 and 2
            behind = max(ratio, _by_ceilings(result)) + 0.02 * top
            axes.text(behind, y, f"{ratio:.2f}", fontsize=9, color=INK, va="center", bbox=paper)
        axes.axvline(1, color=FAINT, linewidth=1, zorder=0)
        axes.axvline(2, color=FAINT, linewidth=1, zorder=0)
        axes.set(xlim=(-0.42 * top, top * 1.12), ylim=(-0.7, max(len(results), 4) - 0.3))
        axes.set_xticks([1, 2], ["1", "2"])
        title = TEXT["ratios"].format(dtype=now.knobs["dtype"], size=now.knobs["size"])
        axes.set_title(title, fontsize=9, color=INK, loc="left")
        axes.set_xlabel(TEXT["predicted_mark"], fontsize=8.5, color=FAINT)
        return to_png(figure)


def counted() -> Picture:
    """Bytes that each operator moves forward and backward and keeps in between; for viewers that run nothing."""
    looks = {
        "moved_forward": {"facecolor": BLUE, "edgecolor": BLUE},
        "moved_backward": {"facecolor": "white", "edgecolor": BLUE},
        "kept": {"facecolor": ORANGE, "edgecolor": ORANGE},
    }
    table = at_a_glance()[["operator", "forward bytes", "backward bytes", "saved"]]
    with drawing.lock:
        figure, axes = new_figure(6.4, 4.6)
        for row, name in enumerate(MENU):
            forward, backward, saved = on_paper(name, 4096, "bf16")
            sizes = (forward.bytes, backward.bytes, saved.bytes)
            for bar, (key, size) in enumerate(zip(looks, sizes, strict=True)):
                y = len(MENU) - row - 0.27 * bar
                label = TEXT[key] if row == 0 else None
                axes.barh(y, size / 1e6, height=0.22, linewidth=1.2, label=label, **looks[key])  # type: ignore[arg-type]
                axes.text(size / 1e6 + 3, y, f"{size / 1e6:,.0f}", fontsize=7, color=INK, va="center")
        axes.set_yticks([len(MENU) - row - 0.27 for row in range(len(MENU))], list(MENU), fontsize=9)
        axes.set_xlabel(TEXT["megabytes"], fontsize=8.5, color=FAINT)
        axes.set_title(TEXT["counted"], fontsize=9, color=INK, loc="left")
        axes.legend(fontsize=8, frameon=False, loc="upper right", bbox_to_anchor=(1.0, 0.48))
        return Picture(to_png(figure), f"{TEXT['counted']}\n{table.to_string(index=False)}")

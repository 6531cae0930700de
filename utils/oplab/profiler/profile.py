"""A profile: the cost and the time of each operator of a training step, joined."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from oplab import drawing
from oplab.drawing import BLUE, GREEN, INK, ORANGE, Picture
from oplab.machine import Machine, write_atomically
from oplab.profiler.levers import Advice, advise
from oplab.roofline import Bound, plot
from oplab.timing import seconds as readable

SCHEMA = 1

# What people read, in one place.
TEXT = {
    "head": "{step} per step on {machine}: {busy} in {calls} operator calls, {rest} launch overhead and idle",
    "over": "{step} per step on {machine}: {calls} operator calls take {busy} "
    "(they overlap, or run slower when profiled)",
    "schema": "{path} was written by another version (schema {found!r}, this one reads {want})",
    "broken": "the profile {path} cannot be read: {why}",
    "title": "where the time goes: {machine}, {date}",
    "rest": "launch overhead, idle",
}


@dataclass(frozen=True)
class ProfiledOperator:
    """All calls of one operator with the same shapes in one phase, summed.

    ``seconds`` is time on the device (CPU: inside the operator). ``bound`` and ``efficiency`` hold it against
    the measured ceilings: efficiency is its floor over its time.
    """

    name: str
    phase: str  # "forward", "backward" or "optimizer"
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    calls: int
    seconds: float
    matrix_flops: int
    vector_flops: int
    nbytes: int
    counted: bool
    bound: str
    efficiency: float
    channels_first: bool = False  # a convolution on NCHW data

    @property
    def flops(self) -> int:
        return self.matrix_flops + self.vector_flops


@dataclass(frozen=True)
class Profile:
    """A step taken apart. ``step_seconds`` was measured without the profiler; the operators with it."""

    machine: Machine
    date: str
    step_seconds: float
    launch_seconds: float
    operators: tuple[ProfiledOperator, ...]
    fusions: tuple[tuple[str, int, int], ...] = ()  # (operators, bytes that fusing them saves in all, places)
    title: str = ""

    @property
    def operator_seconds(self) -> float:
        return sum(op.seconds for op in self.operators)

    @property
    def idle_seconds(self) -> float:
        """Launch overhead and idle time: the step without what its operators take."""
        return max(0.0, self.step_seconds - self.operator_seconds)

    def share(self, *names: str) -> float:
        """Part of the step spent in operators whose name contains one of ``names``."""
        spent = sum(op.seconds for op in self.operators if any(name in op.name for name in names))
        return spent / max(self.step_seconds, self.operator_seconds)

    def by_bound(self) -> dict[str, float]:
        """Seconds per class, launch overhead and idle time with the overhead-bound."""
        spent = {bound.value: 0.0 for bound in Bound}
        for op in self.operators:
            spent[op.bound] += op.seconds
        spent[Bound.OVERHEAD.value] += self.idle_seconds
        return spent

    def by_phase(self) -> dict[str, float]:
        spent: dict[str, float] = {}
        for op in self.operators:
            spent[op.phase] = spent.get(op.phase, 0.0) + op.seconds
        return spent

    def frame(self) -> pd.DataFrame:
        """One row per operator, phase and shapes, longest first."""
        total = max(self.step_seconds, self.operator_seconds)
        rows = [
            {
                "operator": op.name,
                "phase": op.phase,
                "calls": op.calls,
                "ms": 1e3 * op.seconds,
                "share": op.seconds / total,
                "class": op.bound,
                "of attainable": op.efficiency,
                "GFLOP": op.flops / 1e9,
                "GB": op.nbytes / 1e9,
                "dtype": op.dtype,
                "shapes": " ".join("x".join(map(str, shape)) for shape in op.shapes[:3]),
            }
            for op in self.operators
        ]
        return pd.DataFrame(rows).sort_values("ms", ascending=False, ignore_index=True)

    def advice(self, most: int = 6) -> list[Advice]:
        """Which levers to pull, the one with most to gain first."""
        return advise(self)[:most]

    def plot(self, most: int = 12) -> Picture:
        """Where the time goes, by kind of operator, coloured by what limits it."""
        return time_picture(self, most)

    def roofline(self, most: int = 8) -> Picture:
        """The longest operators on the machine's roofline."""
        longest = sorted((op for op in self.operators if op.flops and op.nbytes), key=lambda op: -op.seconds)[:most]
        points = [(_short(op.name), op.flops / op.nbytes, op.flops / op.seconds) for op in longest]
        return plot(self.machine, points=points)

    def __repr__(self) -> str:
        text = TEXT["over" if self.operator_seconds > 1.05 * self.step_seconds else "head"].format(
            step=readable(self.step_seconds),
            machine=self.machine.name,
            busy=readable(self.operator_seconds),
            calls=sum(op.calls for op in self.operators),
            rest=readable(self.idle_seconds) if self.idle_seconds else "no",
        )
        table = self.frame().head(12).drop(columns=["shapes"])
        table["share"] = [f"{share:.1%}" for share in table["share"]]
        table["of attainable"] = [f"{part:.0%}" for part in table["of attainable"]]
        return f"{text}\n{table.to_string(index=False, float_format='%.3g')}"

    # -- keeping it

    def save(self, path: Path) -> None:
        data = {"schema": SCHEMA, **asdict(self), "machine": self.machine.as_dict()}
        head = {key: value for key, value in data.items() if key != "operators"}
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in data["operators"])
        write_atomically(path, json.dumps(head, indent=1)[:-2] + f',\n "operators": [\n{rows}\n]\n}}\n')

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a kept profile; ValueError names the file and what is wrong with it."""
        try:
            data = json.loads(path.read_text())
            if data.pop("schema", None) != SCHEMA:
                raise ValueError(TEXT["schema"].format(path=path, found="another", want=SCHEMA))
            machine = Machine.from_dict(data.pop("machine"))
            rows = data.pop("operators")
            operators = tuple(
                ProfiledOperator(**{**row, "shapes": tuple(tuple(shape) for shape in row["shapes"])}) for row in rows
            )
            fusions = tuple(tuple(entry) for entry in data.pop("fusions"))
            return cls(machine=machine, operators=operators, fusions=fusions, **data)
        except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(TEXT["broken"].format(path=path, why=error)) from error


COLOURS = {"compute": BLUE, "memory": ORANGE, "overhead": GREEN}


def time_picture(profile: Profile, most: int) -> Picture:
    """Bars of seconds per kind of operator; one colour per class."""
    spent: dict[str, dict[str, float]] = {}
    for op in profile.operators:
        kind = spent.setdefault(op.name, {})
        kind[op.bound] = kind.get(op.bound, 0.0) + op.seconds
    rows = sorted(spent.items(), key=lambda row: -sum(row[1].values()))[:most]
    if profile.idle_seconds:
        rows.append((TEXT["rest"], {"overhead": profile.idle_seconds}))
    with drawing.lock:
        figure, axes = drawing.new_figure(7.0, 0.3 * len(rows) + 0.9)
        most_time = max(sum(parts.values()) for _, parts in rows)
        for row, (_, parts) in enumerate(rows):
            left = 0.0
            for bound, value in parts.items():
                axes.barh(row, value, left=left, color=COLOURS[bound], height=0.65)
                left += value
            axes.text(left + 0.01 * most_time, row, readable(left), va="center", fontsize=8.5, color=INK)
        axes.set_yticks(range(len(rows)), [_short(name) for name, _ in rows])
        axes.set(xlim=(0, 1.15 * most_time), ylim=(len(rows) - 0.4, -0.6), xticks=[])
        for i, (bound, colour) in enumerate(COLOURS.items()):
            axes.text(
                0.98, 0.30 - 0.09 * i, f"{bound}-bound", color=colour, fontsize=9, ha="right", transform=axes.transAxes
            )
        title = TEXT["title"].format(machine=profile.machine.name, date=profile.date)
        figure.suptitle(title, fontsize=9, color=INK, x=0.01, ha="left")
        text = "; ".join(f"{name}: {readable(sum(parts.values()))}" for name, parts in rows)
        return Picture(drawing.to_png(figure), text)


def _short(name: str) -> str:
    name = name.removeprefix("aten.").replace("_scaled_dot_product_", "").strip("_")
    return name if len(name) <= 34 else name[:33] + "…"

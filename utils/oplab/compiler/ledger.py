"""The books of one trace: who loaded and stored which element, and what went wrong. NumPy only.

Every storage has a shadow: arrays with one entry per ``unit`` bytes that hold the programs that touched
it. Program numbers are kept plus one, so that fresh memory, all zeros, says "nobody" and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

LOAD, STORE, ATOMIC = "load", "store", "atomic"
KEPT_ELEMENTS = 2**23  # elements whose indices are kept for pictures: 32 MB

Place = tuple[str, int]  # function and line


class Shadow:
    """Of one storage: first and last program that did what to each unit, and what nobody has stored yet."""

    NAMES = ("writer", "first_reader", "last_reader", "first_atomic", "last_atomic")

    def __init__(self, nbytes: int, unit: int) -> None:
        self.unit = unit
        count = -(-nbytes // unit)
        self.writer, self.first_reader, self.last_reader = (np.zeros(count, np.int32) for _ in range(3))
        self.first_atomic, self.last_atomic = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self.loaded, self.stored = np.zeros(count, bool), np.zeros(count, bool)
        self.empty: np.ndarray | None = None  # of outputs: units without a value yet
        self.any_stored = self.any_loaded = self.any_atomic = False

    def finer(self, unit: int, regions: list[Region]) -> None:
        """Entries per ``unit`` bytes from now on, because an access is smaller or not aligned."""
        times, self.unit = self.unit // unit, unit
        for name in (*self.NAMES, "loaded", "stored", "empty"):
            if getattr(self, name) is not None:
                setattr(self, name, np.repeat(getattr(self, name), times))
        for region in regions:
            if region.shadow is self:
                region.loaded, region.stored = np.repeat(region.loaded, times), np.repeat(region.stored, times)


@dataclass(eq=False)
class Region:
    """The addresses of one tensor argument. Each has addresses of its own, even where storages are shared.

    ``start`` to ``stop``: everything nearest to this tensor. ``base``: byte 0 of the storage. ``low`` to
    ``high``: the bytes of the storage that may be touched. Addresses in bytes, below 2^63.
    """

    number: int  # among the tensors of the call
    name: str
    start: int
    stop: int
    base: int
    low: int
    high: int
    itemsize: int
    shadow: Shadow
    own: np.ndarray | None = None  # of outputs: byte offset of each element
    loaded: np.ndarray = field(init=False)
    stored: np.ndarray = field(init=False)
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.shadow.loaded)
        self.loaded, self.stored = np.zeros(size, bool), np.zeros(size, bool)
        names = ("load_bytes", "store_bytes", "masked_loads", "masked_stores", "atomics")
        self.counts = dict.fromkeys(names, 0)


class Ledger:
    """``begin(program)``, then ``access(…)`` for each load, store and atomic of that program."""

    def __init__(self, regions: list[Region]) -> None:
        self.regions = sorted(regions, key=lambda region: region.start)
        self.starts = np.array([region.start for region in self.regions], np.uint64)
        self.program = 0
        self.problems: dict[tuple, dict] = {}
        self.notes: dict[tuple, dict] = {}
        self.met: dict[int, set] = {}  # single-lane atomics of each program: where programs may wait for another
        self.steps: list[tuple[int, int, str, Place]] | None = []
        self.elements: list[np.ndarray] = []
        self.kept = 0

    def begin(self, program: int) -> None:
        self.program = program + 1

    def access(
        self,
        kind: str,
        addresses: np.ndarray,
        mask: np.ndarray,
        itemsize: int,
        place: Place,
        *,
        other: bool = True,
        reads: bool = True,
        meets: bool = False,
    ) -> np.ndarray | None:
        """Count one access; returns which lanes, like ``addresses``, lie outside every tensor (None: no lane).

        ``other``: a value was given for lanes that are masked off. ``reads``: this atomic uses the old value.
        ``meets``: this atomic orders what comes before and after it.
        """
        if not self.regions:
            return mask if mask.any() else None
        lanes = addresses.reshape(-1)
        alive = mask.reshape(-1)
        whole = bool(alive.all())
        live = lanes if whole else lanes[alive]
        if not whole:
            self._masked(kind, lanes, len(lanes) - len(live), live, place, other)
        if not len(live):
            return None
        low, high = int(live.min()), int(live.max())
        region = self._nearest(low)
        if region.base + region.low <= low and high + itemsize <= region.base + region.high:
            self._touch(kind, region, live, itemsize, place, reads, meets)
            return None
        return self._split(kind, live, mask, itemsize, place, reads, meets)

    def _nearest(self, address: int) -> Region:
        return self.regions[max(0, int(np.searchsorted(self.starts, np.uint64(address), "right")) - 1)]

    def _masked(self, kind: str, lanes: np.ndarray, off: int, live: np.ndarray, place: Place, other: bool) -> None:
        region = self._nearest(int(live[0] if len(live) else lanes[0]))
        region.counts["masked_loads" if kind == LOAD else "masked_stores"] += off
        if kind == LOAD and not other:
            note = self.notes.setdefault(("no other", region.name, place), {"count": 0})
            note["count"] += off

    def _split(
        self, kind: str, live: np.ndarray, mask: np.ndarray, itemsize: int, place: Place, reads: bool, meets: bool
    ) -> np.ndarray | None:
        """An access that leaves its tensor or touches several."""
        owner = np.maximum(np.searchsorted(self.starts, live, "right").astype(np.int64) - 1, 0)
        outside = np.zeros(len(live), bool)
        for number in np.unique(owner):
            region = self.regions[number]
            mine = owner == number
            # A null or wild pointer may lie below the base: compare as signed numbers.
            offset = live.view(np.int64) - region.base
            out = mine & ((offset < region.low) | (offset + itemsize > region.high))
            if out.any():
                outside |= out
                first = int(offset[np.argmax(out)])
                past: int | None = first - region.high if first >= region.low else first - region.low
                if not region.start <= region.base + first < region.stop:
                    past = None  # far from every tensor
                self._problem(f"out-of-bounds {kind}", region, place, int(out.sum()), past=past)
            if (inside := mine & ~out).any():
                self._touch(kind, region, live[inside], itemsize, place, reads, meets)
        if not outside.any():
            return None
        lanes = np.zeros(mask.shape, bool)
        lanes[mask] = outside
        return lanes

    def _touch(
        self, kind: str, region: Region, live: np.ndarray, itemsize: int, place: Place, reads: bool, meets: bool
    ) -> None:
        shadow = region.shadow
        offset = live.view(np.int64) - region.base if live.dtype == np.uint64 else live - region.base
        unit = min(shadow.unit, itemsize)
        if int(np.bitwise_or.reduce(offset)) & (unit - 1):
            unit = 1
        if unit < shadow.unit:
            shadow.finer(unit, self.regions)
        where = offset >> (unit.bit_length() - 1)
        if itemsize > unit:
            where = (where[:, None] + np.arange(itemsize // unit)).reshape(-1)
        self._keep(kind, region, offset, itemsize, place)
        if meets and len(live) == 1:
            self.met.setdefault(self.program, set()).add((id(shadow), int(offset[0])))
        if kind != STORE and reads:
            self._load(region, where, place, kind)
            region.counts["load_bytes"] += len(live) * itemsize
        if kind != LOAD:
            self._store(region, where, place, kind)
            region.counts["store_bytes"] += len(live) * itemsize
        if kind == ATOMIC:
            region.counts["atomics"] += len(live)

    def _keep(self, kind: str, region: Region, offset: np.ndarray, itemsize: int, place: Place) -> None:
        """For pictures: which elements of the tensor this access touched."""
        if self.steps is None:
            return
        self.kept += len(offset)
        if self.kept > KEPT_ELEMENTS:
            self.steps, self.elements = None, []
            return
        self.steps.append((self.program - 1, region.number, kind, place))
        self.elements.append((offset // region.itemsize).astype(np.int32 if region.high < 2**31 else np.int64))

    def _load(self, region: Region, where: np.ndarray, place: Place, kind: str) -> None:
        shadow, me = region.shadow, self.program
        region.loaded[where] = True
        shadow.loaded[where] = True
        if shadow.empty is not None and (missing := shadow.empty[where]).any():
            self._problem("uninitialised load", region, place, int(missing.sum()), where=where[missing])
        if kind == ATOMIC:
            return
        if shadow.any_stored:
            self._race("race: load after store", region, where, shadow.writer, shadow.writer, place)
        if shadow.any_atomic:
            self._race("race: load after atomic", region, where, shadow.first_atomic, shadow.last_atomic, place)
        shadow.any_loaded = True
        first = shadow.first_reader[where]
        if not first.all():
            shadow.first_reader[where] = np.where(first == 0, me, first)
        shadow.last_reader[where] = me

    def _store(self, region: Region, where: np.ndarray, place: Place, kind: str) -> None:
        shadow, me = region.shadow, self.program
        region.stored[where] = True
        shadow.stored[where] = True
        if shadow.empty is not None:
            shadow.empty[where] = False
        if kind == ATOMIC:
            if shadow.any_stored:
                self._race("race: atomic after store", region, where, shadow.writer, shadow.writer, place)
            if shadow.any_loaded:
                self._race("race: atomic after load", region, where, shadow.first_reader, shadow.last_reader, place)
            shadow.any_atomic = True
            first = shadow.first_atomic[where]
            shadow.first_atomic[where] = np.where(first == 0, me, first)
            shadow.last_atomic[where] = me
            return
        if shadow.any_stored:
            self._race("race: two stores", region, where, shadow.writer, shadow.writer, place)
        if shadow.any_loaded:
            self._race("race: store after load", region, where, shadow.first_reader, shadow.last_reader, place)
        if shadow.any_atomic:
            self._race("race: store after atomic", region, where, shadow.first_atomic, shadow.last_atomic, place)
        shadow.any_stored = True
        shadow.writer[where] = me

    def _race(
        self, kind: str, region: Region, where: np.ndarray, first: np.ndarray, last: np.ndarray, place: Place
    ) -> None:
        """Programs run one after the other here: if the first and the last to do it were this one, all were."""
        me = self.program
        other = first[where]
        other[other == me] = 0
        if last is not first:
            other = np.maximum(other, np.where((later := last[where]) == me, 0, later))
        if not other.any():
            return
        mine = self.met.get(me)
        if mine:  # a lock or a counter: both programs went through the same atomic
            for program in np.unique(other[other != 0]):
                if mine & self.met.get(int(program), set()):
                    other = np.where(other == program, 0, other)
            if not other.any():
                note = self.notes.setdefault(("ordered", region.name, place), {"count": 0})
                note["count"] += len(where)
                return
        found = other != 0
        who = int(other[np.argmax(found)]) - 1
        self._problem(kind, region, place, int(found.sum()), where=where[found], other=who)

    def _problem(
        self,
        kind: str,
        region: Region,
        place: Place,
        count: int,
        *,
        where: np.ndarray | None = None,
        past: int | None = None,
        other: int | None = None,
    ) -> None:
        """One more of a problem; the first of its kind at this tensor and line is the example.

        ``count``: lanes outside; else units of the shadow at ``where``, kept as bytes. ``past``: bytes after
        the end of the tensor or, negative, before its start.
        """
        size = 1 if where is None else region.shadow.unit
        entry = self.problems.get((kind, region.name, place))
        if entry is not None:
            entry["count"] += count * size
            return
        self.problems[kind, region.name, place] = {
            "count": count * size, "program": self.program - 1, "other": other, "past": past,
            "byte": None if where is None else int(where[0]) * size,
        }  # fmt: skip

    def never_stored(self, region: Region) -> int:
        """Elements of an output without a value at the end."""
        empty = region.shadow.empty
        if empty is None or region.own is None:
            return 0
        return int(empty[region.own // region.shadow.unit].sum())

"""The dispatcher's table of one operator: which kernel runs for which kind of tensor."""

from __future__ import annotations

import re

import pandas as pd
import torch

# What people read, in one place.
TEXT = {
    "unknown": "PyTorch has no operator {name!r}; names look like 'aten::gelu' or 'aten::add.Tensor'",
    "kernel": "a kernel of its own",
    "default backend kernel": "one kernel for every backend",
    "math kernel": "other operators, called in turn",
    "autograd kernel": "notes the backward, then asks again",
    "backend fallback": "nothing of its own: passes on",
    "none": "none in this build",
}
# What a tensor's call asks for, from the first stop to the last.
KEYS = ("AutocastCUDA", "AutogradCPU", "AutogradCUDA", "CPU", "CUDA", "XPU", "MPS", "Meta")


def dispatch_table(operator: str) -> pd.DataFrame:
    """One row per dispatch key of ``operator`` ("aten::gelu"): what is registered for it, and in which file.

    ValueError for an operator that PyTorch does not have. Builds differ: a CPU build has no CUDA kernels.
    """
    try:
        dump = torch._C._dispatch_dump_table(operator)
    except RuntimeError as error:
        raise ValueError(TEXT["unknown"].format(name=operator)) from error
    entries = dict(line.split(": ", 1) for line in dump.splitlines() if ": " in line)
    if not entries:
        raise ValueError(TEXT["unknown"].format(name=operator))
    rows = [(key, *_read(entries.get(key, ""))) for key in KEYS]
    return pd.DataFrame(rows, columns=["key", "what runs", "registered in"])


def _read(entry: str) -> tuple[str, str]:
    kind, place = re.search(r"\[([^\]]*)\]\s*$", entry), re.search(r"registered at (\S+)", entry)
    if kind is None or place is None:
        return TEXT["none"], ""
    return TEXT.get(kind[1], kind[1]), re.split(r"[/\\]", place[1])[-1]

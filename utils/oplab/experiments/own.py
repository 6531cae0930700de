"""The tools of a chapter, turned on a model that the learner brings."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from torch import nn

from oplab import timing
from oplab.experiments.live import TEXT as LIVE_TEXT
from oplab.kernels.matmul import Tile, flops

# What people read, in one place.
TEXT = {
    "no_linear": "this model has no nn.Linear that was called with these inputs",
}


def linear_products(model: nn.Module, *inputs: torch.Tensor, tile: Tile = Tile(), sms: int = 132) -> pd.DataFrame:
    """The matrix products of every ``nn.Linear`` in one forward call of ``model``, as a table.

    M, N, K; share of these FLOPs; tiles of C for ``tile``; ``waves`` of tiles over ``sms``
    multiprocessors (132 on an H200); ``busy``, the share of the last wave's places that are filled,
    averaged over all waves. ValueError when no linear layer was called.
    """
    rows: list[dict] = []

    def note(layer: nn.Linear, seen: tuple[torch.Tensor, ...], name: str) -> None:
        K = layer.in_features
        rows.append({"layer": name, "M": seen[0].numel() // K, "N": layer.out_features, "K": K})

    hooks = [
        module.register_forward_pre_hook(lambda layer, seen, name=name: note(layer, seen, name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not rows:
        raise ValueError(TEXT["no_linear"])
    table = pd.DataFrame(rows)
    work = [flops(M, N, K) for M, N, K in zip(table.M, table.N, table.K, strict=True)]
    table["share"] = [f"{part / sum(work):.0%}" for part in work]
    tiles = (-(-table.M // tile.block_m)) * (-(-table.N // tile.block_n))
    table["tiles"] = tiles
    table["waves"] = (tiles / sms).round(2)
    table["busy"] = [f"{n / (-(-n // sms) * sms):.0%}" for n in tiles]
    return table


def compile_gain(function: Callable[..., object], *inputs: torch.Tensor) -> pd.DataFrame:
    """Eager against ``torch.compile`` on your function: median time of each, and the ratio.

    Where there is no C++ compiler (CPU) the second row says so instead of a time.
    """
    device = inputs[0].device
    eager = timing.measure(lambda: function(*inputs), device=device)
    rows = [{"how": "eager", "time": timing.seconds(eager.median), "speed-up": "1.00 x"}]
    quick = torch.compile(function)
    try:
        quick(*inputs)
    except Exception as error:
        if "InvalidCxxCompiler" not in f"{type(error).__name__} {error}":
            raise
        rows.append({"how": "torch.compile", "time": LIVE_TEXT["no_compiler"], "speed-up": ""})
        return pd.DataFrame(rows)
    compiled = timing.measure(lambda: quick(*inputs), device=device)
    ratio = f"{eager.median / compiled.median:.2f} x"
    rows.append({"how": "torch.compile", "time": timing.seconds(compiled.median), "speed-up": ratio})
    return pd.DataFrame(rows)

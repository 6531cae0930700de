"""The table of predicted against counted bytes, from the recording that benchmarks/counters.py made."""

from __future__ import annotations

import json

import pandas as pd

from oplab.profiler.recorded import FOLDER


def counted_table(machine: str = "nvidia-h200") -> pd.DataFrame:
    """One row per operator: GB predicted and counted, their ratio, and µs by ncu and by `measure`.

    An operator that ncu saw no kernel of (a copy is done by the copy engine) is left out.
    """
    data = json.loads((FOLDER / machine / "counters.json").read_text())
    rows = []
    for row in data["rows"]:
        predicted = row["predicted_read"] + row["predicted_written"]
        counted = row["dram_read"] + row["dram_written"]
        if row["kernels"]:
            rows.append(
                {
                    "operator": row["operator"],
                    "predicted GB": f"{predicted / 1e9:.3f}",
                    "counted GB": f"{counted / 1e9:.3f}",
                    "ratio": f"{counted / predicted:.2f}",
                    "ncu µs": f"{row['ncu_ns'] / 1e3:,.0f}",
                    "measured µs": f"{row['measured_ns'] / 1e3:,.0f}",
                }
            )
    return pd.DataFrame(rows)

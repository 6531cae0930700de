"""A bundle (see `source`) made into functions again, in a worker process."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

DECORATORS = {
    "triton": ("triton", "jit"),
    "gluon": ("triton.experimental.gluon", "jit"),
    "constexpr": ("triton", "constexpr_function"),
}


def load(bundle: list[dict], folder: Path) -> Any:
    """The kernel, decorated. Its files in ``folder`` keep the line numbers of the originals."""
    made: list[Any] = []
    for number, entry in enumerate(bundle):
        path = folder / f"{number}-{entry['name']}.py"
        # Triton reads the source of a function from its file.
        path.write_text("\n" * (entry["first_line"] - 1) + entry["text"])
        scope: dict[str, Any] = {"__name__": f"kernel_{number}"}
        scope |= {name: importlib.import_module(module) for name, module in entry["modules"].items()}
        for name, (module, attribute) in entry["attributes"].items():
            scope[name] = getattr(importlib.import_module(module), attribute)
        scope |= {name: pickle.loads(value) for name, value in entry["values"].items()}
        scope |= {name: made[position] for name, position in entry["functions"].items()}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        module, decorator = DECORATORS[entry["kind"]]
        options = {"noinline": True} if entry["noinline"] else {}
        decorate = getattr(importlib.import_module(module), decorator)
        made.append(decorate(scope[entry["name"]], **options))
        scope[entry["name"]] = made[-1]
    return made[-1]

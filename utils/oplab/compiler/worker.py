"""The worker that compiles: ``python -m oplab.compiler.worker``. It must not see TRITON_INTERPRET."""

from __future__ import annotations

import pickle
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from oplab.compiler import process
from oplab.compiler.loading import load

PTXAS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
}


def compile_one(request: dict, report: Callable[[float], None]) -> dict:
    """What Triton made of the request's kernel, or ``{"error": …}`` in the learner's terms."""
    if request.get("ping"):
        import triton

        return {"version": triton.__version__}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, process.captured_output() as printed:
        try:
            answer = _compile(request, Path(folder))
            error = None
        except Exception as caught:  # whatever the compiler raises is an answer, not the worker's end
            error = _explained(caught, request["bundle"])
    if error is not None:
        return {"error": error | {"printed": printed[0][-4000:]}}
    if "cubin" in answer["asm"]:
        counts = {name: pattern.findall(printed[0]) for name, pattern in PTXAS.items()}
        answer |= {name: int(found[-1]) if found else 0 for name, found in counts.items()}
    return answer | {"seconds": time.perf_counter() - began}


def _compile(request: dict, folder: Path) -> dict:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource
    if request["bundle"][-1]["kind"] == "gluon":
        from triton.experimental.gluon._runtime import GluonASTSource

        source = GluonASTSource
    kernel = load(request["bundle"], folder)
    constants = pickle.loads(request["constants"])
    made = source(kernel, request["signature"], constants, request["attributes"])
    target = GPUTarget(request["backend"], request["arch"], request["warp_size"])
    compiled = triton.compile(made, target=target, options=request["options"])
    return {
        "asm": dict(compiled.asm),
        "shared_bytes": int(compiled.metadata.shared),
        "num_warps": int(compiled.metadata.num_warps),  # more than asked for where warps are specialised
        "triton": triton.__version__,
    }


def _explained(error: BaseException, bundle: list[dict]) -> dict:
    """Function, line and message of the innermost place in the learner's source."""
    found = {"function": bundle[-1]["name"], "line": 0, "message": "", "kind": type(error).__name__}
    cause: BaseException | None = error
    while cause is not None:
        node, text = getattr(cause, "node", None), getattr(cause, "src", None)
        if node is not None and text is not None:
            entry = next((e for e in bundle if e["text"].strip() == text.strip()), None)
            if entry is not None:
                found["function"], found["line"] = entry["name"], entry["first_line"] + node.lineno - 1
                found["text"] = entry["text"].splitlines()[node.lineno - 1]
        said = getattr(cause, "error_message", None) if hasattr(cause, "error_message") else str(cause)
        found["message"] = said or found["message"]
        following = cause.__cause__
        cause = following if following is not cause else None
    if not found["message"]:
        found["message"] = str(error) or type(error).__name__
    return found


if __name__ == "__main__":
    process.serve(compile_one)

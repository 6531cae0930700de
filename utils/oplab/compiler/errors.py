"""What goes wrong in a learner's kernel, said in the learner's terms."""

from __future__ import annotations

# What people read, in one place.
TEXT = {
    "line": "line {line} of {name}: {message}\n    {text}",
    "plain": "{name}: {message}",
    "no_triton": "this needs Triton, which is not installed here; `oplab doctor` says how to get it",
}


class TritonMissing(RuntimeError):
    """Triton is needed, and not installed on this machine."""

    def __init__(self) -> None:
        super().__init__(TEXT["no_triton"])


class KernelError(RuntimeError):
    """A kernel that Triton refuses or that fails when it runs.

    ``name`` the function, ``line`` its number in the learner's file or cell (0: unknown), ``text`` what
    stands there, ``message`` what is wrong with it.
    """

    def __init__(self, name: str, message: str, line: int = 0, text: str = "") -> None:
        form = TEXT["line" if line else "plain"]
        super().__init__(form.format(name=name, line=line, message=message, text=text.strip()).rstrip())
        self.name, self.message, self.line, self.text = name, message, line, text.strip()

"""A long-lived worker process: requests and answers through pipes, time limits, restart when it dies.

The other end is `serve`. A worker has its own environment, since Triton reads ``TRITON_INTERPRET``
when it is first imported: one worker compiles, another one interprets.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

# What people read, in one place.
TEXT = {
    "timeout": "gave up after {seconds:g} s: a loop that never ends, or one that Triton unrolls? {hint}",
    "hint": "The limit is the argument `timeout`.",
    "died": "the {what} stopped in the middle ({how}); it starts afresh with the next call. {last}",
    "no_start": "the {what} cannot start: {last}",
}


class WorkerError(RuntimeError):
    """The worker took too long or died; the next request starts a new one."""


class Worker:
    """One worker process, started at the first request. Requests of several threads queue."""

    def __init__(self, module: str, what: str, environment: dict[str, str | None]) -> None:
        self.module, self.what, self.environment = module, what, environment
        self.process: subprocess.Popen | None = None
        self._lock = threading.Lock()
        self._log: IO[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory | None = None
        atexit.register(self.stop)

    def ask(self, request: dict, timeout: float, progress: Callable[[float], None] | None = None) -> dict:
        """The worker's answer; ``progress`` hears the share that is done, where the worker tells it."""
        with self._lock:
            process = self._running()
            timer = threading.Timer(timeout, process.kill)
            end = time.monotonic() + timeout
            try:
                _send(process.stdin, request)
                timer.start()  # the first answer may include the import of Triton
                while isinstance(answer := _receive(process.stdout), float):
                    if progress is not None:
                        progress(answer)
                return answer
            except (EOFError, OSError) as error:
                how = process.wait()
                self.process = None
                if time.monotonic() >= end:
                    text = TEXT["timeout"].format(seconds=timeout, hint=TEXT["hint"])
                else:
                    text = TEXT["died"].format(what=self.what, how=_exit(how), last=self._last_words())
                raise WorkerError(text) from error
            except BaseException:  # interrupted half-way through an answer: the pipe is out of step
                self.stop()
                raise
            finally:
                timer.cancel()

    def start(self) -> None:
        """Begin to start it, without waiting until it is ready."""
        with self._lock:
            self._running()

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _running(self) -> subprocess.Popen:
        if self.process is None or self.process.poll() is not None:
            environment = {**os.environ, **{k: v for k, v in self.environment.items() if v is not None}}
            for name in [name for name, value in self.environment.items() if value is None]:
                environment.pop(name, None)
            # What a killed worker leaves behind goes with its folder; Triton's own cache is not the learner's.
            self._folder = tempfile.TemporaryDirectory(prefix="oplab-worker-", ignore_cleanup_errors=True)
            environment |= {"TMPDIR": self._folder.name, "TRITON_CACHE_DIR": f"{self._folder.name}/cache"}
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the worker lives)
            command = [sys.executable, "-m", self.module]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment,
                start_new_session=True,  # Jupyter's "interrupt" signals the kernel's whole process group
            )  # fmt: skip
        return self.process

    def _last_words(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _send(pipe: Any, message: object) -> None:
    data = pickle.dumps(message)
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _receive(pipe: Any) -> Any:
    header = _exactly(pipe, 8)
    return pickle.loads(_exactly(pipe, struct.unpack("<Q", header)[0]))


def _exactly(pipe: Any, count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


# --- the worker's side ---------------------------------------------------------------------------


def serve(handle: Callable[[dict, Callable[[float], None]], dict]) -> None:
    """Answer requests until the pipe closes. What a kernel prints does not get into the pipe."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        try:
            request = _receive(requests)
        except EOFError:
            return
        _send(answers, handle(request, lambda share: _send(answers, float(share))))


@contextlib.contextmanager
def captured_output() -> Any:
    """What C and Python code print to stdout and stderr meanwhile, as a list of one text."""
    kept = [""]
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        before = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield kept
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in zip((1, 2), before, strict=True):
                os.dup2(old, number)
                os.close(old)
            file.seek(0)
            kept[0] = file.read().decode(errors="replace")

"""The Triton kernels without a GPU: interpreted, in a process of their own (Triton reads the variable at import)."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton does not exist on this platform")
@pytest.mark.parametrize(("file", "least"), [("interpreted_kernels.py", 70), ("interpreted_rows.py", 114)])
def test_triton_kernels_in_the_interpreter(file, least):
    path = Path(__file__).with_name(file)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least, done.stdout
    assert "skipped" not in done.stdout

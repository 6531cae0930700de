"""What `compile_for` says without a GPU, held against the GPU itself. Run with: pytest tests/gpu."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA GPU here; this suite runs on the recording machine"
    ),
]


def benchmark():
    path = Path(__file__).parents[2] / "benchmarks/compiled.py"
    spec = importlib.util.spec_from_file_location("compiled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(600)
def test_resources_and_occupancy_agree_with_the_device():
    table = benchmark().frame()
    assert len(table) >= 30
    assert (table["device"] != "refused").sum() >= 30
    assert table["agrees"].all(), table[~table["agrees"]].to_string()


@pytest.mark.parametrize("n", [1, 31, 1024, 100_003])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
@pytest.mark.parametrize("vector", [1, 8, 16])
def test_the_gluon_copy_copies(n, dtype, vector):
    from oplab.kernels import copy

    x = torch.randint(0, 100, (n,), device="cuda").to(dtype)
    out = torch.full_like(x, 77)
    got = copy.Launch(x, out, copy.Vector(vector, unroll=2))()
    assert torch.equal(got, x)
    with pytest.raises(ValueError, match="one shape"):
        copy.Launch(x, torch.empty(n + 1, dtype=dtype, device="cuda"))

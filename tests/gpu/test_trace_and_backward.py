"""BACKWARD live on the GPU, and tracing a kernel whose tensors lie there. Run with: pytest tests/gpu."""

import pytest
import torch
from oplab.experiments import BACKWARD, LIVE_GPU
from oplab.experiments import backward as module
from oplab.kernels import matmul, pointwise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA GPU here; this suite runs on the recording machine"
    ),
]


@pytest.mark.parametrize("operator", list(module.MENU))
def test_every_operator_runs_forward_and_backward(operator):
    for dtype in ("bf16", "fp32"):
        result = BACKWARD.run(source=LIVE_GPU, operator=operator, size=1024, dtype=dtype)
        assert result.ok, result.reason
        assert result.seconds > 0
        assert result.baseline_seconds > 0
        assert result.relative_error <= module.LIMIT[dtype]


def test_the_backward_of_a_product_costs_about_two():
    result = BACKWARD.run(source=LIVE_GPU, operator="linear", size=4096, dtype="bf16")
    assert 1.3 < result.seconds / result.baseline_seconds < 4


def test_tensors_on_the_gpu_are_traced():
    a, b = (torch.randn(100, 100, device="cuda", dtype=torch.float16) for _ in range(2))
    launch = matmul.Launch(a, b, tile=matmul.Tile(block_m=32, block_n=32, block_k=32))
    traffic = launch.trace()
    assert traffic.ok, traffic.problems
    assert traffic.tensors[0].load_bytes == 4 * 100 * 100 * 2  # 4 columns of tiles, each reads all of A
    timed = launch()
    assert torch.isfinite(timed).all()


def test_bfloat16_is_refused_on_the_gpu_too():
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    launch = pointwise.Launch(x, x[0].clone(), x[0].clone(), x.clone(), torch.empty_like(x))
    with pytest.raises(ValueError, match="bfloat16"):
        launch.trace()

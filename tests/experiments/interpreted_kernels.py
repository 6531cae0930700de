"""Run by test_kernels_interpreted.py in a process of its own, where Triton interprets instead of compiling.

A pass here says that the kernel's indices, masks and arithmetic are right. It does not say that the
compiled kernel is right: that is what tests/gpu is for.
"""

import pytest
import torch
from oplab import timing
from oplab.experiments.live import relative_error
from oplab.kernels import matmul, pointwise

SHAPES = [(64, 64, 64), (37, 53, 19), (1, 1, 1), (128, 32, 48), (130, 72, 40), (1, 65, 33), (65, 1, 33), (33, 65, 1)]
LIMIT = {torch.float32: 1e-5, torch.float16: 2e-3}


def poisoned(shape, dtype):
    tensor = torch.empty(shape, dtype=dtype)
    timing.poison(tensor)
    return tensor


def check(got, reference, dtype):
    assert timing.unwritten(got) == 0
    error, worst = relative_error(got, reference.float())
    assert error <= LIMIT[dtype]
    assert worst <= 50 * LIMIT[dtype]


@pytest.mark.parametrize("dtype", list(LIMIT))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tile", [matmul.Tile(16, 16, 16), matmul.Tile(32, 64, 16), matmul.Tile(64, 32, 32, group_m=2)])
def test_tiled(shape, dtype, tile):
    M, N, K = shape
    a, b = torch.randn(M, K).to(dtype), torch.randn(K, N).to(dtype)
    out = poisoned((M, N), dtype)
    check(matmul.Launch(a, b, out, tile=tile)(), matmul.reference(a, b), dtype)


@pytest.mark.parametrize("dtype", list(LIMIT))
@pytest.mark.parametrize("shape", [(64, 64, 64), (128, 32, 48), (130, 72, 40), (1, 64, 32)])
def test_persistent(shape, dtype):
    M, N, K = shape
    a, b = torch.randn(M, K).to(dtype), torch.randn(K, N).to(dtype)
    out = poisoned((M, N), dtype)
    launch = matmul.Launch(a, b, out, kernel="persistent", tile=matmul.Tile(32, 32, 16))
    check(launch(), matmul.reference(a, b), dtype)


def test_persistent_says_which_rows_do_not_fit_a_descriptor():
    with pytest.raises(ValueError, match="16-byte"):
        matmul.persistent(torch.randn(8, 5), torch.randn(5, 8))


@pytest.mark.parametrize("shape", [(0, 5, 4), (5, 0, 4), (5, 4, 0)])
@pytest.mark.parametrize("kernel", ["tiled", "persistent"])
def test_empty_products(shape, kernel):
    M, N, K = shape
    out = poisoned((M, N), torch.float32)
    got = matmul.Launch(torch.randn(M, K), torch.randn(K, N), out, kernel=kernel, tile=matmul.Tile(16, 16, 16))()
    assert got.shape == (M, N)
    assert (got == 0).all()


def test_operands_that_are_not_contiguous():
    a, b = torch.randn(40, 60).t(), torch.randn(80, 40)[::2]
    check(matmul.Launch(a, b, tile=matmul.Tile(16, 16, 16))(), matmul.reference(a, b), torch.float32)


@pytest.mark.parametrize("dtype", list(LIMIT))
@pytest.mark.parametrize("shape", [(5, 7), (64, 100), (1, 1), (3, 257), (17, 32)])
@pytest.mark.parametrize("block", [pointwise.Block(32, 1, 4), pointwise.Block(64, 4, 4)])
def test_chain(shape, dtype, block):
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    bias, scale = (torch.randn(shape[1]).to(dtype) for _ in range(2))
    got = pointwise.fused(x, bias, scale, residual, poisoned(shape, dtype), block)
    check(got, pointwise.reference(x, bias, scale, residual), dtype)


def test_chain_of_nothing():
    assert pointwise.fused(torch.zeros(0, 4), torch.zeros(4), torch.zeros(4), torch.zeros(0, 4)).shape == (0, 4)


def test_bfloat16_is_refused_with_the_reason():
    a = torch.zeros(16, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="bfloat16"):
        matmul.tiled(a, a)
    with pytest.raises(ValueError, match="bfloat16"):
        pointwise.fused(a, a[0], a[0], a)

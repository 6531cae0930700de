"""The CPU kernels against float64, over odd shapes, fresh data and poisoned outputs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oplab import timing
from oplab.experiments.live import relative_error
from oplab.kernels import matmul, pointwise
from oplab.kernels.on_cpu import split_rows

sides = st.integers(1, 70)


def poisoned(*shape):
    tensor = torch.empty(*shape)
    timing.poison(tensor)
    return tensor


def agrees(got, reference, limit=1e-5):
    error, worst = relative_error(got, reference.float())
    return error <= limit and worst <= 50 * limit


@settings(max_examples=40, deadline=None)
@given(sides, sides, sides, sides, sides, sides)
def test_tiled_product_of_any_shape_and_tile(M, N, K, block_m, block_n, block_k):
    a, b, out = torch.randn(M, K), torch.randn(K, N), poisoned(M, N)
    matmul.tiled_cpu(a, b, out, matmul.Tile(block_m, block_n, block_k))
    assert timing.unwritten(out) == 0
    assert agrees(out, matmul.reference(a, b))


@settings(max_examples=20, deadline=None)
@given(sides, sides, sides)
def test_naive_product(M, N, K):
    a, b, out = torch.randn(M, K), torch.randn(K, N), poisoned(M, N)
    assert agrees(matmul.naive_cpu(a, b, out), matmul.reference(a, b))


@settings(max_examples=40, deadline=None)
@given(sides, sides)
def test_fused_chain(M, N):
    x, residual, bias, scale = torch.randn(M, N) * 3, torch.randn(M, N), torch.randn(N), torch.randn(N)
    out = pointwise.fused_cpu(x, bias, scale, residual, poisoned(M, N))
    assert agrees(out, pointwise.reference(x, bias, scale, residual))
    assert agrees(pointwise.eager(x, bias, scale, residual), pointwise.reference(x, bias, scale, residual))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_come_out_as_from_torch(value):
    x, residual, bias, scale = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40), torch.rand(40)
    x[1, 7] = value
    got = pointwise.fused_cpu(x, bias, scale, residual, poisoned(3, 40))
    torch.testing.assert_close(got, pointwise.eager(x, bias, scale, residual), equal_nan=True)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    a[2, 3] = value
    got = matmul.tiled_cpu(a, b, poisoned(8, 8), matmul.Tile(4, 4, 4))
    torch.testing.assert_close(got, a @ b, equal_nan=True)


def test_tails_of_gelu():
    x = torch.tensor([[-50.0, -9.0, -0.0, 0.0, 1e-20, 9.0, 50.0]])
    zero, one = torch.zeros(7), torch.ones(7)
    got = pointwise.fused_cpu(x, zero, one, torch.zeros(1, 7), poisoned(1, 7))
    torch.testing.assert_close(got.double(), pointwise.reference(x, zero, one, torch.zeros(1, 7)), atol=2e-6, rtol=2e-6)


def test_rows_are_split_without_gap_or_overlap():
    for rows in (0, 1, 7, 64, 65):
        for multiple in (1, 4, 64, 1000):
            seen = []
            split_rows(rows, multiple, lambda first, last, seen=seen: seen.extend(range(first, last)))
            assert sorted(seen) == list(range(rows))


def test_an_error_in_a_thread_reaches_the_caller():
    def broken(first, last):
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        split_rows(10, 1, broken)


def test_costs():
    assert matmul.flops(4096, 4096, 4096) == 2 * 4096**3
    assert matmul.compulsory_bytes(4096, 4096, 4096, 2) == 3 * 33_554_432
    assert pointwise.compulsory_bytes(1024, 1024, 2) == 2 * (3 * 1024**2 + 2 * 1024)
    assert pointwise.eager_bytes(1000, 1000, 4) / pointwise.compulsory_bytes(1000, 1000, 4) == pytest.approx(
        3, rel=0.01
    )


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [((3, 4), (5, 6), "needs A"), ((3,), (3, 4), "needs A"), ((2, 3, 4), (4, 5), "needs A")],
)
def test_shapes_that_do_not_fit_are_named(a, b, said):
    with pytest.raises(ValueError, match=said):
        matmul.check_operands(torch.zeros(a), torch.zeros(b))


def test_mixed_dtypes_are_named():
    with pytest.raises(ValueError, match="one dtype"):
        matmul.check_operands(torch.zeros(2, 2), torch.zeros(2, 2).double())

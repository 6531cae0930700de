"""Softmax, norms, SwiGLU, cross-entropy and gather in Triton's interpreter; run by test_kernels_interpreted.py."""

import pytest
import torch
from oplab.experiments.live import relative_error
from oplab.kernels import cross_entropy, gather, norm, softmax, swiglu

SHAPES = [(1, 1), (3, 7), (5, 64), (17, 100), (2, 1000), (1, 2049)]
DTYPES = [torch.float32, torch.float16]
LIMIT = {torch.float32: 1e-5, torch.float16: 3e-3}


def close(got, exact, dtype, scale=1):
    assert got.shape == exact.shape
    error, worst = relative_error(got.detach(), exact.detach())
    assert error <= scale * LIMIT[dtype], error
    assert worst <= 50 * scale * LIMIT[dtype], worst


def gradients(call, inputs, dy):
    fresh = [t.detach().clone().requires_grad_() for t in inputs]
    y = call(*fresh)
    return y, torch.autograd.grad(y, fresh, dy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", softmax.WAYS)
def test_softmax(way, shape, dtype):
    x = (4 * torch.randn(shape)).to(dtype)
    out = torch.full_like(x, float("nan"))
    close(softmax.forward(x, out, way=way)(), softmax.reference(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_backward(shape, dtype, monkeypatch):
    x, dy = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    y = softmax.reference(x).to(dtype)
    exact = y.double() * (dy.double() - (y.double() * dy.double()).sum(-1, keepdim=True))
    if shape[1] > 1:
        close(softmax.backward(y, dy, torch.full_like(y, float("nan")))(), exact, dtype)
        monkeypatch.setattr(softmax, "WIDEST", 1)
        close(softmax.backward(y, dy, torch.full_like(y, float("nan")))(), exact, dtype)


@pytest.mark.parametrize("way", softmax.WAYS)
def test_softmax_of_infinities_and_nan(way):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1, inf, 2], [-inf, -inf, -inf], [nan, 1, 2], [-inf, 0, 1], [-inf, -inf, 3]])
    assert torch.equal(torch.isnan(softmax.forward(x, way=way)()), torch.isnan(x.softmax(-1)))
    torch.testing.assert_close(softmax.forward(x, way=way)(), x.softmax(-1), equal_nan=True)


def test_softmax_of_three_dimensions_strides_and_nothing():
    x = torch.randn(3, 4, 10)
    close(softmax.softmax(x), softmax.reference(x), torch.float32)
    close(softmax.softmax(x.transpose(1, 2)), softmax.reference(x.transpose(1, 2)), torch.float32)
    close(softmax.forward(x[:, :, ::2])(), softmax.reference(x[:, :, ::2]), torch.float32)
    for shape in ((0, 5), (5, 0)):
        assert softmax.softmax(torch.zeros(shape)).shape == shape
    with pytest.raises(ValueError, match="'online'"):
        softmax.forward(torch.empty(1, 2 * softmax.WIDEST), way="fused")
    with pytest.raises(ValueError, match="three_pass"):
        softmax.forward(x, way="four_pass")
    with pytest.raises(ValueError, match="bfloat16"):
        softmax.softmax(x.bfloat16())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize("centred", [True, False])
def test_norms(centred, shape, dtype):
    x, dy = (torch.randn(shape).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[1]).to(dtype) for _ in range(2))
    inputs = (x, weight, bias) if centred else (x, weight)
    y, got = gradients(norm.layer_norm if centred else norm.rms_norm, inputs, dy)
    exact, right = gradients(norm.reference, [t.double() for t in inputs], dy.double())
    close(y, exact, dtype)
    for gradient, true in zip(got, right, strict=True):
        close(gradient, true, dtype, scale=3)


def test_norms_of_a_constant_row_far_from_zero():
    x = torch.full((4, 64), 1000.0) + torch.randn(4, 64)
    close(
        norm.layer_norm(x, torch.ones(64), torch.zeros(64)),
        norm.reference(x, torch.ones(64), torch.zeros(64)),
        torch.float32,
        20,
    )


def test_norms_of_nothing_and_of_too_much():
    assert norm.layer_norm(torch.zeros(0, 8), torch.ones(8), torch.zeros(8)).shape == (0, 8)
    with pytest.raises(ValueError, match="32,768"):
        norm.held(norm.WIDEST + 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 40)])
def test_swiglu(shape, dtype):
    a, b, dy = (torch.randn(shape).to(dtype) for _ in range(3))
    y, got = gradients(swiglu.swiglu, (a, b), dy)
    exact, right = gradients(swiglu.reference, (a.double(), b.double()), dy.double())
    close(y, exact, dtype)
    for gradient, true in zip(got, right, strict=True):
        close(gradient, true, dtype)
    halves = torch.randn(4, 64)
    close(swiglu.swiglu(*halves.chunk(2, -1)), swiglu.reference(*halves.chunk(2, -1)), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 7), (17, 100), (4, 5000)])
def test_cross_entropy(shape, dtype):
    x = (3 * torch.randn(shape)).to(dtype)
    target = torch.randint(shape[1], shape[:1])
    target[0] = cross_entropy.IGNORE if shape[0] > 1 else 0
    dloss = torch.rand(shape[0])
    fresh, true = x.clone().requires_grad_(), x.double().requires_grad_()
    loss, exact = cross_entropy.cross_entropy(fresh, target), cross_entropy.reference(true, target)
    close(loss, exact, torch.float32)
    (got,), (right,) = (torch.autograd.grad(out, t, dloss.to(out.dtype)) for out, t in ((loss, fresh), (exact, true)))
    close(got, right, dtype)
    (same,) = torch.autograd.grad(cross_entropy.cross_entropy(fresh, target).sum(), fresh)  # an expanded gradient
    close(same, torch.autograd.grad(cross_entropy.reference(true, target).sum(), true)[0], dtype)


def test_cross_entropy_of_infinities():
    inf = float("inf")
    x = torch.tensor([[0.0, -inf, 1.0], [-inf, 2.0, -inf], [inf, 1.0, 0.0], [float("nan"), 0.0, 1.0]])
    target = torch.tensor([0, 1, 1, 1])
    right = torch.nn.functional.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(cross_entropy.cross_entropy(x, target), right, equal_nan=True)


def test_cross_entropy_refuses_targets_outside_the_classes():
    x = torch.randn(3, 5)
    for wrong in (5, -1, 100):
        with pytest.raises(IndexError, match=r"outside \[0, 5\)"):
            cross_entropy.cross_entropy(x, torch.tensor([0, wrong, 1]))
    with pytest.raises(ValueError, match="of integers"):
        cross_entropy.cross_entropy(x, torch.randn(3))
    with pytest.raises(ValueError, match="of integers"):
        cross_entropy.cross_entropy(x, torch.tensor([0, 1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 4100)])
def test_gather(shape, dtype):
    table = torch.randn(shape).to(dtype)
    for picks in (1, 13):
        index = torch.randint(shape[0], (picks,))
        out = torch.full((picks, shape[1]), float("nan"), dtype=dtype)
        assert torch.equal(gather.forward(table, index, out)(), table[index])
        assert torch.equal(gather.forward(table, index.int())(), table[index])


def test_gather_of_strides_nan_and_nothing():
    table = torch.randn(20, 30)
    table[3] = float("nan")
    index = torch.tensor([3, 19, 0, 3])
    torch.testing.assert_close(gather.forward(table, index)(), table[index], equal_nan=True)
    torch.testing.assert_close(gather.forward(table.T, index)(), table.T[index], equal_nan=True)
    torch.testing.assert_close(gather.forward(table[:, ::3], index)(), table[:, ::3][index], equal_nan=True)
    assert gather.forward(table, torch.empty(0, dtype=torch.long))().shape == (0, 30)
    assert gather.forward(torch.empty(4, 0), index[2:3])().shape == (1, 0)


def test_gather_refuses_picks_outside_the_table():
    table = torch.randn(5, 8)
    for wrong in (5, -1, 2**40):
        with pytest.raises(IndexError, match=rf"index 1 asks for row {wrong}, outside \[0, 5\)"):
            gather.forward(table, torch.tensor([0, wrong]))
    with pytest.raises(ValueError, match="of integers"):
        gather.forward(table, torch.tensor([0.0]))
    with pytest.raises(ValueError, match="of one"):
        gather.forward(table, torch.zeros(2, 2, dtype=torch.long))

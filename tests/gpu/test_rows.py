"""The kernels over rows on the GPU, forward and backward, against float64. Run with: pytest tests/gpu."""

import pytest
import torch
from oplab.experiments import GATHER, LIVE_GPU, SOFTMAX
from oplab.experiments.live import TOLERANCE, relative_error
from oplab.experiments.softmax import BACKWARD_WAYS
from oplab.kernels import cross_entropy, gather, norm, softmax, swiglu
from oplab.machine import DTYPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA GPU here; this suite runs on the recording machine"
    ),
]

SHAPES = [(1, 1), (1, 4097), (4099, 1), (127, 1000), (3, 32768), (2048, 4096)]
NAMES = ["fp32", "bf16", "fp16"]


def draw(*shape, dtype):
    return torch.randn(*shape, device="cuda").to(DTYPES[dtype])


def close(got, exact, dtype, scale=1):
    assert got.shape == exact.shape
    error, worst = relative_error(got.detach(), exact.detach())
    assert error <= scale * TOLERANCE[dtype], error
    assert worst <= 50 * scale * TOLERANCE[dtype], worst


def both(call, exact, inputs, dtype):
    """Outputs and gradients of ``call`` against ``exact`` in float64."""
    fresh = [t.detach().clone().requires_grad_() for t in inputs]
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    y, right = call(*fresh), exact(*doubles)
    close(y, right, dtype)
    dy = torch.rand_like(y)
    got, true = torch.autograd.grad(y, fresh, dy), torch.autograd.grad(right, doubles, dy.to(right.dtype))
    for gradient, expected in zip(got, true, strict=True):
        close(gradient, expected, dtype, scale=4)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shape, dtype):
    x = draw(*shape, dtype=dtype)
    for way in softmax.WAYS:
        close(softmax.forward(x, torch.full_like(x, float("nan")), way=way)(), softmax.reference(x), dtype)
    if shape[1] > 1:  # the gradient of a row of one element is zero: nothing to be relative to
        both(softmax.softmax, softmax.reference, [x], dtype)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", SHAPES[1:2] + SHAPES[3:])
def test_norms(shape, dtype):
    x = draw(*shape, dtype=dtype)
    weight, bias = draw(shape[1], dtype=dtype), draw(shape[1], dtype=dtype)
    both(norm.layer_norm, norm.reference, [x, weight, bias], dtype)
    both(norm.rms_norm, norm.reference, [x, weight], dtype)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu(shape, dtype):
    both(swiglu.swiglu, swiglu.reference, [draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)], dtype)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", SHAPES[3:])
def test_cross_entropy(shape, dtype):
    x, target = draw(*shape, dtype=dtype), torch.randint(shape[1], shape[:1], device="cuda")
    fresh, true = x.clone().requires_grad_(), x.double().requires_grad_()
    loss, exact = cross_entropy.cross_entropy(fresh, target), cross_entropy.reference(true, target)
    close(loss, exact, "fp32" if dtype == "fp32" else dtype)
    (got,), (right,) = (torch.autograd.grad(out.sum(), t) for out, t in ((loss, fresh), (exact, true)))
    close(got, right, dtype)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gather(shape, dtype):
    table = draw(*shape, dtype=dtype)
    index = torch.randint(shape[0], (1013,), device="cuda")
    out = torch.full((1013, shape[1]), float("nan"), device="cuda", dtype=table.dtype)
    assert torch.equal(gather.forward(table, index, out)(), table[index])
    with pytest.raises(IndexError, match="outside"):
        gather.forward(table, index + shape[0])


@pytest.mark.parametrize("way", ["torch", "triton"])
def test_the_experiment(way):
    in_order, random = (GATHER.run(source=LIVE_GPU, columns=4, order=o, way=way) for o in ("in order", "random"))
    assert in_order.ok, in_order.reason
    assert random.ok, random.reason
    assert random.seconds > 1.5 * in_order.seconds


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("step", ["forward", "backward"])
def test_every_way_of_softmax(step, dtype):
    ways = BACKWARD_WAYS if step == "backward" else next(k for k in SOFTMAX.knobs if k.name == "way").gpu
    spent = {}
    for way in ways:
        result = SOFTMAX.run(source=LIVE_GPU, step=step, way=way, dtype=dtype)
        assert result.ok, (way, result.reason)
        spent[way] = result.seconds
    assert spent["eager"] > 1.5 * spent["fused"]

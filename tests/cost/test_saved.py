"""saved_by: what autograd keeps between forward and backward, and whose it is."""

import pytest
import torch
import torch.nn.functional as F
from oplab.cost import saved_by
from torch import nn

X = torch.randn(8, 16, requires_grad=True)
FP32 = 4


@pytest.mark.parametrize(
    ("call", "given", "output", "extra"),
    [
        (lambda x: x + 1, 0, 0, 0),
        (torch.relu, 0, 8 * 16, 0),
        (torch.exp, 0, 8 * 16, 0),
        (F.gelu, 8 * 16, 0, 0),
        (lambda x: x * x, 8 * 16, 0, 0),
        (lambda x: x.softmax(-1), 0, 8 * 16, 0),
        (lambda x: F.layer_norm(x, (16,)), 8 * 16, 0, 8 + 8),  # the mean and reciprocal deviation of each row
        (lambda x: torch.relu(x.exp()), 0, 8 * 16, 8 * 16),  # exp's output is nobody's
        (lambda x: x.view(4, 32).sum(), 0, 0, 0),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_of_single_operators(call, given, output, extra, device):
    x = X.to(device).detach().requires_grad_()
    found = saved_by(call, x)
    assert (found.given_bytes, found.output_bytes, found.extra_bytes) == (given * FP32, output * FP32, extra * FP32)
    assert found.bytes == (given + output + extra) * FP32
    assert found.new_bytes == (output + extra) * FP32


def test_parameters_and_inputs_are_given_and_counted_once():
    layer = nn.Linear(16, 16)
    found = saved_by(lambda x: layer(layer(x)), X)
    assert found.given_bytes == (8 * 16 + 16 * 16) * FP32
    assert found.extra_bytes == 8 * 16 * FP32  # the first product's output, kept as the second's input
    norm = nn.BatchNorm1d(16)
    assert saved_by(norm, X).extra_bytes == 2 * 16 * FP32


def test_a_function_of_ones_own_is_seen():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x + 1)
            return x * x

        @staticmethod
        def backward(ctx, dy):
            return 2 * ctx.saved_tensors[0] * dy

    found = saved_by(Square.apply, X)
    assert found.given_bytes == found.extra_bytes == 8 * 16 * FP32


def test_the_report_reads():
    text = repr(saved_by(lambda x: F.layer_norm(x, (16,)), X))
    assert "512 B of inputs and parameters" in text
    assert "8 x 16 float32" in text
    frame = saved_by(lambda x: F.layer_norm(x, (16,)), X).frame()
    assert list(frame.what) == ["given", "extra"]
    assert frame.tensors.tolist() == [1, 2]
    assert repr(saved_by(lambda x: x + 1, X)) == "nothing saved for the backward"


def test_bad_input():
    with pytest.raises(ValueError, match="needs a gradient"):
        saved_by(torch.relu, X.detach())
    with pytest.raises(ZeroDivisionError):
        saved_by(lambda x: 1 / 0, X)
    with torch.no_grad():  # the caller's mode does not matter
        assert saved_by(torch.relu, X).output_bytes

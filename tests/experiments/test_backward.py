"""BACKWARD: both passes of each operator, its gradients right, its costs as on paper."""

import math

import pytest
import torch
import torch.nn.functional as F
from oplab.experiments import BACKWARD, LIVE_CPU, LIVE_GPU
from oplab.experiments import backward as module
from oplab.experiments import result as status


@pytest.mark.parametrize("operator", list(module.MENU))
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_operator_runs_and_its_gradients_are_right(operator, dtype):
    result = BACKWARD.run(source=LIVE_CPU, operator=operator, size=64, dtype=dtype)
    assert result.ok, result.reason
    assert result.seconds > 0
    assert result.baseline_seconds > 0
    assert 0 <= result.relative_error <= module.LIMIT[dtype]
    assert not any("not counted" in note for note in result.notes)
    assert result.resources["forward_floor_seconds"] > 0


def test_costs_are_the_closed_forms():
    n = 64
    linear = BACKWARD.run(source=LIVE_CPU, operator="linear", size=n, dtype="fp32").resources
    assert linear["forward_flops"] == 2 * n**3 + n * n
    assert linear["backward_flops"] == pytest.approx(4 * n**3, rel=0.01)
    assert linear["saved_bytes"] == 2 * n * n * 4  # input and weight
    assert linear["saved_new_bytes"] == 0
    relu = BACKWARD.run(source=LIVE_CPU, operator="relu", size=n, dtype="fp32").resources
    assert relu["forward_bytes"] == 2 * n * n * 4
    assert relu["backward_bytes"] == 3 * n * n * 4  # dy and the saved output in, dx out
    assert relu["saved_output_bytes"] == relu["saved_bytes"] == n * n * 4
    add = BACKWARD.run(source=LIVE_CPU, operator="add", size=n, dtype="fp32").resources
    assert add["saved_bytes"] == add["backward_bytes"] == 0


def test_on_paper_costs_are_those_of_the_run():
    for operator in module.MENU:
        forward, backward, saved = module.on_paper(operator, 64, "fp32")
        ran = BACKWARD.run(source=LIVE_CPU, operator=operator, size=64, dtype="fp32").resources
        for name, costs in (("forward", forward), ("backward", backward)):
            assert (costs.flops, costs.bytes) == (ran[f"{name}_flops"], ran[f"{name}_bytes"]), operator
        assert saved.bytes == ran["saved_bytes"]


def test_a_wrong_gradient_does_not_pass(monkeypatch):
    class WrongExp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx, dy):
            (y,) = ctx.saved_tensors
            return dy * y * (1.01 if y.dtype == torch.float32 else 1)

    monkeypatch.setitem(module.MENU, "gelu", (module._square, WrongExp.apply))
    result = BACKWARD.run(source=LIVE_CPU, operator="gelu", size=64, dtype="fp32")
    assert result.status == status.WRONG
    assert "gradient 0 is wrong" in result.reason
    error, complaint = module.check([torch.tensor([math.nan])], [torch.tensor([1.0], dtype=torch.float64)], "fp32")
    assert complaint
    assert math.isnan(error)


def test_tables():
    glance = module.at_a_glance(("linear", "relu", "add"), size=64)
    assert list(glance.operator) == ["linear", "relu", "add"]
    assert list(glance.saved) == ["given 16.4 kB", "output 8.19 kB", "nothing"]
    table = module.ratios(("linear", "softmax"), source=LIVE_CPU, size=64, dtype="fp32")
    assert [float(value) > 0 for value in table["backward / forward"]] == [True, True]
    if not torch.cuda.is_available():
        assert "not measured" in module.ratios(source=LIVE_GPU)


def test_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(module.live, "free_bytes", lambda device: 1000)
    result = BACKWARD.run(source=LIVE_CPU, operator="linear", size=1024, dtype="fp32")
    assert result.status == status.OUT_OF_MEMORY


def test_bad_knobs_are_sentences():
    for knobs in ({"operator": "conv"}, {"size": 0}, {"size": 2.5}, {"dtype": "fp8"}):
        result = BACKWARD.run(source=LIVE_CPU, **knobs)
        assert result.status == status.INVALID
        assert result.reason


def test_the_menu_is_what_pytorch_computes():
    x = torch.randn(8, 8)
    assert torch.equal(module.MENU["softmax"][1](x), F.softmax(x, -1))
    images, weight = module._images(256, lambda *shape: torch.randn(*shape))
    assert module.MENU["convolution 3x3"][1](images, weight).shape == images.shape

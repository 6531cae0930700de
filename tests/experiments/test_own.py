"""The tools that a learner turns on a model of their own."""

import pytest
import torch
from oplab import doctor
from oplab.experiments.own import compile_gain, linear_products
from oplab.kernels.matmul import Tile
from torch import nn


def test_linear_products_by_hand():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    table = linear_products(model, torch.randn(4, 8, 64), tile=Tile(16, 64), sms=4)
    assert list(table.M) == [32, 32]
    assert list(table.N) == [256, 64]
    assert list(table.K) == [64, 256]
    assert list(table.share) == ["50%", "50%"]
    assert list(table.tiles) == [8, 2]
    assert list(table.busy) == ["100%", "50%"]


def test_shared_layers_count_each_call():
    layer = nn.Linear(8, 8)
    assert len(linear_products(nn.Sequential(layer, layer, layer), torch.randn(2, 8))) == 3


def test_hooks_are_gone_afterwards_even_after_an_error():
    model = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(RuntimeError):
        linear_products(model, torch.randn(2, 9))
    assert not model[0]._forward_pre_hooks


def test_a_model_without_linear_layers_says_so():
    with pytest.raises(ValueError, match=r"no nn\.Linear"):
        linear_products(nn.ReLU(), torch.randn(2))


def test_models_the_course_did_not_write():
    transformer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    assert {"linear1", "linear2"} <= set(linear_products(transformer, torch.randn(2, 10, 64)).layer)
    mixer = nn.Transformer(32, 2, 1, 1, 64, batch_first=True)
    assert len(linear_products(mixer, torch.randn(1, 3, 32), torch.randn(1, 4, 32))) >= 4


@pytest.mark.skipif(doctor._compiler().mark != doctor.FOUND, reason=doctor.TEXT["no_compiler"])
def test_compile_gain_has_both_rows():
    table = compile_gain(lambda t: torch.tanh(t * 2 + 1) * t.sigmoid(), torch.randn(256, 256))
    assert list(table.how) == ["eager", "torch.compile"]
    assert table["speed-up"][1].endswith("x")


def test_errors_of_the_function_pass_through():
    with pytest.raises(ZeroDivisionError):
        compile_gain(lambda t: t * (1 / 0), torch.randn(4))

"""Any code may run under the counter: right numbers or a clear line, and the counter is off afterwards."""

import threading
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from oplab.cost import CostCounter, Flops, count, formula
from oplab.cost.registry import _formulas
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode


def test_the_functions_own_exception_passes_and_the_counter_is_off():
    class Mine(Exception):
        pass

    def broken():
        torch.ones(3) + 1
        raise Mine("mine")

    with pytest.raises(Mine, match="mine"):
        count(broken)
    assert _get_current_dispatch_mode() is None


def test_an_error_inside_an_operator_passes():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count(torch.mm, torch.ones(2, 3), torch.ones(2, 3))
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize("value", [None, 3, "text", [], {}])
def test_no_tensor_comes_back(value):
    assert count(lambda: value).flops == 0
    with pytest.raises(ValueError, match="no tensor"):
        count(lambda: value, backward=True)


def test_no_gradient_is_needed():
    with pytest.raises(ValueError, match="nothing in the output needs a gradient"):
        count(lambda: torch.ones(3) * 2, backward=True)


def test_nested_outputs():
    x = torch.randn(4, 4, requires_grad=True)
    costs = count(lambda: {"a": [x * 2, None], "b": (x @ x, "text")}, backward=True)
    assert costs.forward.matrix_flops == 2 * 64
    assert costs.backward.matrix_flops == 4 * 64


def test_model_outputs_in_a_dataclass_do_not_break_forward():
    @dataclass
    class Output:
        logits: torch.Tensor

    assert count(lambda: Output(torch.ones(2) + 1)).vector_flops == 2


def test_a_given_gradient():
    x = torch.randn(3, requires_grad=True)
    assert count(lambda: x * 2, backward=True, gradient=torch.ones(3)).backward.vector_flops == 3
    with pytest.raises(ValueError, match="as many"):
        count(lambda: x * 2, backward=True, gradient=[torch.ones(3)] * 2)


def test_gradients_of_leaves_are_left_alone():
    layer = nn.Linear(3, 3)
    layer.weight.grad = torch.full((3, 3), 7.0)
    count(layer, torch.randn(2, 3), backward=True)
    assert (layer.weight.grad == 7).all()
    assert layer.bias.grad is None


def test_making_the_gradient_is_not_counted():
    x = torch.randn(3, requires_grad=True)
    names = [op.name for op in count(lambda: x * 2, backward=True).operators]
    assert not any("rand" in name or "normal" in name for name in names)


def test_nested_counters_each_see_what_is_inside():
    x = torch.ones(10)
    with CostCounter() as outer:
        x + 1
        with CostCounter() as inner:
            x + 1
        x + 1
    assert inner.costs.vector_flops == 10
    assert outer.costs.vector_flops == 30


def test_a_counter_can_be_read_while_it_runs():
    with CostCounter() as counter:
        torch.ones(10) + 1
        assert counter.costs.vector_flops == 10
        torch.ones(10) + 1
    assert counter.costs.vector_flops == 20


def test_threads_do_not_mix():
    seen = {}

    def work(n):
        with CostCounter() as counter:
            for _ in range(50):
                torch.ones(n) + 1
        seen[n] = counter.costs.vector_flops

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {n: 50 * n for n in (3, 5, 7)}


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_zero_dim_and_empty(shape):
    x = torch.randn(shape)
    costs = count(lambda: x * 2 + x)
    assert costs.vector_flops == 2 * x.numel()
    assert costs.bytes == 5 * 4 * x.numel()


def test_an_empty_product():
    assert count(torch.mm, torch.randn(0, 3), torch.randn(3, 4)).flops == 0


def test_complex_numbers():
    a = torch.randn(4, 4, dtype=torch.complex64)
    assert count(torch.mm, a, a).matrix_flops == 4 * 2 * 64
    assert count(torch.mul, a, a).vector_flops == 6 * 16
    assert count(torch.add, a, a).vector_flops == 2 * 16
    assert count(torch.add, a, a).bytes_read == 16 * 8


def test_sparse_tensors():
    dense = torch.eye(8)
    coo, csr = dense.to_sparse(), dense.to_sparse_csr()
    for sparse in (coo, csr):
        costs = count(lambda s=sparse: s @ dense)
        assert costs.bytes_read >= 8 * 8 * 4
        assert costs.flops > 0 or costs.uncounted


def test_quantised_tensors():
    x = torch.quantize_per_tensor(torch.randn(16), 0.1, 0, torch.quint8)
    costs = count(lambda: x.dequantize())
    assert costs.bytes_read == 16
    assert costs.bytes_written == 64


def test_data_dependent_shapes():
    x = torch.tensor([1.0, 0.0, 2.0])
    costs = count(lambda: x[x > 0] * 2)
    assert costs.vector_flops == 2
    assert count(torch.nonzero, x).bytes_written == 2 * 8


def test_in_place_changes_of_views():
    x = torch.zeros(8, 8)

    def change():
        x[2:4].mul_(3)
        x.view(-1)[::2].add_(1)

    costs = count(change)
    assert costs.vector_flops == 16 + 32
    assert costs.bytes_read == costs.bytes_written == 4 * (16 + 32)


def test_fake_tensors():
    with FakeTensorMode():
        layer = nn.Linear(1000, 1000)
        costs = count(layer, torch.randn(64, 1000), backward=True)
    assert costs.forward.matrix_flops == 2 * 64 * 1000 * 1000
    assert costs.backward.matrix_flops == 2 * 64 * 1000 * 1000  # the input needs no gradient
    assert not costs.uncounted


def test_functional_transforms():
    w = torch.randn(5, 5)

    def loss(w, x):
        return (w @ x).square().sum()

    xs = torch.randn(7, 5)
    costs = count(lambda: torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, xs))
    assert costs.matrix_flops >= 2 * 7 * 25
    assert not costs.uncounted


def test_autocast_counts_in_the_low_precision():
    layer, x = nn.Linear(64, 64, bias=False), torch.randn(32, 64)

    def run():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    costs = count(run)
    (product,) = [op for op in costs.operators if op.matrix_flops]
    assert product.dtype == "bfloat16"
    assert product.bytes == 2 * (32 * 64 + 64 * 64 + 32 * 64)


def test_recurrent_layers():
    for kind, gates in ((nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)):
        layer = kind(8, 16)
        costs = count(lambda layer=layer: layer(torch.randn(5, 3, 8))[0], backward=True)
        assert costs.forward.matrix_flops == 2 * 5 * 3 * gates * 16 * (8 + 16), kind
        assert not costs.uncounted, (kind, costs.uncounted)


def test_a_custom_operator_gets_a_formula():
    @torch.library.custom_op("oplab_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    operator = torch.ops.oplab_test.double
    x = torch.randn(4, 8)
    assert count(operator, x).uncounted == {"oplab_test.double": 1}
    assert count(operator, x).bytes == 2 * 4 * 32

    @formula(operator)
    def double_flops(shape, *, out):
        assert shape == out == (4, 8)
        return Flops(vector=32)

    try:
        costs = count(operator, x)
        assert costs.vector_flops == 32
        assert not costs.uncounted
    finally:
        _formulas.pop(operator)


def test_a_wrong_unit_is_refused():
    with pytest.raises(ValueError, match="vector"):
        formula(torch.ops.aten.mm, unit="furlongs")


def test_frame_and_text():
    x = torch.randn(64, 64, requires_grad=True)
    costs = count(lambda: (x @ x).relu().sum(), backward=True)
    frame = costs.frame()
    assert frame.bytes_read.sum() == costs.bytes_read
    assert frame.matrix_flops.sum() == costs.matrix_flops
    assert frame.calls.sum() == len(costs.operators)
    assert "forward" in repr(costs)
    assert costs.intensity == costs.flops / costs.bytes


def test_huge_numbers_are_exact():
    a = torch.empty(2**20, 2**20, device="meta")
    costs = count(torch.mm, a, a)
    assert costs.matrix_flops == 2 * 2**60
    assert count(lambda: [torch.mm(a, a) for _ in range(9)]).frame().matrix_flops[0] == 18 * 2**60


def test_dropout_and_losses_are_counted():
    x = torch.randn(8, 10, requires_grad=True)
    target = torch.randint(0, 10, (8,))
    assert not count(lambda: F.cross_entropy(F.dropout(x, 0.5), target), backward=True).uncounted
    assert not count(lambda: F.mse_loss(x, torch.zeros_like(x)), backward=True).uncounted

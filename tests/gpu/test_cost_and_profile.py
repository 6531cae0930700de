"""Counting, profiling and placing operators on CUDA: the same numbers as on a CPU, and times that add up."""

import pytest
import torch
import torch.nn.functional as F
from oplab.cost import count
from oplab.experiments import LIVE_GPU, OPERATORS
from oplab.machine import machine
from oplab.models import GPT, GPTSize, language_loss
from oplab.profiler import profile
from oplab.roofline import TOLERANCE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA GPU here; this suite runs on the recording machine"
    ),
]


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CALLS = {
    "linear": (F.linear, ((512, 256), (128, 256))),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), ((4, 16, 28, 28), (32, 16, 3, 3))),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), ((512, 768),)),
    "gelu": (F.gelu, ((512, 768),)),
    "attention": (attention, ((2, 4, 128, 64),) * 3),
    "sum": (torch.sum, ((512, 768),)),
}


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrix_flops_do_not_depend_on_the_device(name, dtype):
    """CUDA takes other operators (flash attention, cuDNN) for the same work."""
    call, shapes = CALLS[name]
    found = {}
    for device in ("cuda", "meta"):
        inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]
        found[device] = count(call, *inputs, backward=True)
    assert not found["cuda"].uncounted
    if name == "attention":  # flash attention's backward computes the scores again; meta takes the plain one
        assert found["cuda"].forward.matrix_flops > 0
        assert found["cuda"].matrix_flops >= found["cuda"].forward.matrix_flops * 3
    else:
        assert found["cuda"].matrix_flops == found["meta"].matrix_flops
        assert found["cuda"].forward.bytes == found["meta"].forward.bytes


def test_a_training_step_adds_up():
    """Every operator has its device time, and together they take the step's time or the rest is shown."""
    torch.manual_seed(0)
    model = GPT(GPTSize(layers=2, width=768, heads=12, context=512, vocabulary=8192)).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(8192, (8, 512), device="cuda")

    found = profile(lambda: language_loss(model, tokens), optimizer=optimizer)
    assert {"forward", "backward", "optimizer"} <= set(found.by_phase())
    assert found.share("mm") > 0.1
    for op in found.operators:
        assert op.seconds >= 0
        if op.seconds > 50e-6 * op.calls and op.bound == "memory":
            assert op.efficiency < 2 * TOLERANCE, op  # a chain of operators may find its input in L2
    together = found.operator_seconds + found.idle_seconds
    assert together == pytest.approx(max(found.step_seconds, found.operator_seconds), rel=1e-6)
    assert found.operator_seconds < 1.3 * found.step_seconds


@pytest.mark.parametrize("knobs", [
    {"operator": "add", "size": 16384, "dtype": "bf16"},
    {"operator": "sum", "size": 16384, "dtype": "fp32"},
    {"operator": "copy", "size": 16384, "dtype": "fp32"},
])  # fmt: skip
def test_large_memory_bound_operators_come_near_their_prediction(knobs):
    result = OPERATORS.run(source=LIVE_GPU, **knobs)
    assert result.ok, result.reason
    assert "memory_bound" in result.resources
    assert 0.6 < result.speedup < TOLERANCE  # floor over measured


def test_a_small_operator_is_bound_by_its_launch():
    result = OPERATORS.run(source=LIVE_GPU, operator="add", size=256, dtype="fp32")
    assert result.ok, result.reason
    assert "overhead_bound" in result.resources


def test_a_large_matmul_is_compute_bound():
    result = OPERATORS.run(source=LIVE_GPU, operator="matmul", size=4096, dtype="bf16")
    assert result.ok, result.reason
    assert "compute_bound" in result.resources
    assert result.speedup > 0.6


def test_the_l2_cache_is_faster_than_memory():
    here = machine()
    assert here.l2_bandwidth > here.bandwidth

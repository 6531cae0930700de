"""Profiles of real steps on this CPU, of made-up numbers, and the recorded ones."""

import json

import pytest
import torch
from oplab.cli import main
from oplab.cost import count
from oplab.machine import machine
from oplab.models import GPT, GPTSize, ResNet50, image_loss, language_loss
from oplab.profiler import Profile, ProfiledOperator, profile
from oplab.profiler import recorded as recorded_steps
from oplab.profiler.profile import time_picture
from oplab.roofline import Bound, classify
from torch import nn

SMALL = GPTSize(vocabulary=97, context=64, layers=2, heads=2, width=64)


@pytest.fixture(scope="module")
def gpt():
    model = GPT(SMALL)
    return profile(language_loss, model, torch.randint(0, 97, (4, 65)), optimizer=torch.optim.AdamW(model.parameters()))


def test_costs_in_the_profile_are_those_of_the_counter(gpt):
    model, tokens = GPT(SMALL), torch.randint(0, 97, (4, 65))
    costs = count(language_loss, model, tokens, backward=True)
    counted = sum(op.matrix_flops for op in gpt.operators)
    assert counted == costs.matrix_flops
    assert sum(op.matrix_flops for op in gpt.operators if op.phase == "forward") == costs.forward.matrix_flops


def test_phases_and_totals_reconcile(gpt):
    phases = gpt.by_phase()
    assert set(phases) == {"forward", "backward", "optimizer"}
    assert all(spent > 0 for spent in phases.values())
    assert sum(phases.values()) == pytest.approx(gpt.operator_seconds)
    assert sum(gpt.by_bound().values()) == pytest.approx(max(gpt.step_seconds, gpt.operator_seconds))
    assert gpt.frame().ms.sum() == pytest.approx(1e3 * gpt.operator_seconds)


def test_most_of_the_time_is_attributed(gpt):
    """Wide margins: operator time is measured under the profiler, the step without it."""
    assert 0.3 * gpt.step_seconds < gpt.operator_seconds < 5 * gpt.step_seconds
    assert not [op for op in gpt.operators if op.matrix_flops and op.seconds == 0]


def test_views_are_left_out(gpt):
    assert not [op for op in gpt.operators if op.name in ("aten.view", "aten.transpose", "aten.permute")]


def test_a_shape_of_advice(gpt):
    for advice in gpt.advice():
        assert advice.lever in {"precision", "library", "layout", "fusion", "memory", "overhead"}
        assert advice.seconds >= 0
        assert "saves at most" in repr(advice)
    gains = [advice.seconds for advice in gpt.advice()]
    assert gains == sorted(gains, reverse=True)


def test_pictures_and_text(gpt):
    assert gpt.plot().png.startswith(b"\x89PNG")
    assert gpt.roofline().png.startswith(b"\x89PNG")
    assert "per step on" in repr(gpt)


def test_what_is_saved_is_what_is_loaded(gpt, tmp_path):
    path = tmp_path / "profile-x.json"
    gpt.save(path)
    assert Profile.load(path) == gpt


@pytest.mark.parametrize("text", ["", "{", '{"schema": 99}', "[]", '{"schema": 1}'])
def test_a_broken_profile_is_one_line(tmp_path, text):
    path = tmp_path / "profile-x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="profile") as caught:
        Profile.load(path)
    assert str(path) in str(caught.value)


def test_gradients_do_not_pile_up():
    model = ResNet50(classes=5, depths=(1, 1, 1, 1), width=4)
    profile(image_loss, model, torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long))
    assert all(p.grad is None for p in model.parameters())


def test_forward_alone_needs_no_gradient():
    found = profile(lambda: torch.ones(64, 64) @ torch.ones(64, 64), backward=False)
    assert set(found.by_phase()) == {"forward"}


def test_no_gradient_is_a_clear_line():
    with pytest.raises(ValueError, match="backward=False"):
        profile(lambda: torch.ones(3) * 2)


def test_the_functions_own_error_passes():
    with pytest.raises(ZeroDivisionError):
        profile(lambda: 1 / 0)


def test_models_the_course_did_not_write():
    transformer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    x = torch.randn(2, 8, 32)
    for fn in (
        lambda: transformer(x).sum(),
        lambda: nn.functional.mse_loss(nn.LSTM(8, 8)(torch.randn(4, 2, 8))[0], torch.zeros(4, 2, 8)),
    ):
        assert profile(fn).operators


# --- levers, from made-up numbers on the H200's ceilings

H200 = recorded_steps.load("gpt2").machine


def made_up(name, dtype="float32", matrix=0, vector=0, nbytes=0, seconds=1e-3, **extra):
    place = classify(
        H200, matrix_flops=matrix, vector_flops=vector, nbytes=nbytes, seconds=seconds, launch_seconds=5e-6,
        dtype={"float32": "fp32", "bfloat16": "bf16"}[dtype],
    )  # fmt: skip
    numbers = (1, seconds, matrix, vector, nbytes, True, place.bound.value, place.efficiency)
    return ProfiledOperator(name, "forward", ((1, 1),), dtype, *numbers, **extra)


def advice_for(*operators, step=None, fusions=()):
    spent = sum(op.seconds for op in operators)
    return {a.lever: a for a in Profile(H200, "today", step or spent, 5e-6, operators, fusions).advice()}


def test_precision():
    product = made_up("aten.mm", matrix=4e10, nbytes=1e8)
    assert "the bf16 peak here is" in advice_for(product)["precision"].why


def test_library():
    slow = made_up("aten.mm", "bfloat16", matrix=2e11, nbytes=1e8)
    assert "library" in advice_for(slow)
    fast = made_up("aten.mm", "bfloat16", matrix=7e11, nbytes=1e8)
    assert not advice_for(fast)


def test_layout():
    conv = made_up("aten.convolution", "bfloat16", matrix=4e11, nbytes=1e8, channels_first=True)
    assert "channels-last" in advice_for(conv)["layout"].why


def test_memory_and_nothing():
    assert "memory" in advice_for(made_up("aten.add", vector=1e8, nbytes=1e9))
    assert not advice_for(made_up("aten.add", vector=1e8, nbytes=4.2e9))


def test_overhead():
    tiny = made_up("aten.add", vector=10, nbytes=120, seconds=2e-6)
    found = advice_for(tiny, step=1e-3)
    assert "CUDA graphs" in found["overhead"].why
    assert found["overhead"].seconds == pytest.approx(1e-3)


def test_fusion_candidates_are_neighbours_that_read_each_other():
    x = torch.randn(256, 256)

    def chain():
        return (x * 2 + 1).relu()

    found = profile(chain, backward=False)
    assert found.fusions == (("mul + add + relu", 2 * 2 * x.nbytes, 1),)
    apart = profile(lambda: [x * 2, x + 1], backward=False)
    assert not apart.fusions


# --- classification


@pytest.mark.parametrize(
    ("kwargs", "bound"),
    [
        ({"matrix_flops": 2 * 8192**3, "nbytes": 6 * 8192**2, "dtype": "bf16"}, Bound.COMPUTE),
        ({"matrix_flops": 2 * 8192**2, "nbytes": 2 * 8192**2, "dtype": "bf16"}, Bound.MEMORY),
        ({"vector_flops": 2**28, "nbytes": 2**30}, Bound.MEMORY),
        ({"vector_flops": 10, "nbytes": 120}, Bound.OVERHEAD),
    ],
)
def test_classify(kwargs, bound):
    assert classify(H200, launch_seconds=5e-6, **kwargs).bound is bound


def test_efficiency_is_floor_over_measured():
    place = classify(H200, nbytes=H200.bandwidth, seconds=2.0)
    assert (place.floor_seconds, place.efficiency) == (1.0, 0.5)


# --- recorded


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_recorded_steps_reconcile(name):
    step = recorded_steps.load(name)
    assert step.machine.name == "NVIDIA H200"
    assert step.operator_seconds + step.idle_seconds == pytest.approx(step.step_seconds, rel=0.05)
    assert step.advice()
    assert step.title
    assert time_picture(step, 8).png


def test_an_absent_recording_names_those_there_are():
    with pytest.raises(ValueError, match="gpt2, resnet50"):
        recorded_steps.load("alexnet")


def test_counters_on_the_h200_agree_with_the_prediction():
    rows = json.loads((recorded_steps.FOLDER / "nvidia-h200" / "counters.json").read_text())["rows"]
    ratios = {
        row["operator"]: (row["dram_read"] + row["dram_written"]) / (row["predicted_read"] + row["predicted_written"])
        for row in rows
    }
    assert len([name for name, ratio in ratios.items() if abs(ratio - 1) <= 0.05]) >= 20
    assert ratios["add"] == pytest.approx(1, abs=0.05)
    assert ratios["sum"] == pytest.approx(1, abs=0.05)
    assert ratios["matmul bf16 8192"] > 2  # re-reads its operands


# --- the command line

SCRIPT = """
import torch
weight = torch.randn(64, 64, requires_grad=True)
def loss():
    return (torch.randn(32, 64) @ weight).relu().sum()
"""


def test_profile_command(tmp_path, capsys):
    path = tmp_path / "step.py"
    path.write_text(SCRIPT)
    assert main(["profile", f"{path}:loss"]) == 0
    out = capsys.readouterr().out
    assert "aten.mm" in out
    assert "backward" in out


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("step.py", "is not file.py:function"),
        ("absent.py:loss", "no file"),
        ("{path}:gain", "no function 'gain'; it has loss"),
    ],
)
def test_profile_command_says_what_is_missing(tmp_path, capsys, target, said):
    path = tmp_path / "step.py"
    path.write_text(SCRIPT)
    assert main(["profile", target.format(path=path)]) == 1
    assert said in capsys.readouterr().err


def test_launch_path_is_measured():
    from oplab.timing import launch_seconds

    assert 1e-8 < launch_seconds("cpu") < 1e-2
    assert machine("cpu").peak("fp32") > 0

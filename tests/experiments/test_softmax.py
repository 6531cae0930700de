"""SOFTMAX on this computer's processor, its bytes by hand, and its explorer."""

import pytest
import torch
from oplab.experiments import LIVE_CPU, RECORDED, SOFTMAX
from oplab.experiments import result as status
from oplab.experiments import softmax as module
from oplab.kernels import softmax
from oplab.widgets import explore

SMALL = 1 << 16  # elements of x


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "ELEMENTS", {"cuda": SMALL, "cpu": SMALL})


@pytest.mark.parametrize("step", ["forward", "backward"])
@pytest.mark.parametrize("way", module.CPU_WAYS)
def test_every_way_is_right(small, step, way):
    result = SOFTMAX.run(source=LIVE_CPU, step=step, way=way, columns=64)
    assert result.ok, result.reason
    assert 0 < result.relative_error < 1e-5 or way == "torch"
    assert result.nbytes == (2 if step == "forward" else 3) * SMALL * 4


def test_a_wrong_way_is_caught(small, monkeypatch):
    monkeypatch.setattr(softmax, "eager", lambda x: x.softmax(-1) * 1.001)
    assert SOFTMAX.run(source=LIVE_CPU, way="eager", columns=64).status == status.WRONG


def test_bytes_by_hand():
    like = torch.empty(256, 1024)
    elements = 256 * 1024
    # Five operators: maximum 1, difference 2, exp 2, sum 1, quotient 2 times the array; and four columns.
    eager = module._moved("forward", "eager", like)
    assert eager == {"kernels": 5, "bytes_moved": 4 * (8 * elements + 4 * 256)}
    # Backward: product 3, sum 1, difference 2, product 3; and two columns.
    eager = module._moved("backward", "eager", like)
    assert eager == {"kernels": 4, "bytes_moved": 4 * (9 * elements + 2 * 256)}
    for way, times in (("three_pass", 4), ("online", 3), ("fused", 2), ("torch", 2)):
        assert module._moved("forward", way, like) == {"kernels": 1, "bytes_moved": 4 * times * elements}
    assert module._moved("backward", "fused", like) == {"kernels": 1, "bytes_moved": 4 * 3 * elements}


def test_one_kernel_beats_five():
    """Past every cache; a ratio only, with a wide margin."""
    eager, fused = (SOFTMAX.run(source=LIVE_CPU, way=way) for way in ("eager", "torch"))
    assert eager.seconds > 1.5 * fused.seconds


def test_ways_that_mean_nothing_say_so():
    assert "runs on a GPU" in SOFTMAX.run(source=LIVE_CPU, way="online").reason
    refused = SOFTMAX.run(source=RECORDED, way="online", step="backward")
    assert refused.status == status.INVALID
    assert "eager, torch, compiled, fused" in refused.reason
    assert SOFTMAX.run(source=LIVE_CPU, columns=-1).status == status.INVALID


def test_settings_are_all_valid():
    for source in (LIVE_CPU, RECORDED):
        settings = list(SOFTMAX.settings(source))
        assert all(SOFTMAX.complete(setting, source) == setting for setting in settings)
        assert {setting["step"] for setting in settings} == {"forward", "backward"}


def test_the_explorer(small):
    explorer = explore.softmax()
    explorer.source.value = (LIVE_CPU, "")
    for way in ("torch", "eager"):
        explorer.set(way=way)
        assert explorer.wait().ok
    assert "5 kernel(s)" in explorer.reason.value
    explorer.set(step="backward")
    assert explorer.wait().ok
    assert "4 kernel(s)" in explorer.reason.value
    assert all(bytes(image.value[:4]) == b"\x89PNG" for image in explorer.images)
    assert not explorer.errors

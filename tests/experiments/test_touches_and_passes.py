"""explore.touches(), explore.backward() and dispatch_table: a trace, two passes, and who runs what."""

import importlib.util
import re
import time

import pytest
import torch
from oplab.experiments import BACKWARD, LIVE_CPU
from oplab.kernels import matmul
from oplab.widgets import dispatch_table, explore, passes, touches

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton does not exist on this platform"
)


def until(condition, timeout=30.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def traffic():
    pytest.importorskip("triton")
    a, b = torch.randn(64, 48), torch.randn(48, 32)
    return matmul.Launch(a, b, tile=matmul.Tile(32, 32, 16)).trace()


def test_what_a_program_touched(traffic):
    explorer = explore.touches(traffic)
    assert "program 0, step 1 of 7: load 512 elements of a_ptr" in explorer.caption.value
    assert "tl.load(a)" in explorer.caption.value
    before = explorer.image.value
    explorer.step.value = 7
    until(lambda: "step 7 of 7: store 1,024 elements of c_ptr" in explorer.caption.value)
    assert explorer.image.value != before
    explorer.program.value = (1,)
    until(lambda: "program 1, step 7 of 7" in explorer.caption.value)
    assert not explorer.errors


def test_the_matrix_that_is_drawn(traffic):
    steps = traffic.steps(1)
    a = touches._touched(traffic["a_ptr"], steps, 3)
    assert a.shape == (64, 48)
    assert (a[:32] == 0).all()
    assert (a[32:, :16] == 1).all()
    assert (a[32:, 16:32] == 2).all()
    assert (a[32:, 32:] == 0).all()


def test_viewers_that_run_nothing_get_a_picture(traffic):
    bundle = explore.touches(traffic)._repr_mimebundle_()
    assert bundle["image/png"].startswith("iVBOR")
    assert "program 1, step 4 of 7" in bundle["text/plain"]


def test_an_error_is_on_the_page(traffic, monkeypatch):
    explorer = explore.touches(traffic)

    def fail(*args):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(touches, "draw", fail)
    explorer.step.value = 2
    until(lambda: "ZeroDivisionError: oh" in explorer.caption.value)
    assert explorer.errors


@with_triton
def test_controls_have_labels_and_tooltips(traffic):
    explorer = explore.touches(traffic)
    for control in (explorer.program, explorer.step):
        assert control.description
        assert len(control.tooltip) > 20
        assert not control.continuous_update


def test_forward_beside_backward():
    explorer = explore.backward()
    if explorer.source.value != (LIVE_CPU, ""):
        explorer.source.value = (LIVE_CPU, "")
    explorer.set(operator="gelu", size=256, dtype="fp32")
    until(lambda: "times as long" in explorer.headline.value)
    assert "live on" in explorer.headline.value
    assert not explorer.errors
    explorer.set(operator="relu")
    until(lambda: "of its output" in explorer.reason.value)
    assert len(explorer.seen(size=256, dtype="fp32")) == 2
    assert not explorer.errors


def test_pictures_of_live_and_failed_results():
    ran = BACKWARD.run(source=LIVE_CPU, operator="add", size=64, dtype="fp32")
    failed = BACKWARD.run(source=LIVE_CPU, operator="add", size=0, dtype="fp32")
    for result in (ran, failed):
        assert passes.pass_bars(result).startswith(b"\x89PNG")
        assert passes.ratio_bars([r for r in [result] if r.ok], result).startswith(b"\x89PNG")
    assert "did not run" in passes.headline(failed)
    assert passes.remark(failed) == ""
    assert passes.remark(ran) == "Keeps nothing for the backward."


def test_the_dispatchers_table():
    table = dispatch_table("aten::gelu").set_index("key")["what runs"]
    assert table["CPU"] == "a kernel of its own"
    assert table["AutogradCPU"] == "notes the backward, then asks again"
    assert dispatch_table("aten::linear").set_index("key")["what runs"]["CPU"] == "other operators, called in turn"
    for wrong in ("aten::no_such_operator", "gelu", ""):
        with pytest.raises(ValueError, match="names look like"):
            dispatch_table(wrong)


def test_the_still_picture_of_backward_is_counted():
    shown = explore.backward()._repr_mimebundle_()
    assert len(shown["image/png"]) > 10_000
    assert re.search(r"gelu +67.1 MB +101 MB +given 33.6 MB", shown["text/plain"])
    assert re.search(r"relu +67.1 MB +101 MB +output 33.6 MB", shown["text/plain"])

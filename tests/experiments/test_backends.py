"""explore.backends(): one kernel as four GPUs' compilers write it."""

import importlib.util
import time

import pytest
from oplab.compiler import KernelError
from oplab.widgets import backends, explore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton does not exist on this platform"
)


def settled(explorer, text, timeout=60.0):
    end = time.monotonic() + timeout
    while text not in explorer.table.value:
        assert time.monotonic() < end, explorer.table.value
        time.sleep(0.02)
    return explorer.table.value


def test_the_same_product_on_four_gpus():
    explorer = explore.backends()
    page = settled(explorer, "the lines themselves")
    for instruction in ("mma.sync m16n8k16", "wgmma m64n128k16", "tcgen05.mma", "v_mfma_f32_32x32x8_bf16"):
        assert instruction in page
    assert "wgmma.mma_async" in page  # the line of assembler
    explorer.dtype.value = "fp32"
    settled(explorer, "v_mfma_f32_32x32x2_f32")
    assert "wgmma" not in explorer.table.value
    assert not explorer.errors


def test_only_some_have_a_copy_engine():
    explorer = explore.backends()
    explorer.kernel.value = "matrix product, persistent"
    page = settled(explorer, "TMA")
    assert "2 B" in page


def test_viewers_that_run_nothing_get_a_picture():
    bundle = explore.backends()._repr_mimebundle_()
    assert bundle["image/png"].startswith("iVBOR")
    assert "wgmma" in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


@pytest.mark.parametrize(
    ("error", "said"),
    [(KernelError("k", "not today"), "k: not today"), (ZeroDivisionError("oh"), "ZeroDivisionError: oh")],
)
def test_errors_are_on_the_page(monkeypatch, error, said):
    def fail(target, dtype):
        raise error

    monkeypatch.setitem(backends.KERNELS, "copy", fail)
    explorer = explore.backends()
    explorer.kernel.value = "copy"
    settled(explorer, said)
    assert bool(explorer.errors) == (not isinstance(error, KernelError))
    explorer.kernel.value = "matrix product"
    settled(explorer, "the lines themselves")


def test_controls_have_labels_and_tooltips():
    explorer = explore.backends()
    for control in (explorer.kernel, explorer.dtype):
        assert control.description
        assert len(control.tooltip) > 20

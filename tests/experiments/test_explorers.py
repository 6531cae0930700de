"""The explorers without a browser: what they do when knobs turn, fast, in the wrong order, or into an error."""

import base64
import threading
import time

import pytest
import torch
from oplab.experiments import LIVE_CPU, RECORDED, TILES, Result, recording
from oplab.experiments import experiment as experiments_module
from oplab.experiments import result as status
from oplab.widgets import explore, predict, show_source
from oplab.widgets.explorer import Explorer

RECORDING = (RECORDED, "nvidia-h200")
CPU = (LIVE_CPU, "")


@pytest.fixture
def tiles():
    explorer = explore.tiles()
    explorer.wait()
    if torch.cuda.is_available():
        explorer.source.value = RECORDING
        explorer.wait()
    return explorer


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_opens_on_the_recording(tiles):
    assert tiles.source.value == RECORDING
    assert [value for _, value in tiles.source.options] == [RECORDING, CPU]


def test_a_knob_changes_number_picture_and_label(tiles):
    before = (tiles.headline.value, tiles.images[0].value, tiles.images[1].value)
    tiles.set(block_m=64)
    tiles.wait()
    after = (tiles.headline.value, tiles.images[0].value, tiles.images[1].value)
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert "recorded on NVIDIA H200" in tiles.headline.value
    assert all(bytes(png[:4]) == b"\x89PNG" for png in after[1:])
    assert not tiles.errors


def test_every_control_has_a_label_and_a_tooltip(tiles):
    for name, control in tiles.controls.items():
        assert control.description == name
        assert len(control.tooltip) > 20
    assert all(c.continuous_update is False for c in tiles.controls.values() if hasattr(c, "continuous_update"))


def test_a_setting_that_does_not_fit_is_explained_and_the_rest_works(tiles):
    tiles.set(block_m=256, block_n=256, block_k=128)
    result = tiles.wait()
    assert result.status == status.OUT_OF_RESOURCES
    assert "393,216 B of shared memory" in tiles.reason.value
    assert "did not run" in tiles.headline.value
    tiles.set(block_k=64)
    assert tiles.wait().ok


def test_a_spill_is_explained(tiles):
    tiles.set(block_m=256, block_n=256)
    assert tiles.wait().ok
    assert "spill" in tiles.reason.value


def test_history_and_map_fill_as_one_explores(tiles):
    for m in (16, 32, 64):
        tiles.set(block_m=m)
        tiles.wait()
    assert len(tiles.seen(kernel="tiled")) == 4
    assert tiles.table.value.count("<tr>") == 5
    tiles.reveal.value = True
    assert len(tiles.seen(size=4096, dtype="bf16", kernel="tiled", block_k=64, num_warps=8, num_stages=3)) >= 25


def test_switching_to_the_cpu_offers_its_knobs_and_measures(tiles):
    tiles.source.value = CPU
    result = tiles.wait(120)
    assert result.source == LIVE_CPU
    assert result.ok, result.reason
    assert "num_warps" not in tiles.controls
    assert "live on" in tiles.headline.value
    tiles.source.value = RECORDING
    assert tiles.wait().source == RECORDED
    assert not tiles.errors


def test_the_latest_request_wins(monkeypatch, tiles):
    """The first request is slow, the second quick: the first must not overwrite the second."""
    gate = threading.Event()
    real = type(TILES).run

    def run(self, **knobs):
        if knobs["block_m"] == 16:
            gate.wait(10)
        return real(self, **knobs)

    monkeypatch.setattr(type(TILES), "run", run)
    tiles.set(block_m=16)
    tiles.set(block_m=64)
    assert tiles.wait().knobs["block_m"] == 64
    gate.set()
    time.sleep(0.3)
    assert tiles.current.knobs["block_m"] == 64
    assert tiles.controls["block_m"].value == 64


def test_live_requests_that_are_overtaken_are_not_measured(monkeypatch, tiles):
    tiles.source.value = CPU
    tiles.wait(120)
    measured = []
    real = type(TILES).measure
    monkeypatch.setattr(
        type(TILES), "measure", lambda self, knobs, *rest: measured.append(knobs["block_m"]) or real(self, knobs, *rest)
    )
    tiles.set(size=256)
    for m in (4, 16, 256, 64):
        tiles.set(block_m=m)
    assert tiles.wait(120).knobs["block_m"] == 64
    assert measured == [64]


def test_an_error_of_the_explorer_itself_appears_in_it(monkeypatch, tiles):
    def broken(self, **knobs):
        raise RuntimeError("the lab is on fire")

    monkeypatch.setattr(type(TILES), "run", broken)
    tiles.set(block_m=32)
    tiles.wait()
    assert "the lab is on fire" in tiles.reason.value
    assert isinstance(tiles.errors[-1], RuntimeError)
    monkeypatch.undo()
    tiles.set(block_m=64)
    assert tiles.wait().ok


def test_an_error_while_drawing_appears_too(monkeypatch, tiles):
    monkeypatch.setattr(tiles, "_history_table", lambda: 1 / 0)
    tiles.set(block_m=32)
    tiles.wait()
    assert "ZeroDivisionError" in tiles.reason.value


def test_a_broken_recording_leaves_the_cpu(tmp_path, monkeypatch):
    path = tmp_path / "nvidia-h200" / "tiles.json"
    path.parent.mkdir()
    path.write_text('{"schema": 1, "resu')
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    monkeypatch.setattr(recording.load, "__defaults__", (tmp_path,))
    experiments_module._load_once.cache_clear()
    try:
        explorer = explore.tiles()
        explorer.source.value = RECORDING
        result = explorer.wait()
        assert result.status == status.UNAVAILABLE
        assert "not complete JSON" in explorer.reason.value
        explorer.source.value = CPU
        assert explorer.wait(120).ok
        assert "not complete JSON" in explorer._repr_mimebundle_()["text/plain"]
        assert not explorer.errors
    finally:
        experiments_module._load_once.cache_clear()


def test_two_explorers_at_once_do_not_disturb_each_other():
    first, second = explore.tiles(), explore.fusion()
    for explorer in (first, second):
        explorer.source.value = CPU
    second.set(size=512)
    first.set(size=256)
    assert first.wait(120).experiment == "tiles"
    assert second.wait(120).experiment == "fusion"
    assert not first.errors + second.errors


def test_the_page_gets_a_widget_and_a_still_picture(tiles):
    bundle = tiles._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert "NVIDIA H200" in bundle["text/plain"]


def test_fusion_draws_all_ways_it_has_seen():
    explorer = explore.fusion()
    explorer.source.value = RECORDING
    sizes = []
    for way in ("eager", "compiled", "triton"):
        explorer.set(fused=way)
        assert explorer.wait().ok
        sizes.append(len(explorer.images[0].value))
    assert len(explorer.seen(size=8192)) == 3
    assert "must move" in explorer.reason.value
    assert not explorer.errors


def test_waiting_shows(monkeypatch):
    from oplab import timing

    states = []
    monkeypatch.setattr(Explorer, "_say", lambda self, state: states.append(state))
    explorer = explore.tiles()

    def slow(self, **knobs):
        timing.report("waiting for this CPU: another notebook or process is measuring")
        return Result("tiles", knobs, RECORDED, "m", "d").failed(status.FAILED, "x")

    monkeypatch.setattr(type(TILES), "run", slow)
    explorer.request()
    for _ in range(100):
        if "failed" in states:
            break
        time.sleep(0.05)
    assert any(state.startswith("waiting") for state in states)


# --- predictions and sources


def test_a_prediction_is_committed_once():
    prediction = predict("Which?", "this", "that")
    assert "made no prediction" in prediction.check("this", "1 ms")
    prediction.buttons[1].click()
    assert prediction.value == "that"
    prediction.commit("this")
    assert prediction.value == "that"
    assert all(button.disabled for button in prediction.buttons)
    assert "it is this" in prediction.check("this", "1 ms")
    assert "and it is" in prediction.check("that", "1 ms")
    assert "Which?" in prediction._repr_mimebundle_()["text/plain"]


def test_a_prediction_needs_a_choice():
    with pytest.raises(ValueError, match="two options"):
        predict("Which?", "only this")
    with pytest.raises(ValueError, match="not one of"):
        predict("Which?", "a", "b").commit("c")


def test_show_source_finds_plain_numba_and_triton_functions():
    from oplab.kernels import matmul, pointwise

    assert "def eager" in show_source(pointwise.eager).data
    assert "def _naive_rows" in show_source(matmul._naive_rows).data
    assert "tl.dot" in show_source(matmul.tiled_kernel).data


# --- what the compiler made of it -------------------------------------------------------------------


def test_the_panel_follows_knobs_and_target(tiles):
    assert "H200 (sm_90)" in tiles.panel.table.value
    assert "98,304 of 232,448 B" in tiles.panel.table.value
    assert "wgmma m64n128k16 bf16" in tiles.panel.table.value
    tiles.set(num_stages=4)
    tiles.wait()
    assert "131,072 of 232,448 B" in tiles.panel.table.value
    tiles.panel.target.value = "A100"
    headline = tiles.headline.value
    tiles.wait()
    assert "A100 (sm_80)" in tiles.panel.table.value
    assert "mma.sync m16n8k16 bf16" in tiles.panel.table.value
    assert tiles.headline.value == headline  # the measurement is still the H200's
    tiles.panel.target.value = "RTX 4090"
    tiles.set(block_n=256)
    tiles.wait()
    assert "does not fit, shared memory" in tiles.panel.table.value
    for gpu in ("MI300X", "B200"):
        tiles.panel.target.value = gpu
        tiles.set(kernel="persistent", num_stages=3)
        tiles.wait()
        assert gpu in tiles.panel.table.value
        assert "oplab-reason" not in tiles.panel.table.value, tiles.panel.table.value
    assert not tiles.errors


def test_the_panel_shows_the_idle_tail(tiles):
    """1,024 tiles on 132 SMs, 2 each: 3.88 waves of 264, and 12 % of the last one stays empty."""
    assert "3.88 waves of 264 blocks" in tiles.panel.table.value
    assert "12% of the places stay empty" in tiles.panel.table.value


def test_the_panel_says_when_there_is_nothing_to_compile(tiles):
    tiles.source.value = CPU
    tiles.wait(120)
    assert "no GPU kernel" in tiles.panel.table.value
    assert tiles.panel.target.value == "H200"


def test_the_panel_says_what_the_compiler_refuses(tiles, monkeypatch):
    from oplab.compiler import KernelError

    def refuse(self, knobs, source, target):
        raise KernelError("some_kernel", "not today", 12, "tl.store(…)")

    monkeypatch.setattr(type(TILES), "compiled", refuse)
    tiles.set(block_m=64)
    assert tiles.wait().ok
    assert "line 12 of some_kernel: not today" in tiles.panel.table.value
    assert not tiles.errors


def test_the_fusion_explorer_has_the_panel_too():
    explorer = explore.fusion()
    if torch.cuda.is_available():
        explorer.source.value = RECORDING
    explorer.set(fused="triton")
    explorer.wait()
    assert "16 B" in explorer.panel.table.value
    assert "not used" in explorer.panel.table.value
    explorer.set(fused="eager")
    explorer.wait()
    assert "no GPU kernel" in explorer.panel.table.value

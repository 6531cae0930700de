"""A learner opens a chapter in JupyterLab, runs it and turns knobs, with the keyboard, in light and dark."""

import io
import re
import time

import pytest
from PIL import Image

pytestmark = pytest.mark.browser


def quiet(notebook):
    assert notebook.complaints == []
    assert notebook.page.locator("text=Error displaying widget").count() == 0
    assert notebook.page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").count() == 0


def test_tiles(open_notebook):
    notebook = open_notebook("04-compute-bound.ipynb")
    notebook.run_all()
    explorer = notebook.explorer("tiles")
    explorer.choose("numbers from", "recorded: NVIDIA H200")
    explorer.wait()
    headline, picture = explorer.headline, explorer.picture
    assert "TFLOP/s" in headline
    explorer.key("block_m", "ArrowLeft")
    explorer.wait(headline_not=headline)
    assert explorer.picture != picture
    assert "recorded on NVIDIA H200" in explorer.box.inner_text()

    # Up to a setting that the GPU refuses: the reason is on the page, with both numbers.
    for knob in ("block_m", "block_n", "block_k"):
        for _ in range(3):
            explorer.key(knob, "ArrowRight")
    explorer.box.locator("text=393,216 B of shared memory").wait_for(timeout=10_000)
    assert "232,448" in explorer.box.inner_text()
    explorer.key("block_k", "ArrowLeft")
    explorer.box.locator("text=did not fit and spill").wait_for(timeout=10_000)
    quiet(notebook)


def test_the_compilers_panel_follows_the_target(open_notebook):
    notebook = open_notebook("04-compute-bound.ipynb")
    notebook.run_all()
    explorer = notebook.explorer("tiles")
    explorer.choose("numbers from", "recorded: NVIDIA H200")
    explorer.wait()
    explorer.box.locator("text=wgmma m64n128k16 bf16").wait_for(timeout=30_000)
    explorer.choose("compile for", "A100 (sm_80)")
    explorer.box.locator("text=mma.sync m16n8k16 bf16").wait_for(timeout=30_000)
    explorer.key("num_stages", "ArrowRight")
    explorer.box.locator("text=98,304 of 166,912 B").wait_for(timeout=30_000)
    quiet(notebook)


def test_a_recorded_change_is_on_the_page_within_300_ms(open_notebook):
    """Median of several key presses, from key to new picture; 300 ms is the promise, twice that the limit here."""
    notebook = open_notebook("04-compute-bound.ipynb")
    notebook.run_all()
    explorer = notebook.explorer("tiles")
    explorer.choose("numbers from", "recorded: NVIDIA H200")
    explorer.wait()
    spent = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight", "ArrowLeft"):
        headline = explorer.headline
        start = time.monotonic()
        explorer.key("block_m", key)
        explorer.wait(headline_not=headline)
        spent.append(time.monotonic() - start)
    print("key to picture, seconds:", [round(s, 3) for s in spent])
    assert sorted(spent)[2] < 0.6


def test_live_cpu_shows_its_states(open_notebook):
    notebook = open_notebook("04-compute-bound.ipynb")
    notebook.run_all()
    explorer = notebook.explorer("tiles")
    explorer.wait()
    options = explorer.box.locator(".widget-dropdown:has(label:text-is('numbers from')) option").all_inner_texts()
    explorer.choose("numbers from", next(o for o in options if o.startswith("live")))
    explorer.box.locator("text=/live on/").first.wait_for(timeout=60_000)
    explorer.wait()
    headline = explorer.headline
    explorer.key("block_m", "ArrowRight")
    seen = set()
    end = time.monotonic() + 60
    while time.monotonic() < end and ("done" not in explorer.state or explorer.headline == headline):
        seen.add(re.sub(r"^\W+", "", explorer.state))
    assert seen & {"asked", "compiling", "measuring"}, seen
    assert "FLOP/s" in explorer.headline
    quiet(notebook)


def test_fusion(open_notebook):
    notebook = open_notebook("05-memory-bound.ipynb")
    notebook.run_all()
    explorer = notebook.explorer("fusion")
    explorer.choose("numbers from", "recorded: NVIDIA H200")
    explorer.wait()
    headline, picture = explorer.headline, explorer.picture
    explorer.choose("fused", "triton")
    explorer.wait(headline_not=headline)
    assert explorer.picture != picture
    headline = explorer.headline
    explorer.key("size", "ArrowRight")
    explorer.wait(headline_not=headline)
    assert "must move" in explorer.box.inner_text()
    quiet(notebook)


@pytest.mark.parametrize("name", ["02-operators-in-a-model.ipynb", "03-arithmetic-intensity.ipynb"])
def test_counting_chapters_run_quietly(open_notebook, server, name):
    if server[1] != "JupyterLab Light":
        pytest.skip("the same notebook in dark would show nothing new; its pictures are tested below")
    notebook = open_notebook(name)
    notebook.run_all()
    notebook.page.locator("img.oplab-picture").first.wait_for(timeout=30_000)
    quiet(notebook)


def test_amdahl_by_keyboard(open_notebook):
    notebook = open_notebook("02-operators-in-a-model.ipynb")
    notebook.run_all()
    box = notebook.page.locator(".oplab-explorer").first
    before = box.locator(".oplab-headline").inner_text()
    box.locator(".noUi-handle").focus()
    notebook.page.keyboard.press("ArrowRight")
    notebook.page.wait_for_function(
        "b => document.querySelector('.oplab-headline').innerText !== b", arg=before, timeout=5_000
    )
    quiet(notebook)


def test_your_machine_runs_and_takes_a_prediction(open_notebook):
    notebook = open_notebook("00-your-machine.ipynb")
    notebook.run_all()
    notebook.page.locator("button:text-is('over 1 TB/s')").first.click()
    notebook.page.locator("text=You said: over 1 TB/s").first.wait_for(timeout=10_000)
    quiet(notebook)


@pytest.mark.parametrize("width", [1400, 700])
def test_pictures_keep_their_shape_and_suit_the_theme(open_notebook, server, width):
    notebook = open_notebook("04-compute-bound.ipynb", width=width)
    notebook.run_all()
    explorer = notebook.explorer("tiles")
    explorer.wait()
    for image in explorer.box.locator("img.oplab-picture").all():
        box = image.bounding_box()
        natural = image.evaluate("i => i.naturalWidth / i.naturalHeight")
        assert box["width"] / box["height"] == pytest.approx(natural, rel=0.03)
        assert box["width"] <= width
    brightness = paper_brightness(explorer.box.locator("img.oplab-picture").first.screenshot())
    assert (brightness > 200) == (server[1] == "JupyterLab Light"), brightness


def paper_brightness(png):
    """Median grey value of a picture: its paper."""
    pixels = sorted(Image.open(io.BytesIO(png)).convert("L").getdata())
    return pixels[len(pixels) // 2]

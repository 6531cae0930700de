"""The machine: measured for real once, then its cache is broken in every way."""

import json
import os
import warnings

import pytest
import torch
from oplab import machine as module
from oplab import roofline
from oplab.drawing import Picture
from oplab.experiments import TILES
from oplab.machine import Machine, machine, tf32_allowed


@pytest.fixture(scope="module")
def measured():
    return machine("cpu")


@pytest.fixture
def cache(tmp_path, monkeypatch, measured):
    """A cache folder of its own; measuring again is counted instead of done."""
    monkeypatch.setenv("OPLAB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_known", {})
    calls = []
    monkeypatch.setattr(module, "_measure", lambda dev: calls.append(dev) or measured)
    return tmp_path, calls


def test_it_knows_itself(measured):
    assert measured.kind == "cpu"
    assert measured.name
    assert measured.limits["threads"] == torch.get_num_threads()
    assert measured.limits["memory_bytes"] > 1e9
    assert 1e8 < measured.bandwidth < 1e13
    assert 1e8 < measured.peak("fp32") < 1e16
    assert measured.peak(torch.float32) == measured.peak("float32") == measured.peak("fp32")
    assert measured.balance("fp32") == measured.peak("fp32") / measured.bandwidth


def test_an_unmeasured_peak_names_what_there_is(measured):
    with pytest.raises(KeyError, match="fp32"):
        measured.peak("int3")


def test_it_is_measured_once(cache):
    folder, calls = cache
    first, second = machine("cpu"), machine("cpu")
    assert first is second
    assert len(calls) == 1
    assert len(list(folder.glob("machine-*.json"))) == 1


def test_the_cache_outlives_the_process(cache, monkeypatch):
    _, calls = cache
    first = machine("cpu")
    monkeypatch.setattr(module, "_known", {})
    assert machine("cpu") == first
    assert len(calls) == 1


def test_refresh_measures_again(cache):
    _, calls = cache
    machine("cpu")
    machine("cpu", refresh=True)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "ignored the machine cache"),
        (lambda text: "", "ignored the machine cache"),
        (lambda text: "[]", "ignored the machine cache"),
        (lambda text: json.dumps({**json.loads(text), "schema": 99}), "another version"),
        (lambda text: json.dumps({"schema": 1, "name": "half"}), "incomplete"),
    ],
)
def test_a_damaged_cache_is_named_skipped_and_rebuilt(cache, monkeypatch, damage, said):
    folder, calls = cache
    machine("cpu")
    (path,) = folder.glob("machine-*.json")
    path.write_text(damage(path.read_text()))
    monkeypatch.setattr(module, "_known", {})
    with pytest.warns(UserWarning, match=said):
        again = machine("cpu")
    assert len(calls) == 2
    assert Machine.from_dict(json.loads(path.read_text())) == again


def test_a_cache_that_cannot_be_written_is_said_and_survived(cache, monkeypatch, measured):
    folder, _ = cache
    blocked = folder / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("OPLAB_CACHE_DIR", str(blocked))
    with pytest.warns(UserWarning, match="could not keep"):
        assert machine("cpu", refresh=True) == measured


def test_other_versions_have_another_cache_key(cache, monkeypatch):
    _, calls = cache
    machine("cpu")
    monkeypatch.setattr(module, "versions", lambda: {"torch": "0.0"})
    machine("cpu")
    assert len(calls) == 2


def test_a_written_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "deep" / "file.json"
    module.write_atomically(path, "one")
    module.write_atomically(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["file.json"]


@pytest.mark.parametrize(("rate", "largest"), [(5e8, 256), (5e9, 512), (1e15, 2048)])
def test_a_cpu_that_is_slow_in_a_dtype_is_measured_with_a_smaller_product(monkeypatch, rate, largest):
    clock, sizes = [0.0], []

    def product_of(dev, dtype, size):
        def product():
            clock[0] += 2 * size**3 / rate
            sizes.append(size)

        return product

    monkeypatch.setattr(module, "_vendor_product", product_of)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module, "_matmul_rate", lambda dev, dtype, at: (at, ()))
    assert module._cpu_matmul_rate("bf16") == ((largest,), ())
    assert clock[0] < 5
    assert max(sizes) <= largest


def test_tf32_is_restored():
    before = torch.backends.cuda.matmul.fp32_precision
    with tf32_allowed(True):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_text_and_table(measured):
    assert "memory bandwidth" in repr(measured)
    assert "<table>" in measured._repr_html_()


# --- roofline


H200 = TILES.recording("nvidia-h200").machine


def test_attainable_is_the_smaller_of_the_two():
    assert roofline.attainable(1.0, peak=100.0, bandwidth=10.0) == 10.0
    assert roofline.attainable(50.0, peak=100.0, bandwidth=10.0) == 100.0


def test_faster_than_memory_is_flagged():
    gigabyte = 1e9
    honest, hot = gigabyte / H200.bandwidth, gigabyte / (2 * H200.bandwidth)
    assert roofline.faster_than_ceiling(honest, H200, nbytes=gigabyte) is None
    assert "cache-hot or wrong" in roofline.faster_than_ceiling(hot, H200, nbytes=gigabyte)


def test_faster_than_arithmetic_is_flagged():
    work = 1e12
    honest = work / H200.peak("bf16")
    assert roofline.faster_than_ceiling(honest, H200, flops=work, dtype="bf16") is None
    assert "bf16 peak" in roofline.faster_than_ceiling(honest / 2, H200, flops=work, dtype="bf16")


def test_the_picture_is_a_picture_and_has_words():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit warns
        picture = roofline.plot(H200, points=[("sum", 0.25, 1e12)])
    assert isinstance(picture, Picture)
    assert picture.png.startswith(b"\x89PNG")
    assert "NVIDIA H200" in repr(picture)


def test_several_machines_on_one_picture(measured):
    picture = roofline.plot(H200, measured)
    assert "NVIDIA H200" in picture.text
    assert measured.name in picture.text

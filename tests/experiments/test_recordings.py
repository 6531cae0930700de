"""The shipped H200 recording, and recordings that are broken, half made or somebody else's."""

import json

import pytest
import torch
from oplab.experiments import (
    FUSION,
    LIVE_CPU,
    RECORDED,
    TILES,
    TRAPS,
    Experiment,
    Knob,
    RecordingError,
    Result,
    recorder,
    recording,
)
from oplab.experiments import result as status

H200 = "nvidia-h200"


@pytest.mark.parametrize("experiment", [TILES, FUSION, TRAPS], ids=lambda x: x.name)
def test_a_recording_says_where_it_comes_from(experiment):
    recorded = experiment.recording(H200)
    assert recorded.machine.name == "NVIDIA H200"
    assert recorded.machine.driver
    assert {"torch", "triton", "python"} <= set(recorded.versions)
    assert recorded.date >= "2026-12-01"
    assert recorded.commit not in ("", "unknown")
    for result in recorded.results:
        assert result.source == RECORDED
        assert result.ok == bool(result.samples)
        assert result.ok or result.reason


def test_tiles_cover_what_was_promised():
    recorded = TILES.recording(H200)
    assert len(recorded.results) >= 300
    assert {r.knobs["dtype"] for r in recorded.results} >= {"bf16", "fp16", "fp32", "tf32"}
    assert {r.knobs["size"] for r in recorded.results} >= {2048, 4096, 8192}
    refused = [r for r in recorded.results if r.status == status.OUT_OF_RESOURCES]
    assert any("393,216 B of shared memory" in r.reason for r in refused)
    assert all("232,448" in r.reason for r in refused)
    assert any("spill" in note for r in recorded.results for note in r.notes)


def test_the_best_tile_is_level_with_cublas():
    for size in (4096, 8192):
        ran = [r for r in TILES.recording(H200).where(size=size, dtype="bf16") if r.ok]
        assert max(r.speedup for r in ran) >= 0.97


def test_fusion_covers_what_was_promised():
    results = FUSION.recording(H200).results
    assert len(results) >= 40
    assert all({"kernels", "bytes_moved"} <= set(r.resources) for r in results)


def test_the_fused_chain_is_level_with_a_copy():
    for size, reach in ((8192, 0.90), (16384, 0.93)):
        by_hand = FUSION.run(source=RECORDED, size=size, dtype="bf16", fused="triton")
        compiled = FUSION.run(source=RECORDED, size=size, dtype="bf16", fused="compiled")
        assert by_hand.bandwidth_fraction >= reach
        assert by_hand.seconds <= compiled.seconds


def test_nothing_recorded_is_faster_than_the_machine():
    for result in TILES.recording(H200).results:
        if result.ok:
            assert result.flops_fraction < 1.1


def test_the_explorers_opening_setting_is_recorded():
    for experiment in (TILES, FUSION, TRAPS):
        assert experiment.run(source=RECORDED).ok


def test_what_was_not_recorded_is_said_and_not_invented():
    result = TILES.run(source=RECORDED, size=3000)
    assert result.status == status.NOT_RECORDED
    assert result.seconds is None
    assert "measure it live" in result.reason


def test_an_absent_recording_names_those_there_are():
    with pytest.raises(RecordingError, match=H200):
        TILES.recording("cray-1")
    result = TILES.run(source=RECORDED, recording="cray-1")
    assert result.status == status.UNAVAILABLE
    assert H200 in result.reason


# --- broken files


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "not complete JSON"),
        (lambda text: "", "not complete JSON"),
        (lambda text: json.dumps({**json.loads(text), "schema": 2}), "another version"),
        (lambda text: json.dumps({"schema": 1}), "incomplete"),
        (lambda text: json.dumps({**json.loads(text), "machine": {"schema": 7}}), "another version"),
        (lambda text: json.dumps({**json.loads(text), "results": [{"colour": 1}]}), "incomplete"),
        (lambda text: "[1, 2]", "incomplete"),
    ],
)
def test_a_broken_recording_is_one_line_that_names_the_file(tmp_path, damage, said):
    original = recording.FOLDER / H200 / "traps.json"
    path = tmp_path / H200 / "traps.json"
    path.parent.mkdir()
    path.write_text(damage(original.read_text()))
    with pytest.raises(RecordingError) as caught:
        recording.load("traps", H200, tmp_path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "oplab record traps" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_saved_is_what_is_loaded(tmp_path):
    first = TRAPS.recording(H200)
    path = tmp_path / H200 / "traps.json"
    recording.save(
        path, experiment="traps", machine=first.machine, date=first.date, commit=first.commit, results=first.results
    )
    again = recording.load("traps", H200, tmp_path)
    assert again.results == first.results
    assert again.machine == first.machine


# --- recording


class Counting(Experiment):
    """Five settings that cost nothing; the one numbered ``stop_at`` is interrupted."""

    name = "counting"
    title = "counting"
    knobs = (Knob("n", "n", "", (0, 1, 2, 3, 4), 0, (0, 1, 2, 3, 4), 0),)
    stop_at: int | None = None

    def __init__(self):
        self.measured = []

    def measure(self, knobs, source, device):
        if knobs["n"] == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(knobs["n"])
        return Result(self.name, knobs, source, "here", "today", samples=(1.0 + knobs["n"],))

    def settings(self, source):
        return ({"n": n} for n in range(5))


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_an_interrupted_recording_keeps_what_it_has_and_goes_on(tmp_path, on_cpu):
    experiment = Counting()
    experiment.stop_at = 3
    with pytest.raises(KeyboardInterrupt):
        recorder.record(experiment, name="here", folder=tmp_path)
    kept = recording.load("counting", "here", tmp_path)
    assert [r.knobs["n"] for r in kept.results] == [0, 1, 2]
    experiment.stop_at, experiment.measured = None, []
    recorder.record(experiment, name="here", folder=tmp_path)
    assert experiment.measured == [3, 4]
    whole = recording.load("counting", "here", tmp_path)
    assert [r.seconds for r in whole.results] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_recording_of_another_machine_is_not_mixed(tmp_path, on_cpu):
    first = TRAPS.recording(H200)
    recording.save(
        tmp_path / "there" / "counting.json",
        experiment="counting",
        machine=first.machine,
        date=first.date,
        commit="c",
        results=[],
    )
    with pytest.raises(ValueError, match="--restart"):
        recorder.record(Counting(), name="there", folder=tmp_path)
    recorder.record(Counting(), name="there", folder=tmp_path, restart=True)
    assert len(recording.load("counting", "there", tmp_path).results) == 5


def test_folder_names():
    assert recorder.slug("NVIDIA H200") == H200
    assert recorder.slug("Intel(R) Xeon(R) @ 2.0") == "intel-r-xeon-r-2-0"


def test_cpu_settings_are_complete_and_valid():
    for experiment in (TILES, FUSION, TRAPS):
        for knobs in experiment.settings(LIVE_CPU):
            assert experiment.complete(knobs, LIVE_CPU) == knobs


def test_gpu_settings_are_complete_valid_and_recorded():
    for experiment in (TILES, FUSION, TRAPS):
        recorded = experiment.recording(H200)
        settings = list(experiment.settings("live-gpu"))
        assert len({str(s) for s in settings}) == len(settings)
        for knobs in settings:
            assert experiment.complete(knobs, "live-gpu") == knobs
            assert recorded.find(knobs) is not None, knobs

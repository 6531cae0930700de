"""Knobs, sources and results; and everything that can go wrong with one setting."""

import os
import subprocess
import sys

import pytest
import torch
from oplab import doctor, timing
from oplab import experiments as e
from oplab.experiments import FUSION, LIVE_CPU, LIVE_GPU, RECORDED, TILES, TRAPS, Result, live
from oplab.experiments import result as status

NO_GPU = not torch.cuda.is_available()


def test_all_are_listed_by_name():
    names = ["traps", "operators", "tiles", "fusion", "backward", "gather", "softmax"]
    assert [experiment.name for experiment in e.ALL] == names
    for experiment in e.ALL:
        assert e.by_name(experiment.name) is experiment
        assert experiment.knobs
    with pytest.raises(KeyError, match="tiles"):
        e.by_name("tides")


# --- knobs


@pytest.mark.parametrize(
    ("experiment", "knobs", "said"),
    [
        (TILES, {"block_m": 0}, "block_m: 0 is not a whole number"),
        (TILES, {"block_m": 24}, "not a power of two"),
        (TILES, {"block_n": 8}, "at least 16"),
        (TILES, {"block_k": -64}, "not a whole number"),
        (TILES, {"block_m": 64.0}, "not a whole number"),
        (TILES, {"block_m": True}, "not a whole number"),
        (TILES, {"block_m": "64"}, "not a whole number"),
        (TILES, {"size": 0}, "size: 0"),
        (TILES, {"dtype": "int3"}, "not one of bf16"),
        (TILES, {"kernel": "magic"}, "not one of tiled, persistent"),
        (TILES, {"num_warps": 3}, "not one of 4, 8"),
        (FUSION, {"fused": "welded"}, "not one of eager"),
        (FUSION, {"fused": "numba"}, "runs on a CPU"),
        (TRAPS, {"trap": "optimism"}, "not one of no_sync"),
    ],
)
def test_a_bad_knob_value_is_a_plain_line(experiment, knobs, said):
    result = experiment.run(source=RECORDED, **knobs)
    assert result.status == status.INVALID
    assert not result.ok
    assert said in result.reason
    assert result.seconds is None


def test_on_a_cpu_a_tile_need_not_be_a_power_of_two():
    assert TILES.run(source=LIVE_CPU, size=50, block_m=7, block_n=13, block_k=3).ok


def test_triton_on_a_cpu_is_refused_with_the_way_out():
    result = FUSION.run(source=LIVE_CPU, fused="triton")
    assert result.status == status.INVALID
    assert "numba" in result.reason


def test_an_unknown_knob_is_an_error_with_a_hint():
    with pytest.raises(TypeError, match="block_m"):
        TILES.run(blok_m=64)


def test_an_unknown_source_is_an_error():
    with pytest.raises(ValueError, match="live-gpu"):
        TILES.run(source="hearsay")


@pytest.mark.parametrize("name", ["bf16", "bfloat16", torch.bfloat16])
def test_one_dtype_has_many_names(name):
    assert TILES.run(source=RECORDED, dtype=name).knobs["dtype"] == "bf16"


def test_knobs_without_meaning_on_a_cpu_are_left_out():
    result = TILES.run(source=LIVE_CPU, size=64, num_warps=8, num_stages=3)
    assert result.ok
    assert "num_warps" not in result.knobs


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU here")
def test_without_a_gpu_the_recording_answers_and_live_gpu_says_why_not():
    assert TILES.run().source == RECORDED
    refused = TILES.run(source=LIVE_GPU)
    assert refused.status == status.UNAVAILABLE
    assert "GPU" in refused.reason


# --- results


def test_a_result_knows_its_ratios():
    r = Result(
        "x", {}, RECORDED, "M", "2026-12-01", samples=(1.0, 2.0, 3.0), baseline_seconds=4.0, flops=8.0, nbytes=6.0
    )
    assert (r.seconds, r.rate, r.bandwidth, r.speedup, r.ok) == (2.0, 4.0, 3.0, 2.0, True)
    assert r.label == "recorded on M, 2026-12-01"


def test_a_failed_result_has_no_numbers():
    r = Result("x", {"k": 1}, LIVE_CPU, "M", "d").failed(status.FAILED, "because")
    assert (r.seconds, r.rate, r.speedup, r.ok, r.stable) == (None, None, None, False, False)
    assert "because" in repr(r)


# --- live on this CPU


def test_tiles_live():
    result = TILES.run(source=LIVE_CPU, size=256)
    assert result.ok, result.reason
    assert result.flops == 2 * 256**3
    assert result.baseline == "torch.mm"
    assert 0 < result.flops_fraction < live.roofline.TOLERANCE
    assert result.relative_error < 1e-5
    assert len(result.samples) >= 2


def test_a_tile_makes_the_cache_visible():
    naive = TILES.run(source=LIVE_CPU, size=512, kernel="naive")
    tiled = TILES.run(source=LIVE_CPU, size=512, block_m=64, block_n=64, block_k=64)
    assert naive.seconds > 4 * tiled.seconds


def test_fusion_live():
    eager = FUSION.run(source=LIVE_CPU, size=2048, fused="eager")
    fused = FUSION.run(source=LIVE_CPU, size=2048, fused="numba")
    assert eager.ok, eager.reason
    assert fused.ok, fused.reason
    assert eager.resources["kernels"] == 4
    assert fused.resources["kernels"] == 1
    assert eager.resources["bytes_moved"] == pytest.approx(3 * fused.resources["bytes_moved"], rel=0.01)
    assert fused.speedup > 1.2
    assert fused.bandwidth_fraction > eager.bandwidth_fraction


@pytest.mark.skipif(doctor._compiler().mark != doctor.FOUND, reason=doctor.TEXT["no_compiler"])
def test_torch_compile_live():
    result = FUSION.run(source=LIVE_CPU, size=512, fused="compiled")
    assert result.ok, result.reason


def test_every_cpu_trap_shows_both_numbers():
    for trap in TRAPS.knobs[0].cpu:
        result = TRAPS.run(source=LIVE_CPU, trap=trap)
        assert result.ok, result.reason
        assert result.seconds > 0
        assert result.baseline_seconds > 0
        assert result.notes
    assert TRAPS.run(source=LIVE_CPU, trap="no_warmup").speedup < 0.1
    assert TRAPS.run(source=LIVE_CPU, trap="cache_hot").speedup > 1.2


NO_COMPILER = """
from oplab.experiments import FUSION
result = FUSION.run(source="live-cpu", size=128, fused="compiled")
print(result.status, "|", result.reason)
print(FUSION.run(source="live-cpu", size=128, fused="numba").status)
"""


def test_without_a_compiler_one_way_is_missing_and_the_rest_works(tmp_path):
    env = {**os.environ, "CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", NO_COMPILER], env=env, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("unavailable | torch.compile needs a C++ compiler")
    assert second == "ok"


# --- what a bad kernel does


def trial(candidate, *, nbytes=4 * 3 * 64 * 64, seconds_ago=0.0, key="bad"):
    live._shared_work.clear()
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    work = live.Work((a, b), torch.empty(64, 64), (a.double() @ b.double()).float(), lambda: a @ b)
    return live.trial(
        Result("tiles", {}, LIVE_CPU, "here", "today"),
        torch.device("cpu"),
        key=key,
        make_work=lambda: work,
        work_bytes=10,
        cost=live.Cost(2 * 64**3, nbytes, "fp32", peak_dtype="fp32"),
        candidate=candidate,
        baseline="torch.mm",
        budget=0.01,
    )


def right(work):
    return lambda: torch.mm(*work.inputs, out=work.output)


def test_a_right_kernel_passes():
    assert trial(right).ok


def test_a_wrong_number_is_found():
    def one_wrong(work):
        def call():
            right(work)()
            work.output[13, 57] += 50.0
            return work.output

        return call

    result = trial(one_wrong)
    assert result.status == status.WRONG
    assert "wrong" in result.reason


def test_nan_never_passes():
    def nan(work):
        return lambda: right(work)().mul_(float("nan"))

    assert trial(nan).status == status.WRONG


def test_one_nan_never_passes():
    def nan(work):
        def call():
            right(work)()[0, 0] = float("nan")
            return work.output

        return call

    assert trial(nan).status == status.WRONG


def test_an_unwritten_corner_is_found():
    def lazy(work):
        def call():
            work.output[:63].copy_((work.inputs[0] @ work.inputs[1])[:63])
            return work.output

        return call

    result = trial(lazy)
    assert result.status == status.WRONG
    assert "64 elements were never written" in result.reason


def test_a_stale_output_does_not_pass():
    def stale(work):
        right(work)()
        return lambda: work.output

    assert trial(stale).status == status.WRONG


def test_faster_than_the_machine_is_suspect(monkeypatch):
    real = live.machine(torch.device("cpu"))
    slow = {**vars(real), "peaks": {"fp32": 1e3}}
    monkeypatch.setattr(live, "machine", lambda device: type(real)(**slow))
    result = trial(right)
    assert result.status == status.SUSPECT
    assert "cache-hot or wrong" in result.reason


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("boom\nsecond line"), status.FAILED),
        (torch.OutOfMemoryError("CUDA out of memory"), status.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: not enough memory"), status.OUT_OF_MEMORY),
    ],
)
def test_an_error_becomes_one_line(error, kind):
    def raises(work):
        def call():
            raise error

        return call

    result = trial(raises)
    assert result.status == kind
    assert result.reason
    assert "\n" not in result.reason


def test_refused_resources_say_how_much_of_how_much():
    class OutOfResources(Exception):
        required, limit, name = 393_216, 232_448, "shared memory"

    def raises(work):
        def call():
            raise OutOfResources

        return call

    result = trial(raises)
    assert result.status == status.OUT_OF_RESOURCES
    assert "393,216 B of shared memory" in result.reason
    assert "232,448" in result.reason


def test_a_withdrawn_request_is_not_a_result():
    def raises(work):
        raise timing.Withdrawn

    with pytest.raises(timing.Withdrawn):
        trial(raises)


def test_a_size_that_does_not_fit_is_refused_before_it_is_tried():
    result = TILES.run(source=LIVE_CPU, size=2_000_000)
    assert result.status == status.OUT_OF_MEMORY
    assert "choose a smaller size" in result.reason


def test_the_machine_stays_usable_after_failures():
    test_nan_never_passes()
    assert TILES.run(source=LIVE_CPU, size=64).ok

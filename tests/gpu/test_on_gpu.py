"""What only a GPU can show. Run with: pytest tests/gpu (skipped where there is none)."""

import pytest
import torch
from oplab import roofline, timing
from oplab.experiments import FUSION, LIVE_GPU, TILES, TRAPS, live
from oplab.experiments import result as status
from oplab.kernels import matmul, pointwise
from oplab.machine import machine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA GPU here; this suite runs on the recording machine"
    ),
]

SHAPES = [
    (64, 64, 64),
    (37, 53, 19),
    (1, 1, 1),
    (130, 72, 40),
    (1000, 333, 77),
    (1, 4096, 33),
    (4096, 1, 33),
    (257, 129, 1),
]
LIMIT = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def poisoned(*shape, dtype):
    tensor = torch.empty(*shape, dtype=dtype, device="cuda")
    timing.poison(tensor)
    return tensor


def check(got, reference, dtype):
    assert timing.unwritten(got) == 0
    error, worst = live.relative_error(got, reference.float())
    assert error <= LIMIT[dtype]
    assert worst <= 50 * LIMIT[dtype]


@pytest.mark.parametrize("dtype", list(LIMIT))
@pytest.mark.parametrize("shape", SHAPES)
def test_tiled(shape, dtype):
    M, N, K = shape
    a, b = torch.randn(M, K, device="cuda").to(dtype), torch.randn(K, N, device="cuda").to(dtype)
    for tile in (matmul.Tile(64, 64, 32, 4, 3), matmul.Tile(16, 128, 64, 4, 2)):
        out = poisoned(M, N, dtype=dtype)
        check(matmul.Launch(a, b, out, tile=tile)(), matmul.reference(a, b), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64, 64), (130, 72, 40), (1000, 328, 72), (4096, 4096, 512), (1, 4096, 64)])
def test_persistent(shape, dtype):
    M, N, K = shape
    a, b = torch.randn(M, K, device="cuda").to(dtype), torch.randn(K, N, device="cuda").to(dtype)
    for tile in (matmul.Tile(128, 256, 64, 8, 3), matmul.Tile(64, 64, 64, 4, 3)):
        out = poisoned(M, N, dtype=dtype)
        check(matmul.Launch(a, b, out, kernel="persistent", tile=tile)(), matmul.reference(a, b), dtype)


@pytest.mark.parametrize("dtype", list(LIMIT))
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (333, 1000), (4096, 513), (3, 100_000)])
def test_chain(shape, dtype):
    x, residual = torch.randn(shape, device="cuda").to(dtype), torch.randn(shape, device="cuda").to(dtype)
    bias, scale = (torch.randn(shape[1], device="cuda").to(dtype) for _ in range(2))
    for block in (pointwise.Block(), pointwise.Block(256, 4, 2)):
        got = pointwise.fused(x, bias, scale, residual, poisoned(*shape, dtype=dtype), block)
        check(got, pointwise.reference(x, bias, scale, residual), dtype)


def test_offsets_beyond_32_bits():
    x = torch.randn(70_000, 32_768, device="cuda", dtype=torch.bfloat16)  # 2.3 G elements
    bias, scale = (torch.randn(32_768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = pointwise.fused(x, bias, scale, x)
    check(out[-8:], pointwise.reference(x[-8:], bias, scale, x[-8:]), torch.bfloat16)


def test_work_on_another_stream_is_noticed():
    x, stream = torch.randn(8192, 8192, device="cuda"), torch.cuda.Stream()

    def hidden():
        with torch.cuda.stream(stream):
            torch.mm(x, x)

    timed = timing.measure(hidden)
    assert not timed.stable
    assert any("another stream" in note for note in timed.notes)


def test_the_cache_is_cold():
    """A small array read again and again must not look faster than memory."""
    x = torch.randn(1 << 22, device="cuda")
    out = torch.empty_like(x)
    timed = timing.measure(lambda: torch.add(x, 1, out=out))
    assert roofline.bandwidth_share(2 * x.nbytes, timed.median, machine().bandwidth) < 1.1


def test_timing_agrees_with_the_profiler():
    from torch.profiler import ProfilerActivity, profile

    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    timed = timing.measure(lambda: torch.mm(a, b, out=out))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(20):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
    kernel = max(seen.key_averages(), key=lambda event: event.self_device_time_total)
    assert timed.median == pytest.approx(kernel.self_device_time_total / kernel.count / 1e6, rel=0.25)


def test_machine_and_cliffs():
    here = machine()
    assert here.kind == "cuda"
    assert here.limits["sms"] > 0
    assert here.peak("bf16") > here.peak("fp32")
    refused = TILES.run(source=LIVE_GPU, block_m=256, block_n=256, block_k=128, num_stages=4)
    assert refused.status == status.OUT_OF_RESOURCES
    assert "shared memory" in refused.reason
    spilled = TILES.run(source=LIVE_GPU, block_m=256, block_n=256)
    assert spilled.resources["spills"] > 0
    assert any("spill" in note for note in spilled.notes)


def test_settings_live():
    for knobs in ({}, {"kernel": "persistent", "block_n": 256}, {"dtype": "tf32", "block_k": 32}):
        result = TILES.run(source=LIVE_GPU, **knobs)
        assert result.ok, result.reason
        assert result.baseline_seconds > 0
    for way in ("eager", "compiled", "triton"):
        result = FUSION.run(source=LIVE_GPU, fused=way)
        assert result.ok, result.reason


def test_traps_live():
    for trap in TRAPS.knobs[0].gpu:
        assert TRAPS.run(source=LIVE_GPU, trap=trap).ok
    assert TRAPS.run(source=LIVE_GPU, trap="no_sync").speedup > 3
    assert TRAPS.run(source=LIVE_GPU, trap="noise").speedup < 0.95

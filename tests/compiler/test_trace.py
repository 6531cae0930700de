"""trace: what a kernel loads and stores, against closed forms; and what is wrong with it, by name and line."""

import linecache
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton does not exist on this platform")
import triton.language as tl  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from oplab.compiler import KernelError, WorkerError, interpreter, trace  # noqa: E402
from oplab.compiler import tracing as module  # noqa: E402
from oplab.kernels import copy, matmul, pointwise  # noqa: E402
from oplab.machine import machine  # noqa: E402

BLOCK = 16


def line_of(kernel, text):
    """Number and text of the first line of this file with ``text`` after the start of ``kernel``."""
    lines = Path(__file__).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"def {kernel.fn.__name__}("))
    return next(i for i in range(start, len(lines)) if text in lines[i]) + 1


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0), mask=at < n)


@triton.jit
def no_mask_kernel(x_ptr, y_ptr, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + at + shift)
    tl.store(y_ptr + at + shift, v)


@triton.jit
def no_other_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n))


@triton.jit
def same_place_kernel(y_ptr):
    tl.store(y_ptr + 2, tl.program_id(0))


@triton.jit
def accumulate_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr) + 1)


@triton.jit
def atomic_kernel(y_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(y_ptr + tl.arange(0, BLOCK), 1.0)


@triton.jit
def last_one_sums_kernel(x_ptr, part_ptr, count_ptr, y_ptr, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(part_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + at)))
    if tl.atomic_add(count_ptr, 1) == PARTS - 1:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, PARTS))))


@triton.jit
def neighbour_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at + 1))


@triton.jit
def transpose_kernel(x_ptr, y_ptr, M, N, stride_x, stride_y, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (rows < M) & (cols < N)
    tl.store(y_ptr + cols * stride_y + rows, tl.load(x_ptr + rows * stride_x + cols, mask=inside, other=0), mask=inside)


@triton.jit
def _bad_helper(v):
    return tl.reshape(v, (3, 5))


@triton.jit
def helper_fails_kernel(x_ptr, BLOCK: tl.constexpr):
    v = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(x_ptr + tl.arange(0, BLOCK), _bad_helper(v))


@triton.jit
def forever_kernel(x_ptr):
    i = tl.load(x_ptr)
    while i < 1:
        i = i * 1


@triton.jit
def wild_kernel(x_ptr, far, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK) + far.to(tl.int64) * 1_000_000_000, 1.0)


@triton.jit
def cast_dot_kernel(a_ptr, b_ptr, c_ptr, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(c_ptr + at, tl.dot(tl.load(a_ptr + at).to(tl.bfloat16), tl.load(b_ptr + at).to(tl.bfloat16)))


@triton.jit
def printing_kernel(x_ptr):
    tl.device_print("value", tl.load(x_ptr))


@triton.jit
def untouched_kernel(x_ptr, y_ptr):
    return


# --- closed forms ------------------------------------------------------------------------------------


@settings(max_examples=6, deadline=None)
@given(st.tuples(*[st.integers(1, 6)] * 3), st.tuples(*[st.sampled_from([16, 32])] * 3), st.booleans())
def test_a_tiled_product_loads_mnk_over_the_tile(counts, tile, half):
    """M N K (1/block_m + 1/block_n) elements; each of A and B once at least."""
    M, N, K = (n * b for n, b in zip(counts, tile, strict=True))
    dtype = torch.float16 if half else torch.float32
    a, b = torch.randn(M, K).to(dtype), torch.randn(K, N).to(dtype)
    launch = matmul.Launch(a, b, tile=matmul.Tile(*tile))
    found = launch.trace()
    assert found.ok, found
    assert not found.notes
    size = a.element_size()
    assert found["a_ptr"].load_bytes == M * N * K // tile[1] * size
    assert found["b_ptr"].load_bytes == M * N * K // tile[0] * size
    assert found.flops == 2 * M * N * K == found.dot_flops["fp16" if half else "fp32"]
    assert found.unique_bytes == (M * K + K * N + M * N) * size
    assert found["a_ptr"].reread == counts[1]
    assert found["b_ptr"].reread == counts[0]
    assert found["c_ptr"].store_bytes == M * N * size
    assert found["c_ptr"].rewritten == 1
    assert found.intensity == 2 * M * N * K / ((M * K + K * N + M * N) * size)
    torch.testing.assert_close(launch.out.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-2 if half else 1e-4)


def test_a_512_cube_in_twenty_seconds():
    a, b = (torch.randn(512, 512, dtype=torch.float16) for _ in range(2))
    began = time.monotonic()
    found = matmul.Launch(a, b, tile=matmul.Tile(64, 64, 32)).trace()
    assert time.monotonic() - began < 20
    assert found["a_ptr"].load_bytes == 512**3 // 64 * 2


def test_the_odd_edges_of_a_product_are_masked_and_inside():
    a, b = torch.randn(37, 50), torch.randn(50, 41)
    found = matmul.Launch(a, b, tile=matmul.Tile(16, 16, 32)).trace()
    assert found.ok, found
    assert found["a_ptr"].unique_load_bytes == 37 * 50 * 4
    assert found["c_ptr"].unique_store_bytes == found["c_ptr"].store_bytes == 37 * 41 * 4
    assert found["c_ptr"].masked_stores == 48 * 48 - 37 * 41
    assert found["a_ptr"].masked_loads == 3 * 48 * (64 - 50)  # three column tiles read it, 48 rows each


def test_tensor_descriptors_are_seen():
    a, b = torch.randn(64, 48, dtype=torch.float16), torch.randn(48, 64, dtype=torch.float16)
    launch = matmul.Launch(a, b, kernel="persistent", tile=matmul.Tile(32, 32, 32))
    found = launch.trace()
    assert found.ok, found
    assert not found.notes
    assert found["a_desc"].load_bytes == 2 * 64 * 48 * 2  # two column tiles; what lies past K is not loaded
    assert found["c_desc"].store_bytes == 64 * 64 * 2
    torch.testing.assert_close(launch.out.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (64, 128)])
def test_a_fused_chain_moves_its_compulsory_bytes(shape):
    """x, residual and y once; bias and scale once each, however often they are asked for."""
    x, residual = (torch.randn(shape) for _ in range(2))
    bias, scale = (torch.randn(shape[1]) for _ in range(2))
    launch = pointwise.Launch(x, bias, scale, residual)
    found = launch.trace()
    assert found.ok, found
    assert found.unique_bytes == 4 * (3 * x.numel() + 2 * bias.numel())
    assert [t.rewritten for t in found.tensors if t.store_bytes] == [1]
    torch.testing.assert_close(launch.out.double(), pointwise.reference(x, bias, scale, residual), rtol=1e-5, atol=1e-5)


def test_bytes_of_every_dtype_and_of_strange_tensors():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.int64, torch.int16, torch.uint8, torch.bool):
        x = torch.randint(0, 2, (50,)).to(dtype)
        y = torch.zeros_like(x)
        found = trace(copy_kernel, (4,), x, y, 50, BLOCK=BLOCK, outputs=["y_ptr"])
        assert found.ok, found
        assert found.loaded_bytes == found.stored_bytes == 50 * x.element_size()
        assert torch.equal(x, y)
    row = torch.randn(6, 10)[3]  # a view: its storage goes on before and after it
    found = trace(copy_kernel, (1,), row, y := torch.zeros(10), 10, BLOCK=BLOCK)
    assert found.ok
    assert torch.equal(row, y)
    found = trace(copy_kernel, 1, torch.ones(()), y := torch.zeros(1), 1, BLOCK=BLOCK)
    assert found.ok
    assert y == 1


def test_a_view_is_left_where_its_storage_goes_on():
    x = torch.randn(64)
    found = trace(no_mask_kernel, (1,), x[16:26], torch.zeros(16), 0, BLOCK=BLOCK)
    (problem,) = found.problems
    assert problem.tensor == "x_ptr"
    assert problem.past == 0
    assert problem.count == 6


def test_a_transpose_with_a_grid_of_two_axes():
    x = torch.randn(20, 35)
    y = torch.full((35, 20), float("nan"))
    grid = lambda meta: (triton.cdiv(20, meta["BLOCK"]), triton.cdiv(35, meta["BLOCK"]))  # noqa: E731
    found = trace(transpose_kernel, grid, x, y, 20, 35, 35, 20, BLOCK=BLOCK, num_warps=4, outputs=("y_ptr",))
    assert found.ok
    assert torch.equal(y, x.T)
    assert found.grid == (2, 3)
    load, store = found.steps((1, 2))
    assert (load.tensor, load.kind, store.tensor, store.kind) == ("x_ptr", "load", "y_ptr", "store")
    expected = {(i, j) for i in range(16, 20) for j in range(32, 35)}
    assert {tuple(e) for e in load.elements} == expected
    assert {tuple(e) for e in store.elements} == {(j, i) for i, j in expected}
    with pytest.raises(ValueError, match=r"no program \(2, 0\)"):
        found.steps((2, 0))


def test_in_place_and_two_views_of_one_storage():
    x = torch.arange(48.0)
    before = x.clone()
    found = trace(copy_kernel, (3,), x, x, 48, BLOCK=BLOCK)
    assert found.ok
    assert torch.equal(x, before)
    assert found.loaded_bytes == found.stored_bytes == 192
    found = trace(copy_kernel, (1,), x[:16], x[32:], 16, BLOCK=BLOCK)
    assert found.ok
    assert torch.equal(x[32:], before[:16])
    assert found.unique_bytes == 128
    overlap = trace(copy_kernel, (2,), x[:32], x[8:40], 32, BLOCK=BLOCK)  # program 1 loads what program 0 stored
    assert "race: load after store" in [p.kind for p in overlap.problems]


def test_expanded_and_empty():
    x = torch.ones(1).expand(4, 16)
    found = trace(copy_kernel, (1,), x, torch.zeros(1, 16), 1, BLOCK=BLOCK)
    assert found.ok
    assert found["x_ptr"].unique_load_bytes == 4
    nothing = trace(copy_kernel, (0,), torch.zeros(0), torch.zeros(0), 0, BLOCK=BLOCK)
    assert nothing.ok
    assert nothing.requested_bytes == 0
    assert nothing.intensity == 0
    empty = trace(no_mask_kernel, (1,), torch.zeros(0), torch.zeros(16), 0, BLOCK=BLOCK)
    assert [p.kind for p in empty.problems] == ["out-of-bounds load"]
    assert empty.problems[0].count == 16


# --- what is wrong, by tensor, program and line ---------------------------------------------------------


def test_out_of_bounds_is_named_and_the_kernel_goes_on():
    x, y = torch.ones(40), torch.zeros(48)
    found = trace(no_mask_kernel, (3,), x, y, 0, BLOCK=BLOCK)
    (problem,) = found.problems
    assert (problem.kind, problem.tensor, problem.past, problem.count) == ("out-of-bounds load", "x_ptr", 0, 8)
    assert problem.program == (2, 0, 0)
    assert problem.line == line_of(no_mask_kernel, "tl.load")
    assert "tl.load(x_ptr + at + shift)" in problem.text
    assert "x_ptr, 1 element(s) past its end by program (2, 0, 0)" in str(problem)
    assert y.tolist() == [1.0] * 40 + [0.0] * 8

    below = trace(no_mask_kernel, (1,), torch.ones(48), torch.zeros(48), -3, BLOCK=BLOCK)
    assert [(p.kind, p.past, p.count) for p in below.problems] == [
        ("out-of-bounds load", -3, 3), ("out-of-bounds store", -3, 3),
    ]  # fmt: skip
    assert "3 element(s) before its start" in str(below.problems[0])
    far = trace(wild_kernel, (1,), torch.ones(16), 1000, BLOCK=BLOCK)
    assert "far from every tensor" in str(far.problems[0])
    assert far.problems[0].count == 16


def test_reading_what_nobody_has_stored():
    y = torch.zeros(4)
    found = trace(accumulate_kernel, (1,), y, outputs=("y_ptr",))
    kinds = {p.kind: p for p in found.problems}
    assert set(kinds) == {"uninitialised load", "never stored"}
    assert kinds["uninitialised load"].index == (0,)
    assert kinds["uninitialised load"].line == line_of(accumulate_kernel, "tl.load")
    assert kinds["never stored"].count == 3
    assert "3 of the elements of y_ptr" in str(kinds["never stored"])
    assert trace(accumulate_kernel, (1,), torch.zeros(1)).ok
    untouched = trace(untouched_kernel, (1,), torch.zeros(2), torch.zeros(5), outputs=("y_ptr",))
    assert [(p.kind, p.count) for p in untouched.problems] == [("never stored", 5)]


def test_races_between_programs():
    two = trace(same_place_kernel, (3,), torch.zeros(4, dtype=torch.int32))
    (problem,) = two.problems
    assert problem.kind == "race: two stores"
    assert problem.index == (2,)
    assert problem.count == 2
    assert problem.program == (1, 0, 0)
    assert problem.other == (0, 0, 0)
    assert "which program (0, 0, 0) also touched" in str(problem)
    assert problem.line == line_of(same_place_kernel, "tl.store")
    lost = trace(accumulate_kernel, (2,), torch.zeros(1))
    assert {p.kind for p in lost.problems} >= {"race: load after store", "race: two stores"}
    after = trace(neighbour_kernel, (2,), torch.zeros(33), BLOCK=BLOCK)
    assert [p.kind for p in after.problems] == ["race: store after load"]
    assert trace(same_place_kernel, (1,), torch.zeros(4, dtype=torch.int32)).ok


def test_atomics_are_no_race_and_order_what_follows():
    y = torch.zeros(16)
    found = trace(atomic_kernel, (5,), y, BLOCK=BLOCK)
    assert found.ok
    assert y.tolist() == [5.0] * 16
    assert found["y_ptr"].atomics == 80
    assert found["y_ptr"].load_bytes == found["y_ptr"].store_bytes == 5 * 64
    x, y = torch.randn(64), torch.zeros(1)
    found = trace(
        last_one_sums_kernel, (4,), x, torch.zeros(4), torch.zeros(1, dtype=torch.int32), y,
        BLOCK=BLOCK, PARTS=4, outputs=("part_ptr", "y_ptr"),
    )  # fmt: skip
    assert found.ok, found
    assert "meet at an atomic first" in found.notes[0]
    torch.testing.assert_close(y[0], x.sum())


def test_masked_off_without_other_is_a_note():
    found = trace(no_other_kernel, (1,), torch.ones(10), torch.zeros(16), 10, BLOCK=BLOCK)
    assert found.ok
    assert "6 masked-off lanes without other=" in found.notes[0]
    assert f"line {line_of(no_other_kernel, 'tl.load')}" in found.notes[0]


def test_a_learners_mistake_is_told_with_its_line():
    with pytest.raises(KernelError) as caught:
        trace(helper_fails_kernel, (1,), torch.ones(16), BLOCK=BLOCK)
    assert caught.value.name == "_bad_helper"
    assert caught.value.line == line_of(_bad_helper, "tl.reshape")
    assert "Error" in caught.value.message
    assert trace(atomic_kernel, (1,), torch.zeros(16), BLOCK=BLOCK).ok


def test_a_loop_that_never_ends_and_a_worker_that_dies():
    with pytest.raises(WorkerError, match="gave up after 4 s"):
        trace(forever_kernel, (1,), torch.zeros(1, dtype=torch.int32), timeout=4)
    killer = threading.Timer(1.0, lambda: os.kill(module._worker.process.pid, signal.SIGKILL))
    module._worker.start()
    killer.start()
    with pytest.raises(WorkerError, match="interpreter stopped in the middle"):
        trace(forever_kernel, (1,), torch.zeros(1, dtype=torch.int32), timeout=60)
    assert trace(atomic_kernel, (1,), torch.zeros(16), BLOCK=BLOCK).ok


def test_what_cannot_be_traced_is_refused_with_the_reason():
    half = torch.zeros(16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"y_ptr is bfloat16.*fp16"):
        trace(copy_kernel, (1,), torch.zeros(16), half, 16, BLOCK=BLOCK)
    with pytest.raises(KernelError, match="bfloat16"):
        trace(cast_dot_kernel, (1,), *(torch.zeros(16, 16) for _ in range(3)), B=16)
    with pytest.raises(ValueError, match="Gluon"):
        trace(copy.copy_kernel, (1,), torch.zeros(16))
    with pytest.raises(ValueError, match="meta"):
        trace(copy_kernel, (1,), torch.zeros(16, device="meta"), torch.zeros(16), 16, BLOCK=BLOCK)
    with pytest.raises(ValueError, match="sparse"):
        trace(copy_kernel, (1,), torch.zeros(4, 4).to_sparse(), torch.zeros(16), 16, BLOCK=BLOCK)
    with pytest.raises(ValueError, match="not a Triton kernel"):
        trace(print, (1,))


def test_arguments_that_do_not_fit():
    x, y = torch.zeros(16), torch.zeros(16)
    with pytest.raises(TypeError, match="needs BLOCK"):
        trace(copy_kernel, (1,), x, y, 16)
    with pytest.raises(TypeError, match="no parameter 'block'"):
        trace(copy_kernel, (1,), x, y, 16, block=16)
    with pytest.raises(TypeError, match="'n' twice"):
        trace(copy_kernel, (1,), x, y, 16, n=16, BLOCK=BLOCK)
    with pytest.raises(TypeError, match="takes 4 arguments; got 5"):
        trace(copy_kernel, (1,), x, y, 16, 16, 1)
    with pytest.raises(ValueError, match="'z_ptr', which is no tensor argument"):
        trace(copy_kernel, (1,), x, y, 16, BLOCK=BLOCK, outputs=("z_ptr",))
    for grid in ((1, 2, 3, 4), (), (1.5,), (-1,), "3", None):
        with pytest.raises(ValueError, match="grid must be one to three whole numbers"):
            trace(copy_kernel, grid, x, y, 16, BLOCK=BLOCK)


def test_a_cell_run_again_with_another_kernel_of_the_same_name():
    traced = []
    for factor in (2, 3):
        text = "import triton\nimport triton.language as tl\n@triton.jit\ndef k(x_ptr):\n"
        text += f"    tl.store(x_ptr, {factor}.0)\n"

        name = f"<ipython-input-{factor}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        scope = {"__name__": "cell"}
        exec(compile(text, name, "exec"), scope)
        x = torch.zeros(1)
        trace(scope["k"], (1,), x)
        traced.append(x.item())
    assert traced == [2, 3]


def test_what_a_kernel_prints_is_printed(capfd):
    trace(printing_kernel, (1,), torch.full((1,), 42.0))
    assert "value" in (out := capfd.readouterr().out)
    assert "42" in out


# --- the report -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def product():
    a, b = torch.randn(64, 32), torch.randn(32, 64)
    return matmul.Launch(a, b, tile=matmul.Tile(32, 32, 16)).trace()


def test_the_report_reads(product):
    text = repr(product)
    assert "4 programs" in text
    assert "262 kFLOP" in text
    assert "no problem found" in text
    assert "a_ptr loaded 16.4 kB (2 times its unique bytes)" in text
    assert list(product.frame().tensor) == ["a_ptr", "b_ptr", "c_ptr"]
    html = product._repr_html_()
    assert "a_ptr" in html
    assert "no problem found" in html
    with pytest.raises(KeyError, match="a_ptr, b_ptr, c_ptr"):
        product["a"]


def test_the_steps_of_a_program_walk_along_k(product):
    steps = product.steps((3,))
    assert [(s.tensor, s.kind) for s in steps] == [("a_ptr", "load"), ("b_ptr", "load")] * 2 + [("c_ptr", "store")]
    rows, columns = steps[2].elements.T
    assert set(rows) == set(range(32, 64))
    assert set(columns) == set(range(16, 32))
    assert product.steps(3)[4].line
    assert "tl.store" in steps[4].text


def test_a_prediction_is_the_roofline(product):
    here = machine("cpu")
    least = max(product.flops / here.peak("fp32"), product.unique_bytes / here.bandwidth)
    assert product.predicted_seconds(here) == pytest.approx(least)
    moved = trace(copy_kernel, (1,), torch.zeros(16), torch.zeros(16), 16, BLOCK=BLOCK)
    assert moved.predicted_seconds(here) == pytest.approx(128 / here.bandwidth)


def test_a_long_trace_keeps_its_sums_and_says_that_its_steps_are_gone(monkeypatch):
    """16 million accesses: more than are kept for pictures."""
    x, y = torch.zeros(2**22), torch.zeros(2**22)
    found = trace(copy_kernel, (64,), x, y, 2**22, BLOCK=2**16)
    assert found.loaded_bytes == 2**24
    found = trace(copy_kernel, (128,), torch.zeros(2**23), torch.zeros(2**23), 2**23, BLOCK=2**16)
    assert found.loaded_bytes == 2**25
    with pytest.raises(ValueError, match="Trace a smaller problem"):
        found.steps(0)


# --- Triton's private interfaces --------------------------------------------------------------------------


def test_the_interpreter_is_as_it_was_when_this_was_written():
    assert interpreter.missing() == ""
    assert interpreter.untried() == ""


def test_what_another_triton_lacks_is_named(monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder

    monkeypatch.delattr(InterpreterBuilder, "create_dot")
    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", lambda self, x: None)
    said = interpreter.missing()
    assert "InterpreterBuilder.create_dot" in said
    assert "InterpreterBuilder.set_grid_idx" in said
    assert triton.__version__ in said
    assert "3.6" in said
    monkeypatch.setattr(triton, "__version__", "4.0.0")
    assert "4.0.0" in interpreter.untried()


def test_coordinates_of_any_strides(product):
    flat = torch.arange(60)
    for view in (flat.view(3, 4, 5), flat.view(3, 4, 5).transpose(0, 2), flat[7:55:3], flat.view(6, 10)[1:, 2:7]):
        found = trace(
            copy_kernel, (1,), view, torch.zeros(1, dtype=torch.int64), 1, BLOCK=BLOCK
        )["x_ptr"]  # fmt: skip
        positions = view.reshape(-1).numpy()  # the values are the positions in the storage
        where = found.coordinates(positions)
        assert np.array_equal(view.numpy()[tuple(where.T)], positions)

"""compile_for: the true compiler's answer with no GPU, and a clear line for whatever is wrong."""

import linecache
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton does not exist on this platform")
import triton.language as tl  # noqa: E402
from oplab.compiler import KernelError, WorkerError, compile_for, targets  # noqa: E402
from oplab.compiler import compile as module  # noqa: E402
from oplab.compiler.source import SourceError  # noqa: E402
from oplab.kernels import copy, matmul, pointwise  # noqa: E402

TIMES = tl.constexpr(3)
PLUS: tl.constexpr = 2
PLAIN = 5
TENSOR = torch.zeros(1)


@triton.jit
def _doubled(v):
    return v + v


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, _doubled(x) * TIMES * factor + PLUS, mask=at < n)


@triton.jit
def wrong_name_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, undefined_thing)  # noqa: F821


@triton.jit
def wrong_type_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(n + at))


@triton.jit
def _wrong_helper(v):
    return tl.reshape(v, (3, 5))


@triton.jit
def wrong_helper_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, _wrong_helper(at))


@triton.jit
def plain_global_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), PLAIN)


@triton.jit
def tensor_global_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), TENSOR)


@triton.jit
def endless_kernel(x_ptr, BLOCK: tl.constexpr):
    for i in tl.static_range(1000000000):
        tl.store(x_ptr + i, i)


SCALE = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "factor": "fp32"}
BIG = {"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8, "num_stages": 3}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPLAB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_recent", {})
    monkeypatch.setattr(module, "_warned", set())


def line_of(kernel, text):
    lines, first = kernel.raw_src, kernel.starting_line_number
    return next(first + n for n, line in enumerate(lines) if text in line)


# --- what comes out --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(targets.TARGETS))
def test_every_target_compiles_a_product(name):
    compiled = matmul.compile_for(name, dtype="fp16", block_m=64, block_n=64, block_k=32, num_warps=4, num_stages=2)
    assert compiled.fits
    assert compiled.registers > 16
    assert compiled.shared_bytes > 0
    assert compiled.load_widths
    assert compiled.store_widths
    if name != "sm_75":  # Triton no longer uses Turing's matrix units
        family = {"sm_90": "wgmma", "sm_100": "tcgen05.mma", "gfx1100": "v_wmma"}
        expected = family.get(name, "v_mfma" if name.startswith("gfx") else "mma.sync")
        assert all(instruction.startswith(expected) for instruction in compiled.matrix_instructions)
        assert compiled.matrix_instructions


@pytest.mark.parametrize(
    ("name", "arch", "sms"),
    [
        ("A100", "sm_80", 108),
        ("NVIDIA A100-SXM4-80GB", "sm_80", 108),
        ("H100", "sm_90", 132),
        ("nvidia h200", "sm_90", 132),
        ("B200", "sm_100", 148),
        ("RTX 4090", "sm_89", 128),
        ("NVIDIA GeForce RTX 4090", "sm_89", 128),
        ("MI300X", "gfx942", 304),
        ("sm_90a", "sm_90", 132),
        ("cuda:80", "sm_80", 108),
        ("gfx950", "gfx950", 256),
    ],
)
def test_names_of_gpus(name, arch, sms):
    assert (targets.find(name).name, targets.find(name).sms) == (arch, sms)


def test_a_tile_that_the_h200_refuses():
    """393,216 B of 232,448: what an H200 said when it was asked to launch this (chapter 04)."""
    compiled = matmul.compile_for("H200", block_m=256, block_n=256, block_k=128, num_warps=8, num_stages=3)
    assert compiled.shared_bytes == 393216
    assert not compiled.fits
    assert compiled.blocks_per_sm == 0
    assert compiled.limited_by == "shared memory"
    assert "393,216" in compiled.explain()
    assert "232,448" in compiled.explain()


def test_spills_of_a_tile_that_is_too_big_for_its_registers():
    small = matmul.compile_for("H200", block_m=64, block_n=64, block_k=32, num_warps=4, num_stages=3)
    large = matmul.compile_for("H200", block_m=256, block_n=256, block_k=64, num_warps=8, num_stages=3)
    assert small.spill_bytes == 0
    assert large.registers == 255
    assert large.spill_bytes > 0
    assert "spill" not in small.explain() or "spills none" in small.explain()


def test_matrix_units_and_the_copy_engine():
    bf16, fp32 = matmul.compile_for("H200", **BIG), matmul.compile_for("H200", dtype="fp32", **BIG)
    assert list(bf16.matrix_instructions) == ["wgmma m64n256k16 bf16"]
    assert list(matmul.compile_for("H200", dtype="tf32", **BIG).matrix_instructions) == ["wgmma m64n256k8 tf32"]
    assert fp32.matrix_instructions == {}
    assert "fma.rn.f32" in fp32.instructions
    persistent = matmul.compile_for("H200", kernel="persistent", **BIG)
    assert set(persistent.load_widths) == {"TMA"}
    assert set(persistent.store_widths) == {"TMA"}


@pytest.mark.parametrize("name", ["sm_80", "H200", "MI300X"])
@pytest.mark.parametrize(("vector", "width"), [(1, "2 B"), (2, "4 B"), (4, "8 B"), (8, "16 B")])
def test_loads_are_as_wide_as_the_vector(name, vector, width):
    compiled = copy.compile_for(name, dtype="bf16", vector=vector)
    assert compiled.load_widths == {width: 1}
    assert compiled.store_widths == {width: 1}


def test_a_length_of_any_remainder_makes_narrow_loads():
    assert copy.compile_for("H200", vector=8, aligned=False).load_widths == {"2 B": 8}
    odd = compile_for(scale_kernel, "H200", signature=SCALE, constants={"BLOCK": 1024})
    even = compile_for(scale_kernel, "H200", signature=SCALE | {"n": "i32:16"}, constants={"BLOCK": 1024})
    unaligned = compile_for(
        scale_kernel, "H200", signature=SCALE | {"n": "i32:16", "x_ptr": "*fp32:1"}, constants={"BLOCK": 1024}
    )
    assert set(even.load_widths) == {"16 B"}
    assert set(odd.load_widths) == {"4 B"}
    assert set(unaligned.load_widths) == {"4 B"}
    assert set(unaligned.store_widths) == {"16 B"}


def test_sample_values_are_specialised_as_a_launch_does():
    x = torch.zeros(64)
    given = {"x_ptr": x, "y_ptr": x[1:], "n": 4096, "factor": 0.5}
    compiled = compile_for(scale_kernel, "sm_80", signature=given, constants={"BLOCK": 1024})
    assert compiled.signature["x_ptr"] == "*fp32"
    assert set(compiled.load_widths) == {"16 B"}
    assert set(compiled.store_widths) == {"4 B"}  # y starts at an odd element
    one = compile_for(scale_kernel, "sm_80", signature=given | {"n": 1}, constants={"BLOCK": 1024})
    assert one.signature["n"] == "constexpr"
    dtypes = {torch.int64: "i64", torch.bool: "i1", torch.uint8: "u8", torch.bfloat16: "bf16", torch.int32: "i32"}
    for dtype, name in dtypes.items():
        assert module._type("x", torch.empty(4, dtype=dtype, device="meta"))[0] == f"*{name}"


def test_helpers_and_constants_reach_the_compiler():
    compiled = compile_for(scale_kernel, "sm_90", signature=SCALE, constants={"BLOCK": 256})
    assert "0f40C00000" in compiled.asm["ptx"] or "0f40400000" in compiled.asm["ptx"]  # 6.0 or 3.0
    assert "0f40000000" in compiled.asm["ptx"]  # PLUS


def test_closures_reach_the_compiler():
    @triton.jit
    def inner(v):
        return v * 7

    seven = tl.constexpr(7)

    @triton.jit
    def outer(x_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x_ptr + at, inner(at) + seven)

    compiled = compile_for(outer, "sm_80", signature={"x_ptr": "*i32"}, constants={"BLOCK": 128})
    assert ", 7" in compiled.asm["ptx"]


def test_explanations_and_tables():
    compiled = matmul.compile_for("H200", **BIG)
    text = compiled.explain()
    assert "147,456 B of shared memory" in text
    assert "wgmma" in text
    assert "limited by shared memory" in text
    assert "<table>" in compiled._repr_html_()
    assert "H200" in repr(compiled)
    assert "narrow" not in text
    assert "Pieces under 16 B" in copy.compile_for("H200", vector=1).explain()


def test_differences():
    two, three = (matmul.compile_for("H200", **{**BIG, "num_stages": stages}) for stages in (2, 3))
    change = two.diff(three)
    assert change
    assert ("shared memory per block", "98,304 of 232,448 B", "147,456 of 232,448 B") in change.facts
    assert "147,456" in repr(change)
    assert "<table>" in change._repr_html_()
    assert not two.diff(two)
    assert repr(two.diff(two)) == "no difference"


def test_listings():
    compiled = matmul.compile_for("H200", **BIG)
    around = compiled.show("ptx", around="wgmma.mma_async", context=1)
    assert len([line for line in repr(around).splitlines() if line.startswith(">")]) == 4
    assert "<mark>wgmma.mma_async</mark>" in around._repr_html_()
    assert "cp.async" in repr(compiled.show("ptx", around="ld.global"))
    assert "HGMMA" in repr(compiled.show("sass"))
    assert "tt.dot" in repr(compiled.show("ttir"))
    assert "s_endpgm" in repr(pointwise.compile_for("MI300X").show("amdgcn"))
    with pytest.raises(KeyError, match=r"amdgcn.*ptx.*sass"):
        compiled.show("amdgcn")


# --- cache and worker ------------------------------------------------------------------------------


def test_the_second_time_comes_from_the_disk(monkeypatch, tmp_path):
    first = matmul.compile_for("H200", **BIG)
    monkeypatch.setattr(module, "_recent", {})
    monkeypatch.setattr(module._worker, "ask", None)  # the worker is not asked
    began = time.perf_counter()
    again = matmul.compile_for("H200", **BIG)
    assert time.perf_counter() - began < first.seconds
    assert again == first
    assert again.asm == first.asm
    assert matmul.compile_for("H100", **BIG).target.gpu == "H100"
    monkeypatch.undo()


def test_a_corrupt_cache_is_named_and_rebuilt(monkeypatch, tmp_path):
    first = pointwise.compile_for("H200")
    (path,) = (tmp_path / "compiled").iterdir()
    path.write_bytes(b"not gzip")
    monkeypatch.setattr(module, "_recent", {})
    with pytest.warns(UserWarning, match=r"ignored the compiled kernel .*compiling again"):
        assert pointwise.compile_for("H200") == first
    monkeypatch.setattr(module, "_recent", {})
    assert pointwise.compile_for("H200") == first  # and mended: no warning


def test_a_cache_folder_that_cannot_be_written(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("OPLAB_CACHE_DIR", str(blocked))
    with pytest.warns(UserWarning, match="could not keep compiled kernels"):
        assert pointwise.compile_for("H200").fits
    with warnings.catch_warnings():  # said once, not for each kernel
        warnings.simplefilter("error")
        assert pointwise.compile_for("A100").fits


def test_a_cell_executed_again_with_a_changed_kernel():
    def cell(number, factor):
        text = textwrap.dedent(f"""
            @triton.jit
            def again_kernel(x_ptr, BLOCK: tl.constexpr):
                at = tl.arange(0, BLOCK)
                tl.store(x_ptr + at, at * {factor})
        """)
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        scope = {"triton": triton, "tl": tl, "__name__": "__main__"}
        exec(compile(text, name, "exec"), scope)
        return compile_for(scope["again_kernel"], "sm_80", signature={"x_ptr": "*i32"}, constants={"BLOCK": 128})

    first, second = cell(1, 5), cell(2, 9)
    assert first.asm["ptx"] != second.asm["ptx"]
    assert cell(3, 5).asm["ptx"] == first.asm["ptx"]


def test_a_worker_killed_midway_is_replaced():
    killer = threading.Timer(1.0, lambda: os.kill(module._worker.process.pid, signal.SIGKILL))
    module.start()
    killer.start()
    with pytest.raises(WorkerError, match="signal 9"):
        compile_for(endless_kernel, "sm_80", signature={"x_ptr": "*i32"}, constants={"BLOCK": 16}, timeout=30)
    assert pointwise.compile_for("H200").fits


def test_an_endless_kernel_is_given_up():
    with pytest.raises(WorkerError, match="gave up after 2 s"):
        compile_for(endless_kernel, "sm_80", signature={"x_ptr": "*i32"}, constants={"BLOCK": 16}, timeout=2)
    assert pointwise.compile_for("H200").fits


def test_compiling_in_a_process_that_interprets():
    text = "from oplab.kernels import matmul; print(matmul.compile_for('H200').registers)"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == matmul.compile_for("H200").registers


def test_threads_may_ask_at_once():
    found = {}

    def ask(vector):
        found[vector] = copy.compile_for("H200", vector=vector).load_widths

    threads = [threading.Thread(target=ask, args=(vector,)) for vector in (1, 2, 4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1: {"2 B": 1}, 2: {"4 B": 1}, 4: {"8 B": 1}, 8: {"16 B": 1}}


# --- mistakes --------------------------------------------------------------------------------------


def test_an_unknown_name_comes_back_with_its_line():
    with pytest.raises(KernelError, match="undefined_thing is not defined") as caught:
        compile_for(wrong_name_kernel, "sm_80", signature={"x_ptr": "*i32"}, constants={"BLOCK": 16})
    assert caught.value.name == "wrong_name_kernel"
    assert caught.value.line == line_of(wrong_name_kernel, "undefined_thing")
    assert caught.value.text.startswith("tl.store(x_ptr + at, undefined_thing)")
    assert "Traceback" not in str(caught.value)


def test_a_type_error_comes_back_with_its_line():
    with pytest.raises(KernelError, match="ptr type") as caught:
        compile_for(wrong_type_kernel, "sm_80", signature={"x_ptr": "*i32", "n": "i32"}, constants={"BLOCK": 16})
    assert caught.value.line == line_of(wrong_type_kernel, "tl.load(n")


def test_an_error_in_a_helper_names_the_helper():
    with pytest.raises(KernelError) as caught:
        compile_for(wrong_helper_kernel, "sm_80", signature={"x_ptr": "*i32"}, constants={"BLOCK": 16})
    assert caught.value.name == "_wrong_helper"
    assert caught.value.line == line_of(_wrong_helper, "tl.reshape")


def test_globals_that_a_kernel_cannot_use():
    with pytest.raises(KernelError, match="PLAIN"):
        compile_for(plain_global_kernel, "sm_80", signature={"x_ptr": "*i32"}, constants={"BLOCK": 16})
    with pytest.raises(SourceError, match=r"TENSOR.*pass it as an argument"):
        compile_for(tensor_global_kernel, "sm_80", signature={"x_ptr": "*fp32"}, constants={"BLOCK": 16})


def test_arguments_that_do_not_go_together():
    signature = {k: v for k, v in SCALE.items() if k != "factor"}
    with pytest.raises(TypeError, match=r"scale_kernel needs factor: signature=.*'i32'"):
        compile_for(scale_kernel, "sm_80", signature=signature, constants={"BLOCK": 16})
    with pytest.raises(TypeError, match="needs a value for BLOCK"):
        compile_for(scale_kernel, "sm_80", signature=SCALE)
    with pytest.raises(TypeError, match=r"no parameter 'BLOK'.*Did you mean 'BLOCK'"):
        compile_for(scale_kernel, "sm_80", signature=SCALE, constants={"BLOK": 16})
    with pytest.raises(TypeError, match=r"num_warp'.*Did you mean 'num_warps'"):
        compile_for(scale_kernel, "sm_80", signature=SCALE, constants={"BLOCK": 16}, num_warp=4)
    with pytest.raises(TypeError, match="neither a Triton type"):
        compile_for(scale_kernel, "sm_80", signature=SCALE | {"n": object()}, constants={"BLOCK": 16})
    with pytest.raises(SourceError, match="not a Triton kernel"):
        compile_for(print, "sm_80", signature={})


@pytest.mark.parametrize("name", ["sm_42", "H300", "RTX 4091", "", "gfx9"])
def test_an_unknown_target_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=r"Architectures: sm_75.*gfx1100.*MI300X"):
        matmul.compile_for(name)


def test_a_block_that_triton_refuses():
    with pytest.raises(KernelError, match=r"(?i)power of 2"):
        matmul.compile_for("H200", block_m=100)


def test_without_triton(monkeypatch):
    from oplab.compiler import TritonMissing, source

    monkeypatch.setattr(source.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TritonMissing, match="oplab doctor"):
        matmul.compile_for("H200")

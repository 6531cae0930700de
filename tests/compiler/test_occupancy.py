"""Blocks per SM, against values worked out from the published rules."""

import pytest
from oplab.compiler import instructions as reading
from oplab.compiler.occupancy import occupancy
from oplab.compiler.targets import find


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "blocks", "limited"),
    [
        # 65,536 registers: 128 a thread are 4,096 a warp, so 16 warps.
        ("sm_90", 128, 0, 4, 4, "registers"),
        ("sm_90", 32, 0, 4, 16, "registers"),  # 64 warps: registers and threads end together
        ("sm_90", 16, 0, 4, 16, "threads per SM"),
        ("sm_90", 16, 0, 1, 32, "blocks per SM"),
        # 228 KiB; each block takes 1 KiB more than it asks for.
        ("sm_90", 32, 98304, 4, 2, "shared memory"),
        ("sm_90", 32, 232448, 4, 1, "shared memory"),
        ("sm_90", 32, 232449, 4, 0, "shared memory"),
        ("sm_90", 255, 0, 8, 1, "registers"),
        ("sm_80", 32, 83 * 1024, 4, 1, "shared memory"),
        ("sm_80", 32, 81 * 1024, 4, 2, "shared memory"),
        # 1,536 threads are 48 warps.
        ("sm_86", 40, 0, 4, 12, "registers"),
        ("sm_86", 41, 0, 4, 10, "registers"),  # 41 registers are 1,312 a warp, rounded up to 1,536: 10.67 warps a part
        ("sm_89", 16, 0, 2, 24, "threads per SM"),
        ("sm_75", 32, 32768, 4, 2, "shared memory"),
        ("sm_75", 32, 65536, 4, 1, "shared memory"),
        # 512 registers a lane and SIMD: 128 each are 4 waves a SIMD, 16 in all.
        ("gfx942", 128, 0, 4, 4, "registers"),
        ("gfx942", 129, 0, 4, 3, "registers"),
        ("gfx942", 64, 65536, 4, 1, "shared memory"),
        ("gfx950", 64, 65536, 4, 2, "shared memory"),
        ("gfx1100", 96, 0, 4, 8, "registers"),
    ],
)
def test_blocks_per_sm(target, registers, shared, warps, blocks, limited):
    found = occupancy(find(target), registers=registers, shared_bytes=shared, num_warps=warps)
    assert (found.blocks_per_sm, found.limited_by) == (blocks, limited)
    assert found.warps == blocks * warps
    assert 0 <= found.fraction <= 1


def test_more_threads_than_a_block_may_have():
    assert occupancy(find("sm_90"), registers=16, shared_bytes=0, num_warps=64).blocks_per_sm == 0


def test_reading_assembler():
    ptx = """
.visible .entry k(
	.param .u64 k_param_0
)
{
	.reg .pred %p<2>;
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	ld.global.L1::evict_last.v2.b64 { %rd1, %rd2 }, [ %rd1 + 0 ];
	@!%p1 ld.global.b16 { %rs1 }, [ %rd2 + 0 ];
	cp.async.cg.shared.global [ %r1 + 0 ], [ %rd9 + 0 ], 0x10, %r2;
	cp.async.ca.shared.global [ %r1 + 0 ], [ %rd9 + 0 ], 4, 4;
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %f1 }, { %r1 }, { %r2 }, { %f1 };
	st.global.v4.b32 [ %rd3 + 0 ], { %r1, %r2, %r3, %r4 };
	// ld.global.b8 in a comment
	ret;
}
	.section	.debug_abbrev
	ld.global.b8 nothing
"""
    found = reading.of_ptx(ptx)
    assert reading.load_widths(found) == {"16 B": 3, "2 B": 1, "4 B": 1}
    assert reading.store_widths(found) == {"16 B": 1}
    assert reading.matrix(found) == {"mma.sync m16n8k16 bf16": 1}
    amd = "\tglobal_load_dwordx4 v[0:3], v4, s[0:1]\n\tbuffer_store_short v1, v2\n\tv_mfma_f32_32x32x8_bf16 a, b\n"
    found = reading.of_amd(amd)
    assert reading.load_widths(found) == {"16 B": 1}
    assert reading.store_widths(found) == {"2 B": 1}
    assert reading.matrix(found) == {"v_mfma_f32_32x32x8_bf16": 1}

"""Small inputs on which public counters have been wrong, each with the value its definition gives."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from oplab.cost import count
from oplab.cost.matrix import attention_flops, live_pairs
from oplab.cost.registry import find
from torch import nn

aten = torch.ops.aten


def test_attention_on_a_cpu():
    q = torch.randn(1, 12, 64, 64, requires_grad=True)
    costs = count(lambda: F.scaled_dot_product_attention(q, q, q), backward=True)
    assert costs.forward.matrix_flops == 4 * 12 * 64 * 64 * 64 == 12_582_912
    assert costs.backward.matrix_flops == 31_457_280
    assert not costs.uncounted


def test_attention_in_batch_sequence_head_order():
    shape = (2, 64, 4, 32)
    flops = find(aten._flash_attention_forward.default)(
        shape, shape, shape, None, None, 64, 64, 0.0, False, False, out=()
    )
    assert flops.matrix == 4_194_304


@pytest.mark.parametrize(
    ("causal", "pairs", "flops"), [(None, 40, 1_920), ("bottom-right", 34, 1_632), ("top-left", 10, 480)]
)
def test_causal_attention_with_either_alignment(causal, pairs, flops):
    assert live_pairs(4, 10, causal) == pairs
    assert attention_flops(1, 1, 4, 10, 8, 16, causal) == flops


@pytest.mark.parametrize("queries", [1, 4, 7, 10, 13])
@pytest.mark.parametrize("keys", [1, 4, 10, 13])
def test_live_pairs_against_a_mask(queries, keys):
    ones = torch.ones(queries, keys)
    assert live_pairs(queries, keys, "top-left") == int(ones.tril().sum())
    assert live_pairs(queries, keys, "bottom-right") == int(ones.tril(keys - queries).sum())


def test_grouped_query_attention_counts_query_heads():
    q, k = torch.randn(2, 8, 16, 32), torch.randn(2, 2, 24, 32)
    costs = count(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    assert costs.matrix_flops == 4 * 2 * 8 * 16 * 24 * 32


def test_transposed_convolution():
    layer = nn.ConvTranspose2d(192, 384, 2, stride=2)
    assert count(layer, torch.randn(6, 192, 30, 96)).matrix_flops == 10_192_158_720


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_linear_in_every_mode(mode):
    with mode():
        costs = count(nn.Linear(8, 8, bias=False), torch.randn(4, 8))
    assert costs.matrix_flops == 512
    assert not costs.uncounted


def test_convolution_beyond_32_bits():
    costs = count(nn.Conv1d(1000, 1000, 3, padding=1), torch.randn(1, 1000, 512))
    assert costs.matrix_flops == 3_072_000_000
    assert costs.vector_flops == 512_000


def test_one_layer_applied_three_times():
    layer = nn.Linear(100, 100, bias=False)
    assert count(lambda x: layer(layer(layer(x))), torch.randn(1, 100)).flops == 60_000


def test_broadcast_batch_product():
    costs = count(lambda a, b: a @ b, torch.randn(2, 3), torch.randn(4, 3, 5))
    assert costs.matrix_flops == 240
    assert costs.bytes == 424


def test_linear_with_leading_dimensions():
    costs = count(nn.Linear(3, 8), torch.randn(5, 10, 3))
    assert costs.matrix_flops == 2_400
    assert costs.vector_flops == 400


def test_fused_encoder_layer_equals_the_slow_path():
    layer, x = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(), torch.randn(2, 16, 64)
    with torch.no_grad():
        fast = count(layer, x)
    slow = count(layer, x)
    assert [op.name for op in fast.operators] == ["aten._transformer_encoder_layer_fwd"]
    assert fast.matrix_flops == slow.matrix_flops == 2_228_224
    assert not fast.uncounted
    assert not slow.uncounted


def test_mlp():
    sizes = (784, 512, 512, 10)
    mlp = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)))
    assert count(mlp, torch.randn(1, 784)).flops == 1_337_344


def test_small_products_by_definition():
    a, x, y = torch.randn(6, 5), torch.randn(5), torch.randn(6)
    batch_a, batch_b, c = torch.randn(3, 4, 5), torch.randn(3, 5, 6), torch.randn(4, 6)
    assert count(torch.mv, a, x).matrix_flops == 60
    assert count(torch.dot, x, x).matrix_flops == 10
    assert count(torch.addmv, y, a, x).matrix_flops == 60
    assert count(torch.addmv, y, a, x).vector_flops == 6
    assert count(torch.addbmm, c, batch_a, batch_b).matrix_flops == 2 * 3 * 4 * 5 * 6
    assert count(torch.baddbmm, torch.randn(3, 4, 6), batch_a, batch_b).matrix_flops == 2 * 3 * 4 * 5 * 6
    int8 = torch.ones(32, 32, dtype=torch.int8)
    assert count(torch._int_mm, int8, int8).matrix_flops == 2 * 32**3
    assert find(aten._grouped_mm.default)((10, 8), (3, 8, 6), (3,), out=(10, 6)).matrix == 2 * 10 * 8 * 6


def test_an_operator_without_a_formula_is_listed_and_its_bytes_are_right():
    matrix = torch.eye(16) * 2
    costs = count(torch.linalg.cholesky_ex, matrix)
    assert costs.uncounted == {"aten.linalg_cholesky_ex": 1}
    assert costs.bytes_read == 16 * 16 * 4
    assert costs.bytes_written == 16 * 16 * 4 + 4
    assert "not counted" in repr(costs)


# --- bytes of a vector of 1024 floats

V = 4096


@pytest.mark.parametrize(
    ("call", "read", "written"),
    [
        (lambda x, o: x * x, V, V),
        (lambda x, o: torch.add(x, x, out=o), V, V),
        (lambda x, o: o.copy_(x), V, V),
        (lambda x, o: x.view(32, 32).t(), 0, 0),
        (lambda x, o: x.expand(8, 1024), 0, 0),
        (lambda x, o: x.detach(), 0, 0),
        (lambda x, o: x[10:20], 0, 0),
        (lambda x, o: x.view(32, 32).t().contiguous(), V, V),
        (lambda x, o: x.add_(1), V, V),
        (lambda x, o: o.zero_(), 0, V),
        (lambda x, o: o.fill_(3), 0, V),
        (lambda x, o: torch.empty_like(x), 0, 0),
        (lambda x, o: torch.zeros_like(x), 0, V),
        (lambda x, o: x.reshape(4, 256), 0, 0),
        (lambda x, o: x.contiguous(), 0, 0),
        (lambda x, o: x[:512] + x[512:], V, V // 2),
        (lambda x, o: x[:768] + x[256:], V, V * 3 // 4),
        (lambda x, o: x[::2] + 1, V // 2, V // 2),
        (lambda x, o: x.view(32, 32) + x.view(32, 32).t(), V, V),
        (lambda x, o: x.sum(), V, 4),
        (lambda x, o: x.half(), V, V // 2),
        (lambda x, o: torch.cat([x, o]), 2 * V, 2 * V),
        (lambda x, o: x.normal_(), 0, V),
        (lambda x, o: x.unfold(0, 4, 1) + 0, V, 4 * 1021 * 4),
    ],
)
def test_bytes(call, read, written):
    x, o = torch.randn(1024), torch.randn(1024)
    costs = count(call, x, o)
    assert (costs.bytes_read, costs.bytes_written) == (read, written)


def test_bytes_of_an_expanded_operand():
    b, y = torch.randn(1024), torch.randn(1024, 1024)
    costs = count(lambda: b.expand(1024, 1024) + y)
    assert (costs.bytes_read, costs.bytes_written) == (4_096 + 4_194_304, 4_194_304)


def test_bytes_of_an_embedding_read_each_row_once():
    table, same = torch.randn(50_000, 64), torch.zeros(8, dtype=torch.long)
    costs = count(F.embedding, same, table)
    assert (costs.bytes_read, costs.bytes_written) == (64 + 256, 2_048)
    costs = count(F.embedding, torch.arange(8), table)
    assert costs.bytes_read == 64 + 8 * 256


def test_bytes_of_an_embedding_whose_indices_are_not_known():
    table, index = torch.randn(4, 64, device="meta"), torch.zeros(8, dtype=torch.long, device="meta")
    assert count(F.embedding, index, table).bytes_read == 64 + 4 * 256  # no more rows than the table has


def test_bytes_of_a_bf16_product():
    a, b = (torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(2))
    costs = count(torch.mm, a, b)
    assert (costs.bytes_read, costs.bytes_written) == (2 * 33_554_432, 33_554_432)


def test_bytes_of_gathers():
    table = torch.randn(100, 8)
    rows = torch.tensor([3, 3, 7])
    assert count(lambda: table[rows]).bytes_read == 24 + 2 * 32
    assert count(lambda: table.index_select(0, rows)).bytes_read == 24 + 2 * 32
    index = torch.tensor([[0, 0, 1]])
    assert count(lambda: table.gather(1, index)).bytes_read == 24 + 2 * 4

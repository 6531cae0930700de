"""Whole training steps on meta tensors, against closed forms derived by hand."""

import time

import pytest
import torch
from oplab.cost import count
from oplab.models import (
    GPT,
    GPT2_SMALL,
    Bottleneck,
    GPTBlock,
    GPTSize,
    Recommender,
    ResNet50,
    image_loss,
    language_loss,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def resnet_step(batch=32):
    with torch.device("meta"):
        return ResNet50(), torch.randn(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)


def gpt_step(batch=8, length=1024, size=GPT2_SMALL):
    with torch.device("meta"):
        return GPT(size), torch.zeros(batch, length + 1, dtype=torch.long)


def resnet50_forward(batch):
    """Multiply-adds per image, layer by layer, times 2.

    Stem: 112 x 112 outputs, 64 channels, 7 x 7 x 3 inputs each. Stage s works at 56 / 2^s with width
    w = 64 * 2^s. Every block: 1 x 1 from its inputs to w, 3 x 3 from w to w, 1 x 1 from w to 4w. In a stage's
    first block the 1 x 1 still sees the larger map (the stride is in the 3 x 3), and a 1 x 1 shortcut
    from its inputs to 4w is added.
    """
    macs = 112**2 * 64 * 3 * 7**2
    inputs = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        w, side = 64 * 2**stage, 56 // 2**stage
        before = side if stage == 0 else 2 * side
        macs += before**2 * inputs * w + side**2 * (9 * w * w + w * 4 * w + inputs * 4 * w)
        inputs = 4 * w
        macs += (depth - 1) * side**2 * (inputs * w + 9 * w * w + w * 4 * w)
    return 2 * batch * (macs + 2048 * 1000)


def gpt_forward(batch, length, size, pairs):
    """Per block and token: QKV 3 E^2, projection E^2, feed-forward 8 E^2 multiply-adds; attention: scores and sum,
    E multiply-adds each per (query, key) pair; at the end E x vocabulary per token."""
    E, tokens = size.width, batch * length
    block = tokens * 12 * E * E + batch * pairs * 2 * E
    return 2 * (size.layers * block + tokens * E * size.vocabulary)


def test_parameters_are_the_published_ones():
    with torch.device("meta"):
        assert sum(p.numel() for p in ResNet50().parameters()) == 25_557_032
        assert sum(p.numel() for p in GPT().parameters()) == 124_439_808


def test_resnet50():
    model, images, labels = resnet_step()
    costs = count(image_loss, model, images, labels, backward=True)
    assert not costs.uncounted
    assert costs.forward.matrix_flops == resnet50_forward(32)
    stem = 2 * 32 * 112**2 * 64 * 3 * 49  # the images need no gradient
    assert costs.backward.matrix_flops == 2 * resnet50_forward(32) - stem


def test_gpt2_small():
    model, tokens = gpt_step()
    costs = count(language_loss, model, tokens, backward=True)
    assert not costs.uncounted
    assert costs.forward.matrix_flops in (
        gpt_forward(8, 1024, GPT2_SMALL, 1024**2),  # attention as two products
        gpt_forward(8, 1024, GPT2_SMALL, 1024 * 1025 // 2),  # one causal operator
    )
    assert costs.backward.matrix_flops >= 2 * costs.forward.matrix_flops


def test_a_small_gpt_for_real_on_the_cpu():
    size = GPTSize(vocabulary=97, context=32, layers=2, heads=2, width=16)
    model, tokens = GPT(size), torch.randint(0, 97, (3, 33))
    costs = count(language_loss, model, tokens, backward=True)
    assert not costs.uncounted
    assert costs.forward.matrix_flops == gpt_forward(3, 32, size, 32 * 33 // 2)
    assert all(p.grad is None for p in model.parameters())


def test_recommender():
    model = Recommender(tables=3, rows=50, width=8)
    costs = count(lambda: model(torch.randn(4, 13), torch.randint(0, 50, (4, 3))), backward=True)
    assert not costs.uncounted
    pairs = 3 * 4 // 2
    products = 13 * 256 + 256 * 8 + 4 * 4 * 8 + (8 + pairs) * 256 + 256
    assert costs.forward.matrix_flops == 2 * 4 * products


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizer_steps(kind, fused):
    model = nn.Linear(8, 8)
    model(torch.randn(2, 8)).sum().backward()
    optimizer = kind(model.parameters(), lr=0.1, fused=fused)
    costs = count(optimizer.step)
    assert not costs.uncounted
    assert costs.flops > 0
    assert costs.bytes_written >= 72 * 4


def test_checkpointing_recomputes_in_the_backward():
    from torch.utils.checkpoint import checkpoint

    block, x = Bottleneck(16, 4, 1), torch.randn(2, 16, 8, 8, requires_grad=True)
    for reentrant in (False, True):
        plain = count(block, x, backward=True)
        saved = count(lambda r=reentrant: checkpoint(block, x, use_reentrant=r), backward=True)
        assert saved.forward.matrix_flops == plain.forward.matrix_flops
        assert saved.backward.matrix_flops == plain.backward.matrix_flops + plain.forward.matrix_flops


def test_counting_costs_no_more_than_torchs_counter_times_one_and_a_half():
    """Ratio with a wide margin: the best of five for each."""
    model, images, labels = resnet_step(2)

    def seconds(call):
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def theirs():
        with FlopCounterMode(display=False):
            image_loss(model, images, labels).backward()

    def ours():
        count(image_loss, model, images, labels, backward=True)

    ours(), theirs()
    assert min(seconds(ours) for _ in range(5)) < 1.5 * min(seconds(theirs) for _ in range(5))


def test_175_billion_parameters_on_a_laptop():
    with torch.device("meta"):
        blocks = nn.Sequential(*(GPTBlock(12288, 96) for _ in range(96)))
        x = torch.empty(1, 2048, 12288)
    costs = count(blocks, x, backward=True)
    assert not costs.uncounted
    size = GPTSize(layers=96, width=12288, vocabulary=0)
    assert costs.forward.matrix_flops in (
        gpt_forward(1, 2048, size, 2048**2),
        gpt_forward(1, 2048, size, 2048 * 2049 // 2),
    )

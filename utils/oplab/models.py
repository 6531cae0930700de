"""The models that the course counts, profiles and tunes: short, plain torch.nn, sizes as published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- ResNet-50 (He et al., 2015; the variant with the stride in the 3 x 3 convolution) ----------------


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """1 x 1 down, 3 x 3, 1 x 1 up, and what came in added."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_conv_norm(inputs, width, 1), nn.ReLU(inplace=True),
            *_conv_norm(width, width, 3, stride), nn.ReLU(inplace=True),
            *_conv_norm(width, outputs, 1),
        )  # fmt: skip
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv_norm(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet50(nn.Module):
    """Images [B, 3, 224, 224] -> logits [B, classes]; 25,557,032 parameters with 1000 classes."""

    def __init__(self, classes: int = 1000, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        layers = [*_conv_norm(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        inputs = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(inputs, width * 2**stage, stride))
                inputs = 4 * width * 2**stage
        self.features = nn.Sequential(*layers)
        self.classify = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images).mean(dim=(2, 3)))


# --- GPT-2 (Radford et al., 2019) ---------------------------------------------------------------------


@dataclass(frozen=True)
class GPTSize:
    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768


GPT2_SMALL = GPTSize()
GPT3 = GPTSize(context=2048, layers=96, heads=96, width=12288)  # 175 B parameters (Brown et al., 2020)


class GPTBlock(nn.Module):
    """Attention, then a feed-forward layer of four times the width; each after a layer norm, each added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        B, S, E = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.heads, E // self.heads).permute(2, 0, 3, 1, 4)  # each [B, H, S, D]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(B, S, E))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Tokens [B, S] -> logits [B, S, vocabulary]; GPT-2 small has 124,439,808 parameters."""

    def __init__(self, size: GPTSize = GPT2_SMALL) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(GPTBlock(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        # Small weights, as in GPT-2: large ones would start the loss far above log(vocabulary).
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.t()  # the embedding again: input and output share it


# --- a small recommender in the manner of DLRM (Naumov et al., 2019) -------------------------------------


class Recommender(nn.Module):
    """Dense features [B, 13] and one index per table [B, T] -> a click logit [B]."""

    def __init__(self, tables: int = 8, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        bottom = self.bottom(dense)  # [B, W]
        vectors = torch.stack([bottom, *(table(indices[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = vectors @ vectors.transpose(1, 2)  # [B, T + 1, T + 1]: every pair
        row, column = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1, device=dense.device)
        return self.top(torch.cat([bottom, products[:, row, column]], dim=1)).squeeze(1)


def language_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Cross-entropy of predicting each next token of ``tokens`` [B, S + 1]."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def image_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of classifying ``images`` [B, 3, H, W] as ``labels`` [B]."""
    return F.cross_entropy(model(images), labels)

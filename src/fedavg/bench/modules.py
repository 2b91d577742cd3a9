"""Two transformers and a ResNet, as anyone would write them: the workloads' models that are not the paper's.

Nothing but PyTorch is imported here, so that other frameworks can be timed on the same modules.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, LENGTH = 100, 32


class Encoder(nn.Module):
    """PyTorch's own transformer encoder as a language model: (B, T) tokens to (B, V, T) logits of the next ones."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2, hidden: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        states = self.layers(self.tokens(x) + self.places, mask=self.mask, is_causal=True)
        return self.logits(states).transpose(1, 2)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two 3 x 3 convolutions with group norms beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, out), nn.GroupNorm(4, out)])
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet() -> nn.Module:
    """Of 16, 16, 32 and 64 channels, for images of 32 x 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(4, 16), nn.ReLU(),
        Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class AdaptedLayer(nn.Module):
    """A frozen layer and a trained change of low rank beside it (LoRA, Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a layer norm; attention's projections are adapted."""

    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width).requires_grad_(False) for _ in range(2)])
        self.all_three = AdaptedLayer(nn.Linear(width, 3 * width), rank)
        self.out = AdaptedLayer(nn.Linear(width, width), rank)
        self.hidden = nn.Linear(width, 4 * width).requires_grad_(False)
        self.back = nn.Linear(4 * width, width).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.back(F.gelu(self.hidden(self.norms[1](x))))  # type: ignore[no-any-return]

    def attention(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.all_three(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))  # type: ignore[no-any-return]


class AdaptedTransformer(nn.Module):
    """A frozen transformer of 4.8 million parameters; 73,728 more, of rank 8, are trained."""

    def __init__(self, width: int = 256, heads: int = 8, layers: int = 6, rank: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width).requires_grad_(False)
        self.places = nn.Parameter(torch.randn(LENGTH, width) / 50, requires_grad=False)
        self.blocks = nn.Sequential(*(Block(width, heads, rank) for _ in range(layers)))
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.logits = nn.Linear(width, VOCABULARY).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        states = self.norm(self.blocks(self.tokens(x) + self.places))
        return self.logits(states).transpose(1, 2)  # type: ignore[no-any-return]

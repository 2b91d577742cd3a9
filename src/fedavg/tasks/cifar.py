"""The CIFAR-10 model (§3 of the paper): the network of TensorFlow's 2016 tutorial, and its image pipeline.

Raw input: images as (n, 3, 32, 32) bytes; the module takes (B, 3, 24, 24) floats and returns (B, 10) logits. The
tutorial's weight decay on the two fully connected layers is not part of the paper's FedAvg and is left out.
"""

from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedavg.tasks.task import Task

#: Width and height of the part of an image that the network sees.
CROP: Final = 24
#: Bounds of the contrast factor, which scales training images about their channels' means.
CONTRAST: Final = (0.2, 1.8)

#: Local response normalisation as TensorFlow states it: y = x / (1 + ALPHA Σ x²)^(3/4), over 2 RADIUS + 1 channels.
#: (PyTorch divides its alpha by their number, 9.)
RADIUS: Final = 4
ALPHA: Final = 0.001 / 9
BETA: Final = 0.75


class _Normalise(torch.autograd.Function):
    """Local response normalisation of rows (N, C); `band` (C, C) is ALPHA for neighbouring channels, otherwise 0.

    The sum over neighbours is a product with a banded matrix, and d^(-3/4) is computed with square roots: eight times
    faster than PyTorch's, which pools over channels and takes a power. It makes the whole step 1.8 times faster.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Tensor) -> Tensor:
        d = torch.mm(x * x, band).add_(1)
        root = d.rsqrt()
        scale = root.sqrt().mul_(root)
        y = x * scale
        ctx.save_for_backward(x, y, d, scale, band)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """dx = scale dy - 2 BETA x Σ (ALPHA dy y / d), the sum over the same neighbours."""
        (dy,) = grads
        x, y, d, scale, band = ctx.saved_tensors
        through_sum = torch.mm((dy * y).div_(d), band)
        return torch.addcmul(dy * scale, x, through_sum, value=-2 * BETA), None


class LocalResponseNorm(nn.Module):
    """(B, C, H, W) -> the same; copies nothing if the channels are last in memory."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        place = torch.arange(channels)
        # Not a buffer: it is not part of the model's state, and must not be averaged or sent.
        self._band = ALPHA * ((place[:, None] - place).abs() <= RADIUS)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(0, 2, 3, 1)
        rows = pixels.flatten(0, 2)
        normalised: Tensor = _Normalise.apply(rows, self._band.to(rows))  # type: ignore[no-untyped-call]
        return normalised.view(pixels.shape).permute(0, 3, 1, 2)


class CifarCNN(nn.Module):
    """1,068,298 parameters, drawn as in the tutorial: normal, truncated at two standard deviations.

    TensorFlow's 'same' pooling pads an even side only at its end, which is what `ceil_mode` does: 24 -> 12 -> 6.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.norm = LocalResponseNorm(64)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.fc3 = nn.Linear(6 * 6 * 64, 384)
        self.fc4 = nn.Linear(384, 192)
        self.fc5 = nn.Linear(192, 10)
        _draw(self.conv1, std=0.05, bias=0.0)
        _draw(self.conv2, std=0.05, bias=0.1)
        _draw(self.fc3, std=0.04, bias=0.1)
        _draw(self.fc4, std=0.04, bias=0.1)
        _draw(self.fc5, std=1 / 192, bias=0.0)

    def forward(self, x: Tensor) -> Tensor:
        # With channels last in memory, pooling and normalisation are vectorised: the step takes a quarter less time.
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.norm(F.relu(self.pool(self.conv1(x))))  # the same as ReLU first, on a quarter of the numbers
        x = self.pool(self.norm(F.relu(self.conv2(x))))
        x = F.relu(self.fc3(x.flatten(1)))
        logits: Tensor = self.fc5(F.relu(self.fc4(x)))
        return logits


def _draw(layer: nn.Conv2d | nn.Linear, std: float, bias: float) -> None:
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.constant_(layer.get_parameter("bias"), bias)


def augment(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Training images as the network sees them: (n, 3, 32, 32) bytes -> (n, 3, 24, 24) floats.

    A random crop, mirrored or not, with random brightness and contrast, then whitened. Brightness adds a constant to
    all pixels of an image, which whitening removes again, so it is not drawn; the rest is one multiplication and one
    addition per pixel.
    """
    n, places = len(x), x.shape[2] - CROP + 1
    top, left, mirrored = (torch.from_numpy(rng.integers(0, end, n)).to(x.device) for end in (places, places, 2))
    contrast = torch.from_numpy(rng.uniform(*CONTRAST, n)).to(x.device, torch.float32)
    crops = x.unfold(2, CROP, 1).unfold(3, CROP, 1)  # a view: (n, 3, places, places, 24, 24)
    image = crops[torch.arange(n, device=x.device), :, top, left]
    image = torch.where(mirrored.bool().view(n, 1, 1, 1), image.flip(3), image)
    return whiten(image, contrast)


def prepare(x: Tensor) -> Tensor:
    """Test images as the network sees them: the centre, whitened."""
    edge = (x.shape[2] - CROP) // 2
    image = x[:, :, edge : edge + CROP, edge : edge + CROP]
    return whiten(image, torch.ones(len(x), device=x.device))


def whiten(image: Tensor, contrast: Tensor) -> Tensor:
    """Images (n, 3, h, w) scaled by `contrast` (n,) about their channels' means, then each to mean 0 and variance 1.

    The standard deviation is at least 1/sqrt(3hw), so that a uniform image gives zeros. Only the statistics of the
    channels are needed: with mean m_c and variance v_c, contrast f gives the image the mean M = mean(m_c) and the
    variance mean(f² v_c + (m_c - M)²).
    """
    image = image.to(torch.float32)
    spread = contrast.view(-1, 1, 1, 1)
    variance, mean = torch.var_mean(image, (2, 3), correction=0, keepdim=True)
    middle = mean.mean(1, keepdim=True)
    std = (spread.square() * variance + (mean - middle).square()).mean(1, keepdim=True).sqrt()
    std = std.clamp_min(image[0].numel() ** -0.5)
    return torch.addcmul((mean * (1 - spread) - middle) / std, image, spread / std)


CIFAR_CNN = Task("cifar-cnn", CifarCNN, prepare=prepare, augment=augment, eval_batch=200)

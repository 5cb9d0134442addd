"""The network of improved diffusion, for its published checkpoints.

Nichol & Dhariwal, "Improved Denoising Diffusion Probabilistic Models" (2021). It predicts the noise
ε in an image and, in three more channels, a step's variance, which DDIM does not need. Two things
differ from diffusers' UNet2DModel: the number of heads is the same at every width, and the rows of
`qkv` are ordered by head, within each head first q, then k, then v. Modules are named as the
checkpoints name their tensors.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe.errors import RecipeError

HEADS = 4  # in all published checkpoints that this module reads; no state dict tells the number


@dataclass(frozen=True)
class Shape:
    """The shape of a network's tensors."""

    channels: int  # at full resolution, a multiple of 32
    multipliers: tuple[int, ...]  # factors on `channels`, one per resolution from full to coarsest
    blocks: int  # residual blocks per resolution on the way down; one more on the way up
    # resolutions with attention, 0 being the full one; the coarsest has it in the middle anyway
    attention: tuple[int, ...]
    classes: int | None  # number of classes; None: the network takes none
    outputs: int = 6  # 3 output channels, or 6 with the variance


def shape_of(tensors: Mapping[str, Tensor]) -> Shape:
    """Return the shape of the network that a state dict belongs to.

    Raises:
        RecipeError: the weights are of another kind.
    """
    # A state dict has no settings, so they are read from the names and shapes of its tensors.
    try:
        channels = tensors["time_embed.0.weight"].shape[1]
        outputs = tensors["out.2.weight"].shape[0]
        places = range(len(tensors))
        halvings = [i for i in places if f"input_blocks.{i}.0.op.weight" in tensors]
        residuals = [i for i in places if f"input_blocks.{i}.0.in_layers.2.weight" in tensors]
        blocks = halvings[0] - 1 if halvings else residuals[-1]
        firsts = [1, *(place + 1 for place in halvings)]
        widths = [
            tensors[f"input_blocks.{first}.0.in_layers.2.weight"].shape[0] for first in firsts
        ]
        attention = tuple(
            level
            for level, first in enumerate(firsts)
            if f"input_blocks.{first}.1.qkv.weight" in tensors
        )
    except (KeyError, IndexError, ValueError) as error:
        raise RecipeError(
            "The weights are not those of an improved-diffusion network. Use "
            "imagenet64_cond_270M_250K.pt, imagenet64_uncond_100M_1500K.pt or another "
            "checkpoint of that code."
        ) from error
    labels = tensors.get("label_emb.weight")
    classes = None if labels is None else int(labels.shape[0])
    return Shape(
        channels, tuple(width // channels for width in widths), blocks, attention, classes, outputs
    )


class ImprovedUNet(nn.Module):
    """A network that predicts ε from a noised image and its time.

    Weights with six outputs also predict the step's variance.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.channels
        time = 4 * width
        self.time_embed = nn.Sequential(
            nn.Linear(width, time),
            nn.SiLU(),
            nn.Linear(time, time),
        )
        if shape.classes is not None:
            self.label_emb = nn.Embedding(shape.classes, time)
        self.input_blocks = nn.ModuleList([_Stage(nn.Conv2d(3, width, 3, padding=1))])
        skips = [width]  # channels of what each stage on the way down leaves for the way up
        for level, multiplier in enumerate(shape.multipliers):
            if level:
                self.input_blocks.append(_Stage(_halve(width)))
                skips.append(width)
            for _ in range(shape.blocks):
                stage, width = _stage(
                    shape,
                    level,
                    width,
                    multiplier * shape.channels,
                    time,
                )
                self.input_blocks.append(_Stage(*stage))
                skips.append(width)
        self.middle_block = _Stage(
            _Residual(width, width, time), _Attention(width), _Residual(width, width, time)
        )
        self.output_blocks = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(shape.multipliers))):
            for place in range(shape.blocks + 1):
                stage, width = _stage(
                    shape, level, width + skips.pop(), multiplier * shape.channels, time
                )
                if level and place == shape.blocks:
                    stage.append(_double(width))
                self.output_blocks.append(_Stage(*stage))
        self.out = nn.Sequential(
            _norm(width), nn.SiLU(), nn.Conv2d(width, shape.outputs, 3, padding=1)
        )

    def forward(
        self,
        x: Tensor,
        times: Tensor,
        classes: Tensor | None = None,
    ) -> Tensor:
        """Return n×outputs×h×w for noised images x, n×3×h×w in about [−1, 1].

        `times` (n,) are in the scale of the training.
        """
        time = self.time_embed(waves(times, self.shape.channels).to(x.dtype))
        if self.shape.classes is not None:
            time = time + self.label_emb(classes)
        skips = []
        for stage in self.input_blocks:
            x = stage(x, time)
            skips.append(x)
        x = self.middle_block(x, time)
        for stage in self.output_blocks:
            x = stage(torch.cat([x, skips.pop()], dim=1), time)
        out: Tensor = self.out(x)
        return out


def waves(times: Tensor, width: int) -> Tensor:
    """Return the cosines, then the sines, of the times, float32 n×width.

    The frequencies go from 1 down to about 1/10,000.
    """
    half = width // 2
    frequencies = torch.exp(
        -math.log(10_000) / half * torch.arange(half, dtype=torch.float32, device=times.device)
    )
    angles = times.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class _Stage(nn.ModuleList):
    """Modules that run one after the other, of which residual blocks also take the time."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(modules)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        for module in self:
            x = module(x, time) if isinstance(module, _Residual) else module(x)
        return x


def _stage(
    shape: Shape, level: int, inputs: int, outputs: int, time: int
) -> tuple[list[nn.Module], int]:
    """Return a residual block, attention at the levels that have it, and the output channels."""
    block: list[nn.Module] = [_Residual(inputs, outputs, time)]
    return block + ([_Attention(outputs)] if level in shape.attention else []), outputs


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels)


class _Residual(nn.Module):
    """Two convolutions and a skip connection.

    The embedding of time and class scales and shifts the values between the convolutions.
    """

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            _norm(inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time, 2 * outputs))
        self.out_layers = nn.Sequential(  # the third is where dropout was during training
            _norm(outputs), nn.SiLU(), nn.Identity(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip_connection = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.emb_layers(time)[:, :, None, None].chunk(2, dim=1)
        h = self.out_layers[0](self.in_layers(x)) * (1 + scale) + shift
        out: Tensor = self.skip_connection(x) + self.out_layers[1:](h)
        return out


class _Attention(nn.Module):
    """Attention in four heads between all places of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        flat = x.reshape(n, channels, height * width)
        heads = self.qkv(self.norm(flat)).reshape(
            n,
            HEADS,
            3,
            channels // HEADS,
            height * width,
        )
        # contiguous, because torch uses no fused kernel otherwise
        q, k, v = (part.transpose(2, 3).contiguous() for part in heads.unbind(dim=2))
        values = functional.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        out: Tensor = flat + self.proj_out(values.reshape(n, channels, height * width))
        return out.reshape(x.shape)


def _halve(channels: int) -> nn.Module:
    """Return a convolution that halves the resolution."""
    return nn.Sequential(OrderedDict(op=nn.Conv2d(channels, channels, 3, stride=2, padding=1)))


def _double(channels: int) -> nn.Module:
    """Return layers that double the resolution: repeat each pixel, then convolve."""
    return nn.Sequential(
        OrderedDict(
            up=nn.Upsample(scale_factor=2.0), conv=nn.Conv2d(channels, channels, 3, padding=1)
        )
    )

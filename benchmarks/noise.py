"""How fast exact noise is drawn, and what it costs a step of DP-SGD. `python benchmarks/noise.py`.

Beside it: OpenDP's exact samplers, and floating-point noise as this toolkit drew it before (Box and Muller from one
53-bit uniform) and as the sum of four such draws, halved (Holohan and Braghin 2021).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import numpy.typing as npt
import opendp.prelude as opendp
import torch
from diffusers import UNet2DModel
from record import keep, where
from torch import Tensor, nn

from adapters.trained.diffusion_training import Velocity
from adapters.trained.dp_sgd.gradients import Loss
from adapters.trained.dp_sgd.processes import Part
from adapters.trained.dp_sgd.training import Training
from adapters.trained.settings import DPSGD
from pe.privacy.noise import Noise, SystemNoise

DRAWS = 4 * 10**6
OPENDP_DRAWS = 10**5
RUNS = 5
"""Rounds of a step, old and new in turn."""


def box_muller(count: int) -> npt.NDArray[np.float64]:
    """N(0, 1) as it was drawn before."""
    pairs = (count + 1) // 2
    integers = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64) >> np.uint64(11)
    radii = np.sqrt(-2 * np.log((integers[:pairs] + 0.5) * 2.0**-53))
    angles = 2 * np.pi * (integers[pairs:] * 2.0**-53)
    return np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])[:count]


def sum_of_four(count: int) -> npt.NDArray[np.float64]:
    """N(0, 1) whose lattice is finer than anybody can search."""
    return sum((box_muller(count) for _ in range(4)), np.zeros(count)) / 2


class Continuous(Training):
    """DP-SGD as it was before: a sum in float64, and floating-point noise."""

    draws: Callable[[int], npt.NDArray[np.float64]] = staticmethod(box_muller)

    def _sum_over(self, chosen, state, images, labels, noise):  # type: ignore[no-untyped-def]
        parameters = self._named(state.parameters)
        total = torch.zeros(self._count, dtype=torch.float64)
        for start in range(0, len(chosen), self.settings.micro_batch):
            part = chosen[start : start + self.settings.micro_batch]
            total += self._micro_batch(parameters, Part(images[part], labels[part], self._seeds(noise)))
        return total

    def _clipped(self, gradients: list[Tensor], counted: Tensor) -> Tensor:
        rows = [gradient.detach().flatten(1) for gradient in gradients]
        norms = torch.stack([row.double().square().sum(dim=1) for row in rows]).sum(dim=0).sqrt()
        counted = counted & norms.isfinite()
        factors = torch.where(counted, (self.settings.clip / norms).clamp(max=1.0), 0.0)
        return torch.cat([factors @ torch.where(counted[:, None], row.double(), 0.0) for row in rows])

    def _noised(self, total: Tensor, noise: Noise) -> Tensor:
        deviation = self.settings.settled * self.settings.clip
        return total + torch.from_numpy(type(self).draws(self._count) * deviation)

    def _mean(self, noisy: Tensor) -> Tensor:
        return noisy / self.settings.expected_batch


class Summed(Continuous):
    """The same with the sum of four draws."""

    draws = staticmethod(sum_of_four)


class Classifying:
    """Cross-entropy of a linear reader: the cheapest gradient that p numbers can have."""

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> tuple[()]:
        return ()

    def __call__(self, model, image, label, randomness):  # type: ignore[no-untyped-def]
        return nn.functional.cross_entropy(model(image[None]), label[None])


def unet() -> nn.Module:
    """About 2e5 parameters at 28×28."""
    return UNet2DModel(
        sample_size=28, in_channels=1, out_channels=1, block_out_channels=(16, 32, 32), layers_per_block=1,
        norm_num_groups=8, num_class_embeds=11,
        down_block_types=("DownBlock2D",) * 3, up_block_types=("UpBlock2D",) * 3,
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def rate(draw: Callable[[int], object], count: int) -> float:
    """Draws a second, the best of three."""
    draw(1000)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        draw(count)
        seconds.append(time.perf_counter() - started)
    return count / min(seconds)


def opendps(make: Callable[..., Callable[[list[int]], list[int]]], distance: object) -> Callable[[int], object]:
    measure = make(opendp.vector_domain(opendp.atom_domain(T="i64")), distance, scale=2.0**16)
    return lambda count: measure([0] * count)


def rates() -> str:
    noise = SystemNoise()
    opendp.enable_features("contrib")
    rows = [
        ("discrete Gaussian, scale 2^16", rate(lambda n: noise.discrete_gaussian(n, 2.0**16), DRAWS)),
        ("discrete Gaussian, scale 2^30 (DP-SGD)", rate(lambda n: noise.discrete_gaussian(n, 2.0**30), DRAWS)),
        ("discrete Gaussian, scale 2^50", rate(lambda n: noise.discrete_gaussian(n, 2.0**50), DRAWS)),
        ("discrete Laplace, scale 2^16", rate(lambda n: noise.discrete_laplace(n, 2.0**16), DRAWS)),
        (
            "OpenDP's discrete Gaussian",
            rate(opendps(opendp.m.make_gaussian, opendp.l2_distance(T="i64")), OPENDP_DRAWS),
        ),
        ("OpenDP's discrete Laplace", rate(opendps(opendp.m.make_laplace, opendp.l1_distance(T="i64")), OPENDP_DRAWS)),
        ("floating point, Box and Muller (before)", rate(box_muller, DRAWS)),
        ("floating point, sum of four draws", rate(sum_of_four, DRAWS)),
    ]
    lines = [f"| {name} | {found / 1e6:.2f} |" for name, found in rows]
    return "| noise | million draws a second, one core |\n| --- | ---: |\n" + "\n".join(lines)


def steps() -> str:
    """Seconds of a step, old and new in turn."""
    images = np.random.default_rng(0).integers(0, 256, (64, 28, 28, 1), dtype=np.uint8)
    labels = np.arange(64) % 10
    cells: list[tuple[str, Callable[[], nn.Module], Loss, int]] = [
        ("UNet, four draws a record", unet, Velocity(), 4),
        ("perceptron", perceptron, Classifying(), 1),
    ]
    lines = []
    for name, make, loss, draws in cells:
        settings = DPSGD(
            steps=2**20, expected_batch=64, declared_size=64, clip=1.0, learning_rate=1e-3, noise_multiplier=1.0,
            draws=draws, block=1,
        )  # fmt: skip
        torch.manual_seed(0)
        trainings = [kind(make(), loss, settings) for kind in (Continuous, Summed, Training)]
        seconds: list[list[float]] = [[] for _ in trainings]
        for turn in range(RUNS + 1):
            for training, found in zip(trainings, seconds, strict=True):
                started = time.perf_counter()
                training.block(training.start(), images, labels, SystemNoise())
                if turn:
                    found.append(time.perf_counter() - started)
        before, summed, now = map(median, seconds)
        lines.append(
            f"| {name} | {trainings[0].count:,} | {before:.3f} | {summed:.3f} ({summed / before:.2f}×) "
            f"| {now:.3f} ({now / before:.2f}×) |"
        )
    head = "| model | p | before: s | sum of four draws: s | integers: s |\n| --- | ---: | ---: | ---: | ---: |\n"
    return head + "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    title = f"# Exact noise from the operating system's entropy\n\n{where()}. `python benchmarks/noise.py`\n\n"
    middle = (
        "\n\n## A step of DP-SGD\n\n64 records of 28×28, one core, medians of five, in turn. Before: a float64 sum, "
        "and floating-point noise. Integers: every clipped gradient rounded toward zero, exact discrete noise.\n\n"
    )
    keep("noise.md", title + rates() + middle + steps())


if __name__ == "__main__":
    main()

"""DP-SAD's discriminator, which tells the teacher's next-step images from the student's.

It sees public noise alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.diffusion_networks import Denoising, scheduler, square
from adapters.trained.dp_sgd.gradients import Network, Randomness
from adapters.trained.torch_tools import drawing_by, step_down, torch_seed
from pe.data.arrays import ImageShape
from pe.data.samples import slices

if TYPE_CHECKING:
    from adapters.trained.settings import Discrimination

_WIDTH = 32
_GROUPS = 4
_AT_ONCE = 256


class StepDiscriminator(nn.Module):
    """A classifier of next-step images: its logit says "by the teacher".

    It has three convolutions with GroupNorm, which time and class scale and shift.

    `classes`: number of classes, the one that means "no class" included.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(width, _WIDTH, 3, padding=1, stride=stride)
            for width, stride in ((channels, 1), (_WIDTH, 2), (_WIDTH, 2))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, _WIDTH) for _ in self.layers)
        self.time = nn.Linear(2, 2 * _WIDTH)
        self.kind = nn.Embedding(classes, 2 * _WIDTH)
        self.last = nn.Linear(_WIDTH, 1)

    def forward(self, images: Tensor, level: Tensor, classes: Tensor) -> Tensor:
        """Return the logits of n×c×h×w images, (n,).

        `level`, (n,), are their noise levels ᾱ, and `classes`, int64 (n,), their classes.
        """
        condition = self.time(torch.stack([level.sqrt(), (1 - level).sqrt()], dim=1)) + self.kind(
            classes
        )
        scale, shift = condition[:, :, None, None].chunk(2, dim=1)
        x = images
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.silu(norm(layer(x)) * (1 + scale) + shift)
        logits: Tensor = self.last(x.mean(dim=(2, 3)))[:, 0]
        return logits


class Chain:
    """The noise levels of `count` steps of DDIM, and the step from one image to the next."""

    def __init__(self, count: int, device: torch.device) -> None:
        schedule = scheduler()
        schedule.set_timesteps(count)
        self.timesteps: Tensor = schedule.timesteps.to(device)
        self._stride = schedule.config.num_train_timesteps // count
        self._levels = torch.cat(
            [schedule.final_alpha_cumprod.reshape(1), schedule.alphas_cumprod]
        ).to(device)

    def after(self, steps: Tensor) -> Tensor:
        """Return ᾱ one step of the chain after each of `steps`.

        These timesteps need not lie on the chain.
        """
        return self._levels[(steps + 1 - self._stride).clamp(min=0)]

    def next_image(self, noisy: Tensor, velocity: Tensor, steps: Tensor) -> Tensor:
        """Return x_s, n×c×h×w, one step of DDIM without noise after x_t = `noisy`.

        `velocity` is the network's at x_t.
        """
        level = self._levels[steps + 1][:, None, None, None]
        after = self.after(steps)[:, None, None, None]
        signal = level.sqrt()
        spread = (1 - level).sqrt()
        image = signal * noisy - spread * velocity
        noise = spread * noisy + signal * velocity
        return after.sqrt() * image + (1 - after).sqrt() * noise


class Judge:
    """The discriminator, and its training between the blocks of the student's training.

    It sees the next images that teacher and student make from the same points. The points lie on
    denoising chains of the teacher, which begin with public noise and public classes.

    Guarantee: it is computed from the weights of teacher and student, all released or public, and
    public seeds alone.

    Args:
        teacher: fixed; the discriminator is put on the teacher's device.
        shape: h, w, c of the images.
        classes: number of classes, without the one that means "no class".
        settings: of the training.
        steps: number of steps of a chain.
        seed: the recipe's.
    """

    def __init__(
        self,
        teacher: nn.Module,
        shape: ImageShape,
        classes: int,
        settings: Discrimination,
        steps: int,
        seed: int,
    ) -> None:
        device = next(teacher.parameters()).device
        with drawing_by(seed, "discriminator/weights"):
            self.discriminator = StepDiscriminator(shape[2], classes + 1).to(device)
        self.chain = Chain(steps, device)
        self._settings = settings
        self._generator = torch.Generator(device).manual_seed(torch_seed(seed, "discriminator"))
        self._optimiser = torch.optim.Adam(
            self.discriminator.parameters(), lr=settings.learning_rate
        )
        self._classes = self._draw(classes, settings.chains)
        self._points = self._walk(teacher, shape)

    def learn(self, student: nn.Module) -> None:
        """Train the discriminator further, against `student` as it is now."""
        self.discriminator.requires_grad_(True)
        for _ in range(self._settings.steps):
            step = self._draw(len(self.chain.timesteps), self._settings.batch)
            which = self._draw(self._settings.chains, self._settings.batch)
            noisy = self._points[step, which]
            of_teacher = self._points[step + 1, which]
            steps = self.chain.timesteps[step]
            classes = self._classes[which]
            with torch.no_grad():
                of_student = self.chain.next_image(
                    noisy, _velocity(student, noisy, steps, classes), steps
                )
            level = self.chain.after(steps).repeat(2)
            logits = self.discriminator(
                torch.cat([of_teacher, of_student]), level, classes.repeat(2)
            )
            targets = torch.cat([torch.ones(len(steps)), torch.zeros(len(steps))]).to(logits)
            step_down(self._optimiser, functional.binary_cross_entropy_with_logits(logits, targets))
        self.discriminator.requires_grad_(False)

    def _walk(self, teacher: nn.Module, shape: ImageShape) -> Tensor:
        """Return all points of the teacher's chains, float32 (steps + 1, chains, c, h, w).

        They lead from noise to images.

        Float32 (steps + 1, chains, c, h, w).
        """
        height, width, channels = shape
        size = (self._settings.chains, channels, height, width)
        points = [torch.randn(size, generator=self._generator, device=self._generator.device)]
        with torch.no_grad():
            for timestep in self.chain.timesteps:
                x = points[-1]
                timesteps = timestep.expand(len(points[-1]))
                velocities = [
                    _velocity(teacher, x[part], timesteps[part], self._classes[part])
                    for part in slices(len(x), _AT_ONCE)
                ]
                points.append(self.chain.next_image(x, torch.cat(velocities), timesteps))
        return torch.stack(points)

    def _draw(self, below: int, count: int) -> Tensor:
        return torch.randint(
            below, (count,), generator=self._generator, device=self._generator.device
        )


def _velocity(
    network: nn.Module,
    noisy: Tensor,
    steps: Tensor,
    classes: Tensor,
) -> Tensor:
    velocity: Tensor = network(noisy, steps, class_labels=classes).sample
    return velocity


class Distillation(Denoising):
    """The student's loss (Equation 12): MSE(x, x_θ) + a·MSE(x_ψ, x_θ) + λ·log(1 − φ(x_θ)).

    A `Loss` of DP-SGD.

    x, x_ψ and x_θ are the next-step images of one noised record, by the velocities of truth,
    teacher and student; φ is the discriminator's probability. On this schedule every step turns
    image and noise by the same angle, so the squared distance of two next-step images is a constant
    times the squared distance of their velocities, which the loss takes.

    Every term that reads a record lies within that record's gradient, which is clipped whole.
    Teacher and discriminator are fixed while a block runs, and records have entered them only
    through earlier releases.

    Args:
        teacher: fixed.
        judge: has the discriminator, fixed while a block runs; None: the discriminator's term is
            left out.
        imitation: a, the weight of the teacher's term.
        adversarial: λ, the weight of the discriminator's term.
        none: the number of the class that means "no class".
    """

    def __init__(
        self,
        teacher: nn.Module,
        judge: Judge | None,
        imitation: float,
        adversarial: float,
        none: int,
    ) -> None:
        super().__init__(none)
        self.judge = judge
        self._teacher = teacher
        self._imitation = imitation
        self._adversarial = adversarial

    def __call__(
        self, model: Network, image: Tensor, label: Tensor, randomness: Randomness
    ) -> Tensor:
        """Return the losses of ONE record, (draws,)."""
        noisy, velocity, classes = self.add_noise(image, label, randomness)
        steps = randomness[0]
        output = model(noisy, steps, class_labels=classes).sample
        loss = square(output - velocity)
        if self._imitation:
            with torch.no_grad():
                target = self._teacher(noisy, steps, class_labels=classes).sample
            loss = loss + self._imitation * square(output - target)
        if self.judge is not None:
            chain = self.judge.chain
            logits = self.judge.discriminator(
                chain.next_image(noisy, output, steps), chain.after(steps), classes
            )
            loss = loss + self._adversarial * functional.logsigmoid(-logits)
        return loss

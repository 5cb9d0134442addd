"""DP-SAD's loss of one record: its own error, the distance to the teacher, and the discriminator's judgement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.diffusion.discriminator import Judge
from adapters.trained.diffusion.loss import Randomness, Velocity, square


class Distillation(Velocity):
    """The student's loss (Equation 12): MSE(x, x_θ) + a·MSE(x_ψ, x_θ) + λ·log(1 − φ(x_θ)); a `Loss` of DP-SGD.

    x, x_ψ and x_θ are the next-step images of truth, teacher and student from the same noised record. On this schedule
    the step between two of them turns image and noise by the same angle at every time, so that the squared distance of
    next-step images is that of velocities, but for one constant; the velocities' are taken.

    Every term that reads the record lies within its own gradient, which is clipped whole. Teacher and discriminator
    are fixed while a block runs, and no record has a part in either but through what was released before.

    Args:
        teacher: fixed.
        judge: whose discriminator is fixed while a block runs; None: its term is left out.
        imitation: a, the weight of the teacher's term.
        adversarial: λ.
        none: the number of the class that stands for none.
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
        self.judge, self._teacher = judge, teacher
        self._imitation, self._adversarial = imitation, adversarial

    def __call__(self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: Randomness) -> Tensor:
        """The losses, (draws,)."""
        noisy, velocity, classes = self.noised(image, label, randomness)
        steps = randomness[0]
        found = model(noisy, steps, class_labels=classes).sample
        loss = square(found - velocity)
        if self._imitation:
            with torch.no_grad():
                taught = self._teacher(noisy, steps, class_labels=classes).sample
            loss = loss + self._imitation * square(found - taught)
        if self.judge is not None:
            chain = self.judge.chain
            logits = self.judge.discriminator(chain.next_image(noisy, found, steps), chain.after(steps), classes)
            loss = loss + self._adversarial * functional.logsigmoid(-logits)
        return loss

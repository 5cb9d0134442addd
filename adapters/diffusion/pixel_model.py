"""Diffusion in pixel space: DDIM or DDPM sampling, and SDEdit (Meng et al. 2022) as the variation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.diffusion.items import Item, Job, Outcome, Pixels, steps_run
from adapters.diffusion.noise import normals, seeded
from pe.errors import APIError
from pe.plugins.protocols import Failed

if TYPE_CHECKING:
    import torch
    from diffusers import DDIMScheduler, DDPMScheduler
    from torch import Tensor, nn


class PixelModel:
    """A network that sees pixels in [−1, 1] and a scheduler, on one device.

    Args:
        unet: called as `unet(x, t, class_labels=None or int64 (n,))`; its answer's `sample` is n×c×h×w, or
            n×2c×h×w where the network learned a variance, too. Already on the device and of this dtype.
        scheduler: of diffusers, with `step` of DDIM or DDPM.
        shape: c, h, w of an image.
        classes: how many classes the network knows; None: it takes none.
        eta: of DDIM: 0 is deterministic, 1 as random as DDPM.
        afresh: whether degree 1 is a new image; else it is, as any other, the image noised to the start timestep,
            and a schedule whose first timestep is not pure noise leaves a trace of it.
    """

    def __init__(
        self,
        unet: nn.Module,
        scheduler: DDIMScheduler | DDPMScheduler,
        shape: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        classes: int | None = None,
        eta: float = 0.0,
        afresh: bool = True,
    ) -> None:
        self._unet, self._scheduler, self._shape = unet, scheduler, shape
        self._device, self._dtype, self.classes = device, dtype, classes
        self._extra = {"eta": eta} if type(scheduler).__name__ == "DDIMScheduler" else {}
        ddpm = type(scheduler).__name__ == "DDPMScheduler"
        self._learned = ddpm and scheduler.config.variance_type in ("learned", "learned_range")
        self._afresh = afresh

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """New images: x_T from pure noise, then the whole loop."""
        self._scheduler.set_timesteps(job.steps)
        generators = [seeded(item.seed) for item in items]
        x = normals(self._shape, generators).to(self._device) * self._scheduler.init_noise_sigma
        return self._denoise(x, job.steps, job.guidance, items, generators)

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """SDEdit: each image noised to the start timestep of the degree, then the rest of the loop."""
        assert job.degree is not None
        if job.degree == 1 and self._afresh:
            return self.sample(job, items)
        steps = steps_run(job.steps, job.degree)
        self._scheduler.set_timesteps(job.steps)
        generators = [seeded(item.seed) for item in items]
        start = self._scheduler.timesteps[-steps:][:1].expand(len(items))
        noise = normals(self._shape, generators).to(self._device)
        x = self._scheduler.add_noise(self._tensors(items), noise, start)
        return self._denoise(x, steps, job.guidance, items, generators)

    def _denoise(
        self, x: Tensor, steps: int, guidance: float | None, items: Sequence[Item], generators: list[torch.Generator]
    ) -> Sequence[Outcome]:
        """The last `steps` steps of the loop from x, float32; the network alone works in its own precision."""
        labels = self._labels(items)
        timesteps = self._scheduler.timesteps[-steps:]
        for t, t_there in zip(timesteps.tolist(), timesteps.to(self._device), strict=True):
            output = self._output(x.to(self._dtype), t_there, labels, guidance)
            if not self._learned:
                output = output[:, : self._shape[0]]
            x = self._scheduler.step(output, t, x, generator=generators, **self._extra).prev_sample
        return _outcomes(x)

    def _output(self, x: Tensor, t: Tensor, labels: Tensor | None, guidance: float | None) -> Tensor:
        """What the network predicts, float32, guided towards the classes (Ho and Salimans 2022).

        `guidance` says how far to go from what it finds for no class, its class number `classes`, to what it finds for
        the image's class, and beyond; at 1 there is none.
        """
        import torch

        found: Tensor = self._unet(x, t, class_labels=labels).sample.float()
        if guidance in (None, 1) or labels is None or self.classes is None:
            return found
        none = torch.full_like(labels, self.classes)
        unguided: Tensor = self._unet(x, t, class_labels=none).sample.float()
        return unguided + guidance * (found - unguided)

    def _labels(self, items: Sequence[Item]) -> Tensor | None:
        import torch

        if self.classes is None:
            return None
        labels = [item.api_class for item in items]
        wrong = next((label for label in labels if label is None or not 0 <= label < self.classes), 0)
        if wrong != 0:
            raise APIError(f"The API class {wrong} is not one of the model's {self.classes}: give one from 0 on.")
        return torch.tensor(labels, device=self._device)

    def _tensors(self, items: Sequence[Item]) -> Tensor:
        """float32 n×c×h×w in [−1, 1]."""
        import torch

        images = [item.image for item in items if item.image is not None]
        channels, height, width = self._shape
        for image in images:
            if image.shape != (height, width, channels):
                got = "×".join(map(str, image.shape))
                raise APIError(f"The model varies images of {height}×{width}×{channels}, not of {got}.")
        pixels = torch.from_numpy(np.stack(images)).to(self._device)
        return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def _outcomes(x: Tensor) -> Sequence[Outcome]:
    """uint8 images; what is not a number has failed."""
    finite = x.isfinite().flatten(1).all(dim=1).tolist()
    levels: Any = ((x.nan_to_num() + 1.0) * 127.5).round().clamp(0, 255)
    pixels: Pixels = levels.permute(0, 2, 3, 1).byte().cpu().numpy()
    lost = Failed("the model's image holds values that are no numbers (precision fp32 or bf16 may heal it)")
    return [image if good else lost for image, good in zip(pixels, finite, strict=True)]

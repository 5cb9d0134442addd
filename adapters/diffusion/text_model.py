"""A text-to-image model on one device: one pipeline makes new images, the same or another one varies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.diffusion.description import inputs_of
from adapters.diffusion.guidance import guidance_of, heeds_negative_prompts
from adapters.diffusion.items import Item, Job, Outcome, Pixels
from adapters.diffusion.memory import Memory
from adapters.diffusion.noise import seeded
from adapters.diffusion.vary.way import Vary
from pe.errors import RecipeError
from pe.plugins.protocols import Failed, Refused

if TYPE_CHECKING:
    import torch

_LOST = Failed("the model's image holds values that are no numbers (precision fp32 or bf16 may heal it)")
_UNSAFE = Refused("the model's safety checker took the image for unsafe")


class TextModel:
    """Two pipelines, mostly over the same weights.

    Args:
        text: draws new images.
        vary: varies images, by a pipeline of its own or by the same one.
        memory: how the pipelines share the device.
        device: where they compute.
        arguments: of every call that takes them, by their own names.
    """

    def __init__(
        self, text: Any, vary: Vary, memory: Memory, device: torch.device, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._text, self._vary = text, vary
        self._memory, self._device, self._more = memory, device, dict(arguments or {})
        self._engaged: Any = None
        parts = (getattr(pipeline, "vae", None) for pipeline in (text, vary.pipeline))
        self._autoencoders = [(part, _dtypes(part)) for part in parts if part is not None]

    @property
    def heeds_negative_prompts(self) -> bool:
        """Whether a negative prompt has an effect, on new images and on variations."""
        kinds = (type(self._text), type(self._vary.pipeline))
        return all(heeds_negative_prompts(inputs_of(kind), self._more) for kind in kinds)

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """New images of the items' prompts."""
        return self._run(self._text, job, items, self._vary.arguments_of_new(job, items))

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Variations; at degree 1, where the parent would still leave a trace, new images."""
        if job.degree == 1:
            return self.sample(job, items)
        parts = [[item] for item in items] if self._vary.alone else [items]
        varied = (self._run(self._vary.pipeline, job, part, self._vary.arguments(job, part)) for part in parts)
        return [outcome for outcomes in varied for outcome in outcomes]

    def _run(self, pipeline: Any, job: Job, items: Sequence[Item], more: Mapping[str, Any]) -> Sequence[Outcome]:
        if self._engaged is not pipeline:
            self._memory.engage(pipeline, self._device)
            self._engaged = pipeline
        self._memory.slice(pipeline, len(items))
        self._restore()
        inputs, negative = inputs_of(type(pipeline)), [item.negative_prompt for item in items]
        if any(negative) and not heeds_negative_prompts(inputs, self._more):
            raise RecipeError(f"negative_prompt: {type(pipeline).__name__} has no use for one, so leave it out.")
        wanted = {
            "prompt": [item.prompt for item in items],
            "num_inference_steps": job.steps,
            "generator": [seeded(item.seed) for item in items],
            "output_type": "pt" if hasattr(pipeline, "image_processor") else "np",
            **guidance_of(inputs, job.guidance, negative, self._more),
        }
        if job.size is not None:
            height, width = job.size
            wanted |= {"height": height, "width": width, "max_area": height * width}
        wanted |= self._more
        known = {name: value for name, value in wanted.items() if name in inputs}
        return _outcomes(pipeline(**known | dict(more)))

    def _restore(self) -> None:
        """Cast back the autoencoders that a failed call left in another dtype.

        Pipelines of Stable Diffusion XL decode in float32 what is kept in float16, and cast back after success alone.
        """
        for autoencoder, dtypes in self._autoencoders:
            if _dtypes(autoencoder) != dtypes:
                for tensor, dtype in zip(_tensors(autoencoder), dtypes, strict=True):
                    tensor.data = tensor.data.to(dtype)


def _tensors(network: Any) -> Sequence[torch.Tensor]:
    return [*network.parameters(), *network.buffers()]


def _dtypes(network: Any) -> Sequence[torch.dtype]:
    return [tensor.dtype for tensor in _tensors(network)]


def _outcomes(answer: Any) -> Sequence[Outcome]:
    """uint8 images; what the safety checker found is refused, what is not a number has failed.

    They are made on the device where the pipeline gives tensors, n×c×h×w, so that a byte a value leaves it.
    """
    import torch

    given = answer.images
    images = given.float().permute(0, 2, 3, 1) if torch.is_tensor(given) else torch.from_numpy(np.asarray(given))
    unsafe = getattr(answer, "nsfw_content_detected", None) or [False] * len(images)
    finite = images.isfinite().flatten(1).all(dim=1).tolist()
    levels = (images.nan_to_num() * 255).round().clamp(0, 255).byte()
    pixels: Pixels = levels.contiguous().cpu().numpy()
    return [
        _UNSAFE if refused else image if good else _LOST
        for image, refused, good in zip(pixels, unsafe, finite, strict=True)
    ]

"""Vary by meaning: a new image is drawn from what the parent shows, not from its pixels.

The degree takes from the parent's part: at degree v its embedding weighs 1 − v, and the text prompt has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from adapters.diffusion.description import has_prior, inputs_of
from adapters.diffusion.items import Item, Job
from adapters.diffusion.noise import seeded
from adapters.diffusion.vary.way import Vary, pictures_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_PRIOR = "prior_"
"""How a combined pipeline calls the inputs of its prior."""

_PRIORS_NOISE = 0x9E3779B97F4A7C15
"""Turns an item's seed into another, for the prior's noise."""


def vary_by_meaning(pipeline: Any, arguments: Mapping[str, Any]) -> Vary:
    """The kind that suits the pipeline.

    Args:
        pipeline: with an IP-Adapter, with a prior, or one that takes an image in place of a prompt.
        arguments: of its call, by their own names.
    """
    if has_prior(type(pipeline)):
        return Mixture(pipeline, arguments)
    return ImagePrompt(pipeline) if "prompt" in inputs_of(type(pipeline)) else ImageAlone(pipeline)


class ImagePrompt:
    """An IP-Adapter over a text-to-image pipeline; its scale is 1 − degree.

    Args:
        pipeline: with the adapter loaded, so that new images, too, need an image prompt: one of scale 0.
    """

    alone = False

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._prepare = pipeline.prepare_ip_adapter_image_embeds
        pipeline.prepare_ip_adapter_image_embeds = self._embedded

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What the parents show, and how much that weighs."""
        assert job.degree is not None
        self.pipeline.set_ip_adapter_scale(1 - job.degree)
        return {"ip_adapter_image": pictures_of(items)}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """An image prompt that weighs nothing."""
        self.pipeline.set_ip_adapter_scale(0.0)
        return {"ip_adapter_image": [Image.new("RGB", (8, 8))] * len(items)}

    def _embedded(
        self, ip_adapter_image: list[Image.Image], _embeds: None, device: torch.device, _count: int, *guided: bool
    ) -> list[Tensor]:
        """(n or 2·n, 1, …): an embedding for each item, after as many of no image under classifier-free guidance.

        The pipeline's own way would show every image to every item.
        """
        (found,) = self._prepare([ip_adapter_image], None, device, 1, *guided)
        return [found.flatten(0, 1).unsqueeze(1)]


class Mixture:
    """A pipeline whose prior makes an image's embedding from the text: mixed with the parent's own embedding.

    Args:
        pipeline: whose parts `prior_pipe` and `decoder_pipe` are (Kandinsky 2.2).
        arguments: of its call; those of the prior begin with `prior_`.
    """

    alone = False

    def __init__(self, pipeline: Any, arguments: Mapping[str, Any]) -> None:
        self.pipeline, self._prior = pipeline.decoder_pipe, pipeline.prior_pipe
        self._more = {name.removeprefix(_PRIOR): each for name, each in arguments.items() if name.startswith(_PRIOR)}

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """(n, d): 1 − v of the parent's embedding and v of the prompt's."""
        assert job.degree is not None
        prior = self._prior
        generators = [seeded(item.seed ^ _PRIORS_NOISE) for item in items]
        prompts = [item.prompt for item in items]
        drawn = prior(prompts, generator=generators, output_type="pt", **self._more)
        pixels = prior.image_processor(pictures_of(items), return_tensors="pt").pixel_values
        encoder = prior.image_encoder
        shown = encoder(pixels.to(device=prior._execution_device, dtype=encoder.dtype)).image_embeds
        mixed = (1 - job.degree) * shown + job.degree * drawn.image_embeds
        return {"image_embeds": mixed, "negative_image_embeds": drawn.negative_image_embeds}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing."""
        return {}


class ImageAlone:
    """A pipeline that takes an image in place of a prompt; at degree v the image's embedding is shrunk to 1 − v.

    Args:
        pipeline: whose part `image_encoder` embeds the image; no embedding, zero, stands for no image.
    """

    alone = False

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._weight = 1.0
        pipeline.image_encoder.register_forward_hook(self._shrink)

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """The parents."""
        assert job.degree is not None
        self._weight = 1 - job.degree
        return {"image": pictures_of(items)}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing: another pipeline draws new images."""
        return {}

    def _shrink(self, _module: nn.Module, _given: tuple[Tensor, ...], found: Any) -> Any:
        return type(found)(**dict(found) | {"image_embeds": found.image_embeds * self._weight})

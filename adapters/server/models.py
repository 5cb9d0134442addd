"""What can be served: the families of adapters/diffusion, each with what the server must know of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adapters.diffusion.device import Precision, dtype_of
from adapters.diffusion.items import Model
from adapters.diffusion.pixel_files import PixelFiles
from adapters.diffusion.pixel_model import PixelModel
from adapters.diffusion.text_model import TextModel
from adapters.diffusion.text_pipelines import Memory, TextFiles, parameters_of
from adapters.diffusion.weights import local_model, read_json
from adapters.server.checks import Description

if TYPE_CHECKING:
    import torch


class PixelFamily:
    """UNet2DModel in pixel space, with or without classes."""

    most, most_on_cpu = 256, 64
    """Images per forward pass beyond which it gets no faster."""

    def __init__(self, model: str, precision: Precision) -> None:
        self._files, self._precision = PixelFiles.find(model, None, offline=False), precision
        channels, height, width = self._files.shape
        self._shape = height, width, channels

    def load(self, device: torch.device) -> Model:
        """The network and DDIM on the model's own schedule."""
        from torch import nn

        dtype = dtype_of(self._precision)
        network = self._files.network().eval().requires_grad_(False)
        nn.Module.to(network, device, dtype)
        scheduler = self._files.sampler("ddim")
        return PixelModel(network, scheduler, self._files.shape, device, dtype, self._files.class_count())

    def describe(self, name: str, batch: int) -> Description:
        """What clients must know: one size, classes, no words."""
        return Description(
            name=name,
            prompts=False,
            negative_prompts=False,
            class_count=self._files.class_count(),
            classes=self._files.classes,
            shape=self._shape,
            batch=batch,
        )


class TextFamily:
    """Text-to-image pipelines with an img2img."""

    most, most_on_cpu = 64, 4
    """As above."""

    def __init__(self, model: str, precision: Precision) -> None:
        self._files, self._precision = TextFiles(model, None, None, offline=False, safety_checker=True), precision
        self._negative = False

    def load(self, device: torch.device) -> Model:
        """txt2img and img2img over the same weights."""
        pipelines, memory = self._files.pipelines(self._precision), Memory()
        memory.place(pipelines, device)
        takes = [parameters_of(pipeline) for pipeline in pipelines]
        self._negative = all("negative_prompt" in each and "true_cfg_scale" not in each for each in takes)
        return TextModel(pipelines, memory, device)

    def describe(self, name: str, batch: int) -> Description:
        """What clients must know, after `load`: words, many sizes, no classes."""
        return Description(
            name=name,
            prompts=True,
            negative_prompts=self._negative,
            class_count=None,
            classes=(),
            shape=None,
            batch=batch,
        )


def family_of(model: str, precision: Precision) -> PixelFamily | TextFamily:
    """The family of `small`, a folder, a file, or a repository of the hub.

    Raises:
        RecipeError: it is of none, or is not there.
    """
    if model == "small":
        return PixelFamily(model, precision)
    place = local_model(model)
    index = _index_of(model) if place is None else place / "model_index.json"
    has_text = index is not None and index.is_file() and "text_encoder" in read_json(index)
    return (TextFamily if has_text else PixelFamily)(model, precision)


def _index_of(repository: str) -> Path | None:
    """A repository's model_index.json; None: it has none, or nothing can be fetched."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, "model_index.json"))
    except (OSError, ValueError, RuntimeError):
        return None

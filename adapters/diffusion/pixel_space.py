"""Pixel-space diffusion models as generators: sampling is RANDOM_API, SDEdit is VARIATION_API."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from adapters.classes import Choices, Classes
from adapters.diffusion.answers import answer_of, parents_of
from adapters.diffusion.device import Devices, Precision, check_arithmetic, dtype_of
from adapters.diffusion.engine import Engine
from adapters.diffusion.items import Item, Job, describe_steps
from adapters.diffusion.pixel_files import PixelFiles, Sampler
from adapters.diffusion.pixel_model import PixelModel
from pe.data.conditions import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, Seeds, VariationRequest

if TYPE_CHECKING:
    import torch

API_CLASS = "api_class"
"""The condition's column: int64, the model's own class of each sample."""


class PixelSpace:
    """RANDOM_API and VARIATION_API by a diffusion model in pixel space (diffusers' UNet2DModel).

    A degree v noises the parent to the timestep from which the last ⌊v·steps⌋ of the sampler's steps start, and
    runs them (SDEdit). Degree 0 is the parent itself, degree 1 a new sample of the parent's class.

    Conditions, for a model with classes: `api_class`, drawn by each sample's seed and carried on.

    Args:
        model: `small`, which ships with the project; a folder in diffusers' format; a .safetensors file with its
            settings in a .json file of the same name; or a repository of the Hugging Face hub.
        steps: of sampling from pure noise.
        sampler: ddim or ddpm, on the model's own noise schedule.
        eta: of ddim: 0 is deterministic given the first noise, 1 as random as ddpm.
        classes: label → the model's class, by name or number, or several to draw from; without it any class may
            be drawn for any label.
        guidance: classifier-free guidance scale, for a model that was trained without its classes now and then; what
            stands for "no class" is the last of its classes. 1: none.
        device: auto (all cards, else mps, else cpu), cpu, mps, cuda, cuda:1, or a list of cards.
        precision: of the network: fp32, bf16 or fp16.
        batch_size: images per forward pass; None: as many as memory takes, found by trying.
        chunk: most images of one request; what a run loses at most when it is killed.
        compile: the network by torch.compile.
        revision: of a repository.
        offline: fetch nothing.

    Raises:
        RecipeError: a setting is out of range.
    """

    info = PluginInfo(hosts=(), machine_settings=("device", "batch_size", "compile", "offline"))

    def __init__(
        self,
        *,
        model: str,
        steps: int = 50,
        sampler: Sampler = "ddim",
        eta: float = 0.0,
        classes: dict[str | int, Choices] | None = None,
        guidance: float = 1.0,
        device: Devices = "auto",
        precision: Precision = "fp32",
        batch_size: int | None = None,
        chunk: int = 1024,
        compile: bool = False,  # noqa: A002 (the recipe's word)
        revision: str | None = None,
        offline: bool = False,
    ) -> None:
        for name, value in (("steps", steps), ("batch_size", batch_size), ("chunk", chunk)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} is {value}: it must be at least 1.")
        if sampler not in get_args(Sampler):
            raise RecipeError(f"sampler is '{sampler}': it must be one of {', '.join(get_args(Sampler))}.")
        if not 0 <= eta <= 1:
            raise RecipeError(f"eta is {eta}: it must lie in [0, 1].")
        if not 1 <= guidance < inf:
            raise RecipeError(f"guidance is {guidance}: it must be at least 1, which is none.")
        check_arithmetic(device, precision)
        self._model, self._revision, self._offline = model, revision, offline
        self._steps, self._sampler, self._eta, self._guidance = steps, sampler, eta, guidance
        self._classes = None if classes is None else {str(label): named for label, named in classes.items()}
        self._precision, self._compile, self._chunk = precision, compile, chunk
        self._engine = Engine(self._load, device=device, batch_size=batch_size)
        self._found: PixelFiles | None = None
        self._finding = Lock()

    @property
    def capabilities(self) -> Capabilities:
        """Any classes in a request; a second request waits while one is made, so that no device does."""
        return Capabilities(self._chunk, 2, "nothing", "exact")

    def describe_degree(self, degree: float) -> str:
        """What a degree comes to here."""
        return describe_steps(self._steps, degree)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images, each of a class drawn by its seed.

        Raises:
            RecipeError: the weights or the device are not there, or `classes` names what the model has not.
            APIError: the device has not enough memory for one image.
        """
        classes = self._drawn(request.labels, request.seeds)
        job = Job(self._steps)
        items = [
            Item(job, int(seed), api_class=None if classes is None else int(classes[i]))
            for i, seed in enumerate(request.seeds)
        ]
        return self._answer(items, classes)

    def variation_api(self, request: VariationRequest) -> Answer:
        """SDEdit of each parent, as of its own class.

        Raises:
            RecipeError: see `random_api`.
            APIError: the parents are no images, or the device has not enough memory for one.
        """
        classes = self._carried(request)
        job = Job(self._steps, request.degree)
        items = [
            Item(job, int(seed), image, api_class=None if classes is None else int(classes[i]))
            for i, (seed, image) in enumerate(zip(request.seeds, parents_of(request.samples), strict=True))
        ]
        return self._answer(items, classes)

    def _answer(self, items: Sequence[Item], classes: npt.NDArray[np.int64] | None) -> Answer:
        conditions = Conditions() if classes is None else Conditions({API_CLASS: classes})
        channels, height, width = self._files().shape
        return answer_of(self._engine.run(items), (height, width, channels), conditions)

    def _drawn(self, labels: Sequence[str], seeds: Seeds) -> npt.NDArray[np.int64] | None:
        """The class of each item, int64 (n,): drawn by its seed from those of its label; None: there are none."""
        files = self._files()
        return Classes(self._model, self._class_count(files), files.classes).draw(labels, seeds, self._classes)

    def _carried(self, request: VariationRequest) -> npt.NDArray[np.int64] | None:
        """The parents' classes; drawn for parents that carry none, because they come from elsewhere."""
        if API_CLASS in request.conditions and self._class_count(self._files()) is not None:
            return request.conditions[API_CLASS].astype(np.int64)
        return self._drawn(request.labels, request.seeds)

    def _files(self) -> PixelFiles:
        with self._finding:
            if self._found is None:
                self._found = PixelFiles.find(self._model, self._revision, self._offline)
            return self._found

    def _load(self, device: torch.device) -> PixelModel:
        from torch import nn

        files, dtype = self._files(), dtype_of(self._precision)
        network = files.network().eval().requires_grad_(False)
        nn.Module.to(network, device, dtype)  # diffusers' own `to` warns of modules to keep in float32, and names none
        if self._compile:
            network.compile()
        scheduler = files.sampler(self._sampler)
        classes = self._class_count(files)
        return PixelModel(network, scheduler, files.shape, device, dtype, classes, self._eta, self._guidance)

    def _class_count(self, files: PixelFiles) -> int | None:
        count = files.class_count(guided=self._guidance != 1)
        if count is None and self._guidance != 1:
            raise RecipeError(
                f"guidance is {self._guidance:g}, but the model '{self._model}' has no classes: leave it out."
            )
        return count

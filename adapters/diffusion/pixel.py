"""Diffusion in pixel space by DDIM or DDPM, with SDEdit (Meng et al. 2022) as the variation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from adapters.diffusion.engine import Engine, LocalDiffusion, answer_of_outcomes, parents_of
from adapters.diffusion.items import (
    Item,
    Job,
    Outcome,
    Pixels,
    normals,
    numbers_of,
    of_iteration,
    outcomes_of,
    steps_run,
    tensors,
    torch_rng,
)
from adapters.diffusion.weights import model_folder, read_config, require_diffusers
from adapters.prompts import API_CLASS, Choices, Classes, check_choices
from pe.data.arrays import ImageShape, Int64Array
from pe.data.images import Images
from pe.data.samples import DRAWN, Conditions
from pe.errors import APIError, RecipeError
from pe.plugins.devices import Precision, dtype_on
from pe.plugins.protocols import Answer, RandomRequest, Seeds, VariationRequest
from pe.plugins.specs import plugin
from pe.plugins.weights import SAFETENSORS, fill, read_weights

if TYPE_CHECKING:
    import torch
    from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
    from torch import Tensor, nn

Sampler = Literal["ddim", "ddpm"]
Guidance = Annotated[float, Field(ge=1, allow_inf_nan=False)]

_SHIPPED = {"small": Path(__file__).with_name("small")}
_WEIGHTS = "diffusion_pytorch_model.safetensors"


class PixelModel:
    """A network that sees pixels in [−1, 1], and a DDIM or DDPM scheduler, on one device.

    Args:
        unet: called as `unet(x, t, class_labels=None or int64 (n,))`. The `sample` of its answer is
            n×c×h×w, or n×2c×h×w if the network also learned a variance.
        shape: c, h, w of an image.
        afresh: whether degree 1 is a new image. If false, degree 1 starts from the noised parent as
            any other degree does, and the parent leaves a trace if the schedule's first timestep is
            not pure noise.
    """

    def __init__(
        self,
        unet: nn.Module,
        scheduler: DDIMScheduler | DDPMScheduler,
        shape: ImageShape,
        device: torch.device,
        dtype: torch.dtype,
        classes: int | None = None,
        eta: float = 0.0,
        afresh: bool = True,
    ) -> None:
        self._unet = unet
        self._scheduler = scheduler
        self._shape = shape
        self._device = device
        self._dtype = dtype
        self.classes = classes
        # only DDIM takes eta, and only DDPM can use a variance that the network learned
        self._extra = {"eta": eta} if type(scheduler).__name__ == "DDIMScheduler" else {}
        ddpm = type(scheduler).__name__ == "DDPMScheduler"
        self._learns_variance = ddpm and scheduler.config.variance_type in (
            "learned",
            "learned_range",
        )
        self._afresh = afresh

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Draw new images by running the whole loop from pure noise."""
        return self._denoise(job, items, job.steps, None)

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Noise each image to the degree's start timestep, then run the rest of the loop.

        This is SDEdit.
        """
        assert job.degree is not None
        if job.degree == 1 and self._afresh:
            return self.sample(job, items)
        return self._denoise(
            job,
            items,
            steps_run(job.steps, job.degree),
            self._tensors(items),
        )

    def _denoise(
        self, job: Job, items: Sequence[Item], steps: int, parents: Tensor | None
    ) -> Sequence[Outcome]:
        """Return the images that the last `steps` steps make of the noised parents, or of noise.

        Everything but the network computes in float32.
        """
        labels = self._labels(items)
        generators = [torch_rng(item.seed) for item in items]
        noise = normals(self._shape, generators).to(self._device)
        self._scheduler.set_timesteps(job.steps)
        timesteps = self._scheduler.timesteps[-steps:]
        if parents is None:
            x = noise * self._scheduler.init_noise_sigma
        else:
            x = self._scheduler.add_noise(
                parents,
                noise,
                timesteps[:1].expand(len(items)),
            )
        for t, t_there in zip(timesteps.tolist(), timesteps.to(self._device), strict=True):
            output = self._output(x.to(self._dtype), t_there, labels, job.guidance)
            if not self._learns_variance:
                output = output[:, : self._shape[0]]
            x = self._scheduler.step(output, t, x, generator=generators, **self._extra).prev_sample
        return outcomes_of((x + 1.0).permute(0, 2, 3, 1) / 2)

    def _output(
        self, x: Tensor, t: Tensor, labels: Tensor | None, guidance: float | None
    ) -> Tensor:
        """Return the network's prediction, float32, with classifier-free guidance.

        See Ho & Salimans 2022. Class number `classes` means "no class".
        """
        import torch

        conditional: Tensor = self._unet(x, t, class_labels=labels).sample.float()
        if guidance in (None, 1) or labels is None or self.classes is None:
            return conditional
        none = torch.full_like(labels, self.classes)
        unconditional: Tensor = self._unet(x, t, class_labels=none).sample.float()
        return unconditional + guidance * (conditional - unconditional)

    def _labels(self, items: Sequence[Item]) -> Tensor | None:
        import torch

        if self.classes is None:
            return None
        labels = [item.api_class for item in items]
        for label in labels:
            if label not in range(self.classes):
                raise APIError(
                    f"The model has {self.classes} classes, counted from 0, and {label} is not "
                    "one of them."
                )
        return torch.tensor(labels, device=self._device)

    def _tensors(self, items: Sequence[Item]) -> Tensor:
        """Return the items' images, float32 n×c×h×w in [−1, 1]."""
        images = [item.image for item in items if item.image is not None]
        channels, height, width = self._shape
        for image in images:
            if image.shape != (height, width, channels):
                sides = "×".join(map(str, image.shape))
                raise APIError(
                    f"The model varies images of {height}×{width}×{channels}, not of {sides}."
                )
        return tensors(np.stack(images), self._device)


@dataclass(frozen=True)
class PixelFiles:
    """The files of a model in pixel space, found without loading them.

    A folder in diffusers' format holds config.json and weights in unet/, scheduler_config.json in
    scheduler/ (or all of them at its top), and maybe classes.json: {"classes": [name of class 0,
    …]}. A file NAME.safetensors has NAME.json beside it, with the keys unet, scheduler and classes.
    """

    weights: Path
    unet: dict[str, Any]
    scheduler: dict[str, Any]
    classes: tuple[str, ...]

    @classmethod
    def find(cls, model: str, revision: str | None, offline: bool) -> PixelFiles:
        """Find the files of `small`, a folder, a file or a repository of the hub.

        Raises:
            RecipeError: the files are missing.
        """
        require_diffusers("diffusers")
        place = model_folder(
            str(_SHIPPED.get(model, model)), revision, offline, lambda: _fetch(model, revision)
        )
        weights, settings = _of_file(place) if place.is_file() else _of_folder(place)
        kind = settings["unet"].get("_class_name", "UNet2DModel")
        if kind != "UNet2DModel":
            raise RecipeError(
                f"`model`: '{model}' is a {kind}. This adapter runs only UNet2DModel, in pixel "
                "space."
            )
        classes = tuple(map(str, settings.get("classes", ())))
        return cls(weights, settings["unet"], settings["scheduler"], classes)

    @property
    def shape(self) -> ImageShape:
        """Channels, height and width of the model's images.

        Raises:
            RecipeError: the model's settings do not state them.
        """
        size = self.unet.get("sample_size")
        channels = int(self.unet.get("in_channels", 3))
        sides = [size, size] if isinstance(size, int) else size
        if not isinstance(sides, list | tuple) or len(sides) != 2:
            raise RecipeError(
                f"{self.weights}: the model's settings have no sample_size, so the size of its "
                "images is unknown."
            )
        return channels, int(sides[0]), int(sides[1])

    def class_count(self, with_guidance: bool = False) -> int | None:
        """Return the number of classes, without one that means "no class".

        The last class means "no class" if there is guidance, or if only the last has no name.
        """
        count = self.unet.get("num_class_embeds")
        if count is None:
            return None
        return int(count) - (with_guidance or len(self.classes) == int(count) - 1)

    def network(self) -> UNet2DModel:
        """Return the network on the CPU.

        Raises:
            RecipeError: the weights are missing, damaged, or of another network.
        """
        from diffusers import UNet2DModel

        if not self.weights.is_file():
            raise RecipeError(
                f"{self.weights} is missing. Put the model's weights there, as {SAFETENSORS}."
            )
        network = UNet2DModel.from_config(self.unet)
        fill(network, read_weights(self.weights), self.weights)
        return network

    def load(
        self,
        device: torch.device,
        precision: Precision,
        config: PixelSettings,
        classes: int | None,
        compile: bool = False,  # noqa: A002
    ) -> PixelModel:
        """Return the network on a device, with its sampler."""
        from torch import nn

        network = self.network().eval().requires_grad_(False)
        dtype = dtype_on(device, precision)
        # diffusers' own `to` warns of modules to keep in float32, and names none
        nn.Module.to(network, device, dtype)
        if compile:
            network.compile()
        sampler = self.sampler(config.sampler)
        return PixelModel(
            network,
            sampler,
            self.shape,
            device,
            dtype,
            classes,
            config.eta,
        )

    def sampler(self, kind: Sampler) -> DDIMScheduler | DDPMScheduler:
        """Return a scheduler with the model's own noise schedule."""
        from diffusers import DDIMScheduler, DDPMScheduler

        return (DDIMScheduler if kind == "ddim" else DDPMScheduler).from_config(self.scheduler)


def _of_file(file: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the weights and the settings of a model in one file."""
    settings = read_config(file.with_suffix(".json"))
    for key in ("unet", "scheduler"):
        if not isinstance(settings.get(key), dict):
            raise RecipeError(
                f"{file.with_suffix('.json')} lacks '{key}'. Add the settings of the model's {key}."
            )
    return file, settings


def _of_folder(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the weights and the settings of a model in diffusers' format."""
    inner, schedule = (
        folder / part if (folder / part).is_dir() else folder for part in ("unet", "scheduler")
    )
    names = folder / "classes.json"
    settings = {
        **(read_config(names) if names.is_file() else {}),
        "unet": read_config(inner / "config.json"),
        "scheduler": read_config(schedule / "scheduler_config.json"),
    }
    return inner / _WEIGHTS, settings


def _fetch(model: str, revision: str | None) -> str:
    from huggingface_hub import snapshot_download

    patterns = ["*config.json", "classes.json", _WEIGHTS, f"unet/{_WEIGHTS}"]
    return snapshot_download(model, revision=revision, allow_patterns=patterns)


@plugin
class OfClasses(LocalDiffusion, ABC):
    """RANDOM_API and VARIATION_API of a diffusion model in pixel space, with or without classes."""

    def __post_init__(self) -> None:
        self._engine = Engine(
            self._load,
            device=self.device,
            batch_size=self.batch_size,
        )
        # label → the classes to draw from; None: any class of the model
        self._choices: dict[str, Choices] | None = None

    @abstractmethod
    def _load(self, device: torch.device) -> PixelModel:
        """Load the model on a device."""

    @property
    @abstractmethod
    def _classes(self) -> Classes:
        """The model's classes."""

    @property
    @abstractmethod
    def _shape(self) -> ImageShape:
        """Height, width and channels of the model's images."""

    def _job(self, degree: float | None, iteration: int) -> Job:
        """Return the job for a degree, or for new images (degree None), in an iteration."""
        return Job(of_iteration("steps", self.steps, iteration), degree)

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw new images, each of a class drawn by its seed.

        `DeviceEngine.make` lists more errors.

        Raises:
            RecipeError: the recipe names a class that the model lacks.
        """
        return self._answer(
            self._job(None, 1), request.seeds, [None] * len(request), self._draw(request)
        )

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary each parent by SDEdit under the class it was drawn with.

        A parent without a class gets one that is drawn by its seed.
        """
        classes = request.conditions.get(API_CLASS)
        if classes is None or self._classes.count is None:
            classes = self._draw(request)
        else:
            classes = classes.astype(np.int64)
        drawn = request.conditions.get(DRAWN)  # the parents before they were resized to samples
        parents = parents_of(request.samples if drawn is None else Images(drawn))
        return self._answer(
            self._job(request.degree, request.iteration), request.seeds, parents, classes
        )

    def _draw(self, request: RandomRequest | VariationRequest) -> Int64Array | None:
        """Draw each item's class by its seed, or None if the model has no classes."""
        return self._classes.draw(request.labels, request.seeds, self._choices)

    def _answer(
        self, job: Job, seeds: Seeds, images: Sequence[Pixels | None], classes: Int64Array | None
    ) -> Answer:
        numbers = [None] * len(images) if classes is None else classes.tolist()
        items = [
            Item(job, int(seed), image, api_class=number)
            for seed, image, number in zip(seeds, images, numbers, strict=True)
        ]
        conditions = Conditions() if classes is None else Conditions({API_CLASS: classes})
        return answer_of_outcomes(self._engine.run(items), self._shape, conditions)


@plugin
class PixelSettings:
    """A model in pixel space and its sampler, with the settings of `PixelSpace`."""

    model: str
    sampler: Sampler = "ddim"
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    revision: str | None = None
    offline: bool = False


@plugin
class PixelSpace(PixelSettings, OfClasses):
    """Small diffusion models in pixel space, such as one that you trained on public images.

    The network is diffusers' UNet2DModel. At degree v the parent is noised to the timestep where
    the last ⌊v·steps⌋ of the sampler's steps start, and these steps are run (SDEdit). Degree 0 is
    the parent itself, degree 1 a new sample of the parent's class.

    Conditions, for a model with classes: `api_class`, drawn by each sample's seed; variations
    inherit it.

    Args:
        model: `small`, which ships with the project; a folder in diffusers' format; a .safetensors
            file with its settings in a .json file of the same name; or a repository of the Hugging
            Face hub. A relative path starts at the current folder.
        sampler: ddim or ddpm, on the model's own noise schedule.
        eta: randomness of ddim: 0 is deterministic given the first noise, 1 as random as ddpm.
        classes: label → the model's class, by name or number, or several to draw from. None: any
            class may be drawn for any label.
        guidance: scale of classifier-free guidance, for a model whose training sometimes left the
            class out. Its last class then means "no class". 1: no guidance. Or a list, as in
            `steps`.
        revision: commit, tag or branch of a repository. None: the newest.

    Raises:
        RecipeError: a setting is out of range.
    """

    info = replace(LocalDiffusion.info, schedules=("steps", "guidance"))
    starter = """\
  model: small\t# handwritten digits; or a folder in diffusers' format, OWNER/NAME of the hub, a .safetensors file
  # classes: {{LABEL: CLASS}}\t# the model's class for each label; without it any class is drawn for any label
  steps: 50
  # guidance: 3\t# of a model with a class that stands for none
"""  # noqa: E501

    classes: dict[str | int, Choices] | None = None
    guidance: Guidance | list[Guidance] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            self._choices = {str(label): each for label, each in self.classes.items()}
        self.info = replace(self.info, by_label=self.classes is not None)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if `classes` has no entry for a label."""
        check_choices(labels, self._choices)

    def _job(self, degree: float | None, iteration: int) -> Job:
        guidance = of_iteration("guidance", self.guidance, iteration)
        return replace(super()._job(degree, iteration), guidance=guidance)

    @property
    def _shape(self) -> ImageShape:
        channels, height, width = self._files.shape
        return height, width, channels

    @cached_property
    def _files(self) -> PixelFiles:
        return PixelFiles.find(self.model, self.revision, self.offline)

    def _load(self, device: torch.device) -> PixelModel:
        return self._files.load(
            device,
            self.precision,
            self,
            self._classes.count,
            self.compile,
        )

    @cached_property
    def _classes(self) -> Classes:
        guidance = next((number for number in numbers_of(self.guidance) if number != 1), None)
        count = self._files.class_count(with_guidance=guidance is not None)
        if count is None and guidance is not None:
            raise RecipeError(
                f"`guidance` is {guidance:g}, but the model '{self.model}' has no classes. "
                "Remove `guidance`."
            )
        return Classes(self.model, count, self._files.classes)

"""Pixel-space diffusion models as generators: sampling is RANDOM_API, SDEdit is VARIATION_API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from adapters.classes import API_CLASS, Choices, Classes, check_choices
from adapters.diffusion.engine import Engine
from adapters.diffusion.items import Item, Job, numbers_of, of_iteration
from adapters.diffusion.local import LocalDiffusion, answer_of, parents_of
from adapters.diffusion.pixel_files import PixelFiles, Sampler
from adapters.diffusion.pixel_model import PixelModel
from pe.data.conditions import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest, Seeds, VariationRequest

if TYPE_CHECKING:
    import torch


@dataclass(kw_only=True, eq=False, repr=False)
class PixelSpace(LocalDiffusion):
    """RANDOM_API and VARIATION_API by a diffusion model in pixel space (diffusers' UNet2DModel).

    A degree v noises the parent to the timestep from which the last ⌊v·steps⌋ of the sampler's steps start, and
    runs them (SDEdit). Degree 0 is the parent itself, degree 1 a new sample of the parent's class.

    Conditions, for a model with classes: `api_class`, drawn by each sample's seed and carried on.

    Args:
        model: `small`, which ships with the project; a folder in diffusers' format; a .safetensors file with its
            settings in a .json file of the same name; or a repository of the Hugging Face hub. A relative path is taken
            from the current folder.
        sampler: ddim or ddpm, on the model's own noise schedule.
        eta: of ddim: 0 is deterministic given the first noise, 1 as random as ddpm.
        classes: label → the model's class, by name or number, or several to draw from; without it any class may
            be drawn for any label.
        guidance: classifier-free guidance scale, for a model that was trained without its classes now and then; what
            stands for "no class" is the last of its classes. 1: none. Or a list, as `steps`.
        revision: of a repository.

    Raises:
        RecipeError: a setting is out of range.
    """

    info = replace(LocalDiffusion.info, schedules=("steps", "guidance"))
    starter = """\
  model: small\t# handwritten digits; or a folder in diffusers' format, OWNER/NAME of the hub, a .safetensors file
  # classes: {{LABEL: CLASS}}\t# the model's class for each label; without it any class is drawn for any label
  steps: 50
  # guidance: 3\t# of a model with a class that stands for none
"""

    model: str
    sampler: Sampler = "ddim"
    eta: float = 0.0
    classes: dict[str | int, Choices] | None = None
    guidance: float | list[float] = 1.0
    revision: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler not in get_args(Sampler):
            raise RecipeError(f"sampler is '{self.sampler}': it must be one of {', '.join(get_args(Sampler))}.")
        if not 0 <= self.eta <= 1:
            raise RecipeError(f"eta is {self.eta}: it must lie in [0, 1].")
        if wrong := [number for number in numbers_of(self.guidance) if not 1 <= number < inf]:
            raise RecipeError(f"guidance is {wrong[0]}: it must be at least 1, which is none.")
        self._of_label = None if self.classes is None else {str(label): named for label, named in self.classes.items()}
        self.info = replace(self.info, by_label=self._of_label is not None)
        self._engine = Engine(self._load, device=self.device, batch_size=self.batch_size)
        self._found: PixelFiles | None = None
        self._finding = Lock()

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if `classes` is given and names none for a label."""
        check_choices(labels, self._of_label)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images, each of a class drawn by its seed.

        Raises:
            RecipeError: the weights or the device are not there, or `classes` names what the model has not.
            APIError: the device has not enough memory for one image.
        """
        classes = self._drawn(request.labels, request.seeds)
        job = self._job(None, 1)
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
        job = self._job(request.degree, request.iteration)
        items = [
            Item(job, int(seed), image, api_class=None if classes is None else int(classes[i]))
            for i, (seed, image) in enumerate(zip(request.seeds, parents_of(request.samples), strict=True))
        ]
        return self._answer(items, classes)

    def _job(self, degree: float | None, iteration: int) -> Job:
        steps = of_iteration("steps", self.steps, iteration)
        return Job(steps, degree, of_iteration("guidance", self.guidance, iteration))

    def _answer(self, items: Sequence[Item], classes: npt.NDArray[np.int64] | None) -> Answer:
        conditions = Conditions() if classes is None else Conditions({API_CLASS: classes})
        channels, height, width = self._files().shape
        return answer_of(self._engine.run(items), (height, width, channels), conditions)

    def _drawn(self, labels: Sequence[str], seeds: Seeds) -> npt.NDArray[np.int64] | None:
        """The class of each item, int64 (n,): drawn by its seed from those of its label; None: there are none."""
        files = self._files()
        return Classes(self.model, self._class_count(files), files.classes).draw(labels, seeds, self._of_label)

    def _carried(self, request: VariationRequest) -> npt.NDArray[np.int64] | None:
        """The parents' classes; drawn for parents that carry none, because they come from elsewhere."""
        if API_CLASS in request.conditions and self._class_count(self._files()) is not None:
            return request.conditions[API_CLASS].astype(np.int64)
        return self._drawn(request.labels, request.seeds)

    def _files(self) -> PixelFiles:
        with self._finding:
            if self._found is None:
                self._found = PixelFiles.find(self.model, self.revision, self.offline)
            return self._found

    def _load(self, device: torch.device) -> PixelModel:
        files = self._files()
        return files.load(
            device,
            self.precision,
            sampler=self.sampler,
            eta=self.eta,
            classes=self._class_count(files),
            compile=self.compile,
        )

    def _class_count(self, files: PixelFiles) -> int | None:
        guided = [number for number in numbers_of(self.guidance) if number != 1]
        count = files.class_count(guided=bool(guided))
        if count is None and guided:
            raise RecipeError(f"guidance is {guided[0]:g}, but the model '{self.model}' has no classes: leave it out.")
        return count

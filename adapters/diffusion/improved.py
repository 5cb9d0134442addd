"""Improved-diffusion checkpoints as generators: what the paper's CIFAR-10 and Camelyon17 results were made with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from adapters.classes import API_CLASS
from adapters.diffusion.device import dtype_of
from adapters.diffusion.engine import Engine
from adapters.diffusion.improved_schedule import TRAINED, CosineDDIM, Spacing, respaced
from adapters.diffusion.items import Item, Job, numbers_of, of_iteration
from adapters.diffusion.local import LocalDiffusion, answer_of, as_drawn, parents_of, reduced
from adapters.diffusion.pixel_model import PixelModel
from pe.data.conditions import Conditions
from pe.errors import RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.protocols import Answer, RandomRequest, Seeds, VariationRequest
from pe.plugins.weights import SAFETENSORS, Published, find_published, read_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Classes = npt.NDArray[np.int64]


_PLACE = "https://openaipublic.blob.core.windows.net/diffusion/march-2021/"


@dataclass(frozen=True)
class Trained:
    """What is to be known of a checkpoint of the paper's.

    Attributes:
        classes: of the API; None: unconditional.
        rescaled: whether the network was told times from 0 to 1,000 instead of its 4,000 timesteps.
    """

    classes: int | None
    rescaled: bool


PUBLISHED = {
    "imagenet64_cond_270M_250K": Trained(1000, rescaled=False),
    "imagenet64_uncond_100M_1500K": Trained(None, rescaled=True),
}


def find_checkpoint(model: str, offline: bool) -> Path:
    """A file, or a published checkpoint in torch.hub's folder of checkpoints, fetched into it unless `offline`.

    Raises:
        RecipeError: it is not there, or cannot be fetched.
        MissingDependency: torch is not installed.
    """
    if model not in PUBLISHED:
        file = Path(model).expanduser()
        if file.is_file():
            return file
        known = ", ".join(PUBLISHED)
        raise RecipeError(f"model: there is no file '{model}'; put the checkpoint there, or name one of {known}.")
    require_torch("diffusion", "A local diffusion model")
    name = f"{model}.pt"
    return find_published(Published(name, _PLACE + name, None, (f"{model}{SAFETENSORS}",), "model"), offline)


@dataclass(kw_only=True, eq=False, repr=False)
class ImprovedDiffusion(LocalDiffusion):
    """RANDOM_API and VARIATION_API by a network of "Improved Denoising Diffusion Probabilistic Models".

    Images are drawn at 64×64×3 (or `size`). A degree v noises the parent to the timestep from which the last ⌊v·steps⌋
    of the DDIM steps start, and runs them: the paper's "timestep 98 of 100" is degree 0.98. Degree 0 is the parent
    itself. Degree 1 noises the parent to the first of the steps, too: with spacing `ends` nothing is left of it but
    its class; with `stride` a trace is, by which the paper's Camelyon17 run is led at its "timestep 10 of 10".

    Conditions, for a network with classes: `api_class`, int64, drawn by each sample's seed and carried on. With an
    `image_size` of one's own: `drawn`, each sample as it was drawn, which is what is varied.

    Args:
        model: imagenet64_cond_270M_250K, imagenet64_uncond_100M_1500K, or a checkpoint's file (.pt, .safetensors)
            of a network trained with 4,000 timesteps on the cosine schedule, from the current folder.
        steps: of DDIM, 2 … 4,000; or a list with one number for each iteration, of which new samples take the first.
        spacing: of the steps over the 4,000 timesteps: `ends`, both ends among them (the paper's CIFAR-10), or
            `stride`, a whole number apart (its Camelyon17).
        rescaled: whether the network was trained with `rescale_timesteps`; None: as published, for a file of a
            published name, else not.
        size: height and width in pixels that the network was trained on.
        image_size: height and width of the samples, pixels, to which what the network draws is resized (bicubic), for
            the embedding and for the result alike: the private images' size, where it is another; None: `size`.

    Raises:
        RecipeError: a setting is out of range.
    """

    model: str = "imagenet64_cond_270M_250K"
    steps: int | list[int] = 100
    spacing: Spacing = "ends"
    rescaled: bool | None = None
    size: int = 64
    image_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        made = self.size if self.image_size is None else self.image_size
        for name, value in (("size", self.size), ("image_size", made)):
            if value < 1:
                raise RecipeError(f"{name} is {value}: it must be at least 1.")
        drawn = (self.size, self.size)
        self._made = made
        self.info = replace(self.info, shape=(made, made, 3), drawn=drawn, kept=None if made == self.size else drawn)
        if self.spacing not in get_args(Spacing):
            raise RecipeError(f"spacing is '{self.spacing}': it must be one of {', '.join(get_args(Spacing))}.")
        for steps in numbers_of(self.steps):
            if not 2 <= steps <= TRAINED:
                raise RecipeError(f"steps is {steps}: it must lie from 2 to {TRAINED}.")
            respaced(TRAINED, steps, self.spacing)  # refused now, not at the first sample
        self._engine = Engine(self._load, device=self.device, batch_size=self.batch_size)
        published = PUBLISHED.get(Path(self.model).stem)
        self._rescaled = published is not None and published.rescaled if self.rescaled is None else self.rescaled
        self._known = self.model in PUBLISHED
        self._count = PUBLISHED[self.model].classes if self._known else None
        self._asking = Lock()

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        if degree == 1:
            return f"noised and denoised, all {of_iteration('steps', self.steps, iteration)} steps"
        return super().describe_degree(degree, iteration)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images, each of a class drawn by its seed.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the device has not enough memory for one image.
        """
        classes = self._drawn(request.seeds)
        job = Job(of_iteration("steps", self.steps, 1))
        return self._answer(classes, [Item(job, int(seed)) for seed in request.seeds])

    def variation_api(self, request: VariationRequest) -> Answer:
        """SDEdit of each parent, as of its own class.

        Raises:
            RecipeError: see `random_api`.
            APIError: the parents are no images, or the device has not enough memory for one.
        """
        classes = self._drawn(request.seeds)
        if classes is not None and API_CLASS in request.conditions:
            classes = request.conditions[API_CLASS].astype(np.int64)
        job = Job(of_iteration("steps", self.steps, request.iteration), request.degree)
        parents = zip(request.seeds, parents_of(as_drawn(request)), strict=True)
        return self._answer(classes, [Item(job, int(seed), image) for seed, image in parents])

    def _answer(self, classes: Classes | None, items: Sequence[Item]) -> Answer:
        """The engine's answer to the items, each of its class."""
        if classes is not None:
            items = [
                Item(item.job, item.seed, item.image, api_class=int(one))
                for item, one in zip(items, classes, strict=True)
            ]
        conditions = Conditions() if classes is None else Conditions({API_CLASS: classes})
        answer = answer_of(self._engine.run(items), (self.size, self.size, 3), conditions)
        return answer if self._made == self.size else reduced(answer, self._made)

    def _drawn(self, seeds: Seeds) -> Classes | None:
        """A class for each item, int64 (n,), drawn uniformly by its seed; None: the network has none."""
        count = self._classes()
        return None if count is None else ((seeds >> np.uint64(16)) % np.uint64(count)).astype(np.int64)

    def _classes(self) -> int | None:
        """How many classes the network has; of a file of one's own its weights tell."""
        with self._asking:
            if not self._known:
                from adapters.diffusion.improved_unet import shape_of

                self._count = shape_of(read_weights(find_checkpoint(self.model, self.offline))).classes
                self._known = True
            return self._count

    def _load(self, device: torch.device) -> PixelModel:
        from adapters.diffusion.improved_unet import ImprovedUNet, shape_of

        file, dtype = find_checkpoint(self.model, self.offline), dtype_of(self.precision)
        tensors = read_weights(file)
        shape = shape_of(tensors)
        coarsest = 2 ** (len(shape.multipliers) - 1)
        if self.size % coarsest:
            raise RecipeError(f"size is {self.size}: {file.name} works on images of a multiple of {coarsest} pixels.")
        network = ImprovedUNet(shape)
        try:
            network.load_state_dict(tensors)
        except RuntimeError as error:
            first = str(error).strip().splitlines()[1:2] or [str(error)]
            raise RecipeError(f"{file} holds weights of another network: {first[0].strip()[:160]}") from error
        network.eval().requires_grad_(False).to(device, dtype)
        if self.compile:
            network.compile()
        scale = 1000 / TRAINED if self._rescaled else 1.0

        def predicted(x: Tensor, time: Tensor, class_labels: Tensor | None) -> SimpleNamespace:
            return SimpleNamespace(sample=network(x, (time.float() * scale).expand(len(x)), class_labels))

        called: Any = predicted  # as diffusers' networks are called
        scheduler: Any = CosineDDIM(self.spacing)
        return PixelModel(called, scheduler, (3, self.size, self.size), device, dtype, shape.classes, afresh=False)

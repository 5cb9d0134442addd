"""Improved-diffusion checkpoints as generators: what the paper's CIFAR-10 and Camelyon17 results were made with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import numpy.typing as npt

from adapters.classes import API_CLASS
from adapters.diffusion.engine import Engine
from adapters.diffusion.improved_files import ImprovedFiles
from adapters.diffusion.improved_schedule import Spacing, check_steps
from adapters.diffusion.items import Item, Job, numbers_of, of_iteration
from adapters.diffusion.local import LocalDiffusion, answer_of, as_drawn, parents_of, reduced
from pe.data.conditions import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest, Seeds, VariationRequest

Classes = npt.NDArray[np.int64]


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
        self._files = ImprovedFiles(
            model=self.model, spacing=self.spacing, rescaled=self.rescaled, size=self.size, offline=self.offline
        )
        drawn = (self.size, self.size)
        made = self._made = self.size if self.image_size is None else self.image_size
        if made < 1:
            raise RecipeError(f"image_size is {made}: it must be at least 1.")
        self.info = replace(self.info, shape=(made, made, 3), drawn=drawn, kept=None if made == self.size else drawn)
        for steps in numbers_of(self.steps):
            check_steps(steps, self.spacing)  # refused now, not at the first sample
        load = self._files.load
        self._engine = Engine(
            lambda device: load(device, self.precision, self.compile), device=self.device, batch_size=self.batch_size
        )
        self._count: list[int | None] = []
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
        """How many classes the network has, looked up once."""
        with self._asking:
            if not self._count:
                self._count.append(self._files.class_count())
            return self._count[0]

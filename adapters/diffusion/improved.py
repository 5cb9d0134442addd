"""The cosine schedule of improved diffusion, respaced, and DDIM on it (Nichol & Dhariwal 2021; Song et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from adapters.diffusion.device import Precision, dtype_on
from adapters.diffusion.engine import Engine, LocalDiffusion, answer_of, as_drawn, parents_of, reduced
from adapters.diffusion.items import Item, Job, numbers_of, of_iteration
from adapters.diffusion.pixel import PixelModel
from adapters.prompts import API_CLASS
from pe.data.samples import Conditions
from pe.errors import APIError, RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.protocols import Answer, RandomRequest, Seeds, VariationRequest
from pe.plugins.weights import SAFETENSORS, Published, find_published, read_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor


TRAINED = 4000
"""Timesteps of the published networks."""


@dataclass(frozen=True)
class Stepped:
    """What a step gives, named as diffusers' schedulers name it.

    Attributes:
        prev_sample: the image one step less noised.
    """

    prev_sample: Tensor


Spacing = Literal["ends", "stride"]


class CosineDDIM:
    """Deterministic DDIM on `steps` of the trained timesteps.

    Args:
        spacing: see `respaced`.

    Attributes:
        init_noise_sigma: standard deviation of the noise that sampling starts from.
        timesteps: int64 (steps,), from the noisiest down to 0.
        kept: ᾱ, float64 (TRAINED,): how much of the image's variance is left at each trained timestep.
    """

    init_noise_sigma = 1.0
    timesteps: Tensor

    def __init__(self, spacing: Spacing = "ends") -> None:
        self._spacing = spacing
        self.kept = cosine(TRAINED)
        self._next: dict[int, int | None] = {}

    def set_timesteps(self, steps: int) -> None:
        """Take `steps` of the timesteps.

        Raises:
            APIError: there are no so many.
        """
        import torch

        try:
            check_steps(steps, self._spacing)
        except RecipeError as error:
            raise APIError(str(error)) from error
        chosen = respaced(TRAINED, steps, self._spacing)
        self.timesteps = torch.tensor(chosen[::-1])
        self._next = dict(zip(chosen, [None, *chosen[:-1]], strict=True))

    def add_noise(self, images: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """√ᾱ·image + √(1−ᾱ)·noise, each image at its timestep."""
        kept = images.new_tensor(self.kept[timesteps.numpy()])[:, None, None, None]
        return kept.sqrt() * images + (1 - kept).sqrt() * noise

    def step(
        self, output: Tensor, timestep: int, x: Tensor, generator: Sequence[torch.Generator] | None = None
    ) -> Stepped:
        """One step less noise: the predicted image, cut to [−1, 1], with as much noise as the next timestep has.

        Args:
            output: ε, n×c×h×w: the network's first channels.
            timestep: of `timesteps`.
            x: the noised images at this timestep.
            generator: not used: nothing is drawn.
        """
        now, after = self.kept[timestep], self._next[timestep]
        then = 1.0 if after is None else self.kept[after]
        image = ((x - math.sqrt(1 - now) * output) / math.sqrt(now)).clamp(-1, 1)
        noise = (x - math.sqrt(now) * image) / math.sqrt(1 - now)  # that of the image as it was cut
        return Stepped(math.sqrt(then) * image + math.sqrt(1 - then) * noise)


def cosine(steps: int) -> npt.NDArray[np.float64]:
    """ᾱ = Π(1 − β) after each of T = `steps` timesteps, float64.

    β_t = 1 − f(t+1)/f(t), at most 0.999, with f(t) = cos²(π/2·(t/T + 0.008)/1.008).
    """
    times = (np.arange(steps + 1) / steps + 0.008) / 1.008
    left = np.cos(times * np.pi / 2) ** 2
    kept: npt.NDArray[np.float64] = np.cumprod(1 - np.minimum(1 - left[1:] / left[:-1], 0.999))
    return kept


def check_steps(steps: int, spacing: Spacing) -> None:
    """Raise RecipeError if the trained timesteps cannot be cut into so many steps."""
    if not 2 <= steps <= TRAINED:
        raise RecipeError(f"steps is {steps}: it must lie from 2 to {TRAINED}.")
    respaced(TRAINED, steps, spacing)


def respaced(trained: int, steps: int, spacing: Spacing) -> list[int]:
    """`steps` of the timesteps 0 … trained−1, 2 ≤ `steps` ≤ `trained`, ascending and evenly spaced from 0 on.

    `ends`: up to the last one, which is pure noise (`timestep_respacing` N of the published code). `stride`: the
    smallest whole number apart (its `ddimN`), so that the largest timestep is below the last one: of 10 steps 3,600
    of 4,000, where the noised image still holds 2.4 % of the image's variance.

    Raises:
        RecipeError: no whole stride gives so many steps.
    """
    if spacing == "ends":
        apart = (trained - 1) / (steps - 1)
        return [round(place) for place in accumulate(repeat(apart, steps - 1), initial=0.0)]  # summed, as published
    stride = -(-trained // steps)
    if len(range(0, trained, stride)) != steps:
        raise RecipeError(
            f"steps is {steps} and spacing is stride, but no whole stride cuts {trained:,} timesteps into {steps}: "
            f"take {len(range(0, trained, stride))} steps, or spacing: ends."
        )
    return list(range(0, trained, stride))


# An improved-diffusion checkpoint: found, looked at, and loaded onto a device.


_PLACE = "https://openaipublic.blob.core.windows.net/diffusion/march-2021/"
TORCH = ".pt"


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


@dataclass(frozen=True, kw_only=True)
class ImprovedFiles:
    """A checkpoint, and how its network was trained.

    Attributes:
        model: a published name, or a checkpoint's file.
        spacing: of the steps over the trained timesteps.
        rescaled: whether the network was told rescaled times; None: as published, for a file of a published name, else
            not.
        size: height and width in pixels.
        offline: fetch nothing.

    Raises:
        RecipeError: a value is out of range.
    """

    model: str
    spacing: Spacing = "ends"
    rescaled: bool | None = None
    size: int = 64
    offline: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RecipeError(f"size is {self.size}: it must be at least 1.")
        if self.spacing not in get_args(Spacing):
            raise RecipeError(f"spacing is '{self.spacing}': it must be one of {', '.join(get_args(Spacing))}.")

    @property
    def is_rescaled(self) -> bool:
        """Whether the network is told rescaled times."""
        published = PUBLISHED.get(Path(self.model).stem)
        return published is not None and published.rescaled if self.rescaled is None else self.rescaled

    def find(self) -> Path:
        """A file, or a published checkpoint in torch.hub's folder of checkpoints, fetched into it unless `offline`.

        Raises:
            RecipeError: it is not there, or cannot be fetched.
            MissingDependency: torch is not installed.
        """
        if self.model not in PUBLISHED:
            file = Path(self.model).expanduser()
            if file.is_file():
                return file
            known = ", ".join(PUBLISHED)
            raise RecipeError(
                f"model: there is no file '{self.model}'; put the checkpoint there, or name one of {known}."
            )
        require_torch("diffusion", "A local diffusion model")
        name = f"{self.model}{TORCH}"
        published = Published(name, _PLACE + name, None, (f"{self.model}{SAFETENSORS}",), "model")
        return find_published(published, self.offline)

    def class_count(self) -> int | None:
        """How many classes the network has; of a file of one's own its weights tell. None: it takes none."""
        from adapters.diffusion.improved_unet import shape_of

        if self.model in PUBLISHED:
            return PUBLISHED[self.model].classes
        return shape_of(read_weights(self.find())).classes

    def load(self, device: torch.device, precision: Precision, compile: bool = False) -> PixelModel:  # noqa: A002
        """The network and DDIM on the cosine schedule.

        Raises:
            RecipeError: the weights are not there, or of another network; or the size does not suit them.
        """
        from adapters.diffusion.improved_unet import ImprovedUNet, shape_of

        file, dtype = self.find(), dtype_on(device, precision)
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
        if compile:
            network.compile()
        scale = 1000 / TRAINED if self.is_rescaled else 1.0

        def predicted(x: Tensor, time: Tensor, class_labels: Tensor | None) -> SimpleNamespace:
            return SimpleNamespace(sample=network(x, (time.float() * scale).expand(len(x)), class_labels))

        called: Any = predicted  # as diffusers' networks are called
        scheduler: Any = CosineDDIM(self.spacing)
        return PixelModel(called, scheduler, (3, self.size, self.size), device, dtype, shape.classes, afresh=False)


def is_improved(model: str) -> bool:
    """Whether this names a checkpoint of that kind: by its published name, its ending, or its tensors' names."""
    from safetensors import SafetensorError, safe_open

    file = Path(model).expanduser()
    if model in PUBLISHED or (file.suffix == TORCH and file.is_file()):
        return True
    if file.suffix != SAFETENSORS or not file.is_file():
        return False
    try:
        with safe_open(file, framework="np") as opened:
            return any(name.removeprefix("module.") == "time_embed.0.weight" for name in opened.keys())  # noqa: SIM118
    except SafetensorError:
        return False


# Improved-diffusion checkpoints as generators: what the paper's CIFAR-10 and Camelyon17 results were made with.


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

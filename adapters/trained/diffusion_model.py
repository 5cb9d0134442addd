"""A diffusion model in pixel space that answers once it is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from adapters.diffusion.items import describe_steps
from adapters.trained.fit import FittedMethod, label_numbers, load_json, not_fitted, reading
from adapters.trained.trainings import ByDPSGD
from pe.data.arrays import Float64Array, UInt8Array
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    GenerationAPI,
    PluginInfo,
    RandomRequest,
    VariationRequest,
)
from pe.plugins.settings import Count, Settings
from pe.plugins.specs import construct, plugin

if TYPE_CHECKING:
    pass


class Sampling(Settings):
    """Sampling of the fitted model. See `pixel_diffusion`.

    Attributes:
        steps: number of denoising steps from pure noise to an image, at most 1,000 (the noise
            schedule's timesteps).
        sampler: ddim or ddpm.
        eta: randomness of ddim: with 0 the first noise determines the image, with 1 it is as random
            as ddpm.
        chunk: most images in one request.
    """

    steps: Annotated[int, Field(ge=1, le=1000)] = 25
    sampler: Literal["ddim", "ddpm"] = "ddim"
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    chunk: Count = 1024


@plugin
class FittedDiffusion(ByDPSGD, FittedMethod):
    """A class-conditional diffusion model in pixel space, fitted by DP-SGD.

    Its classes are the private labels. RANDOM_API samples the class of each label; VARIATION_API
    noises the parent and denoises it again (SDEdit), as `pixel_diffusion` does. Both use the moving
    average of the weights.

    Args:
        sampling: of images from the fitted model.
        batch_size: images per forward pass of sampling; None: found by trying.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("device", "batch_size", "training.micro_batch"),
        by_label=True,
    )
    sampling: Sampling = Sampling()
    batch_size: Count | None = None

    def __post_init__(self) -> None:
        self._model: GenerationAPI | None = None
        self._labels: tuple[str, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        """Any mix of labels in a request.

        Two requests at once, of which the second waits for the first.
        """
        return Capabilities(self.sampling.chunk, 2)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(self.sampling.steps, degree)

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raise RecipeError if there is none, or it is damaged.
        """
        self.load_guided(folder, 1.0)

    def load_guided(self, folder: Path, guidance: float) -> None:
        """Do what `load` does, with a scale of classifier-free guidance."""
        labels = labels_of(folder)
        self._labels = tuple(dict.fromkeys(labels))
        settings = {
            **self.sampling.model_dump(),
            "model": str(folder),
            # A label may have had several classes.
            "classes": {
                label: [i for i, own in enumerate(labels) if own == label] for label in self._labels
            },
            "guidance": guidance,
            "device": self.device,
            "batch_size": self.batch_size,
            "offline": True,
        }
        self._model = construct("pe.adapters", "pixel_diffusion", settings)

    def random_api(self, request: RandomRequest) -> Answer:
        """Sample new images of each label's class."""
        return self._answering(request.labels).random_api(request)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Noise each parent and denoise it again (SDEdit)."""
        return self._answering(request.labels).variation_api(request)

    def record_losses(
        self, folder: Path, samples: UInt8Array, labels: Sequence[str]
    ) -> Float64Array:
        """Return the denoising loss of each image, float64 (n,).

        It is averaged over fixed, public noise and timesteps.
        """
        from adapters.trained.diffusion_networks import mean_losses, stored

        device = self.places()[0]
        return mean_losses(*stored(folder), samples, labels, labels_of(folder), device)

    def _answering(self, labels: Sequence[str]) -> GenerationAPI:
        if self._model is None:
            raise not_fitted()
        label_numbers(labels, self._labels)
        return self._model


def labels_of(folder: Path) -> list[str]:
    """Return the label of each class of the model in `folder`.

    Raise RecipeError if there is none.
    """
    with reading(folder, "fitted diffusion model"):
        return list(map(str, load_json(folder / "classes.json")["labels"]))

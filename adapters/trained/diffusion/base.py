"""What the fitted diffusion models share: the plan, the fit, and the answers of the fitted model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from adapters.diffusion.device import check_arithmetic, choose_devices
from adapters.diffusion.items import describe_steps
from adapters.trained.blocks import TRAINING, blocks_of, settled, train_blocks, training_device, training_devices
from adapters.trained.diffusion.files import Sampling, open_model, write_model
from adapters.trained.diffusion.levels import Network, levels
from adapters.trained.dp_sgd.hyperparameters import FineTuning
from adapters.trained.labels import check_labels
from pe.errors import APIError, RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.protocols import Answer, Capabilities, GenerationAPI, PluginInfo, RandomRequest, VariationRequest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from diffusers import UNet2DModel

    from adapters.trained.dp_sgd.hyperparameters import DPSGD
    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords
    from pe.privacy.release import Release

_MACHINE = ("device", "batch_size", "training.micro_batch", "training.processes")


@dataclass(kw_only=True, eq=False, repr=False)
class AnsweringDiffusion:
    """A class-conditional diffusion model in pixel space, fine-tuned on the private records by DP-SGD.

    Its classes are the private labels. RANDOM_API samples the class of each label; VARIATION_API noises the parent and
    denoises it again (SDEdit), as `pixel_diffusion` does; it is the moving average of the weights that answers.

    Args:
        training: on the private records.
        sampling: of the fitted model.
        device: auto, cpu, cuda, cuda:1, or a list of cards; it is trained on the first of them, or on as many as
            `training.processes` says.
        batch_size: images per forward pass of sampling; None: found by trying.
    """

    info = PluginInfo(hosts=(), machine_settings=_MACHINE, by_label=True)
    _guidance = 1.0

    training: FineTuning = FineTuning()
    sampling: Sampling = Sampling()
    device: str | list[str] = "auto"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_arithmetic(self.device, "fp32")
        if self.batch_size is not None and self.batch_size < 1:
            raise RecipeError(f"batch_size is {self.batch_size}: it must be at least 1.")
        self._model: GenerationAPI | None = None
        self._labels: frozenset[str] = frozenset()

    @property
    def capabilities(self) -> Capabilities:
        """Any labels in a request; a second request waits while one is made."""
        return Capabilities(self.sampling.chunk, 2, "nothing", "exact")

    def check_machine(self) -> None:
        """Raise RecipeError if the device is not there."""
        choose_devices(self.device)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(self.sampling.steps, degree)

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raises:
            RecipeError: there is none, or it is damaged.
        """
        require_torch("trained", "Fitting a generator")
        self._model, labels = open_model(folder, self.sampling, self.device, self.batch_size, self._guidance)
        self._labels = frozenset(labels)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images of each label's class.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, or the device has not enough memory for one image.
        """
        return self._answering(request.labels).random_api(request)

    def variation_api(self, request: VariationRequest) -> Answer:
        """SDEdit of each parent.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, the parents are no images, or memory does not suffice for one.
        """
        return self._answering(request.labels).variation_api(request)

    def _place(self) -> torch.device:
        return training_device(self.device)

    def _places(self, training: FineTuning) -> list[torch.device]:
        """Of each process of a training."""
        return training_devices(self.device, training)

    def _answering(self, labels: Sequence[str]) -> GenerationAPI:
        if self._model is None:
            raise APIError("The diffusion model answers once it is fitted: `pe run` does that first.")
        check_labels(labels, self._labels)
        return self._model


@dataclass(kw_only=True, eq=False, repr=False)
class FittedDiffusion(AnsweringDiffusion):
    """One whose network is the toolkit's own; all else, the other arguments too, is as in `AnsweringDiffusion`.

    Args:
        network: its size.
    """

    network: Network = Network()

    def record_losses(
        self, folder: Path, samples: npt.NDArray[np.uint8], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """The denoising loss of each image, float64 (n,), averaged over noise and timesteps that are fixed and public.

        Raises:
            RecipeError: there is no model in `folder`, or it was fitted for other labels.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.diffusion.record_loss import record_losses

        return record_losses(folder, samples, labels, self._place())

    def _new(self, terms: FitTerms, classes: int) -> UNet2DModel:
        """A network that was never trained."""
        from adapters.trained.diffusion.network import unet

        return unet(self.network, terms.image_shape, classes, terms.seed, "weights")


class FineTuned(FittedDiffusion):
    """A network that is fine-tuned by DP-SGD; all else, the arguments too, is as in `FittedDiffusion`.

    A kind differs from the others in what its network is before the first private step (`_begun`), in what else it
    releases (`_others`), and in which of its parameters are trained (`_frozen`).
    """

    _frozen: ClassVar[bool] = False
    """Whether some parameters are not trained, so that they are in no release."""

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """What else it releases, then each block of DP-SGD steps; all calibrated together to the budget.

        Raises:
            RecipeError: a setting is out of range, the images are too small, or the public set does not serve.
            PrivacyError: the budget is too small for one useful step, or the unit is larger than a record.
        """
        height, width, _ = terms.image_shape
        levels(self.network, height, width)
        self._check(terms)
        return [*self._others(terms), *blocks_of(self._settled(terms), terms)]

    def fit(self, fitting: Fitting) -> None:
        """Begin on public images, then go on, block by block, on the private ones.

        Guarantee: the planned releases'; all else is post-processing of them, or public. The private records are read
        only while a block is drawn. When a fit goes on that was broken off, what public training had made is taken
        up again; where the first block was released, it holds all that came before it.

        Raises:
            Interrupted: it was told to stop.
            RecipeError: memory does not suffice.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.diffusion.loss import Velocity
        from adapters.trained.dp_sgd.training import Training

        terms, private = fitting.terms, cache(fitting.private)
        settings, devices = self._settled(terms), self._places(self.training)
        blocks = blocks_of(settings, terms)
        if self._frozen or not fitting.ledger.drawn(blocks[0]):
            model = self._begun(fitting, private)
        else:
            model = self._new(terms, len(terms.classes))
        training = Training(self._prepared(model), Velocity(), settings, *devices)
        state = train_blocks(training, blocks, fitting, private)
        write_model(training.load(state), terms.classes, fitting.folder)

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A step of each part, on random images.

        Raises:
            RecipeError: a setting is out of range, or memory does not suffice.
            PrivacyError: the budget is too small.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.diffusion.loss import Velocity
        from adapters.trained.dp_sgd.forecast import dry_run

        settings = self._settled(terms)
        model = self._prepared(self._new(terms, len(terms.classes)))
        device = self._places(self.training)[0]
        private = dry_run(model, Velocity(), terms.image_shape, settings, device, TRAINING)
        return [*self._public_dry_runs(terms), private]

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        """The network before the first private step, its classes the private labels: a new one.

        The private records are to be asked for only while another release is drawn.
        """
        return self._new(fitting.terms, len(fitting.terms.classes))

    def _settled(self, terms: FitTerms) -> DPSGD:
        """The training, with the least noise for which all that the fit may be charged meets its budget."""
        return settled(self.training, terms, self._others(terms))

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        """What is released beside the training."""
        return ()

    def _prepared(self, model: UNet2DModel) -> UNet2DModel:
        """The network with those parameters frozen that DP-SGD does not train."""
        return model

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        """Of what is trained on public images."""
        return ()

    def _check(self, terms: FitTerms) -> None:
        """Raise RecipeError if it takes public images, and they do not serve for these terms."""

"""Which parameters of a checkpoint DP-SGD trains: LoRA matrices beside some layers, other layers whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.diffusion.pixel import PixelFiles
from adapters.diffusion.text_files import INDEX
from adapters.diffusion.weights import local_model, read_json
from adapters.prompts import TextByLabel
from adapters.trained.diffusion import AnsweringDiffusion
from adapters.trained.files import labels_of
from adapters.trained.releases import TRAINING, blocks_of, settled, train_blocks
from adapters.trained.settings import Rate
from pe.errors import RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.settings import Count, Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from adapters.trained.finetune_models import Checkpoint
    from pe.fit.trainer import DryRun, FitTerms, Fitting
    from pe.privacy.release import Release


ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
"""The projections of diffusers' attention."""

COVERED = ("Linear", "Conv2d", "Embedding", "GroupNorm", "LayerNorm")
"""Layers that may be trained whole; for each, tests compare per-record gradients with a loop's."""


class LoRA(Settings):
    """Matrices of low rank beside layers that stay as they are (Hu et al. 2022).

    Attributes:
        rank: of the matrices.
        alpha: their product counts alpha/rank times; None: once.
        targets: endings of the layers' names, such as to_q or down_blocks.0.resnets.0.conv1; Linear and Conv2d.
    """

    rank: Count = 4
    alpha: Rate | None = None
    targets: tuple[str, ...] = ATTENTION


def prepare(model: nn.Module, lora: LoRA | None, layers: tuple[str, ...], seed: int) -> nn.Module:
    """The model with matrices beside layers, in which these and the chosen layers alone have `requires_grad`.

    Args:
        model: the checkpoint's network; changed in place.
        lora: the matrices; None: none.
        layers: endings of the names of layers to be trained whole.
        seed: of the matrices' first values.

    Raises:
        RecipeError: an ending that no layer has, a layer that is not covered or named twice, or nothing to train.
    """
    import torch

    from adapters.trained.finetune_lora import add_matrices

    model.requires_grad_(False)
    beside = [] if lora is None else _named(model, "lora.targets", lora.targets)
    whole = _named(model, "layers", layers)
    if twice := sorted({*beside} & {*whole}):
        raise RecipeError(f"layers: '{twice[0]}' is among lora.targets, too: name it under one of the two.")
    if not beside and not whole:
        raise RecipeError("lora is null and layers is empty, so nothing is trained: name layers by their endings.")
    for name in whole:
        layer = model.get_submodule(name)
        if type(layer).__name__ not in COVERED:
            raise RecipeError(
                f"layers: '{name}' is a {type(layer).__name__}, and those that can be trained here are "
                f"{', '.join(COVERED)}: name the layers in it."
            )
        layer.requires_grad_(True)
    if lora is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            add_matrices(model, beside, lora.rank, 1.0 if lora.alpha is None else lora.alpha / lora.rank)
    return model


def _named(model: nn.Module, setting: str, endings: tuple[str, ...]) -> list[str]:
    """The layers with one of these endings, in the model's order."""
    names = [name for name, _ in model.named_modules() if name]
    found = set()
    for ending in endings:
        fits = {name for name in names if name == ending or name.endswith(f".{ending}")}
        if not fits:
            near = get_close_matches(ending, {name.rpartition(".")[2] for name in names} | set(names), 1)
            hint = f"; did you mean '{near[0]}'?" if near else "."
            raise RecipeError(f"{setting}: no layer of the checkpoint has a name that ends in '{ending}'{hint}")
        found |= fits
    return [name for name in names if name in found]


# A diffusion checkpoint that the user brings, fitted by DP-SGD on few of its parameters.


@dataclass(kw_only=True, eq=False, repr=False)
class FineTune(AnsweringDiffusion):
    """A checkpoint of yours, fitted by DP-SGD on LoRA matrices, or on layers that you choose; the others stay.

    It is a UNet2DModel in pixel space, whose classes become the private labels, or a pipeline of Stable Diffusion 1 or
    2, fitted through its latents, with a prompt for each private label. The checkpoint counts as public: it must not
    have been trained on the private records. The fitted model, with the matrices added to their layers, is kept whole
    in the run. The other arguments are as in `AnsweringDiffusion`.

    Args:
        model: the checkpoint: `small`, which ships with the project; a folder in diffusers' format; a .safetensors file
            with its settings in a .json file of the same name; or a repository of the Hugging Face hub (a pipeline: a
            folder). A relative path is taken from the current folder.
        lora: matrices beside layers; null: none.
        layers: endings of the names of layers that are trained whole; None: in pixel space class_embedding, else none.
        classes: label → the checkpoint's class, by name or number, at which it begins. A label that is not named begins
            at the class of its own name, or else at the mean of all.
        prompts: of a pipeline: a public text, or one for each label; `{label}` is replaced.
        guidance: classifier-free guidance scale of a pipeline, when it is sampled; None: its own.
        revision: of a repository.
        offline: fetch nothing.

    Raises:
        RecipeError: a setting is out of range.
    """

    info = replace(AnsweringDiffusion.info, machine_settings=(*AnsweringDiffusion.info.machine_settings, "offline"))

    model: str
    lora: LoRA | None = LoRA()
    layers: tuple[str, ...] | None = None
    classes: dict[str | int, str | int] | None = None
    prompts: TextByLabel | None = None
    guidance: float | None = None
    revision: str | None = None
    offline: bool = False

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """Each block of DP-SGD steps, calibrated to the budget.

        Raises:
            RecipeError: a setting is out of range, or the checkpoint is not there or makes other images.
            PrivacyError: the budget is too small for one useful step, or the unit is larger than a record.
        """
        require_torch("trained", "Fitting a generator")
        checkpoint = self._checkpoint(terms)
        checkpoint.check()
        self._prepared(checkpoint.skeleton(), terms)
        return blocks_of(settled(self.training, terms, ()), terms)

    def fit(self, fitting: Fitting) -> None:
        """Train the chosen parameters block by block, and keep the whole model.

        Guarantee: the planned releases'; all else is post-processing of them, or public. The private records are read
        only while a block is drawn. Before the first one, the gradients of two random images are compared with those
        of each alone.

        Raises:
            Interrupted: it was told to stop.
            RecipeError: memory does not suffice, or the checkpoint is not the one that the fit began at.
            PluginError: a layer whose gradient cannot be had for each record.
        """
        from adapters.trained.dp_sgd.training import Training
        from adapters.trained.finetune_lora import check_gradients, merge_matrices
        from adapters.trained.finetune_models import check_same

        terms, private = fitting.terms, cache(fitting.private)
        settings = settled(self.training, terms, ())
        blocks = blocks_of(settings, terms)
        checkpoint = self._checkpoint(terms)
        check_same(checkpoint.digest(), fitting.kept)
        network, loss = self._prepared(checkpoint.network(), terms), checkpoint.loss(self._place())
        if not fitting.ledger.drawn(blocks[0]):
            check_gradients(network, loss, terms.image_shape, self._place())
        training = Training(network, loss, settings, *self._places(self.training))
        network = training.load(train_blocks(training, blocks, fitting, private))
        merge_matrices(network)
        checkpoint.write(network, fitting.folder)

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A step, on random images.

        Raises:
            RecipeError: a setting is out of range, or memory does not suffice.
            PrivacyError: the budget is too small.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_sgd.forecast import dry_run

        checkpoint, settings = self._checkpoint(terms), settled(self.training, terms, ())
        network, loss = self._prepared(checkpoint.network(), terms), checkpoint.loss(self._place())
        return [dry_run(network, loss, terms.image_shape, settings, self._place(), TRAINING)]

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raises:
            RecipeError: there is none, or it is damaged.
        """
        if not (folder / INDEX).is_file():
            super().load(folder)
            return
        require_torch("trained", "Fitting a generator")
        from adapters.trained.finetune_models import open_latent

        self._model, labels = open_latent(folder, self.sampling, self.guidance, self.device, self.batch_size)
        self._labels = frozenset(labels)

    def record_losses(
        self, folder: Path, samples: npt.NDArray[np.uint8], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """The loss of each image by which the checkpoint was fitted, float64 (n,), by draws that are fixed and public.

        Raises:
            RecipeError: there is no model in `folder`, or it was fitted for other labels.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.finetune_models import stored_latent, stored_loss
        from adapters.trained.record_loss import losses_of, stored_network

        device = self._place()
        if (folder / INDEX).is_file():
            checkpoint = stored_latent(folder)
            network, loss, classes = checkpoint.network(), checkpoint.loss(device), list(checkpoint.prompts)
            return losses_of(network, loss, samples, labels, classes, device)
        network = stored_network(folder)
        return losses_of(network, stored_loss(folder), samples, labels, labels_of(folder), device)

    def _checkpoint(self, terms: FitTerms) -> Checkpoint:
        """What is brought.

        Raises:
            RecipeError: it is not there, or a setting is for the other kind of checkpoint.
        """
        from adapters.trained.finetune_models import PixelCheckpoint, latent_checkpoint

        place = None if self.model == "small" else local_model(self.model)
        if place is not None and _is_pipeline(place):
            self._check_pipeline()
            assert self.prompts is not None
            return latent_checkpoint(place, self.prompts, terms.classes, terms.image_shape)
        given = [name for name in ("prompts", "guidance") if getattr(self, name) is not None]
        if given:
            raise RecipeError(f"{given[0]} is given, but api.model is in pixel space, and takes none: leave it out.")
        files = PixelFiles.find(self.model, self.revision, self.offline)
        return PixelCheckpoint(files, terms.classes, terms.image_shape, self.classes)

    def _check_pipeline(self) -> None:
        """Raise RecipeError if a setting is missing that a pipeline needs, or given that it does not take."""
        if self.prompts is None:
            raise RecipeError("prompts is missing: give a public text for each label, as api.model draws from text.")
        if self.classes is not None:
            raise RecipeError("classes is given, but api.model draws from text: give prompts in their place.")
        if (self.sampling.sampler, self.sampling.eta) != ("ddim", 0.0):
            raise RecipeError("sampling.sampler or sampling.eta is given, but api.model has a sampler of its own.")

    def _prepared(self, network: nn.Module, terms: FitTerms) -> nn.Module:
        """The network with the parameters that are trained.

        Raises:
            RecipeError: a setting names a layer that it has not, or that cannot be trained.
        """
        from adapters.trained.plain import torch_seed

        embedding = getattr(network, "class_embedding", None)
        layers = self.layers if self.layers is not None else () if embedding is None else ("class_embedding",)
        prepare(network, self.lora, layers, torch_seed(terms.seed, "lora"))
        if embedding is not None and not embedding.weight.requires_grad and not embedding.weight.any():
            raise RecipeError(
                "api.model: the checkpoint has no classes, so that the labels' embedding is to be trained: add "
                "class_embedding to layers."
            )
        return network


def _is_pipeline(place: Path) -> bool:
    """Whether a folder holds a pipeline with an autoencoder; one of a UNet2DModel alone has an index, too."""
    return (place / INDEX).is_file() and "vae" in read_json(place / INDEX)

"""A user's diffusion checkpoint, fitted by DP-SGD on LoRA matrices or on whole layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.diffusion.pixel import PixelFiles
from adapters.diffusion.text_files import INDEX
from adapters.diffusion.weights import local_model, read_config
from adapters.prompts import TextByLabel
from adapters.trained.diffusion_model import FittedDiffusion
from adapters.trained.fit import Fit
from adapters.trained.settings import Rate
from adapters.trained.torch_tools import drawing_by
from adapters.trained.trainings import declare_training
from pe.data.arrays import Float64Array, UInt8Array
from pe.errors import RecipeError, nearest_name
from pe.plugins.devices import require_torch
from pe.plugins.settings import Count, Settings
from pe.plugins.specs import construct, plugin

if TYPE_CHECKING:
    from torch import nn

    from adapters.trained.finetune_models import Checkpoint
    from pe.fit.trainer import FitTerms

# The projections of diffusers' attention.
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")

# Layers that may be trained whole; tests compare the per-record gradients of each with those of a
# plain loop.
COVERED = ("Linear", "Conv2d", "Embedding", "GroupNorm", "LayerNorm")


class LoRA(Settings):
    """Pairs of low-rank matrices, trained beside layers that stay as they are (Hu et al. 2022).

    Attributes:
        rank: of the matrices.
        alpha: the product of a pair is multiplied by alpha/rank; None: by 1.
        targets: Linear or Conv2d layers that get a pair, by endings of names (to_q or
            down_blocks.0.resnets.0.conv1).
    """

    rank: Count = 4
    alpha: Rate | None = None
    targets: tuple[str, ...] = ATTENTION


def prepare(
    model: nn.Module,
    lora: LoRA | None,
    layers: tuple[str, ...],
    seed: int,
) -> nn.Module:
    """Return `model` with LoRA matrices put in.

    Only the matrices and the chosen `layers` have `requires_grad`.

    Raises RecipeError for an ending that no layer has, a layer that is not covered or named twice,
    or nothing to train.
    """
    from adapters.trained.finetune_models import add_matrices

    model.requires_grad_(False)
    beside = [] if lora is None else _layers(model, "lora.targets", lora.targets)
    whole = _layers(model, "layers", layers)
    twice = sorted({*beside} & {*whole})
    if twice:
        raise RecipeError(
            f"`layers`: '{twice[0]}' is in `lora.targets`, too. Name it in one of the two."
        )
    if not beside and not whole:
        raise RecipeError(
            "`lora` is null and `layers` is empty, so nothing is trained. Name layers by their "
            "endings."
        )
    for name in whole:
        layer = model.get_submodule(name)
        if type(layer).__name__ not in COVERED:
            raise RecipeError(
                f"`layers`: '{name}' is a {type(layer).__name__}, but only {', '.join(COVERED)} "
                "can be trained. Name the layers in it."
            )
        layer.requires_grad_(True)
    if lora is not None:
        # A resumed fit draws the same matrices again: only B is zero at first.
        scale = 1.0 if lora.alpha is None else lora.alpha / lora.rank
        with drawing_by(seed, "lora"):
            add_matrices(model, beside, lora.rank, scale)
    return model


def _layers(model: nn.Module, setting: str, endings: tuple[str, ...]) -> list[str]:
    """Return the names of the layers with one of these endings, in the model's order."""
    names = [name for name, _ in model.named_modules() if name]
    matches = set()
    for ending in endings:
        fits = {name for name in names if f".{name}".endswith(f".{ending}")}
        if not fits:
            known = {name.rpartition(".")[2] for name in names} | set(names)
            raise RecipeError(
                f"`{setting}`: no layer of the checkpoint has a name that ends in '{ending}'; "
                f"{nearest_name(ending, known)}"
            )
        matches |= fits
    return [name for name in names if name in matches]


@plugin
class FineTune(FittedDiffusion):
    """If you have a checkpoint whose images are like yours: DP-SGD on LoRA matrices or layers.

    It is a UNet2DModel in pixel space, whose classes become the private labels, or a pipeline of
    Stable Diffusion 1 or 2, fitted through its latents, with a prompt for each private label. The
    checkpoint counts as public: it must not have been trained on the private records. The run keeps
    the whole fitted model, with the matrices added into the layers. For the other arguments see
    `FittedDiffusion`.

    Args:
        model: the checkpoint: `small`, which ships with the project; a folder in diffusers' format;
            a .safetensors file with its settings in a .json file of the same name; or a repository
            of the Hugging Face hub (a pipeline: a folder). A relative path is taken from the
            current folder.
        lora: LoRA matrices beside layers; null: no matrices.
        layers: endings of the names of layers trained whole; None: class_embedding in pixel space,
            none in a pipeline.
        classes: label → the checkpoint's class, by name or number, whose embedding the label begins
            with. A label left out begins with the class of the same name, or, if there is none,
            with the mean of all classes.
        prompts: for a pipeline: a public text for all labels, or one for each; `{label}` becomes
            the label's name.
        guidance: classifier-free guidance scale of a pipeline, when it is sampled; None: the
            pipeline's default.
        revision: of the repository on the hub.
        offline: fetch nothing.

    Raises:
        RecipeError: a setting is out of range.
    """

    info = replace(
        FittedDiffusion.info,
        machine_settings=(*FittedDiffusion.info.machine_settings, "offline"),
    )

    model: str
    lora: LoRA | None = LoRA()
    layers: tuple[str, ...] | None = None
    classes: dict[str | int, str | int] | None = None
    prompts: TextByLabel | None = None
    guidance: float | None = None
    revision: str | None = None
    offline: bool = False

    def _fit(self, fit: Fit) -> None:
        require_torch("trained", "Fitting a checkpoint")
        from adapters.trained.dp_sgd.gradients import check_gradients
        from adapters.trained.finetune_models import check_same, merge_matrices

        terms = fit.terms
        checkpoint = self._checkpoint(terms)
        checkpoint.check()
        self._prepare(checkpoint.skeleton(), terms)
        training = declare_training(fit, self.training)
        fit.begin()
        check_same(checkpoint, fit)
        places = self.places()
        network = self._prepare(checkpoint.network(), terms)
        loss = checkpoint.loss(places[0])
        if not fit.is_drawn(training.releases[0]):
            check_gradients(network.to(places[0]), loss, terms.image_shape, "api.model")
        self.train_by_dp_sgd(fit, network, loss, training)
        merge_matrices(network)
        checkpoint.write(network, fit.folder)

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raise RecipeError if there is none, or it is damaged.
        """
        if not (folder / INDEX).is_file():
            super().load(folder)
            return
        from adapters.trained.finetune_models import PROMPTS

        content = read_config(folder / PROMPTS)
        height, width, channels = content["shape"]
        self._labels = tuple(content["prompts"])
        # The pipeline that the fit wrote is complete, so nothing is fetched.
        settings = {
            "model": str(folder),
            "prompts": dict(content["prompts"]),
            "guidance": self.guidance,
            "steps": self.sampling.steps,
            "size": (height, width),
            "channels": channels,
            "device": self.device,
            "batch_size": self.batch_size,
            "chunk": self.sampling.chunk,
            "offline": True,
        }
        self._model = construct("pe.adapters", "diffusion", settings)

    def record_losses(
        self, folder: Path, samples: UInt8Array, labels: Sequence[str]
    ) -> Float64Array:
        """Return each image's loss, float64 (n,), as the fit computed it.

        It is averaged over fixed, public draws.
        """
        if not (folder / INDEX).is_file():
            return super().record_losses(folder, samples, labels)
        from adapters.trained.diffusion_networks import mean_losses
        from adapters.trained.finetune_models import stored_latent

        device = self.places()[0]
        checkpoint = stored_latent(folder)
        return mean_losses(
            checkpoint.network(),
            checkpoint.loss(device),
            samples,
            labels,
            list(checkpoint.prompts),
            device,
        )

    def _checkpoint(self, terms: FitTerms) -> Checkpoint:
        """Open the checkpoint.

        Raise RecipeError if it is missing, or a setting is for the other kind of checkpoint.
        """
        from adapters.trained.finetune_models import PixelCheckpoint, latent_checkpoint

        place = None if self.model == "small" else local_model(self.model)
        # A folder of a UNet2DModel alone has an index, too.
        if place is not None and (place / INDEX).is_file() and "vae" in read_config(place / INDEX):
            self._check_pipeline()
            assert self.prompts is not None
            return latent_checkpoint(place, self.prompts, terms.classes, terms.image_shape)
        for name in ("prompts", "guidance"):
            if getattr(self, name) is not None:
                raise RecipeError(
                    f"`api.{name}` cannot be used: `api.model` is in pixel space. Remove it."
                )
        files = PixelFiles.find(self.model, self.revision, self.offline)
        return PixelCheckpoint(files, terms.classes, terms.image_shape, self.classes)

    def _check_pipeline(self) -> None:
        """Raise RecipeError if settings are missing for a pipeline, or do not suit it."""
        if self.prompts is None:
            raise RecipeError(
                "`api.prompts` is missing: `api.model` draws from text. Write one for each label."
            )
        if self.classes is not None:
            raise RecipeError(
                "`api.classes` cannot be used: `api.model` draws from text. Set `api.prompts` "
                "instead."
            )
        if (self.sampling.sampler, self.sampling.eta) != ("ddim", 0.0):
            raise RecipeError(
                "`api.sampling.sampler` and `eta` cannot be used: `api.model` has its own. Remove "
                "them."
            )

    def _prepare(self, network: nn.Module, terms: FitTerms) -> nn.Module:
        """Return `network`, set to train the chosen parameters alone.

        Raise RecipeError for unsuitable settings.
        """
        embedding = getattr(network, "class_embedding", None)
        layers = self.layers
        if layers is None:
            layers = () if embedding is None else ("class_embedding",)
        prepare(network, self.lora, layers, terms.seed)
        weight = None if embedding is None else embedding.weight
        if weight is not None and not (weight.requires_grad or weight.any()):
            raise RecipeError(
                "`api.model` has no classes, so the embedding of the labels must be trained. Add "
                "class_embedding to `layers`."
            )
        return network

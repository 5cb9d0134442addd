"""The network that all share: diffusers' UNet2DModel, conditional by class, with GroupNorm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import DDIMScheduler, UNet2DModel
from safetensors.torch import load, save
from torch import Tensor, nn

from adapters.trained.dp_sgd.forecast import peak_memory
from adapters.trained.plain import LossOf, torch_seed, train
from adapters.trained.public import PublicSet
from adapters.trained.releases import counted_steps
from adapters.trained.settings import Network, PlainTraining, levels
from pe.fit.trainer import DryRun

if TYPE_CHECKING:
    from pe.fit.trainer import FitTerms, Fitting


TIMESTEPS = 1000

_GROUPS = 4
_HEAD = 8


def unet(network: Network, shape: tuple[int, int, int], classes: int, seed: int, phase: str) -> UNet2DModel:
    """A new network of `classes` classes, with weights that `seed` and `phase` settle.

    Time and class scale and shift what GroupNorm has normalised: merely added before it, the norm would take a good
    part of them away again where a group has few channels.

    Args:
        network: its size.
        shape: height, width, channels of the images.
        classes: how many.
        seed: the recipe's.
        phase: what the network is for.

    Raises:
        RecipeError: the images are too small for it.
    """
    height, width, channels = shape
    widths = levels(network, height, width)
    deep = len(widths) - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, phase))
        return UNet2DModel(
            sample_size=height if height == width else (height, width),
            in_channels=channels,
            out_channels=channels,
            layers_per_block=network.layers,
            block_out_channels=widths,
            down_block_types=("DownBlock2D",) * deep + ("AttnDownBlock2D",),
            up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * deep,
            norm_num_groups=_GROUPS,
            attention_head_dim=_HEAD,
            resnet_time_scale_shift="scale_shift",
            num_class_embeds=classes,
        )


def scheduler() -> DDIMScheduler:
    """The noise schedule: a cosine down to no signal at all, velocities predicted (Salimans and Ho 2022)."""
    return DDIMScheduler(
        num_train_timesteps=TIMESTEPS,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        clip_sample=True,
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
    )


def with_new_classes(model: UNet2DModel, classes: int, seed: int) -> UNet2DModel:
    """The same network with a new embedding of `classes` classes, as one has it that was never trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "classes"))
        embedding = nn.Embedding(classes, model.class_embedding.weight.shape[1])
    model.class_embedding = embedding.to(model.class_embedding.weight.device)
    model.register_to_config(num_class_embeds=classes)
    return model


def only_attention_and_classes(model: UNet2DModel) -> UNet2DModel:
    """The same network, of which attention and class embedding alone are to be trained (DP-LDM)."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".attentions." in name or name.startswith("class_embedding."))
    return model


# The denoising loss, the same for public and private images: the velocity, at random timesteps.
#
# For x_t = √ᾱ·x + √(1−ᾱ)·ε the network is to find v = √ᾱ·ε − √(1−ᾱ)·x (Salimans and Ho 2022). The squared error of v
# is that of x weighed by 1 + ᾱ/(1−ᾱ): like EDM's preconditioning it asks for a target of variance near 1 at every
# timestep, and it is what the engine's schedulers sample from as it stands.


Randomness = tuple[Tensor, ...]


_UNLABELLED = 0.1
"""How often a draw has no class, in a network that is to be guided (Ho and Salimans 2022)."""


class Velocity:
    """The squared error of the velocity; a `Loss` of DP-SGD, and of plain training, too.

    Args:
        none: the number of the class that stands for none, for a network that is to be guided: it takes the place of
            the image's class in a tenth of the draws.
        levels: ᾱ of each timestep; None: those of the toolkit's own schedule.
    """

    def __init__(self, none: int | None = None, levels: Tensor | None = None) -> None:
        self._levels: Tensor = scheduler().alphas_cumprod if levels is None else levels
        self._none = none

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> Randomness:
        """Timesteps, their ᾱ, and noise: int64 and float32 (records, draws), float32 (records, draws, c, h, w).

        Then, for a network that is to be guided, where a draw has no class: bool (records, draws).

        A record's timesteps are spread: one from each of `draws` equal parts of the schedule, so that the mean over
        them, which is what is clipped, varies less.
        """
        device = generator.device
        within = torch.rand((records, 1), generator=generator, device=device)
        parts = (torch.arange(draws, device=device) + within) / draws
        steps = (parts * len(self._levels)).long().clamp(max=len(self._levels) - 1)
        noise = torch.randn((records, draws, *shape), generator=generator, device=device)
        drawn = steps, self._levels.to(device)[steps], noise
        if self._none is None:
            return drawn
        return *drawn, torch.rand((records, draws), generator=generator, device=device) < _UNLABELLED

    def __call__(self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: Randomness) -> Tensor:
        """The losses, (draws,): of one image and label, or of as many of both as there are draws."""
        noisy, wanted, classes = self.noised(image, label, randomness)
        found = model(noisy, randomness[0], class_labels=classes).sample
        return square(found[:, : wanted.shape[1]] - wanted)

    def noised(self, image: Tensor, label: Tensor, randomness: Randomness) -> tuple[Tensor, Tensor, Tensor]:
        """What the network sees, what it is to find, and the classes that it is told, of one image or of several."""
        steps, level, noise, *unlabelled = randomness
        signal, spread = level.sqrt()[:, None, None, None], (1 - level).sqrt()[:, None, None, None]
        classes = label.expand(len(steps))
        if unlabelled and self._none is not None:
            classes = classes.masked_fill(unlabelled[0], self._none)
        return signal * image + spread * noise, signal * noise - spread * image, classes


def square(difference: Tensor) -> Tensor:
    """The mean square of each image, (n,) from n×c×h×w."""
    found: Tensor = (difference**2).mean(dim=(1, 2, 3))
    return found


# Training the denoiser on public images, before it sees a private one.


_PUBLIC = "public images"


def pretrained(
    model: UNet2DModel,
    public: Callable[[], PublicSet],
    settings: PlainTraining,
    fitting: Fitting,
    none: int | None = None,
    what: str = _PUBLIC,
) -> UNet2DModel:
    """`model` after training on all of `public()`, whose labels are its classes; it is left on its device.

    A fit that goes on takes what was kept, and asks for no images. `none`: the class that stands for none, of a network
    that is to be guided. `what`: which images they are, of several trainings one after the other.

    Raises:
        Interrupted: the fit was told to stop.
        RecipeError: memory does not suffice.
    """
    kept = f"pretrained on {what}.safetensors".replace(" ", "-")
    found = fitting.kept.find(kept)
    if found is not None:
        model.load_state_dict(load(found))
        return model
    images = public()
    phase = "pretraining" if what == _PUBLIC else f"pretraining on {what}"
    with counted_steps(fitting, f"training on {what}", settings.steps) as step_done:
        train(model, images, settings, _loss_of(model, none), fitting.terms.seed, phase, step_done)
    fitting.kept.keep(kept, save({name: value.cpu().contiguous() for name, value in model.state_dict().items()}))
    return model


def pretraining_dry_run(model: UNet2DModel, terms: FitTerms, settings: PlainTraining) -> DryRun:
    """What `pretrained` will take: three steps on random images.

    Raises:
        RecipeError: memory does not suffice.
    """
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (settings.batch, *terms.image_shape), dtype=np.uint8)
    public = PublicSet(images, np.zeros(settings.batch, dtype=np.int64), ())
    ended = [time.perf_counter()]

    def steps(count: int) -> None:
        few = settings.model_copy(update={"steps": count})
        train(model, public, few, _loss_of(model, None), 0, "dry run", lambda: ended.append(time.perf_counter()))

    memory = peak_memory(next(model.parameters()).device, lambda: steps(1))  # when libraries load, too
    steps(2)
    parameters = sum(value.numel() for value in model.parameters())
    return DryRun(_PUBLIC, settings.steps, ended[-1] - ended[-2], parameters, memory)


def _loss_of(model: UNet2DModel, none: int | None) -> LossOf:
    loss = Velocity(none)

    def loss_of(images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        _, channels, height, width = images.shape
        drawn = loss.draw(1, len(images), (channels, height, width), generator)
        return loss(model, images, labels, tuple(part[0] for part in drawn)).mean()

    return loss_of

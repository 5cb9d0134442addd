"""DINOv2 (Oquab et al. 2023): features of a network trained without labels, by the transformers library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddings.resizing import check_crop, shortest_side
from embeddings.torch_model import Network, Precision, TorchEmbedding
from pe.data.quiet import quiet_transformers
from pe.errors import MissingDependency, RecipeError
from pe.plugins.weights import cached_file

if TYPE_CHECKING:
    from torch import Tensor, nn

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, per channel
_USUAL = "facebook/dinov2-base"
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")


class DINOv2(TorchEmbedding):
    """Images → the class token of DINOv2 after its last normalisation.

    Args:
        model: a name on the Hugging Face hub, or a folder with config.json and model.safetensors, from the
            current one if relative.
        revision: the hub's commit, tag or branch; None: its newest.
        resize: pixels that the shorter side is brought to (bicubic, antialiased), ≥ `crop`.
        crop: pixels of the square cut from the middle, a multiple of the network's patch (14).
        device: auto (all GPUs of one kind, else mps, else cpu), cpu, mps, cuda or one GPU, such as cuda:1.
        precision: fp32, bf16 or fp16.
        batch_size: images per batch on each device, ≥ 1.
        offline: fetch nothing.

    Raises:
        RecipeError: an argument is out of range.
    """

    kind = "dinov2"

    def __init__(
        self,
        *,
        model: str = _USUAL,
        revision: str | None = None,
        resize: int = 256,
        crop: int = 224,
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int = 64,
        offline: bool = False,
    ) -> None:
        check_crop(crop, resize)
        self._name = str(Path(model).expanduser()) if model.startswith("~") else model
        self._revision = revision
        self._resize, self._crop = resize, crop
        super().__init__(device, precision, batch_size, offline)

    @classmethod
    def weights_here(cls) -> bool:
        """Whether the Hugging Face cache holds the usual model."""
        return all(cached_file(_USUAL, (name,)) for name in ("config.json", "model.safetensors"))

    def _load(self) -> Network:
        module = self._load_weights()
        patch = module.config.patch_size
        if self._crop % patch:
            raise RecipeError(f"crop is {self._crop}: it must be a multiple of the network's patch, {patch} pixels.")
        return Network(module, self._prepare, _class_token)

    def _load_weights(self) -> Any:
        """The network with all its weights, and no others."""
        try:
            from transformers import Dinov2Model
        except ModuleNotFoundError as error:
            raise MissingDependency.of("transformers", "embeddings", "The embedding 'dinov2'") from error
        foreign = f"What '{self._name}' holds is no DINOv2 (config.json and model.safetensors)"
        try:
            with quiet_transformers():
                place = self._folder() if self._offline else self._name
                module, found = Dinov2Model.from_pretrained(
                    place,
                    revision=self._revision or "main",
                    local_files_only=self._offline or Path(place).is_dir(),
                    use_safetensors=True,
                    output_loading_info=True,
                )
        except OSError as error:
            repository = self._name if _REPOSITORY.fullmatch(self._name) else _USUAL
            raise RecipeError(
                f"The weights of '{self._name}' are not here{' and offline is true' if self._offline else ''}: get "
                f"config.json and model.safetensors from https://huggingface.co/{repository}, put them in a folder "
                "and name it under embedding.model."
            ) from error
        except Exception as error:  # whatever a reader makes of a broken or foreign file
            raise RecipeError(f"{foreign}: name another under embedding.model.") from error
        odd = found["missing_keys"] | {name for name in found["unexpected_keys"] if not name.startswith("classifier.")}
        if odd:  # the library would draw what is missing at random, and leave out the rest
            raise RecipeError(f"{foreign}, as '{min(odd)}' shows: name another under embedding.model.")
        return module

    def _folder(self) -> str:
        """The folder of this name, or that of this name's files in the Hugging Face cache."""
        if Path(self._name).is_dir():
            return self._name
        known = _REPOSITORY.fullmatch(self._name)
        found = cached_file(self._name, ("config.json",), self._revision) if known else None
        if found is None:
            raise FileNotFoundError(self._name)
        return str(found.parent)

    def _prepare(self, images: Tensor) -> Tensor:
        mean, deviation = (images.new_tensor(values)[:, None, None] for values in (_MEAN, _DEVIATION))
        return (shortest_side(images, self._resize, self._crop) / 255 - mean) / deviation


def _class_token(module: nn.Module, images: Tensor) -> Tensor:
    token: Tensor = module(pixel_values=images).pooler_output
    return token

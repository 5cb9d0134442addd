"""Weight files: found or fetched, checked by hash, and read without running code in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from zipfile import is_zipfile

from pe.errors import MissingDependency, RecipeError
from pe.plugins.devices import words_of_error

if TYPE_CHECKING:
    from torch import Tensor, nn

SAFETENSORS = ".safetensors"


@dataclass(frozen=True)
class Packaged:
    """A file that a package of the package index carries, found without importing the package."""

    package: str  # its import name
    name: str  # of the file, from the package's folder
    sha256: str  # SHA-256 of its bytes, hexadecimal
    extra: str  # the extra that brings the package

    def is_installed(self) -> bool:
        """True if the package is installed."""
        return find_spec(self.package) is not None

    def find(self, purpose: str) -> Path:
        """Return the file.

        `purpose` begins the message if the package is missing.

        Raises:
            MissingDependency: the package is not installed.
            RecipeError: the file has another hash.
        """
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
    setting: str = "weights"  # the recipe's key for another place of the file


def find_published(weights: Published, offline: bool) -> Path:
    """Return the file in torch.hub's folder of checkpoints, fetched if missing.

    A known hash is checked.

    Raises:
        RecipeError: the file is missing and `offline`, cannot be fetched, or has another hash.
    """
    import torch

    # torch.hub's own folder, so that other programs' downloads serve too
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for name in (weights.name, *weights.aliases):
        if (folder / name).is_file():
            if weights.sha256 is not None:
                check_hash(folder / name, weights.sha256)
            return folder / name
    remedy = (
        f"get it from {weights.url} and put it in {folder}, or set `{weights.setting}` to its place"
    )
    if offline:
        raise RecipeError(
            f"The weights {weights.name} are not here, and `offline` is true: {remedy}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(
            weights.url, str(folder / weights.name), weights.sha256, progress=False
        )
    except (OSError, URLError) as error:
        raise RecipeError(
            f"The weights {weights.name} cannot be fetched ({error}): {remedy}."
        ) from error
    except RuntimeError as error:
        raise RecipeError(
            f"{weights.url} does not give the published {weights.name} (its SHA-256 differs): "
            f"{remedy}."
        ) from error
    return folder / weights.name


def cached_file(
    repository: str,
    names: Sequence[str],
    revision: str | None = None,
) -> Path | None:
    """Return the first of these files that the Hugging Face cache holds, without the network.

    With `local_files_only` alone, huggingface_hub would still ask its server which programs are
    known to it.
    """
    from huggingface_hub import try_to_load_from_cache

    paths = (try_to_load_from_cache(repository, name, revision=revision) for name in names)
    return next((Path(path) for path in paths if isinstance(path, str)), None)


def hub_file(repository: str, names: Sequence[str]) -> Path | None:
    """Fetch the first of these files that the Hugging Face hub has.

    Without a network, return the first that is in the cache.
    """
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


def given_file(
    place: str,
    sha256: str | None,
    hashes: Mapping[str, str],
    offline: bool,
) -> Path:
    """Return the weight file that `embedding.weights` names by a path or a URL.

    A file that is fetched is kept in torch.hub's folder. The hash must be `sha256`, or else the one
    that `hashes` has for the file's name, if any. A URL needs a hash.
    """
    name = place.rpartition("/")[2]
    digest = sha256 or hashes.get(name)
    if place.startswith(("https://", "http://")):
        if digest is None:
            raise RecipeError(
                f"`embedding.weights` is fetched from {place}. Set `embedding.sha256` to its hash."
            )
        return find_published(Published(name, place, digest), offline)
    file = Path(place).expanduser()
    if not file.is_file():
        raise RecipeError(
            f"`embedding.weights`: there is no file '{place}'. Put the weights there, or name "
            "another place."
        )
    if digest is not None:
        check_hash(file, digest)
    return file


def check_whole(place: Path | str) -> None:
    """Raise RecipeError if a file, or a .safetensors file in a folder, cannot be weights.

    Such files are empty, cut, a web page or a Git LFS pointer. Call this when a library could not
    read the weights, because its own words seldom tell.
    """
    path = Path(place).expanduser()
    with suppress(OSError):  # as the library has told
        for file in (path, *sorted(path.rglob(f"*{SAFETENSORS}"))):
            if file.is_file() and (flaw := _flaw(file)):
                raise RecipeError(f"{file} is {flaw}: download the file itself, as a whole.")


def _flaw(file: Path) -> str:
    """Return what a file is in place of weights, or an empty text if nothing is found."""
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
            f"{file} is not the right file: its SHA-256 is {digest[:12]}…, not "
            f"{sha256[:12].lower()}…. Fetch it again."
        )


def read_weights(file: Path) -> dict[str, Tensor]:
    """Load the tensors of a .safetensors or torch file, and never execute code from it.

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
            f"{file} is cut, or it is not plain weights. Code in files is never run: use a "
            ".safetensors file, or a torch file of tensors alone."
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise RecipeError(f"{file} is not a table of tensors. Use the network's state_dict.")
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def fill(module: nn.Module, tensors: Mapping[str, Tensor], file: Path | str) -> None:
    """Load all tensors into the module.

    Raises:
        RecipeError: a tensor is missing, left over or of another shape; the first is named.
    """
    try:
        lacking, extra = module.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:  # of the shapes
        raise RecipeError(
            f"{file} does not fit this network ({words_of_error(error)}). Use the weights that "
            "belong to it."
        ) from error
    if lacking or extra:
        fault = f"lacks '{lacking[0]}'" if lacking else f"has '{extra[0]}'"
        raise RecipeError(
            f"{file} {fault}, unlike this network. Use the weights that belong to it."
        )

"""Weight files: found or fetched, their hashes checked, and read without running anything that is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from pe.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor, nn

SAFETENSORS = ".safetensors"


@dataclass(frozen=True)
class Published:
    """A weight file that somebody has published.

    Attributes:
        name: the file's name.
        url: where it is published.
        sha256: of its bytes, hexadecimal; None: nobody has published it.
        aliases: other names of the same file.
        setting: the recipe's key that may name another place.
    """

    name: str
    url: str
    sha256: str | None
    aliases: tuple[str, ...] = ()
    setting: str = "weights"


def find_published(published: Published, offline: bool) -> Path:
    """The file in torch.hub's folder of checkpoints, fetched into it unless `offline`; its hash is right, if known.

    Raises:
        RecipeError: it is not there and cannot be fetched, or is not what was published.
    """
    import torch

    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for name in (published.name, *published.aliases):
        if (folder / name).is_file():
            if published.sha256 is not None:
                check_hash(folder / name, published.sha256)
            return folder / name
    remedy = f"get it from {published.url} and put it in {folder}, or name its place under {published.setting}"
    if offline:
        raise RecipeError(f"The weights {published.name} are not here and offline is true: {remedy}.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(published.url, str(folder / published.name), published.sha256, progress=False)
    except (OSError, URLError) as error:
        raise RecipeError(f"The weights {published.name} cannot be fetched ({error}): {remedy}.") from error
    except RuntimeError as error:
        raise RecipeError(
            f"What {published.url} gives is not the published {published.name} (its SHA-256 differs): {remedy}."
        ) from error
    return folder / published.name


def cached_file(repository: str, names: Sequence[str], revision: str | None = None) -> Path | None:
    """The first of these files that the Hugging Face cache holds; nothing is asked of the network.

    (With `local_files_only` alone, huggingface_hub would still ask its server which programs are known to it.)
    """
    from huggingface_hub import try_to_load_from_cache

    for name in names:
        found = try_to_load_from_cache(repository, name, revision=revision)
        if isinstance(found, str):
            return Path(found)
    return None


def hub_file(repository: str, names: Sequence[str]) -> Path | None:
    """The first of these files that the Hugging Face hub has, fetched; without a network what the cache holds."""
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


def given_file(place: str, sha256: str | None, known: Mapping[str, str], offline: bool) -> Path:
    """The weight file that `embedding.weights` names, a path or a URL.

    Args:
        place: what it names. A URL's file is kept in torch.hub's folder of checkpoints.
        sha256: what the file's hash must be; None: that of `known`, if it has one. A URL's must be known.
        known: file name → hash.
        offline: fetch nothing.

    Raises:
        RecipeError: there is no such file, it cannot be fetched, or its hash is another.
    """
    name = place.rpartition("/")[2]
    expected = sha256 or known.get(name)
    if place.startswith(("https://", "http://")):
        if expected is None:
            raise RecipeError(f"embedding.weights is fetched from {place}: say under embedding.sha256 what it must be.")
        return find_published(Published(name, place, expected), offline)
    file = Path(place).expanduser()
    if not file.is_file():
        raise RecipeError(
            f"embedding.weights: there is no file '{place}'; put the weights there, or name another place."
        )
    if expected is not None:
        check_hash(file, expected)
    return file


def check_hash(file: Path, sha256: str) -> None:
    """Refuse a file with another hash.

    Raises:
        RecipeError: its SHA-256 is another.
    """
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256.lower():
        raise RecipeError(
            f"{file} is not the file it should be: its SHA-256 is {found[:12]}…, not {sha256[:12].lower()}…; "
            "fetch it anew."
        )


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a torch file, of which nothing is run.

    A `state_dict` inside, and the prefix `module.` of parallel training, are unwrapped.

    Raises:
        RecipeError: the file holds something else.
    """
    import torch

    try:
        content = _read(file)
    except Exception as error:  # whatever a reader makes of a broken or foreign file
        raise RecipeError(
            f"{file} holds no plain weights, and code in files is never run: give a .safetensors file, or a "
            "torch file of tensors alone."
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise RecipeError(f"{file} holds no table of tensors: give the network's state_dict.")
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def _read(file: Path) -> Any:
    import torch

    if file.suffix == SAFETENSORS:
        from safetensors.torch import load_file

        return load_file(file)
    return torch.load(file, map_location="cpu", weights_only=True)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], file: Path | str) -> None:
    """Loads all tensors into the module.

    Raises:
        RecipeError: a tensor is missing, left over or of another shape; the first is named.
    """
    expected = module.state_dict()
    for name, tensor in expected.items():
        if name not in tensors:
            if name.endswith(".num_batches_tracked"):  # counted in training only, and not by all versions of torch
                continue
            raise RecipeError(f"{file} lacks '{name}', so it is not of this network: give the weights that belong.")
        if tensors[name].shape != tensor.shape:
            raise RecipeError(
                f"'{name}' of {file} has the shape {tuple(tensors[name].shape)}, not {tuple(tensor.shape)}: "
                "give the weights that belong to this network."
            )
    left = [name for name in tensors if name not in expected]
    if left:
        raise RecipeError(f"{file} has '{left[0]}', which this network has not: give the weights that belong.")
    module.load_state_dict(dict(tensors))

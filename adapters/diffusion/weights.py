"""Where diffusion models lie (a folder, a file or a hub repository), and LoRA weights over them.

Only .safetensors files are read, and nothing in them is executed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pe.errors import MissingDependency, RecipeError
from pe.plugins.devices import words_of_error
from pe.plugins.weights import SAFETENSORS, cached_file, check_whole

log = logging.getLogger(__name__)


def local_model(model: str) -> Path | None:
    """Return a model's folder or .safetensors file, or None for the name of a repository.

    Raises:
        RecipeError: nothing is there.
    """
    path = Path(model).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == SAFETENSORS):
        return path
    if path.is_file():
        raise RecipeError(
            f"`model`: '{model}' is not a {SAFETENSORS} file. Other files are not read, because "
            "they may contain code."
        )
    if (
        path.suffix == SAFETENSORS
        or path.is_absolute()
        or model.startswith((".", "~"))
        or model.count("/") != 1
    ):
        raise RecipeError(
            f"`model`: there is nothing at '{model}'. Put the model's folder there, in "
            "diffusers' format, or use another place, or OWNER/NAME of the Hugging Face hub."
        )
    return None


def model_here(model: str, revision: str | None) -> Path | None:
    """Return a model's folder or file, or its folder in the hub's cache, or None.

    The network is not asked.
    """
    from huggingface_hub.errors import HFValidationError

    local = local_model(model)
    if local is not None:
        return local
    # A pipeline has the first of these at its top, a model in pixel space one of the others.
    names = ("model_index.json", "config.json", "unet/config.json")
    try:
        file = cached_file(model, names, revision)
    except HFValidationError as error:
        raise RecipeError(
            f"`model`: '{model}' is neither a folder nor a repository (OWNER/NAME)."
        ) from error
    return None if file is None else file.parent


def model_folder(
    model: str,
    revision: str | None,
    offline: bool,
    fetch: Callable[[], str],
) -> Path:
    """Return a model's folder or file, or its folder in the hub's cache.

    Unless `offline`, `fetch` brings the repository's folder up to date. If that fails, the cached
    folder is used.

    Raises:
        RecipeError: the model is not there and cannot be fetched.
    """
    folder = model_here(model, revision)
    if folder is not None and (offline or local_model(model)):
        return folder
    remedy = (
        f"get it from https://huggingface.co/{model} on a machine with a network (`hf "
        f"download {model} --local-dir FOLDER`), copy the folder here, and set `model` to it"
    )
    if offline:
        raise RecipeError(f"The weights of {model} are not here, and `offline` is true: {remedy}.")
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    # Asked even if a copy is cached, because a branch may have moved on. Without a network the copy
    # serves.
    try:
        return Path(fetch())
    except RepositoryNotFoundError as error:
        raise RecipeError(
            f"The hub has no model {model}, or it requires a login (`hf auth login`)."
        ) from error
    except (LocalEntryNotFoundError, OSError, ValueError, RuntimeError) as error:
        if folder is None:
            raise RecipeError(
                f"The weights of {model} cannot be fetched ({words_of_error(error)}): {remedy}."
            ) from error
        log.warning(
            "%s cannot be brought up to date (%s): what is in the cache is taken.",
            model,
            words_of_error(error),
        )
        return folder


def read_config(file: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file of a model.

    Raises:
        RecipeError: the file is missing, or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{file} is missing. It belongs to the model.") from error
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{file} is not JSON.") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{file} has no JSON object.")
    return content


def require_diffusers(library: str) -> None:
    """Raise MissingDependency if the library is not installed."""
    from importlib.util import find_spec

    if find_spec(library) is None:
        raise MissingDependency.of(library, "diffusion", "A local diffusion model")


def add_lora(
    pipeline: Any, setting: str | list[str] | Mapping[str, float], model: str, offline: bool
) -> None:
    """Add LoRA weights to a pipeline, and so to others that share its parts.

    A place without a weight in `setting` has weight 1.

    Raises:
        RecipeError: some cannot be added.
    """
    places = [setting] if isinstance(setting, str) else setting
    lora = places if isinstance(places, Mapping) else dict.fromkeys(places, 1.0)
    require_diffusers("peft")
    if not hasattr(pipeline, "load_lora_weights"):
        raise RecipeError(f"`lora`: {type(pipeline).__name__} takes no LoRA weights. Remove it.")
    from safetensors import SafetensorError

    names = {place: f"lora{i}" for i, place in enumerate(lora)}
    for place, name in names.items():
        where, file = _split(place)
        options = {"weight_name": file, "use_safetensors": True, "local_files_only": offline}
        try:
            # Diffusers leaves out what fits nowhere, with a warning at most, so it is checked here.
            pipeline.load_lora_weights(where, adapter_name=name, **options)
            _check_modules(pipeline, name, pipeline.lora_state_dict(where, **options))
        except (OSError, SafetensorError) as error:
            check_whole(place)
            raise RecipeError(
                f"`lora`: {place} cannot be read ({words_of_error(error)}). Name LoRA weights."
            ) from error
        except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
            raise RecipeError(
                f"`lora`: {place} does not fit the model {model} ({words_of_error(error)}). Use "
                "LoRA weights of the same architecture."
            ) from error
    pipeline.set_adapters(list(names.values()), list(lora.values()))


def _check_modules(pipeline: Any, name: str, weights: Any) -> None:
    """Raise ValueError unless each module in a LoRA's `weights` is one of the pipeline's.

    `name` is the adapter's name.
    """
    tensors = weights[0] if isinstance(weights, tuple) else weights
    # Some text encoders have their layers in a module `text_model`, which only some files name.
    wanted = {
        match[1].replace(".text_model", "")
        for key in tensors
        if (match := re.match(r"(.+?)[._]lo(?:ra|kr)", key))
    }
    fitted = {
        f"{part}.{place}".replace(".text_model", "")
        for part, whole in pipeline.components.items()
        for place, module in getattr(whole, "named_modules", dict)()
        if name in getattr(module, "lora_A", getattr(module, "lokr_w1", ()))
    }
    if len(fitted) < max(1, len(wanted)):
        odd = min(wanted - fitted, default="")
        raise ValueError(f"only {len(fitted)} of its {len(wanted)} modules fit; '{odd}' does not")


def _split(place: str) -> tuple[str, str | None]:
    """Return the folder or repository, and the file in it, or None if the place names no file."""
    path = Path(place)
    if path.is_file():
        return str(path.parent), path.name
    if path.is_dir() or place.count("/") < 2:
        return place, None
    owner, name, file = place.split("/", 2)
    return f"{owner}/{name}", file

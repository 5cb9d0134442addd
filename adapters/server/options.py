"""What `pe serve` is told of its model on the command line, with whole paths, since replicas run elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from adapters.diffusion.improved_files import is_improved
from adapters.diffusion.weights import local_model
from adapters.server.families import SMALL
from pe.errors import RecipeError

_IP_ADAPTER = "pretrained_model_name_or_path_or_dict"


def located(model: str) -> str:
    """The model, a folder or a file by its whole path.

    Raises:
        RecipeError: it can only be a path, and nothing is there.
    """
    if model != SMALL and not is_improved(model):
        local_model(model)
    return model if model == SMALL else _whole(model)


def generator_settings(lora: Sequence[str], changes: Sequence[str]) -> dict[str, Any]:
    """The settings of the generator that `--lora PLACE[=WEIGHT]` and `--set NAME=VALUE` name.

    Raises:
        RecipeError: one is written otherwise, or named twice.
    """
    found: dict[str, Any] = {}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals:
            raise RecipeError(f"--set {text}: write NAME=VALUE, as vary=meaning.")
        if name in found:
            raise RecipeError(f"--set {name} is given twice: drop one.")
        try:
            found[name] = _located(name, yaml.safe_load(value))
        except (yaml.YAMLError, RecursionError) as error:
            raise RecipeError(f"--set {name}: '{value}' is no YAML; put texts with : or # in quotes.") from error
    if lora and "lora" in found:
        raise RecipeError("--lora and --set lora are given: drop one.")
    return found | ({"lora": _located("lora", dict(map(_weighted, lora)))} if lora else {})


def _weighted(text: str) -> tuple[str, float]:
    """A place and its weight."""
    place, equals, weight = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, 1.0
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not place or not math.isfinite(number):
        raise RecipeError(f"--lora {text}: write PLACE or PLACE=WEIGHT, as style.safetensors=0.8.")
    return place, number


def _located(name: str, value: Any) -> Any:
    """A setting's value, in which places that are on this machine have their whole paths."""
    if name in ("variation_model", "controlnet", "single_file"):
        return _whole(value)
    if name == "components" and isinstance(value, dict):
        return {part: _whole(place) for part, place in value.items()}
    if name == "ip_adapter" and isinstance(value, dict):
        return {key: _whole(place) if key == _IP_ADAPTER else place for key, place in value.items()}
    if name == "lora" and isinstance(value, dict):
        return {_whole(place): weight for place, weight in value.items()}
    if name == "lora":
        return [_whole(place) for place in value] if isinstance(value, list) else _whole(value)
    return value


def _whole(place: Any) -> Any:
    """The whole path of a file or folder that is there; anything else as it is."""
    path = Path(place).expanduser() if isinstance(place, str) else None
    return str(path.resolve()) if path is not None and path.exists() else place

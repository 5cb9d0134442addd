"""LoRA weights over a model: one or several, each with its weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.diffusion.weights import require
from pe.errors import RecipeError


@dataclass(frozen=True)
class LoRA:
    """What is added to a model's weights.

    Attributes:
        parts: (place, weight): a .safetensors file, a folder with one, or a repository of the hub, OWNER/NAME or
            OWNER/NAME/FILE.
    """

    parts: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, setting: str | list[str] | Mapping[str, float] | None) -> LoRA:
        """From the recipe's `lora`: a place, several, or place → weight."""
        if setting is None:
            return cls()
        if isinstance(setting, Mapping):
            return cls(tuple((place, float(weight)) for place, weight in setting.items()))
        return cls(tuple((place, 1.0) for place in ([setting] if isinstance(setting, str) else setting)))

    def add_to(self, pipeline: Any, model: str, offline: bool) -> None:
        """Add them to the network and text encoders of a model's pipeline, and so to those over the same parts.

        Raises:
            RecipeError: the pipeline takes none, or a place holds none that fits.
            MissingDependency: peft is not installed.
        """
        if not self.parts:
            return
        require("peft")
        if not hasattr(pipeline, "load_lora_weights"):
            raise RecipeError(f"lora: {type(pipeline).__name__} takes none, so leave it out.")
        names = [f"lora{i}" for i in range(len(self.parts))]
        for name, (place, _) in zip(names, self.parts, strict=True):
            where, file = _split(place)
            try:
                pipeline.load_lora_weights(
                    where, weight_name=file, adapter_name=name, use_safetensors=True, local_files_only=offline
                )
                if not any(name in attached for attached in pipeline.get_list_adapters().values()):
                    raise ValueError("no weight in it is of a layer that the model has")
            except OSError as error:
                raise RecipeError(f"lora: {place} cannot be read ({brief(error)}): name LoRA weights.") from error
            except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
                raise RecipeError(
                    f"lora: {place} does not fit the model {model} ({brief(error)}): name LoRA weights of "
                    "the same architecture."
                ) from error
        pipeline.set_adapters(names, [weight for _, weight in self.parts])


def brief(error: Exception) -> str:
    """The beginning of a library's words, in one line."""
    return " ".join(str(error).split())[:200].rstrip(".")


def _split(place: str) -> tuple[str, str | None]:
    """The folder or repository, and the file in it."""
    path = Path(place)
    if path.is_file():
        return str(path.parent), path.name
    if path.is_dir() or place.count("/") < 2:
        return place, None
    owner, name, file = place.split("/", 2)
    return f"{owner}/{name}", file

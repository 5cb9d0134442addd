"""Plug-ins as a recipe names them: by kind, with their settings; and generators that pass on to others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pe.errors import PluginError
from pe.plugins.price import PriceSection
from pe.plugins.registry import load, plugins, settings_of
from pe.plugins.validation import models_in, read_settings


class PluginSpec(BaseModel):
    """A plug-in by its name, and the settings that its constructor takes."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str = Field(description="the plug-in's name, found through entry points")

    @property
    def settings(self) -> dict[str, Any]:
        """All keys but `kind`."""
        return dict(self.__pydantic_extra__ or {})


class PartSpec(PluginSpec):
    """A generator that does a part of each item for another."""

    kind: str = Field(description="which generator; its own keys beside it")
    price: PriceSection = PriceSection()


class MemberSpec(PartSpec):
    """One of several generators that a generator passes its items on to."""

    kind: str = Field(description="of each entry of the list: which generator; its own keys beside it")
    name: str | None = Field(None, description="unique, told by samples and report; default: the kind, numbered")
    share: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="public share of the first population, and of what explores; on any scale"
    )


def members_of(spec: PluginSpec) -> dict[str, PartSpec]:
    """The generators that a recipe's generator asks, by key (`of.0`, `draw`); none for most.

    They stand in those of its settings whose type names `PartSpec`, or a list of `MemberSpec`.

    Raises:
        RecipeError: one of them is no mapping with a `kind`, or its name, share or price is wrong.
    """
    if spec.kind not in plugins("pe.adapters"):
        return {}
    try:
        fields = settings_of(load("pe.adapters", spec.kind)).model_fields
    except PluginError:  # whoever needs it says so
        return {}
    found: dict[str, PartSpec] = {}
    for name, one in fields.items():
        value, model = spec.settings.get(name), part_among(models_in(one.annotation))
        if model is None or value is None:
            continue
        listed = isinstance(value, list | tuple)
        entries = {f"{name}.{i}": entry for i, entry in enumerate(value)} if listed else {name: value}
        found |= {key: read_settings(model, entry, f"api.{key}") for key, entry in entries.items()}
    return found


def part_among(models: Iterable[type[Any]]) -> type[PartSpec] | None:
    """The model by which a setting names a generator; None: it names none."""
    return next((model for model in models if issubclass(model, PartSpec)), None)

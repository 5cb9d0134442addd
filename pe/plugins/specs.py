"""Plug-ins as a recipe names them: by kind, with settings that are checked before the constructor
sees them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from dataclasses import field as own_field
from dataclasses import fields as fields_of
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from pe.errors import PEError, PluginError
from pe.plugins.price import PriceSection
from pe.plugins.protocols import as_generator
from pe.plugins.registry import NOUN, Group, load, plugins
from pe.plugins.settings import models_in, read_settings

Class = TypeVar("Class")

_SECTION = {"pe.adapters": "api", "pe.embeddings": "embedding"}


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(own_field,))
def plugin(cls: type[Class]) -> type[Class]:
    """Make the annotated attributes of a plug-in's class its settings, which its constructor takes
    by name.

    It is a dataclass without `==` and `repr`, which nobody asks a plug-in for.
    """
    return dataclass(kw_only=True, eq=False, repr=False)(cls)


def construct(group: Group, kind: str, settings: dict[str, Any]) -> Any:
    """Check `settings`, and return the plug-in `kind` constructed with them."""
    factory = load(group, kind)
    values = read_settings(settings_of(factory), settings, f"{_SECTION[group]} '{kind}'")
    try:
        made = factory(**{name: getattr(values, name) for name in settings})
        return as_generator(made) if group == "pe.adapters" else made
    except PEError:
        raise
    except (TypeError, ValueError, OSError) as error:
        raise PluginError(f"The {NOUN[group]} '{kind}' cannot be set up: {error}.") from error


def settings_of(factory: Any) -> type[BaseModel]:
    """The settings that a plug-in takes: its model `Settings`, or else its constructor's parameters
    as a model.
    """
    model = getattr(factory, "Settings", None)
    if inspect.isclass(model) and issubclass(model, BaseModel):
        return model
    parameters = {
        parameter.name: parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    names = {field.name for field in fields_of(factory)} if is_dataclass(factory) else set()
    own = inspect.isclass(factory) and not names >= parameters.keys()
    hints = get_type_hints(factory.__init__ if own else factory, include_extras=True)
    fields: dict[str, Any] = {
        name: (
            hints.get(name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in parameters.items()
    }
    return create_model(
        "Settings", __config__=ConfigDict(arbitrary_types_allowed=True, extra="forbid"), **fields
    )


class PluginSpec(BaseModel):
    """A plug-in by its name, and the settings that its constructor takes."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str = Field(description="the plug-in's name, found through entry points")

    @property
    def settings(self) -> dict[str, Any]:
        """All keys but `kind`."""
        return dict(self.__pydantic_extra__ or {})


class PartSpec(PluginSpec):
    """A generator that does a part of the work on each item for another generator."""

    kind: str = Field(description="which generator; its own keys beside it")
    price: PriceSection = PriceSection()


class MemberSpec(PartSpec):
    """One of several generators that a generator passes its items on to."""

    kind: str = Field(
        description="of each entry of the list: which generator; its own keys beside it"
    )
    name: str | None = Field(
        None, description="unique, told by samples and report; default: the kind, numbered"
    )
    share: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="public share of the first population, and of what explores; on any scale"
    )


def members_of(spec: PluginSpec) -> dict[str, PartSpec]:
    """The generators that a recipe's generator asks, by key (`of.0`, `draw`).

    Most generators ask none.

    A setting names such generators if its type is `PartSpec`, or a list of `MemberSpec`.
    """
    if spec.kind not in plugins("pe.adapters"):
        return {}
    try:
        fields = settings_of(load("pe.adapters", spec.kind)).model_fields
    except PluginError:  # whoever needs it says so
        return {}
    members: dict[str, PartSpec] = {}
    for name, field in fields.items():
        value = spec.settings.get(name)
        model = part_among(models_in(field.annotation))
        if model is None or value is None:
            continue
        is_list = isinstance(value, list | tuple)
        entries = (
            {f"{name}.{i}": entry for i, entry in enumerate(value)} if is_list else {name: value}
        )
        members |= {
            key: read_settings(model, entry, f"api.{key}") for key, entry in entries.items()
        }
    return members


def part_among(models: Iterable[type[Any]]) -> type[PartSpec] | None:
    """The model by which a setting names a generator. None if no model does."""
    return next((model for model in models if issubclass(model, PartSpec)), None)

"""Plug-ins as a recipe names them: by kind, with settings that pydantic checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from functools import wraps
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from pe.errors import PluginError, RecipeError
from pe.plugins.price import PriceSection
from pe.plugins.protocols import as_generator
from pe.plugins.registry import NOUN, Group, load, plugins
from pe.plugins.settings import fields_of, models_in, read_settings, sentence

Class = TypeVar("Class", bound=type[Any])

_SECTION = {"pe.adapters": "api", "pe.embeddings": "embedding"}


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(Field, field))
def plugin(cls: Class) -> Class:
    """Make the annotated attributes of a plug-in's class its settings.

    They are given by name, and pydantic checks them: its constraints and validators hold. A wrong
    setting raises a RecipeError of one sentence. A class gets what it needs besides in
    `__post_init__`.

    Args:
        cls: the class.
    """
    return checked(cls, kw_only=True, eq=False, repr=False)


def checked(cls: Class, **options: bool) -> Class:
    """Return the class as a pydantic dataclass that refuses unknown settings in one sentence."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    model: Any = dataclass(config=config, **options)(cls)  # type: ignore[call-overload]
    initialise = model.__init__

    @wraps(initialise)
    def check_settings(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            initialise(self, *args, **kwargs)
        except ValidationError as error:
            raise RecipeError(sentence(error, model, f"pe.{model.__name__}")) from error

    model.__init__ = check_settings
    return cast(Class, model)


def construct(group: Group, kind: str, settings: dict[str, Any]) -> Any:
    """Return the plug-in `kind`, set up with `settings`, which are checked if it declares them."""
    factory = load(group, kind)
    model = settings_of(factory)
    try:
        if model is None and settings and not hasattr(factory, "__pydantic_fields__"):
            raise PluginError(
                f"The {NOUN[group]} '{kind}' declares no settings, but the recipe gives "
                f"{', '.join(settings)}. Put `@pe.plugin` before its class, with its settings as "
                "annotated attributes."
            )
        if model is None:
            made = factory(**settings)
        else:
            made = read_settings(model, settings, f"{_SECTION[group]} '{kind}'")
            if model is not factory:
                made = factory(**{name: getattr(made, name) for name in settings})
        return as_generator(made) if group == "pe.adapters" else made
    except (TypeError, ValueError, OSError) as error:
        raise PluginError(f"The {NOUN[group]} '{kind}' cannot be set up: {error}.") from error


def settings_of(factory: Any) -> type[Any] | None:
    """Return the class whose annotated attributes are the settings of a plug-in.

    It is the plug-in's own class, made by `plugin`, or its attribute `Settings`, a pydantic model.
    None if there is neither: then the plug-in checks its constructor's arguments itself. So does a
    subclass of such a class that has a constructor of its own, which pydantic would not call.
    """
    candidates = (getattr(factory, "Settings", None), factory)
    return next((one for one in candidates if _takes_settings(one)), None)


def _takes_settings(one: Any) -> bool:
    if not hasattr(one, "__pydantic_fields__"):
        return False
    made = next(each for each in one.__mro__ if {"__init__", "__pydantic_fields__"} & {*vars(each)})
    return "__pydantic_fields__" in vars(made)


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
        fields = fields_of(settings_of(load("pe.adapters", spec.kind)))
    except PluginError:  # whoever needs it says so
        return {}
    members: dict[str, PartSpec] = {}
    for name, setting in fields.items():
        value = spec.settings.get(name)
        model = part_among(models_in(setting.annotation))
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

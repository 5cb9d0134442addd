"""Plug-ins by name, through entry points; their settings are checked before the constructor sees them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from pe.errors import MissingDependency, PEError, PluginError, nearest_name
from pe.plugins.price import PriceSection
from pe.plugins.settings import models_in, read_settings

Group = Literal["pe.adapters", "pe.embeddings", "pe.sources", "pe.commands", "pe.loggers"]

_NOUN = {
    "pe.adapters": "adapter",
    "pe.embeddings": "embedding",
    "pe.sources": "source",
    "pe.commands": "command",
    "pe.loggers": "logger",
}
_SECTION = {"pe.adapters": "api", "pe.embeddings": "embedding"}
_REQUIREMENT = re.compile(r"""([\w.-]+)\s*(?:\[([^]]*)])?[^;]*;\s*extra\s*==\s*["']([\w.-]+)["']\s*""")


def plugins(group: Group) -> dict[str, EntryPoint]:
    """All installed plug-ins of a group, by name, in alphabetical order."""
    times = tuple((place, _change_time(place)) for place in sys.path)
    return {point.name: point for point in _installed(group, times)}


def _change_time(place: str) -> int:
    """When something came to, or went from, a place where Python looks for packages, in nanoseconds."""
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=8)
def _installed(group: Group, times: tuple[tuple[str, int], ...]) -> list[EntryPoint]:
    """A group's entry points, searched for anew when anything is installed."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def load(group: Group, kind: str) -> Any:
    """The object that the entry point `kind` names.

    Raises:
        PluginError: there is none of this name (the message names the nearest, or all that are installed), or it cannot
            be imported.
    """
    point = check_name(group, kind)
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise PluginError(f"The {_NOUN[group]} '{kind}' ({point.value}) cannot be loaded: {error}.") from error


def check_name(group: Group, kind: str) -> EntryPoint:
    """Return the entry point of this name; nothing is imported.

    Raises:
        PluginError: there is none; the message names the nearest, or all that are installed.
    """
    points = plugins(group)
    if kind not in points:
        raise PluginError(f"Unknown {_NOUN[group]} '{kind}'; {nearest_name(kind, points)}")
    return points[kind]


def require(group: Group, kind: str) -> None:
    """Refuse a plug-in that lacks what its entry point says it needs.

    An entry point names extras of its own distribution behind the object, `"my_package.discs:Discs [gpu]"`, so that
    a missing library is found out before anything is read, asked or written; nothing is imported.

    Raises:
        PluginError: there is no plug-in of this name.
        MissingDependency: a library is not installed.
    """
    point = check_name(group, kind)
    if point.dist is not None:
        require_extras(point.dist.name, point.extras, f"The {_NOUN[group]} '{kind}'")


def require_extras(distribution: str, extras: Sequence[str], subject: str) -> None:
    """Raise MissingDependency, for what `subject` needs, unless all libraries of these extras are installed."""
    if missing := missing_libraries(distribution, extras):
        raise MissingDependency(
            f"{subject} needs {', '.join(missing)}: not installed, so pip install '{distribution}[{','.join(extras)}]'."
        )


def missing_libraries(distribution: str, extras: Sequence[str]) -> list[str]:
    """The libraries that these extras bring, and that are not installed."""
    return [name for extra in extras for name, version in libraries(distribution, extra).items() if not version]


def libraries(distribution: str, extra: str) -> dict[str, str]:
    """The libraries that an extra of an installed distribution brings → their versions; empty: not installed.

    A requirement with a further marker (a platform, say) is left out.
    """
    versions: dict[str, str] = {}
    for requirement in requires(distribution) or ():
        parts = _REQUIREMENT.fullmatch(requirement)
        if parts is None or _normal(parts[3]) != _normal(extra):
            continue
        if _normal(parts[1]) == _normal(distribution):
            for inner in (parts[2] or "").split(","):
                versions |= libraries(distribution, inner.strip())
            continue
        try:
            versions[parts[1]] = version(parts[1])
        except PackageNotFoundError:
            versions[parts[1]] = ""
    return versions


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def construct(group: Group, kind: str, settings: dict[str, Any]) -> Any:
    """The plug-in `kind`, constructed with `settings`.

    Raises:
        PluginError: the plug-in is unknown or its constructor fails.
        RecipeError: a setting is unknown, missing or of the wrong type.
    """
    factory = load(group, kind)
    values = read_settings(settings_of(factory), settings, f"{_SECTION[group]} '{kind}'")
    try:
        return factory(**{name: getattr(values, name) for name in settings})
    except PEError:
        raise
    except (TypeError, ValueError, OSError) as error:
        raise PluginError(f"The {_NOUN[group]} '{kind}' cannot be set up: {error}.") from error


def settings_of(factory: Any) -> type[BaseModel]:
    """The settings that a plug-in takes: its model `Settings`, or else its constructor's parameters as a model."""
    model = getattr(factory, "Settings", None)
    if inspect.isclass(model) and issubclass(model, BaseModel):
        return model
    parameters = {
        parameter.name: parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    declared = {field.name for field in fields_of(factory)} if is_dataclass(factory) else set()
    own = inspect.isclass(factory) and not declared >= parameters.keys()
    hints = get_type_hints(factory.__init__ if own else factory, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in parameters.items()
    }
    return create_model("Settings", __config__=ConfigDict(arbitrary_types_allowed=True, extra="forbid"), **fields)


# Plug-ins as a recipe names them: by kind, with their settings; and generators that pass on to others.


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
    members: dict[str, PartSpec] = {}
    for name, field in fields.items():
        value, model = spec.settings.get(name), part_among(models_in(field.annotation))
        if model is None or value is None:
            continue
        listed = isinstance(value, list | tuple)
        entries = {f"{name}.{i}": entry for i, entry in enumerate(value)} if listed else {name: value}
        members |= {key: read_settings(model, entry, f"api.{key}") for key, entry in entries.items()}
    return members


def part_among(models: Iterable[type[Any]]) -> type[PartSpec] | None:
    """The model by which a setting names a generator; None: it names none."""
    return next((model for model in models if issubclass(model, PartSpec)), None)

"""Plug-ins by name: entry points, and a check of the settings before the constructor sees them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field

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
    """All installed plug-ins of a group, by name."""
    return {point.name: point for point in _installed(group, tuple(_places()))}


@lru_cache(maxsize=8)
def _installed(group: Group, places: tuple[tuple[str, int], ...]) -> list[EntryPoint]:
    """A group's entry points in alphabetical order, searched for anew when anything is installed."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def _places() -> Iterator[tuple[str, int]]:
    """Where Python looks for packages, and when something came or went there, in nanoseconds."""
    for path in sys.path:
        try:
            yield path, Path(path).stat().st_mtime_ns
        except OSError:
            yield path, 0


def load(group: Group, kind: str) -> Any:
    """The object that the entry point `kind` names.

    Raises:
        PluginError: there is none of this name (the message names the nearest, or all that are installed), or it cannot
            be imported.
    """
    check_name(group, kind)
    point = plugins(group)[kind]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise PluginError(f"The {_NOUN[group]} '{kind}' ({point.value}) cannot be loaded: {error}.") from error


def check_name(group: Group, kind: str) -> None:
    """Refuse a name that no plug-in has, with the nearest or all that are installed; nothing is imported.

    Raises:
        PluginError: there is none of this name.
    """
    known = plugins(group)
    if kind not in known:
        raise PluginError(f"Unknown {_NOUN[group]} '{kind}'; {nearest_name(kind, known)}")


def require(group: Group, kind: str) -> None:
    """Refuse a plug-in that lacks what its entry point says it needs.

    An entry point names extras of its own distribution behind the object, `"my_package.discs:Discs [gpu]"`, so that
    a missing library is found out before anything is read, asked or written; nothing is imported.

    Raises:
        PluginError: there is no plug-in of this name.
        MissingDependency: a library is not installed.
    """
    check_name(group, kind)
    point = plugins(group)[kind]
    if point.dist is not None:
        require_extras(point.dist.name, point.extras, f"The {_NOUN[group]} '{kind}'")


def require_extras(distribution: str, extras: Sequence[str], subject: str) -> None:
    """Refuse to go on, for want of what `subject` needs, without all that these extras of a distribution bring.

    Raises:
        MissingDependency: a library is not installed.
    """
    if missing := missing_libraries(distribution, extras):
        raise MissingDependency(
            f"{subject} needs {', '.join(missing)}: not installed, so pip install '{distribution}[{','.join(extras)}]'."
        )


def missing_libraries(distribution: str, extras: Sequence[str]) -> list[str]:
    """The libraries that these extras bring, and that are not installed."""
    return [name for extra in extras for name, installed in libraries(distribution, extra).items() if not installed]


def libraries(distribution: str, extra: str) -> dict[str, str]:
    """What an extra of an installed distribution brings: library → its version; empty: it is not installed.

    A requirement with a further marker (a platform, say) is left out.
    """
    found: dict[str, str] = {}
    for requirement in requires(distribution) or ():
        parts = _REQUIREMENT.fullmatch(requirement)
        if parts is None or _normal(parts[3]) != _normal(extra):
            continue
        if _normal(parts[1]) == _normal(distribution):
            for inner in (parts[2] or "").split(","):
                found |= libraries(distribution, inner.strip())
        else:
            found[parts[1]] = _version(parts[1])
    return found


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def construct(group: Group, kind: str, settings: dict[str, Any]) -> Any:
    """The plug-in `kind`, constructed with `settings`.

    Raises:
        PluginError: the plug-in is unknown or its constructor fails.
        RecipeError: a setting is unknown, missing or of the wrong type.
    """
    from pe.plugins.settings import read_settings

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
    from pydantic import BaseModel, ConfigDict, create_model

    named = getattr(factory, "Settings", None)
    if inspect.isclass(named) and issubclass(named, BaseModel):
        return named
    parameters = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    declared = {field.name for field in fields_of(factory)} if is_dataclass(factory) else set()
    own = inspect.isclass(factory) and not declared.issuperset(parameter.name for parameter in parameters)
    hints = get_type_hints(factory.__init__ if own else factory, include_extras=True)
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in parameters
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

"""Plug-ins by name: entry points, and a check of the settings before the constructor sees them."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from pe.errors import PEError, PluginError, RecipeError
from pe.validation import sentence

Group = Literal["pe.adapters", "pe.embeddings", "pe.commands"]

_NOUN = {"pe.adapters": "adapter", "pe.embeddings": "embedding", "pe.commands": "command"}
_SECTION = {"pe.adapters": "api", "pe.embeddings": "embedding"}


def plugins(group: Group) -> dict[str, EntryPoint]:
    """All installed plug-ins of a group, by name."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def load(group: Group, kind: str) -> Any:
    """The object that the entry point `kind` names.

    Raises:
        PluginError: there is none of this name (the message lists those there are), or it cannot be imported.
    """
    known = plugins(group)
    if kind not in known:
        installed = ", ".join(f"'{name}'" for name in known) or "none"
        raise PluginError(f"Unknown {_NOUN[group]} '{kind}'; installed are {installed}.")
    try:
        return known[kind].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(f"The {_NOUN[group]} '{kind}' ({known[kind].value}) cannot be loaded: {error}.") from error


def construct(group: Group, kind: str, settings: dict[str, Any]) -> Any:
    """The plug-in `kind`, constructed with `settings`.

    Raises:
        PluginError: the plug-in is unknown or its constructor fails.
        RecipeError: a setting is unknown, missing or of the wrong type.
    """
    factory = load(group, kind)
    checked = _checked(factory, settings, f"{_SECTION[group]} '{kind}'")
    try:
        return factory(**checked)
    except PEError:
        raise
    except (TypeError, ValueError, OSError) as error:
        raise PluginError(f"The {_NOUN[group]} '{kind}' cannot be set up: {error}.") from error


def _checked(factory: Any, settings: dict[str, Any], where: str) -> dict[str, Any]:
    """`settings` as the factory's annotations want them."""
    parameters = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in parameters
    }
    model = create_model("Settings", __config__=ConfigDict(arbitrary_types_allowed=True, extra="forbid"), **fields)
    try:
        values = model(**settings)
    except ValidationError as error:
        raise RecipeError(sentence(error, model, where)) from error
    return {name: getattr(values, name) for name in settings}

"""The arguments of `pe.evolve` and its companions as a recipe, and what is no argument as one sentence."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe.errors import PluginError, RecipeError, nearest_name
from pe.planning.build import object_kind
from pe.plugins.registry import check_name
from pe.plugins.specs import PluginSpec
from pe.plugins.validation import Settings
from pe.private.source import PrivateSource
from pe.recipe.evolution import Evolution
from pe.recipe.schema import ApiSpec, LimitSection, Privacy, Recipe

_SECTIONS: dict[str, type[Settings]] = {"privacy": Privacy, "evolution": Evolution, "limits": LimitSection}
_GENERATOR, _EMBEDDING = ("capabilities", "random_api", "variation_api"), ("batch_size", "embed")


def api(kind: str, **settings: Any) -> ApiSpec:
    """A generator by its entry point's name, with its settings; constructed when the run is.

    Args:
        kind: the name, such as "public_images".
        **settings: its keys, as in a recipe.

    Raises:
        PluginError: there is none of this name.
    """
    check_name("pe.adapters", kind)
    return ApiSpec(kind=kind, **settings)


def embedding(kind: str, **settings: Any) -> PluginSpec:
    """An embedding by its entry point's name, with its settings; constructed when the run is.

    Args:
        kind: the name, such as "pixels".
        **settings: its keys, as in a recipe.

    Raises:
        PluginError: there is none of this name.
    """
    check_name("pe.embeddings", kind)
    return PluginSpec(kind=kind, **settings)


def read_arguments(
    where: str,
    private: object,
    api: object,
    embedding: object,
    top: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Recipe:
    """The recipe that the arguments of `pe.evolve` describe.

    Args:
        where: begins messages.
        private: where the records are.
        api: the generator, or its name and settings.
        embedding: likewise, or its name alone; None: the usual one.
        top: keys of the recipe that lie in no section.
        settings: keys of the sections `privacy`, `evolution` and `limits`.

    Raises:
        RecipeError: they describe none.
        PluginError: an object lacks a method that it needs.
    """
    if not isinstance(private, PrivateSource):
        raise RecipeError(
            f"{where}: private is {_shown(private)}: say where the records are by pe.ImageFolder(…), or another source."
        )
    spec = PluginSpec(kind=embedding) if isinstance(embedding, str) else embedding
    content = {**top, "private": private, "api": _spec_of(api, f"{where}: api", 'pe.api("…")', _GENERATOR)}
    if spec is not None:
        content["embedding"] = _spec_of(spec, f"{where}: embedding", 'a name, pe.embedding("…")', _EMBEDDING)
    return Recipe.parse(content | _sections(where, settings), where)


def recipe_or_file(where: str, private: object, api: object, embedding: object, settings: dict[str, Any]) -> Recipe:
    """The recipe of a file, or of arguments as of `pe.evolve`."""
    if isinstance(private, PrivateSource):
        return read_arguments(where, private, api, embedding, {}, settings)
    if isinstance(private, str | Path) and api is None and embedding is None and not settings:
        return Recipe.load(Path(private))
    raise RecipeError(f"{where}: give the file of a recipe alone, or private, api and settings as to pe.evolve.")


def own_objects(api: object, embedding: object) -> tuple[Any, Any]:
    """The generator and the embedding where they are objects of the user's own; else None."""
    own = None if isinstance(api, PluginSpec) else api
    return own, None if isinstance(embedding, PluginSpec | str) else embedding


def changes_of(changes: Mapping[str, Any] | None) -> tuple[str, ...]:
    """As `--set` has them: keys of the recipe and JSON values."""
    return tuple(f"{key}={json.dumps(value)}" for key, value in (changes or {}).items())


def _spec_of(plugin: object, where: str, otherwise: str, needed: tuple[str, ...]) -> dict[str, Any]:
    """How the recipe records a plug-in; an object of the user's own by its class.

    Raises:
        PluginError: it is a class, or lacks what is needed.
    """
    if isinstance(plugin, PluginSpec):
        return plugin.model_dump()
    if inspect.isclass(plugin):
        raise PluginError(f"{where} is the class {plugin.__name__}: pass an object of it, {plugin.__name__}(…).")
    lacking = [name for name in needed if not _has(plugin, name)]
    if lacking:
        raise PluginError(
            f"{where} is {_shown(plugin)}, which lacks {', '.join(lacking)}: give {otherwise}, or an object with "
            f"{', '.join(needed)}."
        )
    return {"kind": object_kind(plugin)}


def _has(plugin: object, name: str) -> bool:
    """Whether it has an attribute; a property is not computed."""
    try:
        inspect.getattr_static(plugin, name)
    except AttributeError:
        return hasattr(plugin, name)
    return True


def _shown(value: object) -> str:
    return f"'{value}', a text" if isinstance(value, str) else f"an object of the class {type(value).__name__}"


def _sections(where: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat settings, sorted into the recipe's sections."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for key, value in settings.items():
        holder = next((name for name, model in _SECTIONS.items() if key in model.model_fields), None)
        if holder is None:
            known = [field for model in _SECTIONS.values() for field in model.model_fields]
            raise RecipeError(f"{where}: unknown setting '{key}'; {nearest_name(key, known)}")
        sections[holder][key] = value
    return sections

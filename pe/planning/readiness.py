"""Whether this machine has what a recipe names: plug-ins that can be set up, their libraries, the private data's place.

Looked up, without asking a plug-in for anything, and without reading a private record.
"""

from __future__ import annotations

from pe.errors import MissingDependency, PEError, RecipeError
from pe.fit.trainer import ChecksMachine
from pe.planning.apart import check_apart
from pe.planning.build import check_modality, set_up
from pe.plugins.protocols import ReadsPublicImages
from pe.plugins.registry import Group, require
from pe.privacy.words import POOL_OVERLAPS
from pe.recipe.paths import WITHHELD
from pe.recipe.schema import OBJECT, PluginSpec, Recipe


def obstacles(recipe: Recipe, api: object | None = None) -> list[str]:
    """What would refuse a start of the recipe here and now, one sentence each; the generator's settings aside.

    Args:
        recipe: the recipe.
        api: its generator, where it could be set up.

    Raises:
        PluginError: the embedding is unknown.
        RecipeError: a setting of the embedding is unknown, missing or of the wrong type.
    """
    found = [*_missing("pe.adapters", recipe.api), *_missing("pe.embeddings", recipe.embedding)]
    embedding, why = set_up("pe.embeddings", recipe.embedding)
    if embedding is None and not recipe.embedding.kind.startswith(OBJECT):
        found.append(f"the embedding cannot be set up here: {why}")
    if isinstance(api, ChecksMachine):
        try:
            api.check_machine()
        except PEError as error:
            found.append(str(error))
    try:
        for plugin, does in ((api, "makes"), (embedding, "embeds")):
            if plugin is not None:
                check_modality(plugin, does, recipe)
        check_place(recipe)
        check_public_place(recipe, api)
    except PEError as error:
        found.append(str(error))
    return [f"A run would not start: {sentence[:1].lower()}{sentence[1:]}" for sentence in dict.fromkeys(found)]


def check_place(recipe: Recipe) -> None:
    """Refuse a recipe with nothing at the private data's path; what is there is not read.

    Raises:
        RecipeError: there is not.
    """
    path = recipe.private.place
    if path is not None and str(path) != WITHHELD and not path.exists():
        raise RecipeError(f"private.path: there is nothing at {path}: say where the private records are.")


def check_public_place(recipe: Recipe, api: object | None) -> None:
    """Refuse a generator whose public images lie where the private records do; no image is read.

    Raises:
        RecipeError: they do, and `privacy.pool_overlaps` is not `declared`.
    """
    path = recipe.private.place
    reader = reader_to_compare(recipe, api)
    if path is not None and str(path) != WITHHELD and reader is not None:
        check_apart(path, reader.public_paths())


def reader_to_compare(recipe: Recipe, api: object | None) -> ReadsPublicImages | None:
    """The generator, if it reads public images and none of them may be a private record; else None."""
    return _public_reader(api) if recipe.privacy.pool_overlaps == "refused" else None


def overlap_warnings(recipe: Recipe, api: object | None) -> list[str]:
    """What `privacy.pool_overlaps: declared` means, where the generator reads public images; else nothing."""
    declared = recipe.privacy.pool_overlaps == "declared"
    return [POOL_OVERLAPS] if declared and _public_reader(api) is not None else []


def _public_reader(api: object | None) -> ReadsPublicImages | None:
    return api if isinstance(api, ReadsPublicImages) and api.public_paths() else None


def _missing(group: Group, spec: PluginSpec) -> list[str]:
    try:
        if not spec.kind.startswith(OBJECT):
            require(group, spec.kind)
    except MissingDependency as error:
        return [str(error)]
    return []

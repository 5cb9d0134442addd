"""Build what a recipe names: the generator, the embedding, and the dispatcher that asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from threading import Event
from typing import Any

from pydantic import ValidationError

from pe.data.samples import modality
from pe.dispatch.dispatcher import Dispatcher
from pe.dispatch.limits import Limits, Meter
from pe.errors import PluginError, RecipeError
from pe.plugins.price import Price
from pe.plugins.protocols import (
    KINDS,
    NOTHING,
    Embedding,
    GenerationAPI,
    Generator,
    PluginInfo,
    Usage,
    as_generator,
    info_of,
)
from pe.plugins.registry import Group, load, plugins, require
from pe.plugins.specs import MemberSpec, PluginSpec, construct, members_of
from pe.progress import Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.store.writer import RunWriter


def build_generator(recipe: Recipe, own: GenerationAPI | None = None) -> Generator:
    """Construct the recipe's generator, or check the user's `own` object against the recipe."""
    api: Generator = as_generator(_build("pe.adapters", recipe.api, own))
    check_modality(api, "makes", recipe)
    return api


def build_embedding(recipe: Recipe, own: Embedding | None = None) -> Embedding:
    """Construct the recipe's embedding, or check the user's `own` object against the recipe."""
    embedding: Embedding = _build("pe.embeddings", recipe.embedding, own)
    check_modality(embedding, "embeds", recipe)
    return embedding


def _build(group: Group, spec: PluginSpec, own: object | None) -> Any:
    name = spec.kind.removeprefix(OBJECT)
    if own is not None:
        if class_of(spec.kind) != class_of(object_kind(own)):
            raise PluginError(
                f"The run was made with {name}, not with {object_kind(own).removeprefix(OBJECT)}."
            )
        return own
    if spec.kind.startswith(OBJECT):
        raise PluginError(
            f"The run was made with an object of your own, {name}: hand it over again from Python."
        )
    require(group, spec.kind)
    return construct(group, spec.kind, spec.settings)


def check_modality(plugin: object, does: str, recipe: Recipe) -> None:
    """Refuse a plug-in of another modality than the private records'."""
    kind = info_of(plugin).modality
    private = recipe.private.modality
    if kind != private.kind:
        raise RecipeError(
            f"{type(plugin).__name__} {does} {modality(kind).noun}, but the private records are "
            f"{private.noun}. Use one that {does} {private.noun}."
        )


def build_dispatcher(
    recipe: Recipe,
    api: Generator,
    run: RunWriter,
    progress: Progress,
    stop: Event,
    command: Callable[[str], str],
) -> Dispatcher:
    """Build the dispatcher that asks the generator `api` for the run, within its limits."""
    info = info_of(api)
    # Known before the first answer, so that limits.max_cost holds for the first request.
    usage = replace(
        info.tokens or NOTHING,
        megapixels=prod(info.drawn) / 1e6 if info.drawn else 0.0,
    )
    limits = Limits(**recipe.limits.model_dump(), max_refused=recipe.refusals.max_share)
    return Dispatcher(
        api=api,
        run=run,
        classes=recipe.private.labels,
        seed=recipe.seed,
        attempts=recipe.evolution.attempts,
        retries=recipe.refusals.retries,
        progress=progress,
        meter=Meter(limits, price_of(recipe), stop, usage),
        expected=(recipe.private.modality, info.shape or recipe.private.shape),
        command=command,
    )


def price_of(recipe: Recipe) -> Price:
    """Return the price of the recipe's generator, or of the several that it asks.

    Several share out the samples, or make each sample together.
    """
    members = members_of(recipe.api).values()
    several = [member.price.price for member in members]
    if all(price.free for price in several):
        return recipe.api.price.price
    if all(isinstance(member, MemberSpec) for member in members):
        return Price.of_several(several)
    return Price.of_parts(several)


def without_price(recipe: Recipe, api: Generator | None) -> list[PluginInfo]:
    """Return the declarations of the generators whose price the recipe does not state."""
    if recipe.api.price.is_stated or api is None:
        return []
    members = members_of(recipe.api)
    if not members or not api.others:
        return [info_of(api)]
    return [
        info
        for member, info in zip(members.values(), api.others, strict=True)
        if not member.price.is_stated
    ]


def usage_of(price: Price, api: Generator | None, calls: int, images: int) -> Usage | None:
    """Return the usage that is billed.

    It is None if tokens or pixels cost something, and their number is unknown.
    """
    info = PluginInfo() if api is None else info_of(api)
    size = info.drawn
    tokens = info.tokens
    if (price.has_tokens and tokens is None) or (price.megapixel and size is None):
        return None
    megapixels = images * size[0] * size[1] / 1e6 if size else 0.0
    counts = {kind: images * getattr(tokens, kind) for kind in KINDS} if tokens else {}
    return Usage(calls, images, megapixels=megapixels, **counts)


def declared(group: Group, kind: str) -> PluginInfo:
    """Return what the plug-in of this kind declares, or the defaults if none is installed."""
    return info_of(load(group, kind)) if kind in plugins(group) else PluginInfo()


def object_kind(plugin: object) -> str:
    """Return the recipe's `kind` for an object of the user's own."""
    return f"{OBJECT}{type(plugin).__module__}.{type(plugin).__qualname__}"


def class_of(kind: str) -> str:
    """Return the kind by which two recipes are compared.

    An object's is the name of its class, without the module.
    """
    return f"{OBJECT}{kind.rpartition('.')[2]}" if kind.startswith(OBJECT) else kind


def set_up(group: Group, spec: PluginSpec) -> tuple[Any | None, str]:
    """Construct a plug-in, or return None and the reason why that fails on this machine.

    Raises:
        PluginError: there is no plug-in of this name.
        RecipeError: a setting is unknown, missing or of the wrong type.
    """
    if spec.kind.startswith(OBJECT):
        return None, f"{spec.kind.removeprefix(OBJECT)} is an object of your own."
    try:
        plugin = construct(group, spec.kind, spec.settings)
        _ = plugin.capabilities if group == "pe.adapters" else plugin.batch_size
    # A library may raise anything that lacks its weights, its device or its key.
    except Exception as error:
        mistake = isinstance(error, RecipeError) and isinstance(error.__cause__, ValidationError)
        if mistake or spec.kind not in plugins(group):
            raise
        return None, str(error)
    return plugin, ""


def set_up_generator(spec: PluginSpec) -> tuple[Generator | None, str]:
    """Construct a recipe's generator as `set_up` does.

    The reason, if it fails, is a sentence for a plan.
    """
    api, why = set_up("pe.adapters", spec)
    if api is not None:
        return api, ""
    if spec.kind.startswith(OBJECT):
        return None, f"The number of calls is unknown: {why}"
    return (
        None,
        f"The number of calls is unknown, because the generator cannot be set up here: {why}",
    )

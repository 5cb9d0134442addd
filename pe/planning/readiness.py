"""Whether this machine has what a recipe names: plug-ins that can be set up, their libraries, the private data's place.

Looked up, without asking a plug-in for anything, and without reading a private record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np

from pe.data.remote import RemotePath
from pe.dispatch.work import draw_conditions
from pe.errors import MissingDependency, PEError, RecipeError
from pe.nearest import describe
from pe.planning.apart import check_apart
from pe.planning.build import check_modality, set_up, unpriced
from pe.plugins.devices import DescribesPrecision
from pe.plugins.protocols import (
    ChecksLabels,
    ChecksMachine,
    DrawsConditions,
    GenerationAPI,
    ReadsPublicSamples,
    info_of,
)
from pe.plugins.registry import Group, require
from pe.plugins.specs import PluginSpec, members_of
from pe.privacy.data_set import DataSetLedger
from pe.privacy.release import Release
from pe.privacy.words import POOL_OVERLAPS
from pe.private.source import PrivateSource
from pe.recipe.paths import WITHHELD
from pe.recipe.schema import OBJECT, Recipe


def obstacles(recipe: Recipe, api: GenerationAPI | None = None) -> list[str]:
    """What would refuse a start of the recipe here and now, one sentence each; the generator's settings aside.

    Args:
        recipe: the recipe.
        api: its generator, where it could be set up.

    Raises:
        PluginError: the embedding is unknown.
        RecipeError: a setting of the embedding is unknown, missing or of the wrong type.
    """
    generators = [recipe.api, *members_of(recipe.api).values()]
    found = [each for one in generators for each in _missing("pe.adapters", one)]
    found += _missing("pe.embeddings", recipe.embedding)
    embedding, why = set_up("pe.embeddings", recipe.embedding)
    if embedding is None and not recipe.embedding.kind.startswith(OBJECT):
        found.append(f"the embedding cannot be set up here: {why}")
    for check in _checks(recipe, api):
        try:
            check()
        except PEError as error:
            found.append(str(error))
    try:
        for plugin, does in ((api, "makes"), (embedding, "embeds")):
            if plugin is not None:
                check_modality(plugin, does, recipe)
        check_place(recipe)
        check_public_place(recipe, api, embedding)
    except PEError as error:
        found.append(str(error))
    return [f"A run would not start: {sentence[:1].lower()}{sentence[1:]}" for sentence in dict.fromkeys(found)]


def check_labels(api: object, labels: tuple[str, ...]) -> None:
    """Refuse labels that the generator cannot serve: it says so itself, or fails to draw a condition for each of them.

    Raises:
        RecipeError: it cannot.
        ContractError: what it draws are no conditions.
    """
    if isinstance(api, ChecksLabels):
        api.check_labels(labels)
    elif isinstance(api, DrawsConditions):
        try:
            draw_conditions(api, labels, np.arange(len(labels), dtype=np.uint64))
        except PEError:
            raise
        except Exception as error:
            raise RecipeError(
                f"The generator {type(api).__name__} fails to draw conditions for the labels {', '.join(labels)}: "
                f"{type(error).__name__}: {error}."
            ) from error


def check_search(recipe: Recipe) -> None:
    """Refuse a neighbour search that this machine has not, where there are votes.

    Raises:
        MissingDependency: its library is not installed.
        RecipeError: torch sees none of the driver's GPUs.
    """
    if recipe.evolution.iterations != 0:
        describe(recipe.evolution.neighbor_search)


def check_price(recipe: Recipe, api: GenerationAPI) -> None:
    """Refuse a run that asks another machine for samples whose price is not stated, if nothing else limits it.

    Raises:
        RecipeError: it does.
    """
    hosts = dict.fromkeys(host for info in unpriced(recipe, api) for host in info.elsewhere)
    if hosts and recipe.limits.max_images is None:
        raise RecipeError(
            f"What {', '.join(hosts)} charges is not stated: give api.price and limits.max_cost "
            "(price: {image: 0} where it costs nothing), or limits.max_images."
        )


def look_ahead(recipe: Recipe, api: GenerationAPI | None) -> list[str]:
    """What a plan tells of a start here and now: `obstacles`, and the warnings of a run."""
    return [*obstacles(recipe, api), *overlap_warnings(recipe, api), *size_warnings(recipe, api)]


def _checks(recipe: Recipe, api: GenerationAPI | None) -> Iterator[Callable[[], object]]:
    """What the generator itself can refuse before it is asked for anything."""
    if isinstance(api, ChecksMachine):
        yield api.check_machine
    if isinstance(api, DescribesPrecision):
        yield api.describe_precision
    if api is not None:
        yield lambda: check_price(recipe, api)
    yield lambda: check_labels(api, recipe.private.labels)
    yield lambda: check_search(recipe)


def cap_obstacles(recipe: Recipe, releases: Sequence[Release]) -> list[str]:
    """Whether the data set's cap would refuse a new run with these releases, by its ledger file as it stands now.

    The file is read, if there is one; it holds no private value.
    """
    if WITHHELD in (str(recipe.private.ledger_file), str(recipe.private.place)):
        return []
    try:
        ledger = data_set_ledger(recipe.private)
        refusal = "" if ledger is None else ledger.refusal(releases)
    except PEError as error:
        refusal = str(error)
    return [f"A run would not start: {refusal[:1].lower()}{refusal[1:]}"] if refusal else []


def data_set_ledger(source: PrivateSource) -> DataSetLedger | None:
    """The ledger file that the runs over a source's records are entered in; None for a sample without a place on disk.

    Raises:
        RecipeError: its place is withheld, as where a recipe is shared, or the records are remote and it is not named.
    """
    if str(source.ledger_file) == WITHHELD:
        raise RecipeError(
            f"private.ledger_file is '{WITHHELD}', as where a recipe is shared: name the data set's ledger file."
        )
    if source.ledger_file is not None:
        return DataSetLedger(source.ledger_file)
    if isinstance(source.place, RemotePath):
        raise RecipeError(
            f"private.ledger_file is not set, and no ledger file can lie beside {source.place}: name a file on this "
            "machine that all runs over these records share."
        )
    return None if source.place is None else DataSetLedger.beside(source.place)


def check_place(recipe: Recipe) -> None:
    """Refuse a recipe with nothing at the private data's path; what is there is not read, nor a store asked for it.

    Raises:
        RecipeError: there is not, or a remote one names no ledger file.
    """
    path = recipe.private.place
    if isinstance(path, RemotePath):
        data_set_ledger(recipe.private)
    elif path is not None and str(path) != WITHHELD and not path.exists():
        raise RecipeError(f"private.path: there is nothing at {path}: say where the private records are.")


def check_public_place(recipe: Recipe, *plugins: object) -> None:
    """Refuse plug-ins whose public samples lie where the private records do; no sample is read.

    Raises:
        RecipeError: they do, and `privacy.pool_overlaps` is not `declared`.
    """
    path = recipe.private.place
    if not isinstance(path, Path) or str(path) == WITHHELD or recipe.privacy.pool_overlaps == "declared":
        return
    for plugin in plugins:
        if reads_public(plugin):
            check_apart(path, plugin.public_paths(), recipe.private.modality.noun)


def overlap_warnings(recipe: Recipe, *plugins: object) -> list[str]:
    """What `privacy.pool_overlaps: declared` means, where a plug-in reads public samples; else nothing."""
    declared = recipe.privacy.pool_overlaps == "declared"
    return [POOL_OVERLAPS] if declared and any(map(reads_public, plugins)) else []


def size_warnings(recipe: Recipe, api: object | None) -> list[str]:
    """What it means that the generator declares another size than the private images have; nothing if it does not."""
    made, private = None if api is None else info_of(api).shape, recipe.private.shape
    noun, axes = recipe.private.modality.noun, recipe.private.modality.axes
    if made is None or made == private:
        return []
    theirs, ours = ("×".join(map(str, shape)) for shape in (made, private))
    return [
        f"The generator makes {noun} of {theirs} ({axes}), and the private {noun} are {ours}: the embedding must bring "
        f"both to one size for the votes, and the synthetic {noun} are {theirs}."
    ]


def reads_public(plugin: object) -> TypeGuard[ReadsPublicSamples]:
    """Whether a plug-in reads public samples from files."""
    return isinstance(plugin, ReadsPublicSamples) and bool(plugin.public_paths())


def _missing(group: Group, spec: PluginSpec) -> list[str]:
    try:
        if not spec.kind.startswith(OBJECT):
            require(group, spec.kind)
    except MissingDependency as error:
        return [str(error)]
    return []

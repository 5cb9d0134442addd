"""Refusals to start on this machine, and warnings for plan, run and certificate.

No private record is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeGuard

import numpy as np

from pe.data.remote import RemotePath
from pe.dispatch.work import draw_conditions
from pe.errors import BudgetExceeded, PEError, RecipeError
from pe.nearest import describe_search
from pe.planning.parts import check_modality, price_of, set_up, usage_of, without_price
from pe.planning.releases import check_fit
from pe.plugins.protocols import (
    Generator,
    ReadsPublicSamples,
    Usage,
)
from pe.plugins.registry import Group, require
from pe.plugins.specs import PluginSpec, members_of
from pe.privacy.certificate_text import guarantee
from pe.privacy.data_set import MIXED, DataSetLedger
from pe.privacy.release import Release
from pe.private.source import PrivateSource
from pe.recipe.page import page
from pe.recipe.reading import WITHHELD
from pe.recipe.schema import OBJECT, Recipe
from pe.steps import Plan


def meaning_of(api: Generator | None, degree: float, t: int) -> str:
    """Return the generator's words for a degree in iteration t.

    They are empty if it has none, and "refused" if it cannot obey.
    """
    try:
        return "" if api is None else api.describe_degree(degree, t)
    except RecipeError:
        return "refused"


def precision_of(api: Generator | None) -> str:
    """Return the precision of the generator's arithmetic.

    It is empty if the generator computes elsewhere, or if a start would be refused.
    """
    try:
        return "" if api is None else api.describe_precision()
    except RecipeError:
        return ""


# Warnings, one sentence each.


def cost_warnings(
    recipe: Recipe,
    api: Generator | None,
    calls: int | None,
    needs: Mapping[str, float | None],
) -> list[str]:
    """Return warnings on a cost that is unknown or only bounded, and on limits that are near.

    `needs` are what the run needs, by the key of `limits`; None stands for an unknown number.
    """
    price = price_of(recipe)
    images = int(needs["max_images"] or 0)
    text = page(
        "pe.planning",
        "cost.txt.jinja",
        price=price,
        is_known=usage_of(price, api, 0, 0) is not None,
        least=price.most_of(Usage(calls or 0, images)),
        most=price.most_of(Usage(images, images)),
        calls=calls,
        noun=recipe.private.modality.noun,
        limits=recipe.limits,
        needs=needs,
    )
    return text.splitlines()


# Refusals of a start: what this machine lacks, or the generator cannot do.


def refusals(*tries: Callable[[], object]) -> list[str]:
    """Call each of `tries`, and return a plan's sentence for each PEError that is raised.

    No sentence comes twice.
    """
    sentences = []
    for each in tries:
        try:
            each()
        except PEError as error:
            sentences.append(f"A run would not start. {error}")
    return list(dict.fromkeys(sentences))


def start_checks(
    recipe: Recipe,
    api: Generator | None,
    embedding: object,
) -> Iterator[Callable[[], object]]:
    """Yield the checks that the generator and this machine can do what the recipe needs.

    No check asks for a sample.
    """
    if api is not None:
        yield api.check_machine
        yield api.describe_precision
        yield lambda: check_price(recipe, api)
        yield lambda: check_labels(api, recipe.private.labels)
    if recipe.evolution.iterations != 0:
        yield lambda: describe_search(recipe.evolution.neighbor_search)
    yield lambda: check_fit(recipe)
    yield lambda: check_public_place(recipe, api, embedding)


def obstacles(recipe: Recipe, api: Generator | None = None) -> list[str]:
    """Return a sentence for each reason to refuse a start of the recipe here and now.

    No sample is asked for.

    `api` is the generator, where it could be set up; mistakes in its settings are not looked for.

    Raises:
        PluginError: the embedding is unknown.
        RecipeError: a setting of the embedding is unknown, missing or of the wrong type.
    """
    embedding, why = set_up("pe.embeddings", recipe.embedding)

    def check_embedding() -> None:
        if embedding is None and not recipe.embedding.kind.startswith(OBJECT):
            raise RecipeError(f"The embedding cannot be set up here: {why}")

    def check_both() -> None:
        for plugin, does in ((api, "makes"), (embedding, "embeds")):
            if plugin is not None:
                check_modality(plugin, does, recipe)
        check_place(recipe)

    generators = (recipe.api, *members_of(recipe.api).values())
    return refusals(
        *(partial(_require, "pe.adapters", one) for one in generators),
        partial(_require, "pe.embeddings", recipe.embedding),
        check_embedding,
        *start_checks(recipe, api, embedding),
        check_both,
    )


def _require(group: Group, spec: PluginSpec) -> None:
    if not spec.kind.startswith(OBJECT):
        require(group, spec.kind)


def check_degrees(plan: Plan, api: Generator) -> None:
    """Refuse a degree of the plan that the generator cannot obey."""
    for step in plan.steps:
        api.describe_degree(step.degree, step.t)


def check_labels(api: Generator, labels: tuple[str, ...]) -> None:
    """Refuse labels that the generator cannot serve.

    It says so, or fails to draw a condition for each of them.
    """
    api.check_labels(labels)
    try:
        draw_conditions(api, labels, np.arange(len(labels), dtype=np.uint64))
    except PEError:
        raise
    except Exception as error:
        raise RecipeError(
            f"The generator {type(api).__name__} fails to draw conditions for the labels "
            f"{', '.join(labels)}: {type(error).__name__}: {error}."
        ) from error


def check_price(recipe: Recipe, api: Generator) -> None:
    """Refuse samples from other machines at an unstated price, if no limit bounds their number."""
    hosts = dict.fromkeys(host for info in without_price(recipe, api) for host in info.elsewhere)
    if hosts and recipe.limits.max_images is None:
        raise RecipeError(
            f"The price of {', '.join(hosts)} is not stated. Set `api.price` and "
            "`limits.max_cost` (`price: {image: 0}` if it is free), or `limits.max_images`."
        )


def check_cap(recipe: Recipe, releases: Sequence[Release]) -> None:
    """Refuse a new run that would exceed the present cap in the data-set ledger.

    No ledger file is made.
    """
    ledger = _ledger_of(recipe)
    refusal = "" if ledger is None else ledger.refusal(releases)
    if refusal:
        raise BudgetExceeded(refusal)


def data_set_warnings(recipe: Recipe, releases: Sequence[Release]) -> list[str]:
    """Tell what all runs over the records will have spent once this one is among them.

    Nothing is told if there are no others.
    """
    with suppress(PEError):  # a ledger that cannot be read: `check_cap` says why
        ledger = _ledger_of(recipe)
        total = {"runs": 1} if ledger is None else ledger.total(recipe.privacy.delta, releases)
        if total["runs"] > 1:
            spent = guarantee(total["epsilon"], total["delta"])
            end = f", {total['for']}. {MIXED}" if "for" in total else "."
            return [
                f"With this run, all {total['runs']} runs over the same records will have spent "
                f"{spent}{end}"
            ]
    return []


def _ledger_of(recipe: Recipe) -> DataSetLedger | None:
    """Return the ledger of a recipe's records.

    It is None if they have none, or if the recipe withholds where they lie.
    """
    is_withheld = WITHHELD in (str(recipe.private.ledger_file), str(recipe.private.place))
    return None if is_withheld else data_set_ledger(recipe.private)


def data_set_ledger(source: PrivateSource) -> DataSetLedger | None:
    """Return the ledger file of all runs over a source's records.

    Sample data without a place on disk has none.
    """
    if str(source.ledger_file) == WITHHELD:
        raise RecipeError(
            f"`private.ledger_file` is '{WITHHELD}', because this recipe was shared. Set it to the "
            "data set's ledger file."
        )
    if source.ledger_file is not None:
        return DataSetLedger(source.ledger_file)
    if isinstance(source.place, RemotePath):
        raise RecipeError(
            f"No ledger file can lie beside {source.place}. Set `private.ledger_file` to a file on "
            "this machine that all runs over these records share."
        )
    return None if source.place is None else DataSetLedger.beside(source.place)


def check_place(recipe: Recipe) -> None:
    """Refuse a recipe if nothing is at the private data's path.

    Data is not read, and a remote store is not asked.
    """
    path = recipe.private.place
    if isinstance(path, RemotePath):
        data_set_ledger(recipe.private)
    elif path is not None and str(path) != WITHHELD and not path.exists():
        raise RecipeError(
            f"There is nothing at {path}. Set `private.path` to where the private records are."
        )


# Public samples and private records lie apart: judged by their places on disk, without reading a
# file.


def reads_public(plugin: object) -> TypeGuard[ReadsPublicSamples]:
    """True for a plug-in that reads public samples from files."""
    return isinstance(plugin, ReadsPublicSamples) and bool(plugin.public_paths())


def check_public_place(recipe: Recipe, *plugins: object) -> None:
    """Refuse plug-ins whose public samples lie where the private records do. No sample is read."""
    path = recipe.private.place
    if (
        not isinstance(path, Path)
        or str(path) == WITHHELD
        or recipe.privacy.pool_overlaps == "declared"
    ):
        return
    for plugin in plugins:
        if reads_public(plugin):
            check_apart(path, plugin.public_paths(), recipe.private.modality.noun)


def check_apart(private: Path, public: Iterable[Path], noun: str = "images") -> None:
    """Refuse public samples that share a place or a file with the private records.

    Symbolic and hard links are recognised. No file is opened. Public folders and files need not
    exist yet. Messages call the samples `noun`.
    """
    for path in public:
        meeting = _meeting(private, path)
        if meeting:
            raise RecipeError(
                f"The public {noun} {path} {meeting}. Use {noun} that hold no private record. If "
                "these records are published, set `privacy.pool_overlaps: declared`."
            )


def _meeting(private: Path, public: Path) -> str:
    """Return words on how the two places meet, or an empty text if they are apart."""
    ours = private.resolve()
    theirs = public.resolve()
    if ours == theirs:
        return f"are the private records {private}"
    if theirs.is_relative_to(ours):
        return f"lie in the private records {private}"
    if ours.is_relative_to(theirs):
        return f"contain the private records {private}"
    hard_links = set()
    for path in _below(public):
        if path.is_symlink() and path.resolve().is_relative_to(ours):
            return f"link to the private records by {path}"
        hard_links |= _hard_link(path)
    if hard_links:  # else there is no need to look through the private folder
        for path in _below(private):
            if _hard_link(path) & hard_links:
                return f"share a file with the private records, {path}"
    return ""


def _below(path: Path) -> Iterator[Path]:
    """Yield every folder and file below a folder, or the file itself."""
    if not path.is_dir():
        yield path
    for folder, folders, files in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *files))


def _hard_link(path: Path) -> set[tuple[int, int]]:
    """Return the device and inode of a file that has several names, else an empty set."""
    if not path.is_file() or path.stat().st_nlink < 2:
        return set()
    status = path.stat()
    return {(status.st_dev, status.st_ino)}

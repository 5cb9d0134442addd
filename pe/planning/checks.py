"""Until when private work is held back, so that its end tells nothing: by the declared size and a try on this machine.

Nothing here reads a private record: random vectors and blank samples stand in for them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np

from pe.data.remote import RemotePath
from pe.dispatch.work import draw_conditions
from pe.errors import MissingDependency, PEError, RecipeError
from pe.fit.trainer import DryRun
from pe.histogram import Voting
from pe.nearest import describe, nearest
from pe.planning.build import check_modality, set_up, unpriced, usage_of
from pe.planning.calls import Span
from pe.planning.choice import few_warnings, signal_of, signal_warnings
from pe.plugins.devices import DescribesPrecision
from pe.plugins.embed import calls_for_a_failing_sample
from pe.plugins.price import Price
from pe.plugins.protocols import (
    ChecksLabels,
    ChecksMachine,
    DescribesDegree,
    DrawsConditions,
    Embedding,
    GenerationAPI,
    ReadsPublicSamples,
    Usage,
    Vectors,
    info_of,
)
from pe.plugins.registry import Group, PluginSpec, members_of, require
from pe.privacy.data_set import DataSetLedger
from pe.privacy.release import Release
from pe.privacy.words import NO_NOISE, POOL_OVERLAPS, finite, warnings
from pe.private.embeddings import SPARE, blocks_for
from pe.private.source import PrivateSource
from pe.recipe.reading import WITHHELD
from pe.recipe.schema import OBJECT, Recipe
from pe.recipe.usual_embedding import lacks_network
from pe.steps import Plan

EMBEDDING = "embedding"
"""The name of the embedding of all private records among the deadlines; releases have their own."""

_AT_LEAST = 0.4  # what a release takes to become durable, and then some
_DRAWS = 5e6
"""Draws of noise a second, a low estimate."""
_SECONDS_PER_NUMBER = 1e-8
"""To write a vector's number durably and to hash it, a high estimate."""
_TRIED = 2048, 2**14
"""Most queries and candidates of the search that is tried."""
_TIED = 64, 1024
"""Do the same where all candidates are equally near."""


@dataclass(frozen=True)
class ClockTerms:
    """Whether a run has a public clock, and why.

    Attributes:
        on: whether private work is held back.
        why: in words, for `pe plan`.
        warning: one sentence where whoever answers requests may learn the time of private work; else empty.
    """

    on: bool
    why: str
    warning: str = ""


def clock_terms(recipe: Recipe, api: GenerationAPI | None) -> ClockTerms:
    """Whether the recipe's run, with this generator (None: it could not be set up), has a public clock.

    By default it has one where the generator asks other machines, or does not say whether it does.
    """
    if recipe.privacy.noiseless:
        return ClockTerms(False, "off: with privacy: none nothing is protected")
    wanted, hosts = recipe.privacy.public_clock, info_of(api).hosts if api is not None else None
    if wanted == "never":
        return ClockTerms(False, "off: privacy.public_clock is 'never'", _warn_of(hosts))
    if hosts == () and wanted == "auto":
        return ClockTerms(False, "off: no other machine sees how long private work takes")
    who = "privacy.public_clock is 'always'" if hosts == () else f"requests go to {_name_hosts(hosts)}"
    if recipe.private.declared_size is None:
        return ClockTerms(False, "off: private.declared_size is missing", _warn_of(hosts))
    return ClockTerms(True, f"on: {who}")


def _name_hosts(hosts: Sequence[str] | None) -> str:
    return "an object that declares no hosts" if hosts is None else ", ".join(hosts)


def _warn_of(hosts: Sequence[str] | None) -> str:
    if hosts == ():
        return ""
    return (
        f"Requests go to {_name_hosts(hosts)}: whoever times them learns how long private work takes, which depends on "
        "the number of private records and on the records; state private.declared_size, and leave privacy.public_clock."
    )


@dataclass(frozen=True)
class HeldBack:
    """What the public clock adds to a run.

    Attributes:
        terms: whether there is one, and why.
        seconds: deadlines by name; empty where there is none, or where they cannot be tried here.
        unheld: releases that have no deadline.
    """

    terms: ClockTerms
    seconds: dict[str, float]
    unheld: tuple[str, ...] = ()


def held_back(
    recipe: Recipe, plan: Plan, api: GenerationAPI | None, embedding: Embedding | None, dry_runs: Sequence[DryRun] = ()
) -> HeldBack:
    """What the public clock will add to a run here; an embedding that asks other machines is not tried."""
    terms = clock_terms(recipe, api)
    if not terms.on or embedding is None or info_of(embedding).hosts:
        return HeldBack(terms, {})
    seconds, unheld = deadlines(recipe, plan, embedding, dry_runs)
    return HeldBack(terms, seconds, tuple(unheld))


def deadlines(
    recipe: Recipe, plan: Plan, embedding: Embedding, dry_runs: Sequence[DryRun] = ()
) -> tuple[dict[str, float], list[str]]:
    """Seconds until which each piece of private work is held back, by name; and the releases that have none.

    Each is `privacy.clock_slack` times what the work takes here for a tenth more records than are declared, one of
    which the embedding fails on, rounded up to 1, 2 or 5 times a power of ten. A search gets at least the time that
    the most costly candidates take, which whoever makes the candidates may choose: all equally near to each record.

    Args:
        recipe: with a declared size.
        plan: of the recipe.
        embedding: tried on blank samples, once or twice.
        dry_runs: of the fit, where there is one.
    """
    private, slack = recipe.private, recipe.privacy.clock_slack
    assert private.declared_size is not None
    records = math.ceil(private.declared_size * SPARE)
    blank = private.modality.stack([None] * embedding.batch_size, private.shape)
    dimension = embedding.embed(blank).shape[1]  # loads the network
    embed = _seconds_of(lambda: embedding.embed(blank))
    calls = blocks_for(private.declared_size, embedding.batch_size)
    calls += calls_for_a_failing_sample(embedding.batch_size)
    decoding = records * _seconds_of(private.decoding())
    found = {EMBEDDING: calls * embed + decoding + records * dimension * _SECONDS_PER_NUMBER}
    if plan.class_counts is not None:
        found[plan.class_counts.name] = records / _DRAWS
    for release in plan.fit:
        tried = next((one for one in dry_runs if release.name.startswith(f"{one.part}/")), None)
        if tried is not None:  # whichever is drawn first in a process reads the records
            seconds = tried.seconds_per_step + tried.parameters / _DRAWS
            found[release.name] = release.count * seconds + decoding
    populations = [plan.sizes, *(step.sizes for step in plan.steps)]
    search: dict[int, tuple[float, float]] = {}
    worst = {}
    for step, sizes in zip(plan.steps, populations, strict=False):
        most = max(sizes) if plan.class_counts is None else sum(sizes)
        if most not in search:
            search[most] = _search_seconds(records, most, dimension, plan.voting)
        usual, worst[step.release.name] = search[most]
        found[step.release.name] = usual + sum(sizes) / _DRAWS
    unheld = [release.name for release in plan.releases if release.name not in found]
    held = {name: max(slack * needed, worst.get(name, 0.0)) for name, needed in found.items()}
    return {name: round_up(_AT_LEAST + needed) for name, needed in held.items()}, unheld


def round_up(seconds: float) -> float:
    """1, 2 or 5 times a power of ten, at least `seconds` > 0: so that a try's own chance seldom shows."""
    power = 10.0 ** math.floor(math.log10(seconds))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= seconds * (1 - 1e-9)))


def _search_seconds(records: int, candidates: int, dimension: int, rule: Voting) -> tuple[float, float]:
    """What it takes to find the nearest candidates of so many records: usually, and where all are equally near."""
    rng = np.random.default_rng(0)
    rows, columns = min(records, _TRIED[0]), max(rule.neighbors, min(candidates, _TRIED[1]))
    queries, found = (rng.standard_normal((n, dimension), np.float32) for n in (rows, columns))
    _search(queries[:1], found, rule)  # loads the library
    one = _seconds_of(lambda: _search(queries[:1], found, rule))
    many = _seconds_of(lambda: _search(queries, found, rule))
    usual = max(1.0, candidates / columns) * (one + records * max(0.0, many - one) / rows)
    rows, columns = min(records, _TIED[0]), max(rule.neighbors, min(candidates, _TIED[1]))
    queries = rng.standard_normal((rows, dimension), np.float32)
    found = np.repeat(rng.standard_normal((1, dimension), np.float32), columns, axis=0)
    queries[:, 0], found[:, 0] = 0, np.arange(1, columns + 1) * np.float32(1e-12)  # less than float64 tells apart
    tied = _seconds_of(lambda: _search(queries, found, rule)) * (records / rows) * max(1.0, candidates / columns)
    return usual, tied


def _search(queries: Vectors, candidates: Vectors, rule: Voting) -> object:
    return nearest(queries, candidates, rule.neighbors, metric=rule.metric, backend=rule.neighbor_search)


def _seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# What a plan warns of, and what all that tells of a run warns of alike: one sentence each.


def meaning_of(api: GenerationAPI, degree: float, t: int) -> tuple[str, str]:
    """What a degree comes to in iteration t, and why it is refused; each may be empty."""
    try:
        return (api.describe_degree(degree, t), "") if isinstance(api, DescribesDegree) else ("", "")
    except RecipeError as error:
        return "refused", str(error)


def precision_of(api: GenerationAPI | None) -> str:
    """The precision of the generator's arithmetic here; empty: it computes elsewhere, or a start would be refused."""
    try:
        return api.describe_precision() if isinstance(api, DescribesPrecision) else ""
    except RecipeError:
        return ""


def refusals(degrees: Iterable[tuple[float, int]], api: GenerationAPI | None) -> list[str]:
    """About those of the degrees that the generator cannot obey in their iterations."""
    found = [] if api is None else [meaning_of(api, degree, t)[1] for degree, t in degrees]
    return [f"A run would not start: {sentence}" for sentence in dict.fromkeys(found) if sentence]


def cost_warnings(
    price: Price, api: GenerationAPI | None, calls: Span | None, images: Span, noun: str = "images"
) -> list[str]:
    """About numbers of calls and samples, and costs, that are not settled yet."""
    found = []
    if calls is not None and calls.least < calls.most:
        found.append(
            f"The run makes {calls.least:,} to {calls.most:,} calls, as many parents or conditions as differ; "
            "the larger number is stated."
        )
    if images.least < images.most:
        found.append(
            f"The run makes {images.least:,} to {images.most:,} {noun}, as the votes decide: what is kept, or was made "
            "by the lookahead that is reused, is not asked for again; the larger number is stated."
        )
    if len(price.each) > 1 and usage_of(price, api, 0, 0) is not None:
        found.append(
            f"Each generator has its own price, and the votes decide who makes how many {noun}: the cost is stated "
            f"from all {noun} by the cheapest to all by the dearest."
        )
    if usage_of(price, api, 0, 0) is None:
        least = f"{price.least_of(Usage(calls.least if calls else 0, images.least)):.2f} {price.currency}"
        what = "tokens are" if price.has_tokens else "the size is at which the generator draws"
        found.append(f"The cost is unknown, because {what}; calls and {noun} alone cost {least} or more.")
    elif calls is None and price.call:
        most = f"{price.most_of(Usage(images.most, images.most)):.2f} {price.currency}"
        one = f"with a call for each of the {noun}"
        found.append(f"The cost is unknown, because the calls are; {one} it would be {most}.")
    return found


def limit_warnings(
    recipe: Recipe, images: Span, cost: tuple[float | None, float | None], rate: float | None
) -> list[str]:
    """About limits that the run reaches, or may reach, before its end."""
    limits = recipe.limits
    seconds = (None, None) if rate is None else (images.least / rate, images.most / rate)
    needs: tuple[tuple[str, float | None, float | None, float | None], ...] = (
        ("max_images", limits.max_images, images.least, images.most),
        ("max_cost", limits.max_cost, *cost),
        ("max_seconds", limits.max_seconds, *seconds),
    )
    found = []
    for name, limit, least, most in needs:
        if limit is None or least is None or most is None or limit >= most:
            continue
        if limit < least:
            found.append(f"limits.{name} = {limit:,.10g} stops the run before its end, which needs {least:,.10g}.")
        else:
            found.append(f"limits.{name} = {limit:,.10g} may stop the run, which needs {least:,.10g} to {most:,.10g}.")
    return found


def guarantee_warnings(recipe: Recipe, plan: Plan, epsilon: float) -> list[str]:
    """What is to be known of a run's guarantee and of its votes, from public numbers, one sentence each.

    The same list stands in the plan, on the console of the run, in its certificate and in its report.

    Args:
        recipe: of the run.
        plan: of the recipe.
        epsilon: of all its releases.
    """
    private = recipe.private
    if recipe.privacy.noiseless:
        return [NO_NOISE, *vote_warnings(recipe, plan)]
    implied = warnings(finite(epsilon), recipe.privacy.delta, private.declared_size, private.declared_units)
    return [*implied, *vote_warnings(recipe, plan)]


def vote_warnings(recipe: Recipe, plan: Plan) -> list[str]:
    """Of `guarantee_warnings` those that do not follow from ε, δ and the declared size: about votes and their noise."""
    if recipe.private.declared_size is None:
        return [
            "private.declared_size is missing, so votes per candidate are unknown and delta is not checked: "
            "state about how many private records there are (it will be public)."
        ]
    candidates = [plan.sizes, *(step.sizes for step in plan.steps)]
    signals = [signal_of(recipe, plan, step, sizes) for step, sizes in zip(plan.steps, candidates, strict=False)]
    return [*few_warnings(recipe, plan, signals), *signal_warnings(recipe, plan, signals)]


def pool_warnings(recipe: Recipe, api: GenerationAPI) -> list[str]:
    """That a run over a pool ends with public samples as they were."""
    if info_of(api).distinct is None:
        return []
    noun = recipe.private.modality.noun
    return [
        f"The {noun} are public ones, unchanged: the votes chose them from a pool and labelled them. Their licences "
        "hold, and who is in them stays in them."
    ]


def recipe_warnings(recipe: Recipe, clock: ClockTerms) -> list[str]:
    """About the privacy unit, the public clock, a part of the budget that nothing uses, and a missing network."""
    blurred = lacks_network(recipe.private, recipe.embedding.kind) if recipe.evolution.iterations else ""
    return [*_unit_warnings(recipe), *filter(None, [clock.warning, blurred]), *_share_warnings(recipe)]


def _unit_warnings(recipe: Recipe) -> list[str]:
    """About votes of which others than records have one."""
    unit = recipe.private.privacy_unit
    if unit == "record" or recipe.private.declared_size is None or recipe.private.declared_units is not None:
        return []
    return [
        f"All records of a {unit} together weigh as one, so there are fewer votes per candidate than foretold: state "
        "private.declared_units, about how many units there are (it will be public)."
    ]


def _share_warnings(recipe: Recipe) -> list[str]:
    """About a part of the budget that nothing uses."""
    share = None if recipe.api.fit is None else recipe.api.fit.budget_share
    if share is None or share == 1 or recipe.evolution.iterations or recipe.evolution.estimate_label_sizes:
        return []
    return [
        f"Nothing uses {1 - share:.4g} of privacy.epsilon, because api.fit.budget_share is {share:g} and there are no "
        "iterations: leave the share out, or evolve what was fitted."
    ]


# Whether public samples lie apart from the private records: by their places on disk, without reading a file.


Identity = tuple[int, int]
"""Device and inode: the same for a file or folder under all its names."""


def check_apart(private: Path, public: Iterable[Path], noun: str = "images") -> None:
    """Refuse public samples that are, hold, lie in or share a file with the private records' place.

    Symbolic links, hard links and folders that are mounted twice are recognised. Names and inodes are read, and no
    file's content.

    Args:
        private: the folder or file of private records.
        public: the folders and files that public samples are read from; they need not exist yet.
        noun: what messages call the samples.

    Raises:
        RecipeError: they are not apart.
    """
    for path in public:
        if meeting := _meeting(private, path):
            raise RecipeError(
                f"The public {noun} {path} {meeting}: name {noun} that hold no private record, or, if these records "
                "are published, set privacy.pool_overlaps: declared in the recipe."
            )


def _meeting(private: Path, public: Path) -> str:
    """How the two places meet, in words; empty: they are apart."""
    ours, theirs = _chain(private), _chain(public)
    own = ours[0]
    if own is not None and own in theirs:
        return f"are the private records {private}" if own == theirs[0] else f"lie in the private records {private}"
    if theirs[0] is not None and theirs[0] in ours:
        return f"contain the private records {private}"
    linked = set()
    for path in _below(public):
        if own is not None and path.is_symlink() and own in _chain(path):
            return f"link to the private records by {path}"
        linked |= _hard_link(path)
    if linked:  # else there is no need to look through the private folder
        for path in _below(private):
            if _hard_link(path) & linked:
                return f"share a file with the private records, {path}"
    return ""


def _chain(path: Path) -> list[Identity | None]:
    """What `path` is, links followed, and then each folder above it; None where nothing is there."""
    real = path.resolve()
    return [_identity(one) for one in (real, *real.parents)]


def _identity(path: Path) -> Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _below(path: Path) -> Iterator[Path]:
    """Everything below a folder; or the file itself."""
    if not path.is_dir():
        yield path
    for folder, folders, files in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *files))


def _hard_link(path: Path) -> set[Identity]:
    """The identity of a file that has several names; empty for all else."""
    try:
        status = path.stat()
    except OSError:
        return set()
    return {(status.st_dev, status.st_ino)} if status.st_nlink > 1 and not path.is_dir() else set()


# Whether this machine has what a recipe names: plug-ins that can be set up, their libraries, the private data's place.
#
# Looked up, without asking a plug-in for anything, and without reading a private record.


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

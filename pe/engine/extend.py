"""More samples from a finished run, at no further ε (§4.2 of the paper)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pe.data.arrays import Float64Array, Int64Array
from pe.data.population import Population
from pe.data.samples import BETWEEN, EXAMPLES, Conditions, generator
from pe.data.texts import runs_of_words
from pe.engine.execution import RunContext
from pe.engine.private_side import PublicPool
from pe.engine.process import logging_to
from pe.engine.report import report_answers, write_report
from pe.engine.status import pending_extension
from pe.errors import DamagedFile, RecipeError, RunError, quoted
from pe.fit.trainer import MODEL, Trainer, load_model
from pe.planning.forecast import load_changed
from pe.planning.named import check_named
from pe.planning.parts import build_dispatcher, build_generator
from pe.planning.releases import plan_of
from pe.plugins.protocols import Generator
from pe.privacy.covered import release_file, sha256
from pe.recipe.schema import MAX_SAMPLES, Recipe
from pe.report.pages import REPORT
from pe.selection import parent_weights
from pe.store.certified import (
    check_has_samples,
    digests,
    extension_numbers,
    extensions,
    read_certificate,
    reissue,
)
from pe.store.places import CONFIDENTIAL, EXTENSION, RECIPE, claims_file, extension_place
from pe.store.run import Run
from pe.store.writer import RunWriter


def extend_run(
    folder: Path,
    count: int,
    degree: float,
    context: RunContext,
    changes: tuple[str, ...] = (),
    examples: int = 0,
    tell: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Make `count` more samples of a finished run, resumable like the run itself.

    Return their file.

    The members of the last population are varied in turn, so labels keep their shares; after a vote
    whose best candidates were taken once each, the next best are (`next_best`). The certificate is
    issued anew, with the same ε: the samples are post-processing of the run's releases. The
    confidential side may have been purged. With `examples`, a language model is shown so many of
    the run's texts of the label, and asked for one more of their kind. `tell` is called with the
    file. If the process ends before that, the same call tells of the file that is there.

    Raises:
        RunError: the run is an export or not finished, another extension of it is not finished, or
            the public images that its generator reads have changed.
        DamagedFile: the fitted model is not the one that the certificate covers.
        RecipeError: a count or degree out of range, or a change (`a.b=value`) that gives the run
            another meaning; or the run was made elsewhere, and its recipe reaches what `changes` do
            not name (`check_named`).
    """
    if not (1 <= count <= MAX_SAMPLES and 0 <= degree <= 1):
        raise RecipeError(
            f"An extension has 1 to {MAX_SAMPLES:,} samples and a degree from 0 to 1, not "
            f"{count:,} samples and degree {degree:g}."
        )
    check_has_samples(Run.open_own(folder, "pe extend").folder)
    recipe = load_changed(folder / RECIPE, changes, "extended")
    check_named(folder, recipe, changes, "api")
    api = build_generator(recipe, context.api)
    with RunWriter.reopen(folder) as run, logging_to(folder / CONFIDENTIAL / "log.txt"):
        if run.journal.has_event("started") and not run.journal.has_event("finished"):
            raise RunError(f"{folder} is not finished: `pe run {quoted(folder)}` finishes it.")
        numbers: dict[str, Any] = {"count": count, "degree": degree}
        if examples:
            numbers["examples"] = examples
        noted = pending_extension(run.run) or {"index": 0}
        path = folder / f"extension-{noted['index']:03d}.npz"
        if noted == {"index": noted["index"], **numbers, "finished": True} and path.is_file():
            context.progress.tell(
                f"{path} was finished before, and nobody was told: nothing is asked."
            )
        else:
            path = _make(run, recipe, api, numbers, context)
        if (folder / REPORT).is_file():
            write_report(folder)
        tell(path)
        # Last of all: the same command now makes a new extension.
        (folder / EXTENSION).unlink(missing_ok=True)
    return path


def _make(
    run: RunWriter,
    recipe: Recipe,
    api: Generator,
    numbers: dict[str, Any],
    context: RunContext,
) -> Path:
    """Make an extension with these numbers, or go on with it, and certify it. Return its file."""
    folder = run.folder
    last = run.run.synthetic
    count = numbers["count"]
    degree = numbers["degree"]
    pool = None
    if not isinstance(api, Trainer):
        pool = PublicPool.of(recipe, {"api": api}, context.progress)
    if pool is not None:
        pool.check_same(folder)
    if "examples" in numbers:
        last = with_examples(last, numbers["examples"], degree, api, recipe.seed)
    if continues_ranking(recipe, degree):
        source, parents = next_best(run.run, recipe, count)
    else:
        source, parents = last, spread(len(last), count)
    index = _index(run, numbers)
    _load_certified_model(api, run.run)
    dispatcher = build_dispatcher(
        recipe,
        api,
        run,
        progress=context.progress,
        stop=context.stop,
        command=partial(context.hint, "extend", folder, **numbers),
    )
    place = extension_place(index)
    t = max(recipe.evolution.iterations, 1)
    with report_answers(api, context.progress):
        more = dispatcher.vary(
            f"extension/{index}",
            place,
            source,
            parents,
            degree,
            t,
            f"extension {index}",
        )
    if pool is not None:
        pool.check_same(folder)  # as the generator read it
    name = f"extension-{index:03d}.npz"
    run.write_samples(name, more, recipe.private.labels)
    run.journal.add_event(f"extended by {count}")
    columns = [f"{place}/{path.name}" for path in sorted((folder / place).iterdir())]
    reissue(folder, [name, *columns])
    run.write(EXTENSION, json.dumps({"index": index, **numbers, "finished": True}))
    return folder / name


def _load_certified_model(api: object, run: Run) -> None:
    for name in digests(read_certificate(run.folder)):
        if name.startswith(f"{MODEL}/"):
            _certified(run, name)
    load_model(api, run.folder)


def last_degree(folder: Path) -> float:
    """Return the degree of the run's last iteration.

    At another degree an extension's samples are of another kind.
    """
    recipe = Recipe.load(Run.open_own(folder, "pe extend").folder / RECIPE)
    return float(last_of(recipe.evolution.degree))


def continues_ranking(recipe: Recipe, degree: float) -> bool:
    """True if an extension at this degree takes the next best candidates: see `next_best`."""
    evolution = recipe.evolution
    ranked = last_of(evolution.selection) == "rank" and evolution.votes == "smooth"
    return ranked and not degree and not last_of(evolution.degree)


def next_best(run: Run, recipe: Recipe, count: int) -> tuple[Population, Int64Array]:
    """Return S_{T-1}, and those `count` of its unused members that have the highest weights.

    A member is used if a sample of the run is a copy of it. Labels have shares as in S_T.

    Raises:
        RunError: a label has too few candidates left whose weight is positive.
        DamagedFile: the votes or label weights are not those that the certificate covers.
    """
    plan = plan_of(run, recipe)
    populations = run.populations()
    last = populations[-1]
    turns = spread(len(populations[-1]), count)
    step = plan.steps[-1]
    before = populations[-2]
    votes = _certified_array(run, release_file(step.release.name))
    label_weights = _certified_array(run, claims_file(step.t))
    votes = votes / step.release.grid
    # Earlier extensions may have taken members, and no copy may be shared twice.
    used = np.concatenate(
        [last.parents, *(one.parents for one in run.extensions() if _are_copies(one, before))]
    )
    best = []
    for label, name in enumerate(plan.classes):
        rows = np.flatnonzero(before.labels == label)
        wanted = int((last.labels[turns] == label).sum())
        weights, _ = parent_weights(votes[rows], step.threshold, label_weights[rows])
        weights[np.isin(rows, used)] = 0
        left = np.count_nonzero(weights)
        if left < wanted:
            raise RunError(
                f"Label '{name}' has {left:,} candidates left that were voted for, and {wanted:,} "
                "are to follow. Ask for fewer samples, or set `--degree` above 0, which varies the "
                "samples that the run has."
            )
        best.append(rows[np.sort(np.argsort(-weights, kind="stable")[:wanted])])
    return before, np.concatenate(best)


def _certified_array(run: Run, name: str) -> Float64Array:
    array: Float64Array = np.load(_certified(run, name))
    return array


def _certified(run: Run, name: str) -> Path:
    """Return the path of a file of the run's folder, if the file is as certified."""
    path = run.folder / name
    if not path.is_file() or sha256(path) != digests(read_certificate(run.folder)).get(name):
        raise DamagedFile(
            f"{path} is missing or was changed after it was certified: restore it from a copy."
        )
    return path


def _are_copies(extension: Population, before: Population) -> bool:
    """Return True if an extension's samples are members of `before`, as its parents say."""
    parents = extension.parents
    own = extension.samples.array
    return bool(
        parents.max() < len(before) and np.array_equal(own, before.samples.take(parents).array)
    )


def last_of(schedule: Any) -> Any:
    """Return a schedule's value for the last iteration."""
    return schedule[-1] if isinstance(schedule, list) else schedule


def spread(members: int, count: int) -> Int64Array:
    """Return the parents of `count` samples, int64 (count,): each member in turn.

    What is left after whole rounds is spread evenly over all members. They stand in the order of
    their labels, so labels keep their shares to within one sample.
    """
    rounds, left = divmod(count, members)
    return np.concatenate(
        [np.tile(np.arange(members), rounds), np.arange(left) * members // max(left, 1)]
    )


def with_examples(
    last: Population,
    count: int,
    degree: float,
    api: Generator,
    seed: int,
) -> Population:
    """Return a population of texts with the condition EXAMPLES.

    Each text's examples are the text itself and others of its label.

    Raises:
        RecipeError: the generator shows no examples, or degree 0 asks it for nothing.
    """
    if not degree:
        raise RecipeError(
            "`--degree 0` copies texts, and `--examples` asks for new ones. Use one of them."
        )
    if not api.shows_examples or not last.samples.is_text:
        raise RecipeError(
            "`--examples` is for generators that ask a language model (chat, causal_lm). Leave it "
            "out here."
        )
    texts = last.samples.strings
    # Seeded, so that an extension that was interrupted shows the same texts again.
    rng = generator(seed, EXAMPLES)
    shown = []
    for place, label in enumerate(last.labels):
        others = np.flatnonzero((last.labels == label) & (np.arange(len(last)) != place))
        some = rng.choice(others, min(count - 1, len(others)), replace=False)
        shown.append(BETWEEN.join(texts[i] for i in (place, *some)))
    return replace(
        last,
        conditions=Conditions({**last.conditions, EXAMPLES: np.array(shown, np.str_)}),
    )


def novelty(extension: Path) -> float:
    """Return the share of new runs of eight words in an extension's texts.

    A run of words is new if no text of the run's result has it.
    """
    run = Run.open_own(extension.parent, "pe extend")
    place = extension_place(int(extension.stem.removeprefix("extension-")))
    parts = (extensions(run.folder)[place], run.synthetic)
    texts, others = (one.samples.strings for one in parts)
    older = set[tuple[str, ...]]().union(*map(runs_of_words, others))
    runs = [one for text in texts for one in runs_of_words(text)]
    return sum(one not in older for one in runs) / max(len(runs), 1)


def _index(run: RunWriter, numbers: dict[str, Any]) -> int:
    """Return the number of this extension: that of the interrupted one, or a new number."""
    pending = pending_extension(run.run)
    if pending and not pending.get("finished"):
        if pending != {"index": pending["index"], **numbers}:
            examples = f", with examples: {pending['examples']}" if "examples" in pending else ""
            raise RunError(
                f"An extension by {pending['count']} at degree {pending['degree']}{examples} was "
                "interrupted. Finish it first, with these numbers, or delete "
                f"{run.folder / EXTENSION} to give it up."
            )
        return int(pending["index"])
    files = digests(read_certificate(run.folder))
    on_disk = run.folder.glob("extension*")
    names = [
        *files,
        *run.journal.files(""),
        *run.journal.phases(),
        *(path.name for path in on_disk),
    ]
    # The number of a deleted extension would give its samples again.
    index = max(extension_numbers(names), default=0) + 1
    run.write(EXTENSION, json.dumps({"index": index, **numbers}))
    return index

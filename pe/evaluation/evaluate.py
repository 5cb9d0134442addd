"""Evaluate a run against real samples, and store the result.

Every earlier evaluation is archived beside it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np

from pe.data.bounded import read_bytes
from pe.data.samples import Samples, distinct
from pe.errors import Interrupted, PEError, RecipeError
from pe.evaluation.advice import SHARE, Evidence, advise
from pe.evaluation.features import CachedEmbedding, embedding_name
from pe.evaluation.fidelity import fidelity
from pe.evaluation.grade import (
    Grade,
    between_runs,
    fidelity_of,
    nearer_private,
    usefulness,
    variety_of,
)
from pe.evaluation.labelled import Values
from pe.evaluation.memorisation import attack_model, memorisation
from pe.evaluation.methods import File
from pe.evaluation.sets import METRICS, REAL, SYNTHETIC_DATA, Notes, RealSet, Request, Sets, gather
from pe.evaluation.utility import Results, choose_classifiers, trials_of, utility
from pe.evaluation.verdict import find_lost_classes, first_named, judge_of, verdict
from pe.planning.forecast import load_changed
from pe.planning.named import check_named
from pe.planning.releases import plan_of
from pe.plugins.protocols import info_of
from pe.plugins.specs import PluginSpec, construct
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import NO_NOISE
from pe.progress import Progress, Task
from pe.recipe.schema import OBJECT
from pe.store.durable import TEMPORARY, level_confidential, publish_folder, write_durably, writing
from pe.store.machine import is_own
from pe.store.places import CONFIDENTIAL, RECIPE
from pe.store.run import Run

METRICS_FILE = f"{CONFIDENTIAL}/metrics.json"
EARLIER = f"{CONFIDENTIAL}/earlier-evaluations"
INTERNAL = (
    "Internal: computed from real records without noise, so no certificate covers it; do not share "
    "it outside the circle that may see the records."
)
VERSION = 1


def evaluate_run(run: Run, request: Request, progress: Progress, stop: Event) -> Values:
    """Measure a run and write confidential/metrics.json, whole or not at all.

    An earlier one is archived.

    Guarantee: none. Everything computed here is confidential and stays in the run's confidential
    side.

    Args:
        run: finished or not, purged or not.
        request: the settings.
        progress: told what happens.
        stop: set it to stop at the next batch or training.

    Returns:
        The content of metrics.json; see docs/evaluation.md.

    Raises:
        RecipeError: the test set does not fit the run, or a metric that was asked for by name
            cannot be had.
        RunError: the run has no population yet.
        Interrupted: `stop` was set; metrics.json is not written, but a control's answers so far are
            stored.
    """
    notes = Notes(progress)
    if run.noiseless:
        notes.add(NO_NOISE)
    # before any sample is read, so that none is sent to a host which the user has not allowed
    embeddings = _embeddings(run, request, notes)
    sets = gather(run, request, notes, stop, embeddings)
    progress = _Stoppable(progress, stop)
    pairs = None
    values = _head(sets, request, [each.name for each in embeddings])
    run.confidential.mkdir(mode=0o700, exist_ok=True)
    if request.wants("fidelity"):
        samples = {key: each.samples for key, each in sets.all.items()}
        values["fidelity"] = {
            each.name: _fidelity(sets, samples, each, progress) for each in embeddings
        }
        values |= sets.methods.contents(sets.all, sets.reference.content, sets.recipe.private)
    results: Results = (
        _train(sets, request, embeddings, progress) if request.wants("utility") else {}
    )
    lost: list[str] = []
    if results:
        more, lost = _utility(sets, results)
        values |= more
    if request.wants("memorisation"):
        result, pairs = _memorisation(sets, request, embeddings[0], progress)
        values |= result
    values |= _grade(sets, results, values, lost, embeddings[0])
    values["notes"] = sets.notes.sentences
    message = store_evaluation(run.folder, values, pairs)
    if message:
        notes.progress.warn(message)
    return values


def _head(sets: Sets, request: Request, embeddings: list[str]) -> Values:
    test = sets.test.content
    counts = np.bincount(test.labels, minlength=len(sets.classes)).tolist()
    values: Values = {
        "version": VERSION,
        "internal": INTERNAL,
        "run": {
            "name": sets.run.folder.resolve().name,
            "finished": sets.run.is_finished,
            "iteration": len(sets.populations) - 1,
            "iterations": sets.recipe.evolution.iterations,
            "noun": sets.modality.noun,
            "images": len(sets.populations[-1]),
            "classes": list(sets.classes),
        },
        "test": _describe(sets.test)
        | {
            "left_out": sets.test.left_out,
            "per_class": dict(zip(sets.classes, counts, strict=True)),
        },
        "settings": {
            "metrics": [name for name in METRICS if request.wants(name)],
            "seeds": request.seeds,
            "seed": sets.recipe.seed,
            "embeddings": embeddings,
            "classifiers": [each.name for each in request.for_training(sets.methods.classifiers)],
            "flip": request.networks.flip,
        },
    }
    return (
        values if sets.reference is sets.test else values | {"reference": _describe(sets.reference)}
    )


def _describe(real: RealSet) -> Values:
    return {
        "source": real.kind,
        "path": real.path,
        "images": len(real.content),
        "sha256": real.sha256,
    }


def _embeddings(run: Run, request: Request, notes: Notes) -> list[CachedEmbedding]:
    """Return the embeddings asked for, or the run's.

    A stranger's run may not send samples away by it (RecipeError).
    """
    recipe = load_changed(run.folder / RECIPE, request.changes, "evaluated")
    specs = request.embeddings or (recipe.embedding,)
    noun = recipe.private.modality.noun
    is_explicit = bool(request.embeddings)
    if request.embedding is not None and not is_explicit:
        embeddings = [CachedEmbedding(type(request.embedding).__name__, request.embedding)]
        is_explicit = True
    else:
        if specs[0].kind.startswith(OBJECT):
            own = specs[0].kind.removeprefix(OBJECT)
            standard = recipe.private.modality.embedding
            notes.add(
                f"The run's embedding was an object, {own}, so '{standard}' takes its place; from "
                "Python it can be passed: pe.evaluate(…, embedding=…)."
            )
            specs = (PluginSpec(kind=standard),)
        pairs = ((spec, construct("pe.embeddings", spec.kind, spec.settings)) for spec in specs)
        embeddings = [CachedEmbedding(embedding_name(spec), embedding) for spec, embedding in pairs]
    for each in embeddings:
        hosts = info_of(each.embedding).hosts
        if hosts:
            if not is_explicit and not is_own(run.folder):
                raise RecipeError(
                    f"The recipe that came with {run.folder} embeds by '{each.name}', which would "
                    f"hand your test {noun} to {', '.join(hosts)}: name an embedding that you want "
                    "by --embedding."
                )
            notes.add(
                f"The embedding '{each.name}' hands private and test {noun} to {', '.join(hosts)}."
            )
    if not is_explicit:
        check_named(run.folder, recipe, request.changes, "embedding")
    return embeddings


def _fidelity(
    sets: Sets, samples: dict[str, Samples], embedding: CachedEmbedding, progress: Progress
) -> Values:
    reference = sets.reference.content.samples
    values, notes = fidelity(embedding, samples, reference, sets.recipe.seed, progress)
    for note in notes:
        sets.notes.add(note)
    return values


def _train(
    sets: Sets, request: Request, embeddings: list[CachedEmbedding], progress: Progress
) -> Results:
    """Train the classifiers.

    Return no results if the synthetic data have fewer than two classes.
    """
    trials = trials_of(sets, request, embeddings)
    noun = sets.modality.noun
    if not trials or SYNTHETIC_DATA not in trials[0].training_sets:
        if request.metrics is not None:
            raise RecipeError(
                f"utility needs two classes or more, each of two {noun}: {sets.run.folder} has not."
            )
        return {}
    seeds = [sets.recipe.seed + i for i in range(request.seeds)]
    return utility(trials, len(sets.classes), seeds, progress)


def _utility(sets: Sets, results: Results) -> tuple[Values, list[str]]:
    """Judge the votes by the classifiers.

    Return the values, and the names of collapsed classes, the worst first.
    """
    best = choose_classifiers(results)
    labels = sets.test.content.labels
    noun = sets.modality.noun
    values: Values = {
        "utility": {
            classifier: {name: each.to_dict(sets.classes) for name, each in by_set.items()}
            for classifier, by_set in results.items()
        },
        "chosen_classifier": best,
    }
    judgement = verdict(results, best, labels)
    if judgement is None:
        return values, []
    lost = find_lost_classes(results[judgement.classifier], labels, noun, sets.classes)
    sentence = {"sentence": f"{judgement.sentence} {NO_NOISE}"} if sets.run.noiseless else {}
    return {
        "verdict": judgement.to_dict() | sentence | {"collapsed": first_named([*lost.values()])}
    } | values, [*lost]


def _grade(
    sets: Sets, results: Results, values: Values, lost: list[str], embedding: CachedEmbedding
) -> Values:
    """Grade what was measured and say what to do next.

    Return the grade, and the verdict with its remedies.
    """
    recipe = sets.recipe
    plan = plan_of(sets.run, sets.recipe)
    seed = sets.recipe.seed
    useful = None
    judge = ""
    variety = None
    privacy = None
    if results:
        judge = judge_of(results, values["chosen_classifier"])
        records = recipe.private.declared_size or (0 if sets.private is None else len(sets.private))
        # without noise the votes are the same in every run, as at an infinite ε
        spent = (
            math.inf
            if sets.run.noiseless
            else epsilon(plan.releases, recipe.privacy.delta, quick=True)
        )
        spread = between_runs(records, len(sets.classes), spent)
        useful = usefulness(results[judge], sets.test.content.labels, spread)
    if "memorisation" in values and sets.private is not None:
        synthetic = sets.by_name[SYNTHETIC_DATA].samples
        each = (synthetic, sets.private.samples, sets.test.content.samples)
        ours, private, heldout = (embedding.vectors(samples) for samples in each)
        variety = variety_of(ours, private, seed)
        privacy = nearer_private(ours[distinct(synthetic)[0]], private, heldout, seed)
    fidelity = fidelity_of(values["fidelity"][embedding.name]) if "fidelity" in values else None
    grade = Grade(sets.modality.noun, judge, useful, fidelity, variety, privacy)
    warnings = values.get("memorisation", {}).get("warnings", ())
    judgement = values.get("verdict", {})
    evidence = Evidence(
        sets,
        plan,
        grade,
        warnings,
        lost,
        outcome=judgement.get("outcome"),
        evolving=judgement.get("evolving"),
    )
    # without a classifier, a verdict or a warning there is nothing to advise about
    advice = advise(evidence) if useful is not None or judgement or warnings else []
    following = next(iter(advice), "" if useful is None else SHARE)
    graded = {"grade": grade.to_dict(following)}
    return graded | ({"verdict": judgement | {"remedies": advice}} if judgement else {})


def _memorisation(
    sets: Sets, request: Request, embedding: CachedEmbedding, progress: Progress
) -> tuple[Values, File | None]:
    """Return the values of memorisation and the file of the nearest pairs.

    They are {} and None without the private records.
    """
    if sets.private is None:
        if request.metrics is not None:
            raise RecipeError(
                "memorisation needs the private records, which are not there (a note says why): "
                "take other --metrics."
            )
        return {}, None
    synthetic = sets.by_name[SYNTHETIC_DATA].samples
    private = sets.private.samples
    methods = sets.methods
    noun = sets.modality.noun
    heldout = sets.test.content
    if not methods.comparable(synthetic, private):
        ours, theirs = ("×".join(map(str, each.shape)) for each in (synthetic, private))
        sets.notes.add(
            f"No exact copy is looked for: generated {noun} are {ours}, and private ones {theirs}."
        )
    with progress.task(f"comparing with {REAL} records", None):
        result = memorisation(synthetic, private, heldout.samples, embedding)
        traces = methods.traces(synthetic, private, heldout.samples, request.with_canaries)
        rows, records = result.pairs.T
        suffix, content = methods.pairs(
            synthetic.take(rows), private.take(records), result.pair_distances
        )
        by_loss, why = attack_model(sets.run, sets.recipe, sets.private, heldout, request.changes)
    if why:
        sets.notes.add(why)
    values = {"embedding": embedding.name, **result.to_dict()}
    values["nearest_pairs"]["files"] = [pairs_file(suffix)]
    warnings = [*values["copies"]["warnings"]]
    if by_loss is not None:
        values["membership_by_loss"] = by_loss
        warnings += by_loss["warnings"]
    warnings += traces.pop("warnings", ())
    return {"memorisation": values | traces | {"warnings": warnings}}, (suffix, content)


def store_evaluation(folder: Path, values: Values, pairs: File | None) -> str:
    """Write METRICS_FILE, whole or not at all.

    Archive an earlier, different one. Return a message on that, or "".
    """
    content = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False).encode()
    metrics = folder / METRICS_FILE
    new = [] if pairs is None else [folder / pairs_file(pairs[0])]
    is_same = (
        metrics.is_file()
        and metrics.stat().st_size == len(content)
        and metrics.read_bytes() == content
    )
    message = _archive(folder) if metrics.is_file() and not is_same else ""
    if pairs is not None:
        write_durably(new[0], pairs[1])
    write_durably(metrics, content)
    for path in {*_pairs(folder)}.difference(new):
        path.unlink()  # of the earlier evaluation, which has its copy
    level_confidential(folder)
    return message


def pairs_file(suffix: str) -> str:
    """Return the path of the file of nearest pairs, relative to the run's directory."""
    return f"{CONFIDENTIAL}/nearest_pairs.{suffix}"


def _pairs(folder: Path) -> list[Path]:
    return [path for path in folder.glob(pairs_file("*")) if not path.name.endswith(TEMPORARY)]


def _archive(folder: Path) -> str:
    """Copy the stored evaluation to a new folder in EARLIER. Return a message that names it."""
    earlier = folder / EARLIER
    index = 1 + max(
        (int(path.name) for path in earlier.glob("[0-9]*") if path.name.isdecimal()), default=0
    )
    place = earlier / f"{index:03d}"
    temporary = earlier / f"{place.name}{TEMPORARY}"
    with writing(place):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for path in (folder / METRICS_FILE, *_pairs(folder)):
            shutil.copyfile(path, temporary / path.name)
    publish_folder(temporary, place)
    against = ""
    with suppress(ValueError, KeyError, TypeError, PEError):  # a damaged file is archived, too
        values = json.loads(read_bytes(place / Path(METRICS_FILE).name))
        test = values["test"]
        noun = values["run"].get("noun", "images")
        against = f", against {test['images']:,} {noun} of {test['path']},"
    shows = "the confidential report and `pe view` show the new one"
    return f"The evaluation of before{against} is kept in {place}; {shows}."


@dataclass(frozen=True)
class _Stoppable(Progress):
    """Progress that raises Interrupted at the next task or step once `stop` is set."""

    progress: Progress
    stop: Event

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        with self.progress.task(description, total) as task:
            step = _Step(task, self.stop)
            step.advance(0)
            yield step

    def warn(self, message: str) -> None:
        self.progress.warn(message)


@dataclass(frozen=True)
class _Step(Task):
    task: Task
    stop: Event

    def advance(self, count: int, cost: str = "") -> None:
        if self.stop.is_set():
            raise Interrupted(
                "Stopped as asked: no metrics are written, and `pe evaluate` again begins anew."
            )
        self.task.advance(count, cost)

    def wait(self, words: str) -> None:
        self.task.wait(words)

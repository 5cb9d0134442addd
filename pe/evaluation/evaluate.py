"""An evaluation on disk: the newest one where report and comparison read it, every earlier one kept beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from pe.data.samples import Samples
from pe.errors import Interrupted, RecipeError
from pe.evaluation.features import Seen, described
from pe.evaluation.fidelity import fidelity
from pe.evaluation.memorisation import attack_model, memorisation
from pe.evaluation.real import RealSet
from pe.evaluation.sets import METRICS, REAL, SYNTHETIC_DATA, Notes, Request, Sets, gather
from pe.evaluation.utility import choose_classifiers, trials_of, try_out
from pe.evaluation.verdict import (
    HELPED,
    MOST,
    ONE_VOTE_INSTEAD,
    TAKEN_AS_CHOSEN,
    Verdict,
    collapsed,
    first_named,
    remedies,
    verdict,
)
from pe.planning.layout import plan_of
from pe.plugins.protocols import info_of
from pe.plugins.registry import PluginSpec, construct
from pe.privacy.words import NO_NOISE
from pe.progress import Progress, Task
from pe.recipe.schema import OBJECT, Recipe
from pe.store.durable import TEMPORARY, level_confidential, publish_folder, write_durably, writing
from pe.store.places import CONFIDENTIAL, FULL_RECIPE, RECIPE
from pe.store.run import Run

METRICS_FILE = f"{CONFIDENTIAL}/metrics.json"
PAIRS = "nearest_pairs"
"""Of the file of the nearest pairs, without its suffix."""
EARLIER = f"{CONFIDENTIAL}/earlier-evaluations"


def store_evaluation(folder: Path, values: dict[str, Any], pairs: tuple[str, bytes] | None) -> str:
    """Write METRICS_FILE, whole or not at all, after the evaluation that stands there was copied into EARLIER.

    One that is written a second time, the same in every byte, is not kept twice.

    Args:
        folder: the run's directory, with its confidential side.
        values: what METRICS_FILE holds from now on.
        pairs: suffix and content of the file of the nearest pairs; None: none were looked for.

    Returns:
        A sentence on where the earlier evaluation went; empty if there is none, or the same.

    Raises:
        RunError: the operating system refused a write.
    """
    content = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False).encode()
    metrics = folder / METRICS_FILE
    told = "" if not metrics.is_file() or metrics.read_bytes() == content else _keep(folder)
    written = None if pairs is None else folder / pairs_file(pairs[0])
    if pairs is not None and written is not None:
        write_durably(written, pairs[1])
    write_durably(metrics, content)
    for path in _pairs(folder):
        if path != written:
            path.unlink()  # of the earlier evaluation, which has its copy
    level_confidential(folder)
    return told


def pairs_file(suffix: str) -> str:
    """Where the nearest pairs are, from the run's directory."""
    return f"{CONFIDENTIAL}/{PAIRS}.{suffix}"


def _pairs(folder: Path) -> list[Path]:
    return [path for path in (folder / CONFIDENTIAL).glob(f"{PAIRS}.*") if not path.name.endswith(TEMPORARY)]


def _keep(folder: Path) -> str:
    """Copy the evaluation into a folder of its own; say which it was and where it is."""
    earlier = folder / EARLIER
    index = 1 + max((int(path.name) for path in earlier.glob("[0-9]*") if path.name.isdecimal()), default=0)
    place = earlier / f"{index:03d}"
    temporary = earlier / f"{place.name}{TEMPORARY}"
    with writing(place):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for path in (folder / METRICS_FILE, *_pairs(folder)):
            shutil.copyfile(path, temporary / path.name)
    publish_folder(temporary, place)
    return (
        f"The evaluation of before{_against(place / Path(METRICS_FILE).name)} is kept in {place}; the confidential "
        "report and `pe compare` show the new one."
    )


def _against(metrics: Path) -> str:
    """The test set of an evaluation, in words; empty if its file is damaged."""
    with suppress(ValueError, KeyError, TypeError):
        values = json.loads(metrics.read_text(encoding="utf-8"))
        test, noun = values["test"], values["run"].get("noun", "images")
        return f", against {test['images']:,} {noun} of {test['path']},"
    return ""


# An evaluation: a run's synthetic data, beside its controls, measured against real samples. Internal.


INTERNAL = (
    "Internal: computed from real records without noise, so no certificate covers it; do not share it outside the "
    "circle that may see the records."
)
VERSION = 1

Values = dict[str, Any]


def evaluate_run(run: Run, request: Request, progress: Progress, stop: Event) -> Values:
    """Measure a run and write confidential/metrics.json, whole or not at all; an earlier one is kept.

    Guarantee: none. Everything computed here is confidential and stays in the run's confidential side.

    Args:
        run: finished or not, purged or not.
        request: what to measure.
        progress: told what happens.
        stop: set it to stop at the next batch or training.

    Returns:
        The content of that file; see docs/evaluation.md.

    Raises:
        RecipeError: the test set does not fit the run, or a metric that was asked for by name cannot be had.
        RunError: the run has no population yet.
        Interrupted: `stop` was set; nothing is written, and what the control was answered is kept.
    """
    notes = Notes(progress)
    if run.noiseless:
        notes.add(NO_NOISE)
    seen = _embeddings(run, request, notes)
    sets = gather(run, request, notes, stop, seen)
    progress, pairs = _Stoppable(progress, stop), None
    values = _head(sets, request, [each.name for each in seen])
    run.confidential.mkdir(mode=0o700, exist_ok=True)
    if request.wants("fidelity"):
        values["fidelity"] = {each.name: _fidelity(sets, each, progress) for each in seen}
        values |= sets.methods.contents(_samples(sets), sets.reference.content.samples)
    if request.wants("utility"):
        values |= _utility(sets, request, seen, progress)
    if request.wants("memorisation"):
        found, pairs = _memorisation(sets, request, seen[0], progress)
        values |= found
    values["notes"] = sets.notes.sentences
    if told := store_evaluation(run.folder, values, pairs):
        notes.progress.warn(told)
    return values


def _head(sets: Sets, request: Request, embeddings: list[str]) -> Values:
    """What was measured, with what."""
    test = sets.test.content
    counts = np.bincount(test.labels, minlength=len(sets.classes)).tolist()
    values: Values = {
        "version": VERSION,
        "internal": INTERNAL,
        "run": {
            "name": sets.run.folder.resolve().name,
            "finished": sets.finished,
            "iteration": sets.iteration,
            "iterations": sets.recipe.evolution.iterations,
            "noun": sets.modality.noun,
            "images": len(sets.evaluated),
            "classes": list(sets.classes),
        },
        "test": _describe(sets.test)
        | {"left_out": sets.test.left_out, "per_class": dict(zip(sets.classes, counts, strict=True))},
        "settings": {
            "metrics": [name for name in METRICS if request.wants(name)],
            "seeds": request.seeds,
            "seed": sets.recipe.seed,
            "embeddings": embeddings,
            "classifiers": [each.name for each in request.trained(sets.methods.classifiers)],
            "flip": request.networks.flip,
        },
    }
    return values if sets.reference is sets.test else values | {"reference": _describe(sets.reference)}


def _describe(real: RealSet) -> Values:
    return {"source": real.kind, "path": real.path, "images": len(real.content), "sha256": real.sha256}


def _embeddings(run: Run, request: Request, notes: Notes) -> list[Seen]:
    """The embeddings asked for, or the run's own; nothing is embedded yet.

    Raises:
        RecipeError: the run's own hands samples to others, and its recipe may be somebody else's.
    """
    recipe = Recipe.load(run.folder / RECIPE)
    specs, noun = request.embeddings or (recipe.embedding,), recipe.private.modality.noun
    if request.embedding is not None and not request.embeddings:
        seen = [Seen(type(request.embedding).__name__, request.embedding)]
    else:
        if specs[0].kind.startswith(OBJECT):
            standard = recipe.private.modality.embedding
            notes.add(
                f"The run's embedding was an object, {specs[0].kind.removeprefix(OBJECT)}, so '{standard}' takes its "
                "place; from Python it can be passed: pe.evaluate(…, embedding=…)."
            )
            specs = (PluginSpec(kind=standard),)
        seen = [Seen(described(spec), construct("pe.embeddings", spec.kind, spec.settings)) for spec in specs]
    for each in seen:
        if hosts := info_of(each.embedding).hosts:
            if not request.embeddings and request.embedding is None and not (run.folder / FULL_RECIPE).is_file():
                raise RecipeError(
                    f"The recipe that came with {run.folder} embeds by '{each.name}', which would hand your test "
                    f"{noun} to {', '.join(hosts)}: name an embedding that you want by --embedding."
                )
            notes.add(f"The embedding '{each.name}' hands private and test {noun} to {', '.join(hosts)}.")
    return seen


def _fidelity(sets: Sets, seen: Seen, progress: Progress) -> Values:
    reference = sets.reference.content.samples
    found = fidelity(seen, sets=_samples(sets), reference=reference, seed=sets.recipe.seed, progress=progress)
    for note in found.notes:
        sets.notes.add(note)
    return found.values


def _samples(sets: Sets) -> dict[str, Samples]:
    return {key: each.samples for key, each in sets.all.items()}


def _utility(sets: Sets, request: Request, seen: list[Seen], progress: Progress) -> Values:
    """The trainings, and what they say of the votes."""
    trials = trials_of(sets, request, seen)
    if not trials or SYNTHETIC_DATA not in trials[0].training_sets:
        if request.metrics is not None:
            raise RecipeError(
                f"utility needs two classes or more, each of two {sets.modality.noun}: {sets.run.folder} has not."
            )
        return {}
    seeds = [sets.recipe.seed + i for i in range(request.seeds)]
    found = try_out(trials, classes=len(sets.classes), seeds=seeds, progress=progress)
    results = {
        classifier: {name: each.to_dict(sets.classes) for name, each in by_set.items()}
        for classifier, by_set in found.items()
    }
    chosen = choose_classifiers(found)
    values: Values = {"utility": results, "chosen_classifier": chosen}
    labels = sets.test.content.labels
    judged = verdict(found, chosen, labels, sets.modality.noun)
    if judged is None:
        return values
    lost = collapsed(found[judged.classifier], labels, sets.modality.noun, sets.classes)
    judged = replace(judged, collapsed=len(lost))
    told = {"sentence": f"{judged.sentence} {NO_NOISE}"} if sets.run.noiseless else {}
    lost_first = {"collapsed": first_named(lost)}
    return {"verdict": judged.to_dict() | told | lost_first | _remedies(sets, judged)} | values


def _remedies(sets: Sets, judged: Verdict) -> Values:
    """What to change, where the votes did not help, or several not more than one."""
    plan, notes = plan_of(sets.run, sets.recipe), []
    if judged.evolving not in (None, HELPED) and any(step.degree for step in plan.steps):
        notes = [ONE_VOTE_INSTEAD if len(plan.steps) > 1 else TAKEN_AS_CHOSEN]
    if judged.outcome == HELPED and not judged.collapsed:
        return {"remedies": notes}
    more = remedies(sets.recipe, plan, sets.populations, sets.api, len(sets.test.content))
    return {"remedies": [*notes, *more][:MOST]}


def _memorisation(
    sets: Sets, request: Request, seen: Seen, progress: Progress
) -> tuple[Values, tuple[str, bytes] | None]:
    """The distances, and the file of the nearest pairs; None where there are no records to compare with."""
    if sets.private is None:
        if request.metrics is not None:
            raise RecipeError(
                "memorisation needs the private records, which are not there (a note says why): take other --metrics."
            )
        return {}, None
    generated, private = sets.made[SYNTHETIC_DATA].samples, sets.private.samples
    methods, noun = sets.methods, sets.modality.noun
    if not methods.comparable(generated, private):
        made, theirs = ("×".join(map(str, each.shape)) for each in (generated, private))
        sets.notes.add(f"No exact copy is looked for: generated {noun} are {made}, and private ones {theirs}.")
    with progress.task(f"comparing with {REAL} records", None):
        heldout = sets.test.content.samples
        found = memorisation(generated, private, heldout, seen)
        more = methods.traces(generated, private, heldout, request.planted)
        rows, records = found.pairs.T
        suffix, content = methods.pairs(generated.take(rows), private.take(records), found.pair_distances)
        by_loss, why = attack_model(sets.run, sets.recipe, sets.private, sets.test.content)
    if why:
        sets.notes.add(why)
    values = found.to_dict() | ({} if by_loss is None else {"membership_by_loss": by_loss})
    values["nearest_pairs"]["files"] = [pairs_file(suffix)]
    told = [] if by_loss is None else by_loss["warnings"]
    warnings = [*values["copies"]["warnings"], *told, *more.pop("warnings", ())]
    return {"memorisation": {"embedding": seen.name} | values | more | {"warnings": warnings}}, (suffix, content)


@dataclass(frozen=True)
class _Stoppable(Progress):
    """Progress that ends with Interrupted where it would have told that it goes on."""

    told: Progress
    stop: Event

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """A phase that is not begun once `stop` is set, and left at its next step."""
        with self.told.task(description, total) as task:
            step = _Step(task, self.stop)
            step.advance(0)
            yield step

    def warn(self, message: str) -> None:
        """As told."""
        self.told.warn(message)

    def tell(self, message: str) -> None:
        """Likewise."""
        self.told.tell(message)


@dataclass(frozen=True)
class _Step(Task):
    """Raises Interrupted once `stop` is set."""

    told: Task
    stop: Event

    def advance(self, count: int, spent: str = "") -> None:
        """Tell, or end."""
        if self.stop.is_set():
            raise Interrupted("Stopped as asked: no metrics are written, and `pe evaluate` again begins anew.")
        self.told.advance(count, spent)

    def wait(self, words: str) -> None:
        """Tell."""
        self.told.wait(words)

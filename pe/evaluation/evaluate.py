"""Evaluate a run against real samples, and store the result.

Every earlier evaluation is archived beside it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np

from pe.data.bounded import read_bytes
from pe.errors import Interrupted, PEError, RecipeError
from pe.evaluation.features import CachedEmbedding, embedding_name
from pe.evaluation.methods import File
from pe.evaluation.metrics import Measured, pairs_file
from pe.evaluation.sets import (
    Notes,
    RealSet,
    Request,
    Sets,
    gather,
)
from pe.judgement.labelled import Values
from pe.planning.forecast import load_changed
from pe.planning.named import check_named
from pe.plugins.protocols import info_of
from pe.plugins.specs import PluginSpec, construct
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
VERSION = 2


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
    measured = Measured(sets, request, embeddings, _Stoppable(progress, stop))
    run.confidential.mkdir(mode=0o700, exist_ok=True)
    values = _head(sets, request, [each.name for each in embeddings])
    for name in request.chosen:
        values |= measured.of(name)
    values["notes"] = sets.notes.sentences
    message = store_evaluation(run.folder, values, measured.pairs)
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
            "metrics": [*request.chosen],
            "seeds": request.seeds,
            "seed": sets.recipe.seed,
            "embeddings": embeddings,
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

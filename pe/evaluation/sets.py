"""The sets of images that an evaluation compares: the synthetic data, and the three controls beside it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

import numpy as np

from pe.data.images import Images
from pe.data.population import Population
from pe.errors import APIError, Interrupted, MissingDependency, PEError, PluginError, RecipeError, RunError
from pe.evaluation.controls import ControlRun, unevolved
from pe.evaluation.labelled import Labelled, label_images
from pe.evaluation.real import RealSet, leave_out, read_real, source_at
from pe.evaluation.request import Request
from pe.fit.trainer import load_model
from pe.planning.build import set_up_generator
from pe.plugins.protocols import GenerationAPI
from pe.private.image_source import ImageSource
from pe.progress import Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.store.places import CERTIFICATE, FULL_RECIPE, RECIPE
from pe.store.run import Run

SYNTHETIC_DATA, UNEVOLVED, RANDOM_SELECTION, REAL = "synthetic", "unevolved", "random_selection", "real"
_WORDS = {UNEVOLVED: "un-evolved samples", RANDOM_SELECTION: "samples of the control by random selection"}


@dataclass(frozen=True, eq=False)
class Notes:
    """Sentences on what was left out or is biased, kept, and as a rule told as they arise."""

    progress: Progress
    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Tell it, and keep it."""
        self.progress.warn(sentence)
        self.keep(sentence)

    def keep(self, sentence: str) -> None:
        """Keep what need not be told at once."""
        self.sentences.append(sentence)


@dataclass(frozen=True, eq=False)
class Sets:
    """Everything that is compared, read once. Confidential.

    Attributes:
        run: the run.
        recipe: its recipe, without the place of the private records.
        evaluated: its last finished population.
        iteration: that population's t.
        finished: whether the run is.
        made: SYNTHETIC_DATA, then the controls of generated images that there are.
        test: real images that no run has seen.
        reference: what fidelity compares with.
        private: the run's private records; None: they cannot be read.
        populations: S_0 … S_t.
        api: the generator, where it was needed and is at hand.
        notes: what was left out of them; the evaluation adds its own.
    """

    run: Run
    recipe: Recipe
    evaluated: Population
    iteration: int
    finished: bool
    made: dict[str, Labelled]
    test: RealSet
    reference: RealSet
    private: Labelled | None
    populations: list[Population]
    api: GenerationAPI | None
    notes: Notes

    @property
    def classes(self) -> tuple[str, ...]:
        """The public label names."""
        return self.recipe.private.labels

    @property
    def all(self) -> dict[str, Labelled]:
        """The made sets and, where it can be read, REAL."""
        return self.made if self.private is None else self.made | {REAL: self.private}


def gather(run: Run, request: Request, notes: Notes, stop: Event) -> Sets:
    """Read, and where needed make, what an evaluation compares.

    Raises:
        RunError: the run has no population yet.
        RecipeError: the test or reference set does not fit the run.
    """
    recipe = Recipe.load(run.folder / RECIPE)
    populations = run.populations()
    if not populations:
        raise RunError(f"{run.folder} has no finished population yet: wait for its S_0.")
    private_source, classes, evaluated = recipe.private, recipe.private.labels, populations[-1]
    if not isinstance(private_source, ImageSource):
        raise RecipeError(f"Evaluation knows images, not {private_source.modality.noun}.")
    synthetic = _label(evaluated)
    if len(synthetic) < 2:
        raise RecipeError(f"{run.folder} has fewer than two synthetic images: an evaluation needs two or more.")
    finished, iterations = (run.folder / CERTIFICATE).is_file(), recipe.evolution.iterations
    if not finished:
        notes.add(f"The run is not finished: S_{len(populations) - 1} of S_{iterations} is evaluated.")
    with notes.progress.task("reading real images", None):
        test = read_real(source_at(request.test, private_source), "test set", classes)
        reference = None
        if request.reference is not None:
            reference = read_real(source_at(request.reference, private_source, False), "reference set", classes)
        private = _private(run, classes, notes)
    seen = {"synthetic images": synthetic} | ({} if private is None else {"private records": private})
    test = _held_out(test, seen, notes)
    made, api = {SYNTHETIC_DATA: synthetic}, request.api
    if len(populations) > 1:
        controls, api = _controls(run, recipe, populations=populations, request=request, notes=notes, stop=stop)
        test = _held_out(test, {_WORDS[name]: one for name, one in controls.items()}, notes)
        made |= controls
    if missing := [name for i, name in enumerate(classes) if not (test.content.labels == i).any()]:
        notes.add(f"The test set has no image of {', '.join(missing)}.")
    return Sets(
        run=run,
        recipe=recipe,
        evaluated=evaluated,
        iteration=len(populations) - 1,
        finished=finished,
        made=made,
        test=test,
        reference=reference or test,
        private=private,
        populations=populations,
        api=api,
        notes=notes,
    )


def _controls(
    run: Run, recipe: Recipe, populations: list[Population], request: Request, notes: Notes, stop: Event
) -> tuple[dict[str, Labelled], GenerationAPI | None]:
    """UNEVOLVED, and RANDOM_SELECTION where it is asked for or comes of itself; the generator, where it was needed."""
    founders, evaluated = (_label(populations[i]) for i in (0, -1))
    founders_suffice = _as_many(founders, evaluated.labels)
    api, unknown = request.api, ""
    if api is None and (founders_suffice is None or request.random_selection is not False):
        api, unknown = set_up_generator(recipe.api)
        load_model(api, run.folder)
    control = None if api is None else ControlRun(run, recipe, api, populations)
    made = {UNEVOLVED: founders_suffice or _make_unevolved(founders, evaluated, control, notes)}
    if request.random_selection is False:
        return made, api
    if control is None and recipe.api.kind.startswith(OBJECT):
        notes.add(
            "The random-selection control is left out: the generator is an object of your own, "
            f"{recipe.api.kind.removeprefix(OBJECT)}, so pass it from Python: pe.evaluate(…, api=…)."
        )
    elif control is None:
        notes.add(f"The random-selection control is left out. {unknown}")
    elif request.random_selection is None and not control.comes_of_itself:
        notes.add(
            "The random-selection control is left out; --random-selection runs it, or random_selection=True from "
            f"Python. {control.describe()}"
        )
    else:
        (notes.add if request.random_selection else notes.keep)(control.describe())
        try:
            made[RANDOM_SELECTION] = _label(control.result(notes.progress, stop))
        except (APIError, PluginError) as error:
            if request.random_selection or isinstance(error, Interrupted):
                raise
            notes.add(f"The random-selection control is left out: {error}")
    return made, api


def _make_unevolved(founders: Labelled, evaluated: Labelled, control: ControlRun | None, notes: Notes) -> Labelled:
    """New random samples, as many as are evaluated, where they are free and quick; else all of S_0."""
    if control is not None and control.comes_of_itself and control.quick(len(evaluated)):
        with notes.progress.task("drawing un-evolved samples", None), suppress(APIError, PluginError):
            classes, seed = control.recipe.private.labels, control.recipe.seed
            return unevolved(control.api, evaluated.labels, classes, seed)
    notes.add(
        f"The un-evolved control is S_0 with its {len(founders):,} images, where {len(evaluated):,} are evaluated."
    )
    return founders


def _label(population: Population) -> Labelled:
    assert isinstance(population.samples, Images)
    return label_images(population.samples, population.labels, population.conditions)


def _as_many(founders: Labelled, labels: np.ndarray) -> Labelled | None:
    """As many of the founders of each label as `labels` has, the first ones; None where there are too few."""
    rows = []
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        members = np.flatnonzero(founders.labels == label)[:count]
        if len(members) < count:
            return None
        rows.append(members)
    return founders.take(np.concatenate(rows))


def _private(run: Run, classes: tuple[str, ...], notes: Notes) -> Labelled | None:
    """The run's private records, if its confidential side still says where they are and they are there."""
    try:
        if not (run.folder / FULL_RECIPE).is_file():
            raise RunError("the run's confidential side was purged")
        source = Recipe.load(run.folder / FULL_RECIPE).private
        return read_real(source, "private data set", classes).content
    except MissingDependency:
        raise
    except PEError as error:
        notes.add(
            "The real-data control and memorisation are left out, and test images are not compared with the private "
            f"records: {str(error).rstrip('.')}."
        )
        return None


def _held_out(test: RealSet, seen: dict[str, Labelled], notes: Notes) -> RealSet:
    """The test set without images that are among those `seen`, by what they are; a note says how many they were."""
    test, sentence = leave_out(test, {what: each.images for what, each in seen.items()})
    if sentence:
        notes.add(sentence)
    return test

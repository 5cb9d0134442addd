"""What an evaluation is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import numpy as np

from pe.data.population import Population
from pe.data.samples import Samples
from pe.errors import (
    APIError,
    Interrupted,
    MissingDependency,
    PEError,
    PluginError,
    RecipeError,
    RunError,
    check_list,
    nearest_name,
)
from pe.evaluation.classifiers import Classifier, NetworkSettings
from pe.evaluation.controls import ControlRun, one_vote_run, random_selection_run, unevolved
from pe.evaluation.features import Seen, described
from pe.evaluation.labelled import Labelled, label_samples
from pe.evaluation.methods import Methods, methods_of
from pe.evaluation.real import RealSet, leave_out, read_real
from pe.fit.trainer import load_model
from pe.planning.build import build_embedding, set_up_generator
from pe.planning.layout import plan_of
from pe.plugins.protocols import Embedding, GenerationAPI
from pe.plugins.registry import PluginSpec
from pe.private.source import PrivateSource
from pe.progress import Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.store.places import CERTIFICATE, FULL_RECIPE, RECIPE
from pe.store.run import Run

METRICS = ("fidelity", "utility", "memorisation")


@dataclass(frozen=True)
class Request:
    """What to measure, with what, against what.

    Attributes:
        test: where real samples that no run has seen are; see `source_at` of pe/evaluation/methods.py.
        metrics: of METRICS; None: all that are possible.
        seeds: trainings of each classifier on each set, ≥ 1.
        embeddings: under which samples are compared; the first serves memorisation and the verdict too. Empty: the
            run's own.
        classifiers: names, see `Classifier`; None: those of the modality.
        networks: settings of ResNet-9.
        reference: where the real (or public) samples are that fidelity compares with; None: the test set.
        canaries: a UTF-8 file with a string in each line, which the user planted among the private texts.
        random_selection: whether to run that control: True, False, or None: where it is free and quick.
        one_vote: likewise.
        api: the generator, when it is the user's own object.
        embedding: the run's embedding, when it is the user's own object.

    Raises:
        RecipeError: an unknown metric or classifier, or a text in place of a list of them, no seed.
    """

    test: str
    metrics: tuple[str, ...] | None = None
    seeds: int = 3
    embeddings: tuple[PluginSpec, ...] = ()
    classifiers: tuple[str, ...] | None = None
    networks: NetworkSettings = field(default_factory=NetworkSettings)
    reference: str | None = None
    canaries: Path | None = None
    random_selection: bool | None = None
    one_vote: bool | None = None
    api: GenerationAPI | None = None
    embedding: Embedding | None = None

    def __post_init__(self) -> None:
        for name in ("metrics", "embeddings", "classifiers"):
            check_list(name, getattr(self, name))
        for name in self.metrics or ():
            if name not in METRICS:
                raise RecipeError(f"Unknown metric '{name}': {nearest_name(name, METRICS)}")
        if self.seeds < 1:
            raise RecipeError(f"An evaluation needs one seed or more, not {self.seeds}.")
        _ = self.trained(())

    def trained(self, by_default: tuple[str, ...]) -> tuple[Classifier, ...]:
        """The classifiers; those `by_default` where none is named."""
        names = by_default if self.classifiers is None else self.classifiers
        return tuple(Classifier(name, self.networks) for name in names)

    @property
    def planted(self) -> tuple[str, ...]:
        """The canaries, each once.

        Raises:
            RecipeError: the file cannot be read, or holds none.
        """
        if self.canaries is None:
            return ()
        try:
            lines = self.canaries.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"{self.canaries} cannot be read as UTF-8: name a file with a canary in each line."
            ) from error
        found = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
        if not found:
            raise RecipeError(f"{self.canaries} holds no canary: write one in each line.")
        return found

    def wants(self, metric: str) -> bool:
        """True if a metric is asked for."""
        return self.metrics is None or metric in self.metrics


# The sets of samples that an evaluation compares: the synthetic data, and the controls beside it.


SYNTHETIC_DATA, UNEVOLVED, RANDOM_SELECTION, REAL = "synthetic", "unevolved", "random_selection", "real"
ONE_VOTE = "one_vote"
_WORDS = {
    UNEVOLVED: "un-evolved samples",
    RANDOM_SELECTION: "samples of the control by random selection",
    ONE_VOTE: "samples of the control by one vote",
}


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
        made: SYNTHETIC_DATA, then the controls of generated samples that there are.
        test: real samples that no run has seen.
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
    def modality(self) -> type[Samples]:
        """Of all samples."""
        return self.recipe.private.modality

    @property
    def methods(self) -> Methods:
        """How they are evaluated."""
        return methods_of(self.modality)

    @property
    def classes(self) -> tuple[str, ...]:
        """The public label names."""
        return self.recipe.private.labels

    @property
    def all(self) -> dict[str, Labelled]:
        """The made sets and, where it can be read, REAL."""
        return self.made if self.private is None else self.made | {REAL: self.private}


def gather(run: Run, request: Request, notes: Notes, stop: Event, embeddings: Sequence[Seen] = ()) -> Sets:
    """Read, and where needed make, what an evaluation compares.

    Args:
        run: the run.
        request: what is asked for.
        notes: what is left out.
        stop: set it to stop a control.
        embeddings: a control takes the run's own, if it is one of them.

    Raises:
        RunError: the run has no population yet.
        RecipeError: the test or reference set does not fit the run.
    """
    recipe = Recipe.load(run.folder / RECIPE)
    populations = run.populations(len(recipe.private.labels))
    if not populations:
        raise RunError(f"{run.folder} has no finished population yet: wait for its S_0.")
    private_source, classes, evaluated = recipe.private, recipe.private.labels, populations[-1]
    noun, source_at = private_source.modality.noun, methods_of(private_source.modality).source_at
    synthetic = _label(evaluated)
    if len(synthetic) < 2:
        raise RecipeError(f"{run.folder} has fewer than two synthetic {noun}: an evaluation needs two or more.")
    finished, iterations = (run.folder / CERTIFICATE).is_file(), recipe.evolution.iterations
    if not finished:
        notes.add(f"The run is not finished: S_{len(populations) - 1} of S_{iterations} is evaluated.")
    with notes.progress.task(f"reading real {noun}", None):
        test = read_real(source_at(request.test, private_source, True), "test set", classes)
        reference = None
        if request.reference is not None:
            reference = read_real(source_at(request.reference, private_source, False), "reference set", classes)
        source, private = _private(run, classes, notes)
    seen = {f"synthetic {noun}": synthetic} | ({} if private is None else {"private records": private})
    test = _held_out(test, seen, notes)
    made, api = {SYNTHETIC_DATA: synthetic}, request.api
    if len(populations) > 1:
        controls, api = _controls(
            run,
            recipe,
            populations=populations,
            source=source,
            request=request,
            notes=notes,
            stop=stop,
            embeddings=embeddings,
        )
        test = _held_out(test, {_WORDS[name]: one for name, one in controls.items()}, notes)
        made |= controls
    if missing := [name for i, name in enumerate(classes) if not (test.content.labels == i).any()]:
        notes.add(f"The test set has no {noun} of {', '.join(missing)}.")
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
    run: Run,
    recipe: Recipe,
    populations: list[Population],
    source: PrivateSource | None,
    request: Request,
    notes: Notes,
    stop: Event,
    embeddings: Sequence[Seen],
) -> tuple[dict[str, Labelled], GenerationAPI | None]:
    """UNEVOLVED, and what is asked for or comes of itself of the others; the generator, where it was needed."""
    founders, evaluated = _label(run.founders() or populations[0]), _label(populations[-1])
    founders_suffice = _as_many(founders, evaluated.labels)
    api, unknown = request.api, ""
    wanted = {RANDOM_SELECTION: request.random_selection, ONE_VOTE: request.one_vote}
    if len(populations) == 2 and request.one_vote is not False:
        say = notes.keep if wanted.pop(ONE_VOTE) is None else notes.add
        say("The one-vote control is left out: the run has voted once, as this control would.")
    wanted = {name: asked for name, asked in wanted.items() if asked is not False}
    if api is None and (founders_suffice is None or wanted):
        api, unknown = set_up_generator(recipe.api)
        load_model(api, run.folder)
    if api is None and recipe.api.kind.startswith(OBJECT):
        kind = recipe.api.kind.removeprefix(OBJECT)
        unknown = f"The generator is an object of your own, {kind}, so pass it from Python: pe.evaluate(…, api=…)."
    plan = plan_of(run, recipe)
    random = None if api is None else random_selection_run(run, recipe, plan, api, populations)
    made = {UNEVOLVED: founders_suffice or _make_unevolved(founders, evaluated, random, notes)}
    for name, asked in wanted.items():
        control, why = random, unknown
        if name == ONE_VOTE and api is not None:
            if source is None:
                continue  # a note says so already
            try:
                embedding = _own(recipe, request, embeddings)
                control = one_vote_run(run, recipe, plan, api, populations, source.open(), embedding)
            except PEError as error:
                control, why = None, str(error)
        if control is None:
            notes.add(f"The {name.replace('_', '-')} control is left out. {why}")
        elif (found := _control(name, control, asked, notes, stop)) is not None:
            made[name] = found
    return made, api


def _own(recipe: Recipe, request: Request, embeddings: Sequence[Seen]) -> Embedding:
    """The run's embedding: the one of `embeddings` that it is, else a new one; errors as of `build_embedding`."""
    built = build_embedding(recipe, request.embedding)
    name = described(recipe.embedding) if request.embedding is None else None
    return next((each for each in embeddings if each.embedding is built or each.name == name), built)


def _control(name: str, control: ControlRun, asked: bool | None, notes: Notes, stop: Event) -> Labelled | None:
    """The samples of a control that is asked for (True) or comes of itself (None); else None, and a note says why."""
    if asked is None and not control.comes_of_itself:
        notes.add(
            f"The {control.name} control is left out; --{control.name} runs it, or {name}=True from Python. "
            f"{control.describe()}"
        )
        return None
    (notes.add if asked else notes.keep)(control.describe())
    try:
        return _label(control.result(notes.progress, stop))
    except (APIError, PluginError) as error:
        if asked or isinstance(error, Interrupted):
            raise
        notes.add(f"The {control.name} control is left out: {error}")
        return None


def _make_unevolved(founders: Labelled, evaluated: Labelled, control: ControlRun | None, notes: Notes) -> Labelled:
    """New random samples, as many as are evaluated, where they are free and quick; else all of S_0."""
    if control is not None and control.comes_of_itself and control.quick(len(evaluated)):
        with notes.progress.task("drawing un-evolved samples", None), suppress(APIError, PluginError):
            classes, seed = control.recipe.private.labels, control.recipe.seed
            return unevolved(control.api, evaluated.labels, classes, seed)
    notes.add(
        f"The un-evolved control is S_0 with its {len(founders):,} {founders.samples.noun}, "
        f"where {len(evaluated):,} are evaluated."
    )
    return founders


def _label(population: Population) -> Labelled:
    return label_samples(population.samples, population.labels, population.conditions)


def _as_many(founders: Labelled, labels: np.ndarray) -> Labelled | None:
    """As many of the founders of each label as `labels` has, the first ones; None where there are too few."""
    rows = []
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        members = np.flatnonzero(founders.labels == label)[:count]
        if len(members) < count:
            return None
        rows.append(members)
    return founders.take(np.concatenate(rows))


def _private(run: Run, classes: tuple[str, ...], notes: Notes) -> tuple[PrivateSource | None, Labelled | None]:
    """Where the run's private records are, and they, if its confidential side still says so and they are there."""
    try:
        if not (run.folder / FULL_RECIPE).is_file():
            raise RunError("the run's confidential side was purged")
        source = Recipe.load(run.folder / FULL_RECIPE).private
        return source, read_real(source, "private data set", classes).content
    except MissingDependency:
        raise
    except PEError as error:
        notes.add(
            "The real-data control, the one-vote control and memorisation are left out, and the test set is not "
            f"compared with the private records: {str(error).rstrip('.')}."
        )
        return None, None


def _held_out(test: RealSet, seen: dict[str, Labelled], notes: Notes) -> RealSet:
    """The test set without samples that are among those `seen`, by what they are; a note says how many they were."""
    test, sentence = leave_out(test, {what: each.samples for what, each in seen.items()})
    if sentence:
        notes.add(sentence)
    return test

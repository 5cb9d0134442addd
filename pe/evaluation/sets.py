"""The request for an evaluation, and the sets that it compares.

These are synthetic data, controls and real samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    PrivateDataError,
    RecipeError,
    RunError,
    check_list,
    nearest_name,
)
from pe.evaluation.controls import (
    is_free,
    is_quick,
    label_pool,
    make_unevolved,
    one_vote_run,
    public_samples,
)
from pe.evaluation.features import CachedEmbedding, embedding_name
from pe.evaluation.methods import Methods, are_repeated, methods_of
from pe.fit.trainer import PrivateRecords, load_model
from pe.judgement.labelled import Labelled, Labels, label_samples
from pe.planning.forecast import load_changed
from pe.planning.named import check_named
from pe.planning.parts import build_embedding, set_up_generator
from pe.planning.releases import plan_of
from pe.plugins.protocols import Embedding, GenerationAPI, Generator, as_generator
from pe.plugins.registry import plugins
from pe.plugins.specs import PluginSpec
from pe.private.dataset import sample_digest
from pe.private.source import PrivateSource
from pe.progress import Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.store.places import FULL_RECIPE, RECIPE
from pe.store.run import Run

SYNTHETIC_DATA = "synthetic"
UNEVOLVED = "unevolved"
REAL = "real"
ONE_VOTE = "one_vote"
PUBLIC = "public"
WORDS = {
    UNEVOLVED: "the generator's own samples",
    PUBLIC: "the public data",
    ONE_VOTE: "a single vote",
    REAL: "the private records",
}
"""Words, within a sentence, for what classifiers are trained on besides the synthetic data."""
LEAST_LEFT = 0.1
"""Least share of a test set that must be left when samples that are not held out are taken out of
it."""

_OF_THE_SET = (  # a source's words on private records → words on the set that it reads here
    ("the private records", "its records"),
    ("The private records", "its records"),
    (
        "set private.resize to crop, fit or stretch, or private.size to what all images have",
        "bring the set to the run's size",
    ),
)


@dataclass(frozen=True)
class Request:
    """Settings of an evaluation. `api` and `embedding` are objects of the user's own.

    Raises:
        RecipeError: an unknown metric, a text in place of a list, or fewer than one
            seed.
    """

    # place of real samples that no run has seen; see `source_at` of pe/evaluation/methods.py
    test: str
    metrics: tuple[str, ...] | None = None  # by name; None: all of our own that are possible
    seeds: int = 1  # trainings of each classifier that learns by chance, on each set, ≥ 1
    # samples are compared under these; the first serves memorisation and the judgement too;
    # empty: the run's own
    embeddings: tuple[PluginSpec, ...] = ()
    reference: str | None = None  # place of samples that fidelity compares with; None: the test set
    canaries: Path | None = (
        None  # a UTF-8 file of strings planted among the private texts, one in each line
    )
    one_vote: bool | None = None  # make that control; None: if it is free and quick
    changes: tuple[
        str, ...
    ] = ()  # of the machine's settings in the run's recipe, of the form `a.b=value`
    api: GenerationAPI | None = None
    embedding: Embedding | None = None

    def __post_init__(self) -> None:
        for name in ("metrics", "embeddings", "changes"):
            check_list(name, getattr(self, name))
        for name in self.metrics or ():
            if name not in plugins("pe.metrics"):
                hint = nearest_name(name, plugins("pe.metrics"))
                raise RecipeError(f"Unknown metric '{name}': {hint}")
        if self.seeds < 1:
            raise RecipeError(f"An evaluation needs one seed or more, not {self.seeds}.")

    @property
    def with_canaries(self) -> tuple[str, ...]:
        """The canaries, each once. Raise RecipeError if the file cannot be read, or holds none."""
        if self.canaries is None:
            return ()
        try:
            lines = self.canaries.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"{self.canaries} cannot be read as UTF-8: name a file with a canary in each line."
            ) from error
        canaries = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
        if not canaries:
            raise RecipeError(f"{self.canaries} holds no canary: write one in each line.")
        return canaries

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of the metrics to measure.

        A metric of another package sees the private records, so it must be asked for by name.
        """
        if self.metrics is not None:
            return self.metrics
        points = plugins("pe.metrics").items()
        return tuple(name for name, point in points if point.module.startswith("pe."))


@dataclass(frozen=True, eq=False)
class Notes:
    """Sentences on limits of an evaluation: stored, and as a rule printed as they arise."""

    progress: Progress
    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str, aloud: bool = True) -> None:
        """Store a sentence and, if `aloud`, print it."""
        if aloud:
            self.progress.warn(sentence)
        self.sentences.append(sentence)


@dataclass(frozen=True, eq=False)
class RealSet:
    """Real samples with their classes. Confidential, if they are private."""

    kind: str  # of the source
    path: str  # the source's place, or its kind if it has none
    content: Labelled  # the samples that can be read
    sha256: (
        str  # of all samples as the run reads them, with their classes, in any order, hexadecimal
    )
    left_out: int = 0  # samples that were taken out of it because they are not held out


@dataclass(frozen=True, eq=False)
class Sets:
    """Everything that is compared, read once. Confidential."""

    run: Run
    recipe: Recipe  # the shareable one
    by_name: dict[
        str, Labelled
    ]  # SYNTHETIC_DATA, then the controls of generated samples that there are
    test: RealSet  # real samples that no run has seen
    reference: RealSet  # for fidelity
    private: Labelled | None  # None: they cannot be read
    populations: list[Population]  # S_0 … S_t; the last is evaluated
    api: Generator | None  # the generator, if it was needed and is at hand
    notes: Notes  # the evaluation adds its own

    @property
    def modality(self) -> type[Samples]:
        """The modality of all samples."""
        return self.recipe.private.modality

    @property
    def methods(self) -> Methods:
        """The modality's methods."""
        return methods_of(self.modality)

    @property
    def classes(self) -> tuple[str, ...]:
        """The public label names."""
        return self.recipe.private.labels

    @property
    def all(self) -> dict[str, Labelled]:
        """The generated sets and, if it can be read, REAL."""
        return self.by_name if self.private is None else self.by_name | {REAL: self.private}


def gather(
    run: Run,
    request: Request,
    notes: Notes,
    stop: Event,
    embeddings: Sequence[CachedEmbedding] = (),
) -> Sets:
    """Read the sets to compare, and make the controls.

    One vote uses the run's embedding, from `embeddings` if there.

    Raises:
        RunError: the run has no population yet.
        RecipeError: the test or reference set does not fit the run.
    """
    recipe = load_changed(run.folder / RECIPE, request.changes, "evaluated")
    source = recipe.private
    classes = recipe.private.labels
    noun = source.modality.noun
    source_at = methods_of(source.modality).source_at
    populations = run.populations(len(classes))
    if not populations:
        raise RunError(f"{run.folder} has no finished population yet: wait for its S_0.")
    synthetic = _label(populations[-1])
    iteration = len(populations) - 1
    if len(synthetic) < 2:
        raise RecipeError(
            f"{run.folder} has fewer than two synthetic {noun}: an evaluation needs two or more."
        )
    if not run.is_finished:
        notes.add(
            f"The run is not finished: S_{iteration} of S_{recipe.evolution.iterations} is "
            "evaluated."
        )
    with notes.progress.task(f"reading real {noun}", None):
        test = read_real(source_at(request.test, source), "test set", classes, notes)
        reference = None
        if request.reference is not None:
            reference = read_real(
                source_at(request.reference, source, has_labels=False),
                "reference set",
                classes,
                notes,
            )
        private_source, private = _private(run, classes, notes, request.changes)
    others = {f"synthetic {noun}": synthetic} | (
        {} if private is None else {"private records": private}
    )
    # before the controls are made, which may cost calls: too small a test set ends here
    test = leave_out(test, others, notes)
    sets = {SYNTHETIC_DATA: synthetic}
    controls, api = _controls(
        run, recipe, populations, private_source, request, notes, stop, embeddings
    )
    if controls:
        test = leave_out(
            test, {f"{noun} of '{name}'": one for name, one in controls.items()}, notes
        )
        sets |= controls
    missing = [name for i, name in enumerate(classes) if not (test.content.labels == i).any()]
    if missing:
        notes.add(f"The test set has no {noun} of {', '.join(missing)}.")
    return Sets(
        run=run,
        recipe=recipe,
        by_name=sets,
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
    embeddings: Sequence[CachedEmbedding],
) -> tuple[dict[str, Labelled], Generator | None]:
    """Return the controls that cost nothing, are asked for or run by default.

    The generator is returned, too, if it was needed.
    """
    founders = _label(run.founders() or populations[0])
    last = _label(populations[-1])
    votes = len(populations) - 1
    api, why = _generator(run, recipe, request)
    controls = {}
    if votes:
        if request.api is None:
            load_model(api, run.folder)  # only what draws un-evolved samples needs it
        enough = _as_many(founders, last.labels)
        controls[UNEVOLVED] = enough or _make_unevolved(run, recipe, founders, last, api, notes)
    if not why:
        public = _public(recipe, api, last.labels, notes)
        if public is not None:
            controls[PUBLIC] = public
    if votes and request.one_vote is not False and source is not None:
        one_vote = _one_vote(
            run, recipe, populations, source, api, why, request, notes, stop, embeddings
        )
        if one_vote is not None:
            controls[ONE_VOTE] = one_vote
    return controls, api


def _generator(run: Run, recipe: Recipe, request: Request) -> tuple[Generator | None, str]:
    """Return the run's generator, or None and a sentence that says why it is not at hand."""
    if request.api is not None:
        return as_generator(request.api), ""
    kind = recipe.api.kind
    if kind.startswith(OBJECT):
        return None, (
            f"The generator is an object of your own, {kind.removeprefix(OBJECT)}, so pass it from "
            "Python: pe.evaluate(…, api=…)."
        )
    try:
        check_named(run.folder, recipe, request.changes, "api")
    except RecipeError as error:
        return None, str(error)
    return set_up_generator(recipe.api)


def _public(recipe: Recipe, api: Generator | None, labels: Labels, notes: Notes) -> Labelled | None:
    """Return the labelled public data of the generator. A note tells if they cannot be read."""
    try:
        own = label_pool(recipe, labels)
        return public_samples(recipe, api, labels) if own is None and api is not None else own
    except PEError as error:
        notes.add(f"The control of public data is left out: {error}")
        return None


def _one_vote(
    run: Run,
    recipe: Recipe,
    populations: list[Population],
    source: PrivateSource,
    api: Generator | None,
    why: str,
    request: Request,
    notes: Notes,
    stop: Event,
    embeddings: Sequence[CachedEmbedding],
) -> Labelled | None:
    """Make the one-vote control if it was asked for, or is free and quick.

    Return None, with a note, otherwise.
    """
    is_asked_for = bool(request.one_vote)
    if len(populations) == 2:
        notes.add(
            "The one-vote control is left out: the run has voted once, as this control would.",
            is_asked_for,
        )
        return None
    if api is None:
        notes.add(f"The one-vote control is left out. {why}")
        return None
    try:
        check_named(run.folder, recipe, request.changes, "embedding")
        own = build_embedding(recipe, request.embedding)
        own_name = embedding_name(recipe.embedding) if request.embedding is None else None
        same = (each for each in embeddings if each.embedding is own or each.name == own_name)
        embedding = next(same, own)  # the cached one, if it is the run's
        plan = plan_of(run, recipe)
        control = one_vote_run(run, recipe, plan, api, populations, source.open(), embedding)
    except PEError as error:
        notes.add(f"The one-vote control is left out. {error}")
        return None
    if not is_asked_for and not control.comes_of_itself:
        notes.add(
            "The one-vote control is left out; --one-vote runs it, or one_vote=True from Python. "
            + control.describe()
        )
        return None
    notes.add(control.describe(), aloud=is_asked_for)
    try:
        return _label(control.result(notes.progress, stop))
    except (APIError, PluginError) as error:
        if is_asked_for or isinstance(error, Interrupted):
            raise
        notes.add(f"The one-vote control is left out: {error}")
        return None


def _make_unevolved(
    run: Run,
    recipe: Recipe,
    founders: Labelled,
    last: Labelled,
    api: Generator | None,
    notes: Notes,
) -> Labelled:
    """Return as many new RANDOM_API samples as are evaluated, if they are free and quick.

    Otherwise `founders`.
    """
    if api is not None and is_free(recipe, api) and is_quick(run, len(last)):
        with (
            notes.progress.task("drawing un-evolved samples", None),
            suppress(APIError, PluginError),
        ):
            return make_unevolved(api, last.labels, recipe.private.labels, recipe.seed)
    sizes = f"{len(founders):,} {founders.samples.noun}, where {len(last):,} are evaluated"
    notes.add(f"The un-evolved control is S_0 with its {sizes}.")
    return founders


def _label(population: Population) -> Labelled:
    return label_samples(population.samples, population.labels, population.conditions)


def _as_many(founders: Labelled, labels: Labels) -> Labelled | None:
    """Return the first founders of each label, as many as `labels` has of that label.

    Returns None if there are too few.
    """
    rows = []
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        members = np.flatnonzero(founders.labels == label)[:count]
        if len(members) < count:
            return None
        rows.append(members)
    return founders.take(np.concatenate(rows))


def _private(
    run: Run, classes: tuple[str, ...], notes: Notes, changes: tuple[str, ...]
) -> tuple[PrivateSource | None, Labelled | None]:
    """Read the run's private records.

    None, None and a note if its confidential side or the records are not there.
    """
    try:
        if not (run.folder / FULL_RECIPE).is_file():
            raise RunError("the run's confidential side was purged")
        recipe = Recipe.load(run.folder / FULL_RECIPE, changes)
        check_named(run.folder, recipe, changes, "private")
        source = recipe.private
        return source, read_real(source, "private data set", classes, notes).content
    except MissingDependency:
        raise
    except PEError as error:
        notes.add(
            "Judgement, memorisation and the one-vote control are left out, and the test set is "
            f"not compared with the private records: {str(error).rstrip('.')}."
        )
        return None, None


def read_real(source: PrivateSource, what: str, classes: tuple[str, ...], notes: Notes) -> RealSet:
    """Read all samples of a source, called `what` in messages, into memory.

    With one class, labels do not matter.

    A note tells of samples that cannot be read, where the recipe skips them.

    Raises:
        RecipeError: the set does not fit the run, or has fewer than two samples.
    """
    place = str(getattr(source, "path", source.kind))
    noun = source.modality.noun
    try:
        dataset = source.open()
        bad = dataset.check()
        records = PrivateRecords.of(dataset)
    except PrivateDataError as error:
        message = str(error)
        one = noun.removesuffix("s")
        own = ((f"A private {one}", f"The {one}"), (f"private {one}", one), ("private record", one))
        # the source's messages speak of private records, which these are not
        for theirs, ours in (*_OF_THE_SET, *own):
            message = message.replace(theirs, ours)
        raise RecipeError(f"The {what} {place} does not fit the run: {message}") from error
    if bad:
        notes.add(
            f"{len(bad):,} {noun} of the {what} cannot be read and are left out; the first: "
            f"{bad[0].reason}"
        )
    if len(records.labels) < 2:
        raise RecipeError(
            f"The {what} {place} has fewer than two {noun}: an evaluation needs two or more."
        )
    labels = np.zeros_like(records.labels) if len(classes) == 1 else records.labels
    content = Labelled(dataset.modality(records.samples), labels)
    pairs = zip(content.samples.array, content.labels, strict=True)
    # sorted, since two test sets are the same whatever the order of their files
    digests = sorted(sample_digest(sample) + label.tobytes() for sample, label in pairs)
    return RealSet(source.kind, place, content, hashlib.sha256(b"".join(digests)).hexdigest())


def leave_out(test: RealSet, others: Mapping[str, Labelled], notes: Notes) -> RealSet:
    """Return the test set without those that `are_repeated` from one of `others`.

    A note counts them, by set.
    """
    among = {
        what: are_repeated(test.content.samples, each.samples) for what, each in others.items()
    }
    rest = np.flatnonzero(~np.logical_or.reduce([*among.values()]))
    noun = test.content.samples.noun
    equality = methods_of(test.content.samples).equality
    size = len(test.content)
    count = len(test.content) - len(rest)
    if not count:
        return test
    which = ", ".join(f"{what} ({mask.sum():,})" for what, mask in among.items() if mask.any())
    # samples that the run has seen say nothing about new ones
    if len(rest) < max(2, LEAST_LEFT * size):
        raise RecipeError(
            f"The test set {test.path} tests nothing: {count:,} of its {size:,} {noun} are, "
            f"{equality}, among the {which}; name {noun} that no run has seen."
        )
    notes.add(
        f"{count:,} of the {size:,} test {noun} are left out, because they are, {equality}, among "
        f"the {which}: {len(rest):,} are left."
    )
    return replace(test, content=test.content.take(rest), left_out=test.left_out + count)

"""The metrics of `pe evaluate`, and what they look at.

A metric is a function of `Measured` that returns its part of metrics.json. It has a name in the
entry points `pe.metrics`, so another package may bring one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pe.data.columns import Columns
from pe.data.samples import distinct
from pe.errors import RecipeError
from pe.evaluation.advice import SHARE, Evidence, advise
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.fidelity import distances
from pe.evaluation.memorisation import Nearer, attack_model, memorisation, nearer_private
from pe.evaluation.methods import File, are_among
from pe.evaluation.sets import REAL, SYNTHETIC_DATA, WORDS, Request, Sets
from pe.judgement import judge as judgements
from pe.judgement.heldout import NotComparable, compare_populations
from pe.judgement.labelled import Labelled, Values
from pe.judgement.scale import between_runs
from pe.judgement.views import Viewed, views_of
from pe.judgement.words import to_dict
from pe.planning.releases import plan_of
from pe.plugins.registry import load
from pe.privacy.accounting import epsilon
from pe.private.modalities import RowSource
from pe.progress import Progress
from pe.store.places import CONFIDENTIAL


@dataclass(eq=False)
class Measured:
    """The sets that metrics look at, and the values that they return. Confidential."""

    sets: Sets
    request: Request
    embeddings: Sequence[CachedEmbedding]  # one or more
    progress: Progress
    pairs: File | None = None  # of the nearest pairs, for the confidential side
    _found: dict[str, Values] = field(default_factory=dict)

    def of(self, name: str) -> Values:
        """Return a metric's part of metrics.json, measured once. Empty: it was not asked for."""
        if name not in self.request.chosen:
            return {}
        if name not in self._found:
            self._found[name] = load("pe.metrics", name)(self)
        return self._found[name]

    def view(self, whole: Labelled) -> Viewed:
        """Return a set in every view."""
        return views_of(whole, self.embeddings[0].vectors, self.sets.test.content, self.columns)

    @cached_property
    def columns(self) -> Columns | None:
        """The columns of a table."""
        private = self.sets.recipe.private
        return private.declared if isinstance(private, RowSource) else None

    @cached_property
    def test(self) -> Viewed:
        """The test set."""
        return self.view(self.sets.test.content)

    @cached_property
    def private(self) -> Viewed | None:
        """The private records. None if they cannot be read."""
        return None if self.sets.private is None else self.view(self.sets.private)

    @cached_property
    def differs(self) -> NotComparable | None:
        """The feature in which test and private records differ."""
        if self.private is None:
            return None
        seed = self.sets.recipe.seed
        names = self.private.names
        return compare_populations(names, self.private.features, self.test.features, seed)

    @cached_property
    def nearer(self) -> Nearer | None:
        """The share of synthetic samples nearer to private records than to held-out ones."""
        private = self.sets.private
        if private is None or self.differs is not None:
            return None
        synthetic = self.sets.by_name[SYNTHETIC_DATA].samples
        embedding = self.embeddings[0]
        ours = embedding.vectors(synthetic)[distinct(synthetic)[0]]
        each = (private.samples, self.sets.test.content.samples)
        records, heldout = map(embedding.vectors, each)
        return nearer_private(ours, records, heldout, self.sets.recipe.seed)

    @cached_property
    def exact_copies(self) -> list[str]:
        """A warning, if synthetic samples are private records and cannot be so by chance."""
        private = self.sets.private
        if private is None or self.sets.methods.equal_by_chance:
            return []
        synthetic = self.sets.by_name[SYNTHETIC_DATA].samples
        count = int(are_among(synthetic, private.samples).sum())
        if not count:
            return []
        return [
            f"{count:,} of {len(synthetic):,} generated {synthetic.noun} are private records, "
            f"{self.sets.methods.equality}: find out why before you share them."
        ]

    def need_records(self, metric: str) -> bool:
        """Return True if the private records are there, which a metric needs.

        Raises:
            RecipeError: they are not, and the metric was asked for by name.
        """
        if self.sets.private is None and self.request.metrics is not None:
            raise RecipeError(
                f"`{metric}` needs the private records, which are not there (a note says why): "
                "choose other `--metrics`."
            )
        return self.sets.private is not None


def fidelity(measured: Measured) -> Values:
    """Compare each set with the reference set, under each embedding and by its content."""
    sets = measured.sets
    samples = {key: each.samples for key, each in sets.all.items()}
    reference = sets.reference.content
    values = {}
    for embedding in measured.embeddings:
        values[embedding.name], notes = distances(
            embedding, samples, reference.samples, sets.recipe.seed, measured.progress
        )
        for note in notes:
            sets.notes.add(note)
    contents = sets.methods.contents(sets.all, reference, sets.recipe.private)
    return {"fidelity": values} | contents


def judgement(measured: Measured) -> Values:
    """Judge the synthetic data, and say what to do next.

    Return {} with a note if the private records cannot be read: they are the end of the scale.
    """
    sets = measured.sets
    recipe = sets.recipe
    if not measured.need_records("judgement") or measured.private is None:
        sets.notes.add("The judgement is left out: its scale ends at the private records.")
        return {}
    plan = plan_of(sets.run, recipe)
    records = recipe.private.declared_size or len(measured.private)
    spent = (
        math.inf if sets.run.noiseless else epsilon(plan.releases, recipe.privacy.delta, quick=True)
    )
    found = judgements.judge(
        judgements.Compared(
            modality=sets.modality.kind,
            noun=sets.modality.noun,
            classes=sets.classes,
            generated={name: measured.view(one) for name, one in sets.by_name.items()},
            private=measured.private,
            test=measured.test,
            columns=measured.columns,
            seeds=[recipe.seed + i for i in range(measured.request.seeds)],
            between_runs=between_runs(records, len(sets.classes), spent),
        ),
        measured.progress,
    )
    memorised = measured.of("memorisation").get("memorisation")
    nearer = measured.nearer if memorised else None
    warnings = memorised["warnings"] if memorised else measured.exact_copies
    advice = advise(Evidence(sets, plan, found, nearer, warnings, measured.differs))
    values = to_dict(found, WORDS)
    return {"judgement": values | {"next": advice[0] if advice else SHARE, "more": advice[1:]}}


def measure_memorisation(measured: Measured) -> Values:
    """Look for traces of private records in the synthetic data.

    Return {} without the private records, or if the test records are no others of their kind.
    """
    sets = measured.sets
    request = measured.request
    embedding = measured.embeddings[0]
    if not measured.need_records("memorisation") or sets.private is None:
        return {}
    if measured.differs is not None:
        sets.notes.add(str(measured.differs))
        for warning in measured.exact_copies:  # which needs no test records
            sets.notes.add(warning)
        return {}
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
    with measured.progress.task(f"comparing with {REAL} records", None):
        result = memorisation(synthetic, private, heldout.samples, embedding)
        traces = methods.traces(synthetic, private, heldout.samples, request.with_canaries)
        rows, records = result.pairs.T
        measured.pairs = methods.pairs(
            synthetic.take(rows), private.take(records), result.pair_distances
        )
        by_loss, why = attack_model(sets.run, sets.recipe, sets.private, heldout, request.changes)
    if why:
        sets.notes.add(why)
    values = {"embedding": embedding.name, **result.to_dict()}
    values["nearest_pairs"]["files"] = [pairs_file(measured.pairs[0])]
    if measured.nearer is not None:
        values["nearer"] = vars(measured.nearer) | {"sentence": measured.nearer.sentence(noun)}
    warnings = [*values["copies"]["warnings"]]
    if by_loss is not None:
        values["membership_by_loss"] = by_loss
        warnings += by_loss["warnings"]
    warnings += traces.pop("warnings", ())
    return {"memorisation": values | traces | {"warnings": warnings}}


def pairs_file(suffix: str) -> str:
    """Return the path of the file of nearest pairs, relative to the run's directory."""
    return f"{CONFIDENTIAL}/nearest_pairs.{suffix}"

"""What a run does, new or resumed: everything that its recipe names, from where the journal stands to the end."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

from pe import evolution
from pe.class_counts import dp_class_counts
from pe.engine.answers import telling_of_answers, warn_of_markup
from pe.engine.audit_record import write_audit_record
from pe.engine.clock import public_clock
from pe.engine.fitting import fit_generator
from pe.engine.going_on import to_resume
from pe.engine.loggers import logging_of
from pe.engine.logs import logging_to
from pe.engine.measuring import check_parents
from pe.engine.private_side import PrivateSide
from pe.engine.public_pool import PublicPool
from pe.engine.software import software_versions
from pe.errors import PluginError
from pe.fit.trainer import MODEL, Trainer
from pe.planning.build import build_dispatcher, build_embedding, build_generator
from pe.planning.cautions import guarantee_warnings, pool_warnings, vote_warnings
from pe.planning.choice import settle
from pe.planning.layout import budget_of, lay_out
from pe.planning.other_fits import Taken, taken_from_runs, undeclared
from pe.planning.readiness import (
    check_labels,
    check_price,
    check_public_place,
    check_search,
    overlap_warnings,
    size_warnings,
)
from pe.plugins.devices import DescribesPrecision
from pe.plugins.protocols import ChecksMachine, DescribesDegree, Embedding, GenerationAPI, info_of
from pe.plugins.registry import check_name
from pe.privacy.certificate import build_certificate
from pe.privacy.ledger import Ledger
from pe.privacy.markdown import certificate_files
from pe.privacy.noise import Noise
from pe.privacy.release import Release
from pe.privacy.words import NOT_DECLARED
from pe.private_work import InThisProcess, PrivateWork
from pe.progress import Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.recipe.usual_embedding import lacks_network
from pe.report.logged import Logger
from pe.report.pictures import contact_sheet
from pe.steps import Plan
from pe.store.places import CERTIFICATE, CONFIDENTIAL, EVOLUTION, SYNTHETIC
from pe.store.publish import level_times, publish
from pe.store.releases import JournalReleases
from pe.store.run import Run
from pe.store.writer import RunWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What a run needs besides its recipe.

    Attributes:
        api: the generator, when it is the user's own object.
        embedding: the embedding, when it is the user's own object.
        progress: told what happens.
        stop: set it to stop at the next chunk's boundary.
        noise: UNSAFE unless None: noise for tests, which the certificate names as "no guarantee".
        python: whether the user is in Python, so that messages name calls in place of commands.
        work: who embeds the private records and counts their votes.
        loggers: told of each population, shareable values alone.
    """

    api: GenerationAPI | None = None
    embedding: Embedding | None = None
    progress: Progress = field(default_factory=Progress)
    stop: Event = field(default_factory=Event)
    noise: Noise | None = None
    python: bool = False
    work: PrivateWork = field(default_factory=InThisProcess)
    loggers: Sequence[Logger] = ()


@dataclass(frozen=True)
class Execution:
    """A recipe with everything that it names."""

    recipe: Recipe
    plan: Plan
    api: GenerationAPI
    embedding: Embedding
    private: PrivateSide
    surroundings: Surroundings
    taken: tuple[Taken, ...]

    @classmethod
    def of(cls, recipe: Recipe, surroundings: Surroundings) -> Execution:
        """Lay out the plan and construct what the recipe names.

        Raises:
            PluginError: an object was handed over that is to be fitted: only what has a name is planned and charged.
        """
        if isinstance(surroundings.api, Trainer):
            raise PluginError(
                f"{type(surroundings.api).__name__} is fitted on the private records, and its fit is planned by name: "
                "register the class as an entry point of pe.adapters, and name it in api.kind."
            )
        if surroundings.embedding is None and not recipe.embedding.kind.startswith(OBJECT):
            check_name("pe.embeddings", recipe.embedding.kind)
        api = build_generator(recipe, surroundings.api)
        with surroundings.progress.task("planning the noise", None):  # a sampled fit's takes many seconds
            recipe = settle(recipe, api).recipe
            plan = lay_out(recipe, recipe.private.labels, recipe.private.privacy_unit)
        embedding = build_embedding(recipe, surroundings.embedding)
        private = PrivateSide(recipe.private, embedding, surroundings.progress, surroundings.work)
        taken = taken_from_runs(recipe, plan.releases, api, embedding)
        return cls(recipe, plan, api, embedding, private, surroundings, taken)

    def check_start(self) -> None:
        """Refuse what the generator cannot do, or cannot do here, before there is a run.

        Raises:
            RecipeError: it cannot obey a degree or serve a label, or a device or file that it needs is not there.
            MissingDependency: the neighbour search's library is not installed.
        """
        check_labels(self.api, self.plan.classes)
        if isinstance(self.api, DescribesDegree):
            for step in self.plan.steps:
                self.api.describe_degree(step.degree, step.t)
        if isinstance(self.api, ChecksMachine):
            self.api.check_machine()
        if isinstance(self.api, DescribesPrecision):
            self.api.describe_precision()
        check_search(self.recipe)
        check_price(self.recipe, self.api)
        check_public_place(self.recipe, self.api, self.embedding)

    def pool(self, fitted: bool = False) -> PublicPool | None:
        """The public samples that the generator, unless it is fitted already, and the embedding read; None: none."""
        plugins = {"embedding": self.embedding} if fitted else {"api": self.api, "embedding": self.embedding}
        return PublicPool.of(self.recipe, plugins, self.surroundings.progress)

    def check_pool(self, run: RunWriter) -> None:
        """Refuse to go on if public samples have changed that are still to be read.

        Raises:
            RunError: they have.
        """
        pool = self.pool(fitted=isinstance(self.api, Trainer) and bool(run.journal.files(f"{MODEL}/")))
        if pool is not None:
            pool.check_same(run.folder)

    def carry_out(self, run: RunWriter, event: str) -> Run:
        """Evolve from where the journal stands to the end, and write the result."""
        with logging_to(run.folder / CONFIDENTIAL / "log.txt"):
            run.journal.add_event(event)
            log.info("%s with %s", event, software_versions())
            self.private.log_bad_records()
            ledger = self._ledger(run)
            if not all(map(ledger.drawn, self.plan.releases)):
                self._set_clock(run, ledger)
            data_set = self._enter(run, ledger)
            try:
                with telling_of_answers(self.api, self.surroundings.progress):
                    self._evolve(run, ledger, data_set)
            except BaseException:
                if not ledger.stored():
                    self.private.leave(run)
                raise
        return run.run

    def _evolve(self, run: RunWriter, ledger: Ledger, data_set: dict[str, Any] | None) -> None:
        """Carry out what is left of a run that is entered in the data set's ledger, whose total is `data_set`."""
        work = self.surroundings.work
        write_audit_record(run, self.recipe, self.api, self.embedding, ledger, work.hosts)
        progress = self.surroundings.progress
        known = guarantee_warnings(self.recipe, self.plan, ledger.total())
        of_api = [*overlap_warnings(self.recipe, self.api, self.embedding), *size_warnings(self.recipe, self.api)]
        blurred = lacks_network(self.recipe.private, self.recipe.embedding.kind) if self.plan.steps else ""
        for warning in filter(None, (*known, *of_api, blurred)):
            progress.warn(warning)
        if not all(ledger.drawn(step.release) for step in self.plan.steps):
            self.private.embeddings(run)  # before anything is charged or asked: nobody sees how long it takes
        stop, command = self.surroundings.stop, partial(to_resume, run.folder, python=self.surroundings.python)
        dispatcher = build_dispatcher(self.recipe, self.api, run, progress=progress, stop=stop, command=command)
        if not isinstance(self.api, Trainer):  # else there is nothing to ask yet
            check_parents(self.recipe, self.plan, dispatcher, self.embedding)  # before anything is charged
        plan = self._size_plan(ledger)
        self._fit(run, ledger)
        if isinstance(self.api, Trainer):
            check_parents(self.recipe, self.plan, dispatcher, self.embedding)
        private = partial(self.private.embeddings, run)
        told = self.surroundings.loggers
        with logging_of(self.recipe, plan, run, ledger, told=told, progress=progress) as made:
            population = evolution.evolve(
                plan, private, dispatcher, self.embedding, ledger, progress.warn, work.count_votes, made
            )
            warn_of_markup(population.samples, progress)
            self.check_pool(run)  # as it was read by the generator
            run.write(EVOLUTION, contact_sheet(run.run.populations(), plan.classes))
            publish(run.folder)
            run.write_samples(SYNTHETIC, population, plan.classes)  # after that: a copy would be no fresher
            self._certify(run, ledger, data_set)
            level_times(run.folder)
            run.journal.add_event("finished")
            write_audit_record(run, self.recipe, self.api, self.embedding, ledger, work.hosts)

    def _set_clock(self, run: RunWriter, ledger: Ledger) -> None:
        """Hold private work back as the recipe says."""
        progress, stop = self.surroundings.progress, self.surroundings.stop
        clock = public_clock(
            self.recipe, self.plan, api=self.api, embedding=self.embedding, run=run, progress=progress, stop=stop
        )
        ledger.clock = self.private.clock = clock

    def _fit(self, run: RunWriter, ledger: Ledger) -> None:
        """Fit the generator on the private records, if it is one that is fitted, and not done already."""
        if isinstance(self.api, Trainer):
            given = self.surroundings
            fit_generator(
                self.recipe,
                self.plan,
                self.api,
                self.private.records,
                run=run,
                ledger=ledger,
                progress=given.progress,
                stop=given.stop,
                check_public=lambda: self.check_pool(run),
                taken=self._taken(run),
            )

    def _certify(self, run: RunWriter, ledger: Ledger, data_set: dict[str, Any] | None) -> None:
        """Write the certificate of all shareable files, last of all: a run that has one is finished."""
        if data_set is not None:
            now = self.private.total(self.recipe.privacy.delta)
            data_set = max(data_set, now or data_set, key=_largest)
        certificate = build_certificate(
            ledger,
            run=run.folder.resolve().name,
            files=run.written(),
            declared_size=self.recipe.private.declared_size,
            declared_units=self.recipe.private.declared_units,
            software=software_versions(),
            data_set=data_set,
            private_data_sent_to=_recipients(self.embedding),
            fitted_on_others=self._other_fits(run),
            pool_overlaps="declared" if overlap_warnings(self.recipe, self.api, self.embedding) else None,
            warnings=[*vote_warnings(self.recipe, self.plan), *pool_warnings(self.recipe, self.api)],
        )
        for name, content in certificate_files(certificate).items():
            run.write(name, content)

    def _taken(self, run: RunWriter) -> tuple[Taken, ...]:
        """Fits and data of other runs, as noted when this run began."""
        return Taken.read(run.folder) or self.taken

    def _other_fits(self, run: RunWriter) -> tuple[str, tuple[Release, ...]] | str | None:
        """Releases of other runs that this ledger does not count, as `build_certificate` takes them."""
        fits = {one.fit for one in self._taken(run) if not one.fit.counted}
        if not fits:
            return NOT_DECLARED if undeclared(self.recipe, self.api) else None
        names = "', '".join(sorted(fit.run for fit in fits))
        return names, tuple(release for fit in fits for release in fit.releases)

    def _enter(self, run: RunWriter, ledger: Ledger) -> dict[str, Any] | None:
        """The data set's total with this run in it; one that is all drawn was entered, and stays as it was."""
        if all(map(ledger.drawn, self.plan.releases)) and (run.folder / CERTIFICATE).is_file():
            total: dict[str, Any] | None = run.run.guarantee["data_set"]
            return total
        return self.private.enter(run, self.plan.releases, self.recipe.privacy.delta)

    def _size_plan(self, ledger: Ledger) -> Plan:
        """The plan, with label sizes from noisy counts where the recipe has them estimated."""
        release = self.plan.class_counts
        if release is None:
            return self.plan
        counts = dp_class_counts(self.private.dataset, release, ledger)
        return lay_out(self.recipe, self.plan.classes, release.unit, counts.tolist(), self.plan.releases)

    def _ledger(self, run: RunWriter) -> Ledger:
        """The run's ledger, with every release of the plan reserved in it."""
        recipe = self.recipe
        return Ledger(
            budget_of(recipe, self.plan),
            recipe.privacy.relation,
            recipe.private.privacy_unit,
            self.plan.releases,
            JournalReleases(run, lambda: self.private.drew(run)),
            self.surroundings.noise,
        )


def _largest(total: dict[str, Any]) -> float:
    """ε of a data set's total, by which the larger is told; infinite where none holds."""
    return math.inf if total["epsilon"] is None else float(total["epsilon"])


def _recipients(embedding: Embedding) -> str | None:
    """To whom the certificate says that private records go; see `build_certificate`."""
    hosts = info_of(embedding).hosts
    return NOT_DECLARED if hosts is None else ", ".join(hosts) or None

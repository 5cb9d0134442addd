"""A recipe carried out: begun, gone on with, finished."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from pe import evolution
from pe.class_counts import dp_class_counts
from pe.data.population import Population
from pe.dispatch.dispatcher import Dispatcher
from pe.dispatch.limits import Limits, Meter, Price
from pe.engine.clock import public_clock
from pe.engine.logs import logging_to
from pe.engine.private_side import IDENTITY, Identity, PrivateSide
from pe.engine.record import write_record
from pe.engine.software import software_versions
from pe.errors import DamagedFile, PluginError, RunError
from pe.fit.fitted import FITTED, Fitted
from pe.fit.trainer import FIT, MODEL, ChecksMachine, FitTerms, Fitting, Kept, Trainer, load_model
from pe.plan import Plan
from pe.planning.fitting import fit_terms
from pe.planning.layout import budget_of, lay_out
from pe.planning.meaning import differences
from pe.planning.readiness import check_place, check_public_place, overlap_warnings, reader_to_compare
from pe.plugins.protocols import DescribesDegree, Embedding, GenerationAPI, hosts_of
from pe.plugins.registry import Group, construct, require
from pe.privacy.certificate import build_certificate
from pe.privacy.ledger import Ledger
from pe.privacy.markdown import certificate_files
from pe.privacy.noise import Noise
from pe.privacy.release import Release
from pe.privacy.words import NOT_DECLARED, warnings
from pe.progress import Progress
from pe.recipe.schema import OBJECT, PluginSpec, Recipe
from pe.report.contact_sheet import contact_sheet
from pe.store.export import examine
from pe.store.places import CERTIFICATE, CONFIDENTIAL, EVOLUTION, FULL_RECIPE, RECIPE, SYNTHETIC, check_absent, new_name
from pe.store.publish import publish
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
    """

    api: GenerationAPI | None = None
    embedding: Embedding | None = None
    progress: Progress = field(default_factory=Progress)
    stop: Event = field(default_factory=Event)
    noise: Noise | None = None


def run_recipe(recipe: Recipe, out: Path | None, surroundings: Surroundings) -> Run:
    """Begin a run and carry it to its end.

    Args:
        recipe: what to run.
        out: the run's directory; must not exist. None: a new one below `runs/`.
        surroundings: what else it needs.

    Raises:
        PEError: nothing is written when the recipe or the private records are at fault; the run is
            there, to be resumed, when the generator fails later.
    """
    if out is not None:
        check_absent(out)
    check_place(recipe)
    work = Work.of(recipe, surroundings)
    work.check_start()
    identity = work.private.preflight()
    other: Path | None = getattr(work.api, "disjoint_from", None)
    if other is not None:
        work.private.check_not_those_of(other)
    work.check_public_images(identity)
    if recipe.evolution.iterations:
        work.private.try_embedding()
    work.private.check_cap(work.plan.releases)
    folder = out or Path("runs") / new_name(recipe.name)  # named now: how long reading the records took is not told
    recipes = {RECIPE: recipe.dump_shareable().encode(), FULL_RECIPE: recipe.dump().encode()}
    with RunWriter.create(folder, {**recipes, IDENTITY: identity.dump()}) as run:
        return work.carry_out(run, "started")


def resume_run(folder: Path, surroundings: Surroundings, recipe: Recipe | None = None) -> Run:
    """Go on with a run from its last committed chunk; a finished one is only checked.

    Args:
        folder: the run's directory.
        surroundings: what else it needs; objects of the user's own must be handed over again.
        recipe: the recipe as it is to be now; None: as the run holds it. Only what concerns the
            machine may differ.

    Raises:
        RunError: the recipe, the private records or a stored file changed; what changed is named.
        DamagedFile: the run is finished, and a file was changed, lost or added since.
    """
    stored = stored_recipe(folder)
    with RunWriter.reopen(folder) as run:
        changes = differences(stored, recipe or stored)
        if changes:
            raise RunError(f"{folder} cannot go on with another recipe: {'; '.join(changes)}. Start a new run for it.")
        if run.journal.happened("finished"):
            if problems := examine(folder)[1]:
                raise DamagedFile(f"{folder} is finished, and not as it was certified: {problems[0]}")
            return run.run
        work = Work.of(recipe or stored, surroundings)
        if not _all_drawn(run, work.plan):
            work.check_public_images(work.private.recognise(run))
        return work.carry_out(run, "resumed")


def stored_recipe(folder: Path, changes: tuple[str, ...] = ()) -> Recipe:
    """The whole recipe of the run in `folder`, with `changes` of the form `a.b=value`.

    Raises:
        RunError: there is no run, or its confidential side was purged.
    """
    path = Run.open(folder).folder / FULL_RECIPE
    if not path.is_file():
        raise RunError(f"{folder} has lost its confidential side, so it cannot be resumed; `pe extend` still works.")
    return Recipe.load(path, changes)


@dataclass(frozen=True)
class Work:
    """A recipe with everything that it names."""

    recipe: Recipe
    plan: Plan
    api: GenerationAPI
    embedding: Embedding
    private: PrivateSide
    surroundings: Surroundings

    @classmethod
    def of(cls, recipe: Recipe, surroundings: Surroundings) -> Work:
        """Lay out the plan and construct what the recipe names.

        Raises:
            PluginError: an object was handed over that is to be fitted: only what has a name is planned and charged.
        """
        if isinstance(surroundings.api, Trainer):
            raise PluginError(
                f"{type(surroundings.api).__name__} is fitted on the private records, and its fit is planned by name: "
                "register the class as an entry point of pe.adapters, and name it in api.kind."
            )
        with surroundings.progress.task("planning the noise", None):  # a sampled fit's takes many seconds
            plan = lay_out(recipe, recipe.private.labels, recipe.private.privacy_unit)
        api = generator_of(recipe, surroundings)
        embedding = _plugin("pe.embeddings", recipe.embedding, surroundings.embedding)
        private = PrivateSide(recipe.private, embedding, surroundings.progress)
        return cls(recipe, plan, api, embedding, private, surroundings)

    def check_start(self) -> None:
        """Refuse what the generator cannot do, or cannot do here, before there is a run.

        Raises:
            RecipeError: it cannot obey a degree, or a device or file that it needs is not there.
        """
        if isinstance(self.api, DescribesDegree):
            for degree in {step.degree for step in self.plan.steps}:
                self.api.describe_degree(degree)
        if isinstance(self.api, ChecksMachine):
            self.api.check_machine()
        check_public_place(self.recipe, self.api)

    def check_public_images(self, identity: Identity) -> None:
        """Refuse public images that are private records, before anything is called.

        Raises:
            RecipeError: some are, and `privacy.pool_overlaps` is not `declared`.
        """
        if (reader := reader_to_compare(self.recipe, self.api)) is not None:
            self.private.check_public_images(identity.key, reader)

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
            write_record(run, self.recipe, self.api, self.embedding, ledger)
            progress = self.surroundings.progress
            of_delta = warnings(self.recipe.privacy.delta, self.recipe.private.declared_size)
            for warning in (*of_delta, *overlap_warnings(self.recipe, self.api)):
                progress.warn(warning)
            if not all(ledger.drawn(step.release) for step in self.plan.steps):
                self.private.embeddings(run)  # before anything is charged or asked: nobody sees how long it takes
            plan = self._sized_plan(ledger)
            self.fit(run, ledger)
            population = evolution.evolve(
                plan,
                lambda: self.private.embeddings(run),
                dispatcher_of(self.recipe, self.api, run, self.surroundings),
                self.embedding,
                ledger,
                progress.warn,
            )
            _finish(run, plan, population)
            self._certify(run, ledger, data_set)
            publish(run.folder)
            run.journal.add_event("finished")
            write_record(run, self.recipe, self.api, self.embedding, ledger)
        return run.run

    def _set_clock(self, run: RunWriter, ledger: Ledger) -> None:
        """Hold private work back as the recipe says."""
        progress, stop = self.surroundings.progress, self.surroundings.stop
        clock = public_clock(self.recipe, self.plan, self.api, self.embedding, run, progress, stop)
        ledger.clock = self.private.clock = clock

    def fit(self, run: RunWriter, ledger: Ledger) -> None:
        """Fit the generator on the private records, if it is one that is fitted, and not done already."""
        if not isinstance(self.api, Trainer):
            return
        if not run.journal.files(f"{MODEL}/"):  # a folder that the journal does not know of is made again
            terms = fit_terms(self.recipe, self.plan.classes, self.recipe.private.privacy_unit)
            with run.new_folder(MODEL) as folder:
                surroundings = self.surroundings
                progress, stop, kept = surroundings.progress, surroundings.stop, run.run.confidential / "fit"
                self.api.fit(Fitting(terms, self.private.records, ledger, folder, progress, stop, Kept(kept)))
                if not (folder / FITTED).exists():
                    self._fitted(run, ledger, terms).write(folder)
            if kept.exists():
                shutil.rmtree(kept)
        run.check_files(f"{MODEL}/")
        load_model(self.api, run.folder)

    def _fitted(self, run: RunWriter, ledger: Ledger, terms: FitTerms) -> Fitted:
        """What the fit that has just ended was, and cost."""
        spent = [release for release in ledger.events() if release.name.startswith(FIT)]
        api = self.recipe.api
        return Fitted(
            run.folder.name, api.kind, api.settings, terms.classes, terms.image_shape, tuple(spent), not ledger.unsafe
        )

    def _certify(self, run: RunWriter, ledger: Ledger, data_set: dict[str, Any] | None) -> None:
        """Write the certificate of all shareable files, last of all; runs that were entered meanwhile count."""
        if data_set is not None:
            now = self.private.total(self.recipe.privacy.delta)
            data_set = max(data_set, now or data_set, key=lambda total: float(total["epsilon"]))
        certificate = build_certificate(
            ledger,
            run=run.folder.name,
            files=run.written(),
            declared_size=self.recipe.private.declared_size,
            software=software_versions(),
            data_set=data_set,
            private_data_sent_to=_recipients(self.embedding),
            fitted_on_others=_fitted_on_others(self.api),
            pool_overlaps="declared" if overlap_warnings(self.recipe, self.api) else None,
        )
        for name, content in certificate_files(certificate).items():
            run.write(name, content)

    def _enter(self, run: RunWriter, ledger: Ledger) -> dict[str, Any] | None:
        """The data set's total with this run in it; one that is all drawn was entered, and stays as it was."""
        if all(map(ledger.drawn, self.plan.releases)) and (run.folder / CERTIFICATE).is_file():
            total: dict[str, Any] | None = run.run.guarantee["data_set"]
            return total
        return self.private.enter(run, self.plan.releases, self.recipe.privacy.delta)

    def _sized_plan(self, ledger: Ledger) -> Plan:
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


def generator_of(recipe: Recipe, surroundings: Surroundings) -> GenerationAPI:
    """The generator that the recipe names: constructed, or the user's own object.

    Raises:
        PluginError: it is unknown, or another object than the run was made with.
        RecipeError: a wrong setting.
        MissingDependency: a library that it needs is not installed.
    """
    api: GenerationAPI = _plugin("pe.adapters", recipe.api, surroundings.api)
    return api


def dispatcher_of(recipe: Recipe, api: GenerationAPI, run: RunWriter, surroundings: Surroundings) -> Dispatcher:
    """What asks the generator, within the recipe's limits."""
    limits = Limits(**recipe.limits.model_dump(), max_refused=recipe.refusals.max_share)
    meter = Meter(limits, Price(**recipe.api.price.model_dump()), surroundings.stop)
    rules = recipe.evolution.attempts, recipe.refusals.retries
    return Dispatcher(api, run, recipe.private.labels, recipe.seed, *rules, surroundings.progress, meter)


def _recipients(embedding: Embedding) -> str | None:
    """To whom the certificate says that private images go; see `build_certificate`."""
    hosts = hosts_of(embedding)
    return NOT_DECLARED if hosts is None else ", ".join(hosts) or None


def _fitted_on_others(api: GenerationAPI) -> tuple[str, tuple[Release, ...]] | None:
    """By which run, and at what cost, the generator was fitted on records that are declared to be none of ours."""
    found: Fitted | None = getattr(api, "fitted_on_others", None)
    return None if found is None else (found.run, found.releases)


def _all_drawn(run: RunWriter, plan: Plan) -> bool:
    """Whether every planned release is stored, so that the private records are not needed any more."""
    store = JournalReleases(run)
    found = (store.find(release.name) for release in plan.releases)
    return all(one is not None and one.array is not None for one in found)


def _plugin(group: Group, spec: PluginSpec, given: object | None) -> Any:
    """The plug-in that the recipe names: constructed, or the user's own object."""
    name = spec.kind.removeprefix(OBJECT)
    if given is not None:
        if spec.kind != object_kind(given):
            raise PluginError(f"The run was made with {name}, not with {object_kind(given).removeprefix(OBJECT)}.")
        return given
    if spec.kind.startswith(OBJECT):
        raise PluginError(f"The run was made with an object of your own, {name}: hand it over again from Python.")
    require(group, spec.kind)
    return construct(group, spec.kind, spec.settings)


def object_kind(plugin: object) -> str:
    """How the recipe records an object of the user's own."""
    return f"{OBJECT}{type(plugin).__module__}.{type(plugin).__qualname__}"


def _finish(run: RunWriter, plan: Plan, population: Population) -> None:
    """Write what the run is for: the synthetic data and the picture of its evolution."""
    run.write_samples(SYNTHETIC, population, plan.classes)
    run.write(EVOLUTION, contact_sheet(run.run.populations(), plan.classes))

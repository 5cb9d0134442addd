"""The public clock of a run: its deadlines set before private work begins, and what misses them counted."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from pe import evolution
from pe.data.samples import suspicions
from pe.engine.loggers import logging_of
from pe.engine.measuring import check_parents
from pe.engine.private_side import IDENTITY, PrivateSide, PublicPool
from pe.engine.process import logging_to, software_versions
from pe.engine.report import telling_of_answers, warn_of_markup, write_audit_record
from pe.errors import DamagedFile, PluginError, RunError
from pe.fit.trainer import (
    FIT,
    FITTED,
    MODEL,
    Fitted,
    FitTerms,
    Fitting,
    Kept,
    OtherFit,
    PrivateRecords,
    Trainer,
    load_model,
)
from pe.histogram import InThisProcess, PrivateWork, dp_class_counts
from pe.planning.build import build_dispatcher, build_embedding, build_generator
from pe.planning.checks import (
    check_labels,
    check_place,
    check_price,
    check_public_place,
    check_search,
    guarantee_warnings,
    overlap_warnings,
    plugin_warnings,
    pool_warnings,
    vote_warnings,
)
from pe.planning.choice import choose_evolution
from pe.planning.clock import clock_terms, deadlines
from pe.planning.forecast import differences
from pe.planning.layout import budget_of, fit_dry_runs, fit_terms, lay_out, plan_of
from pe.planning.other_runs import OTHER_RUNS, OtherRun, disjoint_places, find_other_runs, is_undeclared
from pe.plugins.devices import DescribesPrecision
from pe.plugins.protocols import ChecksMachine, DescribesDegree, Embedding, GenerationAPI, info_of
from pe.plugins.registry import check_name
from pe.privacy.certificate import build_certificate
from pe.privacy.ledger import Ledger, PublicClock
from pe.privacy.noise import Noise
from pe.privacy.release import Release
from pe.privacy.words import NO_NOISE, NOT_DECLARED, certificate_files
from pe.progress import Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.recipe.usual_embedding import lacks_network
from pe.report.loggers import Logger
from pe.report.pictures import collapse_warnings, contact_sheet, varieties, whole
from pe.steps import Plan
from pe.store.certified import is_export
from pe.store.durable import level_times, publish
from pe.store.export import examine
from pe.store.places import (
    BANNER,
    CERTIFICATE,
    CONFIDENTIAL,
    EVOLUTION,
    FULL_RECIPE,
    PUBLIC_SAMPLES,
    RECIPE,
    SYNTHETIC,
    check_absent,
    new_name,
)
from pe.store.run import Run
from pe.store.writer import JournalReleases, RunWriter, read_journal

log = logging.getLogger(__name__)


def public_clock(
    recipe: Recipe,
    plan: Plan,
    api: GenerationAPI,
    embedding: Embedding,
    run: RunWriter,
    progress: Progress,
    stop: Event,
) -> PublicClock:
    """The clock that the recipe asks for, its deadlines by tries on this machine; one without deadlines if it is off.

    If it is off although requests leave this process, that is warned of. A deadline that is missed is warned of, too,
    and stands among the run's events, which are confidential.

    Args:
        recipe: of the run.
        plan: of the recipe.
        api: asked whom it sends requests to.
        embedding: tried on blank samples.
        run: where missed deadlines are noted.
        progress: told of warnings.
        stop: set to wait for no deadline.
    """
    terms = clock_terms(recipe, api)
    if terms.warning:
        progress.warn(terms.warning)
    if not terms.on:
        return PublicClock()
    with progress.task("setting the public clock", None):
        dry_runs = fit_dry_runs(recipe) if plan.fit else ()
        seconds, unheld = deadlines(recipe, plan, embedding, dry_runs)
    log.info("Public clock: %s; without a deadline: %s.", seconds, ", ".join(unheld) or "nothing")

    def overran(work: str) -> None:
        run.journal.add_event(f"overran {work}")
        progress.warn(
            f"Private work ({work}) took longer than its public deadline of {seconds[work]:g} s, so whoever watched "
            "the time has seen that; raise privacy.clock_slack before the run goes on."
        )

    return PublicClock(seconds, overran, stop)


# A generator is fitted on the private records, once in a run.


def fit_generator(
    recipe: Recipe,
    plan: Plan,
    api: Trainer,
    records: Callable[[], PrivateRecords],
    *,
    run: RunWriter,
    ledger: Ledger,
    progress: Progress,
    stop: Event,
    check_public: Callable[[], None],
    taken: Sequence[OtherRun],
) -> None:
    """Fit the generator, if that is not done already, and load what was fitted.

    Args:
        recipe: of the run.
        plan: of the recipe.
        api: the generator.
        records: the private ones.
        run: gets the model.
        ledger: charged with the fit's releases.
        progress: told what happens.
        stop: set from outside to stop.
        check_public: refuses public images that have changed.
        taken: what it takes from other runs.
    """
    if not run.journal.files(f"{MODEL}/"):  # a folder that the journal does not know of is made again
        terms = fit_terms(recipe)
        with run.new_folder(MODEL) as folder:
            kept = run.run.confidential / "fit"
            api.fit(
                Fitting(
                    terms=terms,
                    private=records,
                    ledger=ledger,
                    folder=folder,
                    progress=progress,
                    stop=stop,
                    kept=Kept(kept),
                )
            )
            check_public()  # as they were read by the fit
            _describe(recipe, run, ledger, terms, folder, [one.fit for one in taken]).write(folder)
        if kept.exists():
            shutil.rmtree(kept)
    run.check_files(f"{MODEL}/")
    load_model(api, run.folder)


def _describe(
    recipe: Recipe, run: RunWriter, ledger: Ledger, terms: FitTerms, folder: Path, fits: Sequence[OtherFit]
) -> Fitted:
    """Describe the fit that has just ended and its cost, or the model that it took over."""
    if (folder / FITTED).exists():
        fitted = Fitted.read(folder)
        known = {(fitted.run, fitted.releases), *((one.run, one.releases) for one in fitted.built_on)}
        return replace(fitted, built_on=(*fitted.built_on, *(f for f in fits if (f.run, f.releases) not in known)))
    spent = [release for release in ledger.events() if release.name.startswith(FIT)]
    return Fitted(
        run=run.folder.name,
        kind=recipe.api.kind,
        settings=recipe.api.settings,
        classes=terms.classes,
        shape=terms.shape,
        releases=tuple(spent),
        holds=not ledger.unsafe,
        built_on=tuple(fits),
    )


# What goes on with work that stopped, as its user types it: a command, or a call from Python.


def to_resume(folder: Path, key: str, python: bool) -> str:
    """What goes on with the run in `folder`.

    Args:
        folder: the run's directory.
        key: of the recipe, dotted, the limit to raise; "": none.
        python: whether the user is in Python.
    """
    return f"pe.resume('{folder}'{_changes(key)})" if python else f"pe resume {folder}{_option(key)}"


def to_extend(folder: Path, count: int, degree: float, key: str, python: bool) -> str:
    """What goes on with an extension; other arguments as of `to_resume`."""
    if python:
        return f"pe.extend('{folder}', {count}, degree={degree:g}{_changes(key)})"
    return f"pe extend {folder} -n {count} --degree {degree:g}{_option(key)}"


def _option(key: str) -> str:
    return f" --set {key}=…" if key else ""


def _changes(key: str) -> str:
    return f", changes={{'{key}': …}}" if key else ""


# What a run does, new or resumed: everything that its recipe names, from where the journal stands to the end.


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
    taken: tuple[OtherRun, ...]

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
            recipe = choose_evolution(recipe, api).recipe
            plan = lay_out(recipe)
        embedding = build_embedding(recipe, surroundings.embedding)
        private = PrivateSide(recipe.private, embedding, surroundings.progress, surroundings.work)
        taken = find_other_runs(recipe, plan.releases, api, embedding)
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
        of_api = plugin_warnings(self.recipe, self.api, self.embedding)
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

    def _taken(self, run: RunWriter) -> tuple[OtherRun, ...]:
        """Fits and data of other runs, as noted when this run began."""
        return OtherRun.read(run.folder) or self.taken

    def _other_fits(self, run: RunWriter) -> tuple[str, tuple[Release, ...]] | str | None:
        """Releases of other runs that this ledger does not count, as `build_certificate` takes them."""
        fits = {one.fit for one in self._taken(run) if not one.fit.counted}
        if not fits:
            return NOT_DECLARED if is_undeclared(self.recipe, self.api) else None
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
        return lay_out(self.recipe, counts.tolist(), self.plan.releases)

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


# A run is begun, or gone on with after a crash or a stop.


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
    execution = Execution.of(recipe, surroundings)
    recipe = execution.recipe  # with all of its evolution chosen
    execution.check_start()
    identity = execution.private.preflight()
    for other in disjoint_places(execution.taken):
        execution.private.check_not_those_of(other)
    pool = execution.pool()
    pinned = {} if pool is None else {PUBLIC_SAMPLES: pool.pin(execution.private)}
    if execution.taken:
        pinned[OTHER_RUNS] = OtherRun.dump(execution.taken)
    if recipe.evolution.iterations:
        execution.private.try_embedding(info_of(execution.api).shape)
    execution.private.check_cap(execution.plan.releases)
    folder = out or Path("runs") / new_name(recipe.name)  # named now: how long reading the records took is not told
    recipes = {RECIPE: recipe.dump_shareable().encode(), FULL_RECIPE: recipe.dump().encode()}
    if recipe.privacy.noiseless:
        recipes[BANNER] = f"{NO_NOISE}\n".encode()
    with RunWriter.create(folder, {**recipes, **pinned, IDENTITY: identity.dump()}) as run:
        return execution.carry_out(run, "started")


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
    if recipe is not None and not recipe.evolution.settled:
        recipe = recipe.chosen_as(stored)
    with RunWriter.reopen(folder) as run:
        changes = differences(stored, recipe or stored)
        if changes:
            raise RunError(f"{folder} cannot go on with another recipe: {'; '.join(changes)}. Start a new run for it.")
        if run.journal.happened("finished"):
            if problems := examine(folder)[1]:
                raise DamagedFile(f"{folder} is finished, and not as it was certified: {problems[0]}")
            return run.run
        execution = Execution.of(recipe or stored, surroundings)
        if not _all_drawn(run, execution.plan):
            execution.private.recognise(run)
        execution.check_pool(run)
        return execution.carry_out(run, "resumed")


def stored_recipe(folder: Path, changes: tuple[str, ...] = ()) -> Recipe:
    """The whole recipe of the run in `folder`, with `changes` of the form `a.b=value`.

    Raises:
        RunError: there is no run, or its confidential side was purged.
    """
    path = Run.open(folder).folder / FULL_RECIPE
    if is_export(folder):
        raise RunError(
            f"{folder} is an export (it has no {CONFIDENTIAL}/), so it cannot be resumed: resume the run that it was "
            f"made from; `pe privacy {folder}` checks an export."
        )
    if not path.is_file():
        raise RunError(f"{folder} has lost its confidential side, so it cannot be resumed; `pe extend` still works.")
    return Recipe.load(path, changes)


def _all_drawn(run: RunWriter, plan: Plan) -> bool:
    """Whether every planned release is stored, so that the private records are not needed any more."""
    store = JournalReleases(run)
    found = (store.find(release.name) for release in plan.releases)
    return all(one is not None and one.array is not None for one in found)


# What a run came to, in a few numbers for its owner.


def summary(run: Run) -> dict[str, Any]:
    """What `pe run --json` prints.

    Returns:
        epsilon and delta (None where no ε holds), data_set (the total of all runs), noun (what samples are called),
        images (their number), different (how many are left if equal ones of a label are counted once), api_calls,
        warnings (a sentence, if nearly all are copies of a few, or some look spoiled) and run (its directory).
    """
    recipe = Recipe.load(run.folder / RECIPE)
    populations = run.populations(len(recipe.private.labels))
    certificate, synthetic = run.guarantee, populations[-1].samples
    last = varieties([populations[0], populations[-1]], recipe.private.labels, recipe.seed)[-1]
    steps = plan_of(run, recipe).steps
    t = len(populations) - 1
    with read_journal(run) as journal:
        calls = journal.totals().usage.calls
    return {
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "data_set": certificate["data_set"],
        "noun": synthetic.noun,
        "images": len(synthetic),
        "different": whole(last).different,
        "api_calls": calls,
        "warnings": [
            *collapse_warnings(t, last, steps[-1] if steps else None),
            *suspicions(f"S_{t}", synthetic),
        ],
        "run": str(run.folder),
    }

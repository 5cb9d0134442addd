"""Start, resume and finish a run."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from pe import evolution
from pe.data.samples import suspicions
from pe.engine.audit_record import write_audit_record
from pe.engine.ladder import check_parents
from pe.engine.loggers import Logging
from pe.engine.private_side import IDENTITY, PrivateSide, PublicPool
from pe.engine.process import logging_to, software_versions
from pe.engine.report import report_answers, warn_of_markup
from pe.errors import DamagedFile, PluginError, RecipeError, RunError, quoted
from pe.fit.trainer import FIT, FITTED, MODEL, Cache, Fitted, Fitting, Trainer, load_model
from pe.histogram import InThisProcess, PrivateWork, dp_class_counts
from pe.nearest.label_weights import LabelWeights
from pe.planning import checks
from pe.planning.choice import choose_evolution
from pe.planning.deadlines import clock_terms, held_back
from pe.planning.forecast import differences
from pe.planning.named import check_named
from pe.planning.notices import Kind, Notice, notices, sentences
from pe.planning.other_runs import check_other_runs
from pe.planning.parts import build_dispatcher, build_embedding, build_generator, price_of
from pe.planning.releases import budget_of, fit_dry_runs, fit_terms, lay_out, plan_of
from pe.plugins.protocols import Embedding, GenerationAPI, Generator, info_of
from pe.plugins.registry import check_name
from pe.privacy.certificate import build_certificate
from pe.privacy.certificate_text import NO_NOISE, NOT_DECLARED, certificate_files, finite
from pe.privacy.ledger import Ledger, PublicClock, kind_of
from pe.privacy.noise import Noise
from pe.progress import Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.report.loggers import Logged, Logger, make_entry
from pe.report.pictures import collapse_warnings, contact_sheet, varieties, whole
from pe.steps import Plan
from pe.store import places
from pe.store.certified import is_export
from pe.store.durable import level_times, publish
from pe.store.export import examine
from pe.store.machine import NO_STATE, bind
from pe.store.run import Run
from pe.store.writer import JournalReleases, RunWriter, read_journal
from pe.version import __version__

log = logging.getLogger(__name__)


_OPTIONS = {"count": "-n", "degree": "--degree", "examples": "--examples"}


@dataclass(frozen=True)
class RunContext:
    """A run's context: everything that it needs besides its recipe."""

    # objects of the user's own, in place of those that the recipe names
    api: GenerationAPI | None = None
    embedding: Embedding | None = None
    progress: Progress = field(default_factory=Progress)  # is told what happens
    stop: Event = field(default_factory=Event)  # set it to stop at the next chunk's boundary
    # UNSAFE unless None: noise for tests, which the certificate names as "no guarantee"
    noise: Noise | None = None
    python: bool = False  # True if messages name Python calls in place of commands
    # embeds the private records and counts their votes
    work: PrivateWork = field(default_factory=InThisProcess)
    loggers: Sequence[Logger] = ()  # get the shareable values of each population

    def hint(self, verb: str, folder: Path, key: str, **numbers: float) -> str:
        """Return the command or Python call that goes on with the run in `folder`.

        `numbers` are the options of `pe extend`. `key`, if given, is the recipe's key to raise.
        """
        if self.python:
            arguments = [repr(str(folder)), *(f"{name}={n}" for name, n in numbers.items())]
            arguments += [f"changes={{'{key}': …}}"] if key else []
            return f"pe.{verb}({', '.join(arguments)})"
        words = ["pe", "run" if verb == "resume" else verb, quoted(folder)]
        words += [f"{_OPTIONS[name]} {number}" for name, number in numbers.items()]
        words += [f"--set {key}=…"] if key else []
        return " ".join(words)


@dataclass
class Execution:
    """A recipe (with all keys of its evolution), its plan, and its objects.

    `carry_out` sets `run` and `ledger`.
    """

    recipe: Recipe
    plan: Plan
    api: Generator
    embedding: Embedding
    private: PrivateSide
    context: RunContext
    run: RunWriter = field(init=False)
    ledger: Ledger = field(init=False)  # the run's, in which every release of the plan is reserved

    @classmethod
    def of(cls, recipe: Recipe, context: RunContext) -> Execution:
        """Lay out the plan and construct what the recipe names."""
        if isinstance(context.api, Trainer):
            raise PluginError(
                f"{type(context.api).__name__} is fitted on the private records, so it cannot be "
                "handed over as an object. Register the class as an entry point of pe.adapters, "
                "and set `api.kind` to its name."
            )
        if context.embedding is None and not recipe.embedding.kind.startswith(OBJECT):
            check_name("pe.embeddings", recipe.embedding.kind)
        api = build_generator(recipe, context.api)
        # The noise of a sampled fit takes many seconds.
        with context.progress.task("planning the noise", None):
            recipe = choose_evolution(recipe, api).recipe
            plan = lay_out(recipe)
        embedding = build_embedding(recipe, context.embedding)
        private = PrivateSide(recipe.private, embedding, context.progress, context.work)
        check_other_runs(recipe, plan.releases)
        return cls(recipe, plan, api, embedding, private, context)

    @property
    def progress(self) -> Progress:
        """The progress that the run tells."""
        return self.context.progress

    def check_start(self) -> None:
        """Refuse a recipe that the generator or this machine cannot serve.

        There is no run yet.
        """
        checks.check_degrees(self.plan, self.api)
        for check in checks.start_checks(self.recipe, self.api, self.embedding):
            check()

    def files(self) -> dict[str, bytes]:
        """Check the private records before the run exists.

        Return the files that the run begins with, by name.
        """
        identity = self.private.preflight()
        pool = self._pool(self.api)
        pins = {} if pool is None else {places.PUBLIC_SAMPLES: pool.pin(self.private)}
        if self.recipe.evolution.iterations:
            self.private.try_embedding(info_of(self.api).shape)
        self.private.check_cap(self.plan.releases)
        files = {
            places.RECIPE: self.recipe.dump_shareable().encode(),
            places.FULL_RECIPE: self.recipe.dump().encode(),
        }
        files[places.BINDING] = bind(*files.values())
        if not files[places.BINDING]:
            self.progress.warn(NO_STATE)
        if self.recipe.privacy.noiseless:
            files[places.BANNER] = f"{NO_NOISE}\n".encode()
        return {**files, **pins, IDENTITY: identity.dump()}

    def check_pool(self, run: RunWriter) -> None:
        """Refuse to go on if public samples that are still to be read have changed."""
        is_fitted = isinstance(self.api, Trainer) and bool(run.journal.files(f"{MODEL}/"))
        pool = self._pool(None if is_fitted else self.api)
        if pool is not None:
            pool.check_same(run.folder)

    def _pool(self, api: Generator | None) -> PublicPool | None:
        """Return the public samples that the embedding and `api` read.

        A generator that is fitted already reads none, so `api` is None.
        """
        plugins = {"api": api, "embedding": self.embedding}
        return PublicPool.of(self.recipe, plugins, self.progress)

    def carry_out(self, run: RunWriter, event: str) -> Run:
        """Evolve from where the journal stands to the end, and write the result."""
        recipe = self.recipe
        self.run = run
        with logging_to(run.folder / places.CONFIDENTIAL / "log.txt"):
            run.journal.add_event(event)
            log.info("%s with %s", event, software_versions())
            self.private.log_bad_records()
            self.ledger = Ledger(
                budget_of(recipe, self.plan),
                recipe.privacy.relation,
                recipe.private.privacy_unit,
                self.plan.releases,
                JournalReleases(run, lambda: self.private.note_draw(run)),
                self.context.noise,
            )
            is_drawn = all(map(self.ledger.has_drawn, self.plan.releases))
            if not is_drawn:
                self.ledger.clock = self.private.clock = self._clock()
            if is_drawn and run.run.is_finished:
                data_set = run.run.guarantee["data_set"]  # all is drawn and certified
            else:
                data_set = self.private.enter(run, self.plan.releases, recipe.privacy.delta)
            try:
                with report_answers(self.api, self.progress):
                    self._evolve(data_set)
            except BaseException:
                if not self.ledger.charges():
                    self.private.leave(run)
                raise
        return run.run

    def _clock(self) -> PublicClock:
        """Return the public clock, with deadlines from tries on this machine.

        It has no deadline if the clock is off.
        """
        terms = clock_terms(self.recipe, self.api)
        if terms.warning:
            self.progress.warn(terms.warning)
        if not terms.on:
            return PublicClock()
        # A deadline depends on this machine's own speed, so work is tried here on made-up samples.
        with self.progress.task("setting the public clock", None):
            dry_runs = fit_dry_runs(self.recipe) if self.plan.fit else ()
            held = held_back(self.recipe, self.plan, self.api, self.embedding, dry_runs)
        log.info(
            "Public clock: %s; without a deadline: %s.",
            held.seconds,
            ", ".join(held.unheld) or "nothing",
        )

        def overran(work: str) -> None:
            self.run.journal.add_event(f"overran {work}")
            self.progress.warn(
                f"Private work ({work}) took longer than its public deadline of "
                f"{held.seconds[kind_of(work)]:g} s, so whoever watched the time has seen that. "
                "Set `privacy.hold` to more seconds before the run goes on."
            )

        return PublicClock(held.seconds, overran, self.context.stop)

    def _evolve(self, data_set: dict[str, Any] | None) -> None:
        """Carry out what is left of the run.

        The run is entered in the data set's ledger, whose total is `data_set`.
        """
        run = self.run
        ledger = self.ledger
        recipe = self.recipe
        warn = self.progress.warn
        self._write_audit_record()
        kinds: tuple[Kind, ...] = ("guarantee", "votes", "overlap", "shape", "network")
        for sentence in sentences(self._notices(), *kinds):
            warn(sentence)
        if not all(ledger.has_drawn(step.release) for step in self.plan.steps):
            # Before anything is charged or asked: nobody sees how long it takes.
            self.private.embeddings(run)
        dispatcher = build_dispatcher(
            recipe,
            self.api,
            run,
            progress=self.progress,
            stop=self.context.stop,
            command=partial(self.context.hint, "resume", run.folder),
        )
        trial = partial(check_parents, recipe, self.plan, dispatcher, self.embedding)
        # Tried before anything is charged, but a generator that is to be fitted cannot answer yet.
        if not isinstance(self.api, Trainer):
            trial()
        plan = self._size_plan()
        if isinstance(self.api, Trainer):
            self._fit(self.api)
            trial()
        private = partial(self.private.embeddings, run)
        count = self.context.work.count_votes
        with self._logging(plan) as sink:
            population = evolution.evolve(
                plan,
                private,
                dispatcher,
                self.embedding,
                ledger,
                warn,
                count,
                self._keep_weights,
                sink.on_population,
            )
            warn_of_markup(population.samples, self.progress)
            self.check_pool(run)  # as it was read by the generator
            run.write(places.EVOLUTION, contact_sheet(run.run.populations(), plan.classes))
            publish(run.folder)
            # After `publish`, which replaces files by fresh copies: this one is new already.
            run.write_samples(places.SYNTHETIC, population, plan.classes)
            self._certify(data_set)
            level_times(run.folder)
            run.journal.add_event("finished")
            self._write_audit_record()

    def _keep_weights(self, t: int, compute: Callable[[], LabelWeights]) -> LabelWeights:
        """Return iteration t's label weights, which are stored before they are used.

        `pe.evolution.evolve` says why.
        """
        place = places.claims_place(t)
        file = self.run.folder / places.claims_file(t)
        run = self.run
        if not run.journal.files(f"{place}/"):
            with run.new_folder(place) as folder:
                np.save(folder / file.name, compute())
        run.check_files(f"{place}/")
        weights: LabelWeights = np.load(file)
        return weights

    def _size_plan(self) -> Plan:
        """Return the plan, with label sizes from noisy counts if the recipe has them estimated."""
        release = self.plan.class_counts
        if release is None:
            return self.plan
        counts = dp_class_counts(lambda: self.private.dataset, release, self.ledger)
        return lay_out(self.recipe, counts.tolist(), self.plan.releases)

    def _fit(self, api: Trainer) -> None:
        """Load the generator's model, after fitting it on the private records if that is left."""
        run = self.run
        # A folder that the journal does not know of is made again.
        if not run.journal.files(f"{MODEL}/"):
            state = run.run.confidential / "fit"
            with run.new_folder(MODEL) as folder:
                fitting = Fitting(
                    terms=fit_terms(self.recipe),
                    private=self.private.records,
                    ledger=self.ledger,
                    folder=folder,
                    progress=self.progress,
                    stop=self.context.stop,
                    cache=Cache(state),
                )
                api.fit(fitting)
                self.check_pool(run)  # as it was read by the fit
                # Otherwise it is another run's model, with its description.
                if not (folder / FITTED).exists():
                    self._describe_fit().write(folder)
            if state.exists():
                shutil.rmtree(state)
        run.check_files(f"{MODEL}/")
        load_model(api, run.folder)

    def _describe_fit(self) -> Fitted:
        """Return the origin and the cost of the fit that has just ended."""
        terms = fit_terms(self.recipe)
        return Fitted(
            run=self.run.folder.name,
            kind=self.recipe.api.kind,
            settings=self.recipe.api.settings,
            classes=terms.classes,
            shape=terms.shape,
            releases=tuple(
                release for release in self.ledger.events() if release.name.startswith(FIT)
            ),
            holds=not self.ledger.unsafe,
        )

    def _logging(self, plan: Plan) -> Logging:
        """Return the object that logs populations.

        It logs at once, or at the end if the times of private work would show.
        """
        run = self.run
        recipe = self.recipe
        held = self.ledger.clock.deadlines.keys()
        works = {kind_of(release.name) for release in plan.releases}
        loggers = self.context.loggers
        epsilon = finite(self.ledger.total()) if loggers else None
        folders = map(places.population_place, range(len(plan.steps) + 1))
        before = sum(bool(run.journal.files(f"{one}/")) for one in folders)

        def measure(t: int) -> Logged:
            images = cost = None
            if t >= before:  # what earlier populations took is not known any more
                usage = run.journal.totals().usage
                images = usage.images
                cost = price_of(recipe).of(usage)
            return make_entry(run.run, plan, t, epsilon, recipe.privacy.delta, images, cost)

        live = recipe.privacy.noiseless or works <= held
        return Logging(loggers, measure, live, self.progress.warn)

    def _notices(self) -> list[Notice]:
        return notices(self.recipe, self.plan, self.ledger.total(), self.api, self.embedding)

    def _certify(self, data_set: dict[str, Any] | None) -> None:
        """Write the certificate of all shareable files.

        This comes last: a run with a certificate is finished.
        """
        recipe = self.recipe
        # Other runs may have entered the ledger or left it meanwhile: the greater total is told.
        if data_set is not None:
            totals = data_set, self.private.total(recipe.privacy.delta) or data_set
            data_set = max(
                totals,
                key=lambda one: math.inf if one["epsilon"] is None else one["epsilon"],
            )
        hosts = info_of(self.embedding).hosts
        told = self._notices()
        certificate = build_certificate(
            self.ledger,
            run=self.run.folder.resolve().name,
            files=self.run.shareable_files(),
            declared_size=recipe.private.declared_size,
            declared_units=recipe.private.declared_units,
            software=software_versions(),
            data_set=data_set,
            private_data_sent_to=NOT_DECLARED if hosts is None else ", ".join(hosts) or None,
            fitted_on_others=NOT_DECLARED if recipe.api.kind.startswith(OBJECT) else None,
            pool_overlaps="declared" if sentences(told, "overlap") else None,
            warnings=[*sentences(told, "votes", "pool"), *recipe.private.public_facts],
        )
        for name, content in certificate_files(certificate).items():
            self.run.write(name, content)

    def _write_audit_record(self) -> None:
        workers = self.context.work.hosts
        write_audit_record(self.run, self.recipe, self.api, self.embedding, workers, self.ledger)


def run_recipe(recipe: Recipe, out: Path | None, context: RunContext) -> Run:
    """Begin a run, in a new directory (`out`, or one below `runs/`), and carry it to its end.

    Raises:
        PEError: nothing is written when the recipe or the private records are at fault; the run is
            there, to be resumed, when the generator fails later.
    """
    if out is not None:
        places.check_absent(out)
    checks.check_place(recipe)
    execution = Execution.of(recipe, context)
    execution.check_start()
    files = execution.files()
    # named now: how long reading the records took is not told
    folder = out or Path("runs") / places.new_name(recipe.name)
    with RunWriter.create(folder, files) as run:
        return execution.carry_out(run, "started")


def resume_run(folder: Path, context: RunContext, recipe: Recipe | None = None) -> Run:
    """Go on with a run from its last committed chunk. A finished one is only checked.

    `recipe` is the recipe to go on with; None: the run's own. It may differ from the run's own only
    as `differences` allows: in settings of the machine. Objects of the user's own must be passed
    again.

    Raises:
        RunError: the recipe, the private records or a stored file changed; the message names it.
        DamagedFile: the run is finished, and a file was changed, lost or added since.
    """
    recipe_of_run = stored_recipe(folder)
    recipe = recipe or stored_recipe(folder, ())
    if not recipe.evolution.is_complete:
        recipe = recipe.chosen_as(recipe_of_run)
    with RunWriter.reopen(folder) as run:
        changes = differences(recipe_of_run, recipe)
        if changes:
            raise RunError(
                f"{folder} cannot go on with another recipe: {'; '.join(changes)}. Start a new run "
                "for it."
            )
        if run.journal.has_event("finished"):
            problems = examine(folder)[1]
            if problems:
                raise DamagedFile(
                    f"{folder} is finished, and its files no longer match its "
                    f"certificate: {problems[0]}"
                )
            return run.run
        execution = Execution.of(recipe, context)
        stored = [JournalReleases(run).find(release.name) for release in execution.plan.releases]
        # Once all is drawn, no record is needed any more.
        if not all(one and one.array is not None for one in stored):
            execution.private.recognise(run)
        execution.check_pool(run)
        return execution.carry_out(run, "resumed")


def stored_recipe(folder: Path, changes: tuple[str, ...] | None = None) -> Recipe:
    """Return the whole recipe of the run in `folder`.

    With `changes` of the form `a.b=value`, perhaps none, the recipe is meant for going on with the
    run. If they are None, it is only read.

    Raises:
        RecipeError: it is to be gone on with a run that was made elsewhere, and the recipe reaches
            what `changes` do not name (`check_named`).
    """
    path = Run.open(folder).folder / places.FULL_RECIPE
    if is_export(folder):
        raise RunError(
            f"{folder} is an export (it has no {places.CONFIDENTIAL}/), so it cannot be resumed. "
            f"Resume the run that it was made from; `pe verify {quoted(folder)}` checks an export."
        )
    if not path.is_file():
        raise RunError(
            f"{folder} has lost its confidential side, so it cannot be resumed; `pe extend` still "
            "works."
        )
    try:
        recipe = Recipe.load(path)
    except RecipeError as error:  # it was valid when the run began
        raise RunError(
            f"This is version {__version__}, which cannot read the recipe of the run {folder}: "
            f"{error}"
        ) from error
    if changes:
        recipe = Recipe.load(path, changes)
    if changes is not None:
        check_named(folder, recipe, changes, "api", "embedding", "private")
    return recipe


def summary(run: Run) -> dict[str, Any]:
    """Summarise a finished run for its owner, as `pe run --json` prints it.

    `different` is the number of samples if equal ones of a label are counted once; `warnings` tell
    if nearly all samples are copies of a few, or if some look spoiled.
    """
    recipe = Recipe.load(run.folder / places.RECIPE)
    populations = run.populations(len(recipe.private.labels))
    certificate = run.guarantee
    synthetic = populations[-1].samples
    t = len(populations) - 1
    last = varieties([populations[0], populations[-1]], recipe.private.labels, recipe.seed)[-1]
    steps = plan_of(run, recipe).steps
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
            *collapse_warnings(t, synthetic, last, steps[-1] if steps else None),
            *suspicions(f"S_{t}", synthetic),
        ],
        "run": str(run.folder),
    }

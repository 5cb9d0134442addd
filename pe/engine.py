"""`pe.evolve`: from a recipe, or its parts in Python, to a finished run. The command line calls nothing else."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pe import evolution
from pe.data.population import Population
from pe.errors import RecipeError, nearest_name
from pe.evolution import Plan
from pe.privacy.certificate import build_certificate
from pe.privacy.covered import hash_files
from pe.privacy.ledger import Ledger
from pe.privacy.markdown import certificate_markdown
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import PrivateEmbeddings, embed_private
from pe.private.sources import PrivateSource
from pe.protocols import Embedding, GenerationAPI
from pe.recipe.layout import budget_of, lay_out
from pe.recipe.registry import construct
from pe.recipe.schema import Evolution, PluginSpec, Privacy, Recipe, Section
from pe.report.contact_sheet import contact_sheet
from pe.run.directory import CERTIFICATE, EVOLUTION, RECIPE, Run, new_name
from pe.run.dispatch import Dispatcher
from pe.run.progress import Progress
from pe.run.releases import JournalReleases
from pe.system.software import software_versions

log = logging.getLogger(__name__)


def evolve(
    private: PrivateSource,
    api: GenerationAPI | PluginSpec,
    *,
    embedding: Embedding | PluginSpec | str = "pixels",
    name: str = "run",
    seed: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Run:
    """Run Private Evolution: `pe.evolve`.

    Args:
        private: where the private records are: `pe.ImageFolder(...)` and its siblings.
        api: `pe.api("glyphs", ...)`, or any object with the methods of `pe.GenerationAPI`.
        embedding: an embedding's name, `pe.embedding("pixels", ...)`, or any object with the method `embed`.
        name: goes into the run's directory name.
        seed: all randomness but the noise comes from it.
        out: the run's directory; must not exist. Default: a new one below `runs/`.
        progress: told what happens; default: silence.
        **settings: the keys of a recipe's `privacy` and `evolution` sections.

    Returns:
        The finished run.

    Raises:
        PEError: see pe.errors; nothing is written when the settings or the private records are at fault.
    """
    spec = PluginSpec(kind=embedding) if isinstance(embedding, str) else embedding
    recipe = Recipe.parse(
        {
            "name": name,
            "seed": seed,
            "private": private,
            "api": _spec_of(api),
            "embedding": _spec_of(spec),
            **_sections(settings),
        },
        "pe.evolve",
    )
    return run_recipe(
        recipe,
        out=None if out is None else Path(out),
        api=None if isinstance(api, PluginSpec) else api,
        embedding=None if isinstance(spec, PluginSpec) else spec,
        progress=progress,
    )


def run_recipe(
    recipe: Recipe,
    *,
    out: Path | None = None,
    api: GenerationAPI | None = None,
    embedding: Embedding | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run a recipe to its end.

    Args:
        recipe: what to run.
        out: the run's directory; must not exist. Default: a new one below `runs/`.
        api: the generator, when it is the user's own object.
        embedding: the embedding, when it is the user's own object.
        progress: told what happens; default: silence.

    Raises:
        PEError: nothing is written when the recipe or the private records are at fault.
    """
    progress = progress or Progress()
    folder = out or Path("runs") / new_name(recipe.name)
    Run.check_absent(folder)
    api = api or construct("pe.adapters", recipe.api.kind, recipe.api.settings)
    embedding = embedding or construct("pe.embeddings", recipe.embedding.kind, recipe.embedding.settings)
    dataset = recipe.private.open()
    plan = lay_out(recipe, dataset.classes, dataset.unit_name)
    with progress.task("checking private records", None):
        bad = dataset.check()
    run = Run.create(folder)
    with logging_to(run.confidential / "log.txt"):
        log.info("bad private records: %s", bad)
        run.write(RECIPE, recipe.dump())
        ledger = open_ledger(run, recipe, plan, dataset.unit_name)
        dispatcher = Dispatcher(api, run, plan.classes, recipe.seed, recipe.evolution.attempts, progress)
        private = _embedded(run, dataset, embedding, progress)
        population = evolution.evolve(plan, private, dispatcher, embedding, ledger, progress.warn)
        finish(run, plan, population, ledger, dataset.declared_size)
    return run


def open_ledger(run: Run, recipe: Recipe, plan: Plan, unit: str) -> Ledger:
    """The run's ledger, with every release of the plan reserved in it."""
    releases = [step.release for step in plan.steps]
    return Ledger(budget_of(recipe, plan), recipe.privacy.relation, unit, releases, JournalReleases(run))


def _embedded(
    run: Run, dataset: PrivateDataset, embedding: Embedding, progress: Progress
) -> Callable[[], PrivateEmbeddings]:
    """The private embeddings, computed when they are first asked for and kept in confidential/."""

    @cache
    def private() -> PrivateEmbeddings:
        with progress.task("embedding private records", None):
            return embed_private(dataset, embedding, run.confidential / "embeddings")

    return private


def finish(run: Run, plan: Plan, population: Population, ledger: Ledger, declared_size: int | None) -> None:
    """Write what the run is for: the synthetic data, the picture of its evolution and the certificate."""
    run.write_synthetic(population, plan.classes)
    populations = [run.population(t) for t in range(len(plan.steps) + 1)]
    run.write(EVOLUTION, contact_sheet([each for each in populations if each is not None], plan.classes))
    certificate = build_certificate(
        ledger,
        run=run.folder.name,
        files=hash_files(run.folder),
        declared_size=declared_size,
        software=software_versions(),
    )
    run.write(CERTIFICATE.name, json.dumps(certificate, indent=2, ensure_ascii=False) + "\n")
    run.write(CERTIFICATE.with_suffix(".md").name, certificate_markdown(certificate))


def api(kind: str, **settings: Any) -> PluginSpec:
    """A generator by its entry point's name, with its settings; constructed when the run is."""
    return PluginSpec(kind=kind, **settings)


def embedding(kind: str, **settings: Any) -> PluginSpec:
    """An embedding by its entry point's name, with its settings; constructed when the run is."""
    return PluginSpec(kind=kind, **settings)


def summary(run: Run) -> dict[str, Any]:
    """What a run came to, for its owner: epsilon, delta, api_calls, run (its directory)."""
    certificate = run.guarantee
    return {
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "api_calls": run.journal.totals().calls,
        "run": str(run.folder),
    }


def _spec_of(plugin: object) -> PluginSpec:
    """How the recipe records a plug-in; an object of the user's own by its class."""
    if isinstance(plugin, PluginSpec):
        return plugin
    return PluginSpec(kind=f"object:{type(plugin).__module__}.{type(plugin).__qualname__}")


def _sections(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat settings, sorted into the recipe's sections."""
    sections: dict[str, dict[str, Any]] = {"privacy": {}, "evolution": {}}
    models: dict[str, type[Section]] = {"privacy": Privacy, "evolution": Evolution}
    for key, value in settings.items():
        holder = next((name for name, model in models.items() if key in model.model_fields), None)
        if holder is None:
            known = [field for model in models.values() for field in model.model_fields]
            raise RecipeError(f"pe.evolve: unknown setting '{key}'; {nearest_name(key, known)}")
        sections[holder][key] = value
    return sections


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that the toolkit logs goes to the confidential file `path`."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("pe")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()

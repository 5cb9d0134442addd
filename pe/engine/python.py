"""`pe.evolve` and its companions: the commands, as Python functions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

from pe.data.display import Page, table
from pe.engine import report
from pe.engine.execution import RunContext, resume_run, run_recipe, stored_recipe
from pe.engine.extend import extend_run, last_degree
from pe.engine.loggers import Bars, logger
from pe.engine.probe import DEGREES, Probe
from pe.engine.probe import probe as probe_generator
from pe.engine.process import logging_to, stop_from_python
from pe.errors import PluginError, RecipeError, check_list, nearest_name
from pe.planning.checks import obstacles
from pe.planning.forecast import Forecast, forecast
from pe.planning.named import check_named
from pe.planning.parts import object_kind, set_up_generator
from pe.plugins.protocols import Embedding, GenerationAPI, as_generator, has
from pe.plugins.registry import check_name
from pe.plugins.settings import Settings
from pe.plugins.specs import PluginSpec
from pe.private.memory import source_of
from pe.private.source import PrivateSource
from pe.progress import Progress
from pe.recipe.schema import ApiSpec, Evolution, LimitSection, Privacy, Recipe
from pe.report.loggers import Logger
from pe.store.places import RECIPE
from pe.store.run import Run

_SECTIONS: dict[str, type[Settings]] = {
    "privacy": Privacy,
    "evolution": Evolution,
    "limits": LimitSection,
}
_GENERATOR = ("capabilities", "random_api", "variation_api")
_EMBEDDING = ("batch_size", "embed")


def api(kind: str, **settings: Any) -> ApiSpec:
    """Name a generator by its entry point, with its settings. It is constructed when the run is.

    Args:
        kind: the name, such as "public_images".
        **settings: its keys, as in a recipe.

    Returns:
        The name with its settings, for `evolve`.

    Raises:
        PluginError: there is none of this name.
    """
    check_name("pe.adapters", kind)
    return ApiSpec(kind=kind, **settings)


def embedding(kind: str, **settings: Any) -> PluginSpec:
    """Name an embedding by its entry point, with its settings. It is constructed when the run is.

    Args:
        kind: the name, such as "pixels".
        **settings: its keys, as in a recipe.

    Returns:
        The name with its settings, for `evolve`.

    Raises:
        PluginError: there is none of this name.
    """
    check_name("pe.embeddings", kind)
    return PluginSpec(kind=kind, **settings)


def read_arguments(
    where: str,
    private: object,
    api: object,
    embedding: object,
    top: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Recipe:
    """Return the recipe that the arguments of `pe.evolve` describe.

    `top` are keys of the recipe that lie in no section, `settings` those of `privacy`, `evolution`
    and `limits`, and of the source, if `private` is none; `where` begins messages.
    """
    homes = {key: name for name, model in _SECTIONS.items() for key in model.model_fields}
    arguments = [*homes, *inspect.signature(evolve).parameters]
    if not isinstance(private, PrivateSource):
        # A source that is made from records takes the settings that no section has.
        own = {key: value for key, value in settings.items() if key not in homes}
        private = source_of(private, own, where, arguments)
        settings = {key: value for key, value in settings.items() if key in homes}
    spec = PluginSpec(kind=embedding) if isinstance(embedding, str) else embedding
    generator = _spec_of(api, f"{where}: api", 'pe.api("…")', _GENERATOR)
    content = {**top, "private": private, "api": generator}
    if spec is not None:
        otherwise = 'a name, pe.embedding("…")'
        content["embedding"] = _spec_of(spec, f"{where}: embedding", otherwise, _EMBEDDING)
    sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for key, value in settings.items():
        if key not in homes:
            known = arguments if where == "pe.evolve" else homes
            raise RecipeError(f"{where}: unknown setting '{key}'; {nearest_name(key, known)}")
        sections[homes[key]][key] = value
    return Recipe.parse(content | sections, where)


def _recipe_or_file(
    where: str,
    private: object,
    api: object,
    embedding: object,
    settings: dict[str, Any],
) -> Recipe:
    """Return the recipe in the file `private`, or the one that arguments describe."""
    if not isinstance(private, str | Path) or (
        api is not None and Path(private).suffix not in (".yaml", ".yml")
    ):
        return read_arguments(where, private, api, embedding, {}, settings)
    if api is None and embedding is None and not settings:
        return Recipe.load(Path(private))
    raise RecipeError(
        f"{where}: give the file of a recipe alone, or private, api and settings as to pe.evolve."
    )


def _own_objects(api: object, embedding: object) -> tuple[Any, Any]:
    """Return the generator and the embedding, each None unless it is the user's own object."""
    own = None if isinstance(api, PluginSpec) else api
    return own, None if isinstance(embedding, PluginSpec | str) else embedding


def _set_options(changes: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return changes as `--set` takes them: `key=value`, with JSON values."""
    return tuple(f"{key}={json.dumps(value)}" for key, value in (changes or {}).items())


def _spec_of(
    plugin: object,
    where: str,
    otherwise: str,
    members: tuple[str, ...],
) -> dict[str, Any]:
    """Return a plug-in as the recipe records it.

    An object of the user's own is recorded by its class.
    """
    if isinstance(plugin, PluginSpec):
        return plugin.model_dump()
    if inspect.isclass(plugin):
        raise PluginError(
            f"{where} is the class {plugin.__name__}: pass an object of it, {plugin.__name__}(…)."
        )
    lacking = [name for name in members if not has(plugin, name)]
    if lacking:
        what = f"an object of the class {type(plugin).__name__}"
        if isinstance(plugin, str):
            what = f"'{plugin}', a text"
        raise PluginError(
            f"{where} is {what}, which lacks {', '.join(lacking)}: give {otherwise}, or an object "
            f"with {', '.join(members)}."
        )
    return {"kind": object_kind(plugin)}


def evolve(
    private: object,
    api: GenerationAPI | ApiSpec,
    *,
    embedding: Embedding | PluginSpec | str | None = None,
    name: str = "run",
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    loggers: Sequence[str | Logger] = (),
    progress: Progress | None = None,
    **settings: Any,
) -> Run:
    """Run Private Evolution.

    Args:
        private: the private records: a source, `pe.ImageFolder(...)` or one of its siblings; or a
            path, arrays, a data frame, a table, a data set of torch or Hugging Face (docs/data.md).
        api: `pe.api("glyphs", ...)`, or any object with the methods of `pe.GenerationAPI`.
        embedding: an embedding's name, `pe.embedding("pixels", ...)`, or any object with the method
            `embed`; None: what `pe init` proposes for such samples, or with `resume` the run's
            embedding.
        name: goes into the run's directory name.
        seed: all randomness but the noise comes from it.
        out: the run's directory; must not exist, unless `resume`. Default: a new one below `runs/`.
        resume: go on with the run in `out`, if there is one.
        loggers: get the shareable values of each iteration: "tensorboard=DIR", as `--logger` takes
            them, or objects with the methods of `pe.Logger`.
        progress: is told what happens; default: bars on stderr, as the command draws them;
            `pe.Progress()` is silent.
        **settings: the keys of a recipe's `privacy`, `evolution` and `limits` sections; unless
            `private` is a source, also the source's keys, such as `classes`, and the columns
            `image` or `text`, and `label`.

    Returns:
        The finished run.

    Raises:
        PEError: see pe.errors; there is no run when the settings or the private records are at
            fault.
        KeyboardInterrupt: Ctrl-C stopped the run at the next chunk's boundary; its message says how
            to go on.
    """
    folder = None if out is None else Path(out)
    existing = folder if resume and folder is not None and folder.exists() else None
    if existing is not None and embedding is None:
        stored = Recipe.load(existing / RECIPE)
        check_named(existing, stored, (), "embedding")
        embedding = stored.embedding
    recipe = read_arguments(
        "pe.evolve",
        private,
        api,
        embedding,
        {"name": name, "seed": seed},
        settings,
    )
    with _context(api, embedding, progress, loggers) as context:
        if existing is not None:
            return resume_run(existing, context, recipe)
        return run_recipe(recipe, folder, context)


def plan(
    private: object,
    api: GenerationAPI | ApiSpec | None = None,
    *,
    embedding: Embedding | PluginSpec | str | None = None,
    samples_per_second: float | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> Forecast:
    """Foretell what a run will ask for, cost and guarantee, as `pe plan` does.

    Nothing is called, no record is read.

    Args:
        private: a recipe's file, alone; or the records, as for `pe.evolve`.
        api: as for `pe.evolve`.
        embedding: as for `pe.evolve`.
        samples_per_second: the generator's rate, > 0, to tell the time from; None: the time is
            unknown.
        dry_run: try a generator's fit here, on made-up samples.
        **settings: as for `pe.evolve`.

    Returns:
        ε, cost, calls, warnings and more; `print` shows what the command does.

    Raises:
        PEError: see pe.errors; a run with these settings would be refused, wherever it starts.
    """
    recipe = _recipe_or_file("pe.plan", private, api, embedding, settings)
    if api is None or isinstance(api, PluginSpec):
        generator, why = set_up_generator(recipe.api)
    else:
        generator = as_generator(api)
        why = ""
    here = [*obstacles(recipe, generator), *([why] if why else [])]
    return forecast(recipe, generator, here, samples_per_second, dry_run)


def probe(
    private: object,
    api: GenerationAPI | ApiSpec | None = None,
    *,
    embedding: Embedding | PluginSpec | str | None = None,
    label: str | None = None,
    degrees: Sequence[float] = DEGREES,
    **settings: Any,
) -> Probe:
    """Vary a few new samples at several degrees, as `pe probe --ladder` does.

    No private record is read.

    Args:
        private: a recipe's file, alone; or the records, as for `pe.evolve`.
        api: as for `pe.evolve`.
        embedding: as for `pe.evolve`.
        label: of the samples; None: the first.
        degrees: each in [0, 1].
        **settings: as for `pe.evolve`.

    Returns:
        The variations of each degree, and the verdict; `print` shows what the command does.

    Raises:
        PEError: see pe.errors; the generator made no sample, say.
    """
    check_list("pe.probe: degrees", degrees)
    recipe = _recipe_or_file("pe.probe", private, api, embedding, settings)
    own, embeds = _own_objects(api, embedding)
    return probe_generator(recipe, label, degrees, own, embeds)


def resume(
    run: Run | str | Path,
    *,
    api: GenerationAPI | None = None,
    embedding: Embedding | None = None,
    changes: Mapping[str, Any] | None = None,
    loggers: Sequence[str | Logger] = (),
    progress: Progress | None = None,
) -> Run:
    """Go on with a run from its last committed chunk, as `pe run RUN` does.

    Nothing that was answered is asked again.

    Args:
        run: the run, or its directory.
        api: the generator, if it is an object of your own: pass it again.
        embedding: the embedding, if it is an object of your own.
        changes: of limits and other machine settings: `{"limits.max_images": 4000}`.
        loggers: as for `pe.evolve`; they get every iteration again.
        progress: as for `pe.evolve`.

    Returns:
        The finished run.

    Raises:
        PEError: see `pe.engine.execution.resume_run`.
    """
    folder = _folder(run)
    recipe = stored_recipe(folder, _set_options(changes))
    with _context(api, embedding, progress, loggers) as context:
        return resume_run(folder, context, recipe)


def extend(
    run: Run | str | Path,
    count: int,
    *,
    degree: float | None = None,
    examples: int = 0,
    api: GenerationAPI | None = None,
    changes: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Make `count` more samples of a finished run, at no further ε, as `pe extend` does.

    Args:
        run: the run, or its directory.
        count: samples wanted, ≥ 1.
        degree: variation in [0, 1]: 0 = copies, 1 = as new; None: 1 with examples, else that of the
            last iteration.
        examples: how many texts of the run a language model is shown, to write one more of their
            kind; 0: none.
        api: the generator, if it is an object of your own: pass it again.
        changes: as for `pe.resume`.
        progress: as for `pe.evolve`.

    Returns:
        `extension-<k>.npz` in the run: images, labels, label_names.

    Raises:
        PEError: see `pe.engine.extend.extend_run`.
    """
    with _context(api, None, progress) as context:
        at = (1.0 if examples else last_degree(_folder(run))) if degree is None else degree
        return extend_run(_folder(run), count, at, context, _set_options(changes), examples)


class Evaluation(dict[str, Any]):
    """The content of metrics.json.

    A notebook shows the judgement's lines, and all numbers folded below them. Internal.
    """

    def _repr_html_(self) -> str:
        lines = self.get("judgement", {}).get("lines", ())
        rows = table((), [(escape(name), escape(sentence)) for name, sentence in lines])
        numbers = Page(json.dumps(self, indent=1, ensure_ascii=False))
        return f"{rows}<details><summary>All numbers</summary>{numbers._repr_html_()}</details>"


def evaluate(
    run: Run | str | Path,
    test: str | Path,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> Evaluation:
    """Measure a run's data against real ones, beside controls, as `pe evaluate` does.

    The answer is internal: it is computed from real records without noise. It also goes to
    confidential/metrics.json.

    Args:
        run: the run, or its directory.
        test: real samples that no run has seen: a folder, an .npz or .parquet file.
        progress: as for `pe.evolve`.
        **settings: the other attributes of `pe.evaluation.sets.Request`, such as
            `metrics=("fidelity",)`; an embedding may be a name, and `changes` are as for
            `pe.resume`.

    Returns:
        The content of metrics.json. A notebook shows the judgement first.

    Raises:
        PEError: see `pe.evaluation.evaluate.evaluate_run`.
    """
    from pe.evaluation.evaluate import evaluate_run
    from pe.evaluation.sets import Request

    names = [field.name for field in fields(Request) if field.name != "test"]
    for key in settings:
        if key not in names:
            raise RecipeError(f"pe.evaluate: unknown setting '{key}'; {nearest_name(key, names)}")
    embeddings = settings.get("embeddings", ())
    check_list("pe.evaluate: embeddings", embeddings)
    specs = (PluginSpec(kind=one) if isinstance(one, str) else one for one in embeddings)
    changes = _set_options(settings.get("changes"))
    request = Request(test=str(test), **settings | {"embeddings": tuple(specs), "changes": changes})
    own = Run.open_own(_folder(run), "pe evaluate")
    own.confidential.mkdir(mode=0o700, exist_ok=True)
    progress = progress or Bars()
    with stop_from_python(progress) as stop, logging_to(own.confidential / "log.txt"):
        return Evaluation(evaluate_run(own, request, progress, stop))


def write_report(run: Run | str | Path, *, confidential: bool = False) -> Path:
    """Write a run's report, one HTML file that needs nothing else, as `pe view --write` does.

    Return its path.

    Args:
        run: the run, or its directory.
        confidential: write the owner's page, into confidential/, not the shareable one.

    Returns:
        The report's file.

    Raises:
        RunError: there is no run, or nothing of it to be shown.
    """
    return report.write_report(_folder(run), confidential=confidential)


@contextmanager
def _context(
    api: object,
    embedding: object,
    progress: Progress | None,
    loggers: Sequence[str | Logger] = (),
) -> Iterator[RunContext]:
    """Yield what a run gets besides its recipe.

    These are the user's own objects, progress, loggers, and a stop that signals set.
    """
    check_list("loggers", loggers)
    own, embeds = _own_objects(api, embedding)
    progress = progress or Bars()
    others = tuple(map(logger, loggers))
    with stop_from_python(progress) as stop:
        yield RunContext(
            api=own,
            embedding=embeds,
            progress=progress,
            stop=stop,
            python=True,
            loggers=others,
        )


def _folder(run: Run | str | Path) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)

"""`pe.evolve` and its companions: Private Evolution from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pe.engine.execution import Surroundings
from pe.engine.start import resume_run, run_recipe
from pe.errors import RecipeError, nearest_name
from pe.planning.build import object_kind
from pe.plugins.protocols import Embedding, GenerationAPI
from pe.plugins.validation import Settings
from pe.private.source import PrivateSource
from pe.progress import Progress
from pe.recipe.schema import ApiSpec, Evolution, LimitSection, PluginSpec, Privacy, Recipe
from pe.store.run import Run

_SECTIONS: dict[str, type[Settings]] = {"privacy": Privacy, "evolution": Evolution, "limits": LimitSection}


def api(kind: str, **settings: Any) -> ApiSpec:
    """A generator by its entry point's name, with its settings; constructed when the run is."""
    return ApiSpec(kind=kind, **settings)


def embedding(kind: str, **settings: Any) -> PluginSpec:
    """An embedding by its entry point's name, with its settings; constructed when the run is."""
    return PluginSpec(kind=kind, **settings)


def evolve(
    private: PrivateSource,
    api: GenerationAPI | ApiSpec,
    *,
    embedding: Embedding | PluginSpec | str | None = None,
    name: str = "run",
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Run:
    """Run Private Evolution.

    Args:
        private: where the private records are: `pe.ImageFolder(...)` and its siblings.
        api: `pe.api("glyphs", ...)`, or any object with the methods of `pe.GenerationAPI`.
        embedding: an embedding's name, `pe.embedding("pixels", ...)`, or any object with the method `embed`;
            None: the usual one of the modality.
        name: goes into the run's directory name.
        seed: all randomness but the noise comes from it.
        out: the run's directory; must not exist, unless `resume`. Default: a new one below `runs/`.
        resume: go on with the run in `out`, if there is one.
        progress: told what happens; default: silence.
        **settings: the keys of a recipe's `privacy`, `evolution` and `limits` sections; without `iterations` or
            `population`, all that is left out of the evolution is chosen (docs/plan.md).

    Returns:
        The finished run.

    Raises:
        PEError: see pe.errors; nothing is written when the settings or the private records are at fault.
    """
    spec = PluginSpec(kind=embedding) if isinstance(embedding, str) else embedding
    content = {"name": name, "seed": seed, "private": private, "api": _spec_of(api)}
    content |= {} if spec is None else {"embedding": _spec_of(spec)}
    recipe = Recipe.parse(content | _sections(settings), "pe.evolve")
    surroundings = Surroundings(
        api=None if isinstance(api, PluginSpec) else api,
        embedding=None if isinstance(spec, PluginSpec) else spec,
        progress=progress or Progress(),
    )
    folder = None if out is None else Path(out)
    if resume and folder is not None and folder.exists():
        return resume_run(folder, surroundings, recipe)
    return run_recipe(recipe, folder, surroundings)


def _spec_of(plugin: object) -> dict[str, Any]:
    """How the recipe records a plug-in; an object of the user's own by its class."""
    return plugin.model_dump() if isinstance(plugin, PluginSpec) else {"kind": object_kind(plugin)}


def _sections(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat settings, sorted into the recipe's sections."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for key, value in settings.items():
        holder = next((name for name, model in _SECTIONS.items() if key in model.model_fields), None)
        if holder is None:
            known = [field for model in _SECTIONS.values() for field in model.model_fields]
            raise RecipeError(f"pe.evolve: unknown setting '{key}'; {nearest_name(key, known)}")
        sections[holder][key] = value
    return sections

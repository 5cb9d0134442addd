"""Find models and data of other runs in a recipe.

What a model has cost is counted in the plan. Everything else is refused.

A model and a run's data have a file beside them that names the run (`fitted.json`,
`certificate.json`). Every path that a recipe names is looked at, however deep it stands: in a warm
start, a portfolio, a part, a checkpoint.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pe.errors import RecipeError
from pe.fit.trainer import FITTED, MODEL, Fitted
from pe.planning.parts import declared
from pe.privacy.release import Release
from pe.recipe.schema import Recipe
from pe.store.places import CERTIFICATE, RECIPE


def check_other_runs(recipe: Recipe, releases: Sequence[Release]) -> None:
    """Refuse models and data of other runs, unless `releases` count all that those runs released.

    Reads no private record.

    Raises:
        RecipeError: a path leads to another run, and that run's releases are not counted.
    """
    if recipe.privacy.noiseless:
        return
    # Names differ from run to run. What was released, and with which noise, does not.
    own = Counter(replace(release, name="-") for release in releases)
    counted: set[Path] = set()
    named = [{"kind": recipe.api.kind, **recipe.api.settings}, recipe.embedding.settings]
    for path, is_model in _paths(named):
        run = _run_of(path)
        if run is None or (is_model and run in counted):
            continue
        if is_model:
            model = Fitted.read(run if (run / FITTED).is_file() else run / MODEL)
            charges = Counter(replace(release, name="-") for release in model.releases)
            if charges <= own:
                own -= charges
                counted.add(run)
                continue
        raise RecipeError(
            f"{path} comes from the run {run}, which may have used these private records, and its "
            "releases are not counted here. Use its model by `kind: trained`, which counts them. "
            "If no privacy unit is in both data sets, copy what you need to a folder of its own, "
            f"without {FITTED} and {CERTIFICATE}."
        )


def _paths(value: Any, is_model: bool = False) -> Iterator[tuple[Path, bool]]:
    """Yield every path in a value, with True for a model whose cost is counted.

    Such a model belongs to the run that a generator of `kind: trained` names.
    """
    if isinstance(value, str | Path):
        yield Path(value), is_model
    elif isinstance(value, Mapping):
        info = declared("pe.adapters", str(value.get("kind")))
        for key, inner in value.items():
            yield from _paths(inner, key == "path" and info.fitted_before)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _paths(inner)


def _run_of(path: Path) -> Path | None:
    """Return the folder of the run, or of a copy of its model, that a path lies in or leads to."""
    try:
        if path == Path() or not path.expanduser().exists():
            return None
        here = path.expanduser().resolve()
        # A relative one may be a word that names a folder by chance.
        is_folder = path.is_absolute() and here.is_dir()
        below = [Path(one.path) for one in os.scandir(here) if one.is_dir()] if is_folder else []
    except (OSError, ValueError, RuntimeError):  # a text that is no path
        return None
    for folder in (here, *here.parents, *path.absolute().parents, *below):
        if (folder / FITTED).is_file() or (
            (folder / CERTIFICATE).is_file() and (folder / RECIPE).is_file()
        ):
            return folder
    return None

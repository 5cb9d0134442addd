"""Find models and data of other runs in a recipe: each is counted in the recipe's plan, or declared disjoint.

A model and a run's data have a file that names the run (`fitted.json`, `certificate.json`), so every path that a recipe
names is looked at, however deep in the recipe it stands: in a warm start, a portfolio, a part, a checkpoint.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pe.data.bounded import read_bytes
from pe.data.strict_json import json_object
from pe.errors import DamagedFile, PrivacyError, RecipeError
from pe.fit.trainer import FITTED, MODEL, Fitted, OtherFit
from pe.plugins.protocols import info_of
from pe.plugins.registry import load, plugins
from pe.privacy.certificate import certified_releases
from pe.privacy.release import Release
from pe.privacy.words import NOT_DECLARED
from pe.recipe.schema import OBJECT, Recipe
from pe.store.certified import read_certificate
from pe.store.places import CERTIFICATE, CONFIDENTIAL, RECIPE

OTHER_RUNS = f"{CONFIDENTIAL}/taken.json"
"""The note in a run's folder of models and data of other runs that it uses; confidential, as it names their folders."""


@dataclass(frozen=True)
class OtherRun:
    """A model or data of another run that a recipe uses."""

    place: Path  # the run's folder, or the folder of a copy of its model
    fit: OtherFit  # the releases of the run, or of a run whose model it used in turn

    @classmethod
    def read(cls, run: Path) -> tuple[OtherRun, ...]:
        """Return the entries of the note in the folder `run`; none if there is no note."""
        path = run / OTHER_RUNS
        if not path.is_file():
            return ()
        try:
            content = json_object(read_bytes(path).decode())["taken"]
            return tuple(cls(Path(one["place"]), OtherFit.from_dict(one)) for one in content)
        except (ValueError, KeyError, TypeError, PrivacyError) as error:
            raise DamagedFile(f"{path} is damaged: restore it from a copy.") from error

    @staticmethod
    def dump(runs: Sequence[OtherRun]) -> bytes:
        """Return the content of the note."""
        return json.dumps({"taken": [{"place": str(one.place), **one.fit.to_dict()} for one in runs]}).encode()


def disjoint_places(runs: Sequence[OtherRun]) -> set[Path]:
    """Return the folders of runs declared to hold none of this run's privacy units, and of the runs that those use."""
    places: set[Path] = set()
    open_places = [one.place for one in runs if not one.fit.counted]
    while open_places:
        if (place := open_places.pop()) not in places:
            places.add(place)
            open_places += [one.place for one in OtherRun.read(place)]
    return places


def find_other_runs(recipe: Recipe, releases: Sequence[Release], *parts: object) -> tuple[OtherRun, ...]:
    """Find models and data of other runs that a recipe, or its constructed plug-ins `parts`, use; no record is read.

    Raises:
        RecipeError: a run's releases are neither counted in the plan nor declared disjoint, have no guarantee, or are
            for another relation or unit; or there is no such run.
    """
    if recipe.privacy.noiseless:
        return ()
    own = Counter(replace(release, name="-") for release in releases)
    by_place: dict[tuple[Path, int], OtherRun] = {}
    for path, says in _named_paths(recipe, parts):
        for place, fits in _runs_near(path, fitted_before=bool(says)):
            for i, fit in enumerate(fits):
                charges = Counter(replace(release, name="-") for release in fit.releases)
                if is_counted := says == "may_overlap" and charges <= own:
                    own -= Counter() if (place, i) in by_place else charges
                elif says != "disjoint" and recipe.privacy.private_sets != "disjoint":
                    raise RecipeError(
                        f"{path} comes from the run '{fit.run}', whose private records may be these, and what that "
                        "released is not counted here: take its model by `kind: trained`, which counts it, or, if no "
                        "privacy unit is in both private sets, say so by privacy.private_sets: disjoint."
                    )
                _check_same_kind(recipe, path, fit)
                if not is_counted or (place, i) not in by_place:
                    by_place[place, i] = OtherRun(place, replace(fit, counted=is_counted))
    return tuple(by_place.values())


def is_undeclared(recipe: Recipe, api: object) -> bool:
    """True for a generator object that does not declare what it uses of other runs."""
    return recipe.api.kind.startswith(OBJECT) and info_of(api).disjoint_from is None


def _named_paths(recipe: Recipe, parts: Sequence[object]) -> Iterator[tuple[Path, str]]:
    """Yield every path that a recipe or an object names, with the `private_sets` declared beside it."""
    yield from _paths({"kind": recipe.api.kind, **recipe.api.settings})
    yield from _paths(recipe.embedding.settings)
    for plugin in parts:
        for path in info_of(plugin).disjoint_from or ():
            if not _runs_near(Path(path), fitted_before=True):
                raise RecipeError(f"{type(plugin).__name__}.info.disjoint_from: {path} holds no run's model or data.")
            yield Path(path), "disjoint"


def _paths(value: Any, says: str = "") -> Iterator[tuple[Path, str]]:
    if isinstance(value, str | Path):
        yield Path(value), says
    elif isinstance(value, Mapping):
        kind = value.get("kind")
        adapter = load("pe.adapters", kind) if isinstance(kind, str) and kind in plugins("pe.adapters") else None
        if adapter is not None and info_of(adapter).fitted_before:
            says = str(value.get("private_sets", "may_overlap"))
        for inner in value.values():
            yield from _paths(inner, says if isinstance(inner, str | Path) else "")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _paths(inner, says)


def _runs_near(path: Path, fitted_before: bool) -> list[tuple[Path, list[OtherFit]]]:
    """Find the runs that a path leads to, with releases; `fitted_before`: the path is to a run's fitted model."""
    try:
        if path == Path() or not path.expanduser().exists():
            return []
        here = path.expanduser().resolve()
        folder = path.is_absolute() and here.is_dir()  # else it may be a word that names a folder by chance
        within = [one.path for one in os.scandir(here) if one.is_dir()] if folder else []
    except (OSError, ValueError, RuntimeError):  # a text that is no path
        return []
    above = list(dict.fromkeys((here, *here.parents, *path.absolute().parents)))
    models = [one for one in ([*above, here / MODEL] if fitted_before else above) if (one / FITTED).is_file()][:1]
    below = [] if models else [here, *map(Path, within)]
    runs = [
        one for one in dict.fromkeys((*above, *below)) if (one / CERTIFICATE).is_file() and (one / RECIPE).is_file()
    ]
    if not models and not runs:
        models = [one for one in below if (one / FITTED).is_file()]
    return [_of_model(one) for one in models] or [_of_run(one) for one in runs]


def _of_model(folder: Path) -> tuple[Path, list[OtherFit]]:
    record = Fitted.read(folder)
    _check_holds(folder, record.holds)
    others = [fit for fit in record.built_on if not fit.counted]
    return (folder.parent if folder.name == MODEL else folder), [OtherFit(record.run, record.releases), *others]


def _of_run(folder: Path) -> tuple[Path, list[OtherFit]]:
    certificate = read_certificate(folder)
    _check_holds(folder, certificate.get("holds") is True)
    try:
        fits = [OtherFit(str(certificate["run"]), tuple(certified_releases(certificate)))]
        others = certificate.get("fitted_on_others")
        if others is not None and others != NOT_DECLARED:
            fits.append(OtherFit.from_dict({"counted": False, **others}))
    except (KeyError, TypeError, ValueError) as error:
        raise RecipeError(
            f"{folder / CERTIFICATE} does not say what the run took from others: make it anew."
        ) from error
    return folder, fits


def _check_holds(place: Path, holds: bool) -> None:
    if not holds:
        raise RecipeError(f"{place} was fitted with unsafe noise or none, so it has no guarantee: fit it anew.")


def _check_same_kind(recipe: Recipe, path: Path, fit: OtherFit) -> None:
    ours = (recipe.privacy.relation, recipe.private.privacy_unit)
    for release in fit.releases:
        if (theirs := (release.relation, release.unit)) != ours:
            raise RecipeError(
                f"{path} protects {'/'.join(theirs)}, and this recipe {'/'.join(ours)}: make them the same, or fit a "
                "model of your own."
            )

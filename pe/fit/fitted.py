"""A fitted model on disk, with what it cost: so that other runs can answer from it, and count that cost, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pe.data.samples import Shape
from pe.errors import PrivacyError, RecipeError
from pe.fit.trainer import MODEL
from pe.privacy.covered import sha256
from pe.privacy.release import Release
from pe.store.certified import read_json
from pe.store.places import CERTIFICATE, RECIPE

FITTED = "fitted.json"
"""Beside the model, in the run's folder MODEL."""


@dataclass(frozen=True)
class OtherFit:
    """Releases of another run that this one makes use of; all of it public.

    Attributes:
        run: the other run's name.
        releases: each as often as it was charged.
        counted: whether they stand on this run's ledger, too.
    """

    run: str
    releases: tuple[Release, ...]
    counted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"run": self.run, "counted": self.counted, "releases": [one.to_dict() for one in self.releases]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OtherFit:
        """The reverse of `to_dict`; raises KeyError, TypeError or PrivacyError."""
        releases = tuple(Release.from_dict(one) for one in values["releases"])
        return cls(str(values["run"]), releases, values["counted"] is True)


@dataclass(frozen=True)
class Fitted:
    """What a fitted model came from; all of it public, or released.

    Attributes:
        run: the name of the run that fitted it.
        kind: of the adapter.
        settings: of the adapter.
        classes: the label names.
        shape: of every sample.
        releases: of the fit, each as often as it was charged.
        holds: whether only safe noise was used, so that there is a guarantee.
        built_on: fits of other runs that went into it; those that are not counted are missing in `releases`.
    """

    run: str
    kind: str
    settings: dict[str, Any]
    classes: tuple[str, ...]
    shape: Shape
    releases: tuple[Release, ...]
    holds: bool
    built_on: tuple[OtherFit, ...] = ()

    @property
    def cost(self) -> tuple[Release, ...]:
        """Everything that was released to make it, by whatever run."""
        return (*self.releases, *(one for fit in self.built_on if not fit.counted for one in fit.releases))

    def write(self, folder: Path) -> None:
        """Write it beside the model in `folder`."""
        content = {
            "run": self.run,
            "kind": self.kind,
            "settings": self.settings,
            "classes": list(self.classes),
            "shape": list(self.shape),
            "releases": [release.to_dict() for release in self.releases],
            "holds": self.holds,
            "built_on": [fit.to_dict() for fit in self.built_on],
        }
        (folder / FITTED).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Fitted:
        """What lies beside the model in `folder`.

        Raises:
            RecipeError: nothing does, or it is damaged.
            RunError: it is no JSON.
        """
        try:
            content = read_json((folder / FITTED).read_text(encoding="utf-8"), folder / FITTED)
            return cls(
                run=str(content["run"]),
                kind=str(content["kind"]),
                settings=dict(content["settings"]),
                classes=tuple(map(str, content["classes"])),
                shape=tuple(map(int, content["shape"])),
                releases=tuple(Release.from_dict(one) for one in content["releases"]),
                holds=content["holds"] is True,
                built_on=tuple(map(OtherFit.from_dict, content.get("built_on", ()))),
            )
        except OSError as error:
            raise RecipeError(f"{folder} holds no fitted model: name a run whose generator was fitted.") from error
        except (ValueError, KeyError, TypeError, PrivacyError) as error:
            raise RecipeError(f"{folder / FITTED} is damaged: restore it from a copy.") from error

    @classmethod
    def of_run(cls, run: Path) -> Fitted:
        """The fitted model of a finished run, each of its files as the run's certificate has it.

        Raises:
            RecipeError: there is none, the run is not finished, or a file differs from what was certified.
        """
        try:
            certificate = read_json((run / CERTIFICATE).read_text(encoding="utf-8"), run / CERTIFICATE)
            covered = {str(one["file"]): str(one["sha256"]) for one in certificate["covered"]}
        except OSError as error:
            lacks = "is not finished: finish it" if run.exists() else "does not exist: name one"
            raise RecipeError(f"api.path: the run {run} {lacks}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RecipeError(f"{run / CERTIFICATE} is damaged: restore it from a copy.") from error
        found = cls.read(run / MODEL)
        for path in sorted((run / MODEL).rglob("*")):
            name = path.relative_to(run).as_posix()
            if path.is_symlink() or (path.is_file() and covered.get(name) != sha256(path)):
                raise RecipeError(f"{path} is not as {run}'s certificate has it: restore it from a copy.")
        if not found.holds:
            raise RecipeError(f"{run} was fitted with unsafe noise, so its model has no guarantee: fit it anew.")
        return found

    def handed_on_by(self, run: Path) -> bool:
        """Whether `run`, which holds the model, took it over from another, so that its records are not the model's.

        Raises:
            RecipeError: its recipe cannot be read.
        """
        try:
            recipe = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
            return bool(recipe["api"]["kind"] != self.kind)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError) as error:
            raise RecipeError(f"{run / RECIPE} cannot be read: restore it from a copy.") from error

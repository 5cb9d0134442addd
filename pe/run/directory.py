"""The run's directory: what is shareable, and `confidential/` for all else."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe.data.population import Population
from pe.errors import RunError

if TYPE_CHECKING:
    from pe.run.formats import Format

RECIPE = "recipe.yaml"
SYNTHETIC = "synthetic.npz"
EVOLUTION = "evolution.png"
CERTIFICATE = Path("certificate.json")
CONFIDENTIAL = "confidential"
FULL_RECIPE = f"{CONFIDENTIAL}/recipe.yaml"
"""The recipe with the place of the private records, which the shareable one withholds."""
_DIGITS = 20
"""Of the longest whole number that a run's files hold."""


@dataclass(frozen=True)
class Run:
    """A run on disk, to be read; `pe.run.writer` writes it.

    Attributes:
        folder: the run's directory. All of it but `confidential/` is shareable.
    """

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in `folder`.

        Raises:
            RunError: there is none.
        """
        if not (Path(folder) / RECIPE).is_file():
            lacks = f"it has no {RECIPE}" if Path(folder).exists() else "there is nothing of that name"
            raise RunError(f"{folder} is not a run: {lacks}.")
        return cls(Path(folder))

    @property
    def confidential(self) -> Path:
        """The folder of all that touched private data un-noised, and of the run's timings; `pe purge` removes it."""
        return self.folder / CONFIDENTIAL

    def population(self, t: int) -> Population | None:
        """S_t, memory-mapped; None while it is not finished."""
        folder = self.folder / population_place(t)
        return Population.load(folder) if folder.is_dir() else None

    def populations(self) -> list[Population]:
        """S_0, S_1, …, as far as they are finished, memory-mapped."""
        finished = (self.population(t) for t in count())
        return [population for population in takewhile(lambda each: each is not None, finished) if population]

    @property
    def synthetic(self) -> Population:
        """The finished population, memory-mapped.

        Raises:
            RunError: the run is not finished.
        """
        if not (self.folder / SYNTHETIC).is_file():
            raise RunError(f"{self.folder} is not finished: it has no {SYNTHETIC}.")
        populations = self.populations()
        if not populations:  # as for an instant while they are published
            raise RunError(f"{self.folder} has no populations: `pe resume` finishes it, or restore them from a copy.")
        return populations[-1]

    def extensions(self) -> list[Population]:
        """What `pe extend` added, in order, memory-mapped; as far as the certificate covers it."""
        if not (self.folder / CERTIFICATE).is_file():
            return []
        covered = {one["file"] for one in self.guarantee["covered"]}
        places = takewhile(lambda place: f"{place}/labels.npy" in covered, map(extension_place, count(1)))
        return [Population.load(self.folder / place) for place in places]

    @property
    def certificate(self) -> str:
        """The certificate as a page of Markdown.

        Raises:
            RunError: the run is not finished.
        """
        return self._text(CERTIFICATE.with_suffix(".md").name)

    @property
    def guarantee(self) -> dict[str, Any]:
        """The certificate as JSON values: epsilon, delta, releases, covered files and so on.

        Raises:
            RunError: the run is not finished, or its certificate is damaged.
        """
        return read_json(self._text(CERTIFICATE.name), self.folder / CERTIFICATE)

    def export(self, to: str | Path, form: Format = "npz") -> Path:
        """Copy what may be shared of the run to the new folder `to`; see `pe.run.export.export`."""
        from pe.run.export import export

        return export(self, Path(to), form)

    def _text(self, name: str) -> str:
        path = self.folder / name
        if not path.is_file():
            raise RunError(f"{self.folder} is not finished: it has no {name}.")
        return path.read_text(encoding="utf-8")


def read_json(text: str, path: Path) -> dict[str, Any]:
    """The JSON object that the file `path` holds, all of whose numbers are finite.

    Raises:
        RunError: it holds none: whoever wrote it, its reader neither crashes nor computes with infinity.
    """

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise ValueError(digits)
        return value

    def whole(digits: str) -> int:
        if len(digits) > _DIGITS:
            raise ValueError(digits)
        return int(digits)

    try:
        values = json.loads(text, parse_float=number, parse_int=whole, parse_constant=number)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: restore it from a copy.") from error
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: restore it from a copy.")
    return values


def population_place(t: int) -> str:
    """Where S_t lies in the run's directory."""
    return f"populations/{t:03d}"


def extension_place(index: int) -> str:
    """Where the extension lies, 1 being the first, in the run's directory; its .npz file is `extension-<index>.npz`."""
    return f"extensions/{index:03d}"


def check_absent(folder: Path) -> None:
    """Refuse a folder that exists.

    Raises:
        RunError: it exists.
    """
    if folder.exists():
        raise RunError(f"{folder} exists already: name another directory, or remove it.")


def new_name(recipe_name: str) -> str:
    """`<recipe>-<UTC time>-<4 hex>`: a name for a run's directory."""
    return f"{recipe_name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"

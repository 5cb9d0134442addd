"""Places of files in a run's directory: shareable files, and `confidential/` for all others."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from pe.errors import RunError, quoted
from pe.privacy.covered import BANNER as BANNER
from pe.privacy.covered import CONFIDENTIAL as CONFIDENTIAL

RECIPE = "recipe.yaml"
SYNTHETIC = "synthetic.npz"
EVOLUTION = "evolution.png"
PUBLIC_SAMPLES = "public_samples.json"
"""Holds the number of public samples that the run's `api` and `embedding` read, and the SHA-256 of
all, in order."""
DEGREE = "degree.json"
"""Holds the result of the trial of the generator's variations."""
CERTIFICATE = Path("certificate.json")
FITTED = "model/fitted.json"
"""Description and cost of a generator that the run fitted."""
PURGED = "purged.txt"
FULL_RECIPE = f"{CONFIDENTIAL}/recipe.yaml"
"""The recipe with the place of the private records, which the shareable one withholds."""
BINDING = f"{CONFIDENTIAL}/binding.txt"
"""Tells whether the run was begun on this machine, with the recipes that it has now: see
pe/store/machine.py."""
FOUNDERS = "populations/founders"
"""Random samples of a run whose S_0 holds variations of them."""
WAITING = f"{CONFIDENTIAL}/waiting.txt"
"""Tells what a run waits for. The file exists only during the wait."""
EXTENSION = f"{CONFIDENTIAL}/extension.json"
"""Describes the extension under way."""


def population_place(t: int) -> str:
    """Return the folder of S_t in the run's directory."""
    return f"populations/{t:03d}"


def claims_place(t: int) -> str:
    """Return the folder of iteration t's claims in the run's directory."""
    return f"claims/{t:03d}"


def claims_file(t: int) -> str:
    """Return the file of the claims on the members of S_{t-1}, float64 (m,)."""
    return f"{claims_place(t)}/claims.npy"


def extension_place(index: int) -> str:
    """Return the folder of an extension, 1 being the first.

    Its .npz file is `extension-<index>.npz`.
    """
    return f"extensions/{index:03d}"


def check_absent(folder: Path) -> None:
    """Raise RunError if a folder exists."""
    if folder.exists():
        remedy = (
            f", or go on with that run (pe run {quoted(folder)})"
            if (folder / CONFIDENTIAL).is_dir()
            else ""
        )
        raise RunError(f"{folder} exists already: name another one{remedy}.")


def new_name(recipe_name: str) -> str:
    """Return `<recipe>-<UTC time>-<4 hex>`, a name for a run's directory."""
    return f"{recipe_name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def without_folders(text: str) -> str:
    """Cut each full path in a recipe's YAML to its last part.

    The folders above it exist on this machine alone. Hashes still identify the files: public
    samples by `public_samples.json`, a fitted model by the certificate.
    """
    content = yaml.safe_load(text)
    short = without_paths(content)
    return text if short == content else yaml.safe_dump(short, sort_keys=False, allow_unicode=True)


def without_paths(value: Any) -> Any:
    """Cut each full path in JSON values to its last part."""
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    is_path = (
        isinstance(value, str)
        and "\n" not in value
        and Path(value).is_absolute()
        and len(Path(value).parts) > 2
    )
    return Path(value).name if is_path else value

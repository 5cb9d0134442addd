"""Where everything lies in a run's directory: what is shareable, and `confidential/` for all else."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from pe.errors import RunError
from pe.privacy.covered import BANNER as BANNER
from pe.privacy.covered import CONFIDENTIAL as CONFIDENTIAL

RECIPE = "recipe.yaml"
SYNTHETIC = "synthetic.npz"
EVOLUTION = "evolution.png"
PUBLIC_SAMPLES = "public_samples.json"
"""Of a run that reads public samples: how many, and the SHA-256 of them in order, of its `api` and `embedding`."""
DEGREE = "degree.json"
"""The finding of a run that tried if its generator varies the parents it is handed."""
CERTIFICATE = Path("certificate.json")
FITTED = "model/fitted.json"
"""Of a run that fitted a generator: what the model is, and what it cost."""
PURGED = "purged.txt"
"""Of a run whose confidential side `pe purge` deleted."""
FULL_RECIPE = f"{CONFIDENTIAL}/recipe.yaml"
"""The recipe with the place of the private records, which the shareable one withholds."""

FOUNDERS = "populations/founders"
"""Of a run whose S_0 holds variations: the random samples that they are of."""

WAITING = f"{CONFIDENTIAL}/waiting.txt"
"""What a run waits for, while it does."""

EXTENSION = f"{CONFIDENTIAL}/extension.json"
"""The extension under way."""


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
        begun = f", or go on with that run (pe resume {folder})" if (folder / CONFIDENTIAL).is_dir() else ""
        raise RunError(f"{folder} exists already: name another one{begun}.")


def new_name(recipe_name: str) -> str:
    """`<recipe>-<UTC time>-<4 hex>`: a name for a run's directory."""
    return f"{recipe_name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


# A run's recipe as others get it: of every file and folder that it names, the last part of its path alone.


def without_folders(text: str) -> str:
    """A recipe's YAML, in which a full path is only its last part: the folders above are this machine's own.

    What is in them stays known by its content: public samples by hashes in `public_samples.json`, a model by its own.
    """
    content = yaml.safe_load(text)
    short = without_paths(content)
    return text if short == content else yaml.safe_dump(short, sort_keys=False, allow_unicode=True)


def without_paths(value: Any) -> Any:
    """JSON values, in which a full path is only its last part."""
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    is_path = isinstance(value, str) and "\n" not in value and Path(value).is_absolute() and len(Path(value).parts) > 2
    return Path(value).name if is_path else value

"""A run's recipe as others get it: of every file and folder that it names, the last part of its path alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


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

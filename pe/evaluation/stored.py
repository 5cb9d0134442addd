"""An evaluation on disk: the newest one where report and comparison read it, every earlier one kept beside it."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pe.store.durable import TEMPORARY, publish_folder, write_durably, writing
from pe.store.places import CONFIDENTIAL
from pe.store.publish import level_confidential

METRICS_FILE = f"{CONFIDENTIAL}/metrics.json"
PAIRS = "nearest_pairs"
"""Of the file of the nearest pairs, without its suffix."""
EARLIER = f"{CONFIDENTIAL}/earlier-evaluations"


def store_evaluation(folder: Path, values: dict[str, Any], pairs: tuple[str, bytes] | None) -> str:
    """Write METRICS_FILE, whole or not at all, after the evaluation that stands there was copied into EARLIER.

    One that is written a second time, the same in every byte, is not kept twice.

    Args:
        folder: the run's directory, with its confidential side.
        values: what METRICS_FILE holds from now on.
        pairs: suffix and content of the file of the nearest pairs; None: none were looked for.

    Returns:
        A sentence on where the earlier evaluation went; empty if there is none, or the same.

    Raises:
        RunError: the operating system refused a write.
    """
    content = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False).encode()
    metrics = folder / METRICS_FILE
    told = "" if not metrics.is_file() or metrics.read_bytes() == content else _keep(folder)
    written = None if pairs is None else folder / pairs_file(pairs[0])
    if pairs is not None and written is not None:
        write_durably(written, pairs[1])
    write_durably(metrics, content)
    for path in _pairs(folder):
        if path != written:
            path.unlink()  # of the earlier evaluation, which has its copy
    level_confidential(folder)
    return told


def pairs_file(suffix: str) -> str:
    """Where the nearest pairs are, from the run's directory."""
    return f"{CONFIDENTIAL}/{PAIRS}.{suffix}"


def _pairs(folder: Path) -> list[Path]:
    return [path for path in (folder / CONFIDENTIAL).glob(f"{PAIRS}.*") if not path.name.endswith(TEMPORARY)]


def _keep(folder: Path) -> str:
    """Copy the evaluation into a folder of its own; say which it was and where it is."""
    earlier = folder / EARLIER
    index = 1 + max((int(path.name) for path in earlier.glob("[0-9]*") if path.name.isdecimal()), default=0)
    place = earlier / f"{index:03d}"
    temporary = earlier / f"{place.name}{TEMPORARY}"
    with writing(place):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for path in (folder / METRICS_FILE, *_pairs(folder)):
            shutil.copyfile(path, temporary / path.name)
    publish_folder(temporary, place)
    return (
        f"The evaluation of before{_against(place / Path(METRICS_FILE).name)} is kept in {place}; the confidential "
        "report and `pe compare` show the new one."
    )


def _against(metrics: Path) -> str:
    """The test set of an evaluation, in words; empty if its file is damaged."""
    with suppress(ValueError, KeyError, TypeError):
        values = json.loads(metrics.read_text(encoding="utf-8"))
        test, noun = values["test"], values["run"].get("noun", "images")
        return f", against {test['images']:,} {noun} of {test['path']},"
    return ""

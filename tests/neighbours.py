"""What a run shows to the world, compared between data sets that differ in one record.

`shown` carries out `pe run` and returns all that leaves: exit status, console, files outside
`confidential/`, and the requests to a server of the test. Within `releases_held` every release is
drawn as shipped and then replaced by public numbers. Then whatever still differs between two runs
comes from a private record, and not from noise.

    with releases_held(): one, other = (shown(folder, recipe, write=partial(write, records),
        asked=script.requests) for records in pair)
    assert one == other
"""

import io
import json
import shutil
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import yaml

from pe.cli.main import main
from pe.privacy.ledger import Ledger
from tests.evaluation.surfaces import entries


@dataclass(frozen=True)
class Shown:
    """All that a command shows; two that are equal look the same to everybody but the owner."""

    status: int
    console: str
    files: dict[str, Any]  # outside confidential/, by name
    requests: list[str]  # sorted, since threads ask in any order


@contextmanager
def releases_held() -> Iterator[None]:
    """Replace each release, once it is drawn from the private records, by numbers that follow from
    its name.
    """
    release_as_shipped = Ledger.release

    def release(ledger, what, draw):
        def held(noise):
            drawn = draw(noise)
            rng = np.random.default_rng(zlib.crc32(what.name.encode()))
            return rng.integers(0, 20 * what.grid, drawn.shape, dtype=drawn.dtype)

        return release_as_shipped(ledger, what, held)

    with patch.object(Ledger, "release", release):
        yield


def typed(folder: Path, *words: object) -> tuple[int, str]:
    """Carry out `pe` with these words in `folder`, in this process; return its status and all that
    it prints.
    """
    console = io.StringIO()
    with (
        chdir(folder),
        redirect_stdout(console),
        redirect_stderr(console),
        warnings.catch_warnings(),  # the command shows them in its own way from then on
        patch.object(sys, "argv", ["pe", *map(str, words)]),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return int(ended.value.code or 0), console.getvalue()


def shown(
    folder: Path, recipe: dict[str, Any], write: Callable[[Path], None], asked: list[Any] = ()
) -> Shown:
    """Run `recipe` over the records that `write` puts at its private path, below `folder`; then
    take all of it away.
    """
    before, data, run = len(asked), folder / recipe["private"]["path"], folder / "run"
    write(data)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    status, console = typed(folder, "run", "recipe.yaml", "--out", "run")
    requests = sorted(json.dumps(one, sort_keys=True) for one in asked[before:])
    found = Shown(status, console, entries(run), requests)
    for path in (
        data,
        run,
        data.with_name(f"{data.name}.ledger.json"),
        data.with_name(f"{data.name}.bad-files.txt"),
    ):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return found

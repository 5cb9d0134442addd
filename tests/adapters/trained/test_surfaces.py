"""With the releases of a fit held fixed, nothing that its run shows depends on the private records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from adapters.trained.noisy_mean import DPMERF
from pe.engine.execution import Surroundings, run_recipe
from pe.fit.trainer import Fitting
from pe.privacy.ledger import Ledger
from pe.privacy.noise import Noise
from pe.privacy.release import Release
from pe.recipe.schema import Recipe
from tests.adapters.trained.finetune.brought import brought
from tests.contracts.fitted import KINDS
from tests.evaluation.surfaces import compare_surfaces
from tests.evaluation.worlds import Listener

SIDE, CLASSES, COUNT = 8, ("ell", "oh"), 24
PLAIN = {"steps": 2, "batch": 8}
FITS: dict[str, dict[str, Any]] = KINDS | {
    "privimage": {
        **{name: KINDS["dpdm"][name] for name in ("network", "training", "sampling", "device", "batch_size")},
        "public": {"kind": "glyphs", "characters": "LOXM", "count": 40},
        "semantics_share": 0.2,
        "query": PLAIN,
        "pretraining": PLAIN,
    },
    "finetune": {name: KINDS["dpdm"][name] for name in ("training", "sampling", "device", "batch_size")},
}


@pytest.fixture(autouse=True)
def _releases_are_held_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release is drawn as shipped, and replaced by what the first run of the test drew under its name."""
    release_as_shipped, first = Ledger.release, {}

    def release(ledger: Ledger, what: Release, draw: Callable[[Noise], np.ndarray]) -> np.ndarray:
        return release_as_shipped(ledger, what, lambda noise: first.setdefault(what.name, draw(noise)))

    monkeypatch.setattr(Ledger, "release", release)


def fitted(folder: Path, kind: str, chosen: list[int]) -> tuple[pe.Run, list[object]]:
    """A run on these of the records, which always lie in the same file, and all that it told."""
    path = folder.parent.parent / "private.npz"
    path.with_name("private.npz.ledger.json").unlink(missing_ok=True)  # each world has its own
    images = np.random.default_rng(1).integers(0, 256, (COUNT, SIDE, SIDE, 1), dtype=np.uint8)
    np.savez(path, images=images[chosen], labels=np.array(CLASSES)[np.array(chosen) % 2])
    shape = {"size": SIDE, "channels": 1, "classes": CLASSES, "declared_size": 40}
    content = {
        "private": {"kind": "npz", "path": path, **shape},
        "api": {"kind": kind, **FITS[kind], **brought(kind), "fit": {"budget_share": 0.8}},
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": 30, "delta": 1e-3},
        "evolution": {"iterations": 1, "population": 8, "lookahead": 0},
    }
    listener = Listener()
    run = run_recipe(Recipe.parse(content, "the test"), folder, Surroundings(progress=listener))
    return run, [listener.told, run.guarantee | {"run": ""}]


OTHERS = 3 * list(range(0, COUNT, 2))
"""Another number of records, and none of the second label."""


@pytest.mark.parametrize("kind", FITS)
def test_all_that_a_fit_shows_is_the_same_for_other_records(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, shown = fitted(tmp_path / "a" / "run", kind, list(range(COUNT)))
    other, shown_too = fitted(tmp_path / "b" / "run", kind, OTHERS)
    assert (first.folder / "model" / "fitted.json").is_file()
    assert compare_surfaces(first.folder, other.folder) == []
    assert shown == shown_too
    assert capfd.readouterr() == ("", "")


def test_a_fit_that_tells_the_number_of_records_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit_as_shipped = DPMERF.fit

    def telling(self: DPMERF, fitting: Fitting) -> None:
        fit_as_shipped(self, fitting)
        (fitting.folder / "count.json").write_text(json.dumps(len(fitting.private().samples)))

    monkeypatch.setattr(DPMERF, "fit", telling)
    first, _ = fitted(tmp_path / "a" / "run", "dp_merf", list(range(COUNT)))
    other, _ = fitted(tmp_path / "b" / "run", "dp_merf", OTHERS)
    assert "model/count.json" in compare_surfaces(first.folder, other.folder)

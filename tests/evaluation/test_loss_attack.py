"""The membership attack by loss finds the records of a model that kept them, and of a private one it does not."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.evaluate import evaluate_run
from pe.evaluation.labelled import Labelled
from pe.evaluation.memorisation import LEAST, MOST, _alike, loss_attack
from pe.evaluation.sets import Request
from pe.fit.trainer import FITTED
from pe.privacy.release import Release
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.generators import images_of

SIDE, CLASSES, COUNT = 4, ["no", "yes"], 60


FEW = 24
"""Of two labels, fewer of each than the 16 pixels: the directions of a Gaussian without noise are its own records."""


def npz(path: Path, seed: int, count: int) -> Path:
    """Images of noise: nothing of one tells of another."""
    images = np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 1)).astype(np.uint8)
    np.savez(path, images=images, labels=np.array(CLASSES)[np.arange(count) % 2])
    return path


def fitted(folder: Path, epsilon: float, seed: int, count: int) -> Run:
    folder.mkdir()
    private = {"path": npz(folder / "private.npz", seed, count), "classes": CLASSES, "declared_size": count}
    content = {
        "private": {"kind": "npz", "size": SIDE, "channels": 1, **private},
        "api": {"kind": "dp_gaussian", "public": {"kind": "noise", "count": 50}, "covariance": "per_label"},
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": epsilon, "delta": 1e-3},
        "evolution": {"iterations": 0, "population": 8},
    }
    run_recipe(Recipe.parse(content, "the test"), folder / "run", Surroundings())
    return Run.open(folder / "run")


def evaluated(run: Run, count: int = COUNT, **changes: Any) -> dict[str, Any]:
    """The evaluation of the run, whose model says of itself what it says, but for `changes`."""
    file = run.folder / "model" / FITTED
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | changes))
    test = str(npz(run.folder.parent / "test.npz", 1, count))
    values = evaluate_run(run, Request(test, metrics=("memorisation",)), Progress(), Event())
    file.write_text(before)
    return values


def test_the_records_of_a_fit_without_privacy_are_found_and_a_false_claim_is_told(tmp_path: Path) -> None:
    run = fitted(tmp_path / "open", 1e5, 0, FEW)
    found = evaluated(run)["memorisation"]["membership_by_loss"]
    assert found["each"] == FEW
    assert found["tpr"]["low"] > 0.5
    assert found["auc"]["auc"] > 0.9
    assert found["allowed"]["tpr"] == 1
    assert found["warnings"] == []
    claimed = Release("fit/sums", "discrete_gaussian", 1.0, 5.0, grid=2**30).to_dict()
    told = evaluated(run, releases=[claimed])["memorisation"]
    (warning,) = told["membership_by_loss"]["warnings"]
    assert "the fit's guarantee allows 19%" in warning
    assert warning in told["warnings"]
    assert evaluated(run, holds=False)["memorisation"]["membership_by_loss"]["allowed"] is None


def test_those_of_a_private_fit_are_not_found(tmp_path: Path) -> None:
    run = fitted(tmp_path / "private", 1.0, 0, COUNT)
    found = evaluated(run)["memorisation"]["membership_by_loss"]
    assert 0.1 < found["allowed"]["tpr"] < found["allowed"]["by_epsilon"]
    assert found["tpr"]["low"] < found["allowed"]["tpr"]
    assert found["auc"]["high"] < 0.9
    assert found["allowed"]["epsilon"] == pytest.approx(1, rel=1e-6)
    few = evaluated(run, LEAST - 2)
    assert "membership_by_loss" not in few["memorisation"]
    assert f"and there are {LEAST - 2}." in few["notes"][-1]
    taken = evaluated(run, kind="dpdm")["notes"][-1]
    assert "the run 'run' fitted it on its own records" in taken


def test_its_hits_are_those_of_the_threshold_that_the_held_out_samples_set() -> None:
    rng, mu, n = np.random.default_rng(0), 1.5, 4000
    found = loss_attack(rng.normal(-mu, 1, n), rng.normal(0, 1, n))
    expected = norm.sf(norm.isf(0.1) - mu)
    assert found.alarms == 0.1 * n
    assert found.interval[0] < expected < found.interval[1]
    assert found.most_alarms > 0.1
    same = loss_attack(np.zeros(50), np.zeros(50))  # a model that knows nothing of anyone
    assert (same.hits, same.alarms, same.auc.auc) == (0, 0, 0.5)


def test_members_and_held_out_samples_are_as_many_of_each_label() -> None:
    def labelled(*counts: int) -> Labelled:
        labels = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
        return Labelled(images_of(np.zeros(len(labels), np.uint8)), labels)

    private, heldout = labelled(900, 30, 0), labelled(600, 50, 40)
    rows = _alike(private, heldout, seed=0)
    sizes = [
        np.bincount(each.labels[row], minlength=3).tolist() for each, row in zip((private, heldout), rows, strict=True)
    ]
    assert sizes[0] == sizes[1] == [MOST * 600 // 630, MOST * 30 // 630, 0]
    assert all(len(set(row)) == len(row) for row in rows)

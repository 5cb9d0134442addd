"""`evolution.neighbor_search`: who finds nearest candidates changes no vote, and may change when a run goes on."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import pe
from pe.errors import RecipeError
from pe.histogram import Voting, count_votes
from pe.planning.forecast import differences
from pe.plugins import devices
from pe.private.embeddings import PrivateEmbeddings
from pe.recipe.schema import Recipe
from tests.generators import Mean, Shades
from tests.recipe.test_schema import with_


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("neighbors", [1, 3])
def test_the_votes_are_the_same_whoever_searches(metric, neighbors, caplog):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(2, dtype=np.int32), 60)
    candidates = rng.integers(0, 3, (120, 8)).astype(np.float32)
    vectors = rng.integers(0, 3, (300, 8)).astype(np.float32)
    private = PrivateEmbeddings(vectors, rng.integers(0, 2, 300).astype(np.int32), np.arange(300), ("a", "b"))
    with caplog.at_level(logging.INFO, logger="pe"):
        votes = [
            count_votes(private, candidates, labels, 2**10, Voting(neighbors, metric, name))
            for name in ("faiss", "torch", "auto")
        ]
    np.testing.assert_array_equal(votes[0], votes[1])
    np.testing.assert_array_equal(votes[0], votes[2])
    said = [record.message for record in caplog.records]
    assert said[0].startswith("Nearest neighbours are found by faiss on ")
    assert said[1].startswith("Nearest neighbours are found by torch on ")


def test_what_the_log_says_is_the_same_whatever_the_private_records(caplog):
    labels, candidates = np.zeros(5, np.int32), np.eye(5, 8, dtype=np.float32)
    with caplog.at_level(logging.INFO, logger="pe"):
        for vectors in (np.zeros((0, 8)), np.zeros((1, 8)), np.full((70, 8), np.nan), np.full((70, 8), 1e30)):
            n = len(vectors)
            private = PrivateEmbeddings(vectors.astype(np.float32), np.zeros(n, np.int32), np.arange(n), ("a",))
            count_votes(private, candidates, labels, 2**10)
    assert len({record.message for record in caplog.records}) == 1


def test_the_run_s_log_says_who_searched(tmp_path: Path):
    images = np.zeros((9, 4, 4, 1), np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a"] * 9))
    private = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a"], declared_size=9)
    run = pe.evolve(
        private, Shades(), embedding=Mean(), out=tmp_path / "run",
        epsilon=1, delta=1e-5, population=4, iterations=1, lookahead=0, neighbor_search="torch",
    )  # fmt: skip
    assert "Nearest neighbours are found by torch on" in (run.folder / "confidential/log.txt").read_text()


def test_a_run_that_would_leave_gpus_idle_is_refused_before_anything_is_drawn(tmp_path: Path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    np.savez(tmp_path / "private.npz", images=np.zeros((9, 4, 4, 1), np.uint8), labels=np.array(["a"] * 9))
    private = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a"], declared_size=9)
    common = {"epsilon": 1, "delta": 1e-5, "population": 4, "lookahead": 0}
    said = "he driver has 1 GPU, and torch .* sees none: .* evolution.neighbor_search: faiss"
    with pytest.raises(RecipeError, match=said):
        pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "run", iterations=1, **common)
    assert not (tmp_path / "run").exists()
    planned = pe.plan(private, Shades(), embedding=Mean(), iterations=1, **common)
    assert any(re.search(f"A run would not start: t{said}", warning) for warning in planned.warnings)
    for changes in ({"iterations": 1, "neighbor_search": "faiss"}, {"iterations": 0}):
        planned = pe.plan(private, Shades(), embedding=Mean(), **common, **changes)
        assert not any("would not start" in warning for warning in planned.warnings)


def test_it_may_change_when_a_run_goes_on_and_the_metric_may_not():
    before = Recipe.parse(with_(), "here")
    assert differences(before, Recipe.parse(with_(evolution__neighbor_search="torch"), "here")) == []
    assert differences(before, Recipe.parse(with_(evolution__metric="cosine"), "here")) != []

"""What `pe plan --private-side` tells of the private side, against what the private side then holds."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.errors import RecipeError
from pe.planning.layout import lay_out
from pe.planning.workload import BYTES_PER_RECORD, Workload, workload
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import FILE, embed_private
from pe.recipe.schema import Recipe

PIXELS = {"kind": "pixels", "size": 8, "batch_size": 16}


def found(declared: int | None = 1000, embedding: dict[str, Any] = PIXELS, **evolution: Any) -> Workload:
    """Of a recipe whose records are nowhere."""
    private = {"kind": "npz", "path": "nowhere.npz", "size": 8, "channels": 1, "classes": ["a", "b"]}
    content = {
        "private": private | ({} if declared is None else {"declared_size": declared}),
        "api": {"kind": "object:tests.generators.Shades"},
        "embedding": embedding,
        "privacy": {"epsilon": 4, "delta": 1e-9},
        "evolution": {"iterations": 2, "population": [20, 40, 60], "lookahead": [3, 0], **evolution},
    }
    recipe = Recipe.parse(content, "the test")
    return workload(recipe, lay_out(recipe, recipe.private.labels, "record"))


def test_vectors_take_the_disk_that_is_foretold(tmp_path: Path) -> None:
    images = Images(np.zeros((1000, 8, 8, 1), np.uint8))
    embed_private(PrivateDataset.of(images, np.zeros(1000), classes=("a",)), Pixels(size=8, batch_size=16), tmp_path)
    assert (tmp_path / FILE).stat().st_size == found().disk_bytes + 128  # numpy's header


def test_records_and_candidates_are_counted_over_all_iterations() -> None:
    one = found()
    assert one.distances == 1000 * (10 + 20)  # each record's label has half of the candidates
    assert one.candidates == 20 * 3 + 40
    assert found(label_sizes={"a": 3, "b": 1}).distances == 1000 * (15 + 30)  # at the most
    assert found(estimate_label_sizes=0.1, label_sizes="equal").distances == 1000 * (20 + 40)
    assert found(10**8).disk_bytes == 10**8 * 4 * 64


def test_memory_for_a_record_is_what_the_checks_before_a_run_take() -> None:
    count = 20_000
    images = Images(np.random.default_rng(0).integers(0, 256, (count, 4, 4, 1), np.uint8))
    tracemalloc.start()
    try:
        dataset = PrivateDataset.of(images, np.zeros(count, np.int32), classes=("a",))
        dataset.preflight(b"key")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / count == pytest.approx(BYTES_PER_RECORD, rel=0.05)


def test_more_workers_shorten_what_they_do_and_nothing_else() -> None:
    work = replace(found(), embedding_seconds=100.0, vote_seconds=200.0, decoding_seconds=10.0, candidate_seconds=1.0)
    assert work.seconds(1) == 10 + 100 + 200 + 1
    assert work.seconds(4) == 10 + 25 + 50 + 1
    assert work.seconds(100) == 10 + 10 + 2 + 1  # embedding waits for records
    assert work.to_dict()["seconds_by_workers"]["4"] == work.seconds(4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"declared": None}, r"private\.declared_size is missing"),
        ({"iterations": 0, "population": 20, "lookahead": 0}, r"evolution\.iterations is 0"),
        ({"embedding": {"kind": "pixels", "size": 2}}, "cannot be set up here: size is 2"),
        (
            {"embedding": {"kind": "http", "url": "http://vectors.example/embed", "trusted_with_private_data": True}},
            r"asks vectors\.example",
        ),
    ],
)
def test_what_cannot_be_tried_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        found(**changes)

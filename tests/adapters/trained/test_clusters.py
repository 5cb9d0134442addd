"""Classes by centroids of public images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.trained.dp_sad import DPSAD, Clusters
from adapters.trained.public import PublicSet
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import RecipeError
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.adapters.trained.diffusion.small import NETWORK, PLAIN, PUBLIC, TRAINING, private_file, recipe, records
from tests.adapters.trained.sources import source

API: dict[str, Any] = {
    "kind": "dp_sad",
    "public": PUBLIC,
    "pretraining": PLAIN,
    "network": NETWORK,
    "teacher": TRAINING | {"share": 0.4},
    "training": TRAINING,
    "discrimination": {"steps": 2, "batch": 4, "chains": 4},
    "sampling": {"steps": 3},
    "device": "cpu",
}


def public(side: int = 8) -> PublicSet:
    return source(PUBLIC | {"count": 200}).read((side, side, 1), 0)


def test_clusters_part_what_looks_different_and_join_what_looks_alike() -> None:
    dark = np.random.default_rng(0).integers(0, 30, (20, 8, 8, 3)).astype(np.uint8)
    images = np.concatenate([dark, 255 - dark])
    clusters = Clusters.of(PublicSet(images, np.zeros(40, dtype=np.int64), ()), 2, seed=1)
    found = np.array([clusters.of_image(image) for image in images])
    assert len(set(found[:20])) == len(set(found[20:])) == 1
    assert found[0] != found[20]


@pytest.mark.parametrize("side", [8, 28])
def test_a_record_s_class_depends_on_no_other_record_and_keeps_its_label(side: int) -> None:
    clusters, images = Clusters.of(public(side), 3, seed=0), public(side).images[:30]
    labels = np.arange(30) % 2
    together = clusters.split(images, labels)
    alone = [clusters.split(images[i : i + 1], labels[i : i + 1])[0] for i in range(30)]
    assert together.tolist() == alone
    assert (together // 3 == labels).all()
    assert len(set(together)) > 2


def test_centroids_repeat_themselves_by_their_seed() -> None:
    one, same, other = (Clusters.of(public(), 4, seed).centroids for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_fewer_public_images_than_clusters_are_refused() -> None:
    few = PublicSet(records().samples[:3], np.zeros(3, dtype=np.int64), ())
    with pytest.raises(RecipeError, match="clusters is 4, and the public set has 3 images: take fewer clusters"):
        Clusters.of(few, 4, seed=0)


def test_fewer_public_images_than_clusters_are_found_before_anything_is_charged(tmp_path: Path) -> None:
    api = API | {"clusters": 41}
    with pytest.raises(RecipeError, match="clusters is 41, and the public set has 40 images"):
        run_recipe(recipe(private_file(tmp_path), api=api), tmp_path / "run", Surroundings())
    with read_journal(Run.open(tmp_path / "run")) as journal:
        assert not list(journal.charges())


def test_clusters_without_public_images_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"clusters is 3: .* needs public images"):
        DPSAD(clusters=3)


def test_unlabelled_records_are_fitted_by_public_clusters_at_no_cost(tmp_path: Path) -> None:
    one_label = private_file(tmp_path)
    np.savez(one_label, images=records().samples)
    content = recipe(one_label, api=API | {"clusters": 3}).model_dump(mode="json")
    content["private"].pop("classes")
    run = run_recipe(type(recipe(one_label)).parse(content, "the test"), tmp_path / "run", Surroundings())
    names = [release["name"] for release in run.guarantee["releases"]]
    assert names == ["fit/teacher/1", "fit/teacher/2", "fit/training/1", "fit/training/2"]
    found = json.loads((run.folder / "model" / "classes.json").read_text(encoding="utf-8"))
    (label,) = set(found["labels"])
    assert found["classes"] == [f"{label}/{i}" for i in range(3)]
    assert set(run.synthetic.conditions["api_class"].tolist()) <= {0, 1, 2}
    assert len(set(run.synthetic.conditions["api_class"].tolist())) > 1

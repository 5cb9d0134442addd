"""A small run, on Ray or not; what is compared."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pe.cluster.work import RayWork
from pe.data.images import Images
from pe.engine.execution import RunContext, run_recipe
from pe.histogram import PrivateWork, Voting, count_votes
from pe.planning.parts import object_kind
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import PrivateEmbeddings, embed_private
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.cluster.things import Chatty, Deadly, Dies, Flat
from tests.generators import Shades
from tests.private_data import dataset_of
from tests.seeded_noise import UnsafeSeededNoise

SMALL = 2**10  # bytes of a shard: 16 of these images' vectors


def content(data: Path, **evolution: object) -> dict[str, object]:
    """A recipe over images of several patients."""
    source = {
        "kind": "npz",
        "path": str(data),
        "size": 4,
        "channels": 1,
        "classes": ["a", "b"],
        "declared_size": 80,
    }
    return {
        "private": {**source, "privacy_unit": "patient", "declared_units": 9},
        "api": {"kind": object_kind(Shades())},
        "embedding": {"kind": "pixels", "size": 4, "blur": 0, "batch_size": 16},
        "privacy": {"epsilon": 20, "delta": 1e-5, "relation": "replace_one"},
        "evolution": {
            "iterations": 2,
            "population": 12,
            "lookahead": 0,
            "neighbors": 3,
            **evolution,
        },
    }


def some(count: int, pixels: int | bytes = 0, step: int = 10**9) -> PrivateDataset:
    """Records, of which the first of every `step` has these pixels."""
    images, labels = _drawn(count)
    images[::step] = (
        pixels if isinstance(pixels, int) else np.frombuffer(pixels, np.uint8).reshape(4, 4, 1)
    )
    return dataset_of(Images(images), labels, classes=("a", "b"))


def _drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 250, (count, 4, 4, 1), dtype=np.uint8), rng.integers(0, 2, count)


def write_private(folder: Path, count: int = 90) -> Path:
    """The file of `count` records; a ninth of them is a patient, with records in every block and
    shard.
    """
    images, labels = _drawn(count)
    file = folder / "private.npz"
    np.savez(file, images=images, labels=np.array(["a", "b"])[labels], patient=np.arange(count) % 9)
    return file


def carry_out(recipe: Recipe, out: Path, work: PrivateWork) -> Run:
    """The run, with the same noise each time."""
    return run_recipe(recipe, out, RunContext(api=Shades(), noise=UnsafeSeededNoise(1), work=work))


def released(run: Path) -> dict[str, bytes]:
    """What private records had a part in and everybody may see: the releases, and the synthetic
    data.
    """
    return {
        file.name: file.read_bytes()
        for file in [*(run / "releases").iterdir(), run / "synthetic.npz"]
    }


def check_lost_votes(marker: Path, end: Callable[[], None], candidates: int = 30) -> None:
    """The votes are those of one process, though a worker comes to its end, which the
    marker tells.
    """
    rng = np.random.default_rng(0)
    vectors, labels = (
        rng.standard_normal((200, 8)).astype(np.float32),
        rng.integers(0, 2, 200).astype(np.int32),
    )
    private = PrivateEmbeddings(vectors, labels, np.arange(200) % 20, ("a", "b"))
    public = (
        rng.standard_normal((candidates, 8)).astype(np.float32),
        rng.integers(0, 2, candidates).astype(np.int32),
    )
    found = RayWork(None, None, shard_bytes=SMALL).count_votes(
        private, *public, 2**16, Deadly(3, end=end)
    )
    assert marker.exists()
    np.testing.assert_array_equal(found, count_votes(private, *public, 2**16, Voting(3)))


def check_lost_blocks(marker: Path, end: Callable[[], None], dataset: PrivateDataset) -> None:
    """The vectors are those of one process, though a worker comes to its end over bright images."""
    found = embed_private(dataset, Dies(end), None, RayWork(None, None).embed)
    assert marker.exists()
    np.testing.assert_array_equal(found.vectors, embed_private(dataset, Flat(), None).vectors)


def embed_and_vote(dataset: PrivateDataset) -> PrivateEmbeddings:
    """The vectors of an embedding that says what it sees, after a vote."""
    work = RayWork(None, None, shard_bytes=SMALL)
    found = embed_private(dataset, Chatty(), None, work.embed)
    work.count_votes(
        found, np.ones((4, 16), np.float32), np.array([0, 0, 1, 1], np.int32), 1, Voting()
    )
    return found

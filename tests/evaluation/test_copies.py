"""Copies of private records among generated images are named; real images that no run has seen are none."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import pe
from embeddings.pixels import Pixels
from pe.cli.evaluate import _page
from pe.data.images import Images
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.memorisation import Copies, memorisation
from pe.report.sections import internal_report
from pe.store.run import Run
from tests.cli.typed import pe as command

DIGITS = np.random.default_rng(0).permutation((load_digits().images * 15).astype(np.uint8))[..., None]
PRIVATE, HELDOUT, OTHERS = DIGITS[:900], DIGITS[900:1350], DIGITS[1350:]


def copies_in(generated: np.ndarray, private: np.ndarray = PRIVATE, heldout: np.ndarray = HELDOUT) -> Copies:
    seen = CachedEmbedding("pixels", Pixels(size=8, blur=0))
    return memorisation(Images(generated), Images(private), Images(heldout), seen).copies


def compressed(image: np.ndarray) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0]).save(buffer, "JPEG", quality=75)
    return np.asarray(Image.open(buffer))[..., None]


def test_real_images_that_no_run_has_seen_are_no_copies() -> None:
    """The best generator there could be raises no alarm."""
    found = copies_in(OTHERS)
    assert (found.exact, found.beyond_chance, found.warnings) == (0, False, [])
    assert found.near <= 3


def test_exact_copies_are_counted_and_told() -> None:
    found = copies_in(np.concatenate([OTHERS[:100], PRIVATE[:7], PRIVATE[:1]]))
    assert (found.exact, found.generated) == (8, 108)
    assert found.warnings[0].startswith("8 of 108 generated images are private records, pixel by pixel")


def test_noised_and_compressed_copies_are_near() -> None:
    noise = np.random.default_rng(1).normal(0, 8, PRIVATE[:200].shape)
    for changed in (
        np.clip(PRIVATE[:200] + noise, 0, 255).astype(np.uint8),
        np.stack([compressed(image) for image in PRIVATE[:200]]),
    ):
        found = copies_in(changed)
        assert found.exact == 0
        assert found.near > 180
        assert found.beyond_chance
        assert "near copies of private records, more than chance" in found.warnings[0]


def test_near_ones_that_are_as_frequent_among_held_out_images_raise_no_alarm() -> None:
    """As of records of one person: held-out images of the same people lie as near."""
    noise = np.random.default_rng(1).normal(0, 8, (400, 8, 8, 1))
    alike = np.clip(PRIVATE[:400] + noise, 0, 255).astype(np.uint8)
    found = copies_in(np.concatenate([alike[:200], OTHERS[:200]]), heldout=np.concatenate([alike[200:], HELDOUT[:200]]))
    assert found.near > 150
    assert not found.beyond_chance


def test_one_near_copy_that_is_generated_over_and_over_is_one() -> None:
    near = PRIVATE[:1].copy()
    near[0, 0, 0] ^= 1
    found = copies_in(np.concatenate([OTHERS, near.repeat(400, axis=0)]))
    assert found.near >= 400
    assert not found.beyond_chance


def test_images_of_one_colour_show_nothing_of_a_record() -> None:
    blank = np.zeros((60, 8, 8, 1), np.uint8)
    for records in (np.concatenate([PRIVATE, blank[:1]]), np.concatenate([PRIVATE, blank])):
        found = copies_in(np.concatenate([OTHERS[:100], blank]), private=records)
        assert (found.exact, found.beyond_chance) == (0, False)


def test_images_of_another_size_are_no_exact_copies() -> None:
    larger = PRIVATE[:50].repeat(2, axis=1).repeat(2, axis=2)
    assert copies_in(larger).exact == 0


@pytest.fixture
def copying(tmp_path: Path) -> pe.Run:
    """A run over published records, which are their own pool."""
    for name, images in (("private", PRIVATE[:60]), ("test", HELDOUT[:40])):
        np.savez(tmp_path / f"{name}.npz", images=images)
    settings = {"epsilon": 4, "delta": 1e-3, "population": 30, "iterations": 1, "lookahead": 0}
    return pe.evolve(
        pe.ImageNpz(tmp_path / "private.npz", size=8, channels=1),
        pe.api("public_images", path=str(tmp_path / "private.npz"), channels=1),
        out=tmp_path / "run",
        pool_overlaps="declared",
        **settings,
    )


def test_the_owner_is_told_on_the_console_in_the_metrics_and_in_the_report(copying: Run, tmp_path: Path) -> None:
    asked = ("evaluate", "run", "--test", "test.npz", "--metrics", "memorisation", "--no-random-selection")
    result = command(*asked, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    told = "30 of 30 generated images are private records, pixel by pixel"
    assert f"warning: {told}" in result.stderr
    metrics = json.loads((copying.confidential / "metrics.json").read_text())
    assert metrics["memorisation"]["copies"]["exact"] == 30
    assert "copies of private records: 30 exact, 0 near, of 30" in _page(metrics, tmp_path)
    assert told in internal_report(copying)
    assert not any(
        b"pixel by pixel" in path.read_bytes()
        for path in copying.folder.rglob("*")
        if path.is_file() and "confidential" not in path.parts
    )

"""Which real samples an evaluation compares a run with, and who sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import pe
from pe.errors import RecipeError
from tests.evaluation.test_evaluate import SETTINGS, evaluate, npz, run, source, test
from tests.generators import Mean, Shades, images_of

__all__ = ["run", "test"]  # fixtures


class Marked(Shades):
    """Shades, each with a pixel of another one: an image of one colour tells nothing of a record."""

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        return self._mark(super().random_api(request))

    def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
        return self._mark(super().variation_api(request))

    def _mark(self, answer: pe.Answer) -> pe.Answer:
        answer.samples.pixels[:, 3, 3] = 255 - answer.samples.pixels[:, 0, 0]
        return answer


def marked(path: Path, images: np.ndarray, labels: np.ndarray) -> str:
    images = images.copy()
    images[:, 3, 3] = 255 - images[:, 0, 0]
    np.savez(path, images=images, labels=labels)
    return str(path)


def test_test_images_that_are_not_held_out_are_left_out_and_counted(tmp_path: Path) -> None:
    folder, names = tmp_path, np.array(["no", "yes"])
    shades = np.arange(60) % 40 + 215 * (np.arange(60) % 2)
    private = marked(folder / "private.npz", images_of(shades).pixels, names[np.arange(60) % 2])
    run = pe.evolve(source(Path(private)), Marked(), embedding=Mean(), out=folder / "run", **SETTINGS)
    made, fresh = run.synthetic, np.arange(30) * 8 + 3
    pixels = images_of(fresh).pixels.copy()
    pixels[:, 0, 0] = 7  # no other image has this one
    parts = [np.load(private)["images"][:4], made.samples.pixels[:3]]
    known = {image.tobytes() for part in (np.load(private)["images"], made.samples.pixels) for image in part}
    pixels = np.concatenate([*parts, pixels, images_of(fresh[:1]).pixels])
    labels = names[np.arange(len(pixels)) % 2]
    np.savez(folder / "test.npz", images=pixels, labels=labels)
    gone = sum(image.tobytes() in known for image in pixels)
    assert gone == 7

    values = evaluate(run, str(folder / "test.npz"), api=Marked(), random_selection=False)
    assert (values["test"]["images"], values["test"]["left_out"]) == (31, 7)
    assert values["memorisation"]["samples"]["heldout"] == values["verdict"]["test_images"] == 31
    (note,) = (note for note in values["notes"] if "left out, because" in note)
    assert note.startswith("7 of the 38 test images are left out, because they are, pixel by pixel, among the ")
    again = evaluate(run, str(folder / "test.npz"), api=Marked(), metrics=("fidelity",))
    assert again["test"]["sha256"] == values["test"]["sha256"]
    order = np.arange(len(pixels))[::-1]
    np.savez(folder / "turned.npz", images=pixels[order], labels=labels[order])
    np.savez(folder / "less.npz", images=pixels[1:], labels=labels[1:])
    same, other = (
        evaluate(run, str(folder / name), api=Marked(), metrics=("fidelity",))["test"]["sha256"]
        for name in ("turned.npz", "less.npz")
    )
    assert same == values["test"]["sha256"] != other
    with pytest.raises(RecipeError, match=r"tests nothing: 60 of its 60 images are, .* private records \(60\); name"):
        evaluate(run, private, api=Marked())


def test_too_few_images_are_said_with_the_number_needed(run: pe.Run, tmp_path: Path) -> None:
    few = str(npz(tmp_path / "few.npz", 2, 4))
    spec = pe.embedding("pixels", size=4)
    values = evaluate(run, few, embeddings=(spec,), metrics=("fidelity",))
    notes = " ".join(values["notes"])
    assert "4 reference images cannot fill a covariance of 16 dimensions; take 17 or more" in notes
    assert "4 images are too few for 5 neighbours; take 6 or more" in notes
    assert "precision" not in values["fidelity"]["pixels (size=4)"]


def test_private_images_do_not_leave_for_another_host_unsaid(run: pe.Run, test: str) -> None:
    class Far(Mean):
        info = pe.PluginInfo(hosts=("embeddings.example",))

    notes = evaluate(run, test, metrics=("fidelity",), embedding=Far())["notes"]
    assert "The embedding 'Far' hands private and test images to embeddings.example." in notes


def test_a_run_that_was_received_hands_nobody_the_test_images(run: pe.Run, test: str, tmp_path: Path) -> None:
    received = run.export(tmp_path / "received")
    content = yaml.safe_load((received / "recipe.yaml").read_text())
    far = {"kind": "http", "url": "http://127.0.0.1:9/v1/embeddings", "trusted_with_private_data": True}
    (received / "recipe.yaml").write_text(yaml.safe_dump(content | {"embedding": far}))
    said = r"hand your test images to 127\.0\.0\.1:9: name an embedding that you want by --embedding"
    with pytest.raises(RecipeError, match=said):
        evaluate(pe.Run.open(received), test, metrics=("fidelity",), embedding=None)


def test_one_class_leaves_utility_out(tmp_path: Path) -> None:
    npz(tmp_path / "labelled.npz", 0)
    with np.load(tmp_path / "labelled.npz") as file:
        np.savez(tmp_path / "one.npz", images=file["images"])
    private = pe.ImageNpz(tmp_path / "one.npz", size=4, channels=1)
    run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "one", **SETTINGS)
    values = evaluate(run, str(tmp_path / "one.npz"), metrics=None)
    assert "utility" not in values
    assert "fidelity" in values
    with pytest.raises(RecipeError, match="utility needs two classes or more"):
        evaluate(run, str(tmp_path / "one.npz"), metrics=("utility",))


class Small(Shades):
    """Shades that say what their size is."""

    info = replace(Shades.info, shape=(4, 4, 1))


def test_images_of_another_size_are_brought_to_the_tests(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("private", "test"):
        images = rng.integers(0, 256, (40, 6, 6, 3)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.array(["no", "yes"])[np.arange(40) % 2])
    private = pe.ImageNpz(tmp_path / "private.npz", size=6, classes=["no", "yes"])
    run = pe.evolve(private, Small(), embedding=Mean(), out=tmp_path / "run", **SETTINGS)
    values = evaluate(run, str(tmp_path / "test.npz"))
    assert "For classifiers, images of 'synthetic' are brought from 4×4×1 to the test set's 6×6×3." in values["notes"]


def test_a_reference_set_takes_the_tests_place_in_fidelity_only(run: pe.Run, test: str, tmp_path: Path) -> None:
    bright = images_of(np.full(30, 250))
    np.savez(tmp_path / "public.npz", images=bright.pixels)
    values = evaluate(run, test, reference=str(tmp_path / "public.npz"))
    assert values["reference"]["images"] == 30
    assert values["test"]["images"] == 40
    assert values["fidelity"]["Mean"]["frechet"] > evaluate(run, test)["fidelity"]["Mean"]["frechet"]

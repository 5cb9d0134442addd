"""Which real samples an evaluation compares a run with: read as the run reads its records, held
out, seen by nobody.
"""

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from PIL import Image

import pe
from pe.errors import RecipeError
from pe.evaluation.features import embedding_name
from pe.evaluation.methods import ImageMethods
from pe.evaluation.sets import Notes, RealSet, leave_out, read_real
from pe.judgement.labelled import Labelled
from pe.plugins.specs import PluginSpec
from pe.private.npz import ImageNpz
from pe.progress import Progress
from tests.evaluation.conftest import Near, evaluate

source_at = ImageMethods().source_at
CLASSES = ("a", "b")
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
NAMES = np.array(["a", "b", "b", "a", "b", "b"])
SOURCE = ImageNpz(Path("withheld"), size=8, classes=CLASSES, privacy_unit="patient")


def read(place, template=SOURCE):
    return read_real(
        source_at(str(place), template), "test set", template.labels, Notes(Progress())
    )


def png(pixels):
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def written(kind, folder):
    """The same six images in a source of each kind."""
    place = folder / f"t.{kind}"
    if kind == "npz":
        np.savez(place, images=PIXELS, labels=NAMES)
    elif kind == "parquet":
        table = pyarrow.table({"image": [png(image) for image in PIXELS], "label": NAMES.tolist()})
        pyarrow.parquet.write_table(table, place)
    else:
        for i, (image, name) in enumerate(zip(PIXELS, NAMES, strict=True)):
            (place / name).mkdir(parents=True, exist_ok=True)
            (place / name / f"{i}.png").write_bytes(png(image))
    return place


@pytest.mark.parametrize("kind", ["npz", "folder", "parquet"])
def test_every_kind_of_source_gives_the_same_images_in_the_size_of_the_run(tmp_path, kind):
    place = written(kind, tmp_path)
    found = read(place)
    assert found.path == str(place)
    pairs = zip(found.content.images.pixels, found.content.labels.tolist(), strict=True)
    assert {(image.tobytes(), CLASSES[label]) for image, label in pairs} == {
        (image.tobytes(), name) for image, name in zip(PIXELS, NAMES, strict=True)
    }
    small = read(
        place, ImageNpz(Path("withheld"), size=4, channels=1, resize="crop", classes=CLASSES)
    )
    assert small.content.images.shape == (4, 4, 1)
    source = source_at(str(place), SOURCE, has_labels=False)
    assert len(read_real(source, "reference set", CLASSES, Notes(Progress())).content) == 6


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"labels": np.array(["a", "c", "b", "a", "b", "b"])},
            "label 'c', which the public class list lacks",
        ),
        (
            {"images": PIXELS[:, :5]},
            "an image of 5×8×3 where 8×8×3 are declared: bring the set to the run's size",
        ),
        ({"images": PIXELS[:1], "labels": NAMES[:1]}, "fewer than two images"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(tmp_path, changes, sentence):
    np.savez(tmp_path / "t.npz", **{"images": PIXELS, "labels": NAMES} | changes)
    with pytest.raises(RecipeError, match=sentence) as error:
        read(tmp_path / "t.npz")
    assert str(error.value).startswith(f"The test set {tmp_path / 't.npz'} ")
    assert "private" not in str(error.value).lower()


def test_what_is_known_is_left_out_of_a_test_set_and_counted():
    def labelled(images):
        return Labelled(pe.Images(images), np.zeros(len(images), np.int32))

    blank, notes = np.zeros_like(PIXELS[:1]), Notes(Progress())
    test = RealSet("npz", "t.npz", labelled(np.concatenate([PIXELS, blank])), "")
    records, near = labelled(np.concatenate([PIXELS[:2], blank])), labelled(PIXELS[4:5] ^ 1)
    left = leave_out(test, {"private records": records, "others": near}, notes)
    assert (
        left.content.images.pixels == test.content.images.pixels[2:]
    ).all()  # the blank image tells nothing
    assert left.left_out == 2
    assert leave_out(left, {"others": near}, notes) == left
    assert notes.sentences == [
        "2 of the 7 test images are left out, because they are, pixel by pixel, among the private "
        "records (2): 5 are left."
    ]
    with pytest.raises(
        RecipeError, match=r"The test set t\.npz tests nothing: 6 of its 7 images are"
    ):
        leave_out(test, {"private records": labelled(PIXELS)}, notes)


def test_private_synthetic_and_control_images_are_left_out_of_the_test_set(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (60, 4, 4, 1)).astype(np.uint8)
    for name, part in (("private", images[:20]), ("pool", images[20:40])):
        np.savez(tmp_path / f"{name}.npz", images=part)
    run = pe.evolve(
        pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1),
        pe.api("public_images", path=str(tmp_path / "pool.npz"), channels=1, blur=0.0),
        embedding=Near(),
        out=tmp_path / "run",
        **{
            "population": 4,
            "iterations": 1,
            "degree": 0.0,
            "lookahead": 0,
            "epsilon": 50,
            "delta": 1e-3,
        },
    )
    np.savez(tmp_path / "test.npz", images=np.concatenate([images[:3], images[20:]]))
    values = evaluate(run, tmp_path / "test.npz", api=None, metrics=("fidelity", "memorisation"))
    seen = {image.tobytes() for t in (0, 1) for image in run.population(t).samples.pixels}
    gone = 3 + sum(image.tobytes() in seen for image in images[20:40])
    assert values["test"]["left_out"] == gone > 3
    assert values["memorisation"]["samples"]["heldout"] == values["test"]["images"] == 43 - gone
    (note,) = (note for note in values["notes"] if "among the synthetic images" in note)
    assert "private records (3)" in note


def test_images_leave_for_another_host_only_as_the_user_wants_and_is_told(run, test, tmp_path):
    class Far(Near):
        info = pe.PluginInfo(hosts=("embeddings.example",))

    notes = evaluate(run, test, embedding=Far())["notes"]
    assert "The embedding 'Far' hands private and test images to embeddings.example." in notes
    received = run.export(tmp_path / "received")
    content = yaml.safe_load((received / "recipe.yaml").read_text())
    far = {
        "kind": "http",
        "url": "http://127.0.0.1:9/v1/embeddings",
        "trusted_with_private_data": True,
    }
    (received / "recipe.yaml").write_text(yaml.safe_dump(content | {"embedding": far}))
    said = (
        r"hand your test images to 127\.0\.0\.1:9: name an embedding that you want by --embedding"
    )
    with pytest.raises(RecipeError, match=said):
        evaluate(pe.Run.open(received), test, embedding=None)


def test_an_embedding_is_named_without_folders():
    spec = PluginSpec.model_validate(
        {"kind": "tfidf", "public": "/srv/texts/public.csv", "dimensions": 64}
    )
    assert embedding_name(spec) == "tfidf (public=public.csv, dimensions=64)"

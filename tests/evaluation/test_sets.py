"""Which real samples an evaluation compares a run with: read as the run reads its records, held out, seen by nobody."""

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
from pe.evaluation.labelled import Labelled
from pe.evaluation.methods import ImageMethods, shrink
from pe.evaluation.sets import Notes, RealSet, leave_out, read_real
from pe.private.npz import ImageNpz
from pe.progress import Progress
from tests.evaluation.conftest import Near, evaluate
from tests.generators import Shades, images_of

source_at = ImageMethods().source_at
CLASSES = ("a", "b")
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
NAMES = np.array(["a", "b", "b", "a", "b", "b"])
SOURCE = ImageNpz(Path("withheld"), size=8, classes=CLASSES, privacy_unit="patient")


def read(place, template=SOURCE):
    return read_real(source_at(str(place), template), "test set", template.labels)


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
    small = read(place, ImageNpz(Path("withheld"), size=4, channels=1, resize="crop", classes=CLASSES))
    assert small.content.images.shape == (4, 4, 1)
    assert len(read_real(source_at(str(place), SOURCE, labelled=False), "reference set", CLASSES).content) == 6


def test_the_mnist_test_digits_are_known_by_name():
    assert len(read("mnist", pe.MnistSample()).content) == 1000
    assert not read("mnist", ImageNpz(Path("withheld"), size=28, channels=1)).content.labels.any()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": np.array(["a", "c", "b", "a", "b", "b"])}, "label 'c', which the public class list lacks"),
        ({"images": PIXELS[:, :5]}, "an image of 5×8×3 where 8×8×3 are declared: bring the set to the run's size"),
        ({"images": PIXELS[:1], "labels": NAMES[:1]}, "fewer than two images"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(tmp_path, changes, sentence):
    np.savez(tmp_path / "t.npz", **{"images": PIXELS, "labels": NAMES} | changes)
    with pytest.raises(RecipeError, match=sentence) as error:
        read(tmp_path / "t.npz")
    assert str(error.value).startswith(f"The test set {tmp_path / 't.npz'} ")
    assert "private" not in str(error.value).lower()


def test_a_set_s_digest_is_of_its_images_in_any_order(tmp_path):
    order = np.arange(6)[::-1]
    for name, rows in (("t", slice(None)), ("turned", order), ("less", slice(1, None))):
        np.savez(tmp_path / f"{name}.npz", images=PIXELS[rows], labels=NAMES[rows])
    one, same, other = (read(tmp_path / f"{name}.npz").sha256 for name in ("t", "turned", "less"))
    assert one == same != other


def test_what_is_known_is_left_out_of_a_test_set_and_counted():
    def labelled(images):
        return Labelled(pe.Images(images), np.zeros(len(images), np.int32))

    blank, notes = np.zeros_like(PIXELS[:1]), Notes(Progress())
    test = RealSet("npz", "t.npz", labelled(np.concatenate([PIXELS, blank])), "")
    records, near = labelled(np.concatenate([PIXELS[:2], blank])), labelled(PIXELS[4:5] ^ 1)
    left = leave_out(test, {"private records": records, "others": near}, notes)
    assert (left.content.images.pixels == test.content.images.pixels[2:]).all()  # the blank image tells nothing
    assert left.left_out == 2
    assert leave_out(left, {"others": near}, notes) == left
    assert notes.sentences == [
        "2 of the 7 test images are left out, because they are, pixel by pixel, among the private records (2): "
        "5 are left."
    ]
    with pytest.raises(RecipeError, match=r"The test set t\.npz tests nothing: 6 of its 7 images are"):
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
        **{"population": 4, "iterations": 1, "degree": 0.0, "lookahead": 0, "epsilon": 50, "delta": 1e-3},
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
    far = {"kind": "http", "url": "http://127.0.0.1:9/v1/embeddings", "trusted_with_private_data": True}
    (received / "recipe.yaml").write_text(yaml.safe_dump(content | {"embedding": far}))
    said = r"hand your test images to 127\.0\.0\.1:9: name an embedding that you want by --embedding"
    with pytest.raises(RecipeError, match=said):
        evaluate(pe.Run.open(received), test, embedding=None)


def test_one_class_leaves_utility_out_and_without_votes_there_are_no_controls(tmp_path):
    np.savez(tmp_path / "one.npz", images=images_of(np.arange(0, 250, 5)).pixels)
    source, settings = pe.ImageNpz(tmp_path / "one.npz", size=4, channels=1), {"epsilon": 1.0, "delta": 1e-3}
    run = pe.evolve(source, Shades(), embedding=Near(), out=tmp_path / "run", population=40, iterations=0, **settings)
    values = evaluate(run, tmp_path / "one.npz", metrics=None, random_selection=None, one_vote=None)
    assert values["fidelity"]["Near"]["controls"].keys() == {"real"}
    assert "utility" not in values
    with pytest.raises(RecipeError, match="utility needs two classes or more"):
        evaluate(run, tmp_path / "one.npz", metrics=("utility",))


def test_a_reference_set_takes_the_tests_place_in_fidelity_only(run, test, tmp_path):
    np.savez(tmp_path / "public.npz", images=images_of(np.full(30, 250)).pixels)
    values = evaluate(run, test, reference=str(tmp_path / "public.npz"))
    assert (values["reference"]["images"], values["test"]["images"]) == (30, 40)
    assert values["fidelity"]["Near"]["frechet"] > evaluate(run, test)["fidelity"]["Near"]["frechet"]


def test_classifiers_see_images_of_the_tests_shape_shrunk_only_where_they_are_larger():
    assert [shrink(shape) for shape in ((28, 28, 1), (100, 40, 3))] == [(28, 28, 1), (32, 13, 3)]
    labels, notes = np.zeros(2, np.int32), []
    ours, test = (Labelled(pe.Images(np.zeros((2, *shape), np.uint8)), labels) for shape in ((4, 4, 1), (40, 40, 3)))
    views = ImageMethods().views(["mlp", "resnet9"], {"synthetic": ours}, test, notes.append)
    shapes = {name: (sets["synthetic"].images.shape, seen.images.shape) for name, (sets, seen) in views.items()}
    assert shapes == {"mlp": ((32, 32, 3),) * 2, "resnet9": ((40, 40, 3),) * 2}
    assert "For classifiers, images of 'synthetic' are brought from 4×4×1 to the test set's 40×40×3." in notes

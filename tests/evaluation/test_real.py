"""Real images are read as the run reads its private records; what does not fit is said in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pe
from pe.errors import RecipeError
from pe.evaluation.labelled import Labelled
from pe.evaluation.methods import ImageMethods
from pe.evaluation.sets import RealSet, leave_out, read_real
from pe.private.npz import ImageNpz
from pe.private.tables import ImageParquet

source_at = ImageMethods().source_at
CLASSES = ("a", "b")
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
NAMES = np.array(["a", "b", "b", "a", "b", "b"])


def private(**changes: object) -> ImageNpz:
    return ImageNpz(Path("withheld"), **{"size": 8, "classes": CLASSES, "privacy_unit": "patient"} | changes)


def read(place: object, template: object = None) -> RealSet:
    template = template or private()
    return read_real(source_at(str(place), template), "test set", template.labels)


@pytest.fixture(params=["npz", "folder", "parquet"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "npz":
        np.savez(tmp_path / "t.npz", images=PIXELS, labels=NAMES)
        return tmp_path / "t.npz"
    for i, (image, name) in enumerate(zip(PIXELS, NAMES, strict=True)):
        folder = tmp_path / "t" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    if request.param == "folder":
        return tmp_path / "t"
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    encoded = [(tmp_path / "t" / name / f"{i}.png").read_bytes() for i, name in enumerate(NAMES)]
    parquet.write_table(arrow.table({"image": encoded, "label": NAMES.tolist()}), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_every_kind_of_source_gives_the_same_images(place: Path) -> None:
    found = read(place)
    assert found.path == str(place)
    pairs = {(image.tobytes(), CLASSES[label]) for image, label in _pairs(found)}
    assert pairs == {(image.tobytes(), name) for image, name in zip(PIXELS, NAMES, strict=True)}


def _pairs(found: RealSet) -> zip[tuple[np.ndarray, int]]:
    return zip(found.content.images.pixels, found.content.labels.tolist(), strict=True)


def test_size_channels_and_resize_rule_are_the_runs(place: Path) -> None:
    found = read(place, private(size=4, channels=1, resize="crop"))
    assert found.content.images.shape == (4, 4, 1)


def test_settings_of_a_source_of_the_same_kind_are_the_runs(tmp_path: Path) -> None:
    parquet = ImageParquet(
        Path("withheld"), size=8, classes=CLASSES, image_column="scan", label_column="finding", privacy_unit="patient"
    )
    (tmp_path / "t.parquet").touch()
    found = source_at(str(tmp_path / "t.parquet"), parquet)
    assert (found.image_column, found.label_column, found.privacy_unit) == ("scan", "finding", "record")
    assert source_at(str(tmp_path / "t.parquet"), parquet, labelled=False).label_column is None


def test_a_reference_set_needs_no_labels(place: Path) -> None:
    found = read_real(source_at(str(place), private(), labelled=False), "reference set", CLASSES)
    assert len(found.content) == 6


def test_the_mnist_test_digits_are_known_by_name() -> None:
    found = read("mnist", pe.MnistSample())
    assert len(found.content) == 1000
    unlabelled = read("mnist", ImageNpz(Path("withheld"), size=28, channels=1))
    assert not unlabelled.content.labels.any()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": np.array(["a", "c", "b", "a", "b", "b"])}, "label 'c', which the public class list lacks"),
        ({"labels": None}, "classes lists several classes, but its records have no labels"),
        (
            {"images": PIXELS[:, :5]},
            "an image of 5×8×3 where 8×8×3 are declared: bring the set to the run's size",
        ),
        ({"images": PIXELS[:1], "labels": NAMES[:1]}, "fewer than two images"),
        ({"images": PIXELS[:0], "labels": NAMES[:0]}, "fewer than two images"),
        ({"images": PIXELS.astype(np.float32)}, "are float32: scale them to 0…255"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    arrays = {"images": PIXELS, "labels": NAMES} | changes
    np.savez(tmp_path / "t.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(RecipeError, match=sentence) as error:
        read(tmp_path / "t.npz")
    assert str(error.value).startswith(f"The test set {tmp_path / 't.npz'} ")
    assert "private" not in str(error.value).lower()


@pytest.mark.parametrize(("name", "sentence"), [("no.npz", "does not exist"), ("t.bin", "neither a folder nor")])
def test_a_place_that_is_nothing_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "t.bin").touch()
    with pytest.raises(RecipeError, match=sentence):
        read(tmp_path / name)


def test_what_is_known_is_left_out_of_a_test_set_and_counted(tmp_path: Path) -> None:
    blank = np.zeros_like(PIXELS[:1])
    test = RealSet("npz", "t.npz", Labelled(pe.Images(np.concatenate([PIXELS, blank])), np.zeros(7, np.int32)), "")
    near = PIXELS[4:5] ^ 1
    known = {"private records": pe.Images(np.concatenate([PIXELS[:2], blank])), "others": pe.Images(near)}
    left, sentence = leave_out(test, known)
    assert (left.content.images.pixels == test.content.images.pixels[2:]).all()  # the blank image tells nothing
    assert left.left_out == 2
    assert sentence == (
        "2 of the 7 test images are left out, because they are, pixel by pixel, among the private records (2): "
        "5 are left."
    )
    assert leave_out(left, {"others": pe.Images(near)}) == (left, "")
    with pytest.raises(RecipeError, match=r"The test set t\.npz tests nothing: 6 of its 7 images are"):
        leave_out(test, {"private records": pe.Images(PIXELS)})

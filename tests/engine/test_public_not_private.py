"""No private record is a public image: a run that would read one as such is refused before anything
is called.
"""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image

import pe
from adapters.public_files import images_at
from pe.engine.execution import RunContext
from pe.engine.extend import extend_run
from pe.engine.probe import probe
from pe.engine.python import read_arguments
from pe.engine.report import write_report
from pe.errors import LimitReached, RecipeError, RunError
from pe.privacy.certificate import verify
from pe.report.pages import REPORT
from pe.store.run import purge
from tests.engine.small import SETTINGS, Told, evolve
from tests.generators import Shades

SIDE, COUNT = 8, 10


def pictures(count=COUNT, seed=0, side=SIDE):
    """Colour images of noise: uint8, n×h×w×3."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def in_folder(folder, images, suffix="png", **options):
    folder.mkdir(exist_ok=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{len(images) - i:03}.{suffix}", **options)
    return folder


def in_npz(path, images):
    np.savez(path, images=images)
    return path


def folder(root):
    return pe.ImageFolder(in_folder(root / "private", pictures()), size=SIDE)


def larger_files(root):
    """12×16 images, of which the crop's middle counts."""
    whole = np.random.default_rng(0).integers(0, 256, (COUNT, 12, 16, 3), dtype=np.uint8)
    return pe.ImageFolder(in_folder(root / "private", whole), size=SIDE, resize="crop")


def npz(root):
    return pe.ImageNpz(in_npz(root / "private.npz", pictures()), size=SIDE)


def run(source, public, out, **changes):
    api = pe.api("public_images", path=str(public), size=SIDE, channels=source.channels)
    return evolve(source, out, api, population=8, lookahead=1, **changes)


def refused(source, public, out, sentence):
    with pytest.raises(RecipeError, match=sentence) as error:
        run(source, public, out)
    assert "\n" not in str(error.value)
    assert not out.exists()


def five_and_three(private, form, place):
    """Five other images, and three records."""
    records = next(private.open().blocks(COUNT))[0].pixels[3:6]
    images = np.concatenate([pictures(5, seed=9), records])
    if form == "npz":
        return in_npz(place.with_suffix(".npz"), images)
    return in_folder(
        place, images, form, **{"lossless": True, "exact": True} if form == "webp" else {}
    )


@pytest.mark.parametrize(
    ("source", "form"), [(folder, "webp"), (larger_files, "npz"), (npz, "png")]
)
def test_records_in_the_pool_are_found_in_any_source_and_in_any_form(source, form, tmp_path):
    private = source(tmp_path)
    public = five_and_three(private, form, tmp_path / "public")
    refused(
        private, public, tmp_path / "run", r"^3 of 8 public images are private .* bit \(the first"
    )


def test_public_images_are_compared_as_the_private_side_or_the_generator_would_read_them(tmp_path):
    private, public = larger_files(tmp_path), in_folder(tmp_path / "public", pictures(3, seed=9))
    shutil.copy(private.path / "004.png", public / "holiday.png")
    refused(
        private, public, tmp_path / "run", r"^1 of 4 public images .*\(the first: .*holiday\.png\)"
    )
    # These private records need no rule for their size; the pool's own makes records out of the
    # originals.
    originals = in_folder(tmp_path / "originals", pictures(side=2 * SIDE))
    shrunk = np.stack([image for _, image in images_at(originals, (SIDE, SIDE, 3), "crop")])
    private = pe.ImageFolder(in_folder(tmp_path / "shrunk", shrunk), size=SIDE)
    refused(private, originals, tmp_path / "run", "^10 of 10 public images are private records")
    grey = replace(private, channels=1)
    shutil.copytree(private.path, tmp_path / "coloured")
    refused(
        grey, tmp_path / "coloured", tmp_path / "run", "^10 of 10 public images are private records"
    )


def test_blank_images_may_be_private_and_public(tmp_path):
    """An all-black scan, or an empty page, says nothing of where it comes from."""
    for shade in (0, 255):
        blank, root = np.full((1, SIDE, SIDE, 3), shade, np.uint8), tmp_path / str(shade)
        root.mkdir()
        private = pe.ImageFolder(
            in_folder(root / "private", np.concatenate([pictures(), blank])), size=SIDE
        )
        public = in_folder(root / "public", np.concatenate([blank, pictures(6, seed=9), blank]))
        assert len(run(private, public, root / "run").synthetic) == 8


def test_places_are_refused_before_an_image_is_compared_and_by_a_probe(tmp_path):
    private = folder(tmp_path)
    refused(
        private,
        private.path,
        tmp_path / "run",
        "are the private records .*Use images that hold no",
    )
    api = pe.api("public_images", path=str(private.path), size=SIDE)
    with pytest.raises(RecipeError, match="are the private records"):
        probe(read_arguments("the test", private, api, None, {}, SETTINGS))


class Witness(Shades):
    """Reads public images, and writes down all that it is handed before the run's first call."""

    info = replace(Shades.info, shape=(4, 4, 1))

    def __init__(self, public):
        super().__init__()
        self.public, self.handed = public, []

    def public_paths(self):
        return (self.public,)

    def public_samples(self, *arguments):
        self.handed.append(arguments)
        for name, image in images_at(self.public, arguments[0], arguments[1] or "crop"):
            yield name, image
            self.handed.append(name)


def test_the_generator_is_handed_public_values_alone_and_learns_nothing_of_the_answer(tmp_path):
    public, handed = in_folder(tmp_path / "public", pictures(6, seed=9)), []
    for seed in (0, 9):  # with these records, and with those that are the pool
        private = pe.ImageNpz(
            in_npz(tmp_path / f"{seed}.npz", pictures(seed=seed)), size=SIDE, resize="fit"
        )
        api = Witness(public)
        try:
            evolve(private, tmp_path / f"run{seed}", api)
            assert seed == 0
            assert api.handed[7:] == api.handed[:7]  # read once more at the end
            del api.handed[7:]
        except RecipeError:
            assert (seed, api.asked) == (9, 0)
        handed.append(api.handed)
    assert handed[0] == handed[1]
    assert handed[0][0] == ((SIDE, SIDE, 3), "fit")


CHANGED = r"public images .*public are not those that .*run began with.*: restore them"


def exchange(image):
    Image.fromarray(pictures()[0]).save(image)


def refused_while_changed(act, image):
    """The result of `act`, which is refused until an image is restored."""
    before = image.read_bytes()
    exchange(image)
    with pytest.raises(RunError, match=CHANGED):
        act()
    image.write_bytes(before)
    return act()


@pytest.mark.parametrize(
    "images", [9, 8 * 5 - 1], ids=["while noise is to be drawn", "after the last vote"]
)
def test_a_run_goes_on_with_the_public_images_that_it_began_with(images, tmp_path):
    private, public = folder(tmp_path), in_folder(tmp_path / "public", pictures(6, seed=9))
    with pytest.raises(LimitReached):
        run(private, public, tmp_path / "run", max_images=images)
    made = refused_while_changed(
        lambda: run(private, public, tmp_path / "run", resume=True), public / "001.png"
    )
    assert len(made.synthetic) == 8


def test_a_run_over_other_images_is_not_refused_and_extended_from_those_that_it_began_with(
    tmp_path,
):
    public = in_folder(tmp_path / "public", pictures(6, seed=9))
    made = run(folder(tmp_path), public, tmp_path / "run")
    assert made.guarantee["pool_overlaps"] is None
    assert "may be private records" not in made.certificate
    purge(made)
    extend = partial(extend_run, made.folder, 4, 0.5, RunContext())
    assert refused_while_changed(extend, public / "001.png").is_file()


def test_images_that_change_while_the_generator_reads_them_are_found_out_at_the_end(tmp_path):
    class Changing(Witness):
        def variation_api(self, request):
            exchange(self.public / "001.png")
            return super().variation_api(request)

    api = Changing(in_folder(tmp_path / "public", pictures(6, seed=9)))
    with pytest.raises(RunError, match=CHANGED):
        evolve(folder(tmp_path), tmp_path / "run", api)
    assert not (tmp_path / "run" / "certificate.json").exists()


def test_published_records_are_declared_and_the_certificate_says_so(tmp_path):
    private, told, words = folder(tmp_path), Told(), "may be private records"
    made = run(private, private.path, tmp_path / "run", pool_overlaps="declared", progress=told)
    assert made.guarantee["pool_overlaps"] == "declared"
    assert words in made.guarantee["not_covered"][0]
    assert made.certificate.index(words) < made.certificate.index("Protected:")
    assert any(words in warning for warning in told.warnings)
    assert verify(made.guarantee, made.folder) == []
    denied = verify(made.guarantee | {"pool_overlaps": None}, made.folder)
    assert denied == ["Its 'not_covered' is not what its numbers say."]
    write_report(made.folder)
    assert words in (made.folder / REPORT).read_text()

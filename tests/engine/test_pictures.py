"""The demo's colour pictures: what becomes of packages, good and hostile, and the demo on a made-up set."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pe.data.decoding import decode_image
from pe.engine.demo.packages import MAX_FILE, Package
from pe.engine.demo.picture_set import CLASSES, make_picture_set, read_pictures
from pe.engine.demo.pictures import measure, recipe_content
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import BadImage, MissingDependency, RunError
from pe.progress import Progress
from pe.recipe.reading import with_change
from pe.recipe.schema import Recipe
from tests.cli.typed import pe

MAKERS = {"private": 0, "public": 1}
PER_CLASS = 12


def png(colour: tuple[int, ...], size: int = 64) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (size, size), colour).save(file, "PNG")
    return file.getvalue()


def entry(maker: str, code: str, category: str) -> dict[str, object]:
    tone = {"unified": f"{code}-1F3FB", f"has_img_{maker}": True}
    return {"unified": code, "category": category, f"has_img_{maker}": True, "skin_variations": {"1F3FB": tone}}


def archive(folder: Path, maker: str, entries: list[dict[str, object]], files: Mapping[str, bytes | str]) -> Path:
    """A package as npm packs it: `files` by name, those that are text being links to it."""
    path = folder / f"emoji-{maker}-1.0.0.tgz"
    with tarfile.open(path, "w:gz") as members:
        for name, content in [("package/emoji.json", json.dumps(entries).encode()), *files.items()]:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                members.addfile(member)
            else:
                member.size = len(content)
                members.addfile(member, io.BytesIO(content))
    return path


def made_up(folder: Path, maker: str) -> Path:
    """A package with twelve pictures of each class, each class of its own colour; and what is to be left out."""
    entries, files = [entry(maker, "1F3FB", "Component")], {f"package/img/{maker}/64/1f3fb.png": png((0, 0, 0, 255))}
    for place, category in enumerate(CLASSES):
        for number in range(PER_CLASS):
            code = f"{0x1F000 + 100 * place + number:X}"
            entries.append(entry(maker, code, category))
            corner = [100 + 80 * (place >> bit & 1) if place < 8 else 20 for bit in range(3)]
            colour = (*corner[:2], corner[2] + 2 * number + MAKERS[maker], 255)
            files[f"package/img/{maker}/64/{code.lower()}.png"] = png(colour)
            files[f"package/img/{maker}/64/{code.lower()}-1f3fb.png"] = png((1, 2, 3, 255))
    files["package/img/sheet.png"] = b"no picture"
    return archive(folder, maker, entries, files)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Package]:
    """Two packages, and a program `npm` that hands them out."""
    index = tmp_path / "index"
    index.mkdir()
    found = {}
    for maker in MAKERS:
        content = made_up(index, maker).read_bytes()
        found[maker] = Package(f"emoji-{maker}", "1.0.0", hashlib.sha256(content).hexdigest())
    npm(tmp_path, f'for last; do :; done; cp "{index}/$(echo $2 | tr @ -).tgz" "${{last#*=}}"', monkeypatch)
    return found


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program `npm` of this script before all others."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def make(folder: Path, packages: Mapping[str, Package]) -> Path:
    return make_picture_set(folder, private="private", public=["public"], packages=packages, progress=Progress())


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.png")}


def test_a_set_holds_every_base_picture_once_and_stays(
    packages: dict[str, Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path / "pictures", packages)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "index", "pictures"]
    private, test = names(made / "private"), names(made / "test")
    assert len(private | test) == len(CLASSES) * PER_CLASS == len(private) + len(test)
    assert {name.split("/")[0] for name in private | test} == set(CLASSES)
    assert 0.1 < len(test) / len(private | test) < 0.3
    assert names(made / "public") == {Path(name).name for name in names(made / "public-by-class")}
    assert names(made / "public-by-class") == {name.replace("/", "/public-") for name in private | test}
    npm(tmp_path, "exit 1", monkeypatch)
    assert make(made, packages) == made  # it is there, and nothing is fetched
    next((made / "public").iterdir()).unlink()
    with pytest.raises(RunError, match="exists and is not this picture set, whole: name another folder"):
        make(made, packages)


def test_transparency_is_white_and_a_picture_that_occurs_twice_is_kept_once(tmp_path: Path) -> None:
    entries = [entry("a", code, "Flags") for code in ("1F1E6", "1F1E7", "1F1E8")]
    files = {f"package/img/a/64/1f1e{i}.png": png((255, 0, 0, 0 if i == "8" else 255)) for i in "876"}
    found = list(read_pictures(archive(tmp_path, "a", entries, files), "a"))
    assert [picture.code for picture in found] == ["1f1e6", "1f1e8"]
    assert [picture.pixels[0, 0].tolist() for picture in found] == [[255, 0, 0], [255, 255, 255]]


GOOD = "package/img/a/64/1f1e6.png"


@pytest.mark.parametrize(
    ("files", "error", "sentence"),
    [
        ({GOOD: "/etc/hostname"}, RunError, "is not one plain file of at most"),
        ({GOOD: bytes(MAX_FILE + 1)}, RunError, "is not one plain file of at most"),
        ({GOOD: png((0, 0, 0, 255)), "package/emoji.json": b"[]"}, RunError, "is not one plain file of at most"),
        ({GOOD: b"no picture"}, BadImage, "is not a readable PNG"),
        ({GOOD: png((0, 0, 0, 255), size=63)}, BadImage, "63×63"),
        ({"package/img/a/64/../1f1e6.png": png((0, 0, 0, 255))}, RunError, "lists 1f1e6.png and does not hold it"),
    ],
)
def test_a_hostile_file_is_refused(
    files: dict[str, bytes | str], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence):
        list(read_pictures(archive(tmp_path, "a", [entry("a", "1F1E6", "Flags")], files), "a"))


@pytest.mark.parametrize(("code", "category"), [("../../1F1E6", "Flags"), ("1F1E6", "../Flags"), ("1F1E6\n", "Flags")])
def test_a_hostile_list_is_refused(code: str, category: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="which no picture set holds"):
        list(read_pictures(archive(tmp_path, "a", [entry("a", code, category)], {}), "a"))
    broken = archive(tmp_path, "a", [], {})
    broken.write_bytes(broken.read_bytes()[:-20])
    with pytest.raises(RunError, match="damaged"):
        list(read_pictures(broken, "a"))


def test_another_package_than_the_known_one_is_refused(packages: dict[str, Package], tmp_path: Path) -> None:
    other = packages | {"public": Package("emoji-public", "1.0.0", "0" * 64)}
    with pytest.raises(
        RunError, match=r"What npm gave as emoji-public@1\.0\.0 has the SHA-256 [0-9a-f]{64}, not 0{64}"
    ):
        make(tmp_path / "pictures", other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "index"]


def test_what_npm_lacks_is_one_sentence_without_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(tmp_path, "echo 'npm error code E404' >&2; echo 'npm error 404 https://token@host/' >&2; exit 1", monkeypatch)
    failed = pe("demo", "--data", "pictures", "--quiet", cwd=tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.startswith(
        "pe: npm cannot get emoji-datasource-google@16.0.0 (E404): see that `npm pack emoji"
    )
    assert "host" not in failed.stderr
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    missing = pe("demo", "--data", "pictures", "--quiet", cwd=tmp_path)
    assert "needs npm, which is not installed: install Node.js" in missing.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
    with pytest.raises(MissingDependency):
        make(tmp_path / "pictures", {maker: Package(maker, "1", "") for maker in MAKERS})


def test_the_generator_is_of_the_digits(tmp_path: Path) -> None:
    refused = pe("demo", "--data", "pictures", "--api", "glyphs", cwd=tmp_path)
    assert "--api is of the digits" in refused.stderr


def test_the_demo_measures_its_data_beside_all_controls(packages: dict[str, Package], tmp_path: Path) -> None:
    made = make(tmp_path / "pictures", packages)
    changes = "embedding.kind=pixels", "evolution.population=[540, 900]", "evolution.neighbors=4", "privacy.epsilon=50"
    content = recipe_content(made) | {"evolution": {"iterations": 1}}
    for change in changes:
        content = with_change(content, change)
    run = run_recipe(Recipe.parse(content, "test"), tmp_path / "run", Surroundings())
    found = measure(run, made / "test", Surroundings())
    scores = found["accuracy"]
    assert found["test"] == len(names(made / "test"))
    assert scores["real"] > 0.5
    assert scores["synthetic"] > max(scores["unevolved"], scores["random_selection"], scores["chance"]) + 0.2
    first = decode_image(next((made / "public").iterdir()), size=None, resize=None, channels=3)
    assert run.synthetic.samples.array.shape == (900, *first.shape)
    assert np.bincount(run.synthetic.labels).tolist() == [100] * len(CLASSES)

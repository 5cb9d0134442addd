"""`pe init` as a user types it: what it sees, what it asks, and that its recipe serves from any folder."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pe.data.samples import modality
from pe.planning.build import set_up
from pe.plugins.protocols import info_of
from pe.plugins.registry import load, plugins
from pe.recipe.schema import Recipe
from pe.recipe.starting import HasStarter, ImageStart, Start, TextStart, starter_recipe
from tests.cli.test_commands import assert_one_sentence, installed, public, scans
from tests.cli.typed import pe

__all__ = ["public", "scans"]  # fixtures

RECORDS = ("--privacy-unit", "record", "--declared-size", 500, "--public", "public")
SHAPE = ("--size", 28, "--channels", 1)
TABLE = ("--image-column", "scan", "--label-column", "label")
DIGITS, WRITERS = np.arange(24) % 3, np.arange(24) // 4
GREY = np.random.default_rng(0).integers(0, 256, (24, 28, 28), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def digits(place: Path) -> Path:
    """24 grey digits of three classes by six writers, as an .npz or Parquet file, or a folder with labels.csv."""
    if place.suffix == ".npz":
        np.savez(place, images=GREY, labels=DIGITS, writer=WRITERS)
    elif place.suffix == ".parquet":
        pq.write_table(pa.table({"scan": list(map(png, GREY)), "label": DIGITS, "writer": WRITERS}), place)
    else:
        place.mkdir()
        rows = [f"{i}.png,{label},{writer}" for i, (label, writer) in enumerate(zip(DIGITS, WRITERS, strict=True))]
        (place / "labels.csv").write_text("\n".join(["file,label,writer", *rows]))
        for i, pixels in enumerate(GREY):
            (place / f"{i}.png").write_bytes(png(pixels))
    return place


def pool(place: Path, names: str) -> Path:
    """Public images, two for each name."""
    if place.suffix == ".npz":
        np.savez(place, images=255 - GREY[: 2 * len(names)], labels=np.array(list(names * 2)))
        return place
    for name in names:
        (place / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(255 - GREY[i]).save(place / name / f"{i}.png")
    return place


def planned(folder: Path, recipe: str, *changes: object) -> dict[str, object]:
    found = pe("plan", recipe, "--json", *changes, cwd=folder)
    assert found.returncode == 0, found.stderr
    answer: dict[str, object] = json.loads(found.stdout)
    return answer


@pytest.mark.parametrize(("name", "source"), [("a.npz", "npz"), ("a.parquet", "parquet"), ("a", "folder")])
@pytest.mark.parametrize("pool_name", ["public", "public.npz"])
def test_what_is_there_is_seen_and_the_recipe_is_planned_from_another_folder(
    tmp_path: Path, name: str, source: str, pool_name: str
) -> None:
    (tmp_path / "data").mkdir()
    digits(tmp_path / "data" / name)
    pool(tmp_path / pool_name, "012")
    columns = "yes\nyes\n" if source == "parquet" else ""
    typed = f"{columns}yes\nwriter\n4000\n300\n{pool_name}\n\nyes\nyes\n"  # Enter alone declares nothing
    result = pe("init", f"data/{name}", cwd=tmp_path, typed=typed)
    assert result.returncode == 0, result.stderr
    assert "Classes, with commas; - for none (proposed: 0,1,2; yes, or another):" in result.stdout
    assert (
        "Height and width in pixels, from looking at 32 images at most (proposed: 28; yes, or another):"
        in result.stdout
    )
    assert f"{pool_name} has images of every class" in result.stdout
    assert not [line for line in result.stdout.splitlines() if "24" in line]  # never the real number of records
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    private, size = recipe.private, {"size": 28, "channels": 1}
    assert (private.kind, private.class_names, private.privacy_unit) == (source, ("0", "1", "2"), "writer")
    assert (private.declared_size, private.declared_units, private.shape) == (4000, 300, (28, 28, 1))
    assert recipe.api.settings == {"path": str(tmp_path / pool_name), "by_label": True} | size
    assert (recipe.embedding.kind, recipe.evolution.settled) == ("pixels", False)
    text = (tmp_path / "recipe.yaml").read_text()
    assert f"path: data/{name}\n" in text
    assert str(tmp_path) not in text
    (tmp_path / "elsewhere").mkdir()
    plan = planned(tmp_path / "elsewhere", "../recipe.yaml")
    assert not [line for line in plan["warnings"] if "would not start" in line]


def test_init_writes_a_recipe_that_runs(scans: Path, public: Path) -> None:
    result = installed(
        "init", "scans", "--public", "public", cwd=scans.parent, typed="benign,malignant\nsubfolder\n24\n4\n32\nyes\n"
    )
    assert result.returncode == 0, result.stderr
    recipe = Recipe.load(scans.parent / "recipe.yaml")
    assert recipe.private.class_names == ("benign", "malignant")
    assert (recipe.private.privacy_unit, recipe.private.declared_size) == ("subfolder", 24)
    changes = ["--set", "evolution={iterations: 1, population: 8, lookahead: 0}", "--set", "embedding.kind=pixels"]
    assert pe("run", "recipe.yaml", *changes, cwd=scans.parent).returncode == 0
    (run,) = (scans.parent / "runs").iterdir()
    told = [run.name, *(path.read_text() for path in run.iterdir() if path.suffix in (".yaml", ".json", ".md"))]
    assert len(told) == 5
    assert not [text for text in told if "scans" in text]  # where the private images are is withheld


def test_init_asks_nothing_that_its_flags_answer(scans: Path) -> None:
    flags = [*RECORDS, "--classes", "", "--size", 48, "--channels", 1, "--out", "r.yaml"]
    told = pe("init", "scans", *flags, cwd=scans.parent)
    assert told.returncode == 0, told.stderr
    assert told.stdout.endswith("The recipe runs once public images are at public: nothing is there yet.\n")
    recipe = Recipe.load(scans.parent / "r.yaml")
    assert recipe.private.classes == ()
    assert recipe.private.shape == (48, 48, 1)
    assert recipe.privacy.delta < 1 / 500
    text = (scans.parent / "r.yaml").read_text()
    assert "by_label" not in text
    assert {line.index("# ") for line in text.splitlines() if " # " in line.strip()} == {29}
    assert_one_sentence(pe("init", "scans", *flags, cwd=scans.parent), "r.yaml exists already")


@pytest.mark.parametrize(
    ("where", "flags", "sentence"),
    [
        (
            "a.pdf",
            [],
            "a.pdf is of no type that is read here: name a folder of images or texts, an .npz or .tar file or a table",
        ),
        ("scans", ["--longest", 100], "--longest is not of images, which scans holds: leave it out"),
        ("ct", [], "ct holds DICOM files: write a recipe with private.kind: dicom"),
        ("empty", ["--classes", ""], "There are no records"),
        ("scans", ["--classes", "benign,malignant", "--privacy-unit", "patient"], "'patient' would be a column of"),
        ("scans", ["--classes", "benign,malign"], "has the label 'malignant'.*malign"),
        ("scans", ["--classes", "", "--public", "notes.txt"], "public images notes.txt are neither a folder nor an"),
        ("scans", ["--classes", "", "--out", "none/r.yaml"], "there is no folder none"),
        ("a.parquet", ["--label-column", "digit"], "no column 'digit': it has the columns 'scan', 'label', 'writer'"),
        (
            "a.parquet",
            [*TABLE[:2], "--label-column", "", "--classes", "0,1"],
            "label_column is not set.*'scan', 'label', 'writer'",
        ),
    ],
)
def test_init_refuses_what_the_run_would(scans: Path, where: str, flags: list[str], sentence: str) -> None:
    root = scans.parent
    (root / "empty").mkdir()
    (root / "ct").mkdir()
    (root / "ct" / "1.2.840").write_bytes(bytes(128) + b"DICM")
    (root / "notes.txt").write_text("no images")
    (root / "a.pdf").write_text("no images")
    digits(root / "a.parquet")
    units = ["--declared-units", 4] if "--privacy-unit" in flags else []
    result = pe("init", where, *RECORDS, *flags, *units, cwd=root)
    assert result.returncode == 2
    assert re.search(rf"^(pe|Error): .*{sentence}.*\n$", result.stderr, re.M), result.stderr
    assert not (root / "recipe.yaml").exists()


def test_a_question_that_nobody_answers_names_the_options(scans: Path) -> None:
    result = pe("init", "scans", "--classes", "", cwd=scans.parent)
    assert result.returncode == 2
    assert "give --classes, --privacy-unit, --declared-size, --declared-units" in result.stderr
    assert not (scans.parent / "recipe.yaml").exists()
    units = pe("init", "scans", "--classes", "", *RECORDS, "--declared-units", 4, cwd=scans.parent)
    assert "--declared-units belongs to a --privacy-unit other than record" in units.stderr


def test_a_pool_that_lacks_a_class_is_told_and_serves_all_classes(tmp_path: Path) -> None:
    digits(tmp_path / "a.npz")
    pool(tmp_path / "public", "02")
    (tmp_path / "public" / "1").mkdir()  # without an image
    result = pe("init", "a.npz", "--classes", "0,1,2", *RECORDS, *SHAPE, cwd=tmp_path)
    assert "public has no images of 1, so all classes draw from the whole pool" in result.stdout
    assert Recipe.load(tmp_path / "recipe.yaml").api.settings["by_label"] is False


def test_columns_and_class_names_of_hugging_face_s_files_are_found(tmp_path: Path) -> None:
    features = {"kind": {"names": ["zero", "one", "two", "three"]}}
    table = pa.table({"id": WRITERS, "img": [{"bytes": png(each), "path": None} for each in GREY], "kind": DIGITS})
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    (tmp_path / "train").mkdir()
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "train" / "0.parquet")
    result = pe("init", "train", *RECORDS, *SHAPE, cwd=tmp_path, typed="yes\nyes\nyes\n")
    assert "Column of images (proposed: img; yes, or another)" in result.stdout
    assert "Column of labels; - for none (proposed: kind; yes, or another)" in result.stdout
    private = Recipe.load(tmp_path / "recipe.yaml").private
    assert private.class_names == ("zero", "one", "two", "three")
    assert private.open().labels.tolist() == DIGITS.tolist()


def test_the_embedding_is_one_whose_weights_are_at_hand(scans: Path, tmp_path: Path) -> None:
    def chosen(out: str) -> str:
        told = installed(
            "init",
            "scans",
            "--classes",
            "",
            *RECORDS,
            "--size",
            48,
            "--channels",
            3,
            "--out",
            out,
            cwd=tmp_path,
            HF_HOME=str(cache),
        )
        assert told.returncode == 0, told.stderr
        spec = Recipe.load(tmp_path / out).embedding
        return f"{spec.kind} {spec.settings}"

    cache = tmp_path / "cache"
    assert chosen("a.yaml") == "efficientnet_lite {}"
    place = cache / "hub" / "models--laion--CLIP-ViT-B-32-laion2B-s34B-b79K"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    (place / "snapshots" / "abc").mkdir(parents=True)
    (place / "snapshots" / "abc" / "open_clip_model.safetensors").touch()
    assert chosen("b.yaml") == "open_clip {'offline': True}"


def test_data_far_from_the_recipe_are_named_in_full(tmp_path: Path) -> None:
    digits(tmp_path / "a.npz")
    deep = tmp_path / "x" / "y" / "z"
    deep.mkdir(parents=True)
    flags = [
        "--classes",
        "",
        "--privacy-unit",
        "record",
        "--declared-size",
        500,
        *SHAPE,
        "--public",
        tmp_path / "x" / "pool",
    ]
    assert pe("init", tmp_path / "a.npz", *flags, cwd=deep).returncode == 0
    text = (deep / "recipe.yaml").read_text()
    assert f"path: {tmp_path / 'a.npz'}\n" in text.replace('"', "")
    assert "path: ../../pool\n" in text
    shutil.move(tmp_path / "x", tmp_path / "moved")  # with its recipe
    assert Recipe.load(tmp_path / "moved" / "y" / "z" / "recipe.yaml").api.settings["path"] == f"{tmp_path}/moved/pool"


def test_an_empty_path_is_refused_in_one_sentence(tmp_path: Path) -> None:
    digits(tmp_path / "a.npz")
    options = ("--classes", "0,1,2", *SHAPE, "--privacy-unit", "record", "--declared-size", 500)
    refused = pe("init", "a.npz", *options, "--public", "", cwd=tmp_path)
    assert refused.returncode == 2
    assert "Invalid value for '--public': the path is empty; name a file or a folder." in refused.stderr
    assert not (tmp_path / "recipe.yaml").exists()


ENDPOINTS = (
    *("openai_images", "sdapi", "hf_inference", "diffusion_server"),
    *("bedrock", "bfl", "fal", "gemini", "replicate", "stability", "together"),
)
LOCAL = ("diffusion", "pixel_diffusion")


@pytest.mark.parametrize("kind", [*ENDPOINTS, *LOCAL, "portfolio"])
def test_a_recipe_over_a_generator_is_planned_as_it_is_written(tmp_path: Path, kind: str) -> None:
    digits(tmp_path / "a.npz")
    answers = ("--privacy-unit", "record", "--declared-size", 500, "--classes", "0,1,2", *SHAPE)
    result = pe("init", "a.npz", "--api", kind, *answers, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    written = (tmp_path / "recipe.yaml").read_text()
    assert f"  kind: {kind}\n" in written
    settings = Recipe.load(tmp_path / "recipe.yaml").api.settings
    prompts = {one.get("prompts") for one in settings.get("of", [settings])}
    assert prompts == {None if kind == "pixel_diffusion" else "a photo of a {label}"}
    plan = planned(tmp_path, "recipe.yaml")
    assert plan["per_iteration"]
    assert not [line for line in plan["warnings"] if "portfolio" in line]  # its generators fit together


def test_a_generator_without_a_starting_recipe_and_a_pool_beside_an_endpoint_are_refused(tmp_path: Path) -> None:
    digits(tmp_path / "a.npz")
    assert "--api glyphs: it brings no starting recipe" in pe("init", "a.npz", "--api", "glyphs", cwd=tmp_path).stderr
    both = pe("init", "a.npz", "--api", "sdapi", "--public", "p", cwd=tmp_path)
    assert "--public belongs to a generator that draws from a pool" in both.stderr


STARTERS = [kind for kind in plugins("pe.adapters") if isinstance(load("pe.adapters", kind), HasStarter)]
COMMENTED = re.compile(r"^( *)# (?=[a-z_]+: )", re.M)


@pytest.mark.parametrize("kind", STARTERS)
def test_each_key_in_a_comment_is_one_once_the_comment_is_taken_off(tmp_path: Path, kind: str) -> None:
    """As an editor takes it off: without `# `, nothing else."""
    begin = {"images": ImageStart(64, 1), "texts": TextStart(250)}[
        modality(info_of(load("pe.adapters", kind)).modality).noun
    ]
    path = tmp_path / "private"
    (tmp_path / "public.jsonl").write_text('{"text": "Some words."}\n')
    source = {"kind": "folder" if begin.noun == "images" else "text_folder", "path": str(path)}
    api, embedding = begin.generator(kind, ["a"]), begin.embedding(tmp_path, None).lines
    text = starter_recipe(Start(begin.noun, source, ["a"], "record", "", 500, None, begin.shape, api, embedding))

    def read(text: str) -> tuple[Recipe, str]:
        (tmp_path / "r.yaml").write_text(text)
        recipe = Recipe.load(tmp_path / "r.yaml")
        for group, spec in (("pe.adapters", recipe.api), ("pe.embeddings", recipe.embedding)):
            built, why = set_up(group, spec)
            assert built is not None, why
        return recipe

    before = read(text)
    for found in COMMENTED.finditer(text):
        assert read(text[: found.start()] + found[1] + text[found.end() :]) != before, text[found.start() :]

"""An export holds what was certified, and nothing else; its file names are safe whatever the labels are."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

import pe
from adapters.pools import PublicImages
from pe.engine.execution import Surroundings
from pe.engine.extend import extend_run
from pe.errors import RecipeError, RunError
from pe.store.certified import reissue
from pe.store.durable import folder_beside
from pe.store.export import examine
from pe.store.formats import file_names
from tests.durability.driver import forked
from tests.generators import Mean, Shades

LABELS = ("..", "labels.csv", "脑" * 60, "con")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pe.Run:
    tmp_path = tmp_path_factory.mktemp("finished")
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(LABELS * 10))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=LABELS)
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    return pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)


@pytest.fixture
def run(finished: pe.Run, tmp_path: Path) -> pe.Run:
    """A copy, which a test may change."""
    return pe.Run.open(shutil.copytree(finished.folder, tmp_path / "run"))


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_a_run_that_was_changed_is_not_certified_anew(run: pe.Run, tmp_path: Path) -> None:
    path = run.folder / "synthetic.npz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(RunError, match=r"'synthetic\.npz' was changed"):
        run.export(tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]
    (run.folder / "more.npz").write_bytes(b"more")
    reissue(run.folder)
    _, problems = examine(run.folder)
    assert problems == ["'synthetic.npz' was changed: its SHA-256 is not the certificate's."]


def test_a_run_that_lacks_a_file_is_not_exported(run: pe.Run, tmp_path: Path) -> None:
    (run.folder / "evolution.png").unlink()
    with pytest.raises(RunError, match=r"'evolution\.png' is covered but missing"):
        run.export(tmp_path / "out")


def test_stray_files_and_links_are_neither_exported_nor_certified(run: pe.Run, tmp_path: Path) -> None:
    (run.folder / "notes.txt").write_text("patient 7")
    (run.folder / "picture.png").symlink_to(run.confidential / "journal.sqlite")
    (run.folder / "folder").symlink_to(run.confidential)
    out = run.export(tmp_path / "out")
    covered = {entry["file"] for entry in run.guarantee["covered"]}
    assert names(out) == covered | {"certificate.json", "certificate.md"}
    assert examine(out)[1] == []


def test_files_that_are_added_at_the_same_time_are_all_covered(run: pe.Run) -> None:
    names = [f"page-{index}.html" for index in range(12)]
    for name in names:
        (run.folder / name).write_text(name)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: reissue(run.folder, [name]), names))
    assert examine(run.folder)[1] == []


@pytest.mark.parametrize("name", ["confidential/log.txt", "../private.npz", "folder/log.txt", ""])
def test_a_certificate_cannot_make_the_export_hold_what_is_not_shareable(
    run: pe.Run, tmp_path: Path, name: str
) -> None:
    (run.folder / "folder").symlink_to(run.confidential)
    guarantee = run.guarantee
    guarantee["covered"].append({"file": name, "sha256": "0"})
    (run.folder / "certificate.json").write_text(json.dumps(guarantee))
    with pytest.raises(RunError, match="not as it was certified"):
        run.export(tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir())


def test_of_a_public_pool_s_path_an_export_and_the_report_have_the_last_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("private", "pool"):
        images = rng.integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.array(["a", "b"] * 20))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    pool = pe.api("public_images", path=str(tmp_path / "pool.npz"), channels=1)
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    run = pe.evolve(data, pool, out=tmp_path / "run", progress=pe.Progress(), **settings)
    pe.write_report(run)
    out = run.export(tmp_path / "out")
    assert [name for name in names(out) if str(tmp_path).encode() in (out / name).read_bytes()] == []
    assert yaml.safe_load((out / "recipe.yaml").read_text())["api"]["path"] == "pool.npz"
    assert examine(out)[1] == []
    named = {"api.path": str(tmp_path / "pool.npz")}
    (out / "confidential").mkdir()  # as one who received it and works in it
    assert pe.extend(out, 2, changes=named, progress=pe.Progress()).is_file()
    assert pe.extend(run, 2, progress=pe.Progress()).is_file()  # at home it knows its pool


def test_an_export_keeps_no_time_stamp(run: pe.Run, tmp_path: Path) -> None:
    for path in run.folder.rglob("*"):
        os.utime(path, (1, 1))
    assert all(path.stat().st_mtime > 1 for path in run.export(tmp_path / "out").rglob("*"))


def test_labels_that_are_no_file_names_are_escaped(run: pe.Run, tmp_path: Path) -> None:
    out = run.export(tmp_path / "out", "folder") / "synthetic"
    assert {path.parent.parent for path in out.rglob("*.png")} == {out}
    assert len(list(out.rglob("*.png"))) == 8
    assert (out / "%2E%2E" / "000000.png").is_file()
    source = pe.ImageFolder(out, size=4, channels=1, classes=LABELS).open()
    np.testing.assert_array_equal(source.labels, run.synthetic.labels)


def test_an_export_bears_the_class_names_as_they_were_written_and_gives_them_back_as_a_pool(tmp_path: Path) -> None:
    labels = ("Food & Drink", "100% wool", "gros œuvre", "a/b", "C", "c")
    rows = np.repeat(np.arange(6), 4)
    images = np.broadcast_to((rows * 40).astype(np.uint8)[:, None, None, None], (24, 4, 4, 1))
    np.savez(tmp_path / "pool.npz", images=images, labels=np.array(labels)[rows])
    data = pe.ImageNpz(tmp_path / "pool.npz", size=4, channels=1, classes=labels)
    pool = pe.api("public_images", path=str(tmp_path / "pool.npz"), channels=1, by_label=True)
    settings = {"noise_multiplier": 1.0, "delta": 1e-5, "population": 12, "iterations": 0, "pool_overlaps": "declared"}
    out = pe.evolve(data, pool, out=tmp_path / "run", **settings).export(tmp_path / "out", "folder") / "synthetic"
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {"Food & Drink", "100% wool", "gros œuvre", "a%2Fb", "%43", "c"}
    again = PublicImages(path=str(out), channels=1, by_label=True)
    seeds = np.arange(30, dtype=np.uint64)
    places = again.draw_conditions(labels * 5, seeds)
    drawn = again.random_api(pe.RandomRequest(labels * 5, seeds, places)).samples.array
    assert drawn[:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160, 200] * 5
    (out / "labels.csv").write_bytes(b"file,label\n\xff")
    with pytest.raises(RecipeError, match=r"labels\.csv' is not a CSV file in UTF-8"):
        PublicImages(path=str(out), channels=1, by_label=True)


def test_different_labels_have_different_file_names_on_any_system() -> None:
    labels = ["a", "a.", ".a", "a ", "a/b", "a%2Fb", "a%252Fb", "nul", "NUL", "%6Eul", "con.x", "labels.csv", "..", "."]
    labels += [
        "x" * 200,
        "x" * 201,
        "x" * 202,
        "x" * 199 + "%",
        "脑" * 67,
        "脑" * 68,
        "Straße",
        "strasse",
        "a\x1b[0m",
        "a\n",
    ]
    found = file_names(labels)
    assert len({name.casefold() for name in found}) == len(labels)
    assert "labels.csv" not in found
    assert all(set(name).isdisjoint('/\\:*?"<>|\x1b\n') and len(name.encode()) < 220 for name in found)
    assert all(name[0] not in ". " and name[-1] not in ". " for name in found)
    assert file_names(["x" * 200, "Łódź", "50% off", "e.g. this"]) == ["x" * 200, "Łódź", "50% off", "e.g. this"]
    assert file_names(["a\u202egnp", "a\u2066b", "a\u200bb", "\ufeffa"]) == [
        "a%E2%80%AEgnp", "a%E2%81%A6b", "a%E2%80%8Bb", "%EF%BB%BFa",
    ]  # fmt: skip
    assert file_names(joined := ["می\u200cشود", "👩\u200d🔬"]) == joined


def begin(target: Path) -> None:
    with folder_beside(target) as folder:
        (folder / "half").touch()
        time.sleep(60)


def test_what_a_killed_export_left_goes_with_the_next_and_one_under_way_stays(run: pe.Run, tmp_path: Path) -> None:
    parts = []
    for number in (1, 2):
        parts.append(forked(begin, tmp_path / "out"))
        while len(list(tmp_path.glob("out.*.part/half"))) < number:
            time.sleep(0.01)
    for left in (1, 0):
        parts[left].kill()
        parts[left].join()
        shutil.rmtree(run.export(tmp_path / "out"))
        assert len(list(tmp_path.glob("out.*.part"))) == left


def test_a_parquet_file_tells_hugging_face_what_it_holds(run: pe.Run, tmp_path: Path) -> None:
    table = pq.read_table(run.export(tmp_path / "out", "parquet") / "synthetic.parquet")
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {"image": {"_type": "Image"}, "label": {"dtype": "string", "_type": "Value"}}
    assert table["label"].to_pylist() == [LABELS[label] for label in run.synthetic.labels]
    assert table["image"][0].as_py()["bytes"].startswith(b"\x89PNG")


@pytest.fixture
def extended(run: pe.Run) -> tuple[pe.Run, list[str], np.ndarray]:
    """A run with two extensions; the labels and images of all its synthetic data, in order."""
    parts = [run.folder / "synthetic.npz"]
    parts += [extend_run(run.folder, count, 0.7, Surroundings(api=Shades(), embedding=Mean())) for count in (11, 3)]
    archives = [np.load(path) for path in parts]
    labels = [str(name) for one in archives for name in one["label_names"][one["labels"]]]
    return run, labels, np.concatenate([one["images"] for one in archives])


def test_a_folder_holds_the_extensions_too(extended: tuple[pe.Run, list[str], np.ndarray], tmp_path: Path) -> None:
    run, labels, images = extended
    out = run.export(tmp_path / "out", "folder")
    lines = (out / "synthetic" / "labels.csv").read_text(encoding="utf-8").splitlines()[1:]
    folders = dict(zip(LABELS, file_names(LABELS), strict=True))
    assert lines == [f"{folders[label]}/{i:06d}.png,{label}" for i, label in enumerate(labels)]
    found = [np.asarray(Image.open(out / "synthetic" / line.split(",")[0])) for line in lines]
    np.testing.assert_array_equal(np.stack(found)[..., None], images)
    assert not list(out.glob("*.npz"))
    assert examine(out)[1] == []


def test_a_parquet_file_holds_the_extensions_too(
    extended: tuple[pe.Run, list[str], np.ndarray], tmp_path: Path
) -> None:
    run, labels, images = extended
    out = run.export(tmp_path / "out", "parquet")
    table = pq.read_table(out / "synthetic.parquet")
    assert table["label"].to_pylist() == labels
    found = [np.asarray(Image.open(io.BytesIO(one["bytes"]))) for one in table["image"].to_pylist()]
    np.testing.assert_array_equal(np.stack(found)[..., None], images)
    assert not list(out.glob("*.npz"))
    assert examine(out)[1] == []


def test_an_npz_export_holds_the_extensions_beside_the_data(
    extended: tuple[pe.Run, list[str], np.ndarray], tmp_path: Path
) -> None:
    run, labels, _ = extended
    out = run.export(tmp_path / "out")
    assert {path.name for path in out.glob("*.npz")} == {"synthetic.npz", "extension-001.npz", "extension-002.npz"}
    assert [len(one) for one in pe.Run.open(out).extensions()] == [11, 3]
    assert len(labels) == 8 + 11 + 3


@pytest.mark.parametrize(
    "column",
    [
        {"labels": np.full(8, 9)},
        {"labels": np.full(8, -1)},
        {"labels": np.zeros(8)},
        {"labels": np.zeros((8, 1), np.int32)},
        {"labels": np.zeros(7, np.int32)},
        {"label_names": np.arange(4)},
        {"images": np.zeros((8, 0, 4, 1), np.uint8)},
        {"images": np.zeros((8, 4, 4, 1))},
        {"soft_labels": np.zeros(8, np.float32)},
        {"soft_labels": np.zeros((7, 4), np.float32)},
        {"soft_labels": np.full((8, 4), "x")},
        {"captions": np.zeros(8)},
        {"captions": np.full(7, "x")},
    ],
)
@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_samples_that_do_not_fit_together_are_refused(
    run: pe.Run, tmp_path: Path, column: dict[str, np.ndarray], form: str
) -> None:
    with np.load(run.folder / "synthetic.npz") as archive:
        np.savez(run.folder / "synthetic.npz", **dict(archive) | column)
    reissue(run.folder, ["synthetic.npz"])
    with pytest.raises(RunError, match=r"synthetic\.npz is damaged"):
        run.export(tmp_path / "out", form)  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [np.full(11, 9, np.int32), np.full(11, -1, np.int32), np.zeros(10, np.int32)])
def test_an_extension_that_does_not_fit_together_is_refused(
    extended: tuple[pe.Run, list[str], np.ndarray], tmp_path: Path, labels: np.ndarray
) -> None:
    run, *_ = extended
    np.save(run.folder / "extensions/001/labels.npy", labels)
    reissue(run.folder, ["extensions/001/labels.npy"])
    with pytest.raises(RunError, match="damaged"):
        run.export(tmp_path / "out", "folder")


@pytest.mark.parametrize("change", ["compressed", "cut", "a header that lies"])
def test_samples_that_would_fill_the_memory_are_refused(run: pe.Run, tmp_path: Path, change: str) -> None:
    path = run.folder / "synthetic.npz"
    with np.load(path) as archive:
        columns = dict(archive)
    if change == "compressed":
        np.savez_compressed(path, **columns)
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        path.write_bytes(path.read_bytes().replace(b"'shape': (8, 4, 4, 1)", b"'shape': (999999999,)"))
    reissue(run.folder, ["synthetic.npz"])
    with pytest.raises(RunError, match=r"synthetic\.npz is (damaged|compressed)"):
        run.export(tmp_path / "out", "folder")
    assert not (tmp_path / "out").exists()


def test_an_extension_that_is_not_certified_is_not_exported(
    extended: tuple[pe.Run, list[str], np.ndarray], tmp_path: Path
) -> None:
    run, labels, _ = extended
    guarantee = run.guarantee
    guarantee["covered"] = [
        one for one in guarantee["covered"] if not one["file"].startswith(("extensions/002", "extension-002"))
    ]
    (run.folder / "certificate.json").write_text(json.dumps(guarantee))
    out = run.export(tmp_path / "out", "folder")
    assert len(list((out / "synthetic").rglob("*.png"))) == len(labels) - 3
    assert [len(one) for one in run.extensions()] == [11]
    assert examine(out)[1] == []


def test_a_place_that_cannot_hold_the_export_is_refused(run: pe.Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="lies inside"):
        run.export(run.folder / "out")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        run.export(tmp_path / "file" / "out")
    assert examine(run.folder)[1] == []


def test_an_export_that_is_interrupted_leaves_nothing(
    run: pe.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = names(tmp_path)
    monkeypatch.setattr("pe.store.export.publish_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.export(tmp_path / "out", "folder")
    assert names(tmp_path) == before

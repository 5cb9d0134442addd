"""An export holds what was certified, and nothing else; its file names are safe whatever the labels
are.
"""

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

import pe
from pe.engine.execution import RunContext
from pe.engine.extend import extend_run
from pe.errors import RunError
from pe.store.certified import reissue
from pe.store.durable import folder_beside
from pe.store.export import examine
from pe.store.formats import file_names
from tests.generators import Mean, Shades
from tests.store.conftest import LABELS, make


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def certify(run, change):
    """Have the certificate say that it covers other files."""
    guarantee = run.guarantee
    guarantee["covered"] = change(guarantee["covered"])
    (run.folder / "certificate.json").write_text(json.dumps(guarantee))


def test_a_run_that_was_changed_or_lacks_a_file_is_neither_exported_nor_certified_anew(
    run, tmp_path
):
    path = run.folder / "synthetic.npz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(RunError, match=r"'synthetic\.npz' was changed"):
        run.export(tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]
    (run.folder / "more.npz").write_bytes(b"more")
    reissue(run.folder, ["more.npz"])
    assert examine(run.folder)[1] == [
        "'synthetic.npz' was changed: its SHA-256 is not the certificate's."
    ]
    (run.folder / "evolution.png").unlink()
    with pytest.raises(RunError, match=r"'evolution\.png' is covered but missing"):
        run.export(tmp_path / "out")


def test_stray_files_and_links_are_neither_exported_nor_certified(run, tmp_path):
    (run.folder / "notes.txt").write_text("patient 7")
    (run.folder / "picture.png").symlink_to(run.confidential / "journal.sqlite")
    (run.folder / "folder").symlink_to(run.confidential)
    for path in run.folder.rglob("*"):
        os.utime(path, (1, 1))
    out = run.export(tmp_path / "out")
    covered = {entry["file"] for entry in run.guarantee["covered"]}
    assert names(out) == covered | {"certificate.json", "certificate.md"}
    assert examine(out)[1] == []
    assert all(path.stat().st_mtime > 1 for path in out.rglob("*"))  # nor is a time


def test_files_that_are_added_at_the_same_time_are_all_covered(run):
    names = [f"page-{index}.html" for index in range(12)]
    for name in names:
        (run.folder / name).write_text(name)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: reissue(run.folder, [name]), names))
    assert examine(run.folder)[1] == []


@pytest.mark.parametrize("name", ["confidential/log.txt", "../private.npz", "folder/log.txt", ""])
def test_a_certificate_cannot_make_the_export_hold_what_is_not_shareable(run, tmp_path, name):
    (tmp_path / "private.npz").touch()
    (run.folder / "folder").symlink_to(run.confidential)
    certify(run, lambda covered: [*covered, {"file": name, "sha256": "0"}])
    with pytest.raises(RunError, match="files no longer match its certificate"):
        run.export(tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir())


def test_of_a_public_pool_s_path_an_export_and_the_report_have_the_last_part(tmp_path):
    images = np.random.default_rng(1).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "pool.npz", images=images, labels=np.array(["a", "b"] * 20))
    pool = pe.api("public_images", path=str(tmp_path / "pool.npz"), channels=1)
    run = make(tmp_path, ("a", "b"), api=pool, embedding="pixels")
    pe.write_report(run)
    out = run.export(tmp_path / "out")
    assert [
        name for name in names(out) if str(tmp_path).encode() in (out / name).read_bytes()
    ] == []
    assert yaml.safe_load((out / "recipe.yaml").read_text())["api"]["path"] == "pool.npz"
    assert examine(out)[1] == []
    assert pe.extend(run, 2, progress=pe.Progress()).is_file()  # at home it knows its pool


ALIKE = [
    "a",
    "a.",
    ".a",
    "a ",
    "a/b",
    "a%2Fb",
    "a%252Fb",
    "nul",
    "NUL",
    "%6Eul",
    "con.x",
    "labels.csv",
    "..",
    ".",
]
LONG = [
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
AS_THEY_ARE = [
    "x" * 200,
    "Łódź",
    "50% off",
    "e.g. this",
    "Food & Drink",
    "gros œuvre",
    "می\u200cشود",
    "👩\u200d🔬",
]


def test_different_labels_have_different_file_names_on_any_system():
    found = file_names([*ALIKE, *LONG])
    assert len({name.casefold() for name in found}) == len(ALIKE) + len(LONG)
    assert "labels.csv" not in found
    assert all(
        set(name).isdisjoint('/\\:*?"<>|\x1b\n') and len(name.encode()) < 220 for name in found
    )
    assert all(name[0] not in ". " and name[-1] not in ". " for name in found)
    assert file_names(AS_THEY_ARE) == AS_THEY_ARE
    assert file_names(["a/b", "C", "c"]) == ["a%2Fb", "%43", "c"]
    unseen = ["a\u202egnp", "a\u2066b", "a\u200bb", "\ufeffa"]
    assert file_names(unseen) == ["a%E2%80%AEgnp", "a%E2%81%A6b", "a%E2%80%8Bb", "%EF%BB%BFa"]


def test_what_a_killed_export_left_goes_with_the_next_and_one_under_way_stays(run, tmp_path):
    left = tmp_path / "out.0123abcd.part"
    left.mkdir()
    with folder_beside(tmp_path / "out") as under_way:
        run.export(tmp_path / "out")
        assert under_way.is_dir()
        assert not left.exists()


def test_an_export_that_is_interrupted_or_finds_no_place_leaves_nothing(run, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / "file").touch()
    before = names(tmp_path)
    for place, said in (
        (run.folder / "out", "lies inside"),
        (tmp_path / "file" / "out", "cannot be written"),
    ):
        with pytest.raises(RunError, match=said):
            run.export(place)
    monkeypatch.setattr("pe.store.export.publish_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.export(tmp_path / "out", "folder")
    assert names(tmp_path) == before


@pytest.fixture
def extended(run):
    """A run with two extensions; the labels and images of all its synthetic data, in order."""
    parts = [run.folder / "synthetic.npz"]
    parts += [
        extend_run(run.folder, count, 0.7, RunContext(api=Shades(), embedding=Mean()))
        for count in (11, 3)
    ]
    archives = [np.load(path) for path in parts]
    labels = [str(name) for one in archives for name in one["label_names"][one["labels"]]]
    return run, labels, np.concatenate([one["images"] for one in archives])


def test_every_form_holds_the_extensions_too(extended, tmp_path):
    run, labels, images = extended
    out = run.export(tmp_path / "folder", "folder")
    lines = (out / "synthetic" / "labels.csv").read_text(encoding="utf-8").splitlines()[1:]
    folders = dict(zip(LABELS, file_names(LABELS), strict=True))
    assert lines == [f"{folders[label]}/{i:06d}.png,{label}" for i, label in enumerate(labels)]
    found = [np.asarray(Image.open(out / "synthetic" / line.split(",")[0])) for line in lines]
    np.testing.assert_array_equal(np.stack(found)[..., None], images)
    parquet = run.export(tmp_path / "parquet", "parquet")
    table = pq.read_table(parquet / "synthetic.parquet")
    assert table["label"].to_pylist() == labels
    found = [np.asarray(Image.open(io.BytesIO(one["bytes"]))) for one in table["image"].to_pylist()]
    np.testing.assert_array_equal(np.stack(found)[..., None], images)
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {"image": {"_type": "Image"}, "label": {"dtype": "string", "_type": "Value"}}
    for folder in (out, parquet):
        assert not list(folder.glob("*.npz"))
        assert examine(folder)[1] == []
    npz = run.export(tmp_path / "npz")
    assert {path.name for path in npz.glob("*.npz")} == {
        "synthetic.npz",
        "extension-001.npz",
        "extension-002.npz",
    }
    assert [len(one) for one in pe.Run.open(npz).extensions()] == [11, 3]


def test_an_extension_that_is_not_certified_is_not_exported(extended, tmp_path):
    run, labels, _ = extended
    second = ("extensions/002", "extension-002")
    certify(run, lambda covered: [one for one in covered if not one["file"].startswith(second)])
    out = run.export(tmp_path / "out", "folder")
    assert len(list((out / "synthetic").rglob("*.png"))) == len(labels) - 3
    assert [len(one) for one in run.extensions()] == [11]
    assert examine(out)[1] == []


@pytest.mark.parametrize("labels", [np.full(11, 9, np.int32), np.zeros(10, np.int32)])
def test_an_extension_that_does_not_fit_together_is_refused(extended, tmp_path, labels):
    run, *_ = extended
    np.save(run.folder / "extensions/001/labels.npy", labels)
    reissue(run.folder, ["extensions/001/labels.npy"])
    with pytest.raises(RunError, match="damaged"):
        run.export(tmp_path / "out", "folder")


MISFITS = {
    "labels": [
        np.full(8, 9),
        np.full(8, -1),
        np.zeros(8),
        np.zeros((8, 1), np.int32),
        np.zeros(7, np.int32),
    ],
    "label_names": [np.arange(4)],
    "images": [np.zeros((8, 0, 4, 1), np.uint8), np.zeros((8, 4, 4, 1))],
    "soft_labels": [np.zeros(8, np.float32), np.zeros((7, 4), np.float32), np.full((8, 4), "x")],
    "captions": [np.zeros(8), np.full(7, "x")],
}


@pytest.mark.parametrize(
    ("column", "values"), [(name, one) for name, each in MISFITS.items() for one in each]
)
def test_samples_that_do_not_fit_together_are_refused(run, tmp_path, column, values):
    with np.load(run.folder / "synthetic.npz") as archive:
        np.savez(run.folder / "synthetic.npz", **dict(archive) | {column: values})
    reissue(run.folder, ["synthetic.npz"])
    with pytest.raises(RunError, match=r"synthetic\.npz is damaged"):
        run.export(tmp_path / "out", "folder")


@pytest.mark.parametrize("change", ["compressed", "a header that lies"])
def test_samples_that_would_fill_the_memory_are_refused(run, tmp_path, change):
    path = run.folder / "synthetic.npz"
    if change == "compressed":
        with np.load(path) as archive:
            columns = dict(archive)
        np.savez_compressed(path, **columns)
    else:
        path.write_bytes(
            path.read_bytes().replace(b"'shape': (8, 4, 4, 1)", b"'shape': (999999999,)")
        )
    reissue(run.folder, ["synthetic.npz"])
    with pytest.raises(RunError, match=r"synthetic\.npz is (damaged|compressed)"):
        run.export(tmp_path / "out", "folder")
    assert not (tmp_path / "out").exists()

"""`pe privacy`, `pe export`, `pe purge`, `pe epsilon`, `pe calibrate`, `pe ledger` on real runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pe
from pe.errors import RunError
from pe.privacy.certificate import verify
from pe.store.durable import RunLock
from pe.store.run import purge
from tests.cli.test_commands import assert_one_sentence
from tests.cli.typed import pe as command
from tests.durability.driver import make_private
from tests.generators import Mean, Shades


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a/b", "c d"] * 20))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a/b", "c d"], declared_size=40)
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 2, "lookahead": 0}
    return pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)


def problems(folder: Path) -> list[str]:
    opened = pe.Run.open(folder)
    return verify(opened.guarantee, folder)


def test_a_finished_run_verifies(run: pe.Run) -> None:
    result = command("privacy", run.folder, cwd=run.folder.parent)
    assert result.returncode == 0, result.stdout
    assert "ε = 5 at δ = 1e-05" in result.stdout
    answer = json.loads(command("privacy", run.folder, "--json", cwd=run.folder.parent).stdout)
    assert answer["problems"] == []


def test_every_changed_missing_or_added_file_is_named(run: pe.Run) -> None:
    guarantee = run.guarantee
    names = [entry["file"] for entry in guarantee["covered"]]
    assert "synthetic.npz" in names
    for name in names:
        path = run.folder / name
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        assert problems(run.folder) == [f"'{name}' was changed: its SHA-256 is not the certificate's."]
        path.unlink()
        assert verify(guarantee, run.folder) == [f"'{name}' is covered but missing."]
        path.write_bytes(content)
    (run.folder / "extra.txt").write_text("x")
    assert problems(run.folder) == ["'extra.txt' is there but not covered."]
    assert command("privacy", run.folder, cwd=run.folder.parent).returncode == 1


def test_a_certificate_that_states_less_is_found_out(run: pe.Run) -> None:
    path = run.folder / "certificate.json"
    path.write_text(json.dumps(run.guarantee | {"epsilon": 1.0}))
    assert any("by its releases, not 1" in problem for problem in problems(run.folder))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"epsilon": Infinity}',
        '{"epsilon": 1e400}',
        '{"n": ' + "9" * 400 + "}",
        "[" * 200_000,
        '{"n": 1, "n": 1}',
    ],
)
def test_a_certificate_that_is_no_json_of_finite_numbers_is_one_sentence(run: pe.Run, text: str) -> None:
    (run.folder / "certificate.json").write_text(text)
    result = command("privacy", run.folder, cwd=run.folder.parent)
    assert result.returncode == 1
    assert "certificate.json is damaged: restore it from a copy." in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize("handed", [False, True])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda listed: listed[:-1], r"'releases/histogram-\d.npy' is covered, and no release that was made is listed"),
        (lambda listed: [*listed[:-1], listed[-1] | {"state": "planned"}], "is covered, and no release that was made"),
        (lambda listed: [*listed, listed[-1] | {"name": "x/9"}], "listed as made, and 'releases/x-9.npy' is not cove"),
    ],
)
def test_the_releases_that_are_listed_are_those_that_are_there(
    run: pe.Run, tmp_path: Path, handed: bool, change: Callable[[list[Any]], list[Any]], sentence: str
) -> None:
    folder = run.export(tmp_path / "out") if handed else run.folder
    certificate = json.loads((folder / "certificate.json").read_text())
    assert problems(folder) == []
    (folder / "certificate.json").write_text(json.dumps(certificate | {"releases": change(certificate["releases"])}))
    assert any(re.search(sentence, problem) for problem in problems(folder))


@pytest.mark.parametrize("form", ["folder", "npz", "parquet"])
def test_an_export_is_whole_and_verifies(run: pe.Run, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    result = command("export", run.folder, "--to", out, "--format", form, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert problems(out) == []
    assert not (out / "confidential").exists()
    assert (out / "synthetic.npz").exists() == (form == "npz")
    for path in out.rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes()
    assert_one_sentence(command("export", run.folder, "--to", out, cwd=tmp_path), "out exists already")


def test_of_many_files_the_page_in_the_terminal_tells_the_number(run: pe.Run, tmp_path: Path) -> None:
    out = run.export(tmp_path / "out", "folder")
    shown = command("privacy", out, cwd=tmp_path).stdout
    files = len([path for path in out.rglob("*") if path.is_file() and not path.name.startswith("certificate")])
    assert f"{files} files; certificate.md names each with its hash." in shown
    assert "000000.png" not in shown
    assert "000000.png" in (out / "certificate.md").read_text()


def test_an_exported_folder_of_images_is_what_the_run_made(run: pe.Run, tmp_path: Path) -> None:
    out = run.export(tmp_path / "out", "folder")
    source = pe.ImageFolder(out / "synthetic", size=4, channels=1, classes=["a/b", "c d"]).open()
    images, valid = next(source.blocks(8))
    assert valid.all()
    np.testing.assert_array_equal(images.pixels, run.synthetic.samples.array)
    np.testing.assert_array_equal(source.labels, run.synthetic.labels)
    with Image.open(out / "synthetic" / "a%2Fb" / "000000.png") as picture:
        assert picture.size == (4, 4)


def test_an_exported_parquet_file_is_what_the_run_made(run: pe.Run, tmp_path: Path) -> None:
    out = run.export(tmp_path / "out", "parquet")
    source = pe.ImageParquet(
        out / "synthetic.parquet", size=4, channels=1, classes=["a/b", "c d"], label_column="label"
    ).open()
    images, _ = next(source.blocks(8))
    np.testing.assert_array_equal(images.pixels, run.synthetic.samples.array)


def test_after_a_purge_all_that_is_shareable_works(run: pe.Run, tmp_path: Path) -> None:
    kept = command("purge", run.folder, cwd=tmp_path, typed="n\n")
    assert (kept.returncode, kept.stdout.splitlines()[-1].endswith("Nothing was deleted.")) == (1, True)
    unanswered = command("purge", run.folder, cwd=tmp_path)
    assert unanswered.returncode == 2
    assert "give --yes" in unanswered.stderr
    assert run.confidential.is_dir()
    assert command("purge", run.folder, "--yes", cwd=tmp_path).returncode == 0
    assert not run.confidential.exists()
    assert problems(run.folder) == []
    assert "purged.txt" in {entry["file"] for entry in run.guarantee["covered"]}
    run.export(tmp_path / "out", "folder")
    with pytest.raises(RunError, match="purged before"):
        purge(run)


def test_a_run_that_is_being_written_is_not_purged(run: pe.Run) -> None:
    with RunLock(run.confidential / "lock"), pytest.raises(RunError, match=r"is being written by process \d+"):
        purge(run)
    assert run.confidential.is_dir()


def test_epsilon_and_calibrate_are_each_other_s_inverse(tmp_path: Path) -> None:
    flags = ["--iterations", 7, "--delta", 3e-6]
    found = json.loads(command("epsilon", "--noise-multiplier", 1.381, *flags, "--json", cwd=tmp_path).stdout)
    assert found == {"epsilon": pytest.approx(10.0, abs=5e-3)}
    back = json.loads(command("calibrate", "--epsilon", found["epsilon"], *flags, "--json", cwd=tmp_path).stdout)
    assert back == {"noise_multiplier": pytest.approx(1.381, rel=1e-6)}
    assert back["noise_multiplier"] >= 1.381 * (1 - 1e-9)
    assert "ε = " in command("epsilon", "--noise-multiplier", 3, *flags, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["epsilon", "--noise-multiplier", -1, "--iterations", 3, "--delta", 1e-5], "noise"),
        (["epsilon", "--noise-multiplier", 1, "--iterations", 3, "--delta", 0], "delta"),
        (["epsilon", "--noise-multiplier", 1, "--iterations", 0, "--delta", 1e-5], "There are 0 iterations, and each"),
        (["calibrate", "--epsilon", 0, "--iterations", 3, "--delta", 1e-5], "epsilon"),
        (["calibrate", "--epsilon", "nan", "--iterations", 3, "--delta", 1e-5], "epsilon"),
        (["privacy", "nowhere"], "nowhere is not a run: there is nothing of that name"),
        (["status", "nowhere"], "nowhere is not a run: there is nothing of that name"),
        (["compare", "nowhere", "nowhere"], "nowhere is not a run: there is nothing of that name"),
        (["status", "."], "is not a run: it has no recipe.yaml"),
        (["export", "nowhere", "--to", "x"], "nowhere is not a run"),
    ],
)
def test_nonsense_is_one_sentence(tmp_path: Path, arguments: list[object], sentence: str) -> None:
    assert_one_sentence(command(*arguments, cwd=tmp_path), sentence)


def test_budget_adds_up_the_runs_over_the_data(run: pe.Run, tmp_path: Path) -> None:
    answer = json.loads(command("ledger", "private.npz", "--json", cwd=tmp_path).stdout)
    file = str(tmp_path / "private.npz.ledger.json")
    assert answer == {"epsilon": pytest.approx(5, rel=1e-3), "delta": 1e-5, "runs": 1, "cap": None, "file": file}
    flags = ["--cap-epsilon", 6, "--cap-delta", 1e-5]
    assert "Cap: ε = 6 at δ = 1e-05" in command("ledger", "private.npz", *flags, cwd=tmp_path).stdout
    flags = ["--cap-epsilon", 4, "--cap-delta", 1e-6]
    reached = command("ledger", "private.npz", *flags, cwd=tmp_path)
    assert "1 run: ε = 5." in reached.stdout
    assert "at δ = 1e-06." in reached.stdout
    assert "warning: the runs there are have reached the cap" in reached.stderr


def test_where_no_ledger_is_that_is_said_and_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for flags in ([], ["--no-cap"]):
        told = command("ledger", "scans", *flags, cwd=tmp_path).stdout
        assert told.startswith(f"There is no ledger file {tmp_path / 'scans.ledger.json'}, so no run is counted")
        assert "0 runs" not in told
    answer = command("ledger", "scans", "--json", cwd=tmp_path)
    assert json.loads(answer.stdout) == {"epsilon": 0, "delta": None, "runs": 0, "cap": None, "file": None}
    assert "There is no ledger file" in answer.stderr
    assert not (tmp_path / "scans.ledger.json").exists()
    assert "nowhere does not exist" in command("ledger", "nowhere", cwd=tmp_path).stderr


def test_a_ledger_file_elsewhere_is_read_and_capped_where_it_lies(tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    there = tmp_path / "office" / "ledger.json"
    there.parent.mkdir()
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"], ledger_file=there)
    settings = {"epsilon": 2, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    assert "ledger.json does not exist" in command("ledger", "--file", there, cwd=tmp_path).stderr
    capped = command("ledger", "--file", there, "--cap-epsilon", 2.5, "--cap-delta", 1e-5, cwd=tmp_path)
    assert "0 runs: ε = 0" in capped.stdout
    pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "first", **settings)
    told = json.loads(command("ledger", "--file", there, "--json", cwd=tmp_path).stdout)
    assert (told["runs"], told["cap"]) == (1, {"epsilon": 2.5, "delta": 1e-5})
    with pytest.raises(pe.PEError, match=r"above the cap of ε = 2\.5"):
        pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "second", **settings)
    both = command("ledger", "private.npz", "--file", there, cwd=tmp_path)
    assert both.returncode == 2
    assert "Name DATA, the private records, or --file, their ledger file" in both.stderr


def test_the_total_is_stated_at_the_runs_own_delta(run: pe.Run, tmp_path: Path) -> None:
    def told(*flags: object) -> dict[str, object]:
        return json.loads(command("ledger", "private.npz", *flags, "--json", cwd=tmp_path).stdout)

    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a/b", "c d"])
    settings = {"noise_multiplier": 1.0, "delta": 1e-9, "population": 8, "iterations": 1, "lookahead": 0}
    pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "other", **settings)
    assert (told()["delta"], told()["runs"]) == (1e-9, 2)
    assert told("--delta", 1e-5)["epsilon"] < told()["epsilon"]
    file = tmp_path / "private.npz.ledger.json"
    older = json.loads(file.read_text())
    older.pop("deltas")
    file.write_text(json.dumps(older))
    asked = command("ledger", "private.npz", cwd=tmp_path)
    assert asked.returncode == 2
    assert "does not say at which δ its runs were made: give --delta" in asked.stderr

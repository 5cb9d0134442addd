"""`pe evaluate` as a user types it: real processes, real files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from pe.cli.evaluate import farther_than_unevolved
from tests.cli.typed import pe


def scans(folder: Path, seed: int, labels: tuple[str, ...] = ("benign", "malignant"), side: int = 16) -> None:
    rng = np.random.default_rng(seed)
    for label in labels:
        (folder / label).mkdir(parents=True)
        for i in range(12):
            low = 150 * (label == "malignant")
            pixels = rng.integers(low, low + 100, (side, side, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in `run`, and test sets: good ones and bad ones."""
    folder = tmp_path_factory.mktemp("evaluated")
    scans(folder / "scans", 0)
    scans(folder / "test", 1)
    scans(folder / "classes", 2, ("benign", "unknown"))
    scans(folder / "size", 3, side=20)
    for name, count in (("one.npz", 1), ("unlabelled.npz", 8)):
        images = np.zeros((count, 16, 16, 3), np.uint8)
        labels = {} if count == 8 else {"labels": np.array(["benign"])}
        np.savez(folder / name, images=images, **labels)
    (folder / "public").mkdir()
    for shade in range(0, 250, 5):
        Image.new("RGB", (16, 16), (shade, shade, shade)).save(folder / "public" / f"{shade:03}.png")
    recipe = {
        "private": {"kind": "folder", "path": "scans", "size": 16, "classes": ["benign", "malignant"]},
        "api": {"kind": "public_images", "path": "public", "size": 16},
        "privacy": {"epsilon": 20, "delta": 1e-3},
        "evolution": {"iterations": 1, "population": 20, "lookahead": 0},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    made = pe("run", "recipe.yaml", "--out", "run", "--quiet", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder


def test_a_table_says_that_it_is_internal(place: Path) -> None:
    result = pe("evaluate", "run", "--test", "test", "--seeds", 2, cwd=place)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("INTERNAL. run: 20 images, against 24 of test\n")
    assert "Not covered by the certificate. Written to run/confidential/metrics.json" in result.stdout
    for row in ("synthetic", "unevolved", "random_selection", "real"):
        assert len(re.findall(rf"^  {row} ", result.stdout, re.M)) == 2  # fidelity, accuracy
    assert "random selection: VARIATION_API 1: 20 done\n" in result.stderr
    assert "Fréchet" in result.stdout
    assert "FID" not in result.stdout  # that is the name under Inception alone
    assert re.search(r"AUC 0\.\d{3} \(95 % interval", result.stdout)


@pytest.mark.parametrize(
    ("unevolved", "told"),
    [
        (2.0, []),
        (
            0.9,
            ["  Under net the run's data are farther (Fréchet) than un-evolved ones: the verdict is on labels alone."],
        ),
        (None, []),
    ],
)
def test_data_that_are_farther_than_unevolved_ones_are_told(unevolved: float | None, told: list[str]) -> None:
    controls = {} if unevolved is None else {"unevolved": {"frechet": unevolved}}
    nearer = {"frechet": 1.0, "controls": {"unevolved": {"frechet": 1.0}}}
    assert farther_than_unevolved({"pixels": nearer, "net": {"frechet": 1.0, "controls": controls}}) == told


def test_json_is_the_file(place: Path) -> None:
    result = pe("evaluate", "run", "--test", "test", "--seeds", 1, "--metrics", "fidelity", "--json", cwd=place)
    answer = json.loads(result.stdout)
    assert answer == json.loads((place / "run/confidential/metrics.json").read_text())
    assert "utility" not in answer


def test_embeddings_take_settings(place: Path) -> None:
    options = ("--embedding", "pixels:size=8,colour=false,blur=0", "--embedding", "pixels", "--metrics", "fidelity")
    result = pe("evaluate", "run", "--test", "test", *options, "--json", cwd=place)
    fidelity = json.loads(result.stdout)["fidelity"]
    assert [found["dimensions"] for found in fidelity.values()] == [64, 2352]
    assert list(fidelity) == ["pixels (size=8, colour=False, blur=0)", "pixels"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--test", "classes"), "the label 'unknown', which the public class list lacks|'unknown'"),
        (("--test", "size"), "is 20.20|20.*16|shape"),
        (("--test", "unlabelled.npz"), "its records have no labels"),
        (("--test", "one.npz"), "fewer than two images"),
        (("--test", "nowhere"), "nowhere does not exist"),
        (("--test", "test", "--metrics", "fidelty"), "did you mean 'fidelity'"),
        (("--test", "test", "--classifiers", "resnet"), "Unknown classifier 'resnet'"),
        (("--test", "test", "--embedding", "pixel"), "Unknown embedding 'pixel'"),
        (("--test", "test", "--embedding", "pixels:size"), "is not of the form NAME"),
        (("--test", "test", "--embedding", "pixels:sise=8"), "sise"),
    ],
)
def test_bad_input_is_one_sentence(place: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = pe(
        "evaluate",
        "run",
        *arguments,
        "--metrics" if len(arguments) == 2 else "--seeds",
        *(["fidelity"] if len(arguments) == 2 else ["1"]),
        cwd=place,
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("pe: ")
    assert re.search(sentence, last), last
    assert result.stdout == ""


def test_a_folder_that_is_no_run_is_refused(place: Path) -> None:
    result = pe("evaluate", "test", "--test", "test", cwd=place)
    assert (result.returncode, result.stdout) == (2, "")
    assert "test is not a run" in result.stderr


def test_after_a_purge_evaluation_and_status_say_what_is_there(place: Path) -> None:
    assert pe("run", "recipe.yaml", "--out", "purged", "--quiet", cwd=place).returncode == 0
    assert pe("purge", "purged", "--yes", cwd=place).returncode == 0
    flags = ["--test", "test", "--metrics", "fidelity", "--no-random-selection"]
    again = "purged was purged before, and has a confidential/ again: `pe purge purged` deletes it."
    assert again in pe("evaluate", "purged", *flags, cwd=place).stderr
    page = pe("status", "purged", cwd=place).stdout
    assert page.startswith("purged: finished; its journal is gone (purged, or not copied)")
    assert again in pe("extend", "purged", "-n", 4, cwd=place).stderr
    assert pe("privacy", "purged", cwd=place).returncode == 0
    assert pe("purge", "purged", "--yes", cwd=place).returncode == 0
    assert not (place / "purged" / "confidential").exists()

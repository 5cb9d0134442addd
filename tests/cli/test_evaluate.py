"""`pe evaluate` as a user types it."""

import json
import re
import shutil

import pytest

from pe.cli.evaluate import farther_than_unevolved
from tests.cli.conftest import make_scans
from tests.cli.typed import assert_one_sentence, pe


@pytest.fixture(scope="module")
def place(finished, tmp_path_factory):
    """A copy of the finished run, and a test set."""
    folder = tmp_path_factory.mktemp("evaluated")
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    make_scans(folder / "test", seed=1)
    return folder


def test_the_page_says_that_it_is_internal_and_json_is_the_file(place):
    options = ("--test", "test", "--seeds", 1, "--classifiers", "linear_probe", "--embedding", "pixels:size=8,blur=0")
    result = pe("evaluate", "out", *options, "--embedding", "pixels", cwd=place)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("INTERNAL. out: 8 images, against 24 of test\n")
    assert "Not covered by the certificate. Written to out/confidential/metrics.json" in result.stdout
    for row in ("synthetic", "unevolved", "random_selection", "real"):
        assert len(re.findall(rf"^  {row} ", result.stdout, re.M)) == 3  # two of fidelity, one of accuracy
    assert "random selection: VARIATION_API" in result.stderr
    assert "Fréchet" in result.stdout
    assert "FID" not in result.stdout  # that is the name under Inception alone
    assert re.search(r"AUC [01]\.\d{3} \(95 % interval", result.stdout)
    stored = json.loads((place / "out/confidential/metrics.json").read_text())
    assert [found["dimensions"] for found in stored["fidelity"].values()] == [192, 2352]
    options = ("--test", "test", "--metrics", "fidelity", "--no-random-selection", "--no-one-vote", "--json")
    answer = json.loads(pe("evaluate", "out", *options, cwd=place).stdout)
    assert answer == json.loads((place / "out/confidential/metrics.json").read_text())
    assert "utility" not in answer


def test_data_that_are_farther_than_unevolved_ones_are_told():
    told = "  Under net the run's data are farther (Fréchet) than un-evolved ones: the verdict is on labels alone."
    for controls, expected in (
        ({}, []), ({"unevolved": {"frechet": 2.0}}, []), ({"unevolved": {"frechet": 0.9}}, [told])
    ):  # fmt: skip
        nearer = {"frechet": 1.0, "controls": {"unevolved": {"frechet": 1.0}}}
        assert farther_than_unevolved({"pixels": nearer, "net": {"frechet": 1.0, "controls": controls}}) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--embedding", "pixels:size"), "is not of the form NAME"),
        (("--embedding", "pixels:size=[8"), "--embedding pixels:size=.8: "),
        (("--metrics", "fidelty"), "did you mean 'fidelity'"),
    ],
)
def test_bad_input_is_one_sentence(place, options, sentence):
    assert_one_sentence(pe("evaluate", "out", "--test", "test", *options, cwd=place), sentence)


def test_a_purged_run_that_has_a_confidential_side_again_is_told(place):
    assert pe("purge", "out", "--yes", cwd=place).returncode == 0
    again = "out was purged before, and has a confidential/ again: `pe purge out` deletes it."
    assert again in pe("extend", "out", "-n", 4, cwd=place).stderr
    assert pe("purge", "out", "--yes", cwd=place).returncode == 0
    assert not (place / "out" / "confidential").exists()
    assert pe("privacy", "out", cwd=place).returncode == 0

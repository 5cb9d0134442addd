"""`pe evaluate` and `pe audit` as a user types them."""

import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from pe.cli.evaluate import audit, farther_than_unevolved
from pe.privacy.noise import SystemNoise, UnsafeSeededNoise
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


# pe audit


def test_it_prints_what_is_claimed_what_is_measured_and_the_verdict():
    done = CliRunner().invoke(audit, ["--runs", "300", "--epsilon", "2"])
    assert done.exit_code == 0
    for part in ("ε = 2 ", "ε ≥ ", "confidence of 99.9 %", "the second, which assumes nothing, would need about"):
        assert part in done.stdout
    assert done.stdout.endswith("\nno violation found\n")
    assert done.stderr == "auditing: 600 done\n"


def test_json_holds_the_options_and_the_bounds():
    options = ["--noise-multiplier", "2", "--iterations", "2", "--relation", "replace_one", "--neighbors", "2"]
    options += ["--unit", "user", "--delta", "1e-6", "--runs", "200", "--confidence", "0.95", "--json"]
    done = CliRunner().invoke(audit, options)
    result = json.loads(done.stdout)
    assert (done.exit_code, result["violation"], result["confidence"]) == (0, False, 0.95)
    claimed = result["claimed"]
    assert (claimed["relation"], claimed["unit"], claimed["mu"]) == ("replace_one", "user", pytest.approx(0.5**0.5))
    assert 0 <= result["at_least"]["mu"] < claimed["mu"]


def test_a_violation_is_exit_status_1(monkeypatch):
    class Small(UnsafeSeededNoise):
        def discrete_gaussian(self, shape, scale):
            return super().discrete_gaussian(shape, scale / 5)

    monkeypatch.setattr("pe.evaluation.audit.SystemNoise", lambda: Small(0))
    done = CliRunner().invoke(audit, ["--runs", "1000", "--epsilon", "4"])
    assert done.exit_code == 1
    assert "\nVIOLATION: the noise is too small: μ is at least " in done.stdout


class Coarse(SystemNoise):
    """Noise rounded as float32 rounds it: in the bulk fine, in the tail a lattice."""

    def discrete_gaussian(self, shape, scale):
        return super().discrete_gaussian(shape, scale).astype(np.float32).astype(np.int64)


class Wide(SystemNoise):
    def discrete_gaussian(self, shape, scale):
        return super().discrete_gaussian(shape, scale * 1.01)


@pytest.mark.parametrize("noise", [SystemNoise, Coarse, Wide])
def test_noise_that_is_not_exact_is_exit_status_1(monkeypatch, noise):
    monkeypatch.setattr("pe.privacy.noise.SystemNoise", noise)
    done = CliRunner().invoke(audit, ["--noise", *(["--json"] if noise is Wide else [])])
    assert done.exit_code == (noise is not SystemNoise), done.output
    verdict = {
        SystemNoise: "\nNothing speaks against exact noise.\n",
        Coarse: " times.\n",
        Wide: '"violation": true}\n',
    }
    assert done.output.endswith(verdict[noise])
    assert "low bits of the tail" in done.output

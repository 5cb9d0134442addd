"""`pe evaluate` and `pe doctor --attack` as a user types them."""

import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from pe.cli.doctor import doctor
from pe.privacy.noise import SystemNoise
from tests.cli.conftest import make_scans
from tests.cli.typed import pe
from tests.seeded_noise import UnsafeSeededNoise


@pytest.fixture(scope="module")
def place(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    make_scans(folder / "test", seed=1)
    return folder


def test_the_page_says_that_it_is_internal_and_json_is_the_file(place):
    options = ("--test", "test", "--seeds", 1, "--embedding", "pixels:size=8,blur=0")
    result = pe("evaluate", "out", *options, "--embedding", "pixels:size=4,blur=0", cwd=place)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("INTERNAL. out: 8 images, against 24 of test\n")
    assert (
        "Not covered by the certificate. Written to out/confidential/metrics.json" in result.stdout
    )
    for row in ("synthetic", "un-evolved", "real"):
        assert (
            len(re.findall(rf"^{row}  ", result.stdout, re.M)) == 3
        )  # two of fidelity, one of training
    assert "Fréchet" in result.stdout
    stored = json.loads((place / "out/confidential/metrics.json").read_text())
    said = " ".join(result.stdout.split())
    for purpose, sentences in stored["judgement"]["lines"]:
        assert f"{purpose} {sentences}" in said
    assert f"next {stored['judgement']['next']}" in said
    assert stored["memorisation"]["nearer"]["sentence"] in said
    assert [found["dimensions"] for found in stored["fidelity"].values()] == [192, 48]
    options = ("--test", "test", "--metrics", "fidelity", "--no-one-vote", "--json")
    answer = json.loads(pe("evaluate", "out", *options, cwd=place).stdout)
    assert answer == json.loads((place / "out/confidential/metrics.json").read_text())
    assert not {"judgement", "memorisation"} & answer.keys()


def test_a_violation_is_exit_status_1(monkeypatch):
    class Small(UnsafeSeededNoise):
        def discrete_gaussian(self, shape, scale):
            return super().discrete_gaussian(shape, scale / 5)

    monkeypatch.setattr("pe.evaluation.audit.SystemNoise", lambda: Small(0))
    done = CliRunner().invoke(doctor, ["--attack", "--runs", "1000", "--epsilon", "4"])
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
    done = CliRunner().invoke(
        doctor, ["--attack", "--noise", *(["--json"] if noise is Wide else [])]
    )
    assert done.exit_code == (noise is not SystemNoise), done.output
    said = {
        SystemNoise: "Nothing speaks against",
        Coarse: "This is not exact noise",
        Wide: '"violation": true',
    }
    assert said[noise] in done.stdout

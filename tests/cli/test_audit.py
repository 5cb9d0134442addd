"""`pe audit` as a user types it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import pe.evaluation.audit
import pe.privacy.noise
from pe.cli.evaluate import audit
from pe.privacy.noise import SystemNoise, UnsafeSeededNoise


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
            return super().discrete_gaussian(shape, scale / 3)

    monkeypatch.setattr(pe.evaluation.audit, "SystemNoise", lambda: Small(0))
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
    monkeypatch.setattr(pe.privacy.noise, "SystemNoise", noise)
    done = CliRunner().invoke(audit, ["--noise", *(["--json"] if noise is Wide else [])])
    assert done.exit_code == (noise is not SystemNoise), done.output
    verdict = {
        SystemNoise: "\nNothing speaks against exact noise.\n",
        Coarse: " times.\n",
        Wide: '"violation": true}\n',
    }
    assert done.output.endswith(verdict[noise])
    assert "low bits of the tail" in done.output

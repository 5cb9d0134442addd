"""`pe audit` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import pe.evaluation.audit
import pe.privacy.noise
from pe.cli.evaluate import audit
from pe.cli.main import main
from pe.privacy.noise import UnsafeSeededNoise

PE = str(Path(sys.executable).with_name("pe"))


def test_it_prints_what_is_claimed_what_is_measured_and_the_verdict() -> None:
    done = subprocess.run([PE, "audit", "--runs", "300", "--epsilon", "2"], capture_output=True, text=True, check=True)
    assert "ε = 2 " in done.stdout
    assert "ε ≥ " in done.stdout
    assert "confidence of 99.9 %" in done.stdout
    assert "the second, which assumes nothing, would need about" in done.stdout
    assert done.stdout.endswith("\nno violation found\n")
    assert done.stderr == "auditing: 600 done\n"


def test_json_holds_the_options_and_the_bounds() -> None:
    options = ["--noise-multiplier", "2", "--iterations", "2", "--relation", "replace_one", "--neighbors", "2"]
    options += ["--unit", "user", "--delta", "1e-6", "--runs", "200", "--confidence", "0.95", "--json"]
    done = CliRunner().invoke(audit, options)
    result = json.loads(done.stdout)
    assert done.exit_code == 0
    assert result["violation"] is False
    assert result["claimed"]["mu"] == pytest.approx(np.sqrt(2) / 2)
    assert result["claimed"]["relation"] == "replace_one"
    assert result["claimed"]["unit"] == "user"
    assert 0 <= result["at_least"]["mu"] < result["claimed"]["mu"]
    assert result["confidence"] == 0.95


def test_a_violation_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(UnsafeSeededNoise):
        def discrete_gaussian(self, shape: int | tuple[int, ...], scale: float) -> np.ndarray:
            return super().discrete_gaussian(shape, scale / 3)

    monkeypatch.setattr(pe.evaluation.audit, "SystemNoise", lambda: Small(0))
    done = CliRunner().invoke(audit, ["--runs", "1000", "--epsilon", "4"])
    assert done.exit_code == 1
    assert "\nVIOLATION: the noise is too small: μ is at least " in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--epsilon", "1", "--noise-multiplier", "1"], "not both"),
        (["--runs", "3"], "100 runs a world or more, not 3"),
        (["--delta", "0"], "delta lies strictly between 0 and 1"),
        (["--noise-multiplier", "0"], "above 0"),
        (["--noise-multiplier", "nan"], "above 0"),
        (["--epsilon", "-1"], "above 0"),
    ],
)
def test_a_mistake_ends_in_one_sentence(
    options: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pe", "audit", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err


def test_exact_noise_passes_the_test_of_its_bits() -> None:
    done = CliRunner().invoke(audit, ["--noise"])
    assert done.exit_code == 0, done.output
    assert "low bits of the tail" in done.output
    assert done.output.endswith("\nNothing speaks against exact noise.\n")


class Coarse(pe.privacy.noise.SystemNoise):
    """Noise rounded as float32 rounds it: in the bulk fine, in the tail a lattice."""

    def discrete_gaussian(self, shape: int | tuple[int, ...], scale: float) -> np.ndarray:
        return super().discrete_gaussian(shape, scale).astype(np.float32).astype(np.int64)


class Wide(pe.privacy.noise.SystemNoise):
    def discrete_gaussian(self, shape: int | tuple[int, ...], scale: float) -> np.ndarray:
        return super().discrete_gaussian(shape, scale * 1.01)


@pytest.mark.parametrize("broken", [Coarse, Wide])
def test_noise_that_is_not_exact_is_exit_status_1(monkeypatch: pytest.MonkeyPatch, broken: type) -> None:
    monkeypatch.setattr(pe.privacy.noise, "SystemNoise", broken)
    done = CliRunner().invoke(audit, ["--noise", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.output)["violation"] is True

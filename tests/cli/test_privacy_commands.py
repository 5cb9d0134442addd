"""`pe privacy`, `pe epsilon` and `pe calibrate` where the input is damaged, extreme or nonsense."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import pe
from pe.errors import RunError
from pe.planning.layout import epsilon_for, noise_multiplier_for
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation
from pe.privacy.words import round_up
from pe.store.export import examine
from tests.cli.test_commands import assert_one_sentence
from tests.cli.typed import pe as command
from tests.generators import Mean, Shades


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images)
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=[])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    return pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)


def assert_found(result: subprocess.CompletedProcess[str], problem: str) -> None:
    assert result.returncode == 1, result.stderr
    assert result.stderr == ""
    assert any(problem in line for line in result.stdout.splitlines() if line.startswith("✗ ")), result.stdout


def test_a_page_that_says_something_else_is_found_out_and_not_printed(run: pe.Run) -> None:
    page = run.folder / "certificate.md"
    page.write_text(page.read_text().replace("ε = 5", "ε = 0.1"))
    result = command("privacy", run.folder, cwd=run.folder)
    assert_found(result, "'certificate.md' is missing, or does not say what certificate.json says")
    assert "ε = 0.1" not in result.stdout
    page.unlink()
    assert_found(command("privacy", run.folder, cwd=run.folder), "'certificate.md' is missing")


def test_a_damaged_certificate_is_a_problem_and_no_crash(run: pe.Run) -> None:
    for content in ("[]", "{}", '{"covered": 3}', '{"covered": []}', "\x00", "{"):
        (run.folder / "certificate.json").write_text(content)
        assert any("is damaged" in problem for problem in examine(run.folder)[1]), content
        with pytest.raises(RunError, match="damaged"):
            run.export(run.folder.parent / "out")
    assert_found(command("privacy", run.folder, cwd=run.folder), "is damaged")
    answer = json.loads(command("privacy", run.folder, "--json", cwd=run.folder).stdout)
    assert len(answer["problems"]) == 1


def test_a_missing_recipe_is_named_like_any_other_file(run: pe.Run) -> None:
    (run.folder / "recipe.yaml").unlink()
    assert_found(command("privacy", run.folder, cwd=run.folder), "'recipe.yaml' is covered but missing")


def test_a_run_that_is_not_finished_has_nothing_to_check(run: pe.Run) -> None:
    (run.folder / "certificate.json").unlink()
    assert_one_sentence(command("privacy", run.folder, cwd=run.folder), "not finished")


@pytest.mark.parametrize("relation", list(Relation))
def test_the_whole_range_of_numbers_has_an_answer_on_the_safe_side(relation: Relation) -> None:
    for iterations in (1, 10, 10**5):
        for delta in (1e-12, 1e-5, 0.1):
            for multiplier in (1e-2, 1.0, 1e5):
                found = epsilon_for(multiplier, iterations, delta, relation)
                assert 0 <= found <= float(round_up(found))
            for target in (1e-3, 1.0, 1e3):
                multiplier = float(round_up(noise_multiplier_for(Budget(target, delta), iterations, relation)))
                assert epsilon_for(multiplier, iterations, delta, relation) <= target


@pytest.mark.parametrize(
    "arguments",
    [
        ["epsilon", "--noise-multiplier", 1, "--iterations", 0, "--delta", 1e-5],
        ["epsilon", "--noise-multiplier", 1, "--iterations", 10**10, "--delta", 1e-5],
        ["epsilon", "--noise-multiplier", "inf", "--iterations", 1, "--delta", 1e-5],
        ["epsilon", "--noise-multiplier", 1, "--iterations", 1, "--delta", "nan"],
        ["calibrate", "--epsilon", 1, "--iterations", -1, "--delta", 1e-5],
        ["calibrate", "--epsilon", "inf", "--iterations", 1, "--delta", 1e-5],
    ],
)
def test_numbers_out_of_range_are_one_sentence(tmp_path: Path, arguments: list[object]) -> None:
    assert_one_sentence(command(*arguments, cwd=tmp_path), r"\d|nan|inf")

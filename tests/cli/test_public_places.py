"""`pe init`, `pe plan` and `pe run` refuse the private records as public images, in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pe.recipe.schema import Recipe
from tests.cli.test_commands import assert_one_sentence, public, recipe, scans
from tests.cli.typed import pe

__all__ = ["public", "recipe", "scans"]  # fixtures

ANSWERS = ("--classes", "benign,malignant", "--privacy-unit", "subfolder", "--declared-size", 24, "--declared-units", 4)


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("scans", "are the private records"),
        (".", "contain the private records"),
        ("scans/benign", "lie in the private records"),
        ("link", "are the private records"),
    ],
)
def test_no_command_takes_the_private_folder_for_the_public_one(recipe: Path, place: str, how: str) -> None:
    root = recipe.parent
    (root / "link").symlink_to(root / "scans")
    result = pe("init", "scans", *ANSWERS, "--public", place, "--out", "new.yaml", cwd=root)
    assert_one_sentence(result, f"^pe: The public images {place} {how} scans: name images that hold no private record")
    assert not (root / "new.yaml").exists()
    wanted, told_place = ("--set", f"api.path={place}"), root / place
    refusal = f"he public images {told_place} {how} {root / 'scans'}"
    assert_one_sentence(pe("run", recipe, *wanted, "--out", "out", cwd=root), refusal)
    assert not (root / "out").exists()
    told = json.loads(pe("plan", recipe, *wanted, "--json", cwd=root).stdout)["warnings"]
    assert any(line.startswith(f"A run would not start: t{refusal}") for line in told)


def test_what_init_writes_is_refused_once_its_pool_holds_a_record(recipe: Path) -> None:
    root = recipe.parent
    flags = (*ANSWERS, "--public", "public", "--size", 16, "--channels", 3, "--out", "new.yaml")
    assert pe("init", "scans", *flags, cwd=root).returncode == 0
    shutil.copy(root / "scans" / "benign" / "p1" / "3.png", root / "public" / "cat.png")
    told = pe("plan", "new.yaml", cwd=root)
    assert (told.returncode, "A run would not start" in told.stdout) == (0, False)  # a plan reads no record
    result = pe("run", "new.yaml", "--out", "out", cwd=root)
    assert_one_sentence(result, r"1 of 51 public images are private records.*\(the first: /.*/public/cat\.png")
    assert not (root / "out").exists()


def test_published_records_are_declared_planned_with_a_warning_and_run(recipe: Path) -> None:
    root, declared = recipe.parent, ("--set", "api.path=scans", "--set", "privacy.pool_overlaps=declared")
    told = json.loads(pe("plan", recipe, *declared, "--json", cwd=root).stdout)["warnings"]
    assert any("may be private records" in line for line in told)
    assert not any("would not start" in line for line in told)
    result = pe("run", recipe, *declared, "--out", "out", "--json", cwd=root)
    assert result.returncode == 0, result.stderr
    assert "may be private records" in " ".join(result.stderr.split())
    assert "may be private records" in (root / "out" / "certificate.md").read_text()
    assert Recipe.load(root / "out" / "recipe.yaml").privacy.pool_overlaps == "declared"

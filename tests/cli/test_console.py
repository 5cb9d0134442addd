"""What `pe` prints, on consoles, pipes and disks that do not take it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_commands import PE, assert_one_sentence, installed, public, recipe, scans
from tests.cli.typed import pe

__all__ = ["public", "recipe", "scans"]  # fixtures


@pytest.mark.parametrize(
    ("encoding", "command"),
    [("latin-1", "epsilon --help"), ("cp1252", "plan recipe.yaml"), ("latin-1", "doctor δ.yaml")],
)
def test_characters_that_a_console_lacks_are_replaced(recipe: Path, encoding: str, command: str) -> None:
    told = installed(*command.split(), cwd=recipe.parent, PYTHONIOENCODING=f"{encoding}:strict")
    assert told.returncode == (2 if "δ" in command else 0), told.stderr
    assert "Traceback" not in told.stderr
    assert "?" in told.stdout + told.stderr


@pytest.mark.parametrize(("command", "unbuffered"), [("plan recipe.yaml", ""), ("--help", "1"), ("explain", "")])
def test_output_that_cannot_be_written_ends_in_one_sentence(recipe: Path, command: str, unbuffered: str) -> None:
    ended = subprocess.run(
        f"{PE} {command} > /dev/full", shell=True, cwd=recipe.parent, capture_output=True, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    assert_one_sentence(ended, "No space left on device")


@pytest.mark.parametrize("command", ["plan recipe.yaml", "explain --markdown"])
def test_a_pipe_whose_reader_has_left_ends_quietly_and_not_with_status_1(recipe: Path, command: str) -> None:
    line = f"set -o pipefail; {PE} {command} | true"
    ended = subprocess.run(["bash", "-c", line], cwd=recipe.parent, capture_output=True, text=True)
    assert (ended.returncode in (0, 141), ended.stderr) == (True, "")


@pytest.mark.parametrize(
    "words",
    [["run", "recipe.yaml", "--out", "x" * 300], ["init", "scans", "--out", "é" * 150], ["status", "y" * 300]],
)
def test_a_name_that_no_disk_takes_is_refused_in_one_sentence(recipe: Path, words: list[str]) -> None:
    refused = pe(*words, cwd=recipe.parent)
    assert refused.returncode == 2
    assert "is longer than 255 bytes: choose a shorter one." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_file_that_the_system_refuses_is_told_in_one_sentence(recipe: Path) -> None:
    (recipe.parent / "file").touch()
    refused = pe("run", "recipe.yaml", "--out", "file/inside", cwd=recipe.parent)
    assert_one_sentence(refused, "Not a directory")

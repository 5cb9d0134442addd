"""What `pe` prints on consoles, pipes and disks that do not take it; and what bash completes."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.typed import PE, assert_one_sentence, installed


@pytest.mark.parametrize(("encoding", "command"), [("cp1252", "epsilon --help"), ("latin-1", "doctor δ.yaml")])
def test_characters_that_a_console_lacks_are_replaced(tmp_path, encoding, command):
    told = installed(*command.split(), cwd=tmp_path, PYTHONIOENCODING=f"{encoding}:strict")
    assert told.returncode == (2 if "δ" in command else 0), told.stderr
    assert "Traceback" not in told.stderr
    assert "?" in told.stdout + told.stderr


@pytest.mark.parametrize(("command", "unbuffered"), [("explain", ""), ("--help", "1")])
def test_output_that_cannot_be_written_ends_in_one_sentence(finished, command, unbuffered):
    ended = subprocess.run(
        f"{PE} {command} > /dev/full", shell=True, cwd=finished, capture_output=True, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    assert_one_sentence(ended, "No space left on device")


def test_a_pipe_whose_reader_has_left_ends_quietly_and_not_with_status_1(finished):
    line = f"set -o pipefail; {PE} explain --markdown | true"
    ended = subprocess.run(["bash", "-c", line], cwd=finished, capture_output=True, text=True)
    assert (ended.returncode in (0, 141), ended.stderr) == (True, "")


PAGE = (Path(__file__).parents[2] / "docs" / "install.md").read_text(encoding="utf-8")


def test_bash_completes_a_command():
    script = """
        eval "$(_PE_COMPLETE=bash_source pe)"
        COMP_WORDS=(pe pri); COMP_CWORD=1
        complete -p pe >/dev/null && _pe_completion pe && printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{Path(PE).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert 'eval "$(_PE_COMPLETE=bash_source pe)"' in PAGE
    assert (done.stdout.split(), done.stderr) == (["privacy"], "")

"""The shell completes commands, options and files, as docs/install.md says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from pe.cli.main import pe

BIN = Path(sys.executable).parent
PAGE = Path(__file__).parents[2] / "docs" / "install.md"


def completed(*words: str) -> list[str]:
    """What bash offers for the last of the words."""
    script = f"""
        eval "$(_PE_COMPLETE=bash_source pe)"
        COMP_WORDS=(pe {" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words)}
        complete -p pe >/dev/null && _pe_completion pe && printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_a_command() -> None:
    assert 'eval "$(_PE_COMPLETE=bash_source pe)"' in PAGE.read_text(encoding="utf-8")
    assert completed("pri") == ["privacy"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_and_complete_an_option(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    found = kind(pe, {}, "pe", "_PE_COMPLETE")
    assert "_PE_COMPLETE" in found.source()
    assert f"_PE_COMPLETE={shell}_source pe" in PAGE.read_text(encoding="utf-8")
    assert [one.value for one in found.get_completions(["run"], "--log")] == ["--logger", "--log-level"]

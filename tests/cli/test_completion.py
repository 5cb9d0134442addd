"""The shell completes commands, options and files, as docs/install.md says."""

import os
import subprocess
from pathlib import Path

from tests.cli.typed import PE

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

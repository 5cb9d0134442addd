"""The PE authors' library is called `pe`, too: one sentence where both were installed into one
environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pe
from pe.version import MIXED


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with ours, and a package of theirs that ours lacks."""
    shutil.copytree(
        Path(pe.__file__).parent, tmp_path / "pe", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "pe" / "runner").mkdir()
    (tmp_path / "pe" / "runner" / "__init__.py").touch()
    return tmp_path


def python(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-S",
        "-c",
        f"import sys; sys.path[:0] = {[str(site), *sys.path]!r}; {code}",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_ours_over_theirs(site: Path) -> None:
    assert python(site, "import pe").stderr.endswith(f"ImportError: {MIXED}\n")
    shutil.rmtree(site / "pe" / "runner")
    assert python(site, "import pe").returncode == 0


def test_theirs_over_ours(site: Path) -> None:
    (site / "pe" / "__init__.py").write_text("")
    ended = python(site, "from pe.cli.main import main; main()")
    assert (ended.returncode, ended.stderr) == (2, f"pe: {MIXED}\n")

"""Every target of the Makefile that a reader is told of does what is said; `make -n` prints it and
runs nothing.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.test_links import PAGES, ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PHONY = re.findall(r"^\.PHONY:(.*)$", MAKEFILE, re.M)[0].split()
COMMENTS = "\n".join(re.findall(r"^#.*$", MAKEFILE, re.M))
READ = "\n".join([COMMENTS, *(page.read_text(encoding="utf-8") for page in PAGES)])
NAMED = sorted(set(re.findall(r"(?:`|^ *|&& )make ([a-z][\w-]*)", READ, re.M)))


def commands(target: str, makefile: Path = ROOT / "Makefile") -> list[str]:
    """The commands of a target in an environment that is complete, as `make -n` prints them; [] if
    there are none.
    """
    complete = [
        f"--assume-old={file}" for file in (".venv/bin/python", ".venv/.light", ".venv/.test")
    ]
    command = ["make", "--dry-run", "--no-print-directory", *complete, "-f", str(makefile), target]
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # of `make test`
    done = subprocess.run(
        command, cwd=makefile.parent, env=outside, capture_output=True, text=True, check=True
    )
    return [] if "Nothing to be done" in done.stdout else done.stdout.splitlines()


@pytest.mark.parametrize("target", sorted({*PHONY, *NAMED}))
def test_each_target_that_is_named_has_commands(target: str) -> None:
    assert commands(target)


def test_the_pages_name_the_targets() -> None:
    assert {"check", "demo", "format", "gpu-check", "test", "test-privacy"} <= set(NAMED)


@pytest.mark.parametrize(
    ("target", "runs", "leaves_out"),
    [
        (
            "check",
            ["ruff check .", "ruff format --check", "lint-imports", "docs/budgets.py", "mypy"],
            ["pytest"],
        ),
        ("format", ["ruff check --fix", "ruff format ."], ["pytest", "mypy"]),
        (
            "gpu-check",
            [
                "-m gpu .*tests/gpu",
                "pytest tests/nearest",
                "benchmarks/diffusion.py",
                "benchmarks/neighbors.py",
            ],
            ["mypy", "ruff"],
        ),
        ("test", ["ruff check .", "lint-imports", "mypy", "pytest -n"], ["-m gpu"]),
        ("test-privacy", ["pytest tests/privacy"], ["mypy"]),
        ("test-slow", ["pytest -m slow", "PE_GPU_DEVICE=cpu .*-m gpu"], ["mypy"]),
    ],
)
def test_a_target_runs_what_contributing_says(
    target: str, runs: list[str], leaves_out: list[str]
) -> None:
    found = "\n".join(commands(target))
    assert [one for one in runs if not re.search(one, found)] == []
    assert [one for one in leaves_out if one in found] == []


def test_a_target_without_commands_is_found(tmp_path: Path) -> None:
    """Make ends well for a target that only .PHONY names, and leaves nothing behind."""
    makefile = tmp_path / "Makefile"
    makefile.write_text(MAKEFILE.replace("\ncheck: looks types\n", "\n"), encoding="utf-8")
    assert commands("check", makefile) == []
    assert commands("looks", makefile)
    assert list(tmp_path.iterdir()) == [makefile]

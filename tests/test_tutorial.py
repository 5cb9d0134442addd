"""The tutorial, as somebody new to the toolkit works through it: every command and snippet, in
order, in one folder.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from pe.cli.main import main
from tests.endpoints.faults import Script
from tests.endpoints.hosted import degree_of
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"(?:`([\w.]+)`[^\n]*:\n\n)?^```(\w+)\n(.*?)^```$", re.S | re.M)
HOST = "https://api.openai.com/v1"
SIDE = 64  # of the images of our own server, which need not be as large
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BEFORE = ("python3 -m venv .venv", "source .venv/bin/activate")


class Worded(OpenAIServer):
    """Varies an image as far as the prompt's words say."""

    def _answer(self, fault: str, body: dict[str, Any], parents: list[bytes] | None) -> Response:
        return super()._answer(fault, {**body, "strength": degree_of(str(body["prompt"]))}, parents)


@pytest.fixture
def address() -> Iterator[str]:
    """Of a scripted server that answers as OpenAI's does."""
    with serving(Worded(Script(), response_format="refused", side=SIDE, heeds="strength")) as found:
        yield f"{found}/v1"


def masked(line: str) -> str:
    """A line without what differs from run to run and from machine to machine."""
    return re.sub(r"\d[\d.,]*", "0", line).strip()


class Reader:
    """Does what a page says; notes what was printed.

    The address stands in the place of OpenAI's.
    """

    def __init__(
        self, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._address, self._monkeypatch, self._capsys = address, monkeypatch, capsys
        self.printed = ""
        self.commands: list[str] = []

    def sh(self, block: str, _: str) -> None:
        self.printed = ""
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[0] == "export":
                self._monkeypatch.setenv(*words[1].split("=", 1))
            elif words[:2] == ["pip", "install"]:
                assert set(re.findall(r"\w+", words[2])) <= EXTRAS.keys(), line
            elif line not in BEFORE:
                self._command(words)

    def _command(self, words: list[str]) -> None:
        self._monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        told = self._capsys.readouterr()
        assert not ended.value.code, f"{shlex.join(words)}: {told.err}"
        self.printed += told.out
        self.commands.append(words[1])

    def python(self, block: str, _: str) -> None:
        exec(compile(block, "tutorial.md", "exec"), {})
        self.printed = self._capsys.readouterr().out

    def yaml(self, block: str, name: str) -> None:
        small = block.replace("population: 500", "population: 80").replace("steps: 10", "steps: 5")
        Path(name).write_text(
            small.replace(HOST, self._address).replace("1024x1024", f"{SIDE}x{SIDE}")
        )

    def text(self, block: str, _: str) -> None:
        found = set(map(masked, self.printed.splitlines()))
        for line in block.splitlines():
            assert masked(line) in found, f"{line!r} is not in\n{self.printed}"


def test_every_command_and_snippet_of_the_tutorial_runs(address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "pe.recipe.usual_embedding._with_weights_here", lambda standard: iter(())
    )  # as without the extra
    reader = Reader(address, monkeypatch, capsys)
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        assert content.count("```") == 2 * len(BLOCK.findall(content)), page
        for name, language, block in BLOCK.findall(content):
            getattr(reader, language)(block, name)
    assert {"plan", "run", "probe", "view", "verify", "export", "ledger", "evaluate"} <= set(
        reader.commands
    )
    assert sorted(path.name for path in tmp_path.glob("*/certificate.md")) == ["certificate.md"] * 7

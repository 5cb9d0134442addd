"""Every command, recipe and piece of Python that a page shows is one: commands by the command
line's own parser.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import click
import pytest
from pydantic import ConfigDict, create_model

import pe
from pe.cli.main import pe as command_line
from pe.plugins.registry import Group, load
from pe.plugins.settings import fields_of, read_settings
from pe.plugins.specs import PluginSpec, members_of, settings_of
from pe.recipe.reading import read_yaml
from pe.recipe.schema import Recipe
from tests.test_links import CODE, PAGES, ROOT

SHOWN = [page for page in PAGES if page.name != "CHANGELOG.md"]


def command_lines(page: Path) -> Iterator[tuple[str, bool]]:
    """The commands of a page, each with whether it is to be typed as it stands, or only named."""
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^ {0,4}(?:\w+=\S+ )*(pe [a-z].*)$", text, re.M):
        for part in re.split(r", (?=pe )", line):
            yield part, part == line
    for match in CODE.finditer(text):
        if re.match("`pe [a-z]", match[0]):
            yield " ".join(match[0].strip("`").split()), False


def complaint(line: str, typed: bool) -> str:
    """What the command line has against it; empty: nothing."""
    words = shlex.split(re.split(r"[|>&]", line)[0], comments=True)[1:]
    command = command_line.get_command(click.Context(command_line), words[0])
    if command is None:
        return f"there is no command {words[0]}"
    context = click.Context(command)
    if not typed:
        words = [word.strip("[]") for word in words]  # of a synopsis
        words += ["VALUE"] * any(
            words[-1] in each.opts and not each.is_flag for each in command.params
        )
    try:
        given, more, _ = command.make_parser(context).parse_args(words[1:])
        for parameter in command.params:
            value = given.get(parameter.name)
            if value is None and parameter.required and typed:
                return f"{parameter.name} is missing"
            for one in value if isinstance(value, list) else [value]:
                if isinstance(parameter.type, click.Choice) and one not in (None, "VALUE"):
                    parameter.type.convert(one, parameter, context)
    except click.UsageError as error:
        return error.format_message()
    return f"too many words: {more}" if more else ""


@pytest.mark.parametrize("page", SHOWN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    found = {line: complaint(line, typed) for line, typed in command_lines(page)}
    assert {line: words for line, words in found.items() if words} == {}


REST = {
    "private": {"kind": "npz", "path": "private.npz", "size": 8, "classes": ["a", "b"]},
    "api": {"kind": "glyphs"},
    "embedding": {"kind": "pixels"},
    "privacy": {"epsilon": 1, "delta": 1e-5},
    "limits": {"max_cost": 1},
}
"""What a page leaves out that shows some sections of a recipe."""
OF_COLUMNS = "private:\n  kind: table\n  path: private.csv\n  columns:\n"
BLOCK = re.compile(r"(`columns\.yaml`:\n\n)?^```yaml\n(.*?)^```$", re.S | re.M)
RECIPES = [
    pytest.param(
        f"{OF_COLUMNS}{indent(block, '    ')}" if columns else block,
        id=f"{page.relative_to(ROOT).as_posix()}:{i}",
    )
    for page in PAGES
    for i, (columns, block) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("block", RECIPES)
def test_every_recipe_of_a_page_is_one(block: str, tmp_path: Path) -> None:
    for name in re.findall(r": !include (\S+)", block):
        (tmp_path / name).write_text("a {label}")
    (tmp_path / "recipe.yaml").write_text(block)
    recipe = Recipe.parse(REST | read_yaml(tmp_path / "recipe.yaml"), "the page")
    check_settings("pe.embeddings", recipe.embedding)
    for spec in (recipe.api, *members_of(recipe.api).values()):
        check_settings("pe.adapters", spec)


def check_settings(group: Group, spec: PluginSpec) -> None:
    """Check the settings alone: a plug-in that is set up would read the files that they name."""
    fields = fields_of(settings_of(load(group, spec.kind)))
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    known: dict[str, Any] = {name: (field.annotation, field) for name, field in fields.items()}
    model = create_model("Settings", __config__=config, **known)
    read_settings(model, spec.settings, spec.kind)


@pytest.mark.parametrize("page", SHOWN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_name_in_a_page_s_python_exists(page: Path) -> None:
    for block in re.findall(
        r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M
    ):
        for node in ast.walk(ast.parse(block)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "pe"
            ):
                assert hasattr(pe, node.attr), node.attr


def test_every_extra_that_a_page_installs_exists() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    text = "".join(page.read_text(encoding="utf-8") for page in SHOWN)
    found = {
        extra
        for named in re.findall(r"(?:'\.|-toolkit)\[([\w,]+)\]", text)
        for extra in named.split(",")
    }
    assert {"cpu", "http", "ray"} <= found <= known.keys()

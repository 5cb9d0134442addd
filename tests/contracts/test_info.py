"""What every installed plug-in must declare about itself."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import pe
from pe.errors import ContractError
from pe.plugins.protocols import Declares, info_of
from pe.plugins.registry import load, plugins
from pe.plugins.specs import settings_of
from tests.generators import Mean, Shades

INSTALLED = [(group, kind) for group in ("pe.adapters", "pe.embeddings") for kind in plugins(group)]
PARTS = ("caption_then_draw", "portfolio")
"""They ask whom their parts ask."""


@pytest.mark.parametrize(("group", "kind"), INSTALLED)
def test_a_plug_in_says_whom_it_asks_and_names_settings_that_it_has(group, kind):
    factory = load(group, kind)
    assert isinstance(factory, Declares)
    info, asks = info_of(factory), kind in PARTS or "http" in plugins(group)[kind].extras
    assert info.hosts == (None if asks else ())  # an object knows, from its settings
    known = settings_of(factory).model_fields
    for setting in (*info.machine_settings, *info.code_settings, *info.schedules):
        assert setting.partition(".")[0] in known, setting


def test_what_declares_nothing_is_not_declared_and_what_declares_something_else_is_refused():
    class Wrong(Shades):
        info = ("api.example",)  # type: ignore[assignment]

    assert info_of(Mean()) == pe.PluginInfo()
    assert info_of(Shades()).hosts == ()
    with pytest.raises(ContractError, match="must be a PluginInfo"):
        info_of(Wrong())


def test_the_page_names_no_field_that_there_is_not():
    page = Path("docs/write-your-own.md").read_text(encoding="utf-8")
    table = page.partition("| of `pe.PluginInfo` | |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {*re.findall(r"`info\.(\w+)", page), *re.findall(r"`(\w+)`", " ".join(rows))}
    assert len(named) > 10
    assert named <= {field.name for field in fields(pe.PluginInfo)}

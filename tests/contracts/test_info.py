"""What every installed plug-in must declare about itself."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import pe
from pe.errors import ContractError
from pe.plugins.protocols import Declares, info_of
from pe.plugins.registry import Group, load, plugins
from pe.plugins.specs import settings_of
from tests.generators import Mean, Shades

INSTALLED = [(group, kind) for group in ("pe.adapters", "pe.embeddings") for kind in plugins(group)]
ELSEWHERE = {
    "bedrock",
    "bfl",
    "caption_then_draw",  # as its parts do
    "chat",
    "comfyui",
    "diffusion_server",
    "fal",
    "gemini",
    "hf_inference",
    "http",
    "openai_embeddings",
    "openai_images",
    "portfolio",  # as its members do
    "replicate",
    "sdapi",
    "stability",
    "together",
}


@pytest.mark.parametrize(("group", "kind"), INSTALLED)
def test_a_plug_in_says_whom_it_asks_and_names_settings_that_it_has(group: Group, kind: str) -> None:
    factory = load(group, kind)
    assert isinstance(factory, Declares)
    info = info_of(factory)
    assert info.hosts == (None if kind in ELSEWHERE else ())  # an object knows, from its settings
    known = settings_of(factory).model_fields
    for setting in (*info.machine_settings, *info.code_settings, *info.schedules):
        assert setting.partition(".")[0] in known, setting


def test_an_endpoint_s_host_follows_from_its_settings() -> None:
    made = [
        pe.api(kind, prompts="{label}", **settings)
        for kind, settings in {
            "openai_images": {"model": "m", "base_url": "http://a.example/v1", "image_size": 64},
            "sdapi": {"base_url": "http://b.example:7860", "image_size": 64},
        }.items()
    ]
    hosts = [info_of(load("pe.adapters", one.kind)(**one.settings)).hosts for one in made]
    assert hosts == [("a.example",), ("b.example:7860",)]


def test_what_declares_nothing_is_not_declared_and_what_declares_something_else_is_refused() -> None:
    class Wrong(Shades):
        info = ("api.example",)  # type: ignore[assignment]

    assert info_of(Mean()) == pe.PluginInfo()
    assert info_of(Shades()).hosts == ()
    with pytest.raises(ContractError, match="must be a PluginInfo"):
        info_of(Wrong())


def test_the_page_names_no_field_that_there_is_not() -> None:
    page = Path("docs/write-your-own.md").read_text(encoding="utf-8")
    table = page.partition("| of `pe.PluginInfo` | |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {*re.findall(r"`info\.(\w+)", page), *re.findall(r"`(\w+)`", " ".join(rows))}
    assert len(named) > 10
    assert named <= {field.name for field in fields(pe.PluginInfo)}

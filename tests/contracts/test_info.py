"""What every installed plug-in must declare about itself; and whether a generator knows labels."""

import pytest

import pe
from pe.errors import ContractError
from pe.plugins.protocols import info_of
from pe.plugins.registry import load, plugins
from pe.plugins.settings import fields_of
from pe.plugins.specs import settings_of
from tests.generators import Mean, Shades

INSTALLED = [(group, kind) for group in ("pe.adapters", "pe.embeddings") for kind in plugins(group)]
PARTS = ("caption_then_draw", "portfolio")
"""They ask whom their parts ask."""


@pytest.mark.parametrize(("group", "kind"), INSTALLED)
def test_a_plug_in_says_whom_it_asks_and_names_settings_that_it_has(group, kind):
    factory = load(group, kind)
    assert isinstance(factory.info, pe.PluginInfo)
    info, asks = info_of(factory), kind in PARTS or "http" in plugins(group)[kind].extras
    assert info.hosts == (None if asks else ())  # an object knows, from its settings
    known = fields_of(settings_of(factory))
    for setting in (*info.machine_settings, *info.code_settings, *info.schedules):
        assert setting.partition(".")[0] in known, setting


def test_what_declares_nothing_is_not_declared_and_what_declares_something_else_is_refused():
    class Wrong(Shades):
        info = ("api.example",)

    assert info_of(Mean()) == pe.PluginInfo()
    assert info_of(Shades()).hosts == ()
    with pytest.raises(ContractError, match="must be a PluginInfo"):
        info_of(Wrong())


HERE, PROMPT = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}, "a photo of a {label}"
OF_EACH = {"cat": "a cat", "dog": "a dog"}
SERVER = {"base_url": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("kind", "settings", "knows"),
    [
        ("pixel_diffusion", {"model": "small", "classes": {"cat": 0, "dog": 1}}, True),
        ("pixel_diffusion", {"model": "small"}, False),
        ("improved_diffusion", {}, False),
        ("diffusion", {"model": "nobody/nothing", "prompts": PROMPT}, True),
        ("openai_images", HERE | {"size": "1024x1024", "image_size": 32, "prompts": OF_EACH}, True),
        (
            "openai_images",
            HERE | {"size": "1024x1024", "image_size": 32, "prompts": [PROMPT, "a photo"]},
            False,
        ),
        ("diffusion_server", SERVER | {"classes": {"cat": 0, "dog": 1}}, True),
        ("diffusion_server", SERVER, False),
        ("causal_lm", {"model": "m", "prompts": "A {pet}", "attributes": {"pet": OF_EACH}}, True),
        (
            "causal_lm",
            {"model": "m", "prompts": "A {pet}", "attributes": {"pet": ["cat", "dog"]}},
            False,
        ),
        ("masked_lm", {"model": "m", "prompts": [PROMPT, "one more {label}"]}, True),
    ],
)
def test_it_knows_the_labels_that_its_settings_name(kind, settings, knows):
    assert info_of(load("pe.adapters", kind)(**settings)).by_label == knows


@pytest.mark.parametrize("kind", ["dpdm", "finetune", "trained"])
def test_one_that_is_fitted_on_the_records_knows_their_labels(kind):
    assert info_of(load("pe.adapters", kind)).by_label

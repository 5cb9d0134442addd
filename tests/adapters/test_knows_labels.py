"""A generator knows labels if what it is asked names them; `evolution: auto` goes by that."""

import pytest

from pe.plugins.protocols import info_of
from pe.plugins.registry import load

HERE, PROMPT = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}, "a photo of a {label}"
OF_EACH = {"cat": "a cat", "dog": "a dog"}
SERVER = {"base_url": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("kind", "settings", "knows"),
    [
        ("glyphs", {}, True),
        ("pixel_diffusion", {"model": "small", "classes": {"cat": 0, "dog": 1}}, True),
        ("pixel_diffusion", {"model": "small"}, False),
        ("improved_diffusion", {}, False),
        ("diffusion", {"model": "nobody/nothing", "prompts": PROMPT}, True),
        ("diffusion", {"model": "nobody/nothing", "prompts": "a photo"}, False),
        ("openai_images", HERE | {"size": "1024x1024", "image_size": 32, "prompts": OF_EACH}, True),
        ("openai_images", HERE | {"size": "1024x1024", "image_size": 32, "prompts": [PROMPT, "a photo"]}, False),
        ("diffusion_server", SERVER | {"classes": {"cat": 0, "dog": 1}}, True),
        ("diffusion_server", SERVER | {"prompts": PROMPT}, True),
        ("diffusion_server", SERVER, False),
        ("chat", HERE | {"prompts": "a text"}, False),
        ("causal_lm", {"model": "m", "prompts": "A {pet}", "attributes": {"pet": OF_EACH}}, True),
        ("causal_lm", {"model": "m", "prompts": "A {pet}", "attributes": {"pet": ["cat", "dog"]}}, False),
        ("masked_lm", {"model": "m", "prompts": [PROMPT, "one more {label}"]}, True),
    ],
)
def test_it_knows_the_labels_that_its_settings_name(kind, settings, knows):
    assert info_of(load("pe.adapters", kind)(**settings)).by_label == knows


@pytest.mark.parametrize("kind", ["dpdm", "dp_sad", "dp_merf", "dp_imgsyn", "finetune", "trained"])
def test_one_that_is_fitted_on_the_records_knows_their_labels(kind):
    assert info_of(load("pe.adapters", kind)).by_label

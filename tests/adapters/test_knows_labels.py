"""A generator knows labels if what it is asked names them; `evolution: auto` goes by that."""

from __future__ import annotations

from typing import Any

import pytest

from pe.plugins.protocols import info_of
from pe.plugins.registry import load

HERE, PROMPT = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}, "a photo of a {label}"
IMAGES, OF_EACH = HERE | {"size": "1024x1024", "image_size": 32}, {"cat": "a cat", "dog": "a dog"}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("glyphs", {}),
        ("pixel_diffusion", {"model": "small", "classes": {"cat": 0, "dog": 1}}),
        ("diffusion", {"model": "nobody/nothing", "prompts": PROMPT}),
        ("openai_images", IMAGES | {"prompts": OF_EACH}),
        ("diffusion_server", {"base_url": "http://127.0.0.1:9", "classes": {"cat": 0, "dog": 1}}),
        ("diffusion_server", {"base_url": "http://127.0.0.1:9", "prompts": PROMPT}),
        ("chat", HERE | {"prompts": PROMPT}),
        ("causal_lm", {"model": "m", "prompts": "A {pet}", "attributes": {"pet": OF_EACH}}),
        ("masked_lm", {"model": "m", "prompts": [PROMPT, "one more {label}"]}),
    ],
)
def test_it_knows_them(kind: str, settings: dict[str, Any]) -> None:
    assert info_of(load("pe.adapters", kind)(**settings)).by_label


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("pixel_diffusion", {"model": "small"}),
        ("improved_diffusion", {}),
        ("diffusion", {"model": "nobody/nothing", "prompts": "a photo"}),
        ("openai_images", IMAGES | {"prompts": [PROMPT, "a photo"]}),
        ("diffusion_server", {"base_url": "http://127.0.0.1:9"}),
        ("chat", HERE | {"prompts": "a text"}),
        ("causal_lm", {"model": "m", "prompts": "A {pet}", "attributes": {"pet": ["cat", "dog"]}}),
        ("masked_lm", {"model": "m", "prompts": "a text"}),
    ],
)
def test_it_does_not_know_them(kind: str, settings: dict[str, Any]) -> None:
    assert not info_of(load("pe.adapters", kind)(**settings)).by_label


@pytest.mark.parametrize(
    "kind", ["dpdm", "dp_ldm", "pdp_diffusion", "privimage", "dp_sad", "dp_merf", "dp_imgsyn", "finetune"]
)
def test_one_that_is_fitted_on_the_records_knows_their_labels(kind: str) -> None:
    assert info_of(load("pe.adapters", kind)).by_label
    assert info_of(load("pe.adapters", "trained")).by_label

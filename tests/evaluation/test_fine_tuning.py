"""A transformer from a folder is fine-tuned on the texts it is given, and on nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.evaluation.classifiers import Classifier, NetworkSettings
from pe.evaluation.fine_tuning import FineTuning, fit_transformer
from pe.evaluation.labelled import Labelled
from tests.embeddings.sentences import encoder, incomplete
from tests.endpoints.chat_server import WORDS

QUICK = FineTuning(epochs=6, batch=8, rate=3e-3, device="cpu")  # the encoder is tiny and its weights are random


def labelled(count: int, seed: int) -> Labelled:
    """Texts of two classes, each with words of its own among others."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int32) % 2
    own = (WORDS[:3], WORDS[3:6])
    texts = [" ".join(rng.permutation([*rng.choice(own[i], 5), *rng.choice(WORDS[6:], 2)])) for i in labels]
    return Labelled(Texts.of(texts), labels)


def test_it_learns_what_tells_the_classes_apart_and_the_same_from_the_same_seed(tmp_path: Path) -> None:
    place, train, held, test = encoder(tmp_path), labelled(96, 0), labelled(16, 1), labelled(60, 2)
    state = torch.get_rng_state()
    predict = fit_transformer(place, train, held, 2, 0, QUICK)
    logits = predict(test)
    assert logits.shape == (60, 2)
    assert np.mean(logits.argmax(axis=1) == test.labels) > 0.75  # a tokenizer is trained anew, and never quite the same
    np.testing.assert_array_equal(fit_transformer(place, train, held, 2, 0, QUICK)(test), logits)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_is_named_by_its_folder_and_takes_texts_alone(tmp_path: Path) -> None:
    place = encoder(tmp_path / "encoder")
    one = Classifier.named(f"transformer:{place}", NetworkSettings(epochs=1, device="cpu"))
    assert (one.name, one.kind, one.shallow) == (f"transformer:{place}", "texts", False)
    two = Classifier.named(f"transformer:{place}-x2", NetworkSettings(epochs=1, device="cpu"))
    assert (two.single, two.members) == (one.single, 2)
    assert one.fit(labelled(8, 0), labelled(4, 1), 3, 0)(labelled(5, 2)).shape == (5, 3)
    with pytest.raises(RecipeError, match="Unknown classifier 'transformer:'"):
        Classifier.named("transformer:", NetworkSettings())


def test_a_folder_that_holds_no_whole_encoder_is_named(tmp_path: Path) -> None:
    given = (labelled(8, 0), labelled(4, 1), 2, 0, QUICK)
    with pytest.raises(RecipeError, match=r"'transformer:nowhere': there is no such folder; name one"):
        fit_transformer("nowhere", *given)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecipeError, match=r"empty' cannot be loaded .*: name a folder with config\.json"):
        fit_transformer(str(tmp_path / "empty"), *given)
    with pytest.raises(
        RecipeError, match=r"lacks the weights bert\.encoder\.layer\.1\.attention.*: name a whole encoder"
    ):
        fit_transformer(incomplete(tmp_path / "incomplete"), *given)


def test_naming_one_loads_no_library() -> None:
    code = (
        "import sys\nfrom pe.evaluation.classifiers import *\n"
        "Classifier.named('transformer:somewhere', NetworkSettings())\n"
        "sys.exit(', '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""Samples of another size, number of channels or modality than was declared are refused before anything is spent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pe.data.images import Images
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.errors import ContractError
from pe.plugins.protocols import Answer, PluginInfo, RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import make_private
from tests.generators import Mean, Shades


class Makes(Shades):
    """An object of a user's own that makes samples like one."""

    def __init__(self, sample: Samples, shape: tuple[int, int, int] | None = None) -> None:
        super().__init__(max_chunk=5)
        self.sample, self.info, self.made = sample, PluginInfo(hosts=(), shape=shape), 0

    def random_api(self, request: RandomRequest) -> Answer:
        self.made += len(request)
        return Answer(self.sample.take(np.zeros(len(request), np.int64)))

    def variation_api(self, request: VariationRequest) -> Answer:
        return Answer(self.sample.take(np.zeros(len(request), np.int64)))


def image(*shape: int) -> Images:
    return Images(np.zeros((1, *shape), np.uint8))


def start(folder: Path, api: Makes, **changes: object) -> Run:
    make_private(folder / "private.npz")
    content = {
        "private": {"kind": "npz", "path": folder / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]},
        "api": {"kind": "object:tests.engine.test_made.Makes"},
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 20, "lookahead": 0} | changes,
    }
    surroundings = Surroundings(api=api, embedding=Mean())
    if (folder / "run").exists():
        return resume_run(folder / "run", surroundings)
    return run_recipe(Recipe.parse(content, "the test"), folder / "run", surroundings)


@pytest.mark.parametrize("changes", [{}, {"initial_variations": 3}])
@pytest.mark.parametrize(
    ("sample", "shape", "sentence"),
    [
        (image(2, 2, 1), None, r"made images of 2×2×1 \(.*\) where images of 4×4×1 \(.*\) are declared: have it"),
        (image(8, 4, 1), None, r"made images of 8×4×1 .* where images of 4×4×1 "),
        (image(4, 4, 3), None, r"made images of 4×4×3 .* where images of 4×4×1 "),
        (image(4, 4, 1), (8, 8, 1), r"made images of 4×4×1 .* where images of 8×8×1 "),
        (Texts.of(["a text"], 20), None, r"made texts where images are declared"),
    ],
)
def test_what_is_not_as_declared_is_refused_before_a_release(
    tmp_path: Path, sample: Samples, shape: tuple[int, int, int] | None, sentence: str, changes: dict[str, object]
) -> None:
    api = Makes(sample, shape)
    with pytest.raises(ContractError, match=sentence):
        start(tmp_path, api, **changes)
    assert api.made <= 10
    with read_journal(Run.open(tmp_path / "run")) as journal:
        assert journal.charges() == []
        assert journal.totals().answered == 0
    assert len(start(tmp_path, Makes(image(4, 4, 1))).synthetic) == 20


def test_another_size_that_the_generator_declares_is_taken(tmp_path: Path) -> None:
    assert start(tmp_path, Makes(image(8, 8, 3), (8, 8, 3))).synthetic.samples.shape == (8, 8, 3)

"""Images of one colour alone, as filters and faulty weights give: kept, counted and told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.words import Words

from pe.data.images import Images
from pe.data.samples import suspicions
from pe.dispatch.dispatcher import Dispatcher
from pe.plugins.protocols import Answer, RandomRequest
from pe.progress import Progress
from pe.store.writer import RunWriter
from tests.generators import Shades

NOISE = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)
PLAIN = {"black": (0, 0, 0), "white": (255, 255, 255), "one colour": (10, 200, 30)}


class Warned(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, message: str) -> None:
        self.said.append(message)


class Spoiled(Shades):
    """Every third image is of this colour, and the next but one differs from it by two levels."""

    def __init__(self, colour: tuple[int, int, int]) -> None:
        super().__init__(max_chunk=6)
        self._colour = np.array(colour, dtype=np.uint8)

    def random_api(self, request: RandomRequest) -> Answer:
        images = NOISE[: len(request)].copy()
        images[::3] = self._colour
        images[3, 0, 0, 0] ^= 2  # as JPEG leaves it
        return Answer(Images(images))


@pytest.mark.parametrize("colour", PLAIN.values(), ids=PLAIN)
def test_images_of_one_colour_are_kept_and_told(colour: tuple[int, int, int], tmp_path: Path) -> None:
    run, progress = RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}), Warned()
    made = Dispatcher(Spoiled(colour), run, ("cat",), seed=3, progress=progress).random(np.zeros(12, np.int32))
    assert progress.said == [
        "S_0: 4 of 12 images have one colour alone. They stay: look at them before you use the data."
    ]
    assert len(made) == 12


@pytest.mark.parametrize(
    "samples", [Images(NOISE), Images(NOISE[:0]), Images(NOISE[:, :7] * 0), Words(np.array(["aaaa"]))]
)
def test_other_samples_raise_no_suspicion(samples: Images | Words) -> None:
    assert suspicions("S_0", samples) == []

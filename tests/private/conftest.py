"""Real image files for the tests of private sources."""

import numpy as np
import pytest
from PIL import Image


def pixels_of(number, height=8, width=8):
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def picture():
    """picture(path, number): writes the number's random image, makes its folders, returns its pixels."""

    def write(path, number, height=8, width=8):
        pixels = pixels_of(number, height, width)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return pixels

    return write


@pytest.fixture
def scans(tmp_path, picture):
    """Two classes, three patients (ann in both classes), five images."""
    root = tmp_path / "scans"
    names = ["good/ann/1.png", "good/ann/2.png", "good/bob/1.png", "bad/ann/3.png", "bad/eve/1.png"]
    for number, name in enumerate(names):
        picture(root / name, number)
    return root


@pytest.fixture
def read():
    """read(dataset): all valid images of a data set, and the valid flags of the real records."""

    def gather(dataset, size=3):
        images, flags = [], []
        for block, valid in dataset.blocks(size):
            assert len(block) == len(valid) == size
            assert not block.pixels[~valid].any()
            images.append(block.pixels[valid])
            flags.append(valid)
        valid = np.concatenate(flags)
        assert not valid[len(dataset) :].any()
        return np.concatenate(images), valid[: len(dataset)]

    return gather

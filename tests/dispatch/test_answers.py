"""What a generator may answer, and answers on disk."""

import numpy as np
import pytest
from PIL import Image

from pe.data.images import Images
from pe.data.samples import suspicions
from pe.dispatch.answers import decode, encode
from pe.dispatch.work import check_answer
from pe.errors import ContractError
from pe.plugins.protocols import Answer, Refused
from tests.generators import images_of
from tests.rows import defined

PICTURES, PIXELS = [Image.new("RGB", (4, 4))] * 2, np.zeros((2, 4, 4, 3), np.uint8)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: Answer(PICTURES), r"a list of samples: return pe.Answer\(pe.Images\(pixels\)\)"),
        (lambda: PICTURES, "returned list: return pe.Answer"),
        (
            lambda: Answer(Images(PICTURES)),
            r"not a list: .* np.stack\(\[np.asarray\(picture.convert\('RGB'\)\)",
        ),
        (lambda: Answer(Images(PIXELS.astype(np.float32))), "not float32: scale to 0…255"),
        (lambda: Answer(images_of(np.zeros(1))), "asked for 2 samples and returned 1"),
        (
            lambda: Answer(images_of(np.zeros(1)), missing={2: Refused("no")}),
            "returned 1 with 1 missing",
        ),
        (
            lambda: Answer(Images(PIXELS), usage={"calls": 1}),
            r"a usage that is dict: return pe\.Usage",
        ),
    ],
)
def test_what_is_no_whole_answer_is_refused_with_what_to_return(answer, said):
    with pytest.raises(ContractError, match=said):
        check_answer("Mine.random_api", answer(), 2)


@pytest.mark.parametrize("shape", [(3, 8, 8, 1), (3, 64, 64, 3), (3, 65, 20, 3), (2, 100, 100, 1)])
def test_images_of_every_size_come_back_as_they_were(shape):
    images = RNG.integers(0, 256, shape).astype(np.uint8)
    columns = {
        "images": images,
        "items": np.arange(len(images)),
        "condition.turned": np.asfortranarray(RNG.normal(size=(len(images), 5))),
        "condition.prompt": np.array(["a", "bc", ""])[: len(images)],
    }
    found = decode(np.frombuffer(b"".join(encode(columns)), np.uint8))
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        np.testing.assert_array_equal(found[name], column)
        assert found[name].dtype == column.dtype


def test_large_smooth_images_are_stored_compressed_and_small_ones_never_copied():
    ramp = np.broadcast_to(np.arange(128, dtype=np.uint8)[None, :, None, None], (4, 128, 128, 3))
    assert sum(map(len, encode({"images": ramp}))) < ramp.size / 10
    small = RNG.integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    pieces = encode({"images": small, "items": np.arange(5)})
    assert any(np.shares_memory(small, np.frombuffer(piece, np.uint8)) for piece in pieces)
    data = np.frombuffer(b"".join(pieces), np.uint8)
    assert np.shares_memory(decode(data)["images"], data)


def test_a_warning_speaks_of_images_of_one_colour():
    noise = RNG.integers(0, 256, (7, 8, 8, 3)).astype(np.uint8)
    noise[0], noise[3], noise[6] = (0, 0, 0), (255, 255, 255), (10, 200, 30)
    noise[3, 0, 0, 0] ^= 2  # as JPEG leaves it
    said = (
        "S_0: 3 of 7 images have one colour alone. They stay: look at them before you use the data."
    )
    assert suspicions("S_0", Images(noise)) == [said]
    for others in (
        Images(noise[4:6]),
        Images(noise[:0]),
        Images(noise[:, :7] * 0),
        defined("Rows")(np.zeros((1, 2))),
    ):
        assert suspicions("S_0", others) == []

"""Bodies of arrays: what comes back is what went out, and nothing else gets in."""

import random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from adapters.server.formats import (
    BatchRequest,
    FormatError,
    pack_answer,
    pack_request,
    read_answer,
    read_request,
)
from pe.plugins.protocols import Failed, Refused

RNG = np.random.default_rng(0)
SEEDS = RNG.integers(0, 2**64, 3, dtype=np.uint64)
IMAGES = RNG.integers(0, 256, (3, 4, 5, 3)).astype(np.uint8)
TEXTS = {"prompts": ("a", "Ünïcödé 🐈", ""), "negative_prompts": ("b", "", "c")}
FULL = BatchRequest(
    SEEDS, 0.25, 7, 1.5, (16, 24), images=IMAGES, classes=np.array([3, 1, 2]), model="m", **TEXTS
)


@pytest.mark.parametrize("wanted", [FULL, BatchRequest(SEEDS)], ids=["full", "bare"])
def test_a_request_comes_back_as_it_went_out(wanted: BatchRequest) -> None:
    found = read_request(pack_request(wanted))
    for name, value in vars(wanted).items():
        np.testing.assert_array_equal(
            getattr(found, name), value, strict=isinstance(value, np.ndarray)
        )


def test_an_answer_comes_back_as_it_went_out_for_as_many_images_as_were_asked_for() -> None:
    outcomes = [
        RNG.integers(0, 256, (2, 2, 1)).astype(np.uint8),
        Refused("no"),
        Failed("late"),
        Failed("bad", False),
    ]
    body = pack_answer(outcomes)
    found = read_answer(body, 4)
    np.testing.assert_array_equal(found.images, [outcomes[0]])
    assert found.places.tolist() == [0]
    assert found.missing == dict(enumerate(outcomes[1:], start=1))
    for count in (3, 5):
        with pytest.raises(FormatError, match="once"):
            read_answer(body, count)


def body(text: str | None = None, **arrays: Any) -> bytes:
    """A safetensors file with these arrays, and this JSON in its metadata."""
    return save(arrays, None if text is None else {"job": text})


BAD = {
    "a pickle": b"\x80\x04cos\nsystem\n.",
    "cut off": pack_request(FULL)[:-30],
    "a header that nests": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "no seeds": body('{"degree": 0.5}', classes=np.zeros(3, np.int64)),
    "unknown array": body(seeds=SEEDS, path=np.zeros(3, np.uint8)),
    "seeds of another shape": body(seeds=SEEDS[None]),
    "fewer images": body(seeds=SEEDS, images=np.zeros((2, 2, 2, 1), np.uint8)),
    "fewer prompts": body('{"prompts": ["a"]}', seeds=SEEDS),
    "an unknown key": body('{"path": "/etc/passwd"}', seeds=SEEDS),
    "a degree in words": body('{"degree": "1"}', seeds=SEEDS),
    "half a surrogate pair": body('{"prompts": ["\\ud800", "", ""]}', seeds=SEEDS),
    "JSON that nests": body('{"prompts":' + "[" * 100_000, seeds=SEEDS),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_request_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(FormatError, match=r"^The .*\.$|^There .*\.$"):
        read_request(BAD[name])


def test_whatever_bytes_are_changed_it_is_a_request_or_refused() -> None:
    whole, dice = pack_request(FULL), random.Random(0)
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 1, 2, 8))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            found = read_request(bytes(data))
        except FormatError:
            continue
        assert found.seeds.dtype == np.uint64

"""Bodies of arrays: what comes back is what went out, and nothing else gets in."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from adapters.server.formats import (
    BatchAnswer,
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
FULL = BatchRequest(
    SEEDS,
    degree=0.25,
    steps=7,
    guidance=1.5,
    size=(16, 24),
    images=RNG.integers(0, 256, (3, 4, 5, 3)).astype(np.uint8),
    classes=np.array([3, 1, 2]),
    prompts=("a", "Ünïcödé 🐈", ""),
    negative_prompts=("b", "", "c"),
    model="m",
)


def body(text: str | None = None, **arrays: Any) -> bytes:
    """A safetensors file with these arrays, and this JSON in its metadata."""
    return save(arrays, None if text is None else {"job": text})


def of_header(header: str, rest: bytes = b"") -> bytes:
    """A file with a header of one's own."""
    return len(header.encode()).to_bytes(8, "little") + header.encode() + rest


@pytest.mark.parametrize("wanted", [FULL, BatchRequest(SEEDS)], ids=["full", "bare"])
def test_a_request_comes_back_as_it_went_out(wanted: BatchRequest) -> None:
    found = read_request(pack_request(wanted))
    for name, value in vars(wanted).items():
        np.testing.assert_array_equal(getattr(found, name), value, strict=isinstance(value, np.ndarray))


def test_a_part_of_a_request_is_that_part_of_everything() -> None:
    part = FULL.part(1, 3)
    assert len(part) == 2
    assert (part.prompts, part.negative_prompts) == (("Ünïcödé 🐈", ""), ("", "c"))
    np.testing.assert_array_equal(part.images, FULL.images[1:])  # type: ignore[index]
    assert (part.degree, part.size, part.model) == (FULL.degree, FULL.size, FULL.model)


def test_an_answer_comes_back_as_it_went_out() -> None:
    outcomes = [RNG.integers(0, 256, (2, 2, 1)).astype(np.uint8), Refused("no"), Failed("late"), Failed("bad", False)]
    found = read_answer(pack_answer(BatchAnswer.of(outcomes)), 4)
    np.testing.assert_array_equal(found.images, [outcomes[0]])
    assert found.places.tolist() == [0]
    assert found.missing == dict(enumerate(outcomes[1:], start=1))


def test_an_answer_for_another_number_of_images_is_refused() -> None:
    data = pack_answer(BatchAnswer.of([np.zeros((2, 2, 1), np.uint8), Refused("no")]))
    for count in (1, 3):
        with pytest.raises(FormatError, match="once"):
            read_answer(data, count)


ONE = '"seeds":{"dtype":"U64","shape":[3],"data_offsets":[0,24]}'
BAD = {
    "nothing": b"",
    "a zip": b"PK nothing of the kind",
    "a pickle": b"\x80\x04cos\nsystem\n.",
    "cut off": pack_request(FULL)[:-30],
    "too long": pack_request(FULL) + b"0",
    "no seeds": body('{"degree": 0.5}', classes=np.zeros(3, np.int64)),
    "unknown array": body(seeds=SEEDS, path=np.zeros(3, np.uint8)),
    "seeds of another type": body(seeds=SEEDS.astype(np.int64)),
    "seeds of another shape": body(seeds=SEEDS[None]),
    "float images": body('{"degree": 1}', seeds=SEEDS, images=np.zeros((3, 2, 2, 1))),
    "fewer images": body(seeds=SEEDS, images=np.zeros((2, 2, 2, 1), np.uint8)),
    "fewer prompts": body('{"prompts": ["a"]}', seeds=SEEDS),
    "no JSON": body("degree=1", seeds=SEEDS),
    "no object": body("[1]", seeds=SEEDS),
    "an unknown key": body('{"path": "/etc/passwd"}', seeds=SEEDS),
    "a degree for each": body('{"degree": [1, 1, 1]}', seeds=SEEDS),
    "a degree in words": body('{"degree": "1"}', seeds=SEEDS),
    "half a step": body('{"steps": 1.5}', seeds=SEEDS),
    "a size of three": body('{"size": [1, 2, 3]}', seeds=SEEDS),
    "prompts that are no texts": body('{"prompts": ["a", "b", null]}', seeds=SEEDS),
    "half a surrogate pair": body('{"prompts": ["\\ud800", "", ""]}', seeds=SEEDS),
    "JSON that nests": body('{"prompts":' + "[" * 100_000, seeds=SEEDS),
    "a header that nests": of_header("[" * 100_000),
    "a header too long": (2**63).to_bytes(8, "little") + b"{}",
    "a header that is no JSON": of_header("__import__('os').getpid()"),
    "a huge shape": of_header('{"seeds":{"dtype":"U64","shape":[1000000000000000000],"data_offsets":[0,8]}}', b"0" * 8),
    "a negative shape": of_header('{"seeds":{"dtype":"U64","shape":[-1],"data_offsets":[0,8]}}', b"0" * 8),
    "a shape that lies": of_header('{"seeds":{"dtype":"U64","shape":[4],"data_offsets":[0,24]}}', b"0" * 24),
    "an array twice": of_header(f"{{{ONE},{ONE}}}", b"0" * 48),
    "arrays that overlap": of_header(
        f'{{{ONE},"classes":{{"dtype":"I64","shape":[3],"data_offsets":[0,24]}}}}', b"0" * 24
    ),
    "metadata that is no text": of_header(f'{{"__metadata__":{{"job":1}},{ONE}}}', b"0" * 24),
    "another type of number": of_header('{"seeds":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]}}', b"000"),
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

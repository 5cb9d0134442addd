"""npz bodies: what comes back is what went out, and nothing else gets in."""

from __future__ import annotations

import io
import random
import zipfile
from typing import Any

import numpy as np
import pytest

from adapters.server.formats import FormatError, Made, Wanted, made_of_npz, made_to_npz, wanted_of_npz, wanted_to_npz
from pe.plugins.protocols import Failed, Refused

RNG = np.random.default_rng(0)
SEEDS = RNG.integers(0, 2**64, 3, dtype=np.uint64)
FULL = Wanted(
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


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("wanted", [FULL, Wanted(SEEDS)], ids=["full", "bare"])
def test_a_request_comes_back_as_it_went_out(wanted: Wanted) -> None:
    found = wanted_of_npz(wanted_to_npz(wanted))
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
    found = made_of_npz(made_to_npz(Made.of(outcomes)), 4)
    np.testing.assert_array_equal(found.images, [outcomes[0]])
    assert found.places.tolist() == [0]
    assert found.missing == dict(enumerate(outcomes[1:], start=1))


def test_an_answer_for_another_number_of_images_is_refused() -> None:
    data = made_to_npz(Made.of([np.zeros((2, 2, 1), np.uint8), Refused("no")]))
    for count in (1, 3):
        with pytest.raises(FormatError, match="once"):
            made_of_npz(data, count)


def compressed() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, seeds=np.zeros(2**22, dtype=np.uint64))
    return buffer.getvalue()


def with_member(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO(npz(seeds=SEEDS))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def header(text: str) -> bytes:
    line = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


def text_of(code: int) -> bytes:
    return header("{'descr': '<U1', 'fortran_order': False, 'shape': (3,), }") + code.to_bytes(4, "little") * 3


BAD = {
    "nothing": b"",
    "no zip": b"PK nothing of the kind",
    "cut off": wanted_to_npz(FULL)[:-30],
    "no seeds": npz(degree=np.float64(0.5)),
    "unknown array": npz(seeds=SEEDS, path=np.array("/etc/passwd")),
    "seeds of another type": npz(seeds=SEEDS.astype(np.int64)),
    "seeds of another order": npz(seeds=SEEDS.astype(">u8")),
    "seeds of another shape": npz(seeds=SEEDS[None]),
    "objects": npz(seeds=np.array([1, "a"], dtype=object)),
    "prompts as objects": npz(seeds=SEEDS, prompts=np.array(["a", "b", None], dtype=object)),
    "prompts as bytes": npz(seeds=SEEDS, prompts=np.array([b"a", b"b", b"c"])),
    "float images": npz(seeds=SEEDS, degree=np.float64(1), images=np.zeros((3, 2, 2, 1))),
    "images in Fortran's order": npz(seeds=SEEDS, images=np.asfortranarray(np.zeros((3, 2, 2, 3), np.uint8))),
    "fewer images": npz(seeds=SEEDS, images=np.zeros((2, 2, 2, 1), np.uint8)),
    "a degree for each": npz(seeds=SEEDS, degree=np.zeros(3)),
    "a size of three": npz(seeds=SEEDS, size=np.array([1, 2, 3])),
    "a bomb": compressed(),
    "a path": with_member("../../evil.npy", b""),
    "a pickle": with_member("images.npy", b"\x80\x04N."),
    "no characters": with_member("prompts.npy", text_of(0x7FFFFFFF)),
    "half a surrogate pair": with_member("prompts.npy", text_of(0xD800)),
    "a header that is code": with_member("classes.npy", header("__import__('os').getpid()")),
    "a header that nests": with_member("classes.npy", header("(" * 100)),
    "a huge shape": with_member(
        "classes.npy", header("{'descr': '<i8', 'fortran_order': False, 'shape': (10**18,), }")
    ),
    "a negative shape": with_member(
        "images.npy", header("{'descr': '|u1','fortran_order': False,'shape': (-1,-1,1,1)}")
    ),
    "a shape that lies": with_member(
        "classes.npy", header("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }")
    ),
    "a header too long": with_member("classes.npy", b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"{"),
    "records": npz(seeds=SEEDS, classes=np.zeros(3, dtype=[("a", "i8")])),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_request_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(FormatError, match=r"^The .*\.$|^There .*\.$"):
        wanted_of_npz(BAD[name])


def test_whatever_bytes_are_changed_it_is_a_request_or_refused() -> None:
    whole, dice = wanted_to_npz(FULL), random.Random(0)
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 1, 2, 8))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            found = wanted_of_npz(bytes(data))
        except FormatError:
            continue
        assert found.seeds.dtype == np.uint64


def test_an_array_that_comes_twice_is_refused() -> None:
    buffer = io.BytesIO(npz(seeds=SEEDS))
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("seeds.npy", b"")
    with pytest.raises(FormatError, match="twice"):
        wanted_of_npz(buffer.getvalue())

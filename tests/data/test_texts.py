"""Texts: what is kept of a string, and that storing and packing lose nothing."""

import numpy as np
import pytest

from pe.data.texts import Texts, plain
from pe.errors import ContractError

ODD = ["", "naïve café", "two\r\nlines\rand a\ttab", "日本語", "مرحبا بالعالم", "👩‍👩‍👧", "x" * 300]


def test_a_text_is_kept_in_one_normal_form_without_control_characters():
    assert plain("e\u0301 a\r\nb\rc\x00\x1b[31m\x07\ud800\tz") == "é a\nb\nc[31m\tz"
    assert Texts.of(["a\x00b"]).strings == ["ab"]


@pytest.mark.parametrize("longest", [1, 2, 3, 7, 100])
def test_a_text_is_cut_between_characters(longest):
    for text, kept in zip(ODD, Texts.of(ODD, longest).strings, strict=True):
        assert plain(text).startswith(kept)
        assert len(kept.encode()) <= longest < len(kept.encode()) + 4 or kept == plain(text)


def test_what_is_packed_comes_back_to_the_bit():
    texts = Texts.of(ODD, 120)
    back = Texts.unpack(Texts.pack(texts.array))
    assert back.dtype == texts.array.dtype == "S120"
    np.testing.assert_array_equal(back, texts.array)
    assert Texts.check(texts.array)
    assert b"".join(texts.files()).decode() == "".join(texts.strings)


def test_arrays_of_anything_else_are_told_from_texts_and_refused():
    for array in (
        np.array([b"\xff"]),
        np.array([b"a\x1bb"]),
        np.zeros((2, 3), np.uint8),
        np.array(["a"]),
    ):
        assert not Texts.check(array)
    with pytest.raises(ContractError, match=r"not <U1 of shape \(1,\): make them by Texts\.of"):
        Texts(array)


def test_blank_texts_take_the_places_of_missing_ones():
    assert Texts.stack([np.bytes_(b"a"), None], (5,)).strings == ["a", ""]
    assert Texts.of(["a", "b", "c"]).only(1).strings == ["", "b", ""]
    assert "more than 2 bytes" in Texts.misfit(np.bytes_(b"abc"), (2,))
    assert not Texts.misfit(np.bytes_(b"ab"), (2,))


def test_distances_go_from_equal_to_nothing_in_common():
    one = Texts.of(["the cat sat", "the cat sat", "the cat sat", ""])
    found = one.distances(Texts.of(["the cat sat", "the cat sits", "日本語", ""]))
    assert found[0] == found[3] == 0 < found[1] < found[2] == 1

"""Images that are damaged, too large or of another format are refused in one sentence, quickly and quietly."""

import struct
import threading
import warnings
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from pe.data.decoding import MAX_PIXELS, decode_image
from pe.errors import BadImage
from tests.data.test_images import chunk, colours, decoded, encoded, png


def broken(data, times, places):
    """Copies of a file with wrong bytes at some places."""
    rng = np.random.default_rng(1)
    for _ in range(times):
        copy = bytearray(data)
        for place in rng.integers(0, len(data), places):
            copy[place] = rng.integers(256)
        yield bytes(copy)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"])
def test_truncated_files_are_refused_and_damaged_ones_are_or_are_read_and_nothing_else(kind):
    data = encoded(Image.fromarray(colours(24, 24)), kind)
    for part in (0.02, 0.3, 0.6, 0.9):
        with pytest.raises(BadImage):
            decoded(data[: int(len(data) * part)])
    for copy in broken(data, 100, 4):
        with suppress(BadImage):
            assert decoded(copy, (8, 8), "fit").shape == (8, 8, 3)


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "jpeg", "packbits", "group4"])
def test_a_library_that_meets_damage_says_nothing_on_the_console(compression, capfd):
    picture = Image.fromarray(colours(64, 64)).convert("1" if compression == "group4" else "RGB")
    for copy in broken(encoded(picture, "TIFF", compression=compression), 40, 30):
        with warnings.catch_warnings(record=True, action="always") as said, suppress(BadImage):
            decoded(copy)
        assert said == []
    assert capfd.readouterr() == ("", "")


def test_files_of_formats_off_the_list_and_files_that_are_none_are_refused_by_name(tmp_path):
    options = {"size": None, "resize": None, "channels": 3}
    for data in (b"", b"hello", b"\x89PNG\r\n\x1a\n", b"<svg xmlns='http://www.w3.org/2000/svg'/>"):
        with pytest.raises(BadImage):
            decoded(data)
    for kind in ("PPM", "ICO", "PCX", "PDF", "EPS", "TGA"):
        (tmp_path / "photo.png").write_bytes(encoded(Image.new("RGB", (4, 4)), kind))
        with pytest.raises(BadImage, match=r"photo\.png is not a readable PNG"):
            decode_image(tmp_path / "photo.png", **options)
    for path in (tmp_path, tmp_path / "none.png"):
        with pytest.raises(BadImage, match="not a readable file"):
            decode_image(path, **options)


# bombs


@pytest.mark.parametrize("side", [8_193, 9_500, 14_000, 100_000])
def test_a_bomb_is_refused_before_decoding_and_without_pillows_warning(side):
    """The sides lie below and above the sizes at which Pillow warns (89 million pixels) and raises (179)."""
    frame = bytearray(encoded(Image.new("P", (4, 4)), "GIF"))  # one larger than its screen
    at = frame.index(b",", 13)
    frame[at + 5 : at + 9] = struct.pack("<HH", min(side, 60_000), min(side, 60_000))
    for data in (png(side, side, 1, 0, b""), bytes(frame)):
        with pytest.raises(BadImage, match=f"announces more than {MAX_PIXELS:,} pixels"):
            decoded(data)


def test_the_largest_allowed_image_is_decoded():
    data = png(8192, 8192, 1, 0, b"\0" * (8192 * 1025))
    assert decoded(data, (4, 4), "crop", channels=1).shape == (4, 4, 1)


def test_a_text_or_profile_that_explodes_is_harmless_and_told_apart_from_damage():
    good = png(1, 1, 8, 0, b"\0\x07")
    with warnings.catch_warnings(action="error"):  # nor does an animation's header in the wrong place warn
        assert decoded(good[:-12] + chunk(b"acTL", bytes(8)) + good[-12:], channels=1).item() == 7
    for kind in (b"iCCP", b"zTXt"):
        with suppress(BadImage):
            bomb = chunk(kind, b"x\0\0" + zlib.compress(b"\0" * 40_000_000))
            assert decoded(good[:33] + bomb + good[33:], channels=1).item() == 7
    bomb = chunk(b"zTXt", b"x\0\0" + zlib.compress(b"\0" * 70_000_000))
    for at in (33, len(good) - 12):
        with pytest.raises(BadImage, match=r"has more than 64 MB of text or profile: save it without"):
            decoded(good[:at] + bomb + good[at:])


def test_warning_filters_survive_many_threads():
    before = list(warnings.filters)
    data = encoded(Image.new("RGB", (16, 16)))
    threads = [threading.Thread(target=lambda: [decoded(data) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before

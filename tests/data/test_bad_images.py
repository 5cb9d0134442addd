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

# damage


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"])
def test_truncated_files_are_refused(kind):
    data = encoded(Image.fromarray(colours(64, 64)), kind)
    for part in (0.02, 0.3, 0.6, 0.9):
        with pytest.raises(BadImage):
            decoded(data[: int(len(data) * part)])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"])
def test_damaged_files_are_refused_or_read_and_nothing_else(kind):
    data = bytearray(encoded(Image.fromarray(colours(24, 24)), kind))
    rng = np.random.default_rng(1)
    for _ in range(150):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 4):
            broken[place] = rng.integers(256)
        try:
            answer = decoded(bytes(broken), (8, 8), "fit")
        except BadImage:
            continue
        assert answer.shape == (8, 8, 3)


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "jpeg", "packbits", "group4"])
def test_a_library_that_meets_damage_says_nothing_on_the_console(compression, capfd):
    picture = Image.fromarray(colours(64, 64)).convert("1" if compression == "group4" else "RGB")
    data = encoded(picture, "TIFF", compression=compression)
    rng = np.random.default_rng(0)
    for _ in range(40):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 30):
            broken[place] = rng.integers(256)
        with warnings.catch_warnings(record=True, action="always") as said, suppress(BadImage):
            decoded(bytes(broken))
        assert said == []
    assert capfd.readouterr() == ("", "")


def test_an_animation_s_header_in_the_wrong_place_is_not_warned_of():
    good = png(1, 1, 8, 0, b"\0\x07")
    with warnings.catch_warnings(action="error"):
        assert decoded(good[:-12] + chunk(b"acTL", bytes(8)) + good[-12:], channels=1).item() == 7


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"<svg xmlns='http://www.w3.org/2000/svg'/>"])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(BadImage):
        decoded(data)


def test_formats_off_the_list_are_refused_even_under_a_listed_name(tmp_path):
    for kind in ("PPM", "ICO", "PCX", "PDF", "EPS", "TGA"):
        path = tmp_path / "photo.png"
        path.write_bytes(encoded(Image.new("RGB", (4, 4)), kind))
        with pytest.raises(BadImage, match=r"photo\.png is not a readable PNG"):
            decode_image(path, size=None, resize=None, channels=3)


def test_missing_files_and_folders_are_refused_by_name(tmp_path):
    for path in (tmp_path, tmp_path / "none.png"):
        with pytest.raises(BadImage, match="not a readable file"):
            decode_image(path, size=None, resize=None, channels=3)


# bombs


def test_a_header_that_announces_too_many_pixels_is_refused_before_decoding():
    with pytest.raises(BadImage, match=f"announces more than {MAX_PIXELS:,} pixels"):
        decoded(png(100_000, 100_000, 8, 2, b""))


@pytest.mark.parametrize("side", [8_193, 9_500, 12_000, 14_000])
def test_a_real_bomb_is_refused_without_pillows_warning(side):
    """The sides lie below and above the sizes at which Pillow warns (89 million pixels) and raises (179)."""
    data = png(side, side, 1, 0, b"\0" * (side * (side // 8 + 2)))
    assert len(data) < 100_000
    with pytest.raises(BadImage, match="announces more than"):
        decoded(data)


def test_a_frame_larger_than_its_screen_is_counted():
    data = bytearray(encoded(Image.new("P", (4, 4)), "GIF"))
    frame = data.index(b",", 13)
    for side in (10_000, 60_000):
        data[frame + 5 : frame + 9] = struct.pack("<HH", side, side)
        with pytest.raises(BadImage, match="announces more than"):
            decoded(bytes(data))


def test_a_compressed_profile_or_text_that_explodes_is_harmless():
    bomb = zlib.compress(b"\0" * 40_000_000)
    good = png(1, 1, 8, 0, b"\0\x07")
    for extra in (chunk(b"iCCP", b"x\0\0" + bomb), chunk(b"zTXt", b"x\0\0" + bomb)):
        with suppress(BadImage):
            assert decoded(good[:33] + extra + good[33:], channels=1).item() == 7


def test_the_largest_allowed_image_is_decoded():
    data = png(8192, 8192, 1, 0, b"\0" * (8192 * 1025))
    assert decoded(data, (4, 4), "crop", channels=1).shape == (4, 4, 1)


def test_warning_filters_survive_many_threads():
    before = list(warnings.filters)
    data = encoded(Image.new("RGB", (16, 16)))
    threads = [threading.Thread(target=lambda: [decoded(data) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before

"""Images from outside become sRGB uint8 by the stated rules, or are refused in one sentence,
quickly and quietly.
"""

import struct
import warnings
import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageCms

from pe.data.decoding import MAX_PIXELS, decode_image
from pe.errors import BadImage


def encoded(image, kind="PNG", **options):
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data, size=None, resize=None, channels=3):
    return decode_image(data, size=size, resize=resize, channels=channels)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, data, transparent=()):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    more = (
        chunk(b"tRNS", struct.pack(f">{len(transparent)}H", *transparent)) if transparent else b""
    )
    parts = chunk(b"IHDR", header), more, chunk(b"IDAT", zlib.compress(data)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def colours(height=6, width=8):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_come_back_exactly_and_jpeg_nearly(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    answer = decoded(encoded(Image.fromarray(colours()), kind, **options))
    assert (answer.dtype, answer.flags.writeable) == (np.uint8, True)
    np.testing.assert_array_equal(answer, colours())
    plain = np.full((16, 16, 3), (200, 40, 90), np.uint8)
    assert (
        np.abs(
            decoded(encoded(Image.fromarray(plain), "JPEG", quality=95)).astype(int) - plain
        ).max()
        < 6
    )


def test_a_file_of_several_frames_is_refused_with_their_number():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    for kind in ("GIF", "PNG", "TIFF", "WEBP"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        with pytest.raises(
            BadImage, match="has 3 frames or pages, and one file is one image: save the one"
        ):
            decoded(data)
        assert decoded(encoded(frames[2], kind, save_all=True, lossless=True))[0, 0].tolist() == [
            0,
            0,
            255,
        ], kind


def test_what_a_camera_adds_to_a_jpeg_is_passed_over():
    data = encoded(
        Image.new("RGB", (8, 8), "red"),
        "MPO",
        save_all=True,
        append_images=[Image.new("RGB", (8, 8))],
    )
    assert decoded(data)[0, 0, 0] > 240


def of(mode, *values):
    image = Image.new(mode, (len(values), 1))
    for place, value in enumerate(values):
        image.putpixel((place, 0), value)
    return image


def palette():
    image = of("P", 0, 1)
    image.putpalette([255, 0, 0, 0, 0, 255])
    return image


def tiff(values, **settings):
    buffer = BytesIO()
    tifffile.imwrite(buffer, values, **settings)
    return buffer.getvalue()


def bmp(*alphas):
    pixels = b"".join(bytes((0, 0, 255, alpha)) for alpha in alphas)
    masks = struct.pack("<4L", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = (
        struct.pack("<LllHHLLllLL", 108, len(alphas), 1, 1, 32, 3, len(pixels), 0, 0, 0, 0) + masks
    )
    header += b"\0" * (108 - len(header))
    offset = 14 + len(header)
    return b"BM" + struct.pack("<LLL", offset + len(pixels), 0, offset) + header + pixels


def swapped_profile():
    """sRGB with the red and blue primaries exchanged, so that applying it is plain to see."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack(">I", data[128:132])[0]
    at = {bytes(data[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    red, blue = at[b"rXYZ"], at[b"bXYZ"]
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(data)


DEEP, EIGHT_BITS = (
    np.array([[0, 255, 256, 32768, 65279, 65535]], np.uint16),
    [0, 0, 1, 128, 254, 255],
)
RED, GREEN, BLUE, WHITE = [255, 0, 0], [0, 255, 0], [0, 0, 255], [255] * 3
PIXELS = {
    "grey as colour": (encoded(of("L", 7, 9)), 3, [7, 7, 7, 9, 9, 9]),
    "colour as luma": (encoded(of("RGB", (255, 0, 0))), 1, [76]),
    "bilevel": (encoded(of("1", 0, 1)), 1, [0, 255]),
    "RGBA over white": (
        encoded(of("RGBA", (10, 10, 10, 0), (0, 0, 0, 128))),
        3,
        [*WHITE, 127, 127, 127],
    ),
    "palette": (encoded(palette()), 3, RED + BLUE),
    "palette with opacities": (encoded(palette(), transparency=b"\xff\x00"), 3, RED + WHITE),
    "transparent colour of GIF": (encoded(palette(), "GIF", transparency=0), 3, WHITE + BLUE),
    "transparent grey of PNG": (encoded(of("L", 7, 9), transparency=7), 1, [255, 9]),
    "transparent colour of PNG": (encoded(of("RGB", (1, 2, 3)), transparency=(1, 2, 3)), 3, WHITE),
    "transparent grey of 1 bit": (png(8, 1, 1, 0, b"\0\x55", [1]), 1, [0, 255] * 4),
    "transparent grey of 16 bits": (
        encoded(Image.fromarray(DEEP), transparency=0),
        1,
        [255, *EIGHT_BITS[1:]],
    ),
    "grey PNG of 16 bits": (encoded(Image.fromarray(DEEP)), 1, EIGHT_BITS),
    "colour of 16 bits": (png(2, 1, 16, 2, b"\0" + DEEP.astype(">u2").tobytes()), 3, EIGHT_BITS),
    "white is zero": (tiff(np.array([[0, 255]], np.uint8), photometric="miniswhite"), 1, [255, 0]),
    "white is zero, 16 bits": (
        tiff(np.array([[0, 65535]], np.uint16), photometric="miniswhite"),
        1,
        [255, 0],
    ),
    "CMYK": (
        encoded(of("CMYK", (255, 0, 0, 0), (51, 0, 0, 127)), "TIFF"),
        3,
        [0, 255, 255, 102, 128, 128],
    ),
    "a profile": (encoded(of("RGB", (255, 0, 0)), icc_profile=swapped_profile()), 3, BLUE),
    "a damaged profile": (encoded(of("RGB", (255, 0, 0)), icc_profile=b"not a profile"), 3, RED),
    "a profile of another mode": (encoded(of("L", 9), icc_profile=swapped_profile()), 1, [9]),
    "BMP of no opacity at all, as viewers show it": (bmp(0, 0), 3, RED + RED),
    "BMP of some opacity": (bmp(0, 255), 3, WHITE + RED),
}


@pytest.mark.parametrize("name", PIXELS)
def test_every_mode_becomes_srgb(name):
    data, channels, expected = PIXELS[name]
    assert np.abs(decoded(data, channels=channels).ravel().astype(int) - expected).max() <= 2 * (
        "profile" in name
    )


def test_12_bit_tiff_is_scaled_over_its_own_range():
    packed = bytes([0xFF, 0xF0, 0x00, 0x80, 0x08, 0x00])  # 4095, 0, 2048, 2048 in 12 bits each
    data = bytearray(tiff(np.array([[4095, 0, 2048, 2048]], np.uint16), photometric="minisblack"))
    with tifffile.TiffFile(BytesIO(bytes(data))) as file:
        page = file.pages[0]
        bits, offset = page.tags["BitsPerSample"].valueoffset, page.dataoffsets[0]
        counts = page.tags["StripByteCounts"].valueoffset
    data[bits : bits + 2] = struct.pack("<H", 12)
    data[counts : counts + 2] = struct.pack("<H", 6)
    data[offset : offset + 6] = packed
    assert decoded(bytes(data), channels=1).ravel().tolist() == [255, 0, 128, 128]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_exif_orientation_is_applied(orientation, kind):
    upright = np.kron(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40, np.ones((8, 8), np.uint8))
    undo = {6: 8, 8: 6}.get(orientation, orientation)
    turns = [
        lambda a: a,
        np.fliplr,
        lambda a: np.rot90(a, 2),
        np.flipud,
        np.transpose,
        lambda a: np.rot90(a, -1),
    ]
    turns += [lambda a: np.rot90(a, 2).T, np.rot90]
    stored = np.ascontiguousarray(turns[undo - 1](upright))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "JPEG" else {}
    answer = decoded(encoded(Image.fromarray(stored), kind, exif=exif, **options), channels=1)[
        :, :, 0
    ]
    assert answer.shape == upright.shape
    assert np.abs(answer.astype(int) - upright).max() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_whose_exif_is_damaged_is_read_or_is_a_bad_image(kind):
    image = Image.fromarray(colours())
    exif = Image.Exif()
    exif[0x010F] = "maker"
    exif[0x0112] = 6
    exif[0x011A] = 1.5
    whole = exif.tobytes()
    for place in range(6, len(whole)):
        content = whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
        with suppress(BadImage):
            assert (
                decoded(encoded(image, kind, exif=content)).size == image.width * image.height * 3
            )


@pytest.mark.parametrize(
    ("kind", "after"),
    [("zTXt", False), ("iTXt", True), ("tEXt", False), ("tEXt", True), ("iCCP", False)],
)
def test_a_png_with_megabytes_of_text_or_profile_is_read(kind, after):
    long = np.random.default_rng(0).integers(32, 127, 3_000_000, dtype=np.uint8).tobytes()
    profile = swapped_profile() + long
    body = {
        "zTXt": b"x\0\0" + zlib.compress(long),
        "iTXt": b"x\0\1\0\0\0" + zlib.compress(long),
        "tEXt": b"x\0" + long,
    }
    body["iCCP"] = b"x\0\0" + zlib.compress(struct.pack(">L", len(profile)) + profile[4:])
    data = encoded(Image.new("RGB", (2, 2), "red"))
    at = len(data) - 12 if after else 33
    made = data[:at] + chunk(kind.encode(), body[kind]) + data[at:]
    assert decoded(made)[0, 0].tolist() == (BLUE if kind == "iCCP" else RED)


def test_an_image_of_the_right_size_is_not_touched_and_without_a_rule_another_is_refused():
    data = encoded(Image.fromarray(colours(5, 7)))
    for resize in (None, "crop", "fit", "stretch"):
        np.testing.assert_array_equal(decoded(data, (5, 7), resize), colours(5, 7))
    with pytest.raises(
        BadImage, match=r"is 5×7 pixels \(height × width\), not 7×5: say how .*crop, fit or stretch"
    ):
        decoded(data, (7, 5))


def striped(bands, axis):
    """Equal bands of the given grey values side by side along `axis`, 40 pixels each."""
    pixels = np.repeat(np.array(bands, np.uint8), 40)[:, None].repeat(40, 1)
    return encoded(Image.fromarray(np.ascontiguousarray(pixels if axis == 0 else pixels.T)))


def test_crop_keeps_the_centre_fit_pads_with_black_and_stretch_ignores_the_proportions():
    for axis in (0, 1):
        assert (
            decoded(striped([0, 100, 200], axis), (10, 10), "crop", channels=1)[2:8, 2:8] == 100
        ).all()
    fitted = decoded(striped([50, 50], 1), (10, 10), "fit", channels=1)
    assert (fitted[[0, 1, 8, 9]] == 0).all()
    assert (fitted[3:7] == 50).all()
    stretched = decoded(striped([0, 200], 1), (6, 10), "stretch", channels=1)
    assert (stretched[:, :3] == 0).all()
    assert (stretched[:, -3:] == 200).all()
    assert [each.shape for each in (fitted, stretched)] == [(10, 10, 1), (6, 10, 1)]


@pytest.mark.parametrize("rule", ["crop", "fit", "stretch"])
def test_shrinking_is_antialiased_and_extreme_proportions_still_give_the_size(rule):
    checks = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    answer = decoded(encoded(Image.fromarray(checks)), (8, 8), rule, channels=1)
    assert np.abs(answer[1:-1, 1:-1].astype(int) - 128).max() < 12
    for shape in ((1, 3000), (3000, 1), (1, 1)):
        assert decoded(
            encoded(Image.fromarray(np.full(shape, 9, np.uint8))), (5, 3), rule
        ).shape == (5, 3, 3)


def test_arrays_obey_the_same_rules():
    options = {"size": None, "resize": None, "channels": 3}
    np.testing.assert_array_equal(decode_image(colours(), **options), colours())
    assert (decode_image(np.full((2, 2, 1), 65535, np.uint16), **options) == 255).all()
    assert (decode_image(np.array([[True, False]]), **options)[0] == [[255] * 3, [0] * 3]).all()
    assert (decode_image(np.zeros((2, 2, 4), np.uint8), **options) == 255).all()
    assert decode_image(colours(), size=(3, 3), resize="crop", channels=1).shape == (3, 3, 1)


PLANES = np.random.default_rng(0).integers(0, 2**16, (3, 4, 6), dtype=np.uint16)
TRANSPARENT, SIGNED = "a transparent colour of 2, 4 or 16 bits", "signed pixels"
PLANE_BY_PLANE, UNKNOWN = "16-bit colours, plane by plane", "not a readable PNG"
DEEP_ROW = b"\0" + DEEP.astype(">u2").tobytes()
MISREAD = {
    "PNG, a transparent colour of 16 bits": (
        png(2, 1, 16, 2, DEEP_ROW, [256, 32768, 65279]),
        TRANSPARENT,
    ),
    "PNG, one that could be of 8 bits": (png(2, 1, 16, 2, DEEP_ROW, [0, 0, 1]), TRANSPARENT),
    "PNG, a transparent grey of 2 bits": (png(4, 1, 2, 0, b"\0\x1b", [1]), TRANSPARENT),
    "PNG, a transparent grey of 4 bits": (png(4, 1, 4, 0, b"\0\x01\xef", [14]), TRANSPARENT),
    "TIFF, int8": (tiff(np.array([[-1, 1]], np.int8), photometric="minisblack"), SIGNED),
    "TIFF, int8, LZW": (
        tiff(np.array([[-1, 1]], np.int8), photometric="minisblack", compression="lzw"),
        SIGNED,
    ),
    "TIFF, int16": (tiff(np.array([[-1, 1]], np.int16), photometric="minisblack"), SIGNED),
    "TIFF, int32": (encoded(Image.new("I", (2, 2)), "TIFF"), SIGNED),
    "TIFF, int8, white is zero": (
        tiff(np.array([[-1, 1]], np.int8), photometric="miniswhite"),
        UNKNOWN,
    ),
    "TIFF, int8, colour": (tiff(np.zeros((2, 2, 3), np.int8), photometric="rgb"), UNKNOWN),
    "TIFF, float16, BigTIFF": (
        tiff(np.zeros((2, 2), np.float16), photometric="minisblack", bigtiff=True),
        UNKNOWN,
    ),
    "TIFF, float32": (encoded(Image.new("F", (2, 2)), "TIFF"), "no rule"),
    "TIFF, planes of 16 bits": (
        tiff(PLANES, photometric="rgb", planarconfig="separate"),
        PLANE_BY_PLANE,
    ),
    "TIFF, planes of 16 bits, CMYK": (
        tiff(
            np.repeat(PLANES, 2, 0)[:4],
            photometric="separated",
            planarconfig="separate",
            byteorder=">",
        ),
        PLANE_BY_PLANE,
    ),
}


@pytest.mark.parametrize("name", MISREAD)
def test_what_pillow_would_read_as_other_values_is_refused_with_the_reason(name):
    data, why = MISREAD[name]
    with pytest.raises(BadImage, match=f"^The image (has|is) .*{why}.*: save it "):
        decoded(data)


def test_planes_that_pillow_reads_right_are_read():
    for settings in ({"compression": "zlib"}, {"compression": "lzw", "byteorder": ">"}):
        data = tiff(PLANES, photometric="rgb", planarconfig="separate", **settings)
        np.testing.assert_array_equal(decoded(data), np.moveaxis(PLANES >> 8, 0, -1))


def test_arrays_without_a_rule_are_refused():
    for shape, dtype in (((2, 2), float), ((2, 2), int), ((2, 2, 2), np.uint8), ((0, 2), np.uint8)):
        with pytest.raises(BadImage, match="The image "):
            decode_image(np.zeros(shape, dtype), size=None, resize=None, channels=3)


def broken(data, times, places):
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
    for kind in ("PPM", "EPS"):
        (tmp_path / "photo.png").write_bytes(encoded(Image.new("RGB", (4, 4)), kind))
        with pytest.raises(BadImage, match=r"photo\.png is not a readable PNG"):
            decode_image(tmp_path / "photo.png", **options)
    with pytest.raises(BadImage, match="not a readable file"):
        decode_image(tmp_path, **options)


@pytest.mark.parametrize("side", [8_193, 9_500, 14_000, 100_000])
def test_a_bomb_is_refused_before_decoding_and_without_pillows_warning(side):
    """The sides lie below and above the sizes at which Pillow warns (89 million pixels) and raises
    (179).
    """
    frame = bytearray(encoded(Image.new("P", (4, 4)), "GIF"))  # one larger than its screen
    at = frame.index(b",", 13)
    frame[at + 5 : at + 9] = struct.pack("<HH", min(side, 60_000), min(side, 60_000))
    for data in (png(side, side, 1, 0, b""), bytes(frame)):
        with pytest.raises(BadImage, match=f"announces more than {MAX_PIXELS:,} pixels"):
            decoded(data)


def test_a_text_or_profile_that_explodes_is_harmless_and_told_apart_from_damage():
    good = png(1, 1, 8, 0, b"\0\x07")
    with warnings.catch_warnings(
        action="error"
    ):  # nor does an animation's header in the wrong place warn
        assert decoded(good[:-12] + chunk(b"acTL", bytes(8)) + good[-12:], channels=1).item() == 7
    for kind in (b"iCCP", b"zTXt"):
        with suppress(BadImage):
            bomb = chunk(kind, b"x\0\0" + zlib.compress(b"\0" * 40_000_000))
            assert decoded(good[:33] + bomb + good[33:], channels=1).item() == 7
    bomb = chunk(b"zTXt", b"x\0\0" + zlib.compress(b"\0" * 70_000_000))
    for at in (33, len(good) - 12):
        with pytest.raises(
            BadImage, match=r"has more than 64 MB of text or profile: save it without"
        ):
            decoded(good[:at] + bomb + good[at:])

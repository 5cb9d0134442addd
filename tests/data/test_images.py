"""Images from outside become sRGB uint8 by the stated rules, or are refused in one sentence."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageCms

from pe.data.decoding import convert_pixels, decode_image
from pe.errors import BadImage, RecipeError


def encoded(image, kind="PNG", **options):
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data, size=None, resize=None, channels=3):
    return decode_image(data, size=size, resize=resize, channels=channels)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, data):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(data)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def colours(height=6, width=8):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


# formats and colour modes


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_come_back_exactly(kind):
    pixels = colours()
    options = {"lossless": True} if kind == "WEBP" else {}
    answer = decoded(encoded(Image.fromarray(pixels), kind, **options))
    assert answer.dtype == np.uint8
    assert answer.flags.writeable
    np.testing.assert_array_equal(answer, pixels)


def test_jpeg_comes_back_nearly():
    pixels = np.full((16, 16, 3), (200, 40, 90), np.uint8)
    assert np.abs(decoded(encoded(Image.fromarray(pixels), "JPEG", quality=95)).astype(int) - pixels).max() < 6


def test_a_file_of_several_frames_is_refused_with_their_number():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    for kind in ("GIF", "PNG", "TIFF", "WEBP"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        with pytest.raises(
            BadImage, match="has 3 frames or pages, and one file is one image: save the one that is meant"
        ):
            decoded(data)
        assert decoded(encoded(frames[2], kind, save_all=True, lossless=True))[0, 0].tolist() == [0, 0, 255], kind


def test_what_a_camera_adds_to_a_jpeg_is_passed_over():
    data = encoded(Image.new("RGB", (8, 8), "red"), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    assert decoded(data)[0, 0, 0] > 240


def test_a_grey_image_gets_three_equal_channels_and_a_colour_image_its_luma():
    grey = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
    np.testing.assert_array_equal(decoded(encoded(Image.fromarray(grey))), np.repeat(grey[:, :, None], 3, 2))
    np.testing.assert_array_equal(decoded(encoded(Image.fromarray(grey)), channels=1)[:, :, 0], grey)
    assert decoded(encoded(Image.new("RGB", (2, 2), (255, 0, 0))), channels=1).ravel().tolist() == [76] * 4


def test_bilevel_is_black_and_white():
    image = Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
    assert decoded(encoded(image), channels=1).ravel().tolist() == [0, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_composited_over_white(mode):
    colour = (10, 10, 10, 0) if mode == "RGBA" else (10, 0)
    half = (0, 0, 0, 128) if mode == "RGBA" else (0, 128)
    image = Image.new(mode, (2, 1), colour)
    image.putpixel((1, 0), half)
    assert decoded(encoded(image))[0].tolist() == [[255] * 3, [127] * 3]


def test_palette_images_and_their_transparent_colour():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    assert decoded(encoded(image))[0].tolist() == [[255, 0, 0], [0, 0, 255]]
    assert decoded(encoded(image, transparency=b"\xff\x00"))[0].tolist() == [[255, 0, 0], [255, 255, 255]]
    assert decoded(encoded(image, "GIF", transparency=0))[0].tolist() == [[255, 255, 255], [0, 0, 255]]


def test_the_transparent_grey_and_colour_of_a_png():
    grey = encoded(Image.fromarray(np.array([[7, 9]], np.uint8)), transparency=7)
    assert decoded(grey, channels=1).ravel().tolist() == [255, 9]
    colour = encoded(Image.new("RGB", (1, 1), (1, 2, 3)), transparency=(1, 2, 3))
    assert decoded(colour).ravel().tolist() == [255] * 3
    deep = encoded(Image.fromarray(np.array([[700, 60000]], np.uint16)), transparency=700)
    assert decoded(deep, channels=1).ravel().tolist() == [255, 60000 >> 8]


def test_16_bit_grey_is_scaled_over_its_full_range():
    values = np.array([[0, 255, 256, 32768, 65279, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        data = encoded(Image.fromarray(values), kind)
        assert decoded(data, channels=1).ravel().tolist() == [0, 0, 1, 128, 254, 255], kind


def test_16_bit_colour_is_scaled_by_the_same_rule():
    values = np.array([0, 255, 256, 32768, 65279, 65535], ">u2")
    assert decoded(png(2, 1, 16, 2, b"\0" + values.tobytes())).ravel().tolist() == [0, 0, 1, 128, 254, 255]


def test_12_bit_tiff_is_scaled_over_its_own_range(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    packed = bytes([0xFF, 0xF0, 0x00, 0x80, 0x08, 0x00])  # 4095, 0, 2048, 2048 in 12 bits each
    buffer = BytesIO()
    tifffile.imwrite(buffer, np.array([[4095, 0, 2048, 2048]], np.uint16), photometric="minisblack")
    data = bytearray(buffer.getvalue())
    with tifffile.TiffFile(BytesIO(bytes(data))) as file:
        page = file.pages[0]
        bits, offset = page.tags["BitsPerSample"].valueoffset, page.dataoffsets[0]
        counts = page.tags["StripByteCounts"].valueoffset
    data[bits : bits + 2] = struct.pack("<H", 12)
    data[counts : counts + 2] = struct.pack("<H", 6)
    data[offset : offset + 6] = packed
    assert decoded(bytes(data), channels=1).ravel().tolist() == [255, 0, 128, 128]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_tiff_in_which_white_is_zero_is_inverted(dtype):
    tifffile = pytest.importorskip("tifffile")
    buffer = BytesIO()
    tifffile.imwrite(buffer, np.array([[0, np.iinfo(dtype).max]], dtype), photometric="miniswhite")
    assert decoded(buffer.getvalue(), channels=1).ravel().tolist() == [255, 0]


def test_cmyk_without_a_profile_is_converted_by_the_stated_formula():
    image = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    assert decoded(encoded(image, "TIFF"))[0, 0].tolist() == [0, 255, 255]
    assert np.abs(decoded(encoded(image, "JPEG"))[0, 0].astype(int) - (0, 255, 255)).max() < 4


@pytest.mark.parametrize("image", [Image.new("F", (2, 2)), Image.new("I", (2, 2))])
def test_pixels_without_a_rule_are_refused(image):
    with pytest.raises(BadImage, match="no rule"):
        decoded(encoded(image, "TIFF"))


def swapped_profile():
    """sRGB with the red and blue primaries exchanged, so that applying it is plain to see."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack(">I", data[128:132])[0]
    at = {bytes(data[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    red, blue = at[b"rXYZ"], at[b"bXYZ"]
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(data)


def test_an_embedded_profile_is_converted_to_srgb():
    image = Image.new("RGB", (2, 2), (255, 0, 0))
    assert np.abs(decoded(encoded(image, icc_profile=swapped_profile()))[0, 0].astype(int) - (0, 0, 255)).max() < 3
    plain = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert np.abs(decoded(encoded(image, icc_profile=plain))[0, 0].astype(int) - (255, 0, 0)).max() < 2


def test_a_profile_that_is_damaged_or_of_another_mode_is_ignored():
    image = Image.new("RGB", (2, 2), (255, 0, 0))
    assert (decoded(encoded(image, icc_profile=b"not a profile")) == (255, 0, 0)).all()
    assert (decoded(encoded(Image.new("L", (2, 2), 9), icc_profile=swapped_profile())) == 9).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_exif_orientation_is_applied(orientation, kind):
    upright = np.kron(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40, np.ones((8, 8), np.uint8))
    undo = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}[orientation]
    turns = [lambda a: a, np.fliplr, lambda a: np.rot90(a, 2), np.flipud, np.transpose, lambda a: np.rot90(a, -1)]
    turns += [lambda a: np.rot90(a, 2).T, np.rot90]
    stored = np.ascontiguousarray(turns[undo - 1](upright))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "JPEG" else {}
    answer = decoded(encoded(Image.fromarray(stored), kind, exif=exif, **options), channels=1)[:, :, 0]
    assert answer.shape == upright.shape
    assert np.abs(answer.astype(int) - upright).max() <= 3


def test_a_bmp_whose_opacity_is_0_everywhere_is_opaque_as_viewers_show_it():
    def bmp(*alphas):
        pixels = b"".join(bytes((0, 0, 255, alpha)) for alpha in alphas)
        masks = struct.pack("<4L", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
        header = struct.pack("<LllHHLLllLL", 108, len(alphas), 1, 1, 32, 3, len(pixels), 0, 0, 0, 0) + masks
        header += b"\0" * (108 - len(header))
        offset = 14 + len(header)
        return b"BM" + struct.pack("<LLL", offset + len(pixels), 0, offset) + header + pixels

    assert decoded(bmp(0, 0))[0].tolist() == [[255, 0, 0]] * 2
    assert decoded(bmp(0, 255))[0].tolist() == [[255, 255, 255], [255, 0, 0]]
    assert decoded(encoded(Image.new("RGBA", (1, 1), (255, 0, 0, 0))))[0].tolist() == [[255, 255, 255]]


@pytest.mark.parametrize("kind", ["zTXt", "iTXt", "tEXt", "iCCP"])
@pytest.mark.parametrize("after", [False, True])
def test_a_png_with_megabytes_of_text_or_profile_is_read(kind, after):
    if (kind, after) == ("iCCP", True):
        return
    long = np.random.default_rng(0).integers(32, 127, 3_000_000, dtype=np.uint8).tobytes()
    profile = swapped_profile() + long
    body = {"zTXt": b"x\0\0" + zlib.compress(long), "iTXt": b"x\0\1\0\0\0" + zlib.compress(long), "tEXt": b"x\0" + long}
    body["iCCP"] = b"x\0\0" + zlib.compress(struct.pack(">L", len(profile)) + profile[4:])
    data = encoded(Image.new("RGB", (2, 2), "red"))
    at = len(data) - 12 if after else 33
    made = data[:at] + chunk(kind.encode(), body[kind]) + data[at:]
    assert decoded(made)[0, 0].tolist() == ([0, 0, 255] if kind == "iCCP" else [255, 0, 0])


def test_a_png_with_more_text_than_is_read_is_told_apart_from_a_damaged_one():
    data = encoded(Image.new("RGB", (2, 2), "red"))
    bomb = chunk(b"zTXt", b"x\0\0" + zlib.compress(b"\0" * 70_000_000))
    for at in (33, len(data) - 12):
        with pytest.raises(BadImage, match=r"has more than 64 MB of text or profile: save it without"):
            decoded(data[:at] + bomb + data[at:])


# sizes


def test_an_image_of_the_right_size_is_not_touched():
    pixels = colours(5, 7)
    for resize in (None, "crop", "fit", "stretch"):
        np.testing.assert_array_equal(decoded(encoded(Image.fromarray(pixels)), (5, 7), resize), pixels)


def test_without_a_rule_another_size_is_refused():
    with pytest.raises(BadImage, match=r"is 5×7 pixels \(height × width\), not 7×5: say how .*crop, fit or stretch"):
        decoded(encoded(Image.fromarray(colours(5, 7))), (7, 5))


def striped(bands, axis):
    """Equal bands of the given grey values side by side along `axis`, 40 pixels each."""
    pixels = np.repeat(np.array(bands, np.uint8), 40)[:, None].repeat(40, 1)
    return encoded(Image.fromarray(np.ascontiguousarray(pixels if axis == 0 else pixels.T)))


def test_crop_keeps_the_centre_and_the_proportions():
    wide, tall = striped([0, 100, 200], 1), striped([0, 100, 200], 0)
    for data in (wide, tall):
        answer = decoded(data, (10, 10), "crop", channels=1)
        assert answer.shape == (10, 10, 1)
        assert (answer[2:8, 2:8] == 100).all()


def test_fit_pads_with_black():
    answer = decoded(striped([50, 50], 1), (10, 10), "fit", channels=1)[:, :, 0]
    assert answer.shape == (10, 10)
    assert (answer[:2] == 0).all()
    assert (answer[8:] == 0).all()
    assert (answer[3:7] == 50).all()


def test_stretch_ignores_the_proportions():
    answer = decoded(striped([0, 200], 1), (6, 10), "stretch", channels=1)[:, :, 0]
    assert answer.shape == (6, 10)
    assert (answer[:, :3] == 0).all()
    assert (answer[:, -3:] == 200).all()


def test_shrinking_is_antialiased():
    checks = np.indices((64, 64)).sum(0) % 2 * np.uint8(255)
    for rule in ("crop", "fit", "stretch"):
        answer = decoded(encoded(Image.fromarray(checks.astype(np.uint8))), (8, 8), rule, channels=1)
        assert np.abs(answer[1:-1, 1:-1].astype(int) - 128).max() < 12, rule


@pytest.mark.parametrize("shape", [(1, 3000), (3000, 1), (1, 1)])
@pytest.mark.parametrize("rule", ["crop", "fit", "stretch"])
def test_extreme_proportions_still_give_the_size(shape, rule):
    assert decoded(encoded(Image.fromarray(np.full(shape, 9, np.uint8))), (5, 3), rule).shape == (5, 3, 3)


def test_a_wrong_rule_is_the_callers_mistake():
    data = encoded(Image.new("L", (2, 2)))
    with pytest.raises(RecipeError, match="'zoom' is unknown"):
        decode_image(data, size=(2, 2), resize="zoom", channels=1)
    with pytest.raises(RecipeError, match="needs a size"):
        decode_image(data, size=None, resize="crop", channels=1)


# arrays


def test_arrays_obey_the_same_rules():
    pixels = colours()
    options = {"size": None, "resize": None, "channels": 3}
    np.testing.assert_array_equal(convert_pixels(pixels, **options), pixels)
    assert (convert_pixels(np.full((2, 2, 1), 65535, np.uint16), **options) == 255).all()
    assert (convert_pixels(np.array([[True, False]]), **options)[0] == [[255] * 3, [0] * 3]).all()
    assert (convert_pixels(np.zeros((2, 2, 4), np.uint8), **options) == 255).all()
    assert convert_pixels(pixels, size=(3, 3), resize="crop", channels=1).shape == (3, 3, 1)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2)), np.zeros((2, 2), int), np.zeros((2, 2, 2), np.uint8), np.zeros((0, 2), np.uint8)]
)
def test_arrays_without_a_rule_are_refused(array):
    with pytest.raises(BadImage):
        convert_pixels(array, size=None, resize=None, channels=3)

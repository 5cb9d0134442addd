"""DICOM and medical TIFF: a declared window, inversion, patients as units, headers that stay
inside.
"""

import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

from pe.private import medical
from pe.private.dataset import NOBODY
from pe.private.folder import ImageFolder
from pe.private.medical import Dicom
from tests.private import records
from tests.private.records import PIXELS, read, write

pydicom = pytest.importorskip("pydicom")
tifffile = pytest.importorskip("tifffile")
pytestmark = pytest.mark.filterwarnings("ignore:Medical images may have")

VALUES = np.arange(16, dtype=np.int16).reshape(4, 4) * 100 - 800  # -800 … 700


def dicom(
    path, values=VALUES, photometric="MONOCHROME2", patient="Doe^Jane", slope=1, intercept=0, **more
):
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        pydicom.uid.CTImageStorage,
        "1.2.3",
    )
    meta.TransferSyntaxUID = more.pop("syntax", pydicom.uid.ExplicitVRLittleEndian)
    data = pydicom.dataset.FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    bits, is_colour = values.dtype.itemsize * 8, values.ndim == 3
    elements = {
        "SOPClassUID": meta.MediaStorageSOPClassUID,
        "SOPInstanceUID": "1.2.3",
        "PatientName": "SECRET NAME",
    }
    elements |= {"PatientID": patient, "Rows": values.shape[0], "Columns": values.shape[1]}
    elements |= {
        "SamplesPerPixel": 3 if is_colour else 1,
        "PlanarConfiguration": 0 if is_colour else None,
    }
    elements |= {"BitsAllocated": bits, "BitsStored": bits, "HighBit": bits - 1}
    elements |= {
        "PhotometricInterpretation": photometric,
        "PixelRepresentation": int(values.dtype.kind == "i"),
    }
    elements |= {
        "PixelData": values.tobytes(),
        "RescaleSlope": slope,
        "RescaleIntercept": intercept,
    }
    for key, value in (elements | more).items():
        setattr(data, key, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return data


def source(root, **settings):
    return Dicom(root, **{"size": 4, "window": (0, 1600), "channels": 1} | settings)


def read_one(root, **settings):
    return read(source(root, **settings).open())[0][0, :, :, 0]


def refused(root, part, **settings):
    said = records.refused(source(root, **settings), part)
    assert "SECRET" not in said
    assert "Doe" not in said


EXPECTED, INVERTED = (np.rint((0.5 + sign * VALUES / 1600) * 255).astype(int) for sign in (1, -1))
COLOUR = PIXELS[0, :4, :4]


def test_a_window_maps_its_width_to_0_to_255_and_not_a_number_to_black():
    values = np.array([[-101, -100, 0, 100, 101, np.nan, np.inf, -np.inf]])
    assert medical.apply_window(values, (0, 200), invert=False).tolist() == [
        [0, 0, 128, 255, 255, 0, 255, 0]
    ]
    assert medical.apply_window(values, (0, 200), invert=True).tolist() == [
        [255, 255, 128, 0, 0, 0, 0, 255]
    ]


@pytest.mark.parametrize(
    ("values", "more", "expected"),
    [
        (VALUES, {}, EXPECTED),
        ((VALUES + 1024).astype(np.uint16), {"intercept": -1024}, EXPECTED),
        (VALUES // 100, {"slope": 100}, EXPECTED),
        # an element that is there and empty is as one that is missing
        (
            VALUES,
            {"slope": None, "intercept": "", "NumberOfFrames": None, "ModalityLUTSequence": []},
            EXPECTED,
        ),
        (VALUES, {"photometric": "MONOCHROME1"}, INVERTED),
    ],
)
def test_the_window_is_applied_after_rescaling(tmp_path, values, more, expected):
    dicom(tmp_path / "1.dcm", values, **more)
    np.testing.assert_array_equal(read_one(tmp_path), expected)


def test_an_enhanced_object_whose_rescale_stands_in_a_group_is_refused(tmp_path):
    data, group, rescale = (
        dicom(tmp_path / "1.dcm", NumberOfFrames=1),
        pydicom.Dataset(),
        pydicom.Dataset(),
    )
    rescale.RescaleSlope, rescale.RescaleIntercept, rescale.RescaleType = 100, 0, "US"
    group.PixelValueTransformationSequence = [rescale]
    data.SharedFunctionalGroupsSequence = [group]
    data.save_as(tmp_path / "1.dcm")
    refused(tmp_path, r"1\.dcm is neither monochrome with a linear rescale in its header")


@pytest.mark.parametrize("signed", [False, True])
def test_values_are_the_stored_bits_whatever_the_others_hold(tmp_path, signed):
    """Such as the overlays of old files."""
    values = (VALUES if signed else VALUES + 800).astype(np.int64) % 2**12
    noise = np.random.default_rng(0).integers(0, 2**16, VALUES.shape) & 0xF000
    kind = {
        "BitsStored": 12,
        "HighBit": 11,
        "PixelRepresentation": int(signed),
        "intercept": 0 if signed else -800,
    }
    dicom(tmp_path / "1.dcm", (values | noise).astype(np.uint16), **kind)
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)


@pytest.mark.parametrize(
    ("stored", "high", "signed"), [(12, 15, 0), (12, 15, 1), (10, 13, 1), (16, 11, 0)]
)
def test_values_that_do_not_end_at_the_lowest_bit_are_refused(tmp_path, stored, high, signed):
    values = ((VALUES // 100 + 8) << (16 - stored)).astype(np.uint16)
    dicom(tmp_path / "1.dcm", values, BitsStored=stored, HighBit=high, PixelRepresentation=signed)
    refused(
        tmp_path,
        r"1\.dcm has values that do not end at the lowest bit: save it with HighBit = BitsStored - "
        r"1",
    )


def test_colours_of_fewer_bits_are_refused(tmp_path):
    dicom(tmp_path / "1.dcm", COLOUR, photometric="RGB", BitsStored=6, HighBit=5)
    refused(tmp_path, r"1\.dcm is neither monochrome .* nor 8-bit RGB", window=None, channels=3)


def test_compressed_dicom_is_read_and_deflated_is_refused(tmp_path):
    data = dicom(tmp_path / "1.dcm")
    data.compress(pydicom.uid.RLELossless)
    data.save_as(tmp_path / "1.dcm")
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)
    dicom(tmp_path / "1.dcm", syntax=pydicom.uid.DeflatedExplicitVRLittleEndian)
    refused(tmp_path, "deflated")


def test_a_file_without_a_preamble_is_read(tmp_path):
    data = pydicom.Dataset()
    data.update(dicom(tmp_path / "1.dcm", patient="p"))
    data.save_as(tmp_path / "1.dcm", implicit_vr=True, little_endian=True)
    assert b"DICM" not in (tmp_path / "1.dcm").read_bytes()
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)
    assert source(tmp_path, privacy_unit="PatientID").open().units.tolist() == [0]


@pytest.mark.parametrize("planar", [None, "contig", "separate"])
def test_colour_has_no_window(tmp_path, planar):
    if planar is None:
        dicom(tmp_path / "1.dcm", COLOUR, photometric="RGB")
    else:
        stored = COLOUR if planar == "contig" else np.ascontiguousarray(np.moveaxis(COLOUR, 2, 0))
        tifffile.imwrite(tmp_path / "1.tif", stored, photometric="rgb", planarconfig=planar)
    np.testing.assert_array_equal(
        read(source(tmp_path, channels=3, window=None).open())[0][0], COLOUR
    )
    dicom(tmp_path / "2.dcm")
    refused(tmp_path, r"2\.dcm is not in colour: declare a window", window=None, channels=3)
    (bad,) = source(tmp_path, window=None, channels=3, on_bad_record="skip").open().check()
    assert bad.index == 1


def test_file_names_without_suffix_and_of_numbers_are_dicom_and_burned_in_text_is_always_warned_of(
    tmp_path,
):
    dicom(tmp_path / "IM0001")
    dicom(tmp_path / "1.2.840.113619.2")
    write(tmp_path / "DICOMDIR", b"?")
    with pytest.warns(UserWarning, match="burned into their pixels") as caught:
        assert len(source(tmp_path).open()) == 2
    assert [str(one.message) for one in caught] == [medical.BURNED_IN]


def test_patients_are_units(tmp_path):
    for number, patient in enumerate(["p1", "p2", "p1 ", "p3"]):
        dicom(tmp_path / f"{'ab'[number % 2]}/{number}.dcm", patient=patient)
    settings = {"privacy_unit": "PatientID", "classes": ["a", "b"]}
    data = source(tmp_path, **settings).open()
    assert (data.unit_name, data.units.tolist()) == ("PatientID", [0, 0, 1, 2])
    write(tmp_path / "labels.csv", b"file,label,PatientID\na/0.dcm,a,x\nb/1.dcm,b,x\n")
    assert source(tmp_path, **settings).open().units.tolist() == [0, 0]
    (tmp_path / "labels.csv").unlink()
    for patient in (None, "  "):
        dicom(tmp_path / "b/4.dcm", patient=patient)
        refused(tmp_path, r"4\.dcm has no usable PatientID", **settings)
        data = source(tmp_path, **settings, on_bad_record="skip").open()
        assert [bad.index for bad in data.check()] == [len(data) - 1]
        assert data.units[-1] == NOBODY


def test_an_unreadable_header_is_a_bad_image_from_there_on(tmp_path):
    dicom(tmp_path / "1.dcm")
    write(tmp_path / "2.dcm", b"no DICOM")
    refused(tmp_path, r"2\.dcm is not a readable DICOM file", privacy_unit="PatientID")
    data = source(tmp_path, privacy_unit="PatientID", on_bad_record="skip").open()
    assert [bad.index for bad in data.check()] == [1]
    assert data.units.tolist() == [0, NOBODY]
    write(
        tmp_path / "2.dcm", (tmp_path / "1.dcm").read_bytes()
    )  # its unit is not known, so it may not vote
    assert read(data)[1].tolist() == [True, False]


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"NumberOfFrames": 2, "PixelData": VALUES.tobytes() * 2}, "has 2 frames or pages"),
        ({"Rows": 60_000, "Columns": 60_000}, "announces no pixels or more than"),
        ({"Rows": 40}, "damaged"),
        ({"photometric": "PALETTE COLOR"}, "neither monochrome"),
        ({"PixelData": VALUES.tobytes()[:10]}, "damaged"),
        ({"PhotometricInterpretation": None}, "it has no PhotometricInterpretation"),
        ({"PixelData": None}, "it has no PixelData"),
    ],
)
def test_dicom_that_cannot_be_read_is_a_bad_image(tmp_path, more, part):
    data = dicom(tmp_path / "1.dcm", **more)
    refused(tmp_path, part)
    for name in [name for name, value in more.items() if value is None]:
        delattr(data, name)
        data.save_as(tmp_path / "1.dcm")
        refused(tmp_path, part)


@pytest.mark.parametrize("name", ["1.dcm", "1.tif"])
def test_truncated_and_foreign_files_are_bad_images(tmp_path, name):
    (dicom if name == "1.dcm" else tifffile.imwrite)(tmp_path / name, VALUES)
    whole = (tmp_path / name).read_bytes()
    for data in (whole[:-9], whole[:200], whole[:60], b"", b"hello"):
        write(tmp_path / name, data)
        refused(tmp_path, rf"{name} is ")


@pytest.mark.parametrize(
    ("values", "settings", "expected"),
    [
        (VALUES, {"compression": "lzw"}, EXPECTED),
        (VALUES.astype(np.int32), {"compression": "zlib"}, EXPECTED),
        (VALUES.astype(np.float64), {}, EXPECTED),
        (VALUES, {"photometric": "miniswhite"}, INVERTED),
    ],
)
def test_tiff_of_any_number_type_goes_through_the_window(tmp_path, values, settings, expected):
    tifffile.imwrite(tmp_path / "1.tif", values, **settings)
    np.testing.assert_array_equal(read_one(tmp_path), expected)


RGBA = np.concatenate([COLOUR, np.full((4, 4, 1), 255, np.uint8)], 2)


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        (RGBA, {"photometric": "separated"}),  # CMYK
        (RGBA, {"photometric": "rgb", "extrasamples": ["assocalpha"]}),
        (RGBA, {"photometric": "rgb", "extrasamples": ["unspecified"]}),
        (COLOUR, {"photometric": "ycbcr"}),
        (COLOUR, {"photometric": "cielab"}),
        (COLOUR[:, :, 0], {"photometric": "palette", "colormap": np.zeros((3, 256), np.uint16)}),
        (VALUES.astype(np.complex64), {"photometric": "minisblack"}),
    ],
)
def test_a_tiff_of_other_colours_is_refused(tmp_path, values, settings):
    tifffile.imwrite(tmp_path / "1.tif", values, **settings)
    refused(tmp_path, r"1\.tif is neither grey nor RGB", window=(0, 1600), channels=3)


def test_a_tiff_in_colour_is_read_with_a_plain_opacity_and_from_jpeg(tmp_path):
    settings = {"channels": 3, "window": None}
    tifffile.imwrite(
        tmp_path / "1.tif",
        RGBA.astype(np.uint16) * 257,
        photometric="rgb",
        extrasamples=["unassalpha"],
    )
    np.testing.assert_array_equal(read(source(tmp_path, **settings).open())[0][0], COLOUR)
    plain = np.full((4, 4, 3), (200, 40, 90), np.uint8)
    tifffile.imwrite(
        tmp_path / "1.tif",
        plain,
        photometric="rgb",
        compression="jpeg",
        compressionargs={"level": 99},
    )
    assert np.abs(read(source(tmp_path, **settings).open())[0][0].astype(int) - plain).max() < 6


def size_of_jpeg(data):
    frame = data.index(b"\xff\xc0")
    return data[: frame + 5] + struct.pack(">HH", 40_000, 40_000) + data[frame + 9 :]


def size_of_png(data):
    header = data[12:16] + struct.pack(">II", 40_000, 40_000) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@pytest.mark.parametrize(
    ("compression", "enlarge", "part"),
    [("jpeg", size_of_jpeg, "announces no pixels or more than"), ("png", size_of_png, "damaged")],
)
def test_a_strip_that_is_a_larger_image_than_its_file_is_not_decoded(
    tmp_path, compression, enlarge, part, monkeypatch
):
    values = np.arange(64, dtype=np.uint8).reshape(8, 8)
    tifffile.imwrite(tmp_path / "1.tif", values, compression=compression)
    assert len(read(source(tmp_path, size=8).open())[0]) == 1
    with tifffile.TiffFile(tmp_path / "1.tif") as file:
        start, length = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    data = (tmp_path / "1.tif").read_bytes()
    strip = enlarge(data[start : start + length])
    write(tmp_path / "1.tif", data[:start] + strip + data[start + length :])
    monkeypatch.setattr(tifffile.TiffPage, "asarray", lambda *_, **__: values)
    refused(tmp_path, part, size=8)


def test_a_strip_of_jpeg_without_a_header_is_a_bad_record_soon(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (1000, 1000), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "1.tif", values, compression="jpeg")
    with tifffile.TiffFile(tmp_path / "1.tif") as file:
        start, length = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    data = (tmp_path / "1.tif").read_bytes()
    strip = b"\xff" * (length - 1) + b"\0"
    write(tmp_path / "1.tif", data[:start] + strip + data[start + length :])
    began = time.monotonic()
    refused(tmp_path, "damaged", size=1000)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("colour", [False, True])
def test_the_orientation_of_a_tiff_is_applied_as_it_is_to_a_folder_s(tmp_path, orientation, colour):
    values = PIXELS[0, :4, :6] if colour else PIXELS[0, :4, :6, 0]
    settings = {"photometric": "rgb"} if colour else {}
    tifffile.imwrite(
        tmp_path / "1.tif", values, extratags=[(274, "H", 1, orientation, True)], **settings
    )
    size = {"size": (6, 4) if orientation > 4 else (4, 6), "channels": 3}
    plain, ours = (
        ImageFolder(tmp_path, **size).open(),
        Dicom(tmp_path, window=(127.5, 255), **size).open(),
    )
    np.testing.assert_array_equal(read(ours)[0], read(plain)[0])


def test_what_tifffile_logs_of_a_record_does_not_reach_the_console(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, VALUES.astype(np.uint16), resolution=(1, 1))
    data = bytearray(path.read_bytes())
    tag = data.index(struct.pack("<HHI", 282, 5, 1))
    data[tag + 8 : tag + 12] = (
        b"\xff" * 4
    )  # the resolution lies beyond the end; the pixels are whole
    path.write_bytes(data)
    code = (
        "import sys; from pe.private.medical import Dicom;print(Dicom(sys.argv[1], size=4, "
        "window=(0, 1600), channels=1).open().check())"
    )
    command = [sys.executable, "-W", "ignore:Medical images", "-c", code, tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("tags", "part"),
    [
        ({"StripByteCounts": 0}, "is truncated or damaged"),  # tifffile alone would give zeros
        ({"ImageWidth": 60_000, "ImageLength": 60_000}, "announces no pixels or more than"),
        ({}, "has 2 frames or pages"),
    ],
)
def test_tiff_that_cannot_be_read_is_a_bad_image(tmp_path, tags, part):
    tifffile.imwrite(
        tmp_path / "1.tif", VALUES if tags else np.stack([VALUES] * 2), photometric="minisblack"
    )
    with tifffile.TiffFile(tmp_path / "1.tif", mode="r+") as file:
        for name, value in tags.items():
            file.pages[0].tags[name].overwrite(value)
    refused(tmp_path, part)

"""DICOM and medical TIFF: a declared window, inversion, patients as units, headers that stay inside."""

import struct
import subprocess
import sys

import numpy as np
import pytest

from pe.errors import PrivateDataError
from pe.private import Dicom, ImageFolder
from pe.private.dataset import NOBODY
from pe.private.medical import apply_window

pydicom = pytest.importorskip("pydicom")
tifffile = pytest.importorskip("tifffile")
pytestmark = pytest.mark.filterwarnings("ignore:Medical images may have")

VALUES = np.arange(16, dtype=np.int16).reshape(4, 4) * 100 - 800  # -800 … 700


def dicom(
    path, values=VALUES, photometric="MONOCHROME2", patient="Doe^Jane", slope=1, intercept=0, syntax=None, **more
):
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
    meta.TransferSyntaxUID = syntax or ExplicitVRLittleEndian
    data = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    data.PatientName = "SECRET NAME"
    if patient is not None:
        data.PatientID = patient
    data.Rows, data.Columns = values.shape[:2]
    data.SamplesPerPixel = 3 if values.ndim == 3 else 1
    if values.ndim == 3:
        data.PlanarConfiguration = 0
    data.PhotometricInterpretation = photometric
    data.BitsAllocated = data.BitsStored = values.dtype.itemsize * 8
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(values.dtype.kind == "i")
    data.RescaleSlope, data.RescaleIntercept = slope, intercept
    data.PixelData = values.tobytes()
    for key, value in more.items():
        setattr(data, key, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return data


def source(root, **settings):
    return Dicom(root, **{"size": 4, "window": (0, 1600), "channels": 1} | settings)


def read_one(root, **settings):
    data = source(root, **settings).open()
    data.check()
    ((images, valid),) = data.blocks(1)
    assert valid.all()
    return images.pixels[0, :, :, 0].astype(int)


EXPECTED = np.rint((VALUES / 1600 + 0.5) * 255).astype(int)


def refused(root, match, **settings):
    with pytest.raises(PrivateDataError, match=match) as caught:
        source(root, **settings).open().check()
    assert "SECRET" not in str(caught.value)
    assert "Doe" not in str(caught.value)


def test_the_window_is_applied_after_rescaling(tmp_path):
    dicom(tmp_path / "1.dcm")
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)
    dicom(tmp_path / "1.dcm", (VALUES + 1024).astype(np.uint16), intercept=-1024)
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)
    dicom(tmp_path / "1.dcm", VALUES // 100, slope=100)
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)


def test_values_beyond_the_window_are_its_ends(tmp_path):
    dicom(tmp_path / "1.dcm")
    answer = read_one(tmp_path, window=(0, 200))
    assert (answer[VALUES <= -100] == 0).all()
    assert (answer[VALUES >= 100] == 255).all()
    assert answer[VALUES == 0] == 128


def test_monochrome1_is_inverted(tmp_path):
    dicom(tmp_path / "1.dcm", photometric="MONOCHROME1")
    np.testing.assert_array_equal(read_one(tmp_path), np.rint((0.5 - VALUES / 1600) * 255))


def test_not_a_number_is_black_whether_inverted_or_not():
    values = np.array([[np.nan, np.inf, -np.inf]])
    assert apply_window(values, (0, 1), inverted=False).tolist() == [[0, 255, 0]]
    assert apply_window(values, (0, 1), inverted=True).tolist() == [[0, 0, 255]]


def test_compressed_dicom_is_read(tmp_path):
    from pydicom.uid import RLELossless

    data = dicom(tmp_path / "1.dcm")
    data.compress(RLELossless)
    data.save_as(tmp_path / "1.dcm")
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)


def test_colour_has_no_window(tmp_path, read):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    dicom(tmp_path / "1.dcm", pixels, photometric="RGB")
    np.testing.assert_array_equal(read(source(tmp_path, channels=3, window=None).open())[0][0], pixels)
    dicom(tmp_path / "2.dcm")
    refused(tmp_path, r"2\.dcm is not in colour: declare a window", window=None, channels=3, on_bad_record="skip")


def test_file_names_without_suffix_and_of_numbers_are_dicom(tmp_path):
    dicom(tmp_path / "IM0001")
    dicom(tmp_path / "1.2.840.113619.2")
    (tmp_path / "DICOMDIR").write_bytes(b"?")
    assert len(source(tmp_path).open()) == 2


def test_patients_are_units(tmp_path):
    for number, patient in enumerate(["p1", "p2", "p1 ", "p3"]):
        dicom(tmp_path / f"{'ab'[number % 2]}/{number}.dcm", patient=patient)
    data = source(tmp_path, privacy_unit="PatientID", classes=["a", "b"]).open()
    assert data.units.tolist() == [0, 0, 1, 2]
    assert data.unit_name == "PatientID"
    (tmp_path / "labels.csv").write_text("file,label,PatientID\na/0.dcm,a,x\nb/1.dcm,b,x\n")
    assert source(tmp_path, privacy_unit="PatientID", classes=["a", "b"]).open().units.tolist() == [0, 0]


@pytest.mark.parametrize("patient", [None, "", "  "])
def test_a_file_without_a_patient_is_refused(tmp_path, patient):
    dicom(tmp_path / "1.dcm", patient="SECRET")
    dicom(tmp_path / "2.dcm", patient=patient)
    refused(tmp_path, r"2\.dcm has no usable PatientID", privacy_unit="PatientID", on_bad_record="skip")


def test_an_unreadable_header_is_a_bad_image_from_there_on(tmp_path, read):
    dicom(tmp_path / "1.dcm")
    whole = (tmp_path / "1.dcm").read_bytes()
    (tmp_path / "2.dcm").write_bytes(b"no DICOM")
    refused(tmp_path, r"2\.dcm is not a readable DICOM file", privacy_unit="PatientID")
    data = source(tmp_path, privacy_unit="PatientID", on_bad_record="skip").open()
    assert [bad.index for bad in data.check()] == [1]
    assert data.units.tolist() == [0, NOBODY]
    (tmp_path / "2.dcm").write_bytes(whole)  # its unit is not known, so it may not vote
    assert read(data)[1].tolist() == [True, False]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"NumberOfFrames": 2, "PixelData": VALUES.tobytes() * 2}, "has 2 frames or pages"),
        ({"Rows": 60_000, "Columns": 60_000}, "announces no pixels or more than"),
        ({"Rows": 40}, "damaged"),
        ({"photometric": "PALETTE COLOR"}, "neither monochrome"),
        ({"PixelData": VALUES.tobytes()[:10]}, "damaged"),
    ],
)
def test_dicom_that_cannot_be_read_is_a_bad_image(tmp_path, more, match):
    dicom(tmp_path / "1.dcm", **more)
    refused(tmp_path, match)


@pytest.mark.parametrize(
    "more",
    [
        {"slope": None, "intercept": None},
        {"slope": "", "intercept": ""},
        {"NumberOfFrames": None, "ModalityLUTSequence": []},
        {"WindowCenter": None, "WindowWidth": "", "PlanarConfiguration": None},
    ],
)
def test_an_element_that_is_there_and_empty_is_as_one_that_is_missing(tmp_path, more):
    dicom(tmp_path / "1.dcm", **more)
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)


@pytest.mark.parametrize("name", ["Rows", "PhotometricInterpretation", "BitsStored", "PixelData"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_file_without_what_its_pixels_need_is_told_so(tmp_path, name, empty):
    data = dicom(tmp_path / "1.dcm")
    setattr(data, name, None) if empty else delattr(data, name)
    data.save_as(tmp_path / "1.dcm")
    refused(tmp_path, rf"1\.dcm is not an image in DICOM: it has no {name}")


@pytest.mark.parametrize("implicit", [True, False])
def test_a_file_without_a_preamble_is_read(tmp_path, implicit):
    data = pydicom.Dataset()
    data.update(dicom(tmp_path / "1.dcm", patient="p"))
    data.save_as(tmp_path / "1.dcm", implicit_vr=implicit, little_endian=True)
    assert b"DICM" not in (tmp_path / "1.dcm").read_bytes()
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)
    assert source(tmp_path, privacy_unit="PatientID").open().units.tolist() == [0]


def test_deflated_dicom_is_refused(tmp_path):
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    dicom(tmp_path / "1.dcm", syntax=DeflatedExplicitVRLittleEndian)
    refused(tmp_path, "deflated")


def test_truncated_and_foreign_files_are_bad_images(tmp_path):
    dicom(tmp_path / "1.dcm")
    whole = (tmp_path / "1.dcm").read_bytes()
    for data in (whole[:-9], whole[:200], b"", b"hello"):
        (tmp_path / "1.dcm").write_bytes(data)
        refused(tmp_path, r"1\.dcm is ")


def test_burned_in_text_is_warned_of_in_words_that_do_not_depend_on_the_data(tmp_path):
    dicom(tmp_path / "1.dcm")
    with pytest.warns(UserWarning, match="burned into their pixels") as caught:
        source(tmp_path).open()
    assert len(caught) == 1


# TIFF


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
def test_tiff_of_any_number_type_goes_through_the_window(tmp_path, dtype, compression):
    tifffile.imwrite(tmp_path / "1.tif", VALUES.astype(dtype), compression=compression)
    np.testing.assert_array_equal(read_one(tmp_path), EXPECTED)


def test_miniswhite_is_inverted(tmp_path):
    tifffile.imwrite(tmp_path / "1.tif", (VALUES + 800).astype(np.uint16), photometric="miniswhite")
    np.testing.assert_array_equal(read_one(tmp_path, window=(800, 1600)), np.rint((0.5 - VALUES / 1600) * 255))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("colour", [False, True])
def test_the_orientation_of_a_tiff_is_applied_as_it_is_to_a_folder_s(tmp_path, orientation, colour):
    values = np.random.default_rng(0).integers(0, 256, (4, 6, 3) if colour else (4, 6), dtype=np.uint8)
    settings = {"photometric": "rgb"} if colour else {}
    tifffile.imwrite(tmp_path / "1.tif", values, extratags=[(274, "H", 1, orientation, True)], **settings)
    size = {"size": (6, 4) if orientation > 4 else (4, 6), "channels": 3}
    medical, plain = Dicom(tmp_path, window=(127.5, 255), **size).open(), ImageFolder(tmp_path, **size).open()
    assert np.array_equal(next(iter(medical.first(1))), next(iter(plain.first(1))))


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_colour_tiff(tmp_path, read, planar):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    stored = pixels if planar == "contig" else np.ascontiguousarray(np.moveaxis(pixels, 2, 0))
    tifffile.imwrite(tmp_path / "1.tif", stored, photometric="rgb", planarconfig=planar)
    np.testing.assert_array_equal(read(source(tmp_path, channels=3, window=None).open())[0][0], pixels)


def test_what_tifffile_logs_of_a_record_does_not_reach_the_console(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, VALUES.astype(np.uint16), resolution=(1, 1))
    data = bytearray(path.read_bytes())
    tag = data.index(struct.pack("<HHI", 282, 5, 1))
    data[tag + 8 : tag + 12] = b"\xff" * 4  # the resolution lies beyond the end; the pixels are whole
    path.write_bytes(data)
    read = (
        "import sys; from pe.private import Dicom;"
        "print(Dicom(sys.argv[1], size=4, window=(0, 1600), channels=1).open().check())"
    )
    command = [sys.executable, "-W", "ignore:Medical images", "-c", read, tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_tiff_that_cannot_be_read_is_a_bad_image(tmp_path):
    path = tmp_path / "1.tif"
    tifffile.imwrite(path, np.stack([VALUES, VALUES]), photometric="minisblack")
    refused(tmp_path, "has 2 frames or pages")
    tifffile.imwrite(path, VALUES)
    whole = path.read_bytes()
    for data in (whole[:-9], whole[:60], b"", b"hello"):
        path.write_bytes(data)
        refused(tmp_path, r"1\.tif is ")
    tifffile.imwrite(path, VALUES)
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages[0].tags["StripByteCounts"].overwrite(0)
    refused(tmp_path, "is truncated or damaged")  # tifffile alone would give zeros
    tifffile.imwrite(path, VALUES)
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages[0].tags["ImageWidth"].overwrite(60_000)
        file.pages[0].tags["ImageLength"].overwrite(60_000)
    refused(tmp_path, "announces no pixels or more than")

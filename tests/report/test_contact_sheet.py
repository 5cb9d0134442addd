"""The contact sheet: its cells, columns and labels."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pe.data.fonts import font_for
from pe.data.images import Images
from pe.data.population import NO_PARENT, Population
from pe.data.samples import Conditions
from pe.report.pictures import contact_sheet, mosaic


def test_an_empty_place_of_the_contact_sheet_is_no_black_tile() -> None:
    black = Images(np.zeros((7, 32, 32, 1), dtype=np.uint8))
    some = Population(black, np.zeros(7, dtype=np.int32), Conditions(), np.full(7, NO_PARENT))
    filled = np.ones((96, 96), dtype=bool)
    filled[64:, 32:] = False
    alpha = np.asarray(mosaic(some, 0))[..., 3]
    np.testing.assert_array_equal(alpha, np.where(filled, 255, 0))
    assert mosaic(some, 1) is None
    sheet = np.asarray(Image.open(io.BytesIO(contact_sheet([some], ["a", "b"]))))[34:130, 56:152]
    np.testing.assert_array_equal(sheet, np.where(filled, 0, 255)[..., None].repeat(3, axis=2))


def _sheet(*classes: str) -> np.ndarray:
    grey = Images(np.full((2, 8, 8, 1), 128, np.uint8))
    some = Population(grey, np.arange(2, dtype=np.int32) % len(classes), Conditions(), np.full(2, NO_PARENT))
    return np.asarray(Image.open(io.BytesIO(contact_sheet([some], classes))))


def test_a_label_is_written_in_a_font_that_has_its_letters() -> None:
    latin, greek = font_for("cat", 15), font_for("γάτα", 15)
    assert latin is not None
    assert greek is not None
    assert greek.getname() != latin.getname()  # Pillow's own has none of them, matplotlib's has
    boxes, missing = (bytes(latin.getmask(text)) for text in ("γ", "\uffff"))
    assert boxes == missing
    drawn = Image.new("L", (96, 30), 255)
    ImageDraw.Draw(drawn).text((48, 15), "γάτα", fill=40, font=greek, anchor="mm")
    np.testing.assert_array_equal(_sheet("γάτα")[2:32, 56:152, 0], np.asarray(drawn))


def test_a_label_whose_letters_no_font_has_is_numbered_and_the_sheet_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pe.data.fonts.installed_fonts", tuple)
    told, plain = _sheet("cat", "γάτα"), _sheet("cat", "label 2")
    height, width = plain.shape[:2]
    assert told.shape[0] > height
    assert told.shape[1] > width
    np.testing.assert_array_equal(told[:height, :width], plain)
    assert (told[height:] < 128).any()


def test_a_long_label_stays_in_its_column() -> None:
    header = _sheet("W" * 40, "b")[:30]
    assert (header[:, 56:344] < 128).any()
    assert (header[:, 344:352] > 200).all()


def test_a_column_is_as_wide_as_its_label() -> None:
    name = "squamous cell carcinoma"
    font = font_for(name, 15)
    assert font is not None
    wide = math.ceil(font.getlength(name))
    assert wide > 96
    sheet = _sheet(name, "b")
    assert sheet.shape[1] == 56 + wide + 16 + 96 + 16
    drawn = Image.new("L", (wide, 30), 255)
    ImageDraw.Draw(drawn).text((wide // 2, 15), name, fill=40, font=font, anchor="mm")
    np.testing.assert_array_equal(sheet[2:32, 56 : 56 + wide, 0], np.asarray(drawn))

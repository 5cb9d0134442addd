"""Fonts as templates: what a simulator of drawn text knows of each font, rasterised once.

A template is a signed distance field: per pixel, how deep inside the ink it lies. Thresholding it at
another level makes strokes thicker or thinner, continuously, without drawing the font again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from pe.errors import MissingDependency, RecipeError

Fonts = Literal["matplotlib"] | Path

SIDE = 64  # pixels of a template
GLYPH = 40  # pixels of a template that the longer side of the text takes; the rest is margin
OVERSAMPLING = 2  # the text is rasterised this many times finer than the template


@dataclass(frozen=True, eq=False)
class Templates:
    """The texts that the fonts can draw, as signed distance fields.

    Attributes:
        fields: float32, m×SIDE×SIDE: signed distance to the outline, positive inside the ink, in
            units of the text's longer side; the text is centred.
        stems: float32 (m,): half the typical stroke width, in the same units.
        hairs: float32 (m,): half the width of the thin strokes, in the same units.
    """

    fields: npt.NDArray[np.float32]
    stems: npt.NDArray[np.float32]
    hairs: npt.NDArray[np.float32]


def find_fonts(where: Fonts) -> dict[str, Path]:
    """Name → file of the .ttf and .otf files of a folder, or of those that matplotlib installs.

    Args:
        where: a folder (searched through), or `matplotlib`.

    Raises:
        MissingDependency: `matplotlib` is asked for and not installed.
        RecipeError: there is no such folder, or it holds no font.
    """
    if where == "matplotlib":
        try:
            import matplotlib
        except ImportError as error:
            raise MissingDependency.of("matplotlib", "demo", "Drawing with its fonts") from error
        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    else:
        folder = Path(where)
        if not folder.is_dir():
            raise RecipeError(
                f"fonts: there is no folder '{where}': name a folder of .ttf or .otf files, or 'matplotlib'."
            )
    found = {path.stem: path for path in folder.rglob("*") if path.suffix.lower() in (".ttf", ".otf")}
    if not found:
        raise RecipeError(f"fonts: the folder '{where}' holds no .ttf or .otf file: name one that does.")
    return dict(sorted(found.items()))


@lru_cache(maxsize=2048)  # 16 kB each
def rasterise(path: Path, text: str) -> tuple[npt.NDArray[np.float32], float, float]:
    """Field, stem and hair (see Templates) of `text` in the font of the file `path`."""
    side, glyph = SIDE * OVERSAMPLING, GLYPH * OVERSAMPLING
    probe = ImageFont.truetype(path, glyph)
    left, top, right, bottom = probe.getbbox(text)
    font = ImageFont.truetype(path, max(1.0, glyph * glyph / max(right - left, bottom - top)))
    left, top, right, bottom = font.getbbox(text)
    canvas = Image.new("L", (side, side), 0)
    ImageDraw.Draw(canvas).text(((side - left - right) / 2, (side - top - bottom) / 2), text, fill=255, font=font)
    ink = np.asarray(canvas) >= 128
    inside = ndimage.distance_transform_edt(ink)
    outside = ndimage.distance_transform_edt(~ink)
    depth = np.where(ink, inside - 0.5, 0.5 - outside) / glyph
    stem, hair = _stroke(inside / glyph, ink)
    coarse = depth.reshape(SIDE, OVERSAMPLING, SIDE, OVERSAMPLING).mean(axis=(1, 3))
    return coarse.astype(np.float32), stem, hair


def _stroke(inside: npt.NDArray[np.float64], ink: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Half widths of the typical and the thin strokes: depths along the ridge, where the slope vanishes."""
    rows, columns = np.gradient(inside * GLYPH * OVERSAMPLING)
    depths = inside[ink & (rows**2 + columns**2 < 0.25)]
    if not depths.size:  # no ridge: a speck
        depths = inside[ink] if ink.any() else np.array([0.5 / GLYPH])
    stem, hair = np.quantile(depths, [0.5, 0.1])
    return float(stem), float(hair)

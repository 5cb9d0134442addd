"""A simulator as the generator: text drawn in many fonts, sizes, slants and strokes.

A text is rasterised once in each font, to a template: a signed distance field, which holds the
depth inside the ink at each pixel. Thresholding the field at another level makes strokes thicker or
thinner without drawing the text again.

A sample carries the parameters it was drawn with; a variation draws it again with these moved. The
parameters are kept as standard normal scores z; a variation of degree d has z' = √(1−d²)·z + d·ξ
with new scores ξ, so that scores stay standard normal: d = 0 changes nothing, d = 1 forgets all.
The font, and the text where a label has several, are drawn anew with probability d².
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pydantic import AfterValidator, Field, FiniteFloat
from scipy import ndimage
from scipy.special import ndtr, ndtri

from pe.data.arrays import BoolArray, Float32Array, Float64Array, Int64Array, UInt8Array
from pe.data.fonts import draws
from pe.data.images import Images
from pe.data.samples import Conditions, mix, slices
from pe.errors import APIError, RecipeError
from pe.plugins.devices import import_library
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Generator,
    PluginInfo,
    RandomRequest,
    Seeds,
    VariationRequest,
)
from pe.plugins.specs import plugin


def _check_order(limits: tuple[float, float]) -> tuple[float, float]:
    if limits[0] > limits[1]:
        raise ValueError("it must be a range, [low, high]")
    return limits


Range = Annotated[tuple[FiniteFloat, FiniteFloat], AfterValidator(_check_order)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveRange = Annotated[tuple[Above0, Above0], AfterValidator(_check_order)]
Fonts = Literal["matplotlib"] | Path
Indices = Int64Array

SIDE = 64  # pixels of a template
GLYPH = 40  # pixels of a template that the longer side of the text takes; the rest is margin
OVERSAMPLING = 2  # the text is rasterised this many times finer than the template

SHAPE = ("scale", "width", "height", "rotation", "slant", "shift x", "shift y", "stroke")
GRID = 7  # the elastic warp's control points per axis
PARAMETERS = len(SHAPE) + 2 * GRID * GRID
BLOCK = 64  # images drawn at once: small enough for the cache


class Templates(NamedTuple):
    """The texts that the fonts can draw, as signed distance fields."""

    # float32, m×SIDE×SIDE: signed distance to the outline, positive inside the ink, in units of the
    # text's longer side; the text is centred
    fields: Float32Array
    # float32 (m,): half the typical stroke width, in units of the text's longer side
    stems: Float32Array
    # float32 (m,): half the width of the thin strokes, in units of the text's longer side
    hairs: Float32Array


def find_fonts(where: Fonts) -> dict[str, Path]:
    """Find fonts: name → file.

    Take the .ttf and .otf files of a folder and its subfolders, or those that matplotlib installs.

    Raises:
        MissingDependency: `matplotlib` is asked for and not installed.
        RecipeError: there is no such folder, or it holds no font.
    """
    if where == "matplotlib":
        matplotlib = import_library(
            "matplotlib",
            "demo",
            "Drawing with its fonts",
        )
        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    else:
        folder = where
        if not folder.is_dir():
            raise RecipeError(
                f"fonts: there is no folder '{where}'. Name a folder of .ttf or .otf files, or "
                "`matplotlib`."
            )
    files = {
        path.stem: path for path in folder.rglob("*") if path.suffix.lower() in (".ttf", ".otf")
    }
    if not files:
        raise RecipeError(
            f"fonts: the folder '{where}' holds no .ttf or .otf file. Name one that does."
        )
    return dict(sorted(files.items()))


@lru_cache(maxsize=2**14)  # 16 kB each
def rasterise(path: Path, text: str) -> tuple[Float32Array, float, float]:
    """Draw `text` in the font of a file. Return its field, stem and hair (see `Templates`)."""
    side = SIDE * OVERSAMPLING
    glyph = GLYPH * OVERSAMPLING
    probe = ImageFont.truetype(path, glyph)
    left, top, right, bottom = probe.getbbox(text)
    font = ImageFont.truetype(path, max(1.0, glyph * glyph / max(right - left, bottom - top)))
    left, top, right, bottom = font.getbbox(text)
    canvas = Image.new("L", (side, side), 0)
    corner = ((side - left - right) / 2, (side - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(corner, text, fill=255, font=font)
    ink = np.asarray(canvas) >= 128
    inside = ndimage.distance_transform_edt(ink)
    outside = ndimage.distance_transform_edt(~ink)
    depth = np.where(ink, inside - 0.5, 0.5 - outside) / glyph
    stem, hair = _stroke(inside / glyph, ink)
    coarse = depth.reshape(SIDE, OVERSAMPLING, SIDE, OVERSAMPLING).mean(axis=(1, 3))
    return coarse.astype(np.float32), stem, hair


def _stroke(inside: Float64Array, ink: BoolArray) -> tuple[float, float]:
    """Return half the width of typical strokes and of thin strokes.

    They are the median and the 10 % quantile of depth on middle lines.
    """
    rows, columns = np.gradient(inside * GLYPH * OVERSAMPLING)
    depths = inside[ink & (rows**2 + columns**2 < 0.25)]
    if not depths.size:  # no ridge: a speck
        depths = inside[ink] if ink.any() else np.array([0.5 / GLYPH])
    stem, hair = np.quantile(depths, [0.5, 0.1])
    return float(stem), float(hair)


def _mix(x: Float32Array, a: Float32Array, y: Float32Array, b: Float32Array) -> Float32Array:
    """Return a·x + b·y + the template's middle, with one a and b per image."""
    total = x * a[:, None, None]
    total += y * b[:, None, None]
    total += np.float32(SIDE / 2 - 0.5)
    return total


def _bilinear(
    fields: Float32Array, rows: Indices, u: Float32Array, v: Float32Array
) -> Float32Array:
    """Interpolate fields between their pixels.

    Image i takes the field `rows[i]` at the places (u right, v down), in pixels of a template and
    clamped to it.
    """
    np.clip(u, 0, SIDE - 1.001, out=u)
    np.clip(v, 0, SIDE - 1.001, out=v)
    left = u.astype(np.int64)
    top = v.astype(np.int64)
    # From here on u and v are fractions of a pixel. All steps write to arrays that exist already.
    u -= left
    v -= top
    top *= SIDE
    top += left
    top += (rows * SIDE * SIDE)[:, None, None]
    flat = fields.reshape(-1)
    upper = flat.take(top, mode="clip")
    upper += u * (flat[1:].take(top, mode="clip") - upper)
    lower = flat[SIDE:].take(top, mode="clip")
    lower += u * (flat[SIDE + 1 :].take(top, mode="clip") - lower)
    lower -= upper
    lower *= v
    upper += lower
    return upper


def _spline_basis(size: int) -> Float32Array:
    """Return uniform cubic B-splines over the image, float32 GRID×size.

    They sum to 1 at every pixel.
    """
    knots = np.arange(GRID, dtype=np.float64) - (GRID - 1) / 2
    places = ((np.arange(size) + 0.5) / size - 0.5) * (GRID - 3)
    distance = np.abs(places[None, :] - knots[:, None])
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = np.maximum(2 - distance, 0) ** 3 / 6
    return np.where(distance < 1, near, far).astype(np.float32)


@plugin
class Glyphs(Generator):
    """Drawn text for digits and letters, as in `pe demo`, in matplotlib's fonts or yours.

    Matplotlib comes with the extra `demo`.

    The label's name is the text that is drawn, unless `texts` says otherwise. An image depends on
    its seed and its condition alone, to the last bit, and not on the chunk that it came in.

    Conditions: `text` and `font` (names), `parameters` (float32, n×106: the scores z of scale,
    width, height, rotation, slant, shift x, shift y, stroke, then of the warp's control points).

    Attributes:
        size: pixels of an image's side, ≥ 8.
        channels: 1 (grey) or 3.
        white_on_black: true: light text on a dark ground; false: the reverse.
        fonts: a folder of .ttf and .otf files, or `matplotlib` for those that it installs. Fonts
            without glyphs for a text are left out for that text.
        texts: label name → the texts drawn for it; of a label that is not named, the name is drawn.
        scale: range of the text's longer side, as a fraction of the image's side.
        width: range of the factor that stretches the text horizontally.
        height: range of the factor that stretches the text vertically.
        rotation: range of the rotation, degrees clockwise.
        slant: range of the shear, horizontal shift per height; positive leans right.
        shift: range of the centre's shift, to the right and down, as fractions of the side.
        stroke: range of the width of the strokes, as a fraction of the side.
        warp: typical elastic displacement, as a fraction of the side, ≥ 0.

    Raises:
        RecipeError: an argument is out of range, or no font draws a label's text.
        MissingDependency: `matplotlib`'s fonts are asked for and it is not installed.
    """

    info = PluginInfo(
        hosts=(),
        by_label=True,
        degrees=(0.5, 0.45, 0.4, 0.4),
    )
    capabilities = Capabilities(max_chunk=4096)

    size: Annotated[int, Field(ge=8)] = 28
    channels: Literal[1, 3] = 1
    white_on_black: bool = True
    fonts: Fonts = "matplotlib"
    texts: Mapping[str, Sequence[str]] | None = None
    scale: PositiveRange = (0.5, 0.9)
    width: PositiveRange = (0.6, 1.2)
    height: PositiveRange = (0.8, 1.2)
    rotation: Range = (-25.0, 25.0)
    slant: Range = (-0.4, 0.6)
    shift: Range = (-0.1, 0.1)
    stroke: PositiveRange = (0.05, 0.17)
    warp: Annotated[float, Field(ge=0, lt=1)] = 0.07

    def __post_init__(self) -> None:
        self.info = replace(self.info, shape=(self.size, self.size, self.channels))
        ranges = [getattr(self, name.split()[0]) for name in SHAPE]
        self._low, self._high = np.array(ranges, dtype=np.float32).T
        self._basis = _spline_basis(self.size)
        self._files = find_fonts(self.fonts)
        self._names = np.array(list(self._files))  # sorted
        self._able: dict[str, Indices] = {}  # text → the numbers of the fonts that draw it
        self.check_labels(list(self.texts or ()))

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if no font draws the text of a label."""
        for label in labels:
            self._choices(label)

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw an image per item, parameters at random in their ranges.

        Raise RecipeError if no font draws a label's text.
        """
        return self._new(request.labels, request.seeds, None, 1.0)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Draw each parent again with its parameters moved by the degree.

        Degree 0 gives the parent's very pixels.

        Raises:
            APIError: the parents carry no conditions of this simulator, or a font that the
                simulator lacks.
        """
        return self._new(
            request.labels,
            request.seeds,
            request.conditions,
            request.degree,
        )

    def _new(
        self, labels: Sequence[str], seeds: Seeds, parents: Conditions | None, degree: float
    ) -> Answer:
        """Return variations of `parents` by `degree`.

        Without parents, return new drawings.
        """
        # Every item uses as many random numbers, and the same ones, whatever its parent is.
        choices = [self._choices(label) for label in labels]
        counts = np.array([len(choice) for choice in choices])
        random = _uniforms(
            seeds,
            PARAMETERS + 4,
            stream=parents is not None,
        )
        scores = ndtri(random[:, 4:]).astype(np.float32)
        picks = np.floor(random[:, 0] * counts).astype(np.int64)
        text = np.array([choice[pick] for choice, pick in zip(choices, picks, strict=True)])
        font = np.full(len(text), -1)
        if parents is not None:
            old_font, old_scores = self._read(parents)
            text = np.where(random[:, 1] < degree**2, text, parents["text"])
            font = np.where(random[:, 2] < degree**2, font, old_font)
            keep = np.float32(np.sqrt(1.0 - degree**2))
            move = np.float32(degree)
            scores = keep * old_scores + move * scores
        texts, which = np.unique(text, return_inverse=True)
        for k, each in enumerate(texts.tolist()):
            # The parent's font may be unable to draw a new text.
            able = self._fonts_for(each, each)
            here = (which == k) & ~np.isin(font, able)
            font[here] = able[np.floor(random[here, 3] * len(able)).astype(np.int64)]
        pairs, rows = np.unique(which * len(self._names) + font, return_inverse=True)
        drawn = [divmod(pair, len(self._names)) for pair in pairs.tolist()]
        rasters = [rasterise(self._files[self._names[f]], str(texts[t])) for t, f in drawn]
        columns = zip(*rasters, strict=True)
        templates = Templates(*(np.array(column, np.float32) for column in columns))
        pixels = self._draw(scores, rows, templates)
        conditions = {"text": text, "font": self._names[font], "parameters": scores}
        return Answer(Images(pixels), Conditions(conditions))

    def _choices(self, label: str) -> Sequence[str]:
        """Return a label's texts, each of which some font can draw, or raise RecipeError."""
        texts = (self.texts or {}).get(label, (label,))
        if not texts:
            raise RecipeError(f"`texts.{label}` is empty. Name a text, or remove the label.")
        for text in texts:
            self._fonts_for(text, label)
        return texts

    def _fonts_for(self, text: str, label: str) -> Indices:
        """Return the numbers of the fonts that draw a text, ascending.

        Raise RecipeError if none does.
        """
        if text not in self._able:
            able = [draws(file, text) for file in self._files.values() if text.strip()]
            self._able[text] = np.flatnonzero(able)
        if not self._able[text].size:
            raise RecipeError(
                f"No font of {len(self._names)} draws the text '{text}' of label '{label}'. Name "
                "other `fonts`, or say under `texts` what to draw for this label."
            )
        return self._able[text]

    def _read(self, parents: Conditions) -> tuple[Indices, Float32Array]:
        """Return the numbers of the parents' fonts, and the parents' scores.

        Raise APIError if this simulator did not draw the parents.
        """
        for name in ("text", "font", "parameters"):
            if name not in parents:
                raise APIError(f"The parents carry no '{name}'. `glyphs` varies only what it drew.")
        fonts = parents["font"].tolist()
        scores = parents["parameters"]
        if scores.ndim != 2 or scores.shape[1] != PARAMETERS:
            raise APIError(
                f"The parents carry parameters of shape {scores.shape}, not n×{PARAMETERS}."
            )
        numbers = {name: i for i, name in enumerate(self._files)}
        strangers = sorted(set(fonts) - numbers.keys())
        if strangers:
            raise APIError(
                f"The font '{strangers[0]}' of a parent is not among the fonts. Give those it was "
                "drawn with."
            )
        return np.array([numbers[name] for name in fonts]), scores.astype(np.float32)

    def _draw(self, scores: Float32Array, rows: Indices, templates: Templates) -> UInt8Array:
        """Draw the templates `rows` with the parameters `scores`: uint8, n×size×size×channels."""
        count = len(rows)
        padding = -count % BLOCK
        scores = np.concatenate([scores, np.zeros((padding, PARAMETERS), dtype=np.float32)])
        rows = np.concatenate([rows, np.zeros(padding, dtype=np.int64)])
        pixels = np.empty((count + padding, self.size, self.size), dtype=np.uint8)
        for block in slices(count, BLOCK):
            pixels[block] = self._draw_block(
                scores[block],
                rows[block],
                templates,
            )
        if not self.white_on_black:
            np.subtract(255, pixels, out=pixels)
        return np.repeat(
            pixels[:count, :, :, None],
            self.channels,
            axis=3,
        )

    def _draw_block(self, scores: Float32Array, rows: Indices, templates: Templates) -> UInt8Array:
        """Draw exactly BLOCK images, white on black: uint8, BLOCK×size×size.

        Their number is fixed, so that every image is computed by the same machine instructions.
        """
        uniform = ndtr(scores[:, : len(SHAPE)])
        shape = self._low + (self._high - self._low) * uniform
        scale, width, height, rotation, slant, right, down, stroke = shape.T
        # Where each pixel's ink comes from: p = (place − shift − warp), then unrotate, unslant,
        # unstretch.
        x, y = self._bend(scores[:, len(SHAPE) :], right, down)
        cosine = np.cos(np.radians(rotation))
        sine = np.sin(np.radians(rotation))
        wide = GLYPH / (scale * width)
        tall = GLYPH / (scale * height)
        u = _mix(
            x,
            wide * (cosine - slant * sine),
            y,
            wide * (sine + slant * cosine),
        )
        v = _mix(x, -tall * sine, y, tall * cosine)
        depth = _bilinear(templates.fields, rows, u, v)
        # A stroke of another width is another level of the field; its thin parts never vanish.
        wished = stroke / (2 * scale) - templates.stems[rows]
        level = np.maximum(wished, -0.8 * templates.hairs[rows])
        # Pixels per unit of depth.
        sharpness = scale * np.sqrt(width * height) * np.float32(self.size)
        depth += level[:, None, None]
        depth *= (255 * sharpness)[:, None, None]
        depth += np.float32(128.0)
        return np.clip(depth, 0, 255, out=depth).astype(np.uint8)

    def _bend(
        self, scores: Float32Array, right: Float32Array, down: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Return each pixel's x and y, shifted and warped, float32 BLOCK×size×size each.

        The image spans −½…½.
        """
        control = scores.reshape(BLOCK, 2, GRID, GRID) * np.float32(self.warp)
        places = ((np.arange(self.size) + 0.5) / self.size - 0.5).astype(np.float32)
        across = np.zeros((BLOCK, 2, GRID, self.size), dtype=np.float32)
        for k in range(GRID):
            across += control[:, :, :, k, None] * self._basis[k]
        across[:, 0] += (places - right[:, None])[:, None, :]  # the basis sums to 1 over the rows
        places_by_axis = []
        for axis in range(2):
            total = np.zeros((BLOCK, self.size, self.size), dtype=np.float32)
            for k in range(GRID):
                total += across[:, axis, k, None, :] * self._basis[k][:, None]
            places_by_axis.append(total)
        places_by_axis[1] += (places - down[:, None])[:, :, None]
        return places_by_axis[0], places_by_axis[1]


def _uniforms(seeds: Seeds, count: int, *, stream: int) -> Float64Array:
    """Return numbers in (0, 1), float64 n×count.

    They are the SplitMix64 sequence of each seed (Steele, Lea and Flood, 2014).
    """
    golden = 0x9E3779B97F4A7C15
    state = mix(seeds ^ np.uint64(0xD1B54A32D192ED03 * (stream + 1) % 2**64))
    steps = np.array([golden * (k + 1) % 2**64 for k in range(count)], dtype=np.uint64)
    bits = mix(state[:, None] + steps)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

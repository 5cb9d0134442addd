"""Drawing text from its templates: scaled, turned, slanted, warped, with strokes of any width."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from adapters.fonts import GLYPH, SIDE, Templates

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

SHAPE = ("scale", "width", "height", "rotation", "slant", "shift x", "shift y", "stroke")
GRID = 7  # the elastic warp's control points per axis
PARAMETERS = len(SHAPE) + 2 * GRID * GRID
BLOCK = 64  # images drawn at once: small enough for the cache


class Pen:
    """Draws BLOCK images at a time, so that the same instructions meet every image.

    Args:
        size: pixels of an image's side.
        low: float32 (8,): the least value of each parameter of SHAPE.
        high: float32 (8,): the greatest.
        warp: typical elastic displacement, as a fraction of the side.
    """

    def __init__(self, size: int, low: Floats, high: Floats, warp: float) -> None:
        self._size, self._low, self._high, self._warp = size, low, high, warp
        self._basis = _spline_basis(size)

    def draw(self, scores: Floats, rows: Indices, templates: Templates) -> npt.NDArray[np.uint8]:
        """One block of exactly BLOCK images, white on black."""
        uniform = ndtr(scores[:, : len(SHAPE)])
        shape = self._low + (self._high - self._low) * uniform
        scale, width, height, rotation, slant, right, down, stroke = shape.T
        # Where each pixel's ink comes from: p = (place − shift − warp), then unrotate, unslant, unstretch.
        x, y = self._warped(scores[:, len(SHAPE) :], right, down)
        cosine, sine = np.cos(np.radians(rotation)), np.sin(np.radians(rotation))
        wide, tall = GLYPH / (scale * width), GLYPH / (scale * height)
        u = _mix(x, wide * (cosine - slant * sine), y, wide * (sine + slant * cosine))
        v = _mix(x, -tall * sine, y, tall * cosine)
        depth = _bilinear(templates.fields, rows, u, v)
        # A stroke of another width is another level of the field; its thin parts never vanish.
        level = np.maximum(stroke / (2 * scale) - templates.stems[rows], -0.8 * templates.hairs[rows])
        sharpness = scale * np.sqrt(width * height) * np.float32(self._size)  # pixels per unit of depth
        depth += level[:, None, None]
        depth *= (255 * sharpness)[:, None, None]
        depth += np.float32(128.0)
        return np.clip(depth, 0, 255, out=depth).astype(np.uint8)

    def _warped(self, scores: Floats, right: Floats, down: Floats) -> tuple[Floats, Floats]:
        """Every pixel's place, float32 BLOCK×size×size, shifted and warped; the image spans −½…½."""
        control = scores.reshape(BLOCK, 2, GRID, GRID) * np.float32(self._warp)
        places = ((np.arange(self._size) + 0.5) / self._size - 0.5).astype(np.float32)
        across = np.zeros((BLOCK, 2, GRID, self._size), dtype=np.float32)
        for k in range(GRID):
            across += control[:, :, :, k, None] * self._basis[k]
        across[:, 0] += (places - right[:, None])[:, None, :]  # the basis sums to 1 over the rows
        moved = []
        for axis in range(2):
            total = np.zeros((BLOCK, self._size, self._size), dtype=np.float32)
            for k in range(GRID):
                total += across[:, axis, k, None, :] * self._basis[k][:, None]
            moved.append(total)
        moved[1] += (places - down[:, None])[:, :, None]
        return moved[0], moved[1]


def _mix(x: Floats, a: Floats, y: Floats, b: Floats) -> Floats:
    """a·x + b·y + the template's middle, with one a and b per image."""
    total = x * a[:, None, None]
    total += y * b[:, None, None]
    total += np.float32(SIDE / 2 - 0.5)
    return total


def _bilinear(fields: Floats, rows: Indices, u: Floats, v: Floats) -> Floats:
    """The fields `rows` at the places (u right, v down), in pixels of the template, clamped to it."""
    np.clip(u, 0, SIDE - 1.001, out=u)
    np.clip(v, 0, SIDE - 1.001, out=v)
    left, top = u.astype(np.int64), v.astype(np.int64)
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


def _spline_basis(size: int) -> Floats:
    """float32, GRID×size: uniform cubic B-splines over the image; at every pixel they sum to 1."""
    knots = np.arange(GRID, dtype=np.float64) - (GRID - 1) / 2
    places = ((np.arange(size) + 0.5) / size - 0.5) * (GRID - 3)
    distance = np.abs(places[None, :] - knots[:, None])
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = np.maximum(2 - distance, 0) ** 3 / 6
    return np.where(distance < 1, near, far).astype(np.float32)

"""Pictures of a run as PNG files, or as texts, and how different its samples are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from math import ceil, isqrt, sqrt

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from pe.data.arrays import Float64Array, Int64Array
from pe.data.display import png
from pe.data.fonts import font_for
from pe.data.population import Population
from pe.data.samples import CAPTION, Samples, distinct, generator
from pe.steps import Step

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Strip = bytes | tuple[str, ...]
"""Samples side by side: a PNG file, or texts."""
Strips = list[tuple[str, Strip]]
"""Rows of samples, each with its name."""

NEAR = 0.2
"""Two samples are nearly equal if they are no further apart than this share of the usual distance
in S_0."""
PAIRS = 1000
"""Random pairs of samples, both of one label, whose median distance is the usual distance."""
MOST = 1000
WORK = 1e8
"""The most samples of a label that are compared with each other, and the most bytes of all labels'
pairs."""
COLLAPSED = 0.2
FEW = 10
"""A population has collapsed if less than the share COLLAPSED of the samples compared differ
clearly; but not if it holds unvaried copies of chosen candidates, and FEW per label differ clearly.
"""

_CELL = (96, 96)
# of texts: so many below each other, and of each its beginning, not shrunk
_CARDS = 3
_CARD = (384, 97)
_WIDEST = 288  # pixels of a column whose label is long
# between rows, and between columns
_GAP = 8
_BETWEEN = 16
_TILE_GAP = 2  # in a row of pictures
_LEFT = 56
_TOP = 34
_TEXT = 15
_FOOT = 26
_PAPER = (255, 255, 255)
_INK = (40, 40, 40)
_RULE = (210, 210, 210)
_NUMBERED = "Labels whose letters no font here has are numbered; recipe.yaml has their names."
_PER_CELL = 9
_PER_STRIP = 12
_EXTREMES = 10
# pixels of a picture's longer side in a row
_SMALLEST = 48
_LARGEST = 96


def contact_sheet(
    populations: Sequence[Population], classes: Sequence[str], names: Sequence[str] | None = None
) -> bytes:
    """Return a PNG with a row for each population and a column for each class.

    `mosaic` draws the cells. Rows are headed by `names`; None: by S0 … ST. A column is headed by
    the class's name, or by its number if this machine has no font with the name's letters; a
    footnote then says so.
    """
    cell = (_CARD[0], _CARDS * _CARD[1]) if populations[0].samples.is_text else _CELL
    height = _TOP + len(populations) * (cell[1] + _GAP)
    font = ImageFont.load_default(size=_TEXT)
    fonts = [font_for(name, _TEXT) for name in classes]
    names = names or [f"S{t}" for t in range(len(populations))]
    left = max(_LEFT, 2 * _GAP + ceil(max(map(font.getlength, names))))
    rows = enumerate(zip(classes, fonts, strict=True), start=1)
    heads = [(name, own) if own else (f"label {i}", font) for i, (name, own) in rows]
    widths = [max(cell[0], min(ceil(own.getlength(head)), _WIDEST)) for head, own in heads]
    *xs, width = accumulate((each + _BETWEEN for each in widths), initial=left)
    has_footnote = None in fonts
    if has_footnote:
        width = max(width, round(font.getlength(_NUMBERED)) + 2 * _GAP)
        height = height + _FOOT
    sheet = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for x, wide, (head, own) in zip(xs, widths, heads, strict=True):
        place = (x + wide // 2, _TOP // 2)
        pen.text(place, _shorten(head, own, wide), fill=_INK, font=own, anchor="mm")
    if has_footnote:
        pen.text((_GAP, height - _FOOT // 2), _NUMBERED, fill=_INK, font=font, anchor="lm")
    for row, (name, population) in enumerate(zip(names, populations, strict=True)):
        y = _TOP + row * (cell[1] + _GAP)
        pen.text((left // 2, y + cell[1] // 2), name, fill=_INK, font=font, anchor="mm")
        for label, (x, wide) in enumerate(zip(xs, widths, strict=True)):
            picture = mosaic(population, label)
            if picture is not None:
                # as its own mask, so that its empty places stay paper
                sheet.paste(picture, (x + (wide - cell[0]) // 2, y), picture)
    return png(sheet)


def _shorten(name: str, font: Font, wide: int) -> str:
    """Return the name, or as much of its beginning as fits into `wide` pixels, with dots.

    At least one letter is left.
    """
    short = name
    length = len(name)
    while font.getlength(short) > wide and length > 1:
        length -= 1
        short = f"{name[:length]}..."
    return short


def mosaic(population: Population, label: int) -> Image.Image | None:
    """Draw up to _PER_CELL members of a label, spread evenly over them, in a square.

    Its empty places are transparent. For texts, draw the beginnings of up to _CARDS of them, below
    each other. Returns None if the label has no member.
    """
    is_text = population.samples.is_text
    members = _spread(population, label, _CARDS if is_text else _PER_CELL)
    pictures = population.samples.take(members).pictures()
    if not pictures:
        return None
    if not is_text:
        side = ceil(sqrt(len(pictures)))
        return _grid(pictures, side, side).resize(_CELL, Image.Resampling.LANCZOS)
    whole = _grid([card.crop((0, 0, *_CARD)) for card in pictures], 1, _CARDS)
    for y in range(0, len(pictures) * _CARD[1], _CARD[1]):
        ImageDraw.Draw(whole).line((0, y, _CARD[0], y), fill=_RULE)
    return whole


def _grid(tiles: Sequence[Image.Image], columns: int, rows: int, gap: int = 0) -> Image.Image:
    """Put pictures of one size row by row into a grid. Gaps and empty places are transparent."""
    width = tiles[0].width + gap
    height = tiles[0].height + gap
    whole = Image.new("RGBA", (columns * width - gap, rows * height - gap))
    for i, tile in enumerate(tiles):
        whole.paste(tile, (i % columns * width, i // columns * height))
    return whole


def sample_cell(population: Population, label: int) -> Strip | None:
    """Return members of a label for a table's cell: texts, or a square of pictures.

    Returns None if it has no member.
    """
    samples = population.samples
    if samples.is_text:
        return tuple(samples.take(_spread(population, label, _CARDS)).strings) or None
    picture = mosaic(population, label)
    return None if picture is None else png(picture)


def _spread(population: Population, label: int, count: int) -> Int64Array:
    """Return up to `count` members of a label, spread evenly over them."""
    members = np.flatnonzero(population.labels == label)
    return members[np.linspace(0, members.size - 1, min(count, members.size)).astype(np.int64)]


def strips(population: Population, classes: Sequence[str]) -> Strips:
    """Return a row of members for each label that has some, and a row of their captions, if any.

    The members are spread evenly.
    """
    rows: Strips = []
    captions = population.conditions.get(CAPTION)
    for label, name in enumerate(classes):
        members = _spread(population, label, _PER_STRIP)
        if members.size:
            rows.append((name, _strip(population, members)))
            if captions is not None:
                rows.append((f"captions of {name}", tuple(map(str, captions[members]))))
    return rows


def extremes(candidates: Population, votes: Float64Array) -> Strips:
    """Return a row of the members with the most noisy votes and a row of those with the fewest.

    No member is in both.
    """
    order = np.argsort(-votes, kind="stable")
    count = min(_EXTREMES, len(order) // 2)
    if not count:
        return []
    return [
        ("most", _strip(candidates, order[:count])),
        ("fewest", _strip(candidates, order[-count:])),
    ]


def _strip(population: Population, members: Int64Array) -> Strip:
    """Return the samples of `members`: texts, or pictures side by side, with transparent gaps."""
    samples = population.samples.take(members)
    if samples.is_text:
        return tuple(samples.strings)
    tiles = [_resize(picture) for picture in samples.pictures()]
    return png(_grid(tiles, len(tiles), 1, _TILE_GAP))


def _resize(picture: Image.Image) -> Image.Image:
    """Enlarge a small picture by a whole number, reduce a large one."""
    longest = max(picture.size)
    if longest > _LARGEST:
        width, height = (max(1, round(side * _LARGEST / longest)) for side in picture.size)
        return picture.resize((width, height), Image.Resampling.LANCZOS)
    return ImageOps.scale(picture, max(1, ceil(_SMALLEST / longest)), Image.Resampling.NEAREST)


@dataclass(frozen=True)
class Variety:
    """Counts of samples that differ within one label.

    A sum over labels compares no samples of different labels.
    """

    samples: int
    different: int  # those that equal no other, and one of each set of equal ones
    trials: int  # samples drawn at random that were all compared with each other
    # of these, those that differ clearly: in their order, none nearly equals one counted before
    apart: int


def varieties(
    populations: Sequence[Population], classes: Sequence[str], seed: int
) -> list[dict[str, Variety]]:
    """Return for each of S_0 … S_t label → variety. Labels without samples are left out.

    Guarantee: post-processing of the populations.
    """
    if not populations:
        return []
    near = NEAR * usual_distance(populations[0], seed)
    return [_by_label(population, classes, near, seed) for population in populations]


def whole(by_label: dict[str, Variety]) -> Variety:
    """Return the sum over all labels."""
    counts = [astuple(variety) for variety in by_label.values()]
    return Variety(*map(sum, zip(*counts, strict=True)))


def usual_distance(population: Population, seed: int) -> float:
    """Return the median distance between random pairs of one label, in the modality's unit.

    The result is 0 without a pair.
    """
    rng = generator(seed, "variety/pairs")
    one = rng.integers(len(population), size=PAIRS)
    other = np.empty_like(one)
    for label in np.unique(population.labels[one]):
        members = np.flatnonzero(population.labels == label)
        places = np.flatnonzero(population.labels[one] == label)
        other[places] = rng.choice(members, len(places))
    differ = one != other
    if not differ.any():
        return 0.0
    return float(
        np.median(
            population.samples.take(one[differ]).distances(population.samples.take(other[differ]))
        )
    )


def collapse_warnings(
    t: int, samples: Samples, by_label: dict[str, Variety], step: Step | None
) -> list[str]:
    """Return a sentence on an S_t that has collapsed, in a list.

    The list is empty if it has not collapsed, and for rows, where only few may differ.
    """
    every = whole(by_label)
    enough = COLLAPSED * every.trials
    ways = ["a generator that varies more"]
    if step is not None:
        ways = ["more candidates"]
        # copies of chosen candidates may be few, if these differ
        if not step.degree:
            enough = min(enough, FEW * len(by_label))
        if step.threshold > 0:
            ways.append("a lower threshold")
        if step.degree < 1:
            ways.append("a higher last degree")
    if every.apart >= enough or samples.columns:
        return []
    more = " or ".join(", ".join(ways).rsplit(", ", 1))
    return [
        f"S_{t} has collapsed: of {every.trials:,} samples that were compared, only "
        f"{every.apart:,} differ clearly from the others of their label. Take {more}."
    ]


def _by_label(
    population: Population, classes: Sequence[str], near: float, seed: int
) -> dict[str, Variety]:
    labels = np.unique(population.labels)
    size = population.samples.array[:1].nbytes or 1
    per_label = min(MOST, max(2, isqrt(int(2 * WORK / (size * len(labels))))))
    rng = generator(seed, "variety/compared")
    by_label = {}
    for label in labels:
        members = np.flatnonzero(population.labels == label)
        rows = np.sort(rng.permutation(members)[:per_label])
        different = len(distinct(population.samples.take(members))[0])
        apart = _count_apart(population.samples.take(rows), near)
        by_label[classes[label]] = Variety(len(members), different, len(rows), apart)
    return by_label


def _count_apart(samples: Samples, near: float) -> int:
    """Count samples in their order, without those that nearly equal one counted before."""
    count = len(samples)
    close = np.zeros((count, count), bool)
    places = np.arange(count)
    for shift in range(1, count // 2 + 1):  # each pair once
        others = (places + shift) % count
        within = samples.distances(samples.take(others)) <= near
        close[places[within], others[within]] = close[others[within], places[within]] = True
    apart = np.zeros(count, bool)
    for place in range(count):
        apart[place] = not close[place][apart].any()
    return int(apart.sum())

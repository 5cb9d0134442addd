"""Samples of a run as strips of images: its populations, its extensions, those with most and fewest votes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from pe.data.population import Population
from pe.data.samples import Images
from pe.report.diagnostics import Generation
from pe.report.page import paragraph, section
from pe.report.pictures import image_tag, spread_over, strip

_PER_STRIP, _EXTREMES = 12, 10


def evolution_section(
    populations: Sequence[Population], classes: Sequence[str], found: Sequence[Generation], *, steps: int, fitted: bool
) -> str:
    """The strips of every iteration, with a slider over them where there are several.

    Args:
        populations: S_0, S_1, … as far as they are finished; at least S_0.
        classes: the label names.
        found: the iterations.
        steps: T.
        fitted: whether the generator was fitted on private records.
    """
    origin = "from the fitted generator" if fitted else "straight from the generator"
    degrees = {one.t: f", varied by degree {one.degree:g}" for one in found}
    names = [f"S0, {origin}" if steps else origin.capitalize()]
    names += [
        f"S{t}, after {t} round{'s' if t > 1 else ''} of votes{degrees.get(t, '')}" for t in range(1, len(populations))
    ]
    shown = "".join(
        f'<figure class="generation" data-name="{escape(name, quote=True)}"><figcaption>{escape(name)}</figcaption>'
        f"{_strips(population, classes, f' in S{t}' if steps else '')}</figure>"
        for t, (name, population) in enumerate(zip(names, populations, strict=True))
    )
    last = len(populations) - 1
    slider = (
        '<div class="slider"><label for="iteration">Iteration</label>'
        f'<input id="iteration" type="range" min="0" max="{last}" value="{last}">'
        '<output id="shown" for="iteration"></output></div>'
    )
    note = "Each row shows samples of one label, evenly spread over the population: none was picked."
    title = "How it evolved" if steps else "Samples"
    return section(title, slider if last else "", shown, paragraph(note, "soft"))


def extensions_section(extensions: Sequence[Population], classes: Sequence[str]) -> str:
    """What `pe extend` added; nothing where it added nothing."""
    if not extensions:
        return ""
    shown = "".join(
        f"<figure><figcaption>Extension {k}: {len(one):,} more</figcaption>"
        f"{_strips(one, classes, f' in extension {k}')}</figure>"
        for k, one in enumerate(extensions, start=1)
    )
    said = (
        f"`pe extend` added {sum(map(len, extensions)):,} samples to the finished run: variations of the last "
        "population's members in turn. They cost no further ε, since no private record had a part in them."
    )
    return section("Added later", paragraph(said), shown)


def extremes_section(populations: Sequence[Population], found: Sequence[Generation]) -> str:
    """The last voted-on population's members with most and fewest noisy votes, none of them in both rows."""
    if not found or not isinstance(populations[found[-1].t - 1].samples, Images):
        return ""
    last = found[-1]
    voted = populations[last.t - 1]
    order = np.argsort(-last.votes, kind="stable")
    count = min(_EXTREMES, len(order) // 2)
    if not count:
        return ""
    rows = ""
    for title, members in (("most", order[:count]), ("fewest", order[-count:])):
        picture = image_tag(strip(voted, members), f"Samples with {title} noisy votes")
        rows += f'<div class="name">{title}</div><div>{picture}</div>'
    note = f"Of S{last.t - 1}, by the noisy votes of iteration {last.t}."
    return section("Most and fewest votes", paragraph(note, "soft"), f'<div class="strips">{rows}</div>')


def _strips(population: Population, classes: Sequence[str], place: str) -> str:
    """A row of images for each label."""
    rows = []
    for label, title in enumerate(classes):
        members = np.flatnonzero(population.labels == label)
        if members.size:
            picture = strip(population, spread_over(members, _PER_STRIP))
            alt = f"Synthetic samples of label {title}{place}"
            rows.append(f'<div class="name">{escape(title)}</div><div>{image_tag(picture, alt)}</div>')
    return f'<div class="strips">{"".join(rows)}</div>'

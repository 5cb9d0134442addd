"""What `pe evaluate` found of memorisation, as a section of the confidential page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from pe.report.charts import Line, line_chart
from pe.report.page import paragraph, section
from pe.report.pictures import image_tag
from pe.store.run import Run

Metrics = Mapping[str, Any]


def memorisation_section(run: Run, metrics: Metrics) -> str:
    """The membership test, distances to the nearest as distribution functions, and the nearest pairs."""
    found = metrics.get("memorisation")
    if not found:
        return ""
    copies = found.get("copies")
    charts = _cdf(
        found,
        "Generated images lie left of held-out ones only if they are nearer to records than chance brings real images",
        {"heldout_to_private": "held-out → nearest private", "generated_to_private": "generated → nearest private"},
    ) + _cdf(
        found,
        "The curves lie on each other if the synthetic data do not tell who was in",
        {"heldout_to_generated": "held-out → nearest generated", "private_to_generated": "private → nearest generated"},
    )
    return section(
        "Memorisation",
        _copies(copies) if copies else "",
        paragraph(_membership(found["membership"])) if found.get("membership") else "",
        f'<div class="charts">{charts}</div>',
        _pictures(run, found),
    )


def _copies(found: Metrics) -> str:
    """Exact and near copies, and what is to be thought of them."""
    rule = f"{found['rule']['share']:g} times the mean distance to the {found['rule']['neighbors']} nearest records"
    told = (
        f"Of {found['generated']:,} synthetic images {found['exact']:,} are private records, pixel by pixel, and "
        f"{found['near']:,} more are near copies: nearer to a record than {rule}. Of {found['heldout']:,} held-out "
        f"images {found['heldout_near']:,} are as near."
    )
    return "".join(f'<p class="banner">{escape(one)}</p>' for one in found["warnings"]) + paragraph(told)


def _membership(member: Metrics) -> str:
    low, high = member["low"], member["high"]
    meaning = "which holds 0.5, so this test finds nothing; that proves nothing: ε is the guarantee"
    if low > 0.5:
        meaning = "all above 0.5: being near a synthetic image tells something about who was in"
    elif high < 0.5:
        meaning = "all below 0.5: held-out images lie nearer than the records, so the two hardly come from one source"
    return (
        f"A test that guesses who was a private record by the distance to the nearest synthetic image has an AUC of "
        f"{member['auc']:.3f}, with a {member['level']:.0%} interval from {low:.3f} to {high:.3f}, {meaning}."
    )


def _cdf(found: Metrics, title: str, names: Mapping[str, str]) -> str:
    lines = [
        Line(name, found[key]["quantiles"], [100 * level for level in found[key]["levels"]])
        for key, name in names.items()
        if found.get(key)
    ]
    return line_chart(title, lines, f"distance under {found['embedding']}", "% nearer") if lines else ""


def _pictures(run: Run, found: Metrics) -> str:
    pictures = ""
    for name in (found.get("nearest_pairs") or {}).get("files", []):
        path = run.folder / name
        if path.is_file() and Path(name).suffix == ".png" and path.resolve().is_relative_to(run.confidential.resolve()):
            tag = image_tag(path.read_bytes(), "Synthetic images, each beside its nearest private record")
            caption = "Nearest pairs: a synthetic image, left, and its nearest private record; their distance below"
            pictures += f"<figure>{tag}<figcaption>{caption}</figcaption></figure>"
    return pictures

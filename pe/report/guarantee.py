"""What a run's certificate promises, for a page: in words that need no other, and in full."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pe.privacy.release import Relation
from pe.privacy.words import power, round_up
from pe.report.page import listed, paragraph, section, table

Certificate = Mapping[str, Any]

_OTHER_WORLD = {
    Relation.ADD_REMOVE: "had never been in the private data, or one more had been",
    Relation.REPLACE_ONE: "in the private data had been another",
    Relation.ZERO_OUT: "in the private data had been blank",
}

_SELF_ISSUED = (
    "The certificate is issued by the software for itself; certificate.json has it whole, with every file's SHA-256, "
    "and `pe privacy` recomputes it."
)


def promise(certificate: Certificate) -> str:
    """The certificate's promise without a technical term; where it is void, that it is."""
    if not certificate["holds"]:
        return str(certificate["statement"])
    epsilon, delta, unit = certificate["epsilon"], certificate["delta"], certificate["unit"]["name"]
    what = "record" if unit == "record" else f"user (as named by '{unit}')"
    factor = round_up(math.exp(epsilon), 4) if epsilon < 500 else "e^ε"
    return (
        "Whatever anybody concludes from these files, and whatever else they know: the probability of that conclusion "
        f"is at most {factor} times what it would be if any one {what} "
        f"{_OTHER_WORLD[Relation(certificate['relation']['name'])]}, plus {delta:g}. A test for whether a given {what} "
        "was used that wrongly accuses 1 in 100 finds at most "
        f"{round_up(100 * power(epsilon, delta, 0.01), 3)} in 100."
    )


def certificate_section(certificate: Certificate | None, page: str) -> str:
    """The certificate, but for its files' hashes; `page` is the name of the file that shows it. None: no section."""
    if certificate is None:
        return ""
    numbers = f"ε = {round_up(certificate['epsilon'])}, δ = {certificate['delta']:g}"
    kind = f"under {certificate['relation']['name']} for one {certificate['unit']['name']}"
    holds = f"All covered files together are ({numbers})-differentially private {kind}."
    covered = sum(one["file"] != page for one in certificate["covered"])
    return section(
        "The certificate",
        paragraph(holds if certificate["holds"] else certificate["statement"]),
        listed([f"Protected: {certificate['unit']['words']}", f"Compared: {certificate['relation']['words']}"]),
        _releases(certificate),
        _data_set(certificate),
        "<h3>What it does not cover</h3>",
        listed(certificate["not_covered"]),
        "<h3>What would void it</h3>",
        listed(certificate["would_void"]),
        listed(certificate["warnings"]) if certificate["warnings"] else "",
        paragraph(f"{_SELF_ISSUED} It covers {covered} files besides this page.", "soft"),
    )


def _releases(certificate: Certificate) -> str:
    head = ("release", "mechanism", "sensitivity", "noise multiplier", "times", "state")
    rows = [
        (
            str(one["name"]),
            str(one["mechanism"]).replace("_", " "),
            f"{one['sensitivity']:.4g}",
            f"{one['noise_multiplier']:.4g}",
            f"{one['count'] * one['charges']:,}",
            str(one["state"]),
        )
        for one in certificate["releases"]
    ]
    return table(head, rows)


def _data_set(certificate: Certificate) -> str:
    """What all runs over the data set came to, this one included."""
    found = certificate["data_set"]
    if found is None:
        return ""
    runs = f"All {found['runs']} recorded runs over this data set together"
    if found["runs"] == 1:
        runs = "The only recorded run over this data set"
    whom = f", {found['for']}" if "for" in found else ""
    return paragraph(f"{runs}: ε = {round_up(found['epsilon'])} at δ = {found['delta']:g}{whom}.")

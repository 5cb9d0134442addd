"""A certificate as a page of Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pe.errors import printable
from pe.privacy.words import POOL_OVERLAPS, guarantee, round_up


def certificate_files(certificate: Mapping[str, Any]) -> dict[str, bytes]:
    """The certificate as the files that a run holds: name → content."""
    text = json.dumps(certificate, indent=2, ensure_ascii=False) + "\n"
    return {"certificate.json": text.encode(), "certificate.md": certificate_markdown(certificate).encode()}


def code(text: str) -> str:
    """A name as it is, in a code span that nothing in it ends."""
    text = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if len(fence) > 1 or not text.strip() else ""
    return f"{fence}{space}{text}{space}{fence}"


def sentence(text: str) -> str:
    """A sentence of ours in which names of others' may stand: their links, pictures and HTML are text."""
    return re.sub(r"[<\[\]]", r"\\\g<0>", printable(text))


def certificate_markdown(certificate: Mapping[str, Any], files: int | None = None) -> str:
    """The same content as the JSON, for people; of more covered files than `files` it tells the number alone."""
    total = guarantee(certificate["epsilon"], certificate["delta"])
    title = "# Privacy certificate" if certificate["holds"] else "# Privacy certificate: NO GUARANTEE"
    parts = [
        title,
        f"Run {code(certificate['run'])}. Issued by the software that made the run, for itself: nobody else has "
        "checked it. `pe privacy` recomputes it.",
        f"## What is promised\n\n**{total if certificate['holds'] else 'Nothing'}.** "
        + sentence(certificate["statement"]),
        f"**{POOL_OVERLAPS}**" if certificate.get("pool_overlaps") else "",
        f"- Protected: {sentence(certificate['unit']['words'])}\n"
        f"- Compared: {sentence(certificate['relation']['words'])}\n"
        f"- Declared number of records (public): {certificate['declared_size'] or 'not stated'}{_units(certificate)}",
        _section("Voided by", certificate["voided_by"]),
        _section("Warnings", certificate["warnings"]),
        "## The same guarantee at other δ\n\n" + _epsilons(certificate) if certificate["epsilon_at"] else "",
        _data_set(certificate["data_set"]),
        "## Releases\n\nThe total counts every planned release, whether the run came to it or not.\n\n"
        + _releases(certificate["releases"]),
        _section("How the noise was made", certificate["notes"]),
        _section("What is not covered", certificate["not_covered"]),
        _section("What would void it", certificate["would_void"]),
        "## Covered files\n\n" + _covered(certificate["covered"], files),
        "## Software\n\n" + _table(("Distribution", "Version"), certificate["software"].items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _units(certificate: Mapping[str, Any]) -> str:
    """How many units are declared, where these are not records."""
    name = certificate["unit"]["name"]
    many = certificate.get("declared_units") or "not stated"
    return "" if name == "record" else f"\n- Declared number of units, by '{sentence(name)}' (public): {many}"


def _epsilons(certificate: Mapping[str, Any]) -> str:
    rows = ((f"{one['delta']:g}", round_up(one["epsilon"])) for one in certificate["epsilon_at"])
    table = _table(("δ", "ε"), rows)
    mu = certificate["gdp_mu"]
    return table if mu is None else table + f"\n\nAs Gaussian differential privacy: μ = {mu:.6g}."


def _data_set(data_set: Mapping[str, Any] | None) -> str:
    if data_set is None:
        return ""
    runs = f"All {data_set['runs']} runs over this data that were recorded when it ended, together"
    if data_set["runs"] == 1:
        runs = "When it ended, this was the only recorded run over this data"
    whom = f", {data_set['for']}" if "for" in data_set else ""
    total = guarantee(data_set["epsilon"], data_set["delta"])
    return f"## The data set\n\n{runs}: {total}{whom}. `pe ledger` tells the total since."


def _releases(releases: Iterable[Mapping[str, Any]]) -> str:
    head = ("Name", "Mechanism", "Noise multiplier", "Sensitivity", "Times", "Charges", "Sampling", "Grid", "State")
    return _table(head, (_release(one) for one in releases))


def _release(one: Mapping[str, Any]) -> tuple[str, ...]:
    sampling = one["sampling"]
    return (
        one["name"],
        one["mechanism"] + (" (UNSAFE)" if one["unsafe"] else ""),
        f"{one['noise_multiplier']:.6g}",
        f"{one['sensitivity']:.6g}",
        str(one["count"]),
        str(one["charges"]),
        "none" if sampling is None else f"Poisson {sampling['poisson_rate']:.6g}",
        str(one["grid"]),
        one["state"],
    )


def _covered(covered: Sequence[Mapping[str, str]], most: int | None) -> str:
    if most is not None and len(covered) > most:
        return f"{len(covered):,} files; certificate.md names each with its hash."
    return _table(("File", "SHA-256"), map(_file, covered))


def _file(one: Mapping[str, str]) -> tuple[str, str]:
    return code(one["file"]), code(one["sha256"])


def _section(title: str, lines: Iterable[str]) -> str:
    text = "\n".join(f"- {sentence(line)}" for line in lines)
    return f"## {title}\n\n{text}" if text else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)

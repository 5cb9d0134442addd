"""The certificate's sentences: plain, and no stronger than the mathematics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from pe.errors import printable
from pe.privacy.release import Relation, Release

NOT_COVERED = (
    "Everything under confidential/: it holds what touched the private data without noise (embeddings, clean "
    "measurements, durations, logs). It must not be shared, and is not part of what this certificate speaks of.",
    "Other runs over the same data, abandoned and copied ones included: what each released adds up.",
    "Choices of settings made by looking at private measurements (fidelity, utility) of earlier runs: such "
    "looking releases something that no run's ledger sees.",
    "The data on which the generator itself was trained beforehand: if private records were among them, this "
    "certificate does not protect them.",
)

WOULD_VOID = (
    "Noise from a seed, or from any source but the operating system's entropy.",
    "Modified software: the declared sensitivities hold for the code of the versions named here.",
    "Publishing anything from confidential/.",
    "Private records that reach the generator or its provider by any way but the releases listed here.",
)

NOT_DECLARED = "not declared"
"""In the place of a host: the embedding does not say whether it hands private records on."""

POOL_OVERLAPS = (
    "The public samples that the run reads may be private records: the recipe declares these published "
    "(privacy.pool_overlaps). Such records may stand in the synthetic data as they are, and ε says nothing about them."
)

WEAK = 10.0
"""The ε above which Ponomareva et al. (How to DP-fy ML, 2023, §5.2.1: tier 3) see weak or no formal protection."""

UNSAFE = "Unsafe, seeded noise was used (a test switch). NO GUARANTEE: whoever knows the seed removes the noise."

NO_NOISE = (
    "No noise is added to the votes, because the recipe says `privacy: none`, which is for studies. NO GUARANTEE: what "
    "the private records said stands in the results as it is, so handle these like the records themselves."
)

NO_EPSILON = "none: no guarantee"
"""In the place of an ε where none holds."""


def not_covered(
    private_data_sent_to: str | None, fitted_on_others: Mapping[str, Any] | str | None, pool_overlaps: str | None
) -> list[str]:
    """What the certificate does not speak of, one sentence each.

    Args:
        private_data_sent_to: the host that saw private records; None: nobody did; or NOT_DECLARED.
        fitted_on_others: as the certificate has it.
        pool_overlaps: as the certificate has it.
    """
    found = list(NOT_COVERED)
    if fitted_on_others == NOT_DECLARED:
        found.insert(
            0,
            "Models or data of other runs over the same private records that the generator may take: the generator of "
            "this run is an object that does not declare any, nor that there are none.",
        )
    elif isinstance(fitted_on_others, Mapping):
        other, delta = fitted_on_others, fitted_on_others["delta"]
        found.insert(
            0,
            f"The generator was fitted by the run '{other['run']}' on other private records, for which that alone cost "
            f"ε = {round_up(other['epsilon'])} at δ = {delta:g}. That nobody's records are in both sets is declared, "
            f"not verified: for whoever is in both, the total is ε = {round_up(other['epsilon_if_in_both'])}.",
        )
    if private_data_sent_to == NOT_DECLARED:
        found.insert(
            0,
            "Whether the private records themselves were sent anywhere to be embedded, un-noised: the embedding of "
            "this run does not declare it. Whoever received them saw them; this certificate does not protect them from "
            "it.",
        )
    elif private_data_sent_to is not None:
        found.insert(
            0,
            f"The private records themselves were sent to {private_data_sent_to}, un-noised, to be embedded, as the "
            "recipe allows: whoever runs that endpoint saw them, and this certificate does not protect them from it.",
        )
    if pool_overlaps is not None:
        found.insert(0, POOL_OVERLAPS)
    return found


def unit(name: str) -> str:
    """What is protected, in words."""
    if name == "record":
        return "One record: a single item of the private data. A person with several records is protected less."
    return f"One {name}: all records of the same '{name}' together, however many, over all classes."


def relation(kind: Relation, name: str) -> str:
    """Which worlds cannot be told apart, in words."""
    return {
        Relation.ADD_REMOVE: f"The world as it is, and the world in which any one {name} had never been in the data, "
        "or one more had been. How many there are is protected as well.",
        Relation.REPLACE_ONE: f"The world as it is, and the world in which any one {name}'s data had been other data. "
        "How many there are is public.",
        Relation.ZERO_OUT: f"The world as it is, and the world in which any one {name}'s data had been blank and "
        "without influence. How many there are is public.",
    }[kind]


def voided_by(noiseless: bool, unsafe: bool) -> list[str]:
    """Why nothing is promised; empty: all is."""
    return [NO_NOISE] if noiseless else [UNSAFE] if unsafe else []


def guarantee(epsilon: float | None, delta: float | None, digits: int = 6, between: str = " at ") -> str:
    """`ε = 4 at δ = 1e-06`; NO_EPSILON where no ε holds: None, or infinite."""
    if epsilon is None or delta is None or math.isinf(epsilon):
        return NO_EPSILON
    return f"ε = {round_up(epsilon, digits)}{between}δ = {delta:g}"


def finite(epsilon: float) -> float | None:
    """ε as JSON has it: null where none holds."""
    return epsilon if math.isfinite(epsilon) else None


def statement(
    epsilon: float | None,
    delta: float | None,
    kind: Relation,
    name: str,
    voided: Sequence[str],
    mu: float | None = None,
) -> str:
    """The promise in one paragraph; `voided` says why there is none. `mu`: of all releases, where they are Gaussian."""
    if voided or epsilon is None or delta is None:
        return f"NO GUARANTEE. {' '.join(voided)}"
    factor = round_up(math.exp(epsilon), 4) if epsilon < 500 else "e^ε"
    return (
        f"All covered files together are (ε = {round_up(epsilon)}, δ = {delta:g})-differentially private under "
        f"{kind} for one {name}. Whatever anybody concludes from them, and whatever else is known to that person: the "
        f"probability of that conclusion is at most {factor} times what it would be in the neighbouring world, "
        f"plus {delta:g}. A test for whether a given {name} was used that wrongly accuses 1 in 100 finds at "
        f"most {found_at_most(epsilon, delta, mu)}."
    )


def found_at_most(epsilon: float, delta: float, mu: float | None) -> str:
    """How many in 100 a test finds that wrongly accuses 1 in 100: by μ-GDP, where it holds, else by ε and δ alone.

    Φ(Φ⁻¹(0.01) + μ), as Dong, Roth and Su (2022) have it, and `power`.
    """
    alone = round_up(100 * power(epsilon, delta, 0.01), 3)
    if mu is None:
        return f"{alone} in 100"
    normal = NormalDist()
    gaussian = round_up(100 * normal.cdf(normal.inv_cdf(0.01) + mu), 3)
    return f"{gaussian} in 100, as all noise is Gaussian (from ε and δ alone one could promise {alone} in 100 only)"


def round_up(value: float, digits: int = 6) -> str:
    """A number that must not be understated, to so many significant digits."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step - 1e-9) * step:.{digits}g}"


def power(epsilon: float, delta: float, false_alarms: float) -> float:
    """The highest true positive rate of any test with that rate of false alarms (Wasserman and Zhou 2010)."""
    above = math.exp(min(epsilon, 700)) * false_alarms + delta
    below = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, above, below)


def warnings(
    epsilon: float | None, delta: float | None, declared_size: int | None, declared_units: int | None = None
) -> list[str]:
    """What a reader should worry about though the guarantee holds, from the numbers that a certificate states."""
    found: list[str] = []
    if epsilon is None or delta is None:
        return found
    many, noun = (declared_size, "record") if declared_units is None else (declared_units, "privacy unit")
    if many is not None and delta * many >= 1:
        found.append(
            f"δ = {delta:g} is not below 1/{many}, one over the declared number of {noun}s: at such a δ even "
            f"publishing a whole {noun} at random is allowed. Choose a smaller δ."
        )
    if epsilon > WEAK:
        found.append(
            f"ε = {round_up(epsilon, 4)} is above {WEAK:g}, where a guarantee protects hardly anybody: a test for "
            "whether somebody's data were used that wrongly accuses 1 in 100 may find "
            f"{round_up(100 * power(epsilon, delta, 0.01), 3)} in 100. Choose a smaller ε."
        )
    return found


def notes(releases: Sequence[Release]) -> list[str]:
    """How the noise was made."""
    if not any(release.noised for release in releases):
        return []
    return [
        "All noise is drawn exactly, as integers, from the operating system's entropy, and added to sums of integers; "
        "ε is computed for these discrete mechanisms, so attacks on floating-point noise do not apply. The recipe's "
        "seed has no part in it."
    ]


# A certificate as a page of Markdown.


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

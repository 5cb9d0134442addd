"""Checks a certificate anew: ε from its releases, its sentences from its numbers, its files by their hashes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pe.errors import PrivacyError
from pe.privacy import words
from pe.privacy.accounting import epsilon, gdp_mu
from pe.privacy.certificate import FORMAT
from pe.privacy.covered import BANNER, RELEASES, compare_files, release_file
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release

_KEYS = frozenset({"charges", "state", "unsafe"})
_FORMATS = range(1, FORMAT + 1)
_TOLERANCE = 1e-6
_MOST = 10_000
"""Charges of all releases together, and draws of an unsampled one, beyond which nobody's time is spent on a check."""


def verify(certificate: Mapping[str, Any], folder: Path) -> list[str]:
    """What is wrong with `certificate` and the files in `folder`, one sentence each; empty if nothing is.

    It finds accidents and careless changes. Whoever changes a file and rewrites the certificate to match is not
    found out: the certificate is self-issued. A signature (pe/store/signing.py) finds that out.
    """
    try:
        if certificate["format"] not in _FORMATS:
            return [f"The certificate has format {certificate['format']!r}; this software reads formats 1 to {FORMAT}."]
        covered = {str(one["file"]): str(one["sha256"]) for one in certificate["covered"]}
        return [
            *_numbers(certificate),
            *_words(certificate),
            *_listed(certificate, covered),
            *compare_files(folder, covered),
        ]
    except PrivacyError as error:
        return [f"The certificate is not valid: {error}"]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return [f"The certificate is damaged: {type(error).__name__} at {error}."]


def certified_releases(certificate: Mapping[str, Any]) -> list[Release]:
    """The releases, each as often as it was charged."""
    releases: list[Release] = []
    for entry in certificate["releases"]:
        release = Release.from_dict({key: value for key, value in entry.items() if key not in _KEYS})
        charges = entry["charges"]
        if not isinstance(charges, int) or not 1 <= charges <= _MOST - len(releases):
            raise PrivacyError(f"Release '{release.name}' is charged {charges!r} times.")
        if release.sampling is None and release.count > _MOST:
            raise PrivacyError(f"Release '{release.name}' is drawn {release.count} times.")
        releases += [release] * charges
    return releases


def _numbers(certificate: Mapping[str, Any]) -> list[str]:
    releases = certified_releases(certificate)
    if certificate["budget"] is None:
        return _without_noise(certificate, releases)
    problems = []
    for release in releases:
        if str(release.relation) != certificate["relation"]["name"] or release.unit != certificate["unit"]["name"]:
            problems.append(f"Release '{release.name}' has another relation or unit than the certificate.")
    stated = [(certificate["delta"], certificate["epsilon"])]
    stated += [(one["delta"], one["epsilon"]) for one in certificate["epsilon_at"]]
    for delta, claimed in dict.fromkeys(stated):
        found = epsilon(releases, delta)
        if not math.isclose(found, claimed, rel_tol=_TOLERANCE, abs_tol=1e-9):
            problems.append(f"ε at δ = {delta:g} is {found:.6g} by its releases, not {claimed:.6g} as it says.")
    budget = Budget(**certificate["budget"])
    if epsilon(releases, budget.delta) > budget.epsilon * (1 + _TOLERANCE):
        problems.append(f"The releases exceed the budget of ε = {budget.epsilon:g} at δ = {budget.delta:g}.")
    mu, claimed_mu = gdp_mu(releases), certificate["gdp_mu"]
    if (mu is None) != (claimed_mu is None) or not math.isclose(mu or 0, claimed_mu or 0, rel_tol=_TOLERANCE):
        problems.append(f"μ is {mu} by its releases, not {claimed_mu} as it says.")
    return problems


def _listed(certificate: Mapping[str, Any], covered: Collection[str]) -> list[str]:
    """Compare the releases that are listed as made with the files that are covered."""
    listed_files = {release_file(one["name"]) for one in certificate["releases"] if one["state"] == "released"}
    there = {name for name in covered if name.startswith(f"{RELEASES}/")}
    return [
        *(
            f"'{name}' is covered, and no release that was made is listed for it."
            for name in sorted(there - listed_files)
        ),
        *(f"A release is listed as made, and '{name}' is not covered." for name in sorted(listed_files - there)),
    ]


def _without_noise(certificate: Mapping[str, Any], releases: Sequence[Release]) -> list[str]:
    """Whether a certificate without a budget states no number, and no noise."""
    problems = [
        f"It has no budget, so its '{key}' cannot be {certificate[key]}."
        for key in ("epsilon", "delta", "gdp_mu", "epsilon_at")
        if certificate[key]
    ]
    if any(release.noised for release in releases):
        problems.append("It says that no noise was added, and lists releases with noise.")
    return problems


def _words(certificate: Mapping[str, Any]) -> list[str]:
    """Whether the sentences say what the numbers do."""
    problems = []
    relation, unit = Relation(certificate["relation"]["name"]), certificate["unit"]["name"]
    unsafe = bool(certificate["voided_by"]) or any(one["unsafe"] for one in certificate["releases"])
    noiseless = certificate["budget"] is None
    voided = words.voided_by(noiseless, unsafe)
    if certificate["holds"] is not (not voided):
        problems.append(f"It says that the guarantee holds, but {'no' if noiseless else 'unsafe'} noise was used.")
    if noiseless is not any(one["file"] == BANNER for one in certificate["covered"]):
        problems.append(f"'{BANNER}' belongs to a certificate that says that no noise was added, and to no other.")
    numbers = certificate["epsilon"], certificate["delta"], relation, unit, voided
    promises = [words.statement(*numbers, mu) for mu in (certificate["gdp_mu"], None)]  # the second, of older ones
    expected = {
        "voided_by": voided,
        "statement": promises[certificate["statement"] == promises[1]],
        "relation": {"name": str(relation), "words": words.relation(relation, unit)},
        "unit": {"name": unit, "words": words.unit(unit)},
        "warnings": _warnings(certificate),
        "not_covered": words.not_covered(
            certificate.get("private_data_sent_to"),
            certificate.get("fitted_on_others"),
            certificate.get("pool_overlaps"),
        ),
    }
    return problems + [
        f"Its '{key}' is not what its numbers say." for key, value in expected.items() if certificate[key] != value
    ]


def _warnings(certificate: Mapping[str, Any]) -> list[str]:
    """The certificate's warnings as they must be: first those that follow from its numbers, then any that it has."""
    delta, sizes = certificate["delta"], (certificate["declared_size"], certificate.get("declared_units"))
    if certificate["format"] == 1:
        return words.warnings(0.0, delta, *sizes)
    implied = words.warnings(certificate["epsilon"], delta, *sizes)
    return [*implied, *map(str, certificate["warnings"][len(implied) :])]

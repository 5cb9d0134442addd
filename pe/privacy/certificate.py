"""The ledger, written out for a reader: promise, releases, covered files and limits."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pe.errors import PrivacyError
from pe.privacy import certificate_text as text
from pe.privacy.accounting import epsilon, gdp_mu
from pe.privacy.certificate_text import Certificate
from pe.privacy.covered import BANNER, RELEASES, compare_files, release_file
from pe.privacy.ledger import Budget, Ledger
from pe.privacy.release import Release

FORMAT = 2
"""From format 2 on, `warnings` has also the warnings that follow from ε, and those that the recipe
adds. For a run without noise `epsilon`, `delta`, `budget` and `gdp_mu` are null."""

_TOLERANCE = 1e-6
_MOST = 10_000
"""Most charges of all releases together, and most draws of an unsampled release. `verify` refuses
more, to end soon."""
_MOST_SAMPLED = 500
"""Most different sampled releases, each of which takes the accountant some time."""


def build_certificate(
    ledger: Ledger,
    *,
    run: str,
    files: Mapping[str, str],
    declared_size: int | None,
    software: Mapping[str, str],
    data_set: Mapping[str, Any] | None = None,
    private_data_sent_to: str | None = None,
    fitted_on_others: str | None = None,
    pool_overlaps: str | None = None,
    declared_units: int | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the certificate of a run, as JSON values, with the planned total.

    It holds no private value and no time.

    Args:
        ledger: the run's ledger.
        run: the run's name.
        files: name → SHA-256 of every shareable file (`RunWriter.shareable_files`).
        declared_size: the public number of private records; None if not stated.
        software: distribution → version.
        data_set: {"epsilon", "delta", "runs"} over all runs in the data set's ledger file, if there
            is one.
        private_data_sent_to: the host to which the recipe lets private records go, None for nobody,
            or NOT_DECLARED.
        fitted_on_others: NOT_DECLARED for a generator that is an object of the user's own, which
            may use a model of another run unseen; else None, since every model of another run is on
            this ledger.
        pool_overlaps: "declared" where public samples may be private records, as the recipe
            declares; else None.
        declared_units: the public number of privacy units, where these are not records; None if not
            stated.
        warnings: further warnings, which do not follow from the certificate's numbers.
    """
    events = ledger.events()
    total = text.finite(ledger.total())
    delta = None
    deltas: set[float] = set()
    if ledger.budget is not None:
        delta = ledger.budget.delta
        # a tiny δ divided by 100 may be 0, at which no ε is stated
        deltas = {delta / 100, delta / 10, delta, min(0.1, delta * 10)} - {0.0}
    reasons = text.voided_by(ledger.budget is None, ledger.unsafe)
    numbers = {
        "epsilon": total,
        "delta": delta,
        "budget": None if ledger.budget is None else asdict(ledger.budget),
        "relation": {"name": str(ledger.relation)},
        "unit": {"name": ledger.unit},
        "gdp_mu": gdp_mu(events),
        "pool_overlaps": pool_overlaps,
        "declared_size": declared_size,
        "declared_units": declared_units,
        "private_data_sent_to": private_data_sent_to,
        "fitted_on_others": fitted_on_others,
    }
    return {
        "format": FORMAT,
        "kind": "differential privacy certificate, self-issued",
        "run": run,
        "holds": not reasons,
        **numbers,
        **text.wording(numbers, reasons),
        "warnings": [
            *text.warnings(total, delta, declared_size, declared_units),
            *warnings,
        ],
        "epsilon_at": [
            {"delta": at, "epsilon": value}
            for at, value in ledger.epsilon_at(sorted(deltas)).items()
        ],
        "releases": _releases(ledger),
        "covered": [{"file": name, "sha256": digest} for name, digest in sorted(files.items())],
        "notes": [text.EXACT_NOISE] if any(one.has_noise for one in events) else [],
        "would_void": list(text.WOULD_VOID),
        "data_set": None if data_set is None else dict(data_set),
        "software": dict(sorted(software.items())),
    }


def _releases(ledger: Ledger) -> list[dict[str, Any]]:
    """Return every planned or charged release with its charges and state.

    The state is planned, charged or released.
    """
    entries = {
        release.name: release.to_dict() | {"charges": 1, "state": "planned", "unsafe": False}
        for release in ledger.plan
    }
    for one in ledger.charges():
        state = "charged" if one.array is None else "released"
        more = {"charges": one.charges, "state": state, "unsafe": one.unsafe}
        entries[one.release.name] = one.release.to_dict() | more
    return list(entries.values())


def verify(certificate: Certificate, folder: Path) -> list[str]:
    """Check a certificate and its files, and return a sentence for each fault.

    ε must follow from the releases, the sentences from the numbers, and each file must have its
    hash. This finds accidents and careless changes. It does not find somebody who changes a file
    and rewrites the certificate to match, because the certificate is self-issued; a signature
    (pe/store/signing.py) does.

    Returns:
        A sentence for each fault of `certificate` and of the files in `folder`; empty if there is
            none.
    """
    try:
        if certificate["format"] not in range(1, FORMAT + 1):
            return [
                f"The certificate has format {certificate['format']!r}; this software reads "
                f"formats 1 to {FORMAT}."
            ]
        # an earlier version could leave out what the records of another run had cost
        if certificate.get("fitted_on_others") not in (None, text.NOT_DECLARED):
            return [
                "It leaves out the cost of another run's model, which this version always counts."
            ]
        digests = {str(one["file"]): str(one["sha256"]) for one in certificate["covered"]}
        return [
            *_check_numbers(certificate),
            *_check_words(certificate),
            *_check_releases(certificate, digests),
            *compare_files(folder, digests),
        ]
    except PrivacyError as error:
        return [f"The certificate is not valid: {error}"]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return [f"The certificate is damaged: {type(error).__name__} at {error}."]


def certified_releases(certificate: Certificate) -> list[Release]:
    """Return the releases of a certificate, each as often as it was charged.

    Raises:
        PrivacyError: a release is faulty, or there are too many.
    """
    releases: list[Release] = []
    for entry in certificate["releases"]:
        own = ("charges", "state", "unsafe")
        release = Release.from_dict({key: value for key, value in entry.items() if key not in own})
        charges = entry["charges"]
        if not isinstance(charges, int) or not 1 <= charges <= _MOST - len(releases):
            raise PrivacyError(f"Release '{release.name}' is charged {charges!r} times.")
        if release.sampling is None and release.count > _MOST:
            raise PrivacyError(f"Release '{release.name}' is drawn {release.count} times.")
        releases += [release] * charges
    sampled = {replace(release, name="-") for release in releases if release.sampling is not None}
    if len(sampled) > _MOST_SAMPLED:
        raise PrivacyError(
            f"It lists {len(sampled):,} different sampled releases, more than {_MOST_SAMPLED}."
        )
    return releases


def _check_numbers(certificate: Certificate) -> Iterator[str]:
    releases = certified_releases(certificate)
    if certificate["budget"] is None:
        for key in ("epsilon", "delta", "gdp_mu", "epsilon_at"):
            if certificate[key]:
                yield f"It has no budget, so its '{key}' cannot be {certificate[key]}."
        if any(release.has_noise for release in releases):
            yield "It says that no noise was added, but it lists releases with noise."
        return
    # ε is computed for the releases' own relation and unit, so the certificate may name no other
    for release in releases:
        if (
            str(release.relation) != certificate["relation"]["name"]
            or release.unit != certificate["unit"]["name"]
        ):
            yield f"Release '{release.name}' has another relation or unit than the certificate."
    pairs = [(one["delta"], one["epsilon"]) for one in (certificate, *certificate["epsilon_at"])]
    for delta, claim in dict.fromkeys(pairs):
        total = epsilon(releases, delta)
        if not math.isclose(total, claim, rel_tol=_TOLERANCE, abs_tol=1e-9):
            yield f"ε at δ = {delta:g} is {total:.6g} by its releases, not {claim:.6g} as it says."
    budget = Budget(**certificate["budget"])
    if epsilon(releases, budget.delta) > budget.epsilon * (1 + _TOLERANCE):
        yield f"The releases exceed the budget of ε = {budget.epsilon:g} at δ = {budget.delta:g}."
    mu = gdp_mu(releases)
    claim = certificate["gdp_mu"]
    if (mu is None) != (claim is None) or not math.isclose(mu or 0, claim or 0, rel_tol=_TOLERANCE):
        yield f"μ is {mu} by its releases, not {claim} as it says."


def _check_words(certificate: Certificate) -> Iterator[str]:
    """Compare the sentences with the numbers."""
    unsafe = bool(certificate["voided_by"]) or any(one["unsafe"] for one in certificate["releases"])
    noiseless = certificate["budget"] is None
    reasons = text.voided_by(noiseless, unsafe)
    if certificate["holds"] is not (not reasons):
        yield (
            f"It says that the guarantee holds, but {'no' if noiseless else 'unsafe'} noise was "
            "used."
        )
    if noiseless is not any(one["file"] == BANNER for one in certificate["covered"]):
        yield (
            f"'{BANNER}' must be covered if the certificate says that no noise was added, and only "
            "then."
        )
    wording = text.wording(certificate, reasons)
    # earlier versions did not state what follows from μ
    older = text.wording({**certificate, "gdp_mu": None}, reasons)
    faulty = [key for key in wording if certificate[key] not in (wording[key], older[key])]
    if certificate["warnings"] != _expected_warnings(certificate):
        faulty.append("warnings")
    for key in faulty:
        yield f"Its '{key}' is not what its numbers say."


def _expected_warnings(certificate: Certificate) -> list[str]:
    """Return the warnings that follow from the certificate's numbers, then any others."""
    delta = certificate["delta"]
    sizes = (certificate["declared_size"], certificate.get("declared_units"))
    if certificate["format"] == 1:
        return text.warnings(0.0, delta, *sizes)
    consequences = text.warnings(certificate["epsilon"], delta, *sizes)
    return [*consequences, *map(str, certificate["warnings"][len(consequences) :])]


def _check_releases(certificate: Certificate, names: Collection[str]) -> Iterator[str]:
    """Compare the releases that are listed as made with the files that are covered."""
    listing = {
        release_file(one["name"]) for one in certificate["releases"] if one["state"] == "released"
    }
    files = {name for name in names if name.startswith(f"{RELEASES}/")}
    for name in sorted(files - listing):
        yield f"'{name}' is covered, but it belongs to no release that is listed as made."
    for name in sorted(listing - files):
        yield f"A release is listed as made, but '{name}' is not covered."

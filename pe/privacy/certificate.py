"""The ledger written out for a reader: what is promised, by what, for which files, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pe.privacy import words
from pe.privacy.accounting import epsilon as epsilon_of
from pe.privacy.accounting import gdp_mu
from pe.privacy.ledger import Ledger
from pe.privacy.release import Release

FORMAT = 2
"""Since 2 the warnings hold what follows from ε, and what the recipe adds. Of a run without noise `epsilon`, `delta`,
`budget` and `gdp_mu` are null."""


def build_certificate(
    ledger: Ledger,
    *,
    run: str,
    files: Mapping[str, str],
    declared_size: int | None,
    software: Mapping[str, str],
    data_set: Mapping[str, Any] | None = None,
    private_data_sent_to: str | None = None,
    fitted_on_others: tuple[str, Sequence[Release]] | str | None = None,
    pool_overlaps: str | None = None,
    declared_units: int | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The certificate of a run, as JSON values, with the planned total. It holds no private value and no time.

    Args:
        ledger: the run's.
        run: its name.
        files: name → SHA-256 of every shareable file (covered.hash_files).
        declared_size: the public number of private records; None: not stated.
        software: distribution → version.
        data_set: {"epsilon", "delta", "runs"} over all runs in the data set's ledger file, if there is one.
        private_data_sent_to: the host to which the recipe lets private records go; None: to nobody; or
            words.NOT_DECLARED, where the embedding does not say.
        fitted_on_others: the run that fitted a model of the generator's (or several), and its releases, which this
            ledger does not hold because the recipe declares that run's private records disjoint from these; None: there
            is no such run; or words.NOT_DECLARED, where the generator does not say.
        pool_overlaps: "declared" where public samples may be private records, as the recipe declares; else None.
        declared_units: the public number of privacy units, where these are not records; None: not stated.
        warnings: what else a reader should worry about, which does not follow from the certificate's own numbers.
    """
    events = ledger.events()
    promise = _promise(ledger)
    delta = promise["delta"]
    other_fits: dict[str, Any] | str | None = None
    if delta is not None and fitted_on_others is not None:
        others = fitted_on_others
        other_fits = others if isinstance(others, str) else _others(*others, events, delta)
    implied = words.warnings(promise["epsilon"], delta, declared_size, declared_units)
    return {
        "format": FORMAT,
        "kind": "differential privacy certificate, self-issued",
        "run": run,
        **promise,
        "pool_overlaps": pool_overlaps,
        "declared_size": declared_size,
        "declared_units": declared_units,
        "releases": _releases(ledger),
        "covered": [{"file": name, "sha256": digest} for name, digest in sorted(files.items())],
        "private_data_sent_to": private_data_sent_to,
        "fitted_on_others": other_fits,
        "not_covered": words.not_covered(private_data_sent_to, other_fits, pool_overlaps),
        "notes": words.notes(events),
        "warnings": [*implied, *warnings],
        "voided_by": _voided_by(ledger),
        "would_void": list(words.WOULD_VOID),
        "data_set": None if data_set is None else dict(data_set),
        "software": dict(sorted(software.items())),
    }


def _promise(ledger: Ledger) -> dict[str, Any]:
    """What holds, for whom, in numbers and in words."""
    budget, voided, total = ledger.budget, _voided_by(ledger), words.finite(ledger.total())
    delta, mu = None if budget is None else budget.delta, gdp_mu(ledger.events())
    return {
        "holds": not voided,
        "epsilon": total,
        "delta": delta,
        "statement": words.statement(total, delta, ledger.relation, ledger.unit, voided, mu),
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": delta},
        "relation": {"name": str(ledger.relation), "words": words.relation(ledger.relation, ledger.unit)},
        "unit": {"name": ledger.unit, "words": words.unit(ledger.unit)},
        "epsilon_at": [] if delta is None else _at_other_deltas(ledger, delta),
        "gdp_mu": mu,
    }


def _voided_by(ledger: Ledger) -> list[str]:
    return words.voided_by(ledger.budget is None, ledger.unsafe)


def _at_other_deltas(ledger: Ledger, delta: float) -> list[dict[str, float]]:
    deltas = sorted({delta / 100, delta / 10, delta, min(0.1, delta * 10)} - {0.0})
    return [{"delta": key, "epsilon": value} for key, value in ledger.epsilon_at(deltas).items()]


def _others(run: str, fit: Sequence[Release], events: Sequence[Release], delta: float) -> dict[str, Any]:
    """What the generator's fit on other records cost those, and what holds for a unit that is in both after all."""
    return {
        "run": run,
        "private_sets": "declared disjoint, not verified",
        "delta": delta,
        "epsilon": epsilon_of(fit, delta),
        "epsilon_if_in_both": epsilon_of([*fit, *events], delta),
        "releases": [release.to_dict() for release in fit],
    }


def _releases(ledger: Ledger) -> list[dict[str, Any]]:
    """Every planned or charged release, with how often it counts and how far it came."""
    stored = {one.release.name: one for one in ledger.stored()}
    known = {release.name: release for release in ledger.planned}
    known |= {name: one.release for name, one in stored.items()}
    entries = []
    for name, release in known.items():
        one = stored.get(name)
        state = "planned" if one is None else "charged" if one.array is None else "released"
        charges = 1 if one is None else one.charges
        unsafe = one is not None and one.unsafe
        entries.append({**release.to_dict(), "charges": charges, "state": state, "unsafe": unsafe})
    return entries

"""The record for the data-protection officer: who ran what, on which data, and where data went. Confidential."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from pe.engine.software import software_versions
from pe.fit.trainer import Trainer
from pe.plugins.protocols import Embedding, GenerationAPI, info_of
from pe.privacy.ledger import Ledger
from pe.privacy.words import finite
from pe.recipe.schema import Recipe
from pe.store.places import CONFIDENTIAL
from pe.store.writer import RunWriter

AUDIT_RECORD = f"{CONFIDENTIAL}/audit-record.json"


def write_audit_record(
    run: RunWriter, recipe: Recipe, api: GenerationAPI, embedding: Embedding, ledger: Ledger, cluster: Sequence[str]
) -> None:
    """Write the record as things stand: at every start, and again when the run is finished.

    Args:
        run: which, and where it is written.
        recipe: of the run.
        api: its generator.
        embedding: its embedding.
        ledger: its ledger.
        cluster: the machines of a Ray cluster that does its private work.
    """
    record = _record(run, recipe, api, embedding, ledger)
    if cluster:
        data = "the private records themselves, and their embeddings and those of synthetic samples"
        record["recipients"].append({"who": "Ray's workers", "hosts": list(cluster), "data": data})
    run.write(AUDIT_RECORD, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _record(run: RunWriter, recipe: Recipe, api: GenerationAPI, embedding: Embedding, ledger: Ledger) -> dict[str, Any]:
    source = recipe.private
    return {
        "run": run.folder.name,
        "who": {"user": _user(), "host": socket.gethostname()},
        "when": [{"at": at, "event": event} for at, event in run.journal.events()],
        "declared data": {
            "source": source.kind,
            "path": str(getattr(source, "path", "none")),
            "classes": list(source.labels),
            "privacy unit": source.privacy_unit,
            "declared size": source.declared_size,
            "declared units": source.declared_units,
        },
        "recipients": [
            {
                "who": f"generator '{recipe.api.kind}'",
                "hosts": _hosts(api),
                "data": _seen_by(api),
            },
            {
                "who": f"embedding '{recipe.embedding.kind}'",
                "hosts": _hosts(embedding),
                "data": "the private records themselves, and synthetic samples",
            },
        ],
        "releases": [
            {"name": one.release.name, "charges": one.charges, "drawn": one.array is not None}
            for one in ledger.stored()
        ],
        "guarantee": {
            "epsilon": finite(ledger.total()),
            "delta": None if ledger.budget is None else ledger.budget.delta,
            "relation": str(ledger.relation),
        },
        "software": software_versions(),
    }


def _user() -> str:
    """Who runs it: the name, or the number where the system has no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _seen_by(api: GenerationAPI) -> str:
    requests = "requests that are post-processing of the releases below"
    if isinstance(api, Trainer) and not info_of(api).fitted_before:
        return f"the private records themselves, while it is fitted; then {requests}"
    return f"{requests}; no private record"


def _hosts(plugin: object) -> list[str] | str:
    hosts = info_of(plugin).hosts
    if hosts is None:
        return f"not stated by {type(plugin).__name__}"
    return list(hosts) or "none: it runs on this machine"

"""The record for a data-protection officer: who ran what, on which data, and where data went.

Confidential.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pe.engine.process import software_versions
from pe.fit.trainer import Trainer
from pe.plugins.protocols import Embedding, Generator, info_of
from pe.privacy.certificate_text import finite
from pe.privacy.ledger import Ledger
from pe.recipe.schema import Recipe
from pe.store.places import CONFIDENTIAL
from pe.store.writer import RunWriter

AUDIT_RECORD = f"{CONFIDENTIAL}/audit-record.json"


def write_audit_record(
    run: RunWriter,
    recipe: Recipe,
    api: Generator,
    embedding: Embedding,
    workers: Sequence[str],
    ledger: Ledger,
) -> None:
    """Write AUDIT_RECORD as things stand.

    `workers` are the hosts of a Ray cluster that did the private work.
    """
    source = recipe.private
    user = str(os.getuid())  # many containers have no name for it
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    record = {
        "run": run.folder.name,
        "who": {"user": user, "host": socket.gethostname()},
        "when": [{"at": at, "event": event} for at, event in run.journal.events()],
        "declared data": {
            "source": source.kind,
            "path": str(getattr(source, "path", "none")),
            "classes": list(source.labels),
            "privacy unit": source.privacy_unit,
            "declared size": source.declared_size,
            "declared units": source.declared_units,
        },
        "recipients": _recipients(recipe, api, embedding, workers),
        "releases": [
            {"name": one.release.name, "charges": one.charges, "drawn": one.array is not None}
            for one in ledger.charges()
        ],
        "guarantee": {
            "epsilon": finite(ledger.total()),
            "delta": None if ledger.budget is None else ledger.budget.delta,
            "relation": str(ledger.relation),
        },
        "software": software_versions(),
    }
    run.write(AUDIT_RECORD, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _recipients(
    recipe: Recipe,
    api: Generator,
    embedding: Embedding,
    workers: Sequence[str],
) -> list[dict[str, Any]]:
    """Return who receives what: the generator, the embedding, and the workers of a cluster."""
    data = "requests that are post-processing of the releases below"
    if isinstance(api, Trainer) and not info_of(api).fitted_before:
        data = f"the private records themselves, while it is fitted; then {data}"
    else:
        data = f"{data}; no private record"
    recipients: list[dict[str, Any]] = [
        {"who": f"generator '{recipe.api.kind}'", "hosts": _hosts(api), "data": data},
        {
            "who": f"embedding '{recipe.embedding.kind}'",
            "hosts": _hosts(embedding),
            "data": "the private records themselves, and synthetic samples",
        },
    ]
    if workers:
        data = "the private records themselves, and their embeddings and those of synthetic samples"
        recipients.append({"who": "Ray's workers", "hosts": list(workers), "data": data})
    return recipients


def _hosts(plugin: object) -> list[str] | str:
    hosts = info_of(plugin).hosts
    if hosts is None:
        return f"not stated by {type(plugin).__name__}"
    return list(hosts) or "none: it runs on this machine"

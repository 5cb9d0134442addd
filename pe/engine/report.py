"""A run's pages on disk."""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe.data.markup import unwrap
from pe.data.samples import Readable, Samples
from pe.engine.process import software_versions
from pe.fit.trainer import Trainer
from pe.plugins.protocols import Embedding, GenerationAPI, TellsOfAnswers, info_of
from pe.privacy.ledger import Ledger
from pe.privacy.words import finite
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.report.sections import INTERNAL_REPORT, REPORT, internal_report, shareable_report
from pe.store.certified import reissue
from pe.store.durable import level_confidential, write_durably
from pe.store.places import CERTIFICATE, CONFIDENTIAL
from pe.store.run import Run
from pe.store.writer import RunWriter


def write_report(folder: Path, *, confidential: bool = False) -> Path:
    """Write the page of the run in `folder`; return where it is.

    The shareable page becomes part of what the certificate covers and `pe export` copies: it is post-processing
    of the run's releases.

    Raises:
        RunError: there is no run, nothing to show, or (for the confidential page) no confidential side.
    """
    run = Run.open(folder)
    if confidential:
        write_durably(folder / INTERNAL_REPORT, internal_report(run).encode())
        level_confidential(folder)
        return folder / INTERNAL_REPORT
    write_durably(folder / REPORT, shareable_report(run).encode())
    if (folder / CERTIFICATE).is_file():
        reissue(run.folder, [REPORT])
    return folder / REPORT


# The record for the data-protection officer: who ran what, on which data, and where data went. Confidential.


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


# Tell of texts that came with a chat template's markup.


log = logging.getLogger(__name__)


@contextmanager
def telling_of_answers(api: object, progress: Progress) -> Iterator[None]:
    """Tell at the end, however it comes, what became of the answers that the generator did not take as they came."""
    try:
        yield
    finally:
        if isinstance(api, TellsOfAnswers) and (told := api.describe_answers()):
            log.warning("%s", told)
            progress.warn(told)


def warn_of_markup(samples: Samples, progress: Progress) -> None:
    """Warn of synthetic texts with markup: what a generator of the user's own, or a pool, gave is kept as it is."""
    texts = samples.strings if isinstance(samples, Readable) else []
    if marked := [text for text in texts if (found := unwrap(text)).taken or found.fault]:
        progress.warn(
            f"{len(marked):,} of {len(texts):,} texts hold a chat template's markup, as the one that begins "
            f"{marked[0][:60]!r}: take it off where they are made (pe.unwrap)."
        )

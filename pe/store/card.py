"""A data-set card, as Hugging Face's hub shows it, and Croissant metadata: what they say is the certificate's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pe.errors import printable
from pe.privacy.covered import sha256
from pe.privacy.markdown import code, sentence
from pe.privacy.words import guarantee
from pe.store.places import CERTIFICATE, RECIPE
from pe.store.writers import Table

CARD = "README.md"
CROISSANT = "croissant.json"

_CITATION = """```bibtex
@inproceedings{lin2024differentially,
  title     = {Differentially Private Synthetic Data via Foundation Model {API}s 1: Images},
  author    = {Lin, Zinan and Gopi, Sivakanth and Kulkarni, Janardhan and Nori, Harsha and Yekhanin, Sergey},
  booktitle = {International Conference on Learning Representations},
  year      = {2024}
}
```"""
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
_TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes isLiveDataset "
    "jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source "
    "subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS.split()},
}


def write_card(folder: Path, table: Table, certificate: Mapping[str, Any]) -> None:
    """Write both beside the Parquet files in `folder`/data.

    Args:
        folder: an export's, its samples written.
        table: what was written.
        certificate: the run's.
    """
    import pyarrow.parquet as pq

    files = sorted((folder / "data").glob("*.parquet"))
    count = sum(pq.read_metadata(path).num_rows for path in files)
    (folder / CARD).write_text(_card(folder, table, certificate, count), encoding="utf-8")
    croissant = _croissant(folder, table, certificate, files)
    (folder / CROISSANT).write_text(json.dumps(croissant, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _card(folder: Path, table: Table, certificate: Mapping[str, Any], count: int) -> str:
    size = next((name for most, name in _SIZES if count < most), "n>10M")
    head = {
        "pretty_name": printable(certificate["run"]),
        "tags": ["synthetic", "private-evolution", *(["differential-privacy"] if certificate["holds"] else [])],
        "task_categories": [f"{table.column}-classification"],
        "size_categories": [size],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    api = yaml.safe_load((folder / RECIPE).read_text(encoding="utf-8"))["api"]["kind"]
    promise = guarantee(certificate["epsilon"], certificate["delta"]) if certificate["holds"] else "NO GUARANTEE"
    labels = ", ".join(map(code, table.names))
    facts = [
        f"- {count:,} synthetic {table.kind.noun} with the labels {labels}",
        f"- Guarantee: **{promise}**",
        f"- Protected: {sentence(certificate['unit']['words'])}",
        f"- Compared: {sentence(certificate['relation']['words'])}",
        f"- Generator: {code(api)}, evolved by Private Evolution",
    ]
    uncovered = [f"- {sentence(one)}" for one in certificate["not_covered"]]
    warned = [f"- {sentence(one)}" for one in (*certificate["voided_by"], *certificate["warnings"])]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {code(certificate['run'])}",
        "\n".join(facts),
        sentence(certificate["statement"]),
        f"The certificate ([certificate.md](certificate.md), [{CERTIFICATE}]({CERTIFICATE})) lists every release and "
        "file; the software issued it itself. `pe privacy FOLDER` recomputes it, with the same toolkit installed.",
        "## Warnings\n\n" + "\n".join(warned) if warned else "",
        "## What is not covered\n\n" + "\n".join(uncovered),
        "## How to cite\n\n" + _CITATION,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _croissant(folder: Path, table: Table, certificate: Mapping[str, Any], files: list[Path]) -> dict[str, Any]:
    """Croissant 1.0: the Parquet files by their hashes, and one record set a file set."""

    def field(name: str, kind: str, **more: Any) -> dict[str, Any]:
        extract = {"column": name}
        source = {"fileSet": {"@id": "parquet"}, "extract": extract, **more}
        return {"@type": "cr:Field", "@id": f"train/{name}", "name": name, "dataType": kind, "source": source}

    column = (
        field(table.column, "sc:Text")
        if table.of_strings
        else field(table.column, "sc:ImageObject", transform={"jsonPath": "bytes"})
    )
    objects = [
        {
            "@type": "cr:FileObject",
            "@id": path.name,
            "name": path.name,
            "contentUrl": path.relative_to(folder).as_posix(),
            "encodingFormat": "application/x-parquet",
            "sha256": sha256(path),
        }
        for path in files
    ]
    together = {
        "@type": "cr:FileSet",
        "@id": "parquet",
        "name": "parquet",
        "encodingFormat": "application/x-parquet",
        "includes": "data/*.parquet",
    }
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": printable(certificate["run"]),
        "description": printable(certificate["statement"]),
        "citeAs": _CITATION.removeprefix("```bibtex\n").removesuffix("\n```"),
        "distribution": [*objects, together],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "train",
                "name": "train",
                "field": [column, field("label", "sc:Text")],
            }
        ],
    }

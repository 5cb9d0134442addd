"""A data-set card for Hugging Face's hub and Croissant metadata, from the certificate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pe.data.bounded import read_bytes
from pe.errors import printable
from pe.privacy.certificate_text import text_pages
from pe.privacy.covered import sha256
from pe.store.places import RECIPE

_CITATION = """\
@inproceedings{lin2024differentially,
  title     = {Differentially Private Synthetic Data via Foundation Model {API}s 1: Images},
  author    = {Lin, Zinan and Gopi, Sivakanth and Kulkarni, Janardhan and Nori, Harsha and Yekhanin, Sergey},
  booktitle = {International Conference on Learning Representations},
  year      = {2024}
}"""  # noqa: E501
_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
)
_PAGES = {"README.md": "card.md.jinja", "croissant.json": "croissant.json.jinja"}
_TYPES = {
    "int64": "sc:Integer",
    "float64": "sc:Float",
    "bool": "sc:Boolean",
    "date32": "sc:Date",
    "string": "sc:Text",
}
"""Type of a column in Hugging Face's data sets → its type in Croissant. A column of files is an
image."""


def write_card(
    folder: Path,
    certificate: Mapping[str, Any],
    *,
    noun: str,
    task: str,
    labels: list[str],
    features: Mapping[str, Mapping[str, Any]],
    columns: list[dict[str, Any]],
) -> None:
    """Write README.md and croissant.json for the Parquet files in `folder`/data.

    Args:
        folder: the exported folder.
        certificate: the run's certificate.
        noun: the word for samples.
        task: the task that the labels serve, as the hub names it.
        labels: the label names.
        features: the columns that Croissant describes, as Hugging Face's data sets have them.
        columns: what is declared of the columns of rows; empty for other samples.
    """
    import pyarrow.parquet as pq

    files = sorted((folder / "data").glob("*.parquet"))
    count = sum(pq.read_metadata(path).num_rows for path in files)
    values = {
        "count": count,
        "size": next((name for most, name in _SIZES if count < most), "n>10M"),
        "task": task,
        "noun": noun,
        "labels": labels,
        "columns": columns,
        "generator": yaml.safe_load(read_bytes(folder / RECIPE))["api"]["kind"],
        "citation": _CITATION,
        "files": [(path.name, path.relative_to(folder).as_posix(), sha256(path)) for path in files],
        "types": {
            name: _TYPES.get(one.get("dtype", ""), "sc:ImageObject")
            for name, one in features.items()
        },
    }
    pages = text_pages("pe.store", "")
    # what others have named passes through `json` where the page is JSON, or YAML, which holds JSON
    pages.filters |= {"json": partial(json.dumps, ensure_ascii=False), "printable": printable}
    for name, template in _PAGES.items():
        page = pages.get_template(template).render({**certificate, **values})
        (folder / name).write_text(page, encoding="utf-8")

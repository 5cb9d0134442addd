"""Print the table "paper / DPImageBench / ours" of a script: `python -m published.table OUT`."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

FILES = {
    "certificate": "certificate.json",
    "metrics": "confidential/metrics.json",
    "judged": "confidential/judged.json",
}


def values(out: Path, runs: str, key: str) -> list[float]:
    """Return what `key`, a path into one of FILES (* is the only entry), leads to in each run of a
    list with commas.
    """
    rows = []
    for run in runs.split(","):
        file, _, path = key.partition("/")
        value: Any = json.loads((out / run / FILES[file]).read_text())
        for name in path.split("/"):
            (value,) = (
                value.values()
                if name == "*"
                else (value[int(name) if isinstance(value, list) else name],)
            )
        rows.append(float(value))
    return rows


def main(out: Path) -> None:
    """Print a row for each line of rows.tsv: measure, paper, bench, runs, key."""
    print("| | paper | DPImageBench | ours |\n| --- | ---: | ---: | ---: |")
    for line in (out / "rows.tsv").read_text().splitlines():
        measure, paper, bench, runs, key = line.split("\t")
        ours = values(out, runs, key)
        spread = f" ({min(ours):.3f}–{max(ours):.3f})" if len(ours) > 1 else ""
        print(f"| {measure} | {paper} | {bench} | {statistics.median(ours):.3f}{spread} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

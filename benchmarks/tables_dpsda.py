"""Run DPSDA's Tab-PE, with its examples' settings, on the tables of benchmarks/tables.py at ε = 1.

    PYTHONPATH=CHECKOUT python benchmarks/tables_dpsda.py FOLDER

CHECKOUT is a checkout of github.com/microsoft/DPSDA. Python needs pandas, omegaconf below 2.4,
torch and scikit-learn. Only DPSDA's code runs. Its generator and embedding get the columns as
benchmarks/tables.py declares them. As in its examples, the shares of the labels are those of the
private table without noise, and the 1,000 selected rows of the last iteration are scored.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import dpsda_worker  # noqa: F401 - replaces libraries that DPSDA imports and does not use here
import numpy as np
import pandas as pd
import torch
from pe.api import TabularAPI
from pe.constant.data import (
    LABEL_ID_COLUMN_NAME,
    TABULAR_DATA_COLUMN_NAME,
    VARIATION_API_FOLD_ID_COLUMN_NAME,
)
from pe.embedding import TabularEmbedding
from pe.population import CompositePopulation, PEPopulation
from pe.runner import PE
from tables import declare, read, scores

from pe.data import TabularColumnType, TabularCSV
from pe.histogram import NearestNeighbors

ITERATIONS = {"artificial-characters": 15, "adult": 30} | {f"xor{k}": 20 for k in range(2, 6)}
ROWS = 1000
TYPES = {"category": "cat", "integer": "int", "real": "float"}


def synthesise(
    train: pd.DataFrame, label: str, declared: dict[str, Any], iterations: int
) -> pd.DataFrame:
    """Return the synthetic rows, with their labels."""
    kinds = {
        f"{name}_columns": [c for c in declared if TYPES[declared[c]["kind"]] == name]
        for name in TYPES.values()
    }
    info: dict[
        str, Any
    ] = {}  # in the place of `TabularCSV.get_tab_info`, which reads it from the private table
    for name in (one for names in kinds.values() for one in names):
        column = declared[name]
        domain = (
            {"categories": column["values"]}
            if "values" in column
            else {k: column[k] for k in ("min", "max")}
        )
        info[name] = {"type": TabularColumnType(TYPES[column["kind"]])} | domain
    with tempfile.TemporaryDirectory() as folder:
        path, metadata = Path(folder) / "private.csv", Path(folder) / "metadata.json"
        train.to_csv(path, index=False)
        metadata.write_text(json.dumps(kinds | {"label_columns": [label]}))
        private = TabularCSV(csv_path=str(path), metadata_path=str(metadata))
    api = TabularAPI(
        info=info, num_iterations=iterations
    )  # its defaults are its examples' settings
    first = {"initial_variation_api_fold": 0, "next_variation_api_fold": 1, "keep_selected": False}
    then = {"initial_variation_api_fold": 3, "next_variation_api_fold": 3, "keep_selected": True}
    populations = [
        PEPopulation(api=api, selection_mode="sample", histogram_threshold=0, **first)
    ] * 5
    populations += [PEPopulation(api=api, selection_mode="rank", **then)] * (iterations - 5)
    embedding = TabularEmbedding(info=info)
    result = PE(
        priv_data=private,
        population=CompositePopulation(populations=populations),
        histogram=NearestNeighbors(
            embedding=embedding, mode="L2", lookahead_degree=0, backend="torch"
        ),
    ).run(
        num_samples_schedule=[ROWS] * iterations,
        delta=1 / (len(train) * math.log(len(train))),
        epsilon=1.0,
        save_checkpoint=False,
    )
    frame = result.data_frame[result.data_frame[VARIATION_API_FOLD_ID_COLUMN_NAME] == -1]
    rows = pd.DataFrame(frame[TABULAR_DATA_COLUMN_NAME].tolist(), columns=list(info))
    labels = sorted(train[label].unique())  # in the order of its numbers
    return rows.assign(**{label: [labels[i] for i in frame[LABEL_ID_COLUMN_NAME]]})


def coded(frame: pd.DataFrame, label: str, declared: dict[str, Any]) -> tuple[Any, Any]:
    """Return codes as `Columns.code` has them, and labels as text."""
    columns = [
        frame[name].map({value: i for i, value in enumerate(column["values"])})
        if "values" in column
        else ((frame[name].astype(float) - column["min"]) / column.get("unit", 1)).round()
        for name, column in declared.items()
    ]
    return np.stack(columns, axis=1), frame[label].astype(str).to_numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default="artificial-characters,adult,xor2,xor3,xor4,xor5")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for table in arguments.tables.split(","):
        train, test, label = read(arguments.folder, table)
        declared = declare(pd.concat([train, test]).drop(columns=label))
        for seed in range(arguments.runs):
            np.random.seed(seed)  # noqa: NPY002 - DPSDA draws from the global generator
            start = time.perf_counter()
            rows = synthesise(train, label, declared, ITERATIONS[table])
            seconds = time.perf_counter() - start
            forest, auc = scores(coded(rows, label, declared), coded(test, label, declared), seed)
            print(
                f"{table}: forest {forest:.4f}, AUC {auc:.4f}; {len(rows):,} rows, {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()

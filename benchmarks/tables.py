"""Measure what classifiers learn from synthetic tables at ε = 1.

    python benchmarks/tables.py FOLDER [--kinds max_entropy,independent]

FOLDER holds artificial-characters_{train,test}.csv and adult_{train,test}.csv. Each kind of
generator makes three runs of each table. A random forest and boosted trees learn from the synthetic
rows and are tested on real ones. The columns are declared from the files, as if these were public;
a real owner must not do that. Results are in results/tables.md.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score

TABLES = {"artificial-characters": "Class", "adult": "income"}


def declare(frame: pd.DataFrame) -> dict[str, Any]:
    """Declare the columns of a data frame from what it holds."""
    columns: dict[str, Any] = {}
    for name, values in frame.items():
        if not pd.api.types.is_numeric_dtype(values):
            columns[str(name)] = {"kind": "category", "values": sorted(values.unique())}
            continue
        whole = bool((values == values.round()).all())
        columns[str(name)] = {"kind": "integer" if whole else "real", "min": values.min().item()}
        columns[str(name)] |= {"max": values.max().item()} | ({} if whole else {"unit": 0.01})
    return columns


def xor(k: int, count: int = 35_000) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make up a table whose label is the parity of the number of positive ones among k numbers."""
    rng = np.random.default_rng(k)
    frame = pd.DataFrame(
        np.round(rng.uniform(-10, 10, (count, k)), 2), columns=[f"x{i}" for i in range(k)]
    )
    frame["parity"] = np.where((frame > 0).sum(axis=1) % 2, "odd", "even")
    return frame[: 3 * count // 4], frame[3 * count // 4 :]


def read(folder: Path, table: str) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return the private rows, the test rows and the name of the column of labels."""
    if table.startswith("xor"):
        return *xor(int(table[3:])), "parity"
    train, test = (pd.read_csv(folder / f"{table}_{part}.csv") for part in ("train", "test"))
    return train, test, TABLES[table]


def scores(train: tuple[Any, Any], test: tuple[Any, Any], seed: int) -> tuple[float, float]:
    """Return a forest's accuracy and boosted trees' AUC (NaN with more than two labels)."""
    forest = RandomForestClassifier(100, random_state=seed).fit(*train)
    accuracy = float((forest.predict(test[0]) == test[1]).mean())
    if len(set(test[1])) > 2:
        return accuracy, math.nan
    boosted = HistGradientBoostingClassifier(random_state=seed).fit(*train)
    return accuracy, float(
        roc_auc_score(test[1] == boosted.classes_[1], boosted.predict_proba(test[0])[:, 1])
    )


def main() -> None:
    import pe
    from pe.data.columns import Columns
    from pe.data.rows import Rows
    from pe.private.tables import RowTable

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", default="independent,max_entropy")
    parser.add_argument("--tables", default="artificial-characters,adult,xor2,xor3,xor4,xor5")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    for table in arguments.tables.split(","):
        train, test, label = read(arguments.folder, table)
        declared = declare(pd.concat([train, test]).drop(columns=label))
        columns = Columns(declared)

        def codes(frame: pd.DataFrame, columns: Columns = columns) -> Any:
            return np.stack(
                [[one.code(value) for value in frame[name]] for name, one in columns.items()],
                axis=1,
            )

        real = codes(test), test[label].astype(str).to_numpy()
        print(
            table,
            "real",
            scores((codes(train), train[label].astype(str).to_numpy()), real, 0),
            flush=True,
        )
        for kind in arguments.kinds.split(","):
            results, seconds = [], []
            for seed in range(arguments.runs):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "private.csv"
                    train.to_csv(path, index=False)
                    private = RowTable(
                        path,
                        columns=declared,
                        label_column=label,
                        classes=sorted(test[label].astype(str).unique()),
                        declared_size=len(train),
                    )
                    start = time.perf_counter()
                    run = pe.evolve(
                        private,
                        pe.api(kind),
                        epsilon=1.0,
                        delta=1 / (len(train) * math.log(len(train))),
                        seed=seed,
                        out=Path(folder) / "run",
                    )
                    seconds.append(time.perf_counter() - start)
                    samples = run.synthetic.samples
                    assert isinstance(samples, Rows)
                    names = np.array(private.labels)[run.synthetic.labels]
                    results.append(scores((columns.codes(samples), names), real, seed))
            accuracy, auc = np.median(results, axis=0)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{table} {kind}: forest {accuracy:.3f}, AUC {auc:.4f}; {np.median(seconds):.0f} "
                f"s, {memory:.1f} GiB",
                [tuple(round(x, 4) for x in one) for one in results],
                flush=True,
            )


if __name__ == "__main__":
    main()

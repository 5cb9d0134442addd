"""Run MST and AIM, by their authors' code, on the tables of benchmarks/tables.py at ε = 1.

    python benchmarks/tables_peers.py FOLDER MECHANISMS --kinds mst,aim

Needs `pip install mbi pandas scikit-learn`, and a checkout of github.com/ryan112358/mbi.
Columns of numbers are cut into 16 ranges. Each mechanism is stopped after --seconds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import sys
import time
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))
from tables import read, scores

BINS = 16


def cut(both: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Return codes, and the edges of the ranges of each column of numbers."""
    codes, edges = {}, {}
    for name, values in both.items():
        if pd.api.types.is_numeric_dtype(values) and values.nunique() > BINS:
            edges[name] = np.linspace(values.min(), values.max(), BINS + 1)
            codes[name] = np.clip(np.searchsorted(edges[name], values, "right") - 1, 0, BINS - 1)
        else:
            codes[name] = pd.factorize(values, sort=True)[0]
    return pd.DataFrame(codes), edges


def synthesise(
    kind: str, codes: pd.DataFrame, sizes: dict[str, int], seed: int, queue: Any
) -> None:
    """Put the synthetic codes into the queue."""
    from mbi import Dataset, Domain

    np.random.seed(seed)  # noqa: NPY002 - the peers draw from the global generator
    delta = 1 / (len(codes) * math.log(len(codes)))
    data = Dataset(codes.to_dict("list"), Domain.fromdict(sizes))
    if kind == "mst":
        from mst import MST

        rows = MST(data, 1.0, delta)
    else:
        from aim import AIM

        workload = [(pair, 1.0) for pair in itertools.combinations(data.domain, 2)]
        rows = AIM(1.0, delta, max_model_size=80).run(data, workload)[1]
    queue.put({name: np.asarray(rows.to_dict()[name]) for name in codes})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("mechanisms", type=Path)
    parser.add_argument("--kinds", default="mst,aim")
    parser.add_argument("--tables", default="xor2,xor3,artificial-characters,adult")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=600)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.mechanisms))
    context = multiprocessing.get_context("spawn")
    for table, kind in itertools.product(arguments.tables.split(","), arguments.kinds.split(",")):
        train, test, label = read(arguments.folder, table)
        codes, edges = cut(pd.concat([train, test], ignore_index=True))
        sizes = {name: int(codes[name].max()) + 1 for name in codes}
        rng, results = np.random.default_rng(0), []
        for seed in range(arguments.runs):
            queue = context.Queue()
            start = time.perf_counter()
            process = context.Process(
                target=synthesise, args=(kind, codes[: len(train)], sizes, seed, queue)
            )
            process.start()
            try:
                rows = pd.DataFrame(queue.get(timeout=arguments.seconds))
            except Empty:
                print(f"{table} {kind}: did not end within {arguments.seconds} s", flush=True)
                process.kill()
                break
            seconds, real = time.perf_counter() - start, codes[len(train) :].copy()
            for name, ends in edges.items():
                rows[name] = ends[rows[name]] + rng.random(len(rows)) * np.diff(ends)[rows[name]]
                real[name] = test[name].to_numpy()
            parts = [
                (one.drop(columns=label).to_numpy(float), one[label].to_numpy())
                for one in (rows, real)
            ]
            results.append(scores(parts[0], parts[1], seed))
            print(
                f"{table} {kind}: forest {results[-1][0]:.4f}, AUC {results[-1][1]:.4f}; "
                f"{seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()

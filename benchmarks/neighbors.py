"""Compare the exact search for nearest neighbours with a bare float32 matrix product.

    python benchmarks/neighbors.py [PICTURES]

PICTURES is the folder of a picture set (examples/emoji.py). Without it, digits are the only real
rows.

The product computes n×m×d multiply-adds in blocks and throws them away. No exhaustive search on
this machine can be faster. Both take turns and the best time of each counts; cosine runs once.
Writes results/neighbors.md, or results/neighbors_gpu.md if torch sees a CUDA card.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from record import keep, where

from adapters.public_files import read_folder
from embeddings.networks import EfficientNetLite
from pe import Images
from pe.nearest import describe_search, nearest
from pe.nearest.by_torch import TorchSearch, in_float32
from pe.nearest.decide import Decider, SharedSearch
from pe.nearest.exact import Vectors
from pe.private.npz import _digits

SIZES = [  # n, m, d, runs
    (4_000, 400, 784, 9),
    (5_000, 5_000, 3_072, 5),
    (10_000, 10_000, 2_048, 3),
    (20_000, 20_000, 512, 2),
]
NEAR = (4_000, 4_000, 512, 3)
CARD = [(10_000, 10_000, 2_048), (50_000, 50_000, 512), (50_000, 50_000, 2_048)]
HEAD = (
    "| n × m × d | matmul s | GFLOP/s | faiss s | / matmul | cosine s | / matmul | torch s | / "
    "matmul |\n" + "|---" + "|--:" * 8 + "|"
)
REAL_HEAD = "| rows | n × m × d | q | matmul s | faiss s | / matmul |\n|---|---" + "|--:" * 4 + "|"


def matmul(queries: Vectors, candidates: Vectors, rows: int = 1024) -> None:
    product = np.empty((rows, len(candidates)), np.float32)
    for start in range(0, len(queries), rows):
        block = queries[start : start + rows]
        np.matmul(block, candidates.T, out=product[: len(block)])


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(queries: Vectors, candidates: Vectors, runs: int) -> str:
    """One row of the table: `runs` of the matmul and of the searches, in turn, then one under
    cosine.
    """
    works: tuple[Callable[[], object], ...] = (
        lambda: matmul(queries, candidates),
        lambda: nearest(queries, candidates, backend="faiss"),
        lambda: nearest(queries, candidates, backend="torch"),
    )
    bare, faiss, by_torch = np.min([[seconds(work) for work in works] for _ in range(runs)], axis=0)
    cosine = seconds(lambda: nearest(queries, candidates, metric="cosine", backend="faiss"))
    (n, d), m = queries.shape, len(candidates)
    return (
        f"| {n:,} × {m:,} × {d:,} | {bare:.3f} | {2e-9 * n * m * d / bare:.0f} | {faiss:.3f} | "
        f"{faiss / bare:.2f} | {cosine:.3f} | {cosine / bare:.2f} | {by_torch:.3f} | "
        f"{by_torch / bare:.2f} |"
    )


def real_rows() -> Iterator[tuple[str, Vectors, Vectors]]:
    """Name, queries and candidates.

    Images also shifted by a pixel, three ways, to have as many as a run has.
    """
    digits = _digits()[0][np.random.default_rng(0).permutation(5000)].reshape(-1, 28, 28, 1)
    yield "digits, 28×28", _flat(_shifted(digits[:2500])), _flat(_shifted(digits[2500:]))
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        parts = [
            read_folder(folder / part, (64, 64), "crop", 3)[0]
            for part in ("private", "test", "public")
        ]
        queries, candidates = _shifted(np.concatenate(parts[:2])), _shifted(parts[2])
        small = [
            one.reshape(len(one), 32, 2, 32, 2, 3).mean(axis=(2, 4))
            for one in (queries, candidates)
        ]
        yield "drawn pictures, 32×32×3", _flat(small[0]), _flat(small[1])
        network = EfficientNetLite()
        axes = np.random.default_rng(1).standard_normal((1280, 512), dtype=np.float32)
        projected = [
            network.embed(Images(one)) @ axes for one in (queries[: len(queries) // 2], candidates)
        ]
        yield "their EfficientNet-Lite0 vectors, projected", projected[0], projected[1]


def _shifted(images: np.ndarray) -> np.ndarray:
    return np.concatenate([np.roll(images, by, (1, 2)) for by in ((0, 0), (1, 0), (0, 1), (-1, 0))])


def _flat(images: np.ndarray) -> Vectors:
    return images.reshape(len(images), -1).astype(np.float32)


def measure_real(name: str, queries: Vectors, candidates: Vectors, q: int, runs: int = 3) -> str:
    kept = np.sort(np.unique(candidates, axis=0, return_index=True)[1])
    candidates = np.ascontiguousarray(candidates[kept])
    works: tuple[Callable[[], object], ...] = (
        lambda: matmul(queries, candidates),
        lambda: nearest(queries, candidates, q, backend="faiss"),
    )
    bare, faiss = np.min([[seconds(work) for work in works] for _ in range(runs)], axis=0)
    (n, d), m = queries.shape, len(candidates)
    return (
        f"| {name} | {n:,} × {m:,} × {d:,} | {q} | {bare:.3f} | {faiss:.3f} | {faiss / bare:.2f} |"
    )


def on_the_processor() -> None:
    rng = np.random.default_rng(0)
    lines = [
        "# Exact nearest neighbours, compared with a bare matrix product",
        "",
        f"{where()}, faiss {version('faiss-cpu')}, torch {torch.__version__} on the CPU. q = 1; "
        "best of alternating runs, one run for cosine (by faiss); made by `python "
        "benchmarks/neighbors.py`.",
        "",
        "Gaussian queries and candidates:",
        "",
        HEAD,
    ]
    for n, m, d, runs in SIZES:
        queries, candidates = (rng.standard_normal((k, d), dtype=np.float32) for k in (n, m))
        lines.append(measure(queries, candidates, runs))
    n, m, d, runs = NEAR
    queries = rng.standard_normal((n, d), dtype=np.float32)
    close = (rng.standard_normal(d) + 1e-5 * rng.standard_normal((m, d))).astype(np.float32)
    last = [
        "",
        "Candidates that differ by 1e-5, where float32 decides nothing and every query is searched "
        "in float64:",
        "",
    ]
    lines += [*last, HEAD, measure(queries, close, runs)]
    lines += ["", "Real rows:", "", REAL_HEAD]
    lines += [measure_real(*rows, q) for rows in real_rows() for q in (1, 4)]
    keep("neighbors.md", "\n".join(lines))


def on_the_card() -> None:
    """The search by torch on one GPU, and on all of them."""
    rng = np.random.default_rng(0)
    lines = [
        "# Exact nearest neighbours on a GPU",
        "",
        f"{where()}; {torch.cuda.get_device_name()}, torch {torch.__version__}. q = 1, Gaussian "
        "queries and candidates, the transfers included; the better of two runs. Made by `python "
        "benchmarks/neighbors.py`.",
        "",
        f"| n × m × d | bare fp32 product s | torch on one GPU s | {describe_search('torch')} s | "
        "equal |",
        "|---" + "|--:" * 4 + "|",
    ]
    for n, m, d in CARD:
        queries, candidates = (rng.standard_normal((k, d), dtype=np.float32) for k in (n, m))
        lines.append(_card_row(queries, candidates))
    keep("neighbors_gpu.md", "\n".join(lines))


def _card_row(queries: Vectors, candidates: Vectors) -> str:
    found = []

    def search(vectors: Vectors) -> SharedSearch:
        return SharedSearch([TorchSearch(torch.from_numpy(vectors).cuda())], in_float32)

    works = [
        lambda: _bare(queries, candidates),
        lambda: found.append(Decider(candidates, 1, "l2", search)(queries)),
        lambda: found.append(nearest(queries, candidates, backend="torch")),
    ]
    times = [min(seconds(work) for _ in range(2)) for work in works]
    equal = all(np.array_equal(found[0], other) for other in found)
    (n, d), m = queries.shape, len(candidates)
    return (
        f"| {n:,} × {m:,} × {d:,} | "
        + " | ".join(f"{one:.3f}" for one in times)
        + f" | {'yes' if equal else 'NO'} |"
    )


def _bare(queries: Vectors, candidates: Vectors, rows: int = 4096) -> None:
    x, c = (torch.from_numpy(one).cuda() for one in (queries, candidates))
    for start in range(0, len(x), rows):
        _ = x[start : start + rows] @ c.T
    torch.cuda.synchronize()


def main() -> None:
    if torch.cuda.is_available():
        on_the_card()
    else:
        on_the_processor()


if __name__ == "__main__":
    main()

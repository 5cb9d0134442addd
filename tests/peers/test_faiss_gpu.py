"""The wheel faiss-gpu, which brings its own module `faiss`: the same votes, on the processor where
there is no GPU.
"""

import os
import subprocess
from pathlib import Path

import numpy as np

from pe.nearest import nearest
from tests.nearest.test_nearest import rows
from tests.peers.servers import python_of

VOTES = """
import sys
import faiss, numpy as np
from pe.nearest import describe_search, nearest

queries, candidates = np.load(sys.argv[1]).values()
assert "GPU" in faiss.get_compile_options(), faiss.__file__
assert describe_search("auto").startswith("faiss on "), describe("auto")
np.save(sys.argv[2], [nearest(queries, candidates, 3, metric=metric, backend="faiss") for metric in ("l2", "cosine")])
"""


def test_it_gives_the_votes_of_faiss_cpu(tmp_path):
    queries, candidates = rows("near copies", 0, 2000, 3000, 64)
    np.savez(tmp_path / "vectors.npz", queries, candidates)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [
        python_of("faiss-gpu"),
        "-c",
        VOTES,
        tmp_path / "vectors.npz",
        tmp_path / "votes.npy",
    ]
    subprocess.run(command, env=environment, check=True)
    votes = [
        nearest(queries, candidates, 3, metric=metric, backend="faiss")
        for metric in ("l2", "cosine")
    ]
    np.testing.assert_array_equal(np.load(tmp_path / "votes.npy"), votes)

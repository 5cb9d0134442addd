"""torch finds candidates in whatever precision; float64 decides. And who is chosen to search."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pe.errors import RecipeError
from pe.nearest import cpu, decide, exact, gpu, nearest, search
from pe.nearest.gpu import SharedSearch, TorchSearch
from pe.plugins import devices
from tests.nearest.reference import naive
from tests.nearest.test_independence import _near_copies as near_copies
from tests.nearest.test_nearest import KINDS, METRICS

PRECISIONS = ["fp32", "tf32"]
LEVELS = [["tf32", "fp32"], ["tf32"]]


def problem(kind, seed=5, n=25, m=60, d=12):
    """Queries and distinct candidates, all finite."""
    queries, candidates = (a.astype(np.float32) for a in kind(np.random.default_rng(seed), n, m, d))
    queries, candidates = queries[np.isfinite(queries).all(axis=1)], candidates[np.isfinite(candidates).all(axis=1)]
    return queries, candidates[np.sort(np.unique(candidates, axis=0, return_index=True)[1])]


def searches(*precisions):
    return lambda placed: [TorchSearch(torch.from_numpy(placed), precision) for precision in precisions]


def shared(*precisions, places=3):
    """The same searches on as many devices, each of which is the CPU."""
    return lambda placed: [
        SharedSearch([TorchSearch(torch.from_numpy(placed), precision) for _ in range(places)])
        for precision in precisions
    ]


@pytest.mark.parametrize("levels", LEVELS, ids="+".join)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_low_precision_only_finds_and_never_decides(kind, metric, levels, monkeypatch):
    monkeypatch.setattr(gpu, "_BLOCK", 25 * 20)  # several blocks of candidates
    queries, candidates = problem(kind)
    decider = decide.Decider(candidates, 2, metric, searches(*levels))
    np.testing.assert_array_equal(decider(queries), naive(queries, candidates, 2, metric))


def test_with_the_margin_of_float32_low_precision_would_decide_wrongly(monkeypatch):
    """It is the wider margin of the sieve that decides the test above, not luck."""
    rng = np.random.default_rng(0)
    candidates = (rng.standard_normal(64) + 1e-3 * rng.standard_normal((60, 64))).astype(np.float32)
    queries = rng.standard_normal((40, 64)).astype(np.float32)
    expected = naive(queries, candidates, 2)

    def answer():
        # the frame would make float32 suffice: candidates are taken as they are, from where the queries are
        monkeypatch.setattr(decide.Frame, "around", lambda *_: decide.Frame("l2", np.zeros(64, np.float32), 1.0))
        return decide.Decider(candidates, 2, "l2", searches("tf32"))(queries)

    monkeypatch.setattr(TorchSearch, "__call__", _products_alone)
    monkeypatch.setattr(TorchSearch, "returned", property(lambda self: self.sieve))
    np.testing.assert_array_equal(answer(), expected)
    monkeypatch.setitem(gpu._SIEVES, "tf32", exact.Arithmetic(exact.FLOAT32))
    assert (answer() != expected).any()


def _products_alone(self, queries, k):
    """The products' own distances, of k candidates, with nothing computed anew."""
    found, positions = self._nearest(torch.from_numpy(queries), k)
    return decide.Neighbours(found.numpy(), positions.numpy(), found.amax(dim=1).numpy())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d", [1, 7, 64, 2048])
def test_the_margin_bounds_the_error_of_the_products(precision, d):
    """On entries that lose as much as an entry can, all in one direction."""
    rng = np.random.default_rng(d)
    worst = {"fp32": 1.0, "tf32": 1 + 2.0**-10 - 2.0**-23}[precision]  # what is cut off
    for even in (True, False):
        x = np.full((1, d), worst) * (1.0 if even else rng.uniform(0.5, 2, d))
        c = np.concatenate([x, -x, rng.standard_normal((20, d)) * worst]).astype(np.float32)
        x = x.astype(np.float32)
        searched = TorchSearch(torch.from_numpy(c), precision)
        found, places = (t.numpy() for t in searched._nearest(torch.from_numpy(x), len(c)))
        true = np.square(x.astype(np.float64) - c.astype(np.float64)).sum(axis=1)[places[0]]
        reach = (np.linalg.norm(x.astype(np.float64)) + np.linalg.norm(c.astype(np.float64), axis=1))[places[0]] ** 2
        error = np.abs(found[0] - true) / reach
        assert error.max() <= searched.sieve.slack(d)
        if precision != "fp32" and even:
            assert error.max() > searched.sieve.rounding / 4  # the bound is not idle


@pytest.mark.parametrize("of", [searches, shared])
@pytest.mark.parametrize("precisions", [("fp32",), ("tf32", "fp32")], ids="+".join)
def test_removing_records_leaves_all_other_votes_alone(precisions, of, monkeypatch):
    queries, candidates = near_copies(0, 300, 784)
    queries = queries[:60]
    monkeypatch.setattr(decide, "_ROWS", 32)
    decider = decide.Decider(candidates, 1, "l2", of(*precisions))
    votes = decider(queries)
    np.testing.assert_array_equal(votes, nearest(queries, candidates, backend="faiss"))
    for gone in (0, 31, 32, 59):
        np.testing.assert_array_equal(decider(np.delete(queries, gone, axis=0)), np.delete(votes, gone, axis=0))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_several_devices_share_the_queries_and_change_no_vote(kind):
    queries, candidates = problem(kind)
    alone, together = (decide.Decider(candidates, 2, "l2", of("tf32", "fp32")) for of in (searches, shared))
    for n in (0, 1, 2, len(queries)):  # also fewer queries than devices
        np.testing.assert_array_equal(together(queries[:n]), alone(queries[:n]))


def test_each_device_is_asked_for_its_share_at_the_precision_of_all(monkeypatch):
    """A device that is done first leaves the others the setting, which is the whole process's."""
    place = torch.backends.cuda.matmul
    whole, before, done, settings = TorchSearch.__call__, place.fp32_precision, threading.Event(), {}

    def watched(self, x, k):
        if len(x) == 4:
            assert done.wait(20)
        settings[len(x)] = place.fp32_precision
        found = whole(self, x, k)
        done.set()
        return found

    monkeypatch.setattr(TorchSearch, "__call__", watched)
    queries, candidates = near_copies(0, 30, 8)
    shared("tf32", places=2)(candidates)[0](queries[:9], 3)
    assert settings == {5: "tf32", 4: "tf32"}
    assert place.fp32_precision == before


def test_temporaries_are_as_small_as_a_gpu_s_free_memory_asks(monkeypatch):
    free = {"driver": 2**20, "torch": 2**21}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["driver"], 2**34))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: free["torch"] + 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    on_gpu = SimpleNamespace(device=torch.device("cuda:0"))
    assert gpu._affordable(2**26, on_gpu) == (2**20 + 2**21) // 16
    assert gpu._affordable(100, on_gpu) == 100
    assert gpu._affordable(2**26, torch.zeros(1)) == 2**26

    sizes = []
    product = gpu._product
    monkeypatch.setattr(gpu, "_product", lambda x, c: (sizes.append(len(x) * len(c)), product(x, c))[1])
    monkeypatch.setattr(gpu, "_affordable", lambda most, beside: 25 * 20)
    queries, candidates = problem(KINDS[0])
    found = decide.Decider(candidates, 2, "l2", searches("tf32", "fp32"))(queries)
    np.testing.assert_array_equal(found, naive(queries, candidates, 2))
    assert max(sizes) == 25 * 20


def test_a_finer_search_sees_only_what_a_coarser_one_left_open(monkeypatch):
    rng = np.random.default_rng(0)
    candidates = rng.standard_normal((400, 512)).astype(np.float32)
    queries = np.concatenate([candidates[:30] + np.float32(0.01), rng.standard_normal((30, 512)).astype(np.float32)])
    monkeypatch.setattr(decide, "_SPARE", 1)
    asked = []
    whole = TorchSearch.__call__
    monkeypatch.setattr(
        TorchSearch, "__call__", lambda self, x, k: (asked.append((self._precision, len(x))), whole(self, x, k))[1]
    )
    answer = decide.Decider(candidates, 1, "l2", searches("tf32", "fp32"))(queries)
    assert asked[0] == ("tf32", 60)
    assert asked[1][0] == "fp32"
    assert 0 < asked[1][1] < 31
    np.testing.assert_array_equal(answer, nearest(queries, candidates, backend="faiss"))


def test_settings_of_torch_are_as_they_were_afterwards():
    place = torch.backends.mkldnn.matmul
    before = place.fp32_precision
    vectors = np.eye(4, dtype=np.float32)
    try:
        for setting in ("bf16", "ieee"):
            place.fp32_precision = setting
            assert nearest(vectors, vectors, backend="torch").ravel().tolist() == [0, 1, 2, 3]
            assert place.fp32_precision == setting
    finally:
        place.fp32_precision = before


class TestChoice:
    vectors = np.eye(4, dtype=np.float32)

    def test_it_is_said_in_words(self, monkeypatch):
        for places, words in ((["cpu"], "the CPU"), (["cuda:0"], "1 GPU"), (["cuda:0", "cuda:1"], "2 GPUs")):
            monkeypatch.setattr(gpu, "devices", lambda places=places: places)
            assert search.describe("torch") == f"torch on {words}"
            assert search.describe("faiss") == "faiss on the CPU"

    def test_auto_takes_what_is_installed(self, monkeypatch):
        monkeypatch.setattr(search, "has_driver", lambda: False)
        assert search.describe("auto") == "faiss on the CPU"
        monkeypatch.setitem(sys.modules, "faiss", None)
        assert search.describe("auto").startswith("torch on")
        assert nearest(self.vectors, self.vectors).ravel().tolist() == [0, 1, 2, 3]

    def test_auto_takes_torch_where_it_sees_a_gpu(self, monkeypatch):
        monkeypatch.setattr(search, "has_driver", lambda: True)
        monkeypatch.setattr(gpu, "devices", lambda: ["cuda:0"])
        assert search.describe("auto") == "torch on 1 GPU"
        monkeypatch.setattr(gpu, "devices", lambda: ["cpu"])
        assert search.describe("auto") == "faiss on the CPU"

    def test_it_leaves_no_gpu_of_the_driver_s_idle_unless_told_to(self, tmp_path, monkeypatch):
        (tmp_path / "nvidia0").touch()
        monkeypatch.setattr(devices, "DRIVER", tmp_path)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for backend in ("auto", "torch"):
            with pytest.raises(RecipeError, match=r"^The driver has 1 GPU, .*neighbor_search: faiss, .* on the CPU"):
                nearest(self.vectors, self.vectors, backend=backend)
        assert nearest(self.vectors, self.vectors, backend="faiss").ravel().tolist() == [0, 1, 2, 3]

    def test_all_devices_search_whole(self, monkeypatch):
        monkeypatch.setattr(gpu, "devices", lambda: ["cpu", "cpu"])
        queries, candidates = near_copies(1, 200, 32)
        found = nearest(queries, candidates, 2, backend="torch")
        np.testing.assert_array_equal(found, nearest(queries, candidates, 2, backend="faiss"))

    @pytest.mark.parametrize("backend", ["auto", "faiss", "torch"])
    def test_no_other_backend_answers_for_one_that_fails(self, backend, monkeypatch):
        def fails(*_: object) -> None:
            raise RuntimeError("the card fell off the bus")

        monkeypatch.setattr(search, "has_driver", lambda: False)
        broken = TorchSearch if backend == "torch" else cpu.FaissSearch
        monkeypatch.setattr(broken, "__call__", fails)
        with pytest.raises(RuntimeError, match="fell off the bus"):
            nearest(self.vectors, self.vectors, backend=backend)
        other = "faiss" if backend == "torch" else "torch"
        assert nearest(self.vectors, self.vectors, backend=other).ravel().tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "error",
        [
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB, 98765 rows"),
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasSgemm(handle, 98765)"),
        ],
    )
    def test_a_device_that_fails_ends_in_one_sentence(self, error, monkeypatch):
        def full(*_: object) -> None:
            raise error

        said = (
            r"among 4 candidates of 4 dimensions failed on \S+ "
            rf"\({type(error).__name__}\), .*set evolution\.neighbor_search: faiss, which searches on the CPU"
        )
        for part in ("_product", "_squares"):  # in the search, and when it is set up
            with monkeypatch.context() as patch:
                patch.setattr(gpu, part, full)
                with pytest.raises(RecipeError, match=said) as caught:
                    nearest(self.vectors, self.vectors, backend="torch")
                assert "98765" not in str(caught.value)

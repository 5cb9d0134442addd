"""torch finds candidates in whatever precision; float64 decides. And who is chosen to search."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pe.errors import RecipeError
from pe.nearest import by_torch, decide, exact, nearest, search
from pe.nearest.by_torch import TorchSearch, in_float32
from pe.nearest.decide import SharedSearch
from pe.plugins import devices
from tests.nearest.reference import naive
from tests.nearest.test_nearest import METRICS, OF_ALL_KINDS, problem, rows

EYE = np.eye(4, dtype=np.float32)


def alone(placed):
    return TorchSearch(torch.from_numpy(placed))


def shared(placed, places=3):
    """The same search on as many devices, each of which is the CPU."""
    return SharedSearch([alone(placed) for _ in range(places)], in_float32)


def finds_itself(backend):
    return nearest(EYE, EYE, backend=backend).ravel().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("metric", METRICS)
@OF_ALL_KINDS
def test_float32_only_finds_and_never_decides(kind, metric, monkeypatch):
    monkeypatch.setattr(by_torch, "_BLOCK", 25 * 20)  # several blocks of candidates
    queries, candidates = problem(kind)
    expected = naive(queries, candidates, 2, metric)
    for of in (alone, shared):
        decider = decide.Decider(candidates, 2, metric, of)
        np.testing.assert_array_equal(decider(queries), expected)
        for n in (0, 1, 2):  # fewer queries than devices
            np.testing.assert_array_equal(decider(queries[:n]), expected[:n])


@pytest.mark.parametrize("d", [1, 7, 64, 2048])
def test_the_margin_bounds_the_error_of_the_products(d):
    rng = np.random.default_rng(d)
    for even in (True, False):
        x = np.full((1, d), 1.0) * (1.0 if even else rng.uniform(0.5, 2, d))
        c = np.concatenate([x, -x, rng.standard_normal((20, d))]).astype(np.float32)
        x = x.astype(np.float32)
        found, places = (t.numpy() for t in alone(c)._nearest(torch.from_numpy(x), len(c)))
        true = np.square(x.astype(np.float64) - c.astype(np.float64)).sum(axis=1)[places[0]]
        reach = (
            np.linalg.norm(x.astype(np.float64)) + np.linalg.norm(c.astype(np.float64), axis=1)
        )[places[0]] ** 2
        error = np.abs(found[0] - true) / reach
        assert error.max() <= exact.gamma(d, exact.FLOAT32)


def test_each_device_is_asked_for_its_share_at_the_precision_of_all(monkeypatch):
    """A device that is done first leaves the others the setting, which is the whole process's."""
    place = torch.backends.cuda.matmul
    whole, done, settings = TorchSearch.__call__, threading.Event(), {}

    def watched(self, x, k):
        if len(x) == 4:
            assert done.wait(20)
        settings[len(x)] = place.fp32_precision
        found = whole(self, x, k)
        done.set()
        return found

    monkeypatch.setattr(TorchSearch, "__call__", watched)
    monkeypatch.setattr(place, "fp32_precision", "tf32")  # as a program around ours may have it
    queries, candidates = rows("near copies", 0, 9, 30, 8)
    shared(candidates, places=2)(queries, 3)
    assert settings == {5: "ieee", 4: "ieee"}
    assert place.fp32_precision == "tf32"


def test_temporaries_are_as_small_as_a_gpu_s_free_memory_asks(monkeypatch):
    free = {"driver": 2**20, "torch": 2**21}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["driver"], 2**34))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: free["torch"] + 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    on_gpu = SimpleNamespace(device=torch.device("cuda:0"))
    assert by_torch._affordable(2**26, on_gpu) == (2**20 + 2**21) // 16
    assert by_torch._affordable(100, on_gpu) == 100
    assert by_torch._affordable(2**26, torch.zeros(1)) == 2**26


def test_auto_takes_what_is_installed_and_torch_where_it_sees_a_gpu_and_says_so(monkeypatch):
    monkeypatch.setattr(search, "has_driver", lambda: False)
    assert search.describe_search("auto") == search.describe_search("faiss") == "faiss on the CPU"
    for places, words in (
        (["cpu"], "the CPU"),
        (["cuda:0"], "1 GPU"),
        (["cuda:0", "cuda:1"], "2 GPUs"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(search, "has_driver", lambda: True)
            patch.setattr(by_torch, "devices", lambda places=places: places)
            assert search.describe_search("torch") == f"torch on {words}"
            assert search.describe_search("auto") == (
                "faiss on the CPU" if places == ["cpu"] else f"torch on {words}"
            )
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert search.describe_search("auto").startswith("torch on")
    assert finds_itself("auto")


def test_it_leaves_no_gpu_of_the_driver_s_idle_unless_told_to(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for backend in ("auto", "torch"):
        with pytest.raises(
            RecipeError, match=r"^The driver has 1 GPU, .*neighbor_search: faiss, .* on the CPU"
        ):
            nearest(EYE, EYE, backend=backend)
    assert finds_itself("faiss")


def test_a_device_that_fails_ends_in_one_sentence(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB, 98765 rows")

    said = (
        r"among 4 candidates of 4 dimensions failed on \S+ \(OutOfMemoryError, .*lower "
        r"evolution.population, or hide"
    )
    for part in ("_product", "_squares"):  # in the search, and when it is set up
        with monkeypatch.context() as patch:
            patch.setattr(by_torch, part, full)
            with pytest.raises(RecipeError, match=said) as caught:
                nearest(EYE, EYE, backend="torch")
            assert "98765" not in str(caught.value)

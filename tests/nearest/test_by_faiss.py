"""faiss on GPUs, by a stand-in for exactly its calls that we make; tests/gpu and tests/peers run
the real ones.
"""

from types import SimpleNamespace

import faiss
import numpy as np
import pytest

from pe.engine import health
from pe.errors import RecipeError
from pe.nearest import by_faiss, nearest, search
from tests.nearest.reference import naive
from tests.nearest.test_nearest import METRICS, OF_ALL_KINDS, problem, rows

OUT_OF_MEMORY = (
    "Error in virtual void *faiss::gpu::StandardGpuResourcesImpl::allocMemory(const AllocRequest "
    "&): StandardGpuResources: alloc fail type TemporaryMemoryBuffer dev 0 space Device size 98765 "
    "bytes (cudaMalloc error out of memory [2])"
)
NO_KERNEL = (
    "Faiss assertion 'err__ == cudaSuccess' failed in void faiss::gpu::runL2Norm() at L2Norm.cu:1; "
    "details: CUDA error 209 no kernel image is available for execution"
)


class Cards:
    """Two GPUs, each with room for `room` queries."""

    def __init__(self, room=10**9):
        self.room, self.asked = room, []

    def module(self):
        cards = self

        class StandardGpuResources:
            def setTempMemory(self, size):  # noqa: N802: faiss's name
                assert 0 < size < 2**31

        class GpuIndexFlatL2:
            def __init__(self, resources, d, config):
                assert isinstance(resources, StandardGpuResources)
                self._d, self._card = d, config.device

            def add(self, candidates):
                assert candidates.dtype == np.float32
                assert candidates.shape[1] == self._d
                self._candidates = candidates

            def search(self, queries, k):
                if len(queries) > cards.room:
                    raise RuntimeError(OUT_OF_MEMORY)
                cards.asked.append((self._card, len(queries)))
                return faiss.knn(queries, self._candidates, k)

        return SimpleNamespace(
            get_num_gpus=lambda: 2,
            GpuIndexFlatConfig=SimpleNamespace,
            StandardGpuResources=StandardGpuResources,
            GpuIndexFlatL2=GpuIndexFlatL2,
        )


@pytest.fixture
def install(monkeypatch):
    def installed(cards):
        module = cards.module()
        monkeypatch.setattr(by_faiss, "import_faiss", lambda: module)
        monkeypatch.setattr(by_faiss, "_TRIAL", "")
        forget()
        return cards

    yield installed
    forget()


def forget():
    by_faiss._resources.cache_clear()
    by_faiss._try_gpus.cache_clear()


@pytest.mark.parametrize("metric", METRICS)
@OF_ALL_KINDS
def test_gpus_find_and_float64_decides(kind, metric, install):
    queries, candidates = problem(kind)
    cards = install(Cards(room=4))
    votes = nearest(queries, candidates, 3, metric=metric, backend="faiss")
    np.testing.assert_array_equal(votes, naive(queries, candidates, 3, metric))
    if cards.asked:  # all of some kinds lie too far out for float32
        assert {card for card, _ in cards.asked} == {0, 1}
        assert max(count for _, count in cards.asked) <= 4  # blocks are halved until they fit


def test_a_gpu_without_memory_ends_in_one_sentence_without_a_number_of_queries(install):
    install(Cards(room=0))
    said = (
        r"on GPU 0 \(RuntimeError, as a rule for want of memory\): lower evolution.population, or "
        r"hide the GPUs"
    )
    with pytest.raises(RecipeError, match=said) as caught:
        nearest(*rows("near copies", 0, 9, 30, 8), backend="faiss")
    assert "98765" not in str(caught.value)
    assert str(caught.value).count(". ") == 0


def test_a_gpu_that_faiss_has_no_kernels_for_ends_a_trial_and_not_this_process(
    install, monkeypatch
):
    """faiss calls abort() then (FAISS_ASSERT in CUDA_VERIFY, faiss/gpu/utils/DeviceUtils.h)."""
    install(Cards())
    trial = f"import os, sys; print({NO_KERNEL!r}, file=sys.stderr, flush=True); os.abort()"
    monkeypatch.setattr(by_faiss, "_TRIAL", trial)
    said = (
        r"GPUs \(CUDA error 209 no kernel image is available for execution\): install a build of "
        r"faiss for them"
    )
    with pytest.raises(RecipeError, match=said):
        nearest(*rows("near copies", 0, 9, 30, 8), backend="faiss")


@pytest.mark.parametrize(
    "error", [ImportError("no libcudart"), RuntimeError("no CUDA"), AttributeError("no Index")]
)
def test_a_faiss_that_cannot_be_loaded_is_told_in_a_sentence(error, monkeypatch):
    def broken(*_):
        raise error

    monkeypatch.setattr(by_faiss, "import_library", broken)
    with pytest.raises(
        RecipeError, match=r"^faiss cannot be loaded \(.*\): `pe doctor` names its wheels\.$"
    ):
        nearest(*rows("near copies", 0, 9, 30, 8), backend="faiss")
    assert health._neighbors().state == "problem"


def test_more_neighbours_than_a_gpu_finds_are_refused(install):
    install(Cards())
    queries, candidates = rows("gaussian", 0, 2, 3000, 4)
    with pytest.raises(
        RecipeError,
        match=r"at most 2,048 neighbours on a GPU: set evolution.neighbor_search: torch",
    ):
        nearest(queries, candidates, 2040, backend="faiss")


def test_the_trial_runs_with_the_faiss_that_is_here():
    by_faiss._try_gpus.cache_clear()
    by_faiss._try_gpus()  # 0 GPUs with faiss-cpu
    assert by_faiss.count_gpus() == 0


def test_auto_takes_faiss_where_it_sees_gpus_and_torch_stays_torch(install):
    assert search.describe_search("auto") == "faiss on the CPU"
    install(Cards())
    assert search.describe_search("auto") == search.describe_search("faiss") == "faiss on 2 GPUs"
    assert search.describe_search("torch") == "torch on the CPU"


def test_two_wheels_that_overwrite_each_other_are_named(monkeypatch):
    monkeypatch.setattr(
        health, "packages_distributions", lambda: {"faiss": ["faiss-gpu", "faiss-cpu"]}
    )
    (told,) = health._two_wheels()
    assert (
        told.what == "faiss-cpu and faiss-gpu are both installed, and overwrite each other's files"
    )
    assert told.remedy.startswith("pip uninstall faiss-cpu faiss-gpu, then pip install")

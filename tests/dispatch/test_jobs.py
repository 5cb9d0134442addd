"""A job that a generator notes comes again with its request until the answer is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pe.data.samples import item_seeds
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import APIError
from pe.plugins.protocols import Answer, Failed, RandomRequest
from pe.store.journal import Jobs
from pe.store.writer import RunWriter
from tests.generators import Shades


class Noting(Shades):
    """Notes a job named by its first seed, unless one is noted; answers up to `most` requests."""

    def __init__(self, most: int, **settings: int) -> None:
        super().__init__(**settings)
        self.most = most
        self.found: dict[int, str] = {}

    def random_api(self, request: RandomRequest) -> Answer:
        first = int(request.seeds[0])
        with self._lock:
            self.found[first] = request.job.job
            too_many = len(self.found) > self.most
        if not request.job.job:
            request.job.write(f"job {first}")
        if too_many:
            raise APIError("the host is away")
        return super().random_api(request)


def table(run: RunWriter) -> list[tuple[str, str]]:
    with run.journal.transaction() as connection:
        return connection.execute("SELECT request, job FROM jobs").fetchall()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_noted_job_comes_again_and_is_forgotten_once_its_answer_is_stored(tmp_path: Path, concurrency: int) -> None:
    labels = np.zeros(30, np.int32)
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        first = Noting(2, max_chunk=5, concurrency=concurrency)
        with pytest.raises(APIError, match="away"):
            Dispatcher(first, run, ("a",), seed=3).random(labels)
        waiting = table(run)
    assert set(first.found.values()) == {""}
    assert len(waiting) == len(first.found) - 2
    with RunWriter.reopen(tmp_path / "run") as run:
        second = Noting(99, max_chunk=5)
        Dispatcher(second, run, ("a",), seed=3).random(labels)
        assert not table(run)
    again = {seed: job for seed, job in second.found.items() if job}
    assert sorted(again.values()) == sorted(job for _, job in waiting)
    assert all(job == f"job {seed}" for seed, job in again.items())


def test_a_request_that_is_made_anew_has_no_job(tmp_path: Path) -> None:
    class Failing(Noting):
        def random_api(self, request: RandomRequest) -> Answer:
            answer = super().random_api(request)
            if int(request.seeds[0]) in first:
                return Answer(answer.samples.take(np.arange(0)), answer.conditions.take([]), {0: Failed("torn")})
            return answer

    first = set(item_seeds(3, "population/0", np.arange(4), np.zeros(4, np.int64)).tolist())
    api = Failing(99, max_chunk=1)
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        Dispatcher(api, run, ("a",), seed=3).random(np.zeros(5, np.int32))
        assert not table(run)
    assert len(api.found) == 9
    assert set(api.found.values()) == {""}


def test_a_noted_request_comes_again_with_its_own_items_whatever_else_has_failed_since(tmp_path: Path) -> None:
    class Slow(Noting):
        """Fails at items of the first try that it is told; is away where a job is to be noted for others again."""

        def random_api(self, request: RandomRequest) -> Answer:
            answer = super().random_api(request)
            if set(request.seeds.tolist()) & away:
                raise APIError("the host is away")
            torn = {i: Failed("torn") for i, seed in enumerate(request.seeds.tolist()) if seed in failing}
            good = [i for i in range(len(request)) if i not in torn]
            return Answer(answer.samples.take(np.array(good, np.int64)), answer.conditions.take(good), torn)

    def seeds(items: list[int], tries: int) -> set[int]:
        return set(item_seeds(3, "population/0", np.array(items), np.full(len(items), tries)).tolist())

    labels, failing = np.zeros(6, np.int32), seeds([0, 1, 3], 0)
    away = seeds([3, 4, 5], 0)
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        for away in (seeds([3, 4, 5], 0), seeds([0, 1], 1)):  # noqa: B007
            with pytest.raises(APIError, match="away"):
                Dispatcher(Slow(99, max_chunk=3), run, ("a",), seed=3).random(labels)
        ((request, job),) = table(run)
    away = set()
    with RunWriter.reopen(tmp_path / "run") as run:
        last = Slow(99, max_chunk=3)
        Dispatcher(last, run, ("a",), seed=3).random(labels)
        assert not table(run)
    assert request.startswith("population/0 ")
    assert last.found == {int(job.removeprefix("job ")): job, next(iter(seeds([3], 1))): ""}


def test_a_job_that_a_version_before_has_noted_without_its_items_is_found(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run, run.journal.transaction() as connection:
        connection.execute("DROP TABLE jobs")
        connection.execute("CREATE TABLE jobs (request TEXT PRIMARY KEY, job TEXT NOT NULL) STRICT")
        connection.execute("INSERT INTO jobs VALUES ('population/0 12', 'job 7')")
    with RunWriter.reopen(tmp_path / "run") as run:
        jobs = Jobs(run.journal)
        assert jobs.find("population/0 12") == "job 7"
        assert jobs.of_phase("population/0") == [("population/0 12", b"")]
        jobs.keep("population/0 13", b"items", "job 8")
        assert table(run) == [("population/0 12", "job 7"), ("population/0 13", "job 8")]

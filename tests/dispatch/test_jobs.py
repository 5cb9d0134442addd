"""A job that a generator notes comes again with its request until the answer is stored."""

import numpy as np
import pytest

from pe.data.samples import item_seeds
from pe.errors import APIError
from pe.plugins.protocols import Answer, Failed
from pe.store.writer import RunWriter
from tests.dispatch.runs import LABELS, dispatcher
from tests.generators import Shades


class Noting(Shades):
    """Notes a job named by its first seed, unless one is noted; answers up to `most` requests."""

    def __init__(self, most, **settings):
        super().__init__(**settings)
        self.most = most
        self.found: dict[int, str] = {}

    def random_api(self, request):
        first = int(request.seeds[0])
        with self._lock:
            self.found[first] = request.job.job
            too_many = len(self.found) > self.most
        if not request.job.job:
            request.job.write(f"job {first}")
        if too_many:
            raise APIError("the host is away")
        return super().random_api(request)


def table(run):
    with run.journal.transaction() as connection:
        return connection.execute("SELECT request, job FROM jobs").fetchall()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_noted_job_comes_again_and_is_forgotten_once_its_answer_is_stored(tmp_path, concurrency):
    first, second = Noting(2, max_chunk=5, concurrency=concurrency), Noting(99, max_chunk=5)
    with pytest.raises(APIError, match="away"):
        dispatcher(tmp_path / "run", first).random(LABELS)
    dispatch = dispatcher(tmp_path / "run", second)
    waiting = table(dispatch.run)
    assert set(first.found.values()) == {""}
    assert len(waiting) == len(first.found) - 2
    dispatch.random(LABELS)
    assert not table(dispatch.run)
    again = {seed: job for seed, job in second.found.items() if job}
    assert sorted(again.values()) == sorted(job for _, job in waiting)
    assert all(job == f"job {seed}" for seed, job in again.items())


def test_a_noted_request_comes_again_with_its_own_items_whatever_else_has_failed_since(tmp_path):
    class Slow(Noting):
        """Fails at items of the first try that it is told; is away where a job is to be noted for
        others again.
        """

        def random_api(self, request):
            answer = super().random_api(request)
            if set(request.seeds.tolist()) & away:
                raise APIError("the host is away")
            torn = {
                i: Failed("torn")
                for i, seed in enumerate(request.seeds.tolist())
                if seed in failing
            }
            good = [i for i in range(len(request)) if i not in torn]
            return Answer(
                answer.samples.take(np.array(good, np.int64)), answer.conditions.take(good), torn
            )

    def seeds(items, tries):
        return set(
            item_seeds(3, "population/0", np.array(items), np.full(len(items), tries)).tolist()
        )

    labels, failing = np.zeros(6, np.int32), seeds([0, 1, 3], 0)
    for away in (seeds([3, 4, 5], 0), seeds([0, 1], 1)):  # noqa: B007
        with pytest.raises(APIError, match="away"):
            dispatcher(tmp_path / "run", Slow(99, max_chunk=3)).random(labels)
    away = set()
    dispatch = dispatcher(tmp_path / "run", last := Slow(99, max_chunk=3))
    ((request, job),) = table(dispatch.run)
    dispatch.random(labels)
    assert not table(dispatch.run)
    assert request.startswith("population/0 ")
    assert last.found == {int(job.removeprefix("job ")): job, next(iter(seeds([3], 1))): ""}


def test_a_job_that_a_version_before_has_noted_without_its_items_is_found(tmp_path):
    with (
        RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run,
        run.journal.transaction() as connection,
    ):
        connection.execute("DROP TABLE jobs")
        connection.execute("CREATE TABLE jobs (request TEXT PRIMARY KEY, job TEXT NOT NULL) STRICT")
        connection.execute("INSERT INTO jobs VALUES ('population/0 12', 'job 7')")
    with RunWriter.reopen(tmp_path / "run") as run:
        assert run.journal.job("population/0 12") == "job 7"
        assert run.journal.jobs("population/0") == [("population/0 12", b"")]
        run.journal.keep_job("population/0 13", b"items", "job 8")
        assert table(run) == [("population/0 12", "job 7"), ("population/0 13", "job 8")]

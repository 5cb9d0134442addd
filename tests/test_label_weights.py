"""`evolution.votes: smooth`: weights on candidates, which are post-processing of noisy votes."""

import numpy as np
import pytest

from pe.data.samples import generator
from pe.engine.execution import RunContext
from pe.engine.extend import extend_run
from pe.errors import DamagedFile, PluginError, RunError
from pe.nearest import label_weights as module
from pe.nearest.label_weights import label_weights
from pe.planning.releases import plan_of
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.engine.small import evolve, records_in
from tests.generators import Mean, Shades

SMOOTH = {
    "votes": "smooth",
    "selection": "rank",
    "iterations": 1,
    "degree": 0.0,
    "population": [600, 4],
    "epsilon": 2.0,
}


def two_clusters(noise, seed=0, each=300):
    """Votes of two labels over candidates of two clusters: label k is voted for in cluster
    k alone.
    """
    rng = np.random.default_rng(seed)
    cluster, labels = np.tile([0, 1], each), np.repeat([0, 1], each).astype(np.int32)
    vectors = (rng.normal(size=(2 * each, 8)) + 6 * cluster[:, None]).astype(np.float32)
    noisy = 1.5 * (cluster == labels) + rng.normal(scale=noise, size=2 * each)
    return noisy, labels, vectors, cluster


def weights_of(noisy, labels, vectors, sigma, seed=0):
    return label_weights(noisy, labels, vectors, sigma, np.random.default_rng(seed))


def test_a_candidate_that_another_label_wants_is_hardly_claimed_although_noise_hides_the_votes():
    noisy, labels, vectors, cluster = two_clusters(noise=3.0)
    weights = weights_of(noisy, labels, vectors, 3.0)
    own = cluster == labels
    best_by_votes, best = (np.argsort(-weights)[:100] for weights in (noisy, noisy * weights))
    assert own[best].mean() > 0.97 > 0.75 > own[best_by_votes].mean()
    assert weights[own].mean() > 0.95
    assert weights[~own].mean() < 0.2


@pytest.mark.parametrize("case", ["one label", "no noise", "noise alone"])
def test_where_nothing_is_to_be_gained_weights_change_no_order(case):
    noisy, labels, vectors, _ = two_clusters(noise=3.0)
    if case == "one label":
        labels = np.zeros_like(labels)
    if case == "noise alone":
        noisy = np.random.default_rng(1).normal(size=len(noisy))
    weights = weights_of(noisy, labels, vectors, 0.0 if case == "no noise" else 1.0)
    for label in (0, 1):
        own = weights[(labels == label) & (weights > 0)]
        assert own.size == 0 or np.ptp(own) < (0.3 if case == "noise alone" else 1e-12)


def test_a_near_copy_of_a_candidate_that_weighs_more_has_no_claim():
    noisy, labels, vectors, _ = two_clusters(noise=1.0)
    vectors[1], vectors[3] = vectors[0], vectors[2] + 1e-3
    noisy[:4] = [5, 4, 4, 5]
    weights = weights_of(noisy, labels, vectors, 1.0)
    assert (weights[:4] > 0).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    "broken", ["all vectors equal", "one candidate", "vectors that are not finite"]
)
def test_weights_lie_in_the_unit_interval_whatever_the_vectors_are(broken):
    noisy, labels, vectors, _ = two_clusters(noise=1.0)
    if broken == "one candidate":
        noisy, labels, vectors = noisy[:1], labels[:1], vectors[:1]
    elif broken == "all vectors equal":
        vectors[:] = 1
    else:
        vectors[::3] = np.nan
    weights = weights_of(noisy, labels, vectors, 1.0)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert not np.isnan(weights).any()


def test_the_weights_of_a_run_follow_from_its_shareable_files_alone(tmp_path):
    run = evolve(records_in(tmp_path), tmp_path / "run", **SMOOTH)
    recipe = Recipe.load(run.folder / "recipe.yaml")
    release, before = plan_of(run, recipe).steps[0].release, run.populations()[0]
    noisy = np.load(run.folder / "releases" / "histogram-1.npy") / release.grid
    sigma = release.sensitivity * release.noise_multiplier
    vectors, rng = Mean().embed(before.samples), generator(recipe.seed, "claims/1")
    again = label_weights(noisy, before.labels, vectors, sigma, rng)
    np.testing.assert_array_equal(np.load(run.folder / "claims/001/claims.npy"), again)
    taken, weights = run.synthetic, np.maximum(noisy, 0) * again
    for label in (0, 1):
        own, parents = np.flatnonzero(before.labels == label), taken.parents[taken.labels == label]
        best = own[np.argsort(-weights[own])[:2]]
        assert sorted(parents) == sorted(best)


class StopsOnce(Shades):
    """Fails when it is first asked for a variation: after the weights."""

    failed = False

    def variation_api(self, request):
        if not self.failed:
            self.failed = True
            raise ValueError("away")
        return super().variation_api(request)


def test_a_resumed_run_goes_on_with_the_weights_that_it_began_with(tmp_path, monkeypatch):
    api, out, settings = StopsOnce(), tmp_path / "run", SMOOTH | {"degree": 0.3}
    private = records_in(tmp_path)
    with pytest.raises(PluginError, match="away"):
        evolve(private, out, api, **settings)
    weights = np.load(out / "claims/001/claims.npy")
    monkeypatch.setattr(module, "POWER", 1)  # as another machine might compute them
    run = evolve(private, out, api, resume=True, **settings)
    np.testing.assert_array_equal(np.load(out / "claims/001/claims.npy"), weights)
    assert run.guarantee["epsilon"] > 0


def test_changed_weights_are_not_used(tmp_path):
    api, out, settings = StopsOnce(), tmp_path / "run", SMOOTH | {"degree": 0.3}
    private = records_in(tmp_path)
    with pytest.raises(PluginError, match="away"):
        evolve(private, out, api, **settings)
    np.save(out / "claims/001/claims.npy", np.ones(600))
    with pytest.raises(DamagedFile, match=r"claims\.npy is missing or was changed"):
        evolve(private, out, api, resume=True, **settings)


def test_extensions_go_on_down_the_list_and_say_when_it_ends(tmp_path):
    run = evolve(records_in(tmp_path), tmp_path / "run", **SMOOTH)
    around, extensions = RunContext(api=Shades(), embedding=Mean()), 0
    with pytest.raises(RunError, match="candidates left that were voted for"):  # noqa: PT012
        while extensions < 300:
            extend_run(run.folder, 2, 0.0, around)
            extensions += 1
    parents = [run.synthetic.parents, *(one.parents for one in Run.open(run.folder).extensions())]
    assert len(parents) == extensions + 1 > 2
    assert len(np.unique(np.concatenate(parents))) == 4 + 2 * extensions
    extend_run(run.folder, 2, 0.5, around)  # as the refusal proposes
    np.save(run.folder / "claims/001/claims.npy", np.ones(600))
    with pytest.raises(
        DamagedFile, match=r"claims\.npy is missing or was changed after it was certified"
    ):
        extend_run(run.folder, 1, 0.0, around)


def test_votes_are_raw_unless_smooth_is_said(tmp_path):
    run = evolve(records_in(tmp_path), tmp_path / "run", **{**SMOOTH, "votes": "raw"})
    assert not (run.folder / "claims").exists()

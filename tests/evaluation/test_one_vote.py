"""One vote as a control: the run's images and its whole budget, nothing varied, and nothing of it published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import pe
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import Interrupted, LimitReached
from pe.evaluation.controls import Vote, images_asked_for, plan_vote
from pe.evaluation.evaluate import evaluate_run
from pe.evaluation.sets import Request
from pe.planning.layout import plan_of
from pe.plugins.protocols import PluginInfo
from pe.privacy.accounting import epsilon
from pe.recipe.schema import Recipe
from pe.store.run import Run, purge
from tests.evaluation.test_evaluate import SETTINGS, npz, shareable, source
from tests.generators import Mean, Shades


class Near(Mean):
    """Sends nothing elsewhere, so the control needs not be asked for."""

    info = pe.PluginInfo(hosts=())


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    private = source(npz(tmp_path / "private.npz", 0))
    return pe.evolve(private, Shades(), embedding=Near(), out=tmp_path / "run", **SETTINGS)


@pytest.fixture
def test(tmp_path: Path) -> str:
    return str(npz(tmp_path / "test.npz", 1, 40))


def evaluate(run: pe.Run, test: str, **changes: object) -> dict[str, object]:
    quick = {"seeds": 1, "metrics": ("utility",), "embedding": Near(), "api": Shades(), "random_selection": False}
    return evaluate_run(run, Request(test, **quick | changes), pe.progress.Progress(), Event())


def asked_by(run: pe.Run) -> int:
    return 60 + (60 + 60) + (60 + 40)  # S_0, then a lookahead and offspring of each iteration


def test_it_chooses_as_many_images_as_the_run_came_to_from_as_many_as_it_paid_for(run: pe.Run, test: str) -> None:
    api = Shades()
    values = evaluate(run, test, api=api)
    assert images_asked_for(run, 2) == asked_by(run)
    assert (sum(map(len, api.random_requests)), len(api.variation_requests)) == (asked_by(run), 0)
    probe = values["utility"]["linear_probe on Near"]
    assert probe["one_vote"]["images"] == 40
    assert probe["one_vote"]["accuracy"]["mean"] > probe["unevolved"]["accuracy"]["mean"] + 0.2
    control = Run.open(run.confidential / "one-vote")
    candidates = np.load(control.folder / "candidates" / "002" / "images.npy")
    chosen = control.population(2)
    np.testing.assert_array_equal(chosen.samples.array, candidates[chosen.parents])
    np.testing.assert_array_equal(chosen.labels, run.population(2).labels)


def test_the_verdict_says_whether_evolving_beat_it(run: pe.Run, test: str) -> None:
    found = evaluate(run, test)["verdict"]
    against = found["differences"]["one_vote"]
    assert found["evolving"] == ("helped" if against["low"] > 0 else "hurt" if against["high"] < 0 else "not_shown")
    assert "against as much data chosen by one vote and not varied." in found["sentence"]
    assert any("try evolution.iterations: 1" in each for each in found["remedies"]) == (found["evolving"] != "helped")


def test_a_second_evaluation_asks_for_nothing_and_finds_the_same(run: pe.Run, test: str) -> None:
    before = evaluate(run, test)
    again = Shades()
    assert evaluate(run, test, api=again) == before
    assert again.asked == 0


def test_nothing_of_it_is_published_or_charged(run: pe.Run, test: str) -> None:
    ledger = run.folder.parent / "private.npz.ledger.json"
    before, spent = shareable(run.folder), ledger.read_bytes()
    evaluate(run, test)
    assert shareable(run.folder) == before
    assert ledger.read_bytes() == spent
    assert not list((run.confidential / "one-vote").rglob("private_embeddings.npy"))
    exported = run.export(run.folder.parent / "out")
    assert not [path for path in exported.rglob("*") if "one-vote" in path.parts or "candidates" in path.parts]
    purge(run)
    assert not run.confidential.exists()


def vote_of(run: pe.Run, t: int, *changes: str, info: PluginInfo | None = None) -> Vote:
    recipe = Recipe.load(run.folder / "recipe.yaml", changes)
    return plan_vote(recipe, plan_of(run, recipe), t, 280, run.population(2).labels, info or PluginInfo())


def test_its_noise_costs_what_all_votes_of_the_run_cost(run: pe.Run) -> None:
    releases = plan_of(run, Recipe.load(run.folder / "recipe.yaml")).releases
    spent, release = epsilon(releases, 1e-3), vote_of(run, 2).release
    assert epsilon([release], 1e-3) == pytest.approx(spent, rel=1e-3)
    for wrong in (2 / 3, 1.5):
        other = replace(release, noise_multiplier=wrong * release.noise_multiplier)
        assert epsilon([other], 1e-3) != pytest.approx(spent, rel=0.1)
    half = vote_of(run, 1).release
    assert epsilon([half], 1e-3) == pytest.approx(epsilon(releases[:1], 1e-3), rel=1e-3)


def test_its_candidates_and_neighbours_are_the_planners_for_one_vote(run: pe.Run) -> None:
    assert vote_of(run, 2).sizes == (140, 140)
    assert vote_of(run, 2).voting.neighbors == 1  # the run's
    assert vote_of(run, 2, info=PluginInfo(distinct=50)).sizes == (50, 50)  # a pool has no more of a label
    few = vote_of(run, 2, "private.declared_size=1")
    assert few.voting.neighbors == 32
    assert 32 < few.sizes[0] < 140
    sigma = few.release.sensitivity * few.release.noise_multiplier
    assert few.threshold == pytest.approx(2.5 * sigma)


@pytest.mark.parametrize("count", [59, 600])
def test_the_generator_is_asked_for_as_much_whatever_the_records_are(
    run: pe.Run, test: str, tmp_path: Path, count: int
) -> None:
    npz(tmp_path / "private.npz", 0, count)
    api = Shades()
    evaluate(run, test, api=api)
    assert sum(map(len, api.random_requests)) == asked_by(run)


def test_a_run_that_is_not_finished_is_compared_with_the_images_up_to_its_last_population(
    tmp_path: Path, test: str
) -> None:
    private = source(npz(tmp_path / "private.npz", 0))
    settings = SETTINGS | {"population": [60, 60, 40, 40], "iterations": 3, "degree": [0.2, 0.1, 0.1]}
    with pytest.raises(LimitReached):
        pe.evolve(private, Shades(), embedding=Near(), out=tmp_path / "part", max_images=300, **settings)
    part = Run.open(tmp_path / "part")
    assert len(part.populations()) == 3
    values = evaluate(part, test)
    assert "one_vote" in values["utility"]["mlp"]
    control = Run.open(part.confidential / "one-vote")
    assert len(np.load(control.folder / "candidates" / "002" / "labels.npy")) == asked_by(part)


def test_it_is_left_out_with_a_sentence_where_it_cannot_be_had(run: pe.Run, tmp_path: Path, test: str) -> None:
    once = SETTINGS | {"iterations": 1, "population": 60, "degree": 0.2}
    private = source(tmp_path / "private.npz")
    other = pe.evolve(private, Shades(), embedding=Near(), out=tmp_path / "once", **once)
    cases = {
        "the run has voted once, as this control would": evaluate(other, test),
        "The run was made with tests.evaluation.test_one_vote.Near, not with": evaluate(run, test, embedding=Mean()),
        "so pass it from Python": evaluate(run, test, api=None),
    }
    purge(run)
    cases["The real-data control, the one-vote control and memorisation are left out"] = evaluate(run, test)
    for sentence, values in cases.items():
        assert sentence in " ".join(values["notes"])
        assert "one_vote" not in values["utility"]["mlp"]
        assert values["verdict"]["evolving"] is None
        assert "one vote" not in values["verdict"]["sentence"]


def test_what_costs_or_leaves_this_machine_is_asked_for_and_goes_on_where_it_stopped(tmp_path: Path, test: str) -> None:
    private = source(npz(tmp_path / "private.npz", 0))
    run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "run", **SETTINGS)
    values = evaluate(run, test, embedding=Mean())
    assert "one_vote" not in values["utility"]["mlp"]
    said = "--one-vote runs it, or one_vote=True from Python. The one-vote control makes up to 40 calls for 280 images"
    assert said in " ".join(values["notes"])
    assert "has the private records and these images embedded elsewhere" in " ".join(values["notes"])
    recipe = run.folder / "recipe.yaml"
    recipe.write_text(Recipe.load(recipe, ("limits.max_images=100",)).dump_shareable())
    api, more = Shades(), Shades()
    with pytest.raises(LimitReached, match=r"`pe evaluate` goes on"):
        evaluate(run, test, api=api, embedding=Mean(), one_vote=True)
    recipe.write_text(Recipe.load(recipe, ("limits.max_images=1000",)).dump_shareable())
    assert "one_vote" in evaluate(run, test, api=more, embedding=Mean(), one_vote=True)["utility"]["mlp"]
    assert api.asked + more.asked == 280
    assert 90 < api.asked <= 100


def test_it_stops_when_told(run: pe.Run, test: str) -> None:
    stop = Event()
    stop.set()
    request = Request(test, api=Shades(), embedding=Near(), random_selection=False)
    with pytest.raises(Interrupted, match=r"`pe evaluate` goes on"):
        evaluate_run(run, request, pe.progress.Progress(), stop)


def test_the_demos_digits_stand_beside_it(tmp_path: Path) -> None:
    from pe.engine.demo.digits import RECIPES
    from pe.evaluation.sets import Notes, gather

    small = "evolution.iterations=2", "evolution.population=100", "evolution.degree=0.5", "evolution.neighbors=2"
    recipe = Recipe.load(RECIPES["glyphs"], (*small, "privacy.schedule=null"))
    run = run_recipe(recipe, tmp_path / "run", Surroundings())
    sets = gather(run, Request("mnist", random_selection=False), Notes(pe.progress.Progress()), Event())
    assert len(sets.made["one_vote"]) == 100
    assert np.bincount(sets.made["one_vote"].labels).tolist() == [10] * 10

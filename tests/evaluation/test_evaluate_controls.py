"""The controls that an evaluation makes, and what becomes of it without them."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest

import pe
from pe.data.population import Members
from pe.errors import APIError, Interrupted, LimitReached
from pe.evaluation.controls import choose_without_votes, random_selection_run
from pe.evaluation.evaluate import evaluate_run
from pe.evaluation.sets import Request
from pe.planning.layout import plan_of
from pe.recipe.schema import Recipe
from pe.selection import Descent, Keep
from pe.store.run import Run
from tests.evaluation.test_evaluate import QUICK, SETTINGS, evaluate, npz, run, source, test
from tests.generators import Mean, Moody, Shades

__all__ = ["run", "test"]  # fixtures


class TestRandomSelection:
    """The control that ignores the votes."""

    def test_it_asks_for_the_runs_offspring_and_nothing_twice(self, run: pe.Run, test: str) -> None:
        api = Shades()
        evaluate(run, test, api=api, metrics=("fidelity",), random_selection=True)
        assert [sum(map(len, requests)) for requests in (api.random_requests, api.variation_requests)] == [0, 100]
        again = Shades()
        evaluate(run, test, api=again, metrics=("fidelity",), random_selection=True)
        assert again.asked == 0

    def test_its_calls_are_stated_as_they_are_made(self, run: pe.Run, test: str) -> None:
        api = Shades()
        values = evaluate(run, test, api=api, metrics=("fidelity",), random_selection=True)
        made = len(api.variation_requests)
        assert f"makes up to {made} calls for 100 images, free of charge." in " ".join(values["notes"])

    def test_its_parents_are_uniform_within_their_label(self, run: pe.Run, test: str) -> None:
        evaluate(run, test, metrics=("fidelity",), random_selection=True)
        control, founders = Run.open(run.confidential / "random-selection"), run.population(0)
        offspring = control.population(1)
        np.testing.assert_array_equal(offspring.labels, run.population(1).labels)
        np.testing.assert_array_equal(founders.labels[offspring.parents], offspring.labels)
        chosen = len(np.unique(offspring.parents))
        assert 30 < chosen < 45  # of 60 drawn from 60: 38 ± 3; the votes of this run leave far fewer
        assert len(np.unique(run.population(1).parents)) < 30

    def test_it_keeps_as_the_run_does(self, tmp_path: Path, test: str) -> None:
        private, settings = source(npz(tmp_path / "private.npz", 0)), SETTINGS | {"keep": "winners"}
        run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)
        api = Shades()
        values = evaluate(run, test, api=api, metrics=("fidelity",), random_selection=True)
        assert sum(map(len, api.variation_requests)) == 30 + 20
        assert "calls for 50 images" in " ".join(values["notes"])
        control = Run.open(run.confidential / "random-selection")
        before, after = control.population(1), control.population(2)
        for label in (0, 1):
            kept = np.flatnonzero(after.labels == label)[:10]
            np.testing.assert_array_equal(after.samples.array[kept], before.samples.array[after.parents[kept]])

    def test_without_votes_any_candidate_may_stay(self) -> None:
        candidates, wanted = np.repeat(np.arange(2, dtype=np.int32), 30), np.repeat(np.arange(2, dtype=np.int32), 40)
        rng = np.random.default_rng(0)

        def stay(keep: Keep) -> tuple[Members, np.ndarray]:
            members = choose_without_votes(candidates, wanted, Descent(keep=keep), rng)
            np.testing.assert_array_equal(candidates[members.parents], wanted)
            return members, members.parents[members.kept]

        assert not len(stay("none")[1])
        np.testing.assert_array_equal(np.sort(stay("all")[1]), np.arange(60))
        members, kept = stay("selected")
        np.testing.assert_array_equal(np.sort(kept), np.unique(members.parents))
        often = np.bincount(np.concatenate([stay("winners")[1] for _ in range(200)]), minlength=60)
        assert often.sum() == 200 * 40  # half of what is wanted, each at most once
        assert 100 < often.min() <= often.max() < 167  # 133 ± 7

    def test_a_priced_generator_is_asked_only_on_request(self, tmp_path: Path, test: str) -> None:
        private = source(npz(tmp_path / "private.npz", 0))
        run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "paid", **SETTINGS)
        recipe = run.folder / "recipe.yaml"
        content = Recipe.load(recipe, ("api.price.image=0.5", "limits.max_cost=30"))
        recipe.write_text(content.dump_shareable())
        api = Shades()
        values = evaluate(run, test, api=api, metrics=("fidelity",))
        assert api.asked == 0
        assert "--random-selection runs it" in " ".join(values["notes"])
        with pytest.raises(LimitReached, match=r"`pe evaluate` goes on"):
            evaluate(run, test, api=api, metrics=("fidelity",), random_selection=True)
        assert 50 < api.asked <= 60
        recipe.write_text(Recipe.load(recipe, ("limits.max_cost=60",)).dump_shareable())
        more = Shades()
        values = evaluate(run, test, api=more, metrics=("fidelity",), random_selection=True)
        assert api.asked + more.asked == 100
        assert "about 50.00 USD" in " ".join(values["notes"])

    def test_it_stops_when_told(self, run: pe.Run, test: str) -> None:
        stop = Event()
        stop.set()
        request = Request(test, api=Shades(), random_selection=True, **QUICK)
        with pytest.raises(Interrupted, match=r"`pe evaluate` goes on"):
            evaluate_run(run, request, pe.progress.Progress(), stop)

    def test_it_is_left_out_where_it_is_not_wanted_or_may_ask_others(self, run: pe.Run, test: str) -> None:
        values = evaluate(run, test, metrics=("fidelity",), random_selection=False)
        assert "random_selection" not in values["fidelity"]["Mean"]["controls"]
        populations = run.populations()
        api = Shades()
        recipe = Recipe.load(run.folder / "recipe.yaml")
        control = random_selection_run(run, recipe, plan_of(run, recipe), api, populations)
        assert control.comes_of_itself
        api.capabilities = pe.Capabilities(deterministic=False)
        assert control.comes_of_itself  # each answer is stored, so a second evaluation has the same
        for hosts in (("images.example",), None):
            api.info = pe.PluginInfo(hosts=hosts)
            assert not control.comes_of_itself

    def test_an_object_of_the_users_own_that_is_not_there_is_missed(self, run: pe.Run, test: str) -> None:
        values = evaluate(run, test, api=None, embedding=None, metrics=("fidelity",))
        notes = " ".join(values["notes"])
        assert "The generator is an object of your own, tests.generators.Shades, so pass it from Python" in notes
        assert "The run's embedding was an object" in notes

    def test_refused_variations_keep_their_parents_as_in_the_run(self, run: pe.Run, test: str) -> None:
        values = evaluate(run, test, api=Moody(refuse=5), metrics=("fidelity",), random_selection=True)
        assert values["fidelity"]["Mean"]["controls"]["random_selection"]["samples"] == 40


def test_unevolved_samples_are_as_many_as_are_evaluated(tmp_path: Path, test: str) -> None:
    """S_0's own where it has enough of each label; new ones where they are free and quick."""
    private = source(npz(tmp_path / "private.npz", 0))
    for sizes, asked in (([60, 60, 40], 0), ([20, 20, 40], 40)):
        run = pe.evolve(
            private, Shades(), embedding=Mean(), out=tmp_path / f"{asked}", **SETTINGS | {"population": sizes}
        )
        api = Shades()
        values = evaluate(run, test, api=api, metrics=("fidelity",), random_selection=False)
        assert sum(map(len, api.random_requests)) == asked
        assert values["fidelity"]["Mean"]["controls"]["unevolved"]["samples"] == 40


def test_a_generator_that_fails_leaves_controls_out_unless_they_are_asked_for(run: pe.Run, test: str) -> None:
    broken = Moody(fail=3, retryable=False)
    values = evaluate(run, test, api=broken, metrics=("fidelity",))
    assert "random_selection" not in values["fidelity"]["Mean"]["controls"]
    assert any(
        "The random-selection control is left out: Moody cannot make a sample" in note for note in values["notes"]
    )
    with pytest.raises(APIError, match="Moody cannot make a sample"):
        evaluate(run, test, api=broken, metrics=("fidelity",), random_selection=True)


def test_unevolved_samples_that_a_generator_refuses_are_not_missed_in_silence(tmp_path: Path, test: str) -> None:
    private = source(npz(tmp_path / "private.npz", 0))
    settings = SETTINGS | {"population": [20, 20, 40]}
    run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)
    values = evaluate(run, test, api=Moody(refuse=3), metrics=("fidelity",), random_selection=False)
    assert "The un-evolved control is S_0 with its 20 images, where 40 are evaluated." in values["notes"]

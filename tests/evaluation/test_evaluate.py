"""A run is evaluated whole: beside its controls, finished or not, with nothing un-noised outside
confidential/.
"""

import json
import re
import shutil
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

import pe
from pe.errors import APIError, LimitReached, RecipeError, RunError
from pe.evaluation.controls import images_asked_for, one_vote_run, plan_vote
from pe.evaluation.evaluate import EARLIER, METRICS_FILE, evaluate_run, store_evaluation
from pe.evaluation.metrics import pairs_file
from pe.evaluation.sets import Request
from pe.judgement.learners import panel
from pe.planning.releases import plan_of
from pe.plugins.protocols import PluginInfo, as_generator
from pe.privacy.accounting import epsilon
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.places import FULL_RECIPE
from pe.store.run import Run, purge
from tests.evaluation.conftest import SCHEMA, Near, evaluate, evolve, npz, shareable
from tests.generators import Moody, Shades, images_of
from tests.rows import site

PAIRS_FILE = pairs_file("png")
ALL = {"metrics": None, "seeds": 2, "one_vote": None}


@pytest.fixture(scope="module")
def whole(made, test, tmp_path_factory):
    """All that can be measured of a run, and the run before."""
    run = Run.open(shutil.copytree(made, tmp_path_factory.mktemp("whole") / "run"))
    before, ledger = shareable(run.folder), (made.parent / "private.npz.ledger.json").read_bytes()
    values = evaluate(run, test, embedding=(embedding := Near()), **ALL)
    return SimpleNamespace(
        run=run, values=values, embedding=embedding, before=before, ledger=ledger
    )


def test_a_run_is_measured_beside_its_controls(whole):
    values = whole.values
    assert values["version"] == 2
    told = {
        "name": "run",
        "finished": True,
        "iteration": 2,
        "iterations": 2,
        "noun": "images",
        "images": 40,
    }
    assert values["run"] == told | {"classes": ["no", "yes"]}
    assert values["test"]["per_class"] == {"no": 20, "yes": 20}
    fidelity = values["fidelity"]["Near"]
    controls = {"unevolved", "one_vote", "real"}
    assert fidelity["controls"].keys() == controls
    assert fidelity["frechet"] < fidelity["controls"]["unevolved"]["frechet"] / 2
    assert (
        fidelity["controls"]["real"]["frechet"] < fidelity["controls"]["unevolved"]["frechet"] / 2
    )
    judgement = values["judgement"]
    places = {name: one["place"] for name, one in judgement["trained"].items()}
    assert places.keys() == controls | {"synthetic"}
    assert places["real"]["score"] == 10
    assert places["synthetic"]["score"] > 9 > 5 > places["unevolved"]["score"]
    assert judgement["brought"].keys() == {"unevolved", "one_vote"}
    assert judgement["brought"]["unevolved"]["low"] > 0
    assert values["memorisation"]["samples"] == {"generated": 40, "private": 60, "heldout": 40}
    assert sum(whole.embedding.new) > 40  # of 256 shades
    assert 0 not in whole.embedding.new  # an image is embedded once, whichever set it is in


def test_nothing_of_it_is_published_or_charged(whole, made, tmp_path):
    run, stored = (
        whole.run,
        json.loads((whole.run.folder / METRICS_FILE).read_text(encoding="utf-8")),
    )
    assert stored == whole.values
    assert "Internal" in stored["internal"]
    assert stored["memorisation"]["nearest_pairs"]["files"] == [PAIRS_FILE]
    assert (run.folder / PAIRS_FILE).is_file()
    assert shareable(run.folder) == whole.before
    assert (made.parent / "private.npz.ledger.json").read_bytes() == whole.ledger
    assert not list((run.confidential / "one-vote").rglob("private_embeddings.npy"))
    exported = run.export(tmp_path / "out")
    assert (
        not list(exported.rglob("*metrics*"))
        + list(exported.rglob("*pairs*"))
        + list(exported.rglob("candidates"))
    )


def test_a_second_evaluation_asks_for_nothing_and_finds_the_same(whole, test):
    again = Shades()
    assert evaluate(whole.run, test, api=again, **ALL) == whole.values
    assert again.asked == 0
    assert not (whole.run.folder / EARLIER).exists()


def test_another_evaluation_leaves_the_earlier_one_whole_and_says_where_it_is(run):
    def store(place, pairs=None):
        values = {"test": {"images": 40, "path": place}, "run": {"noun": "texts"}}
        return store_evaluation(run.folder, values, pairs)

    earlier = run.folder / EARLIER
    assert store("a", ("png", b"pairs")) == store("a", ("png", b"pairs")) == ""
    assert not earlier.exists()  # the same again
    before = (run.folder / METRICS_FILE).read_bytes()
    with pytest.raises(TypeError):
        store({1, 2})  # cannot be written as JSON
    assert (run.folder / METRICS_FILE).read_bytes() == before
    told = store("b")
    assert told.startswith(
        f"The evaluation of before, against 40 texts of a, is kept in {earlier / '001'}; "
    )
    assert (earlier / "001" / "metrics.json").read_bytes() == before
    assert (earlier / "001" / "nearest_pairs.png").read_bytes() == b"pairs"
    assert not (run.folder / PAIRS_FILE).exists()
    (run.folder / METRICS_FILE).write_text("{")
    assert store("a").startswith(
        f"The evaluation of before is kept in {earlier / '002'}"
    )  # damaged, and kept too
    assert (earlier / "002" / "metrics.json").read_text() == "{"
    assert sorted(path.name for path in earlier.iterdir()) == ["001", "002"]


def test_a_run_that_is_not_finished_is_evaluated_as_far_as_it_is(tmp_path, test):
    settings = {"population": [60, 60, 40, 40], "iterations": 3, "degree": [0.2, 0.1, 0.1]}
    for name, limit in (("part", 300), ("none", 20)):
        (tmp_path / name).mkdir()
        with pytest.raises(LimitReached):
            evolve(tmp_path / name, max_images=limit, **settings)
    part = Run.open(tmp_path / "part" / "run")
    values = evaluate(part, test, one_vote=True)
    assert (values["run"]["finished"], values["run"]["iteration"], values["run"]["images"]) == (
        False,
        2,
        40,
    )
    assert "The run is not finished: S_2 of S_3 is evaluated." in values["notes"]
    candidates = part.confidential / "one-vote" / "candidates" / "002" / "labels.npy"
    assert len(np.load(candidates)) == 60 + (60 + 60) + (60 + 40)  # what was asked for up to S_2
    with pytest.raises(RunError, match="no finished population yet"):
        evaluate(Run.open(tmp_path / "none" / "run"), test)


def test_a_purge_takes_all_of_it_and_a_purged_run_is_evaluated_without_its_private_records(
    run, test
):
    evaluate(run, test, one_vote=True)
    assert (run.confidential / "one-vote").is_dir()
    purge(run)
    assert not run.confidential.exists()
    values = evaluate(run, test, metrics=None)
    assert not {"judgement", "memorisation"} & values.keys()
    assert "real" not in values["fidelity"]["Near"]["controls"]
    notes = " ".join(values["notes"])
    assert "the run's confidential side was purged" in notes
    assert "The judgement is left out: its scale ends at the private records." in notes
    assert (run.folder / METRICS_FILE).is_file()
    assert run.confidential.stat().st_mode & 0o777 == 0o700
    for metric in ("judgement", "memorisation"):
        with pytest.raises(RecipeError, match=f"`{metric}` needs the private records"):
            evaluate(run, test, metrics=(metric,))
    purge(run)  # what came after is purged like the rest
    assert not run.confidential.exists()


def test_of_test_records_from_elsewhere_only_the_difference_is_told(run, tmp_path):
    labels = np.arange(40) % 2
    shades = 100 + 40 * labels + np.random.default_rng(1).integers(0, 10, 40)
    names = np.array(["no", "yes"])[labels]
    np.savez(tmp_path / "grey.npz", images=images_of(shades).pixels, labels=names)
    values = evaluate(run, tmp_path / "grey.npz", metrics=("memorisation", "fidelity"))
    assert "memorisation" not in values
    (told,) = (note for note in values["notes"] if "not measured" in note)
    assert "the test records differ from the private records in 'brightness'" in told


@pytest.mark.parametrize(
    ("dark", "metrics", "advice"),
    [
        (0, None, "The data may be shared if"),
        (0, ("judgement",), "Measure memorisation, too, .*: leave out `--metrics`"),
        (60, None, "Measure memorisation, too, .*: name test images .* differ in 'brightness'"),
    ],
)
def test_data_are_to_be_shared_only_after_memorisation_was_measured(
    tmp_path, monkeypatch, dark, metrics, advice
):
    monkeypatch.setattr("pe.judgement.judge.panel", lambda _: panel("somebody's"))  # the quickest
    run = evolve(tmp_path, epsilon=9.0)
    labels = np.arange(40) % 2
    shades = np.random.default_rng(1).integers(0, 40, 40) + dark + (215 - 2 * dark) * labels
    names = np.array(["no", "yes"])[labels]
    np.savez(tmp_path / "test.npz", images=images_of(shades).pixels, labels=names)
    judgement = evaluate(run, tmp_path / "test.npz", metrics=metrics)["judgement"]
    assert re.match(advice, judgement["next"])


def test_another_package_brings_a_metric_by_its_name(run, test, tmp_path, monkeypatch):
    folder = site(tmp_path, "[pe.metrics]\nsizes = sizes_of_somebody:sizes")
    (tmp_path / "site" / "sizes_of_somebody.py").write_text(
        "def sizes(measured):\n"
        "    found = {name: len(one) for name, one in measured.sets.all.items()}\n"
        "    return {'sizes': found}\n"
    )
    monkeypatch.syspath_prepend(folder)
    request = Request(str(test), metrics=("sizes",), one_vote=False, api=Shades(), embedding=Near())
    values = evaluate_run(run, request, Progress(), Event())
    jsonschema.validate(values, SCHEMA)
    assert values["sizes"] == {"synthetic": 40, "unevolved": 40, "real": 60}
    assert values["settings"]["metrics"] == ["sizes"]
    assert not {"judgement", "fidelity", "memorisation"} & values.keys()
    # It sees private records, so it is not measured unasked.
    assert Request(str(test)).chosen == ("fidelity", "judgement", "memorisation")
    with pytest.raises(RecipeError, match="Unknown metric 'size': did you mean 'sizes'"):
        Request(str(test), metrics=("size",))


ASKED = (
    60 + (60 + 60) + (60 + 40)
)  # of a run: S_0, then a lookahead and offspring of each iteration


def recipe_of(run, *changes):
    return Recipe.load(run.folder / "recipe.yaml", changes)


def test_one_vote_chooses_as_many_as_the_run_came_to_from_as_many_as_it_paid_for_whatever_the_records_are(
    tmp_path, test
):
    run, api = evolve(tmp_path), Shades()
    npz(tmp_path / "private.npz", 0, 20)
    evaluate(run, test, api=api, one_vote=True)
    assert images_asked_for(run, 2) == ASKED
    assert (sum(map(len, api.random_requests)), len(api.variation_requests)) == (ASKED, 0)
    control = Run.open(run.confidential / "one-vote")
    candidates = np.load(control.folder / "candidates" / "002" / "images.npy")
    chosen, last = control.population(2), run.population(2)
    np.testing.assert_array_equal(chosen.samples.array, candidates[chosen.parents])
    np.testing.assert_array_equal(chosen.labels, last.labels)
    dark, bright = (chosen.samples.array[chosen.labels == label].astype(int) for label in (0, 1))
    assert dark.mean() < 60 < 195 < bright.mean()  # as the records are


def test_the_noise_of_one_vote_costs_what_all_votes_of_the_run_cost(run):
    recipe, labels = recipe_of(run), run.population(2).labels
    plan = plan_of(run, recipe)
    release, half = (
        plan_vote(recipe, plan, t, ASKED, labels, PluginInfo()).release for t in (2, 1)
    )
    spent = epsilon(plan.releases, 1e-3)
    assert epsilon([release], 1e-3) == pytest.approx(spent, rel=1e-3)
    for wrong in (2 / 3, 1.5):
        other = replace(release, noise_multiplier=wrong * release.noise_multiplier)
        assert epsilon([other], 1e-3) != pytest.approx(spent, rel=0.1)
    assert epsilon([half], 1e-3) == pytest.approx(epsilon(plan.releases[:1], 1e-3), rel=1e-3)


def test_what_costs_is_asked_for_and_goes_on_where_a_limit_stopped_it(run, test):
    recipe = run.folder / "recipe.yaml"

    def evaluate_within(images, **changes):
        content = recipe_of(run, "api.price.image=0.5", f"limits.max_cost={images / 2}")
        recipe.write_text(content.dump_shareable())
        return " ".join(evaluate(run, test, **changes)["notes"])

    few, more = Shades(), Shades()
    told = evaluate_within(100, api=few, one_vote=None)
    assert few.asked == 0
    assert "--one-vote runs it, or one_vote=True from Python." in told
    with pytest.raises(LimitReached, match=r"`pe evaluate` goes on"):
        evaluate_within(100, api=few, one_vote=True)
    assert 90 < few.asked <= 100
    told = evaluate_within(600, api=more, one_vote=True)
    assert few.asked + more.asked == ASKED
    assert f"about {ASKED / 2:.2f} USD" in told


def test_what_may_ask_others_does_not_come_of_itself(run, test):
    recipe, api = recipe_of(run), Shades()
    private = Recipe.load(run.folder / FULL_RECIPE).private.open()
    control = one_vote_run(
        run,
        recipe,
        plan_of(run, recipe),
        as_generator(api),
        run.populations(),
        private,
        Near(),
    )
    assert control.comes_of_itself
    for hosts in (("images.example",), None):
        api.info = pe.PluginInfo(hosts=hosts)
        assert not control.comes_of_itself
    far = Near()
    far.info = pe.PluginInfo(hosts=None)
    notes = " ".join(evaluate(run, test, embedding=far, one_vote=None)["notes"])
    assert "The one-vote control makes up to 40 calls for 280 images" in notes
    assert "has the private records and these images embedded elsewhere" in notes
    assert not (run.confidential / "one-vote").exists()


def test_a_generator_that_fails_leaves_a_control_out_unless_it_is_asked_for(run, test):
    broken = Moody(fail=3, retryable=False)
    values = evaluate(run, test, api=broken, one_vote=None)
    assert "one_vote" not in values["fidelity"]["Near"]["controls"]
    left_out = "The one-vote control is left out: Moody cannot make a sample"
    assert any(left_out in note for note in values["notes"])
    with pytest.raises(APIError, match="Moody cannot make a sample"):
        evaluate(run, test, api=broken, one_vote=True)
    # What is refused is drawn again.
    values = evaluate(run, test, api=Moody(refuse=5), one_vote=True)
    assert values["fidelity"]["Near"]["controls"]["one_vote"]["samples"] == 40

"""A run is evaluated whole: beside its controls, finished or not, with nothing un-noised outside confidential/."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import yaml

import pe
from pe.cli.evaluate import _page
from pe.errors import APIError, Interrupted, LimitReached, RecipeError, RunError
from pe.evaluation import evaluate as evaluating
from pe.evaluation.evaluate import evaluate_run
from pe.evaluation.random_selection import random_selection_run
from pe.evaluation.request import Request
from pe.evaluation.stored import EARLIER, METRICS_FILE, pairs_file
from pe.planning.layout import plan_of
from pe.recipe.schema import Recipe
from pe.store.purge import purge
from pe.store.run import Run
from tests.generators import Mean, Moody, Shades, images_of

PAIRS_FILE = pairs_file("png")
SETTINGS = {"epsilon": 50.0, "delta": 1e-3, "population": [60, 60, 40], "iterations": 2, "lookahead": 1}
SETTINGS |= {"degree": [0.2, 0.1]}
QUICK = {"seeds": 2, "metrics": ("fidelity", "utility", "memorisation"), "embedding": Mean()}


def npz(path: Path, seed: int, count: int = 60) -> Path:
    """Dark 'no' and bright 'yes' images of 4×4."""
    labels = np.arange(count) % 2
    shades = np.random.default_rng(seed).integers(0, 40, count) + 215 * labels
    np.savez(path, images=images_of(shades).pixels, labels=np.array(["no", "yes"])[labels])
    return path


def source(path: Path) -> pe.ImageNpz:
    return pe.ImageNpz(path, size=4, channels=1, classes=["no", "yes"])


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    private = source(npz(tmp_path / "private.npz", 0))
    return pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "run", **SETTINGS)


@pytest.fixture
def test(tmp_path: Path) -> str:
    return str(npz(tmp_path / "test.npz", 1, 40))


def evaluate(run: pe.Run, test: str, **changes: object) -> dict[str, object]:
    return evaluate_run(run, Request(test, **{**QUICK, "api": Shades()} | changes), pe.progress.Progress(), Event())


def shareable(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if "confidential" not in path.relative_to(folder).parts}


def test_a_run_is_measured_beside_its_controls(run: pe.Run, test: str) -> None:
    values = evaluate(run, test)
    assert values["version"] == 1
    assert values["run"] == {
        "name": "run",
        "finished": True,
        "iteration": 2,
        "iterations": 2,
        "noun": "images",
        "images": 40,
        "classes": ["no", "yes"],
    }
    assert values["test"]["per_class"] == {"no": 20, "yes": 20}
    fidelity = values["fidelity"]["Mean"]
    assert fidelity["controls"].keys() == {"unevolved", "random_selection", "real"}
    assert fidelity["frechet"] < fidelity["controls"]["unevolved"]["frechet"] / 2
    assert fidelity["controls"]["real"]["frechet"] < fidelity["controls"]["unevolved"]["frechet"] / 2
    for by_set in values["utility"].values():
        assert by_set.keys() == {"synthetic", "unevolved", "random_selection", "real"}
        assert by_set["real"]["accuracy"]["mean"] > 0.9
        assert by_set["unevolved"]["accuracy"]["mean"] < 0.9
        assert by_set["synthetic"]["accuracy"]["mean"] > by_set["unevolved"]["accuracy"]["mean"]
    assert values["chosen_classifier"].keys() == {"synthetic", "unevolved", "random_selection", "real"}
    assert values["memorisation"]["samples"] == {"generated": 40, "private": 60, "heldout": 40}


def test_it_begins_with_the_verdict(run: pe.Run, test: str) -> None:
    values = evaluate(run, test)
    found = values["verdict"]
    assert found["differences"]["unevolved"]["low"] > 0.5
    random = found["differences"]["random_selection"]
    assert found["outcome"] == ("helped" if random["low"] > 0 else "hurt" if random["high"] < 0 else "not_shown")
    assert bool(found["remedies"]) == (found["outcome"] != "helped")
    assert (found["classifier"], found["test_images"]) == ("linear_probe on Mean", 40)
    assert found["differences"].keys() == {"unevolved", "random_selection", "chance"}
    assert found["differences"]["chance"]["accuracy"] == 0.5
    by_set = values["utility"]["linear_probe on Mean"]
    for name in ("unevolved", "random_selection"):
        assert found["differences"][name]["accuracy"] == by_set[name]["accuracy"]["mean"]
    page = _page(values, Path("m")).splitlines()
    assert " ".join(page[2:]).startswith(found["sentence"])


def test_without_the_control_that_costs_the_verdict_says_so(run: pe.Run, test: str) -> None:
    found = evaluate(run, test, random_selection=False, metrics=("utility",), classifiers=("logistic_regression",))
    assert "no control by random selection" in found["verdict"]["sentence"]
    assert found["verdict"]["classifier"] == "logistic_regression"


def test_no_verdict_is_given_where_nobody_voted(tmp_path: Path, test: str) -> None:
    private = source(npz(tmp_path / "private.npz", 0))
    settings = {"population": 40, "iterations": 0, "epsilon": 1.0, "delta": 1e-3}
    run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "none", **settings)
    values = evaluate(run, test, metrics=("utility",))
    assert "verdict" not in values
    assert values["utility"]["mlp"].keys() == {"synthetic", "real"}


class Counting(Mean):
    """Counts the images of each call that were in none before."""

    def __init__(self) -> None:
        self.new: list[int] = []
        self._seen: set[bytes] = set()

    def embed(self, samples: pe.Images) -> np.ndarray:
        images = {image.tobytes() for image in samples.pixels}
        self.new.append(len(images - self._seen))
        self._seen |= images
        return super().embed(samples)


def test_an_image_is_embedded_once_whichever_set_it_is_in(tmp_path: Path, test: str) -> None:
    private = source(npz(tmp_path / "private.npz", 0))
    run = pe.evolve(private, Shades(), embedding=Counting(), out=tmp_path / "run", **SETTINGS)
    embedding = Counting()
    values = evaluate(run, test, embedding=embedding, one_vote=True)
    assert {"fidelity", "utility", "memorisation"} <= values.keys()
    assert "one_vote" in values["fidelity"]["Counting"]["controls"]
    assert sum(embedding.new) > 40  # of 256 shades
    assert 0 not in embedding.new


def test_the_file_holds_what_is_returned(run: pe.Run, test: str) -> None:
    values = evaluate(run, test)
    stored = json.loads((run.folder / METRICS_FILE).read_text(encoding="utf-8"))
    assert stored == values
    assert "Internal" in stored["internal"]
    for name in stored["memorisation"]["nearest_pairs"]["files"]:
        assert (run.folder / name).is_file()


def test_it_is_repeatable(run: pe.Run, test: str) -> None:
    assert evaluate(run, test) == evaluate(run, test)


def test_nothing_is_written_outside_the_confidential_side(run: pe.Run, test: str) -> None:
    before = shareable(run.folder)
    evaluate(run, test)
    assert shareable(run.folder) == before
    assert {METRICS_FILE, PAIRS_FILE} <= {
        str(path.relative_to(run.folder)) for path in run.confidential.iterdir() if path.is_file()
    }
    exported = run.export(run.folder.parent / "out")
    assert not [path for path in exported.rglob("*") if "metrics" in path.name or "pairs" in path.name]


def test_a_crash_leaves_the_metrics_of_before(run: pe.Run, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate(run, test)
    before = (run.folder / METRICS_FILE).read_bytes()
    monkeypatch.setattr(evaluating, "INTERNAL", object())  # cannot be written as JSON
    with pytest.raises(TypeError):
        evaluate(run, test)
    assert (run.folder / METRICS_FILE).read_bytes() == before


class Hearing(pe.progress.Progress):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, message: str) -> None:
        self.heard.append(message)


def test_another_evaluation_leaves_the_earlier_one_whole_and_says_where_it_is(run: pe.Run, test: str) -> None:
    evaluate(run, test)
    before = [(run.folder / name).read_bytes() for name in (METRICS_FILE, PAIRS_FILE)]
    evaluate(run, test)
    assert not (run.folder / EARLIER).exists()  # the same again
    hearing = Hearing()
    other = Request(test, metrics=("fidelity",), embedding=Mean(), api=Shades())
    values = evaluate_run(run, other, hearing, Event())
    place = run.folder / EARLIER / "001"
    assert [(place / Path(name).name).read_bytes() for name in (METRICS_FILE, PAIRS_FILE)] == before
    assert json.loads((run.folder / METRICS_FILE).read_text()) == values
    assert not (run.folder / PAIRS_FILE).exists()
    (told,) = (sentence for sentence in hearing.heard if "evaluation of before" in sentence)
    assert f", against 40 images of {test}, is kept in {place}; " in told
    evaluate(run, test)
    assert sorted(path.name for path in (run.folder / EARLIER).iterdir()) == ["001", "002"]
    assert (run.folder / METRICS_FILE).read_bytes() == before[0]


def test_an_earlier_evaluation_that_is_damaged_is_kept_too(run: pe.Run, test: str) -> None:
    (run.folder / METRICS_FILE).write_text("{")
    evaluate(run, test, metrics=("fidelity",))
    assert (run.folder / EARLIER / "001" / "metrics.json").read_text() == "{"


def test_a_run_that_is_not_finished_is_evaluated_as_far_as_it_is(tmp_path: Path, test: str) -> None:
    private = source(npz(tmp_path / "private.npz", 0))
    with pytest.raises(LimitReached):
        pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "part", max_images=200, **SETTINGS)
    values = evaluate(Run.open(tmp_path / "part"), test)
    assert (values["run"]["finished"], values["run"]["iteration"], values["run"]["images"]) == (False, 1, 60)
    assert "The run is not finished: S_1 of S_2 is evaluated." in values["notes"]


def test_a_run_without_any_population_is_refused(tmp_path: Path, test: str) -> None:
    private = source(npz(tmp_path / "private.npz", 0))
    with pytest.raises(LimitReached):
        pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "none", max_images=20, **SETTINGS)
    with pytest.raises(RunError, match="no finished population yet"):
        evaluate(Run.open(tmp_path / "none"), test)


def test_a_purged_run_is_evaluated_without_its_private_records(run: pe.Run, test: str) -> None:
    purge(run)
    values = evaluate(run, test, metrics=None)
    assert "memorisation" not in values
    assert "real" not in values["fidelity"]["Mean"]["controls"]
    assert any("the run's confidential side was purged" in note for note in values["notes"])
    assert (run.folder / METRICS_FILE).is_file()
    assert run.confidential.stat().st_mode & 0o777 == 0o700
    with pytest.raises(RecipeError, match="memorisation needs the private records"):
        evaluate(run, test, metrics=("memorisation",))


def test_purge_takes_everything_that_an_evaluation_left(run: pe.Run, test: str) -> None:
    evaluate(run, test, random_selection=True)
    assert (run.confidential / "random-selection").is_dir()
    purge(run)
    assert not run.confidential.exists()
    evaluate(run, test, metrics=("fidelity",))
    purge(run)  # what came after is purged like the rest
    assert not run.confidential.exists()


class Marked(Shades):
    """Shades, each with a pixel of another one: an image of one colour tells nothing of a record."""

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        return self._mark(super().random_api(request))

    def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
        return self._mark(super().variation_api(request))

    def _mark(self, answer: pe.Answer) -> pe.Answer:
        answer.samples.pixels[:, 3, 3] = 255 - answer.samples.pixels[:, 0, 0]
        return answer


def marked(path: Path, images: np.ndarray, labels: np.ndarray) -> str:
    images = images.copy()
    images[:, 3, 3] = 255 - images[:, 0, 0]
    np.savez(path, images=images, labels=labels)
    return str(path)


def test_test_images_that_are_not_held_out_are_left_out_and_counted(tmp_path: Path) -> None:
    folder, names = tmp_path, np.array(["no", "yes"])
    shades = np.arange(60) % 40 + 215 * (np.arange(60) % 2)
    private = marked(folder / "private.npz", images_of(shades).pixels, names[np.arange(60) % 2])
    run = pe.evolve(source(Path(private)), Marked(), embedding=Mean(), out=folder / "run", **SETTINGS)
    made, fresh = run.synthetic, np.arange(30) * 8 + 3
    pixels = images_of(fresh).pixels.copy()
    pixels[:, 0, 0] = 7  # no other image has this one
    parts = [np.load(private)["images"][:4], made.samples.pixels[:3]]
    known = {image.tobytes() for part in (np.load(private)["images"], made.samples.pixels) for image in part}
    pixels = np.concatenate([*parts, pixels, images_of(fresh[:1]).pixels])
    labels = names[np.arange(len(pixels)) % 2]
    np.savez(folder / "test.npz", images=pixels, labels=labels)
    gone = sum(image.tobytes() in known for image in pixels)
    assert gone == 7

    values = evaluate(run, str(folder / "test.npz"), api=Marked(), random_selection=False)
    assert (values["test"]["images"], values["test"]["left_out"]) == (31, 7)
    assert values["memorisation"]["samples"]["heldout"] == values["verdict"]["test_images"] == 31
    (note,) = (note for note in values["notes"] if "left out, because" in note)
    assert note.startswith("7 of the 38 test images are left out, because they are, pixel by pixel, among the ")
    again = evaluate(run, str(folder / "test.npz"), api=Marked(), metrics=("fidelity",))
    assert again["test"]["sha256"] == values["test"]["sha256"]
    order = np.arange(len(pixels))[::-1]
    np.savez(folder / "turned.npz", images=pixels[order], labels=labels[order])
    np.savez(folder / "less.npz", images=pixels[1:], labels=labels[1:])
    same, other = (
        evaluate(run, str(folder / name), api=Marked(), metrics=("fidelity",))["test"]["sha256"]
        for name in ("turned.npz", "less.npz")
    )
    assert same == values["test"]["sha256"] != other
    with pytest.raises(RecipeError, match=r"tests nothing: 60 of its 60 images are, .* private records \(60\); name"):
        evaluate(run, private, api=Marked())


def test_too_few_images_are_said_with_the_number_needed(run: pe.Run, tmp_path: Path) -> None:
    few = str(npz(tmp_path / "few.npz", 2, 4))
    spec = pe.embedding("pixels", size=4)
    values = evaluate(run, few, embeddings=(spec,), metrics=("fidelity",))
    notes = " ".join(values["notes"])
    assert "4 reference images cannot fill a covariance of 16 dimensions; take 17 or more" in notes
    assert "4 images are too few for 5 neighbours; take 6 or more" in notes
    assert "precision" not in values["fidelity"]["pixels (size=4)"]


class Shelves(Mean):
    """Puts images on four shelves by their shade; as Inception does, it tells features and classes."""

    info = pe.PluginInfo(standard_inception=True)

    def probabilities(self, vectors: np.ndarray) -> np.ndarray:
        return np.eye(4)[(vectors[:, 0] // 64).astype(int)]


def test_distances_are_called_fid_and_kid_under_standard_inception_alone(run: pe.Run, test: str) -> None:
    plain = evaluate(run, test, metrics=("fidelity",))
    named = evaluate(run, test, metrics=("fidelity",), embedding=Shelves())
    assert named["fidelity"]["Shelves"]["standard_inception"] is True
    assert "FID" in _page(named, Path("m"))
    assert "KID" in _page(named, Path("m"))
    assert "FID" not in _page(plain, Path("m"))
    assert any("50,000 of published figures" in note for note in named["notes"])
    assert 1 < named["fidelity"]["Shelves"]["controls"]["real"]["inception_score"]["mean"] <= 4
    assert "inception_score" not in plain["fidelity"]["Mean"]


def test_private_images_do_not_leave_for_another_host_unsaid(run: pe.Run, test: str) -> None:
    class Far(Mean):
        info = pe.PluginInfo(hosts=("embeddings.example",))

    notes = evaluate(run, test, metrics=("fidelity",), embedding=Far())["notes"]
    assert "The embedding 'Far' hands private and test images to embeddings.example." in notes


def test_a_run_that_was_received_hands_nobody_the_test_images(run: pe.Run, test: str, tmp_path: Path) -> None:
    received = run.export(tmp_path / "received")
    content = yaml.safe_load((received / "recipe.yaml").read_text())
    far = {"kind": "http", "url": "http://127.0.0.1:9/v1/embeddings", "trusted_with_private_data": True}
    (received / "recipe.yaml").write_text(yaml.safe_dump(content | {"embedding": far}))
    said = r"hand your test images to 127\.0\.0\.1:9: name an embedding that you want by --embedding"
    with pytest.raises(RecipeError, match=said):
        evaluate(pe.Run.open(received), test, metrics=("fidelity",), embedding=None)


def test_one_class_leaves_utility_out(tmp_path: Path) -> None:
    npz(tmp_path / "labelled.npz", 0)
    with np.load(tmp_path / "labelled.npz") as file:
        np.savez(tmp_path / "one.npz", images=file["images"])
    private = pe.ImageNpz(tmp_path / "one.npz", size=4, channels=1)
    run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "one", **SETTINGS)
    values = evaluate(run, str(tmp_path / "one.npz"), metrics=None)
    assert "utility" not in values
    assert "fidelity" in values
    with pytest.raises(RecipeError, match="utility needs two classes or more"):
        evaluate(run, str(tmp_path / "one.npz"), metrics=("utility",))


def test_images_of_another_size_are_brought_to_the_tests(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("private", "test"):
        images = rng.integers(0, 256, (40, 6, 6, 3)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.array(["no", "yes"])[np.arange(40) % 2])
    private = pe.ImageNpz(tmp_path / "private.npz", size=6, classes=["no", "yes"])
    run = pe.evolve(private, Shades(), embedding=Mean(), out=tmp_path / "run", **SETTINGS)
    values = evaluate(run, str(tmp_path / "test.npz"))
    assert "For classifiers, images of 'synthetic' are brought from 4×4×1 to the test set's 6×6×3." in values["notes"]


def test_semantics_compare_labels_or_a_condition(run: pe.Run, test: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("no 1 0\nyes 0 1\nt0 1 0\nt1 1 0\nt2 1 0\n")
    values = evaluate(run, test, metrics=("semantics",), vectors=tmp_path / "v.txt")
    assert values["semantics"]["sds"] == pytest.approx(0.5)
    named = evaluate(run, test, metrics=("semantics",), vectors=tmp_path / "v.txt", condition="name")
    assert named["semantics"]["synthetic"].keys() <= {"t0", "t1", "t2"}
    assert named["semantics"]["sds"] == pytest.approx(0.5)
    with pytest.raises(RecipeError, match="has no condition 'prompt'; it has 'name', 'tint'"):
        evaluate(run, test, metrics=("semantics",), vectors=tmp_path / "v.txt", condition="prompt")


def test_a_reference_set_takes_the_tests_place_in_fidelity_only(run: pe.Run, test: str, tmp_path: Path) -> None:
    bright = images_of(np.full(30, 250))
    np.savez(tmp_path / "public.npz", images=bright.pixels)
    values = evaluate(run, test, reference=str(tmp_path / "public.npz"))
    assert values["reference"]["images"] == 30
    assert values["test"]["images"] == 40
    assert values["fidelity"]["Mean"]["frechet"] > evaluate(run, test)["fidelity"]["Mean"]["frechet"]


class Stopping(Mean):
    """Sets an event at the n-th batch, as Ctrl-C does."""

    def __init__(self, stop: Event, after: int) -> None:
        self._stop, self._left = stop, after

    def embed(self, samples: pe.Images) -> np.ndarray:
        self._left -= 1
        if self._left == 0:
            self._stop.set()
        return super().embed(samples)


@pytest.mark.parametrize("after", [1, 3])
def test_it_stops_where_it_is_when_told_and_writes_nothing(run: pe.Run, test: str, after: int) -> None:
    stop = Event()
    request = Request(test, **QUICK | {"api": Shades(), "embedding": Stopping(stop, after)})
    with pytest.raises(Interrupted, match="no metrics are written"):
        evaluate_run(run, request, pe.progress.Progress(), stop)
    assert not (run.folder / METRICS_FILE).exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metrics": ("fidelty",)}, "Unknown metric 'fidelty': did you mean 'fidelity'"),
        ({"metrics": ("semantics",)}, "needs word vectors"),
        ({"classifiers": ("mpl",)}, "Unknown classifier 'mpl'"),
        ({"seeds": 0}, "one seed or more"),
    ],
)
def test_a_wrong_request_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Request("test.npz", **changes)


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

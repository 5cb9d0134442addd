"""A run is evaluated whole: beside its controls, finished or not, with nothing un-noised outside confidential/."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import pe
from pe.cli.evaluate import _page
from pe.errors import Interrupted, LimitReached, RecipeError, RunError
from pe.evaluation import evaluate as evaluating
from pe.evaluation.evaluate import EARLIER, METRICS_FILE, evaluate_run, pairs_file
from pe.evaluation.sets import Request
from pe.store.run import Run, purge
from tests.generators import Mean, Shades, images_of

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
    given = {**QUICK, "classifiers": ("logistic_regression",), "api": Shades()} | changes
    return evaluate_run(run, Request(test, **given), pe.progress.Progress(), Event())


def shareable(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if "confidential" not in path.relative_to(folder).parts}


def test_a_run_is_measured_beside_its_controls(run: pe.Run, test: str) -> None:
    values = evaluate(run, test, classifiers=None)
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
    values = evaluate(run, test, classifiers=None)
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
    values = evaluate(run, test, metrics=("utility",), classifiers=None)
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
    assert evaluate(run, test, classifiers=None) == evaluate(run, test, classifiers=None)


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


class Standard(Mean):
    """Says that it is Inception with the standard weights."""

    info = pe.PluginInfo(standard_inception=True)


def test_distances_are_called_fid_and_kid_under_standard_inception_alone(run: pe.Run, test: str) -> None:
    plain = evaluate(run, test, metrics=("fidelity",))
    named = evaluate(run, test, metrics=("fidelity",), embedding=Standard())
    assert named["fidelity"]["Standard"]["standard_inception"] is True
    assert "FID" in _page(named, Path("m"))
    assert "KID" in _page(named, Path("m"))
    assert "FID" not in _page(plain, Path("m"))
    assert any("50,000 of published figures" in note for note in named["notes"])


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
        ({"metrics": ("semantics",)}, "Unknown metric 'semantics'"),
        ({"classifiers": ("mpl",)}, "Unknown classifier 'mpl'"),
        ({"seeds": 0}, "one seed or more"),
    ],
)
def test_a_wrong_request_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Request("test.npz", **changes)

"""The commands from Python: what they answer, refuse and tell."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from pe.cli.plan import plan as plan_command
from pe.errors import ContractError, LimitReached, PluginError, RecipeError
from pe.progress import Task
from tests.cli.typed import pe as command
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 50.0, "delta": 1e-5, "population": 20, "iterations": 2, "lookahead": 2}


@pytest.fixture
def private(tmp_path: Path) -> pe.ImageNpz:
    rng = np.random.default_rng(0)
    for name in ("private", "test"):
        images = np.concatenate([rng.integers(0, 60, (30, 4, 4, 1)), rng.integers(190, 255, (30, 4, 4, 1))])
        labels = np.array(["dark"] * 30 + ["light"] * 30)
        np.savez(tmp_path / f"{name}.npz", images=images.astype(np.uint8), labels=labels)
    return pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["dark", "light"], declared_size=60)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda _: pe.evaluate("run", "test.npz", metrics="fidelity"), "metrics is 'fidelity', a text: give a list"),
        (lambda _: pe.evaluate("run", "test.npz", classifiers="mlp"), "classifiers is 'mlp'"),
        (lambda _: pe.evaluate("run", "test.npz", embeddings="pixels"), "embeddings is 'pixels'"),
        (
            lambda private: pe.evolve(private, Shades(), loggers="tensorboard=x", **SETTINGS),
            "loggers is 'tensorboard=x'",
        ),
        (lambda private: pe.probe(private, Shades(), degrees="0.5", **SETTINGS), "degrees is '0.5'"),
        (lambda _: pe.Texts.of("a review"), "Texts.of is 'a review'"),
        (lambda _: pe.PluginInfo(hosts="api.example"), "PluginInfo.hosts is 'api.example'"),
        (lambda _: pe.PluginInfo(machine_settings="device"), "PluginInfo.machine_settings is 'device'"),
    ],
)
def test_a_text_where_a_list_is_wanted_is_not_read_letter_by_letter(
    private: pe.ImageNpz, call: Callable[[pe.ImageNpz], object], sentence: str
) -> None:
    with pytest.raises(pe.PEError, match=re.escape(sentence)):
        call(private)


class NoVariation:
    capabilities = pe.Capabilities()

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("api", "embedding", "sentence"),
    [
        (
            "scans",
            Mean(),
            r"api is 'scans', a text, which lacks capabilities, random_api, variation_api: give pe\.api\(",
        ),
        (
            object(),
            Mean(),
            r"api is an object of the class object, which lacks capabilities, random_api, variation_api",
        ),
        (NoVariation(), Mean(), r"api is an object of the class NoVariation, which lacks variation_api: give pe\.api"),
        (Shades, Mean(), r"api is the class Shades: pass an object of it, Shades\(…\)"),
        (
            Shades(),
            lambda x: x,
            r"embedding is an object of the class function, which lacks batch_size, embed: give a na",
        ),
        (Shades(), Mean, r"embedding is the class Mean: pass an object of it"),
    ],
)
def test_an_object_that_lacks_a_method_is_refused_before_anything_is_written(
    private: pe.ImageNpz, tmp_path: Path, api: object, embedding: object, sentence: str
) -> None:
    before = sorted(tmp_path.iterdir())
    for does, more in ((pe.evolve, {"out": tmp_path / "run"}), (pe.plan, {})):
        with pytest.raises(PluginError, match=rf"pe\.{does.__name__}: {sentence}"):
            does(private, api, embedding=embedding, **more, **SETTINGS)
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_that_is_mistyped_is_refused_where_it_is_typed_with_the_nearest(private: pe.ImageNpz) -> None:
    with pytest.raises(PluginError, match=r"Unknown adapter 'glyph'; did you mean 'glyphs'\?"):
        pe.api("glyph")
    with pytest.raises(PluginError, match=r"Unknown embedding 'pixel'; did you mean 'pixels'\?"):
        pe.embedding("pixel")
    told: list[str] = []

    class Told(pe.Progress):
        @contextmanager
        def task(self, description: str, total: int | None) -> Iterator[Task]:
            told.append(description)
            yield Task()

    with pytest.raises(PluginError, match=r"Unknown embedding 'pixel'; did you mean 'pixels'\?"):
        pe.evolve(private, Shades(), embedding="pixel", progress=Told(), **SETTINGS)
    assert told == []  # not after the noise was planned


def test_a_plan_is_that_of_the_command_for_a_recipe_and_for_the_same_arguments(
    private: pe.ImageNpz, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = pe.api("public_images", path=str(tmp_path / "test.npz"), channels=1)
    run = pe.evolve(private, pool, out=tmp_path / "run", progress=pe.Progress(), **SETTINGS)
    recipe = run.confidential / "recipe.yaml"
    plan_command.main([str(recipe), "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert told["api_calls"]["images"] == 140
    assert pe.plan(recipe).to_dict() == told
    plan_command.main([str(recipe)], standalone_mode=False)
    assert f"{pe.plan(recipe)}\n" == capsys.readouterr().out
    assert pe.plan(private, pool, **SETTINGS).to_dict() == told
    own = pe.plan(private, Shades(max_chunk=7), embedding=Mean(), **SETTINGS)
    assert own.random is not None
    assert own.random.most == 3  # 20 samples, 7 at a time
    with pytest.raises(RecipeError, match=r"pe\.plan: give the file of a recipe alone"):
        pe.plan(recipe, pool)


def test_an_object_s_ladder_is_measured_from_python(private: pe.ImageNpz) -> None:
    found = pe.probe(private, Shades(), embedding=Mean(), label="light", degrees=(0.05, 1), **SETTINGS)
    assert (found.label, found.verdict.degree, [rung.degree for rung in found.rungs]) == ("light", "heeded", [0.05, 1])
    assert "Does the distance grow with the degree? between samples yes, in the embedding yes" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["parents"] == len(found.parents)
    with pytest.raises(RecipeError, match="A ladder has at least one degree"):
        pe.probe(private, Shades(), embedding=Mean(), degrees=(), **SETTINGS)


@pytest.mark.parametrize("module", ["__main__", "moved.elsewhere"])
def test_an_object_s_class_is_known_again_wherever_it_is_defined(
    private: pe.ImageNpz, tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"out": tmp_path / "run", "progress": pe.Progress()} | SETTINGS
    with pytest.raises(LimitReached):
        pe.evolve(private, Shades(), embedding=Mean(), **settings, max_images=30)
    for one in (Shades, Mean):
        monkeypatch.setattr(one, "__module__", module)
    assert len(pe.evolve(private, Shades(), embedding=Mean(), resume=True, max_images=1000, **settings).synthetic) == 20
    assert pe.extend(tmp_path / "run", 2, changes={"limits.max_images": 1000}, api=Shades()).is_file()
    with pytest.raises(PluginError, match=r"made with .*Shades, not with .*Dull"):
        pe.extend(tmp_path / "run", 2, changes={"limits.max_images": 1000}, api=type("Dull", (Shades,), {})())


def test_a_run_is_resumed_extended_evaluated_and_reported_from_python(private: pe.ImageNpz, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    silent, api = pe.Progress(), Shades()
    settings = {"embedding": Mean(), "out": tmp_path / "run", "progress": silent}
    with pytest.raises(LimitReached):
        pe.evolve(private, api, **settings, **SETTINGS, max_images=30)
    assert (
        "stopped; from Python it goes on, with the object of your own" in command("status", "run", cwd=tmp_path).stdout
    )
    given = {"api": api, "progress": silent}
    more = {"limits.max_images": 1000}
    run = pe.resume(tmp_path / "run", embedding=Mean(), changes=more, **given)
    assert len(run.synthetic) == 20
    assert pe.extend(run, 6, degree=0.5, changes=more, **given) == run.folder / "extension-001.npz"
    report = pe.write_report(run)
    assert report == run.folder / "report.html"
    assert "6 more" in report.read_text(encoding="utf-8")
    test = tmp_path / "test.npz"
    values = pe.evaluate(run, test, metrics=("fidelity",), embeddings=("pixels",), progress=silent)
    assert list(values["fidelity"]) == ["pixels"]
    (control,) = (note for note in values["notes"] if "random-selection" in note)
    assert control.endswith(
        "an object of your own, tests.generators.Shades, so pass it from Python: pe.evaluate(…, api=…)."
    )
    assert json.loads((run.confidential / "metrics.json").read_text()) == values
    with pytest.raises(RecipeError, match=r"pe\.evaluate: unknown setting 'metric'; did you mean 'metrics'\?"):
        pe.evaluate(run, test, metric=("fidelity",))


def test_a_run_from_python_tells_on_stderr_what_the_command_tells_and_nothing_if_it_is_not_to(
    private: pe.ImageNpz, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = pe.api("public_images", path=str(tmp_path / "test.npz"), channels=1)
    run = pe.evolve(private, pool, out=tmp_path / "run", **SETTINGS)
    told = capfd.readouterr()
    assert told.out == ""
    again = command("run", run.confidential / "recipe.yaml", "--out", "again", cwd=tmp_path)
    assert told.err == again.stderr
    assert "checking private records: done" in told.err
    pe.evolve(private, pool, out=tmp_path / "silent", progress=pe.Progress(), **SETTINGS)
    assert capfd.readouterr() == ("", "")


def test_no_name_of_the_package_is_hidden_by_a_module_of_its_own() -> None:
    for name in pe.__all__:
        assert getattr(pe, name) is not None
        assert name == "__version__" or importlib.util.find_spec(f"pe.{name}") is None, name


class OfBooks(Shades):
    """Draws a condition of each new sample from a book that lacks a label."""

    def draw_conditions(self, labels: tuple[str, ...], seeds: np.ndarray) -> pe.Conditions:
        return pe.Conditions({"prompt": np.array([{"dark": "a cave"}[label] for label in labels])})


def test_a_generator_that_fails_to_draw_a_condition_for_a_label_is_refused_before_there_is_a_run(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    sentence = "he generator OfBooks fails to draw conditions for the labels dark, light: KeyError: 'light'."
    api = OfBooks()
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        pe.evolve(private, api, embedding=Mean(), out=tmp_path / "run", progress=pe.Progress(), **SETTINGS)
    assert not (tmp_path / "run").exists()
    assert api.random_requests == []
    warned = " ".join(pe.plan(private, api, embedding=Mean(), **SETTINGS).warnings)
    assert f"A run would not start: t{sentence}" in warned


class AsTheyAre:
    """An embedding that takes pixels as they come, in whatever size."""

    batch_size = 16

    def embed(self, samples: pe.Images) -> np.ndarray:
        return samples.pixels.reshape(len(samples.pixels), -1).astype(np.float32)


def test_images_of_another_size_than_the_records_are_warned_of_or_refused_before_a_run(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    glyphs = pe.api("glyphs", size=8)
    sizes = "The generator makes images of 8×8×1 (height×width×channels), and the private images are 4×4×1"
    assert sizes in " ".join(pe.plan(private, glyphs, **SETTINGS).warnings)
    assert "4×4" not in " ".join(pe.plan(private, Shades(), embedding=Mean(), **SETTINGS).warnings)
    warned: list[str] = []

    class Told(pe.Progress):
        def warn(self, message: str) -> None:
            warned.append(message)

    pe.evolve(private, glyphs, out=tmp_path / "run", progress=Told(), **SETTINGS)
    assert sizes in " ".join(warned)
    with pytest.raises(
        ContractError,
        match=r"AsTheyAre\.embed gives 16 numbers for a private sample of 4×4×1 and 64 for a generated one",
    ):
        pe.evolve(private, glyphs, embedding=AsTheyAre(), out=tmp_path / "refused", progress=Told(), **SETTINGS)
    assert not (tmp_path / "refused").exists()


class Stopping(Shades):
    """Sends a signal to its own process when it is first asked for variations."""

    def __init__(self, number: signal.Signals | None) -> None:
        super().__init__(max_chunk=5)
        self.number = number

    def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
        if self.number is not None:
            os.kill(os.getpid(), self.number)
            self.number = None
            time.sleep(0.2)  # for the main thread to take it
        return super().variation_api(request)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as Python has it: a shell starts processes in the background that ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_a_run_from_python_resumably_and_says_in_its_message_what_goes_on(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    given = {"embedding": Mean(), "progress": pe.Progress()}
    with pytest.raises(KeyboardInterrupt) as stopped:
        pe.evolve(private, Stopping(signal.SIGINT), out=tmp_path / "run", **given, **SETTINGS)
    assert str(stopped.value).startswith("Stopped as asked, with everything that was answered committed.")
    assert str(stopped.value).endswith(f"; `pe.resume('{tmp_path / 'run'}')` goes on.")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert len(pe.resume(tmp_path / "run", api=Stopping(None), **given).synthetic) == 20


def test_sigterm_ends_a_program_with_the_sentence_on_stderr_and_leaves_handlers_of_its_own_alone(
    private: pe.ImageNpz, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"embedding": Mean(), "progress": pe.Progress()}
    with pytest.raises(SystemExit) as stopped:
        pe.evolve(private, Stopping(signal.SIGTERM), out=tmp_path / "run", **given, **SETTINGS)
    assert stopped.value.code == 143
    assert f"`pe.resume('{tmp_path / 'run'}')` goes on." in capfd.readouterr().err
    taken: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: taken.append(number))
    try:
        pe.evolve(private, Stopping(signal.SIGTERM), out=tmp_path / "other", **given, **SETTINGS)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert taken == [signal.SIGTERM]


def test_a_limit_names_the_call_that_goes_on_with_it_raised(private: pe.ImageNpz, tmp_path: Path) -> None:
    given = {"api": Shades(), "embedding": Mean(), "progress": pe.Progress()}
    with pytest.raises(LimitReached, match=r"`pe\.resume\('.*run', changes=\{'limits\.max_images': …\}\)` goes on\."):
        pe.evolve(private, out=tmp_path / "run", **given, **SETTINGS, max_images=30)


def test_a_resumed_run_keeps_its_embedding_where_none_is_named(private: pe.ImageNpz, tmp_path: Path) -> None:
    given: dict[str, Any] = {**SETTINGS, "out": tmp_path / "run", "resume": True, "progress": pe.Progress()}
    first = pe.evolve(private, Shades(), embedding=pe.embedding("pixels", blur=0.5), **given)
    again = pe.evolve(private, Shades(), **given)
    assert again.synthetic.samples.array.tolist() == first.synthetic.samples.array.tolist()
    with pytest.raises(pe.errors.RunError, match=r"another recipe: embedding\.blur"):
        pe.evolve(private, Shades(), embedding="pixels", **given)

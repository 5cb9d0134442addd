"""The commands from Python: what they answer, refuse and tell."""

import json
import os
import re
import signal
import time

import pytest

import pe
from pe.cli.plan import plan as plan_command
from pe.engine.python import read_arguments
from pe.errors import LimitReached, PluginError, RecipeError
from tests.cli.typed import pe as command
from tests.engine.small import SETTINGS, evolve, records_in
from tests.generators import Mean, Shades


def pool_in(folder):
    return pe.api("public_images", path=str(records_in(folder, "pool", seed=1).path), channels=1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda _: pe.evaluate("run", "test.npz", metrics="fidelity"),
            "metrics is 'fidelity', a text: give a list",
        ),
        (
            lambda private: evolve(private, None, loggers="tensorboard=x"),
            "loggers is 'tensorboard=x'",
        ),
        (lambda _: pe.Texts.of("a review"), "Texts.of is 'a review'"),
        (lambda _: pe.PluginInfo(hosts="api.example"), "PluginInfo.hosts is 'api.example'"),
    ],
)
def test_a_text_where_a_list_is_wanted_is_not_read_letter_by_letter(private, call, sentence):
    with pytest.raises(pe.PEError, match=re.escape(sentence)):
        call(private)


def test_a_plan_is_that_of_the_command_for_a_recipe_and_for_the_same_arguments(
    private, tmp_path, capsys
):
    pool, file = pool_in(tmp_path), tmp_path / "recipe.yaml"
    file.write_text(read_arguments("the test", private, pool, None, {}, SETTINGS).dump())
    plan_command.main([str(file), "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert told["api_calls"]["images"] == 60
    assert pe.plan(file).to_dict() == pe.plan(private, pool, **SETTINGS).to_dict() == told
    plan_command.main([str(file)], standalone_mode=False)
    assert f"{pe.plan(file)}\nnext: pe run {file}\n" == capsys.readouterr().out
    own = pe.plan(private, Shades(max_chunk=7), embedding=Mean(), **SETTINGS)
    assert own.random == 3  # 20 samples, 7 at a time
    with pytest.raises(RecipeError, match=r"pe\.plan: give the file of a recipe alone"):
        pe.plan(file, pool)


def test_an_object_s_ladder_is_measured_from_python(private):
    found = pe.probe(
        private, Shades(), embedding=Mean(), label="light", degrees=(0.05, 1), **SETTINGS
    )
    assert (found.label, found.verdict.degree, [rung.degree for rung in found.rungs]) == (
        "light",
        "heeded",
        [0.05, 1],
    )
    assert (
        "Does the distance grow with the degree? between samples yes, in the embedding yes"
        in str(found)
    )
    assert json.loads(json.dumps(found.to_dict()))["parents"] == len(found.parents)
    once = pe.probe(
        private, Shades(), embedding=Mean(), degrees=(), **SETTINGS
    )  # at the recipe's first degree
    assert (len(once.rungs), once.verdict) == (1, None)


def test_a_run_is_resumed_extended_evaluated_and_reported_from_python(
    private, tmp_path, monkeypatch
):
    with pytest.raises(
        LimitReached,
        match=r"`pe\.resume\('.*run', changes=\{'limits\.max_images': …\}\)` goes on\.",
    ):
        evolve(private, tmp_path / "run", max_images=30)
    status = command("view", "run", "--text", cwd=tmp_path).stdout
    assert "stopped; from Python it goes on, with the object of your own" in status
    for one in (Shades, Mean):  # its class is known again wherever it is defined
        monkeypatch.setattr(one, "__module__", "moved.elsewhere")
    given = {"api": Shades(), "progress": pe.Progress(), "changes": {"limits.max_images": 1000}}
    run = pe.resume(tmp_path / "run", embedding=Mean(), **given)
    with pytest.raises(PluginError, match=r"made with .*Shades, not with .*Dull"):
        pe.extend(run, 6, **given | {"api": type("Dull", (Shades,), {})()})
    assert pe.extend(run, 6, degree=0.5, **given) == run.folder / "extension-001.npz"
    report = pe.write_report(run)
    assert report == run.folder / "report.html"
    assert "6 more" in report.read_text(encoding="utf-8")
    test = records_in(tmp_path, "test", seed=1).path
    values = pe.evaluate(
        run, test, metrics=("fidelity",), embeddings=("pixels",), progress=pe.Progress()
    )
    assert list(values["fidelity"]) == ["pixels"]
    (control,) = (note for note in values["notes"] if "one-vote" in note)
    assert control.endswith("Shades, so pass it from Python: pe.evaluate(…, api=…).")
    assert json.loads((run.confidential / "metrics.json").read_text()) == values
    with pytest.raises(
        RecipeError, match=r"pe\.evaluate: unknown setting 'metric'; did you mean 'metrics'\?"
    ):
        pe.evaluate(run, test, metric=("fidelity",))


class Stopping(Shades):
    """Sends a signal to its own process when it is first asked for variations."""

    def __init__(self, number=None):
        super().__init__(max_chunk=5)
        self.number = number

    def variation_api(self, request):
        if self.number is not None:
            os.kill(os.getpid(), self.number)
            self.number = None
            time.sleep(0.2)  # for the main thread to take it
        return super().variation_api(request)


def test_ctrl_c_stops_a_run_from_python_resumably_and_says_in_its_message_what_goes_on(
    private, tmp_path
):
    shells = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background process ignores it
    try:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(KeyboardInterrupt) as stopped:
            evolve(private, tmp_path / "run", Stopping(signal.SIGINT))
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    finally:
        signal.signal(signal.SIGINT, shells)
    assert str(stopped.value).startswith(
        "Stopped as asked, with everything that was answered committed."
    )
    assert str(stopped.value).endswith(f"; `pe.resume('{tmp_path / 'run'}')` goes on.")
    assert (
        len(
            pe.resume(
                tmp_path / "run", api=Stopping(), embedding=Mean(), progress=pe.Progress()
            ).synthetic
        )
        == 20
    )

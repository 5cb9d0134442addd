"""`pe view --text` while another process writes, after it was killed, when it is done, and after a
purge.
"""

import json
import shutil
import time

import pytest
from click.testing import CliRunner

from pe.cli.view import view
from pe.engine.execution import RunContext, resume_run, run_recipe
from pe.engine.status import PhaseProgress, status_of
from pe.errors import RunError
from pe.planning.parts import object_kind, price_of
from pe.planning.releases import lay_out
from pe.plugins.protocols import Answer, Usage
from pe.recipe.schema import Recipe
from pe.store.places import WAITING
from pe.store.run import Run, purge
from tests.durability import driver
from tests.engine.small import Told, but
from tests.generators import Mean, Shades

GATED = 7  # the variation request that waits: 6 requests of 5 are answered before


def gated(gate=None):
    """Waits in its 7th variation request until the file `gate` is there, if one is named; requests
    bill 10 tokens.
    """
    api = Shades(max_chunk=5)

    def waits():
        return len(api.variation_requests) >= GATED and gate is not None and not gate.exists()

    def variation_api(request):
        answer = Shades.variation_api(api, request)
        while waits():
            time.sleep(0.01)
        return Answer(answer.samples, answer.conditions, {}, Usage(1, len(request), 10))

    return but(
        api,
        variation_api=variation_api,
        describe_wait=lambda: "waits for its gate" if waits() else "",
    )


def make_recipe(folder):
    if not (folder / "private.npz").exists():
        driver.make_private(folder / "private.npz")
    content = driver.recipe(folder / "private.npz").model_dump(mode="json", exclude_none=True)
    content["api"] = {
        "kind": object_kind(Shades()),
        "price": {"image": 0.5, "million_tokens": 1000},
    }
    return Recipe.parse(content | {"limits": {"max_cost": 1000}}, "the test")


def carry_out(folder, gate=None):
    context = RunContext(api=gated(gate), embedding=Mean(), progress=Told())
    if (folder / "run").exists():
        return resume_run(folder / "run", context)
    return run_recipe(make_recipe(folder), folder / "run", context)


def stand(folder):
    recipe = make_recipe(folder)
    return status_of(
        Run.open(folder / "run"), lay_out(recipe), price_of(recipe), recipe.privacy.delta
    )


def page(folder, *options):
    return (
        CliRunner()
        .invoke(view, [str(folder), *(options or ["--text"])], catch_exceptions=False)
        .output
    )


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("once")
    carry_out(folder)
    return folder


@pytest.fixture
def finished(once, tmp_path):
    """A finished run that may be changed."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return Run.open(tmp_path / "run")


def wait_for_the_gate(folder):
    """The status once the run waits in its 7th variation request, with 30 of 40 lookahead samples
    committed.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "run" / "recipe.yaml").exists():
            found = stand(folder)
            if (
                found.journal is not None
                and found.journal.totals.usage.calls == 4 + GATED - 1
                and found.waits
            ):
                return found
        time.sleep(0.02)
    raise AssertionError("the run did not come to its gate")


def test_a_running_a_killed_and_a_resumed_run_tell_how_far_they_are(tmp_path):
    process = driver.forked(carry_out, tmp_path, tmp_path / "gate")
    try:
        found = wait_for_the_gate(tmp_path)
        told, values = page(tmp_path / "run"), json.loads(page(tmp_path / "run", "--json"))
    finally:
        process.kill()
        process.join()
    journal, totals = found.journal, found.journal.totals
    assert (found.state, found.pid, found.waits) == ("running", process.pid, "waits for its gate")
    assert journal.phase == PhaseProgress("lookahead/1", 1, 30, 40)
    assert (found.iteration, found.iterations) == (1, driver.ITERATIONS)
    assert (totals.usage.calls, totals.usage.images, totals.usage.tokens, totals.refusals) == (
        10,
        50,
        60,
        0,
    )
    assert found.cost == pytest.approx(50 * 0.5 + 60 * 0.001)
    assert journal.epsilon_charged == 0 < found.epsilon_planned
    assert [event for _, event in journal.events] == ["started"]
    assert f"running (process {process.pid})" in told
    assert "lookahead/1: 30 of at most 40 samples (75%)" in told
    assert "Waits       waits for its gate" in told
    assert (values["state"], values["pid"], values["images"]) == ("running", process.pid, 50)
    assert values["phase"] == {"name": "lookahead/1", "iteration": 1, "done": 30, "total": 40}
    killed = stand(tmp_path)
    assert (killed.state, killed.pid, killed.journal, killed.waits) == (
        "stopped",
        None,
        journal,
        "",
    )
    carry_out(tmp_path)
    found = stand(tmp_path)
    assert (found.state, found.pid, found.iteration) == ("finished", None, driver.ITERATIONS)
    assert not (tmp_path / "run" / WAITING).exists()
    assert found.journal.phase is None
    assert [event for _, event in found.journal.events] == ["started", "resumed", "finished"]
    assert found.journal.epsilon_charged == found.epsilon_planned


def test_after_a_purge_one_sentence_says_so_and_an_evaluation_is_not_taken_for_a_stopped_run(
    finished, tmp_path
):
    purge(finished)
    found = stand(tmp_path)
    assert (found.state, found.journal, found.cost) == ("purged", None, None)
    assert found.to_dict()["images"] is None
    sentence = "finished; its journal is gone (purged, or not copied)"
    assert page(finished.folder).startswith(f"{finished.folder}: {sentence}")
    assert page(finished.folder).count("\n") == 1
    finished.confidential.mkdir()
    (finished.confidential / "metrics.json").write_text("{}")
    assert page(finished.folder).startswith(f"{finished.folder}: {sentence}")
    purge(finished)
    assert not finished.confidential.exists()


def test_what_is_no_run_or_has_a_damaged_journal_is_one_sentence(finished, tmp_path):
    journal = finished.confidential / "journal.sqlite"
    journal.write_bytes(b"no journal" * 500)
    with pytest.raises(RunError, match=r"The journal .* cannot be read"):
        stand(tmp_path)
    journal.unlink()
    assert stand(tmp_path).state == "purged"  # its certificate is there, so it does not go on
    assert not journal.exists()
    shutil.rmtree(finished.folder)
    with pytest.raises(RunError, match="is not a run"):
        stand(tmp_path)

"""`pe status` while another process writes, after it was killed, when it is done, and after a purge."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from pe.data.images import Images
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.engine.status import Phase, Status, status_of
from pe.errors import LimitReached, RunError
from pe.planning.build import object_kind, price_of
from pe.planning.layout import lay_out, plan_of
from pe.plugins.price import Price
from pe.plugins.protocols import Answer, Usage, VariationRequest
from pe.privacy.accounting import epsilon
from pe.progress import Progress, Task
from pe.recipe.schema import Recipe
from pe.store.places import WAITING
from pe.store.run import Run, purge
from tests.durability import driver
from tests.generators import Mean, Shades

PE = str(Path(sys.executable).with_name("pe"))
GATED = 7  # the variation request that waits: 6 requests of 5 are answered before


class Gated(Shades):
    """Waits in its 7th variation request until the file `gate` is there; every request bills 10 tokens."""

    def __init__(self, gate: Path) -> None:
        super().__init__(max_chunk=5)
        self._gate = gate

    def variation_api(self, request: VariationRequest) -> Answer:
        answer = super().variation_api(request)
        while len(self.variation_requests) >= GATED and not self._gate.exists():
            time.sleep(0.01)
        return Answer(answer.samples, answer.conditions, {}, Usage(1, len(request), 10))

    def describe_wait(self) -> str:
        return "" if len(self.variation_requests) < GATED or self._gate.exists() else "waits for its gate"


def make_recipe(folder: Path) -> Recipe:
    if not (folder / "private.npz").exists():
        driver.make_private(folder / "private.npz")
    content = driver.recipe(folder / "private.npz").model_dump(mode="json", exclude_none=True)
    content["api"] = {"kind": object_kind(Gated(folder)), "price": {"image": 0.5, "million_tokens": 1000}}
    return Recipe.parse(content | {"limits": {"max_cost": 1000}}, "the test")


def carry_out(folder: Path) -> None:
    surroundings = Surroundings(api=Gated(folder / "gate"), embedding=Mean())
    if (folder / "run").exists():
        resume_run(folder / "run", surroundings)
    else:
        run_recipe(make_recipe(folder), folder / "run", surroundings)


def start(folder: Path) -> BaseProcess:
    return driver.forked(carry_out, folder)


def stand(folder: Path) -> Status:
    recipe = make_recipe(folder)
    plan = lay_out(recipe)
    return status_of(Run.open(folder / "run"), plan, price_of(recipe), recipe.privacy.delta)


def wait_for_the_gate(folder: Path) -> Status:
    """The status once the run waits in its 7th variation request, with 30 of 40 lookahead samples committed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "run" / "recipe.yaml").exists():
            found = stand(folder)
            if found.journal is not None and found.journal.totals.usage.calls == 4 + GATED - 1 and found.waits:
                return found
        time.sleep(0.02)
    raise AssertionError("the run did not come to its gate")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[BaseProcess, Status]]:
    process = start(tmp_path)
    try:
        yield process, wait_for_the_gate(tmp_path)
    finally:
        process.kill()
        process.join()


def test_a_running_run_tells_how_far_it_is(waiting: tuple[BaseProcess, Status], tmp_path: Path) -> None:
    process, found = waiting
    assert (found.state, found.pid, found.waits) == ("running", process.pid, "waits for its gate")
    assert found.journal is not None
    assert found.journal.phase == Phase("lookahead/1", 1, 30, 40)
    assert (found.iteration, found.iterations) == (1, driver.ITERATIONS)
    totals = found.journal.totals
    assert (totals.usage.calls, totals.usage.images, totals.usage.tokens, totals.refused) == (10, 50, 60, 0)
    assert found.cost == pytest.approx(50 * 0.5 + 60 * 0.001)
    assert found.journal.epsilon_charged == 0 < found.epsilon_planned
    assert [event for _, event in found.journal.events] == ["started"]


def test_another_process_reads_it_and_the_run_goes_on(waiting: tuple[BaseProcess, Status], tmp_path: Path) -> None:
    process, _ = waiting
    command = [PE, "status", tmp_path / "run"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f"running (process {process.pid})" in page
    assert "lookahead/1: 30 of 40 samples (75%)" in page
    assert "Waits       waits for its gate" in page
    answer = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=True).stdout
    values = json.loads(answer)
    assert (values["state"], values["pid"], values["images"]) == ("running", process.pid, 50)
    assert values["phase"] == {"name": "lookahead/1", "iteration": 1, "done": 30, "total": 40}
    (tmp_path / "gate").touch()
    process.join(60)
    assert process.exitcode == 0
    assert stand(tmp_path).state == "finished"


def test_a_killed_run_is_stopped_and_a_resumed_one_finishes(
    waiting: tuple[BaseProcess, Status], tmp_path: Path
) -> None:
    process, before = waiting
    process.kill()
    process.join(60)
    found = stand(tmp_path)
    assert (found.state, found.pid, found.journal, found.waits) == ("stopped", None, before.journal, "")
    (tmp_path / "gate").touch()
    again = start(tmp_path)
    again.join(60)
    found = stand(tmp_path)
    assert (found.state, found.pid, found.iteration) == ("finished", None, driver.ITERATIONS)
    assert not (tmp_path / "run" / WAITING).exists()
    assert found.journal is not None
    assert found.journal.phase is None
    assert [event for _, event in found.journal.events] == ["started", "resumed", "finished"]
    assert found.journal.epsilon_charged == found.epsilon_planned


def test_asking_all_the_time_does_not_disturb_the_run(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    recipe = make_recipe(tmp_path)
    plan = lay_out(recipe)
    process, seen = start(tmp_path), []
    while process.is_alive():
        if (tmp_path / "run" / "recipe.yaml").exists():
            seen.append(status_of(Run.open(tmp_path / "run"), plan, Price(), 1e-5))
    assert process.exitcode == 0
    images = [found.journal.totals.usage.images for found in seen if found.journal is not None]
    assert len(images) == len(seen) > 10
    assert images == sorted(images)
    charged = [found.journal.epsilon_charged for found in seen if found.journal is not None]
    assert charged == sorted(charged)
    assert stand(tmp_path).state == "finished"


def test_what_was_charged_is_told_while_more_is_planned(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    recipe = make_recipe(tmp_path)
    recipe = recipe.model_copy(update={"limits": recipe.limits.model_copy(update={"max_images": 90})})
    with pytest.raises(LimitReached):
        run_recipe(recipe, tmp_path / "run", Surroundings(api=Gated(tmp_path / "gate"), embedding=Mean()))
    found = stand(tmp_path)
    plan = lay_out(recipe)
    assert found.state == "stopped"
    assert found.journal is not None
    assert found.journal.phase == Phase("lookahead/2", 2, 10, 40)
    assert found.journal.epsilon_charged == epsilon(plan.releases[:1], recipe.privacy.delta)
    assert found.epsilon_planned == epsilon(plan.releases, recipe.privacy.delta)


def test_after_a_purge_one_sentence_says_so(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    carry_out(tmp_path)
    purge(Run.open(tmp_path / "run"))
    found = stand(tmp_path)
    assert (found.state, found.journal, found.cost) == ("purged", None, None)
    assert found.to_dict()["images"] is None
    command = [PE, "status", tmp_path / "run"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert page.count("\n") == 1
    assert "journal is gone (purged, or not copied)" in page


def test_an_extension_that_was_stopped_is_told_even_after_a_purge(tmp_path: Path) -> None:
    class Broken(Shades):
        def variation_api(self, request: VariationRequest) -> Answer:
            if len(self.variation_requests) == 2:
                return Answer(Images(request.samples.pixels[:1]))
            return super().variation_api(request)

    (tmp_path / "gate").touch()
    carry_out(tmp_path)
    planned = stand(tmp_path).epsilon_planned
    purge(Run.open(tmp_path / "run"))
    broken = Gated(tmp_path / "gate")
    broken.variation_api = Broken(max_chunk=5).variation_api  # type: ignore[method-assign]
    with pytest.raises(Exception, match="asked for 5 samples and returned 1"):
        extend_run(tmp_path / "run", 20, 0.5, Surroundings(api=broken, embedding=Mean()))
    found = stand(tmp_path)
    assert found.state == "stopped"
    assert found.journal is not None
    assert found.journal.phase == Phase("extension/1", driver.ITERATIONS, 10, 20)
    assert found.journal.epsilon_charged == pytest.approx(planned, rel=1e-6)


def test_what_is_no_run_or_has_a_damaged_journal_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        stand(tmp_path)
    (tmp_path / "gate").touch()
    carry_out(tmp_path)
    journal = tmp_path / "run" / "confidential" / "journal.sqlite"
    journal.write_bytes(b"no journal" * 500)
    with pytest.raises(RunError, match=r"The journal .* cannot be read"):
        stand(tmp_path)
    journal.unlink()
    assert stand(tmp_path).state == "purged"  # its certificate is there, so it does not go on
    assert not journal.exists()


def test_what_an_evaluation_leaves_after_a_purge_is_not_taken_for_a_stopped_run(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    carry_out(tmp_path)
    run = Run.open(tmp_path / "run")
    purge(run)
    copy = Run.open(run.export(tmp_path / "copy"))
    for folder in (run.folder, copy.folder):
        (folder / "confidential").mkdir()
        (folder / "confidential" / "metrics.json").write_text("{}")
        page = subprocess.run([PE, "status", folder], capture_output=True, text=True, timeout=60, check=True).stdout
        assert page.startswith(f"{folder}: finished; its journal is gone (purged, or not copied)")
    assert stand(tmp_path).to_dict()["images"] is None
    purge(run)
    assert not run.confidential.exists()


def test_after_an_extension_of_a_purged_run_what_is_counted_is_said(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    carry_out(tmp_path)
    purge(Run.open(tmp_path / "run"))
    extend_run(tmp_path / "run", 20, 0.5, Surroundings(api=Gated(tmp_path / "gate"), embedding=Mean()))
    found = stand(tmp_path)
    assert (found.state, found.journal and found.journal.totals.usage.images) == ("finished", 20)
    command = [PE, "status", tmp_path / "run"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "finished; its first journal is gone (purged, or not copied), so what follows counts from then on\n" in page


def test_while_a_generator_is_fitted_the_status_says_so(tmp_path: Path) -> None:
    class Stopping(Progress):
        def __init__(self) -> None:
            self.seen: list[Status] = []

        @contextmanager
        def task(self, description: str, total: int | None) -> Iterator[Task]:
            if description == "fitting the generator":
                self.seen.append(
                    status_of(Run.open(tmp_path / "run"), plan, Price(), recipe.privacy.delta),
                )
            yield Task()

    driver.make_private(tmp_path / "private.npz")
    source = {"kind": "npz", "path": tmp_path / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]}
    content = {
        "private": source | {"declared_size": 60},
        "api": {"kind": "dp_merf", "steps": 2, "features": 8},
        "privacy": {"epsilon": 5, "delta": 1e-5},
        "evolution": {"iterations": 0, "population": 4},
    }
    recipe = Recipe.parse(content, "the test")
    plan, told = lay_out(recipe), Stopping()
    run_recipe(recipe, tmp_path / "run", Surroundings(progress=told))
    (found,) = told.seen
    assert found.state == "running"
    assert found.journal is not None
    assert (found.journal.phase, found.journal.epsilon_charged) == (Phase("fit", 0), found.epsilon_planned)
    after = status_of(Run.open(tmp_path / "run"), plan, Price(), recipe.privacy.delta)
    assert after.state == "finished"


def test_a_certificate_that_lacks_a_release_is_told_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    carry_out(tmp_path)
    run = Run.open(tmp_path / "run")
    recipe, certificate = Recipe.load(run.folder / "recipe.yaml"), run.folder / "certificate.json"
    assert len(plan_of(run, recipe).steps) == len(run.guarantee["releases"])
    certificate.write_text(json.dumps(run.guarantee | {"releases": run.guarantee["releases"][:-1]}))
    with pytest.raises(RunError, match=r"certificate\.json is damaged: restore it from a copy"):
        plan_of(run, recipe)

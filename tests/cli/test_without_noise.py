"""`privacy: none`: no noise is added, and everything that shows an ε says that there is no guarantee."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

import pe
from pe.cli.evaluate import evaluate
from pe.cli.plan import plan
from pe.cli.privacy import ledger
from pe.engine.execution import Surroundings, resume_run, stored_recipe
from pe.errors import BudgetExceeded, Interrupted, RecipeError, RunError
from pe.planning.choice import choose_evolution
from pe.planning.layout import lay_out
from pe.privacy.certificate import verify
from pe.privacy.covered import BANNER
from pe.privacy.data_set import DataSetLedger
from pe.privacy.ledger import Budget
from pe.recipe.schema import Recipe
from pe.report.compare import compare
from tests.cli.test_commands import public, recipe, scans
from tests.cli.typed import pe as command
from tests.generators import Mean, Shades

__all__ = ["public", "recipe", "scans"]  # fixtures

NONE = "none: no guarantee"


@pytest.fixture
def without(recipe: Path) -> Path:
    """The recipe of the other tests, without noise."""
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    content["private"]["declared_size"] = 24
    recipe.write_text(yaml.safe_dump(content | {"privacy": "none"}), encoding="utf-8")
    return recipe


@pytest.fixture
def data(tmp_path: Path) -> pe.ImageNpz:
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    return pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"], declared_size=40)


def evolved(data: pe.ImageNpz, out: Path, **privacy: object) -> pe.Run:
    settings = {"population": 8, "iterations": 2, "progress": pe.Progress()} | (privacy or {"noise": "none"})
    return pe.evolve(data, Shades(), embedding=Mean(), out=out, **settings)


def test_every_command_says_that_there_is_no_guarantee(without: Path, scans: Path) -> None:
    folder = without.parent
    for label in scans.iterdir():
        (folder / "test" / label.name).mkdir(parents=True)

    def told(*arguments: object) -> str:
        result = command(*arguments, cwd=folder)
        assert result.returncode == 0, result.stderr
        return result.stdout + result.stderr

    planned = told("plan", without)
    assert f"Guarantee   {NONE}" in planned
    assert "warning: No noise is added to the votes" in planned
    ran = told("run", without, "--out", "out")
    assert f"{NONE}; all runs over these records (1): {NONE}; 5 API calls." in ran
    assert "NO GUARANTEE" in ran
    assert f"Privacy     {NONE}" in told("status", "out")
    checked = told("privacy", "out")
    assert "# Privacy certificate: NO GUARANTEE" in checked
    assert "**Nothing.** NO GUARANTEE. No noise is added to the votes" in checked
    assert "✓ It promises nothing: NO GUARANTEE, and every file is as it was certified." in checked
    assert f"1 run: {NONE}, because one or more added no noise" in told("ledger", "scans")
    assert "warning: No noise is added" in told("export", "out", "--to", "copy")
    assert (folder / "copy" / BANNER).read_text(encoding="utf-8").startswith("No noise is added")
    assert "NO GUARANTEE" in told("privacy", "copy")
    told("report", "out")
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert '<p class="banner" role="alert">No noise is added to the votes' in page
    assert "ε: no guarantee" in page
    for path in scans.rglob("*.png"):
        Image.fromarray(np.asarray(Image.open(path)) // 2).save(folder / "test" / path.parts[-3] / f"{path.stem}.png")
    flags = ["--test", str(folder / "test"), "--quiet", "--metrics", "utility", "--seeds", "1"]
    judged = CliRunner().invoke(evaluate, [str(folder / "out"), *flags], catch_exceptions=False)
    assert judged.stdout.partition("Accuracy")[0].count("NO GUARANTEE") == 1
    everything = [*(folder / "out").glob("*.*"), *(folder / "copy").glob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in everything if path.suffix in (".md", ".json", ".html")]
    assert not [text for text in (planned, ran, checked, *texts) if "1e-06" in text or "Infinity" in text]


def test_json_has_null_where_a_number_would_lie(without: Path) -> None:
    folder = without.parent
    planned = json.loads(command("plan", without, "--json", cwd=folder).stdout)
    ran = json.loads(command("run", without, "--out", "out", "--json", cwd=folder).stdout)
    certified = json.loads(command("privacy", "out", "--json", cwd=folder).stdout)
    for found in (planned, ran, certified):
        assert (found["epsilon"], found["delta"]) == (None, None)
    assert (certified["budget"], certified["gdp_mu"], certified["epsilon_at"]) == (None, None, [])
    assert (certified["holds"], certified["problems"]) == (False, [])
    assert planned["noise_multiplier"] == 0
    state = json.loads(command("status", "out", "--json", cwd=folder).stdout)
    assert (state["epsilon_charged"], state["epsilon_planned"], state["delta"]) == (None, None, None)
    total = json.loads(command("ledger", "scans", "--json", cwd=folder).stdout)
    assert (total["epsilon"], total["runs"], ran["data_set"]["epsilon"]) == (None, 1, None)
    audit = json.loads((folder / "out" / "confidential" / "audit-record.json").read_text(encoding="utf-8"))
    assert (audit["guarantee"]["epsilon"], audit["guarantee"]["delta"]) == (None, None)


def test_a_run_that_never_votes_promises_nothing_either(data: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolved(data, tmp_path / "run", noise="none", iterations=0)
    assert (run.guarantee["holds"], run.guarantee["epsilon"], run.guarantee["releases"]) == (False, None, [])
    assert verify(run.guarantee, run.folder) == []
    told = command("status", run.folder, cwd=tmp_path).stdout
    assert f"Privacy     {NONE}" in told
    planned = pe.plan(data, Shades(), embedding=Mean(), noise="none", population=8, iterations=0)
    assert f"Guarantee   {NONE}" in str(planned)


def test_the_votes_are_the_clean_ones(data: pe.ImageNpz, tmp_path: Path) -> None:
    one, other = evolved(data, tmp_path / "one"), evolved(data, tmp_path / "other")
    votes = np.load(one.folder / "releases" / "histogram-1.npy")
    assert votes.sum() == 40
    assert (votes >= 0).all()
    assert np.array_equal(one.synthetic.samples.array, other.synthetic.samples.array)


def test_no_other_reading_of_its_certificate_verifies(data: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolved(data, tmp_path / "run")
    noised = evolved(data, tmp_path / "noised", epsilon=5, delta=1e-5).guarantee
    made = run.guarantee
    assert verify(made, run.folder) == []
    entries = [one | {"mechanism": "discrete_gaussian", "noise_multiplier": 5.0} for one in made["releases"]]
    promise = {key: noised[key] for key in ("holds", "epsilon", "delta", "budget", "epsilon_at", "gdp_mu")}
    promise |= {key: noised[key] for key in ("statement", "voided_by", "warnings", "releases")}
    for change in (
        {"holds": True},
        {"epsilon": 1.0},
        {"delta": 1e-6},
        {"budget": {"epsilon": 1.0, "delta": 1e-6}},
        {"gdp_mu": 0.5},
        {"epsilon_at": [{"epsilon": 1.0, "delta": 1e-6}]},
        {"voided_by": []},
        {"voided_by": ["A test switch was set."]},
        {"statement": "NO GUARANTEE."},
        {"releases": entries},
        promise | {"releases": made["releases"]},
        promise,
    ):
        assert verify(made | change, run.folder), change
    unbannered = [one for one in made["covered"] if one["file"] != BANNER]
    assert verify(made | {"covered": unbannered}, run.folder)


def test_a_certificate_with_noise_has_no_banner(data: pe.ImageNpz, tmp_path: Path) -> None:
    run = evolved(data, tmp_path / "run", epsilon=5, delta=1e-5)
    assert verify(run.guarantee, run.folder) == []
    assert not (run.folder / BANNER).exists()


def test_a_run_cannot_change_over_when_it_is_resumed(data: pe.ImageNpz, tmp_path: Path) -> None:
    class Stopping(Shades):
        stops = True

        def variation_api(self, request):
            if self.stops:
                raise Interrupted("Stopped.")
            return super().variation_api(request)

    api = Stopping()
    given = {"embedding": Mean(), "out": tmp_path / "run", "population": 8, "iterations": 2, "progress": pe.Progress()}
    with pytest.raises(Interrupted):
        pe.evolve(data, api, noise="none", **given)
    surroundings = Surroundings(api=api, embedding=Mean())
    for change in ("privacy={epsilon: 4, delta: 1e-5}", "privacy={noise_multiplier: 4, delta: 1e-5}"):
        with pytest.raises(RunError, match=r"privacy\.noise: 'none' → None"):
            resume_run(tmp_path / "run", surroundings, stored_recipe(tmp_path / "run", (change,)))
    api.stops = False
    finished = pe.resume(tmp_path / "run", api=api, embedding=Mean(), progress=pe.Progress())
    assert finished.guarantee["holds"] is False


def test_the_data_set_has_no_total_any_more_and_a_cap_refuses_such_a_run(data: pe.ImageNpz, tmp_path: Path) -> None:
    file = DataSetLedger.beside(tmp_path / "private.npz")
    file.cap(Budget(1000.0, 1e-5))
    with pytest.raises(BudgetExceeded, match=r"adds no noise \(privacy: none\).* has a cap of ε = 1000"):
        evolved(data, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    file.cap(None)
    evolved(data, tmp_path / "study")
    later = evolved(data, tmp_path / "later", epsilon=5, delta=1e-5)
    assert later.guarantee["holds"]
    assert later.guarantee["data_set"] == {"epsilon": None, "delta": None, "runs": 2}
    assert f"All 2 runs over this data that were recorded when it ended, together: {NONE}." in later.certificate
    assert verify(later.guarantee, later.folder) == []
    assert NONE in CliRunner().invoke(ledger, [str(tmp_path / "private.npz"), "--delta", "1e-5"]).output
    file.cap(Budget(1000.0, 1e-5))
    with pytest.raises(BudgetExceeded, match="one before it adds no noise"):
        evolved(data, tmp_path / "refused", epsilon=5, delta=1e-5)


def test_a_comparison_says_so(data: pe.ImageNpz, tmp_path: Path) -> None:
    runs = [evolved(data, tmp_path / "study"), evolved(data, tmp_path / "run", epsilon=5, delta=1e-5)]
    assert dict(compare(runs).rows)["ε"] == (NONE, "5")


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        (None, "privacy: give epsilon or noise_multiplier, and delta; or `privacy: none`: no noise and no guarantee"),
        ("None", "or `privacy: none`: no noise and no guarantee, for studies .it is 'None'."),
        ({"noise": "none", "epsilon": 1}, "noise is none, so epsilon cannot be given: leave it out, or noise"),
        ({"noise": "none", "delta": 1e-5}, "noise is none, so delta cannot be given"),
        ({"noise": "little", "epsilon": 1, "delta": 1e-5}, "privacy.noise must be 'none', not 'little'"),
        ({"noise_multiplier": 0, "delta": 1e-5}, "privacy.noise_multiplier must be greater than 0"),
    ],
)
def test_no_other_word_turns_the_noise_off(without: Path, privacy: object, sentence: str) -> None:
    content = yaml.safe_load(without.read_text(encoding="utf-8"))
    with pytest.raises(RecipeError, match=sentence):
        Recipe.parse(content | {"privacy": privacy}, "the test")


def test_a_fitted_generator_needs_noise(without: Path) -> None:
    recipe = Recipe.load(without, ("api={kind: trained, path: nowhere}",))
    with pytest.raises(RecipeError, match="privacy is none, and 'trained' is fitted on the private records with noise"):
        lay_out(recipe)


def test_the_planner_and_the_stored_recipe_take_it(without: Path) -> None:
    recipe = Recipe.load(without, ("evolution=auto",))
    chosen = choose_evolution(recipe)
    assert chosen.recipe.evolution.neighbors == 1
    assert "24 votes" in chosen.reasons[1] or "votes, without noise" in chosen.reasons[1]
    again = Recipe.parse(yaml.safe_load(chosen.recipe.dump()), "again")
    assert again == chosen.recipe
    steps = lay_out(again).steps
    assert all(not step.release.noised and step.threshold == 0 for step in steps)
    page = CliRunner().invoke(plan, [str(without), "--set", "evolution=auto"], catch_exceptions=False).output
    assert "votes, without noise" in page

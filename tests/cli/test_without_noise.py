"""`privacy: none`: no noise is added, and everything that shows an ε says that there is no
guarantee.
"""

import json

import numpy as np
import pytest
import yaml

import pe
from pe.engine.execution import RunContext, resume_run, stored_recipe
from pe.errors import BudgetExceeded, Interrupted, RecipeError, RunError
from pe.planning.choice import choose_evolution
from pe.planning.releases import lay_out
from pe.privacy.certificate import verify
from pe.privacy.covered import BANNER
from pe.privacy.data_set import DataSetLedger
from pe.privacy.ledger import Budget
from pe.recipe.schema import Recipe
from pe.report.compare import compare
from tests.cli.conftest import evolved, make_scans
from tests.cli.typed import pe as command
from tests.generators import Mean, Shades

NONE = "none: no guarantee"


@pytest.fixture
def without(recipe):
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    recipe.write_text(yaml.safe_dump(content | {"privacy": "none"}), encoding="utf-8")
    return recipe


def test_every_command_says_that_there_is_no_guarantee_and_json_has_null_for_a_number(without):
    folder = without.parent
    make_scans(folder / "test", seed=1)

    def told(*arguments):
        result = command(*arguments, cwd=folder)
        assert result.returncode == 0, result.stderr
        return result.stdout + result.stderr

    flags = ["--test", "test", "--metrics", "fidelity", "--no-one-vote"]
    shown = ""
    for words, *parts in (
        (["plan", without], f"Guarantee   {NONE}", "warning: No noise is added to the votes"),
        (
            ["run", without, "--out", "out"],
            f"{NONE}; all runs over these records (1): {NONE}; 5 API",
            "NO GUARANTEE",
        ),
        (["view", "out", "--text"], f"Privacy     {NONE}"),
        (
            ["verify", "out"],
            "✓ It promises nothing: NO GUARANTEE, and every file is as it was certified.",
        ),
        (["ledger", "scans"], f"1 run: {NONE}, because one or more added no noise"),
        (["view", "out", "--write"],),
        (["evaluate", "out", *flags], "NO GUARANTEE"),
    ):
        page = told(*words)
        assert not [part for part in parts if part not in page], page
        shown += page
    assert (folder / "out" / BANNER).read_text(encoding="utf-8").startswith("No noise is added")
    written = [path for path in folder.glob("*/*.*") if path.suffix in (".md", ".json", ".html")]
    shown += "".join(path.read_text(encoding="utf-8") for path in written)
    assert "1e-06" not in shown
    assert "Infinity" not in shown
    commands = (["plan", without], ["verify", "out"], ["ledger", "scans"])
    planned, certified, total = (
        json.loads(command(*one, "--json", cwd=folder).stdout) for one in commands
    )
    audit = json.loads(
        (folder / "out" / "confidential" / "audit-record.json").read_text(encoding="utf-8")
    )
    for found in (planned, certified, audit["guarantee"]):
        assert (found["epsilon"], found["delta"]) == (None, None)
    assert (certified["budget"], certified["gdp_mu"], certified["epsilon_at"]) == (None, None, [])
    assert (certified["holds"], certified["problems"], planned["noise_multiplier"]) == (
        False,
        [],
        0,
    )
    assert (total["epsilon"], total["runs"]) == (None, 1)


def test_a_run_that_never_votes_promises_nothing_either(data, tmp_path):
    run = evolved(data, tmp_path / "run", noise="none", iterations=0)
    assert (run.guarantee["holds"], run.guarantee["epsilon"], run.guarantee["releases"]) == (
        False,
        None,
        [],
    )
    assert verify(run.guarantee, run.folder) == []


def test_the_votes_are_the_clean_ones(data, tmp_path):
    one, other = (evolved(data, tmp_path / name, noise="none") for name in ("one", "other"))
    votes = np.load(one.folder / "releases" / "histogram-1.npy")
    assert votes.sum() == 40
    assert (votes >= 0).all()
    assert np.array_equal(one.synthetic.samples.array, other.synthetic.samples.array)


def test_no_other_reading_of_its_certificate_verifies(data, tmp_path):
    run, other = (
        evolved(data, tmp_path / "run", noise="none"),
        evolved(data, tmp_path / "o", epsilon=5, delta=1e-5),
    )
    made, noised = run.guarantee, other.guarantee
    assert verify(made, run.folder) == verify(noised, other.folder) == []
    assert not (other.folder / BANNER).exists()
    assert dict(compare([run, other]).rows)["ε"] == (NONE, "5")
    entries = [
        one | {"mechanism": "discrete_gaussian", "noise_multiplier": 5.0}
        for one in made["releases"]
    ]
    keys = (
        "holds",
        "epsilon",
        "delta",
        "budget",
        "epsilon_at",
        "gdp_mu",
        "statement",
        "voided_by",
        "warnings",
    )
    promise = {key: noised[key] for key in keys}
    for change in (
        {"holds": True},
        {"epsilon": 1.0},
        {"budget": {"epsilon": 1.0, "delta": 1e-6}},
        {"gdp_mu": 0.5},
        {"epsilon_at": [{"epsilon": 1.0, "delta": 1e-6}]},
        {"voided_by": []},
        {"statement": "NO GUARANTEE."},
        {"releases": entries},
        {"covered": [one for one in made["covered"] if one["file"] != BANNER]},
        promise | {"releases": noised["releases"]},
    ):
        assert verify(made | change, run.folder), change


def test_a_run_cannot_change_over_when_it_is_resumed(data, tmp_path):
    class Stopping(Shades):
        def variation_api(self, request):
            raise Interrupted("Stopped.")

    api = Stopping()
    given = {
        "embedding": Mean(),
        "out": tmp_path / "run",
        "population": 8,
        "iterations": 2,
        "progress": pe.Progress(),
    }
    with pytest.raises(Interrupted):
        pe.evolve(data, api, noise="none", **given)
    context = RunContext(api=api, embedding=Mean())
    change = "privacy={epsilon: 4, delta: 1e-5}"
    with pytest.raises(RunError, match=r"privacy\.noise: 'none' → None"):
        resume_run(tmp_path / "run", context, stored_recipe(tmp_path / "run", (change,)))


def test_the_data_set_has_no_total_any_more_and_a_cap_refuses_such_a_run(data, tmp_path):
    file = DataSetLedger.beside(tmp_path / "private.npz")
    file.cap(Budget(1000.0, 1e-5))
    with pytest.raises(
        BudgetExceeded, match=r"adds no noise \(`privacy: none`\).* has a cap of ε = 1000"
    ):
        evolved(data, tmp_path / "refused", noise="none")
    assert not (tmp_path / "refused").exists()
    file.cap(None)
    evolved(data, tmp_path / "study", noise="none")
    later = evolved(data, tmp_path / "later", epsilon=5, delta=1e-5)
    assert later.guarantee["holds"]
    assert later.guarantee["data_set"] == {"epsilon": None, "delta": None, "runs": 2}
    assert (
        f"All 2 runs over this data that were recorded when it ended, together: {NONE}."
        in later.certificate
    )
    assert verify(later.guarantee, later.folder) == []
    file.cap(Budget(1000.0, 1e-5))
    with pytest.raises(BudgetExceeded, match="an earlier one adds no noise"):
        evolved(data, tmp_path / "refused", epsilon=5, delta=1e-5)


NO_OTHER = [
    ("None", "or `privacy: none`: no noise and no guarantee, for studies .it is 'None'."),
    (
        {"noise": "none", "epsilon": 1},
        "with noise: none, epsilon has no meaning: remove it, or remove noise",
    ),
    (
        {"noise": "little", "epsilon": 1, "delta": 1e-5},
        "privacy.noise must be 'none', not 'little'",
    ),
    ({"noise_multiplier": 0, "delta": 1e-5}, "privacy.noise_multiplier must be greater than 0"),
]


def test_no_other_word_turns_the_noise_off(without):
    content = yaml.safe_load(without.read_text(encoding="utf-8"))
    for privacy, sentence in NO_OTHER:
        with pytest.raises(RecipeError, match=sentence):
            Recipe.parse(content | {"privacy": privacy}, "the test")


def test_a_fitted_generator_needs_noise_and_the_planner_needs_none(without):
    with pytest.raises(
        RecipeError,
        match="'trained' is fitted on the private records, which needs noise",
    ):
        lay_out(Recipe.load(without, ("api={kind: trained, path: nowhere}",)))
    chosen = choose_evolution(Recipe.load(without, ("evolution=auto",)))
    assert chosen.recipe.evolution.neighbors == 1
    again = Recipe.parse(yaml.safe_load(chosen.recipe.dump()), "again")
    assert again == chosen.recipe
    assert all(not step.release.has_noise and step.threshold == 0 for step in lay_out(again).steps)

"""`pe extend`: more samples at no further ε."""

import shutil

import numpy as np
import pytest
import yaml

import pe
from pe.engine.execution import RunContext
from pe.engine.extend import extend_run
from pe.errors import DamagedFile, LimitReached, PluginError, RecipeError, RunError
from pe.privacy.certificate import verify
from pe.store.run import purge
from tests.generators import Mean, Shades


@pytest.fixture
def run(made, tmp_path):
    return pe.Run.open(shutil.copytree(made[0].folder, tmp_path / "run"))


def extend(run, count, degree=0.5, api=None, changes=()):
    return extend_run(
        run.folder, count, degree, RunContext(api=api or Shades(), embedding=Mean()), changes
    )


def test_more_samples_vary_the_last_population_as_its_iteration_did_and_carry_its_labels(run):
    before, api = run.guarantee, Shades()
    path = extend(run, 24, 0.0)
    with np.load(path) as archive:
        turns = np.array([*range(20), 0, 5, 10, 15])
        np.testing.assert_array_equal(archive["images"], run.synthetic.samples.array[turns])
        np.testing.assert_array_equal(archive["labels"], run.synthetic.labels[turns])
    extend(run, 8, 0.5, api)
    assert {request.iteration for request in api.variation_requests} == {2}
    assert run.guarantee["epsilon"] == before["epsilon"]
    assert run.guarantee["releases"] == before["releases"]
    assert verify(run.guarantee, run.folder) == []
    assert path.name in {entry["file"] for entry in run.guarantee["covered"]}


@pytest.mark.parametrize("purged", [False, True])
@pytest.mark.parametrize("deleted", [(), (2,), (1, 2)])
def test_each_extension_is_new_although_others_were_deleted(run, deleted, purged):
    made = [np.load(extend(run, 3, 1.0))["images"] for _ in range(2)]
    for number in deleted:
        (run.folder / f"extension-{number:03d}.npz").unlink()
        shutil.rmtree(run.folder / f"extensions/{number:03d}")
    if purged:
        purge(run)
    path = extend(run, 5, 1.0)
    assert path.name == "extension-003.npz"
    assert all((np.load(path)["images"][:3] != one).any() for one in made)
    assert bool(deleted) or verify(run.guarantee, run.folder) == []


def test_an_interrupted_extension_goes_on_and_asks_for_nothing_twice(run):
    failing, api = Shades(), Shades()
    failing.variation_api = lambda request: (
        Shades.variation_api(failing, request) if failing.asked < 14 else 1 / 0
    )
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        extend(run, 30, api=failing)
    with pytest.raises(
        RunError,
        match=r"An extension by 30 .* was interrupted. .* delete .*extension\.json to give it up",
    ):
        extend(run, 31, api=api)
    given_up = pe.Run(shutil.copytree(run.folder, run.folder.parent / "given_up"))
    extend(run, 30, api=api)
    assert failing.asked + api.asked == 30
    (given_up.folder / "confidential" / "extension.json").unlink()
    assert extend(given_up, 31).name == "extension-002.npz"


def test_limits_may_be_changed_for_an_extension_and_nothing_else(run):
    remedy = r"; `pe extend .*run -n 20 --degree 0\.5 --set limits\.max_images=…` goes on"
    with pytest.raises(LimitReached, match=remedy):
        extend(run, 20, changes=("limits.max_images=150",))
    assert extend(run, 20, changes=("limits.max_images=200",)).is_file()
    with pytest.raises(
        RecipeError, match=r"cannot be extended with another recipe: evolution\.degree: 0\.5 → 0\.1"
    ):
        extend(run, 20, changes=("evolution.degree=0.1",))


HERE = "http://127.0.0.1:9/v1"
ENDPOINT = {
    "kind": "openai_images",
    "model": "m",
    "prompts": "x",
    "image_size": 4,
    "base_url": HERE,
}
NAMED = (f"api.base_url={HERE}",)


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize(
    ("api", "changes", "key"),
    [
        (ENDPOINT | {"key_env": "SECRET"}, (), "base_url"),
        (ENDPOINT | {"key_env": "SECRET"}, NAMED, "key_env"),
        (ENDPOINT | {"key_command": ["rm", "x"]}, NAMED, "key_command"),
        ({"kind": "dp_imgsyn", "public": {"kind": "noise"}, "teacher": "os:system"}, (), "teacher"),
    ],
)
def test_a_run_that_was_received_says_neither_where_keys_go_nor_what_code_runs(
    run, tmp_path, api, changes, key, planted
):
    received = run.export(tmp_path / "received")
    (received / "confidential").mkdir()  # as one who received it and works in it
    if planted:
        shutil.copy(run.folder / "confidential/recipe.yaml", received / "confidential")
    content = yaml.safe_load((received / "recipe.yaml").read_text())
    (received / "recipe.yaml").write_text(yaml.safe_dump(content | {"api": api}))
    with pytest.raises(
        RecipeError, match=rf"api\.{key} is '.*' in a recipe that came with .* --set '?api\.{key}="
    ):
        extend_run(received, 4, 0.5, RunContext(), changes)
    assert len(list((received / "confidential").iterdir())) == planted  # nothing was written


def test_an_export_is_not_written_into_unless_whoever_received_it_wants_so(run, tmp_path):
    out, other = (pe.Run.open(run.export(tmp_path / form, form)) for form in ("npz", "folder"))
    before = sorted(out.folder.rglob("*"))
    with pytest.raises(
        RunError, match=r"npz is an export \(it has no confidential/\), and `pe extend` would write"
    ):
        extend(out, 4)
    assert sorted(out.folder.rglob("*")) == before
    for received in (out, other):
        (received.folder / "confidential").mkdir(0o700)
    assert extend(out, 4).is_file()
    with pytest.raises(
        RunError, match=r"folder has no synthetic.npz: it is an export in another form, or has lost"
    ):
        extend(other, 4)


def test_no_samples_come_of_a_model_that_was_changed(tmp_path):
    about = {
        "columns": {"age": {"kind": "integer", "min": 18, "max": 99}},
        "declared_size": 40,
        "iterations": 0,
    }
    about |= {"epsilon": 4.0, "delta": 1e-3, "population": 8, "ledger_file": tmp_path / "l.json"}
    run = pe.evolve({"age": [20, 30] * 20}, pe.api("independent"), out=tmp_path / "run", **about)
    purge(run)
    pe.extend(run, 4, degree=1.0)
    model = next(path for path in sorted((run.folder / "model").iterdir()) if path.suffix == ".npz")
    model.write_bytes(model.read_bytes()[::-1])
    with pytest.raises(DamagedFile, match="was changed after it was certified"):
        pe.extend(run, 4, degree=1.0)

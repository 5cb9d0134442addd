"""`pe extend`: more samples at no further ε."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import pe
from pe.engine.execution import Surroundings
from pe.engine.extend import extend_run, spread
from pe.errors import LimitReached, PluginError, RecipeError, RunError
from pe.plugins.protocols import Answer, VariationRequest
from pe.privacy.certificate import verify
from pe.store.run import purge
from tests.generators import Mean, Shades


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 2, "lookahead": 0}
    return pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)


def given(api: Shades) -> Surroundings:
    return Surroundings(api=api, embedding=Mean())


def test_more_samples_vary_the_last_population_and_carry_its_labels(run: pe.Run) -> None:
    before = run.guarantee
    path = extend_run(run.folder, 20, 0.0, given(Shades()))
    with np.load(path) as archive:
        turns = np.array([*range(8), *range(8), 0, 2, 4, 6])
        np.testing.assert_array_equal(archive["images"], run.synthetic.samples.array[turns])
        np.testing.assert_array_equal(archive["labels"], run.synthetic.labels[turns])
    assert run.guarantee["epsilon"] == before["epsilon"]
    assert run.guarantee["releases"] == before["releases"]
    assert verify(run.guarantee, run.folder) == []
    assert "extension-001.npz" in {entry["file"] for entry in run.guarantee["covered"]}


def test_it_is_asked_for_as_the_last_iteration_s(run: pe.Run) -> None:
    api = Shades()
    extend_run(run.folder, 8, 0.5, given(api))
    assert {request.iteration for request in api.variation_requests} == {2}


def test_each_extension_is_new(run: pe.Run) -> None:
    first, second = (extend_run(run.folder, 8, 1.0, given(Shades())) for _ in range(2))
    assert [first.name, second.name] == ["extension-001.npz", "extension-002.npz"]
    with np.load(first) as one, np.load(second) as other:
        assert (one["images"] != other["images"]).any()


@pytest.mark.parametrize("deleted", [(1,), (2,), (1, 2)])
@pytest.mark.parametrize("purged", [False, True])
def test_an_extension_is_new_although_others_were_deleted(run: pe.Run, deleted: tuple[int, ...], purged: bool) -> None:
    made = [np.load(extend_run(run.folder, 3, 1.0, given(Shades())))["images"] for _ in range(2)]
    for number in deleted:
        (run.folder / f"extension-{number:03d}.npz").unlink()
        shutil.rmtree(run.folder / f"extensions/{number:03d}")
    if purged:
        purge(run)
    path = extend_run(run.folder, 5, 1.0, given(Shades()))
    assert path.name == "extension-003.npz"
    assert all((np.load(path)["images"][:3] != one).any() for one in made)


def test_an_interrupted_extension_goes_on_and_asks_for_nothing_twice(run: pe.Run) -> None:
    class Failing(Shades):
        def variation_api(self, request: VariationRequest) -> Answer:
            if len(self.variation_requests) == 2:
                raise OSError("gone")
            return super().variation_api(request)

    failing, api = Failing(), Shades()
    with pytest.raises(PluginError, match="gone"):
        extend_run(run.folder, 30, 0.5, given(_as_shades(failing)))
    with pytest.raises(RunError, match=r"An extension by 30 .* was interrupted"):
        extend_run(run.folder, 31, 0.5, given(api))
    extend_run(run.folder, 30, 0.5, given(api))
    assert failing.asked + api.asked == 30


def _as_shades(api: Shades) -> Shades:
    """The recipe records an object by its class: stand in for `Shades`, with another's methods."""
    stand_in = Shades()
    stand_in.variation_api = api.variation_api
    return stand_in


def test_a_purged_run_can_still_be_extended(run: pe.Run) -> None:
    purge(run)
    assert extend_run(run.folder, 3, 0.5, given(Shades())).is_file()
    assert verify(run.guarantee, run.folder) == []


def test_an_unfinished_run_is_not_extended(run: pe.Run) -> None:
    for name in ("synthetic.npz", "certificate.json"):
        (run.folder / name).unlink()
    with pytest.raises(RunError, match="is not finished"):
        extend_run(run.folder, 3, 0.5, given(Shades()))
    for count in (0, 10**12):
        with pytest.raises(RecipeError, match=f"An extension has 1 to 10,000,000 samples and .*, not {count:,} and"):
            extend_run(run.folder, count, 0.5, given(Shades()))


def test_limits_may_be_changed_for_an_extension_and_nothing_else(run: pe.Run) -> None:
    with pytest.raises(
        LimitReached, match=r"; `pe extend .*run -n 20 --degree 0\.5 --set limits\.max_images=…` goes on"
    ):
        extend_run(run.folder, 20, 0.5, given(Shades()), ("limits.max_images=30",))
    assert extend_run(run.folder, 20, 0.5, given(Shades()), ("limits.max_images=60",)).is_file()
    with pytest.raises(RecipeError, match=r"cannot be extended with another recipe: evolution\.degree: 0\.5 → 0\.1"):
        extend_run(run.folder, 20, 0.5, given(Shades()), ("evolution.degree=0.1",))


@pytest.mark.parametrize("schedule", [{"degree": []}, {"iterations": 0, "degree": [], "selection": []}, {"keep": []}])
def test_a_run_of_random_samples_alone_is_extended_too(schedule: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "private.npz", images=np.zeros((9, 4, 4, 1), np.uint8))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1)
    run = pe.evolve(
        data, Shades(), embedding=Mean(), out=tmp_path / "run", epsilon=1, delta=1e-5, population=4, **schedule
    )
    assert pe.extend(run.folder, 3, api=Shades()).is_file()


@pytest.mark.parametrize("count", [1, 7, 40, 47])
def test_an_extension_of_any_size_keeps_the_labels_shares_to_a_sample(count: int) -> None:
    labels = np.repeat([0, 1, 2, 3], 10)
    sizes = np.bincount(labels[spread(len(labels), count)], minlength=4)
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1


def test_a_run_that_was_received_says_neither_where_keys_go_nor_what_code_runs(run: pe.Run, tmp_path: Path) -> None:
    received = run.export(tmp_path / "received")
    (received / "confidential").mkdir()  # as one who received it and works in it
    content = yaml.safe_load((received / "recipe.yaml").read_text())
    endpoint = {"kind": "openai_images", "model": "m", "prompts": "x", "image_size": 4}
    here, teacher = "http://127.0.0.1:9/v1", {"kind": "dp_imgsyn", "public": {"kind": "noise"}, "teacher": "os:system"}
    for api, changes, key in (
        (endpoint | {"base_url": here, "key_env": "SECRET"}, (), "base_url"),
        (endpoint | {"base_url": here, "key_env": "SECRET"}, (f"api.base_url={here}",), "key_env"),
        (endpoint | {"base_url": here, "key_command": ["rm", "x"]}, (f"api.base_url={here}",), "key_command"),
        (endpoint | {"base_url": here, "headers_env": {"X": "HOME"}}, (f"api.base_url={here}",), "headers_env"),
        (endpoint | {"base_url": here, "key_file": "/k"}, (f"api.base_url={here}",), "key_file"),
        (teacher, (), "teacher"),
    ):
        (received / "recipe.yaml").write_text(yaml.safe_dump(content | {"api": api}))
        with pytest.raises(RecipeError, match=rf"api\.{key} is '.*' in a recipe that came with .* --set '?api\.{key}="):
            extend_run(received, 4, 0.5, Surroundings(), changes)
    assert not list((received / "confidential").iterdir())


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_an_export_is_not_written_into_unless_whoever_received_it_wants_so(
    run: pe.Run, tmp_path: Path, form: str
) -> None:
    out = run.export(tmp_path / "out", form)
    before = sorted(out.rglob("*"))
    said = r"out is an export \(it has no confidential/\), and `pe {}` would write into it: name the run that"
    with pytest.raises(RunError, match=said.format("extend")):
        extend_run(out, 4, 0.5, Surroundings(api=Shades()))
    with pytest.raises(RunError, match=said.format("evaluate")):
        pe.evaluate(out, "nowhere")
    assert sorted(out.rglob("*")) == before
    (out / "confidential").mkdir(0o700)
    if form == "npz":
        assert extend_run(out, 4, 0.5, Surroundings(api=Shades())).is_file()
        return
    other = "out is an export in another form than npz, or has lost synthetic.npz: name the run"
    with pytest.raises(RunError, match=other):
        extend_run(out, 4, 0.5, Surroundings(api=Shades()))
    with pytest.raises(RunError, match=other):
        pe.Run.open(out).export(tmp_path / "again", "parquet")
